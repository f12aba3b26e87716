//! Published snapshots, single-producer rings, per-core counters, and the clock.
//!
//! Threads of the switch share data only by these types, so that the memory orderings are in one place:
//!
//! * [`Published`]: the control plane replaces a whole immutable value, workers read the current one.
//! * [`RcuCell`]: the same for values that take long to free. Readers never free them, and a reader may use
//!   many values at a time ([`ReadGuard`]).
//! * [`Combining`]: a value that one thread uses at a time. Other threads leave their work instead of
//!   waiting.
//! * [`OnceArc`]: a place that is filled once.
//! * [`RcuSlots`]: an array of places that are filled and emptied again.
//! * [`Chain`]: lists that any thread adds to and reads without waiting.
//! * [`ring`]: a bounded queue between exactly two threads.
//! * [`Counter`]: a number that one thread writes and any thread reads.
//! * [`TokenBucket`]: a rate that threads keep together.
//! * [`Wakeup`]: wakes a thread that waits for work.
//! * [`Clock`]: milliseconds, which tests can stop and warp.
//! * [`barrier`]: the full barrier of notification suppression.

pub mod barrier;
mod bucket;
mod chain;
mod clock;
mod combining;
mod counter;
mod once_arc;
mod published;
mod rcu_cell;
mod rcu_slots;
mod read_guard;
pub mod ring;
mod wakeup;

pub use bucket::TokenBucket;
pub use chain::{Chain, Link};
pub use clock::Clock;
pub use combining::{Combining, Guard as CombiningGuard};
pub use counter::{CachePadded, Counter};
pub use once_arc::OnceArc;
pub use published::Published;
pub use rcu_cell::RcuCell;
pub use rcu_slots::RcuSlots;
pub use read_guard::ReadGuard;
pub use wakeup::Wakeup;
