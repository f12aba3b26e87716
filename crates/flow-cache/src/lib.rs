//! What a worker remembers of flows: how it finds the answer of an earlier translation for a packet, and
//! whether that answer still holds.
//!
//! | question | file |
//! | --- | --- |
//! | what a packet's key is | `compact`, `context`; of a burst's packets: `burst` |
//! | where an entry lies, and what it counts | `entry`, `store`, `spares` |
//! | which entry is a packet's | `cache` by way of `l1`, `subtable`, `filter`, `table`, `sig`, `hash` |
//! | what is to be done with the packet | `cached_translation`, `program_table` |
//! | which entry a connection's packets had next | `links` |
//! | whether that still holds | `watch`, by the generations and changed rules of [`heddle_datapath_api`] |
//! | what the revalidator knows of it | `records`, from what it reads of entries and is told by `note` |
//!
//! A [`Cache`] is one worker's own. The other half of it, [`Records`], is the revalidator's: it reads entries
//! where they lie (`entry`), and is told the rest. All workers share the
//! [`Generations`](heddle_datapath_api::Generations). Only the datapath knows what actions are compiled to
//! ([`Program`]). Packets are unknown here, but for their first bytes ([`CompactKey::read`]).

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod burst;
mod cache;
mod cached_translation;
mod compact;
mod context;
mod entry;
mod filter;
mod hash;
mod l1;
mod links;
mod note;
mod program_table;
#[cfg_attr(not(test), expect(clippy::disallowed_types, reason = "of the revalidator"))]
mod records;
mod sig;
mod spares;
mod store;
mod subtable;
mod table;
mod watch;

#[cfg(test)]
mod tests;

pub use burst::{Burst, Kind, Run, Sought};
pub use cache::{Cache, CacheParts, Common, Found, Level, Moment, NO_BODY, NO_SLOT};
pub use cached_translation::{CachedTranslation, fingerprint, same_credits};
pub use compact::{Again, CompactKey, Family, Frame, Room, VIEW};
pub use entry::{Entry, Snapshot};
pub use heddle_simd::hash::HashKey;
pub use note::Findings;
pub use program_table::{Body, Program};
pub use records::{Held, Records, Seen};
pub use subtable::{MAX_LISTED, NOWHERE, Subtable};

/// What workers and others share, in one place: the model checker has its own (`tests/model.rs`).
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, fence};
    pub(crate) use zerocopy::FromZeros;
}
