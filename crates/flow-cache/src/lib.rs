//! The flow cache of a worker: it finds the result of an earlier translation for a packet, and checks that
//! this result is still valid.
//!
//! | question | file |
//! | --- | --- |
//! | what is the key of a packet | `compact`, `context`; of the packets of a burst: `burst` |
//! | where is an entry stored, and what does it count | `entry`, `store`, `memory`, `spare_memory` |
//! | which entry matches a packet | `cache` by way of `guess`, `l1`, `subtable`, `filter`, `table`, `signature`, `hash` |
//! | what is to be done with the packet | `cached_translation`, `program_table`, both by `numbered` |
//! | which entry did the last packets of a connection match | `links` |
//! | is the entry still valid | `validity`, by the generations and changes of [`heddle_datapath_api`] |
//! | what does the revalidator know of an entry | `records`, filled from the entries and from `events` |
//!
//! One worker owns one [`Cache`]. The revalidator owns the other half, [`Records`]: it reads the entries in
//! place (`entry`) and learns the rest from events. All workers share the
//! [`Generations`](heddle_datapath_api::Generations). Only the datapath compiles actions ([`Program`]). This
//! crate reads no more of a packet than its first bytes ([`CompactKey::read`]).

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod burst;
mod cache;
mod cached_translation;
mod compact;
mod context;
mod entry;
mod events;
mod filter;
mod guess;
mod hash;
mod l1;
mod links;
mod memory;
mod numbered;
mod program_table;
#[cfg_attr(not(test), expect(clippy::disallowed_types, reason = "of the revalidator"))]
mod records;
mod signature;
mod spare_memory;
mod store;
mod subtable;
mod table;
mod validity;

#[cfg(test)]
mod tests;

pub use burst::{KeyForm, LookupKeys, Merges, Run, RunProgram, Sought};
pub use cache::{Cache, CacheParts, CommonProgram, Level, LookupContext, LookupResult};
pub use cached_translation::{CachedTranslation, fingerprint, same_credits};
pub use compact::{CompactKey, Family, Frame, Room, SameKey, Source, VIEW};
pub use entry::{CacheEntry, Snapshot};
pub use events::RevalidatorFindings;
pub use heddle_simd::hash::HashKey;
pub use program_table::{CompiledActions, NO_PROGRAM, Program, ProgramId};
pub use records::{CreditedTranslation, Records, ScannedEntry};
pub use store::NO_SLOT;
pub use subtable::{MAX_LISTED, NOWHERE, Subtable};

/// Atomics that workers share with other threads. The model checker replaces them with its own
/// (`tests/model.rs`).
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, fence};
    pub(crate) use zerocopy::FromZeros;
}
