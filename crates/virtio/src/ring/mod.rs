//! The device side of virtqueues (virtio 1.2 §2.7 split, §2.8 packed), made for a switch that moves bursts.
//!
//! **Problem.** A ring is a protocol over memory whose other party may be hostile and runs at the same time.
//! A packet has to be copied once, shared lines touched once per burst, and one guest's broken ring must not
//! break another's.
//!
//! **Invariants.**
//! * Each field of a descriptor, of an indirect table and of a header is read once, into private memory. All
//!   checks and all uses are of that copy ([`crate::mem::Claim`]).
//! * A chain is taken whole or not at all. Chains are used in the order in which they were made available.
//! * A ring that breaks the protocol stops ([`RingError`]) and stays stopped until it is set up again;
//!   nothing panics, nothing outside this queue notices.
//! * No descriptor waits for another device: a receive burst is given back by [`DeviceRx::complete`], a
//!   transmit call takes only buffers that it fills.
//!
//! **Orderings.** Stated at each access in `split` and `packed` with the access that they pair with.
//!
//! **Safe errors.** An extra notification costs time, a missing one hangs the guest: when in doubt, notify. A
//! chain refused too early stops one queue; one accepted wrongly reads foreign memory: when in doubt, refuse.
//!
//! **Thread-safety.** A queue belongs to one worker at a time (`Send`, `&mut self`).
//!
//! Deviations from the specification are listed in [`limits`].

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![deny(clippy::indexing_slicing)] // whatever a guest writes

mod config;
mod desc;
mod error;
mod event;
pub mod limits;
mod packed;
mod queue;
mod record;
mod resubmit;
mod rx;
mod split;
#[cfg(test)]
mod tests;
mod tx;
mod walk;
mod window;

pub use config::{Features, Position, QueueConfig, Tracking};
pub(crate) use desc::{AREA_DESC, AREA_DISABLE, AREA_ENABLE, F_AVAIL, F_INDIRECT, F_NEXT, F_USED, F_WRITE};
pub use error::RingError;
pub(crate) use event::{packed_event_passed, split_event_passed};
pub use queue::Miss;
pub use record::{Record, RecordLayout, Recovery};
pub use resubmit::{Resubmit, SplitRecord};
pub use rx::{DeviceRx, RxDrops};
pub use tx::{DeviceTx, TxOutcome};
