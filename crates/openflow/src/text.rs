//! Actions and instructions in the text of `ovs-ofctl`.
//!
//! Output is byte for byte that of Open vSwitch 3.1 in `actions=...`; input is the syntax of `ovs-actions(7)`
//! and `ovs-ofctl add-flow`.

mod display;
mod message;
mod parse;
mod read;
mod show;

pub use display::{ActionsText, InstructionsText};
pub use message::{MessageText, Versions, describe};
pub use parse::{parse_actions, parse_instructions};
