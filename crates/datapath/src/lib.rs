//! Caches, compiled actions, the worker loop, drop reasons, and the [`Translate`] trait.
//!
//! Workers (one thread per core) take a burst from a receive queue, parse it, look it up, run the actions and
//! hand it to transmit queues. A miss is translated in place through [`Translate`], which `ofproto`
//! implements; the result is a wildcarded cache entry that names what it depends on ([`Dep`]) and whom its
//! packets are credited to ([`Credit`]).

pub mod action;
mod assign;
mod bodies;
mod cache;
pub mod changes;
mod compact;
pub mod config;
mod context;
mod control;
mod counters;
pub mod drops;
mod entry;
mod exec;
mod filter;
pub mod format;
mod generations;
pub mod handle;
mod hash;
mod l1;
mod meter;
mod note;
mod parse;
mod perf;
mod program;
mod shared;
mod show;
mod sig;
mod spares;
mod store;
mod sweep;
mod table;
pub mod translate;
mod tuple;
mod tx;
mod upcalls;
mod verdict;
pub mod view;
mod watch;
mod worker;

#[cfg(test)]
mod tests;

pub use action::{Action, PortNo};
pub use assign::{RxqAssign, Spread};
pub use changes::{Changes, Override};
pub use config::{Config, DatapathError, MaxSleep, PortConfig};
pub use control::AutoLb;
pub use drops::DropKind;
pub use format::format_actions;
pub use handle::Datapath;
pub use meter::{Meter, MeterAction, MeterBand, MeterConfig, MeterCounts};
pub use perf::{PerfWanted, SuspectLog};
pub use translate::{Credit, Credits, Dep, Generations, Purpose, Request, Translate, Translation};
pub use view::{
    FlowDump, Merged, PortInfo, PortStats, QueueView, Snapshot, Totals, UpcallPacket, WorkerView,
};

/// What workers and others share, in one place: the model checker has its own (`tests/model.rs`).
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, fence};
    pub(crate) use zerocopy::FromZeros;
}
