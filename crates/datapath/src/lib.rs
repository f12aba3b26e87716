//! The engine that forwards packets: the worker loop, compiled actions, ports, the revalidator.
//!
//! Modules: `worker` (one burst from receive to transmit), `exec` (compiled actions), `revalidator`
//! (statistics, ageing and re-checks of entries). `control` has ports, workers and the assignment of queues;
//! `handle` has the methods for other crates. Two crates belong to this one: [`heddle_flow_cache`] has a
//! worker's cache of flows, [`heddle_datapath_api`] has the types shared by policy and engine.
//!
//! Each worker is one thread per core. It takes a burst from a receive queue, parses it, looks it up, runs
//! the actions and hands it to transmit queues. A miss is translated in place through
//! [`Translate`](heddle_datapath_api::Translate), which `ofproto` implements; the result is a wildcarded
//! cache entry.

pub mod config;
mod control;
mod counters;
mod exec;
mod flow_cache;
pub mod handle;
mod perf;
mod revalidator;
mod shared;
mod worker;

#[cfg(test)]
mod tests;

pub use config::{Config, DatapathError, MaxSleep, PortConfig};
pub use control::AutoLb;
pub use control::assign::{RxqAssign, Spread};
pub use exec::fragments::WaitingFragment;
pub use exec::watch::{CapturePoint, CaptureWish, Captured, DropExample};
pub use handle::Datapath;
pub use perf::{PerfWanted, SuspectLog};
pub use worker::REALTIME;
