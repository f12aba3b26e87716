//! Compiled actions, the worker loop, drop reasons, and the [`Translate`] trait.
//!
//! The rooms: `worker` (one burst from receive to transmit), `exec` (compiled actions), `revalidator`
//! (statistics, ageing and re-checks of entries), `control` (ports, workers and who polls what), `handle`
//! (what others call). What is remembered of flows is a crate of its own ([`heddle_flow_cache`]).
//!
//! Workers (one thread per core) take a burst from a receive queue, parse it, look it up, run the actions and
//! hand it to transmit queues. A miss is translated in place through [`Translate`], which `ofproto`
//! implements; the result is a wildcarded cache entry that names what it depends on ([`Dep`]) and whom its
//! packets are credited to ([`Credit`]).

pub mod action;
pub mod config;
mod control;
mod counters;
pub mod drops;
mod exec;
mod flow_cache;
pub mod format;
pub mod handle;
pub mod observer;
mod revalidator;
mod shared;
pub mod translate;
pub mod view;
mod worker;

#[cfg(test)]
mod tests;

pub use action::{Action, PortNo};
pub use config::{Config, DatapathError, MaxSleep, PortConfig};
pub use control::AutoLb;
pub use control::assign::{RxqAssign, Spread};
pub use control::perf::{PerfWanted, SuspectLog};
pub use drops::DropKind;
pub use exec::fragments::Waiting;
pub use exec::meter::{Meter, MeterAction, MeterBand, MeterConfig, MeterCounts};
pub use exec::watch::{CaptureWish, Captured, DropExample, Way};
pub use format::format_actions;
pub use handle::{Datapath, Posted};
pub use heddle_flow_cache::{Changes, Override, changes};
pub use heddle_port::QueueCounts;
pub use observer::{FlowCounts, FlowId, FlowObserver, ObservedFlow, PortCounts};
pub use translate::{Credit, Credits, Dep, Generations, Purpose, Request, Translate, Translation};
pub use view::{
    FlowDump, Merged, POLICED, PortInfo, PortStats, QueueView, Snapshot, Totals, UpcallPacket, WorkerView,
};
pub use worker::REALTIME;
