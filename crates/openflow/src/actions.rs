//! Lists of actions and instructions on the wire.

mod check;
mod decode;
mod encode;
mod field;
mod instructions;
mod learn;
mod nat;
mod opaque;
mod raw;
mod verify;

pub use check::{CheckContext, check_actions, check_instructions};
pub(crate) use decode::decode_list;
pub(crate) use encode::Encoder;
pub(crate) use instructions::{decode_instructions, encode_instructions};
pub(crate) use verify::{Place, verify_actions, verify_order};
