//! What a worker remembers of flows: how it finds the answer of an earlier translation for a packet, and
//! whether that answer still holds.
//!
//! | question | file |
//! | --- | --- |
//! | what a packet's key is | `parse`, `compact`, `context` |
//! | where an entry lies, and what it counts | `entry`, `store`, `spares` |
//! | which entry is a packet's | `cache` by way of `l1`, `subtable`, `filter`, `table`, `sig`, `hash` |
//! | what is to be done with the packet | `cached_translation`, `program_table` |
//! | which entry a connection's packets had next | `links` |
//! | whether that still holds | `watch` |
//! | what the revalidator is told | `note` |
//!
//! All of it is one worker's own, but for what the revalidator reads of entries (`entry`) and what it is told
//! (`note`).

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub(crate) mod cache;
pub(crate) mod cached_translation;
pub(crate) mod compact;
pub(crate) mod context;
pub(crate) mod entry;
mod filter;
pub(crate) mod hash;
pub(crate) mod l1;
pub(crate) mod links;
pub(crate) mod note;
pub(crate) mod parse;
mod program_table;
mod sig;
mod spares;
pub(crate) mod store;
pub(crate) mod subtable;
mod table;
mod watch;
