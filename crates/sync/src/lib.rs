//! Published snapshots, single-producer rings, per-core counters, and the clock.
//!
//! What threads of the switch share is one of these, so that the memory orderings are in one place:
//!
//! * [`Published`]: the control plane replaces a whole immutable value, workers read the current one.
//! * [`RcuCell`]: the same for values that take long to free, which readers never do, and that are read many
//!   at a time ([`ReadGuard`]).
//! * [`Combining`]: a value that one thread uses at a time, where the others leave their work instead of
//!   waiting.
//! * [`OnceArc`]: a place that is filled once.
//! * [`RcuSlots`]: many of them, which are emptied, too.
//! * [`Chain`]: lists that anybody adds to and looks through without waiting.
//! * [`ring`]: a bounded queue between exactly two threads.
//! * [`Counter`]: a number that one thread writes and any thread reads.
//! * [`TokenBucket`]: a rate that threads keep together.
//! * [`Wakeup`]: a thread that waits for work, and those that wake it.
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
