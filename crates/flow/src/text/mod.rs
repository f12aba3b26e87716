//! Matches, keys and field values in the text of `ovs-ofctl`: `tcp,in_port=1,nw_dst=10.0.0.0/8`.
//!
//! Output is byte for byte that of Open vSwitch 3.1 (`ovs-ofctl dump-flows`, the "Flow:" and "Megaflow:"
//! lines of `ofproto/trace`): scripts compare it. Input is the syntax of `ovs-ofctl` (`ovs-fields(7)`). The
//! order of output is fixed and has history rather than reason; `format.rs` follows it.
//!
//! No code here is on a packet's path.

#![deny(clippy::indexing_slicing)] // whatever text comes

mod flags;
mod format;
mod parse;
mod ports;
mod value;
pub(crate) mod write;

#[cfg(test)]
mod tests;

pub use flags::{CT_STATE, FlagNames, TCP, TUNNEL, format_flags, parse_flags};
pub use format::MatchText;
pub use parse::{PROTOCOLS, Protocol, key_values};
pub use ports::{PortNames, PortNumbers, format_port, parse_port, reserved_port_name};
pub(crate) use value::mac as parse_mac;
pub use value::{format_value, parse_int, parse_value};
pub use write::HexBytes;

use crate::key::{FlowKey, Match};
use core::fmt;

/// OpenFlow's default priority, which texts leave out.
pub const DEFAULT_PRIORITY: i32 = 0x8000;

impl Match {
    /// Reads a match such as `in_port=1,tcp,nw_dst=10.0.0.0/8`. `ports` resolves port names.
    ///
    /// # Errors
    /// A sentence for a person, in Open vSwitch's words where it has some.
    pub fn parse_text(s: &str, ports: Option<PortNumbers<'_>>) -> Result<Match, String> {
        parse::parse_match(s, ports)
    }
    /// The match as text, with port names and priority.
    pub fn text<'a>(&'a self, names: Option<PortNames<'a>>, priority: i32) -> MatchText<'a> {
        MatchText {
            m: self,
            names,
            priority,
        }
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text(None, DEFAULT_PRIORITY).fmt(f)
    }
}

impl FlowKey {
    /// Reads a packet's key such as `in_port=1,tcp,nw_dst=10.0.0.1`: fields without masks, each after its
    /// prerequisites. A missing `in_port` reads as port 0xffff (`ANY`).
    ///
    /// # Errors
    /// A sentence for a person, in Open vSwitch's words.
    pub fn parse_text(s: &str, ports: Option<PortNumbers<'_>>) -> Result<FlowKey, String> {
        parse::parse_key(s, ports)
    }
    /// The match that a key is printed as. It has every field that a packet with these headers has, and the
    /// pipeline's own fields that are not zero.
    pub fn shown(&self) -> Match {
        format::shown(self)
    }
}

/// Writes the key as `ofproto/trace` prints it behind "Flow: ".
impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown().fmt(f)
    }
}
