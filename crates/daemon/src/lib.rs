//! A daemon with the manners of Open vSwitch's: detaching, pid file, log, control socket, counters of events.
//!
//! The crate knows nothing of a switch.

pub mod commands;
pub mod coverage;
pub mod daemonize;
pub mod dirs;
pub mod exit;
pub mod memory;
pub mod pidfile;
pub mod unixctl;
pub mod vlog;
