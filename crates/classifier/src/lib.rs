//! Tuple-space search with wildcard tracking, priorities and versions.
//!
//! **Problem.** Find, among rules that match arbitrary bits of the flow key, the one of highest priority that
//! matches a key, and say which bits of the key that answer depended on.
//!
//! **Shape.** Rules with the same mask form a [subtable](subtable): a hash table over the masked words. A
//! lookup walks the subtables by falling highest priority and stops when none left can beat what it has.
//!
//! **Wildcards.** The fewer bits a lookup looks at, the more packets share its answer. Three ways of Open
//! vSwitch's find out early that a subtable has nothing: [stages](stage) of the mask (metadata, L2, L3, L4),
//! [prefixes](prefix) of addresses that some rule asks for, and the L4 ports that rules of the subtable ask
//! for. The safe error is a bit too many.
//!
//! **Versions.** A rule is visible to lookups at versions `added <= v < removed`, so that a batch of changes
//! appears all at once when the caller moves on to the next version.
//!
//! **Threads.** Any number of readers, without locks and without waiting; writers are serialised by the
//! caller (a second concurrent writer waits on a mutex). A removed rule stays until [`Classifier::purge`].
//! Only writers free tables.
//!
//! **Costs.** A lookup costs one hash and one probe a stage; an insertion as much, and now and then a table
//! twice as big; the number of subtables is the number of distinct masks. Lookups find new subtables after
//! [`Classifier::publish`], which goes through all of them: once for a batch of changes. [`linear`] is the
//! plain twin.

mod classifier;
mod entry;
pub mod linear;
mod mini;
mod prefix;
mod slots;
mod stage;
mod subtable;
#[cfg(test)]
mod tests;
mod trie;

pub use classifier::Classifier;
pub use entry::Entry;
pub use mini::{MiniMask, MiniMatch};
pub use prefix::{MAX_TRACKED, PrefixField};

/// What readers and writers share, in one place: the model checker has its own (`tests/model.rs`).
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
}
