//! The virtio-net header and, later, the rings.
//!
//! What a guest or another process writes into a ring or a header is a claim. The decoders here turn claims into
//! checked values ([`net_hdr::decode`]) and name what they refuse.

pub mod net_hdr;

pub use net_hdr::{NetHdrError, decode, encode};
