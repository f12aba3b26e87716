//! Keys and masks in the datapath's text: `recirc_id(0),in_port(1),eth(src=...),eth_type(0x0800),ipv4(...)`.
//!
//! This is what `ovs-appctl dpctl/dump-flows` prints and what `netdev-dummy/receive`, `ofproto/trace` and
//! `dpctl/add-flow` read. An item is an attribute of the kernel's flow netlink interface
//! (`linux/openvswitch.h`), and which of them a key has follows from the key: behind `eth_type(0x8100)` are
//! `vlan(...)` and `encap(...)` with all that is behind the tag, behind `ipv4(proto=6)` is `tcp(...)`.
//!
//! In these texts `in_port` is a datapath port; `u32::MAX` is none.

mod format;
mod parse;
mod scan;

#[cfg(test)]
mod tests;

pub use format::{KeyText, format_key, nsh_fields};
pub use parse::{parse_flow, parse_key};

/// No port: the value of a key's `in_port` where the text has none.
pub const PORT_NONE: u32 = u32::MAX;
