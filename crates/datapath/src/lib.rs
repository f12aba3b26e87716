//! The engine that forwards packets: the worker loop, compiled actions, ports, the revalidator.
//!
//! The rooms: `worker` (one burst from receive to transmit), `exec` (compiled actions), `revalidator`
//! (statistics, ageing and re-checks of entries), `control` (ports, workers and who polls what), `handle`
//! (what others call). Two crates stand beside this one: [`heddle_flow_cache`] has what a worker remembers of
//! flows, [`heddle_datapath_api`] has what policy and engine share.
//!
//! Workers (one thread per core) take a burst from a receive queue, parse it, look it up, run the actions and
//! hand it to transmit queues. A miss is translated in place through
//! [`Translate`](heddle_datapath_api::Translate), which `ofproto` implements; the result is a wildcarded
//! cache entry.

pub mod config;
mod control;
mod counters;
mod exec;
mod flow_cache;
pub mod handle;
mod revalidator;
mod shared;
mod worker;

#[cfg(test)]
mod tests;

pub use config::{Config, DatapathError, MaxSleep, PortConfig};
pub use control::AutoLb;
pub use control::assign::{RxqAssign, Spread};
pub use control::perf::{PerfWanted, SuspectLog};
pub use exec::fragments::Waiting;
pub use exec::watch::{CaptureWish, Captured, DropExample, Way};
pub use handle::Datapath;
pub use worker::REALTIME;
