//! OpenFlow 1.0 to 1.5 and the Nicira extensions: encode and decode, no sockets.
//!
//! Messages have one version-independent form ([`message::Message`]); a codec per version writes and reads
//! it. A message or value that a version lacks is an [`EncodeError`]. A faulty message of a peer is a
//! [`DecodeError`] with the type and code that the specification names. Nothing here keeps state or blocks:
//! every function may be called from any thread. Decoders read through a bounds-checked cursor and never
//! panic on any input.

#![deny(clippy::indexing_slicing)] // whatever a peer sends

pub mod action;
mod actions;
pub mod check;
mod codec;
pub mod error;
pub mod header;
pub mod message;
pub mod text;
pub mod version;
mod wire;

#[cfg(test)]
mod tests;

pub use action::{Action, Instruction, InstructionSet, Port};
pub use actions::enable_debug_actions;
pub use codec::{
    DecodeContext, FlowStatsWriter, decode, decode_continuation, decode_ct_flush, encode, encode_continuation,
};
pub use error::{DecodeError, EncodeError, ErrorKind, OfError};
pub use header::{Header, frame_len};
pub use message::Message;
pub use version::Version;
