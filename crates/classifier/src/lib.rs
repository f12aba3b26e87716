//! Tuple-space search with wildcard tracking, priorities and versions.
//!
//! **Problem.** Rules match arbitrary bits of the flow key. Find the matching rule of highest priority for a
//! key, and the bits of the key that this result depends on.
//!
//! **Shape.** Rules with the same mask form a [subtable](subtable): a hash table over the masked words. A
//! lookup walks the subtables by falling highest priority, and stops when no remaining subtable can beat the
//! best rule so far.
//!
//! **Wildcards.** The fewer bits a lookup looks at, the more packets share its result. Open vSwitch has three
//! methods to find out early that a subtable has no match. They are [stages](stage) of the mask (metadata,
//! L2, L3, L4), [prefixes](prefix) of addresses in rules, and the L4 ports of the subtable's rules. The safe
//! error is a bit too many.
//!
//! **Versions.** A rule is visible to lookups at versions `added <= v < removed`. So a batch of changes
//! appears all at once when the caller publishes the next version.
//!
//! **Threads.** Any number of readers, without locks and without waiting; writers are serialised by the
//! caller (a second concurrent writer waits on a mutex). A removed rule stays until [`Classifier::purge`].
//! Only writers free tables.
//!
//! **Costs.** A lookup costs one hash and one probe per stage and subtable. An insertion costs as much, and
//! sometimes a table of twice the size. The number of subtables is the number of distinct masks. Lookups find
//! new subtables after [`Classifier::publish`], which goes through all of them: once for a batch of changes.
//! [`linear`] is the plain twin.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

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

/// Atomics that readers and writers share. The model checker replaces them with its own (`tests/model.rs`).
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
}
