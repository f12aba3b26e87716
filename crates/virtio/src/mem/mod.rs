//! Guest memory: the translation of a guest's addresses to addresses of this process.
//!
//! **Problem.** A guest names its buffers by its own addresses and may change their content and the ring at
//! any moment. Its memory table is replaced (hotplug, migration, IOTLB) while workers copy packets.
//!
//! **Invariants.** A [`GuestMemory`] is immutable: regions sorted, disjoint, without wrap-around, each inside
//! a mapping that it keeps alive. No address of a guest becomes a pointer except through [`GuestMemory`]'s
//! bounds checks. No reference (`&[u8]`) to guest memory exists: bytes are copied in or out, ring fields are
//! atomics.
//!
//! **Replacing.** A new table is published in [`SharedMemory`]. A queue keeps the snapshot that its
//! unfinished packets point into, and takes the new one when it has no such packet. A count of the packets
//! that refer to its memory shows that ([`heddle_packet::Lender`]). The old mapping is unmapped when its last
//! user drops it.
//!
//! **Costs.** Translation: two compares when the address is in the region of the one before, else a binary
//! search. A look for a new table: one load of a line that is written only when tables change.

#![deny(clippy::indexing_slicing)] // whatever a guest names

mod backed;
mod claim;
mod copy;
mod dirty;
mod fields;
mod host;
mod piece;
mod prefetch;
mod region;
mod shared;
mod table;
#[cfg(test)]
mod tests;

pub use claim::Claim;
pub use dirty::DirtyLog;
pub(crate) use fields::{Fields, Table, TableView};
pub use host::HostRange;
pub(crate) use piece::Piece;
pub use region::{Access, MemError, Region};
pub use shared::SharedMemory;
pub(crate) use table::Near;
pub use table::{GuestMemory, MAX_ENTRIES, MAX_REGIONS};
