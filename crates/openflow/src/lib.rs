//! OpenFlow 1.0 to 1.5 and the Nicira extensions: encode and decode, no sockets.
//!
//! Messages have one version-independent form; a codec per version writes and reads it. What a version cannot
//! say is an encoding error, what a peer says wrongly is an [`OfError`-like](error) with the type and code
//! that the specification names.

pub mod action;

pub use action::{Action, Instruction, InstructionSet, Port};
