//! Flow key, mask, and the one declarative table of match fields.
//!
//! A [`FlowKey`] is everything that a lookup can ask about a packet: what its headers say, where it came
//! from, and the pipeline's own registers. A [`FlowMask`] has the same shape and says, bit by bit, what
//! counts. Both are arrays of 64-bit words underneath ([`FlowKey::words`]), so that masking, comparing and
//! hashing are plain word loops that a compiler vectorises; the named fields are views of those words.
//!
//! Everything else in this crate is a different way to write the same key: bytes of a packet
//! (`extract`, `compose`), OXM and NXM entries (`oxm`), the text of `ovs-ofctl` (`text`) and the text of
//! `ovs-dpctl` (`odp`). `field` is the declarative table that they all read.

pub mod compose;
pub mod extract;
pub mod field;
pub mod hash;
pub mod key;
mod mask;
pub mod odp;
pub mod oxm;
pub mod text;
pub mod tlv;

pub use field::{FieldId, FieldInfo, FieldValue, Subfield};
pub use key::{FlowKey, FlowMask, Match, N_VLANS, N_WORDS, Nsh, Vlan, packet_type};
