//! Measurements between two end points: load over sockets, series that alternate between contenders,
//! statistics, results, reports.
//!
//! An end point is a process ([`agent`]). This program starts it at its place ([`place`]) and sends it
//! requests over a stream ([`peer`]). A *series* is one load between two end points for some seconds. A
//! *case* is the kind of load. A *contender* is a pair of end points, with settings. [`runner`] lets
//! contenders take turns and repeats until the intervals of [`stats`] are narrow enough.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod advise;
pub mod agent;
pub mod attach;
pub mod factors;
pub mod keeper;
pub mod load;
pub mod machine;
pub mod peer;
pub mod place;
pub mod report;
pub mod results;
pub mod runner;
pub mod stats;
pub mod uperf;
pub mod usage;
