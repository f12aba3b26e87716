//! Published snapshots, single-producer rings, per-core counters, and the clock.
//!
//! What threads of the switch share is one of these, so that the memory orderings are in one place:
//!
//! * [`Published`]: the control plane replaces a whole immutable value, workers read the current one.
//! * [`Replaced`]: the same for values that take long to free, which readers never do, and that are read many at a time ([`Reading`]).
//! * [`OnceArc`]: a place that is filled once.
//! * [`Places`]: many of them, which are emptied, too.
//! * [`ring`]: a bounded queue between exactly two threads.
//! * [`Counter`]: a number that one thread writes and any thread reads.
//! * [`TokenBucket`]: a rate that threads keep together.
//! * [`Clock`]: milliseconds, which tests can stop and warp.
//! * [`barrier`]: the full barrier of notification suppression.

#![allow(unsafe_code)] // the ring's cells: see `ring`; one instruction: see `barrier`; pointers: see `once_arc`, `places` and `replaced`

pub mod barrier;
mod bucket;
mod clock;
mod counter;
mod once_arc;
mod places;
mod published;
mod reading;
mod replaced;
pub mod ring;

pub use bucket::TokenBucket;
pub use clock::Clock;
pub use counter::{CachePadded, Counter};
pub use once_arc::OnceArc;
pub use places::Places;
pub use published::Published;
pub use reading::Reading;
pub use replaced::Replaced;
