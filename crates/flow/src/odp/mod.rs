//! Keys and masks in the datapath's text: `recirc_id(0),in_port(1),eth(src=...),eth_type(0x0800),ipv4(...)`.
//!
//! `ovs-appctl dpctl/dump-flows` prints this form, and `netdev-dummy/receive`, `ofproto/trace` and
//! `dpctl/add-flow` read it. An item is an attribute of the kernel's flow netlink interface
//! (`linux/openvswitch.h`). The key determines its attributes. For example, `eth_type(0x8100)` is followed by
//! `vlan(...)` and `encap(...)` with all that is behind the tag, and `ipv4(proto=6)` by `tcp(...)`.
//!
//! In these texts `in_port` is a datapath port; `u32::MAX` is none.

#![deny(clippy::indexing_slicing)] // whatever text comes

mod format;
mod parse;
mod scan;

#[cfg(test)]
mod tests;

pub use format::{KeyText, format_key, nsh_fields};
pub use parse::{parse_flow, parse_key};

/// No port: the value of a key's `in_port` where the text has none.
pub const PORT_NONE: u32 = u32::MAX;
