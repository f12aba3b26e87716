//! Lists of actions and instructions on the wire.

mod check;
mod ct;
mod decode;
mod encode;
mod encoder;
mod field;
mod hash;
mod instructions;
mod learn;
mod misc;
mod nat;
mod raw;
mod verify;

pub use check::{CheckContext, check_actions, check_instructions};
pub use decode::enable_debug_actions;
pub(crate) use decode::{MAX_DEPTH, decode_list};
pub(crate) use encoder::Encoder;
pub(crate) use field::{pull_field_mask, put_field_mask};
pub(crate) use instructions::{decode_instructions, encode_instructions};
pub(crate) use verify::{ListKind, verify_actions, verify_order};
