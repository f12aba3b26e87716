//! Port numbers on the wire.
//!
//! OpenFlow 1.0 and Nicira's messages have 16 bits, 1.1 and later 32. Ordinary ports are below 0xff00 in
//! both; reserved numbers are the last 256 of either, and keep their distance from the end.

use crate::action::Port;
use crate::error::ErrorKind;

/// From 16 bits.
pub(crate) fn port_from_u16(v: u16) -> Port {
    if v < 0xff00 {
        Port(v.into())
    } else {
        Port(0xffff_0000 | u32::from(v))
    }
}

/// From 32 bits; numbers between the two ranges are refused.
pub(crate) fn port_from_u32(v: u32) -> Result<Port, ErrorKind> {
    if (0xff00..0xffff_ff00).contains(&v) {
        Err(ErrorKind::BadActionBadOutPort)
    } else {
        Ok(Port(v))
    }
}

/// To 16 bits.
pub(crate) fn port_to_u16(p: Port) -> u16 {
    let [_, _, hi, lo] = p.0.to_be_bytes();
    u16::from_be_bytes([hi, lo])
}

/// Whether packets can be sent to a port: an ordinary one up to `max`, or a reserved one that stands for
/// some.
pub(crate) fn is_output_port(port: Port, max: Port) -> bool {
    port <= max || (port >= Port::IN_PORT && port != Port::NONE)
}
