//! Flow key, mask, and the one declarative table of match fields.
//!
//! A [`FlowKey`] has all fields that a lookup can match on: the packet's headers, its origin, and the
//! pipeline's own registers. A [`FlowMask`] has the same shape, with a set bit for each bit that counts. Both
//! are arrays of 64-bit words underneath ([`FlowKey::words`]). So masking, comparing and hashing are plain
//! word loops that a compiler vectorises; the named fields are views of those words.
//!
//! Everything else in this crate is a different way to write the same key. `extract` and `compose` use bytes
//! of a packet, `oxm` OXM and NXM entries, `text` the text of `ovs-ofctl`, and `odp` the text of `ovs-dpctl`.
//! `field` is the declarative table that they all read.

pub mod compose;
pub mod extract;
pub mod field;
pub mod hash;
pub mod key;
mod mask;
pub mod odp;
pub mod oxm;
pub mod text;

pub use field::{FieldId, FieldInfo, FieldValue, Subfield};
pub use key::{FlowKey, FlowMask, Match, N_VLANS, N_WORDS, Nsh, Vlan, packet_type};
