//! The seam between policy and engine: neither knows the other's inside.
//!
//! *Policy* (`ofproto`) decides what is done with packets: OpenFlow tables, learning, groups, mirrors. The
//! *engine* (`datapath`, with `flow-cache`) forwards them: ports, workers, caches. Two traits join them:
//!
//! * A worker whose caches have no entry for a packet calls [`Translate`], which policy implements.
//! * Policy calls [`Engine`], which the engine implements: it injects packets, takes packets for controllers,
//!   and reads counters. `switchd` makes the engine and hands it to policy.
//!
//! All else are plain values, and counters that both sides share:
//!
//! | module | contents |
//! | --- | --- |
//! | `action` | datapath actions, port numbers, packets for the control plane |
//! | `balance` | the buckets of bonds that balance by hash |
//! | `translate` | the request of a worker, the [`Translate`] trait |
//! | `translation` | the result: mask, actions, dependencies, and the counters to credit |
//! | `generations` | generation counters of things that translations depend on |
//! | [`changes`] | the log of changed rules; which packets a changed rule concerns |
//! | [`meter`] | meters: token buckets that all workers share |
//! | `drops` | the names of all drops |
//! | `engine` | the [`Engine`] trait |
//! | `observer` | the [`FlowObserver`] trait of places where flows are offloaded to |
//! | `view` | counters, cached flows and ports, copied out for the control plane |
//! | `format` | actions and flows as `ovs-appctl dpctl/dump-flows` prints them |
//!
//! **Threads.** Workers run code of this crate for each packet ([`Meter::police`]) and each burst
//! ([`Generations::any`]): it takes no lock and reads no clock.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod action;
mod balance;
pub mod changes;
mod drops;
mod engine;
mod format;
mod generations;
pub mod meter;
mod observer;
mod translate;
mod translation;
mod view;

pub use action::{
    Action, DropReason, HashAlg, Masked, NshHeader, PortNo, TunnelKey, Upcall, UpcallCookie, UpcallData,
    UpcallKind, Wait,
};
pub use balance::{BucketChoice, LbOutput};
pub use changes::{Changes, Override};
pub use drops::DropKind;
pub use engine::{DeviceStats, Engine, LinkChange, NoReply, Posted};
pub use format::{PortNames, format_actions, format_key, format_whole, ufid};
pub use generations::{Dep, Generations};
pub use heddle_sys::{DeviceCounters, QueueCounts};
pub use meter::{Meter, MeterAction, MeterBand, MeterConfig, MeterCounts};
pub use observer::{FlowCounts, FlowId, FlowObserver, ObservedFlow, PortCounts};
pub use translate::{Purpose, Request, Translate};
pub use translation::{Credit, Credits, Translation};
pub use view::{
    FlowDump, Merged, POLICED, PortInfo, PortStats, QueueView, Snapshot, Totals, UpcallPacket, WorkerView,
};

/// The model checker has atomics of its own (`tests/model.rs`).
mod atomic {
    pub(crate) use std::sync::atomic::AtomicU64;
}
