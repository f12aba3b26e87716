//! Actions and instructions in the text of `ovs-ofctl`.
//!
//! Output is byte for byte that of Open vSwitch 3.1 in `actions=...`; input is the syntax of `ovs-actions(7)`
//! and `ovs-ofctl add-flow`.

mod format;
mod format_extensions;
mod message;
mod parse;
mod parse_extensions;

pub use format::{ActionsText, InstructionsText};
pub use message::{MessageText, Versions, describe};
pub use parse::{parse_actions, parse_instructions};
