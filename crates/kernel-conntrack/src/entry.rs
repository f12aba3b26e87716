//! A connection as the kernel's table has it.

use heddle_conntrack::scan::Seen;
use heddle_conntrack::{Class, Tuple};
use std::ops::RangeInclusive;

/// Zones of the kernel whose entries belong to the tc back end.
pub const TC_ZONES: RangeInclusive<u16> = 0xa000..=0xafff;

/// The fields that identify an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EntryKey {
    /// Zone.
    pub zone: u16,
    /// Tuple of the original direction.
    pub orig: Tuple,
}

/// A connection in the kernel's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelEntry {
    /// Zone and tuple of the original direction.
    pub key: EntryKey,
    /// Tuple of the reply direction.
    pub reply: Tuple,
    /// Mark.
    pub mark: u32,
    /// Label.
    pub label: u128,
    /// Packets came in both directions.
    pub replied: bool,
    /// State of TCP, one of the kernel's (`TCP_CONNTRACK_*`); 0 for other protocols.
    pub tcp_state: u8,
}

impl KernelEntry {
    /// The entry of a connection of the tracker.
    pub fn of(seen: &Seen<'_>) -> Self {
        let conn = seen.conn();
        Self {
            key: EntryKey {
                zone: conn.zone,
                orig: conn.orig,
            },
            reply: conn.reply,
            mark: conn.mark,
            label: conn.label,
            replied: seen.is_replied(),
            tcp_state: seen.tcp_class().map_or(0, tcp_state),
        }
    }
}

/// The kernel's state of a TCP connection (linux/netfilter/nf_conntrack_tcp.h).
fn tcp_state(class: Class) -> u8 {
    match class {
        Class::TcpSynSent => 1,
        Class::TcpSynRecv => 2,
        Class::TcpEstablished => 3,
        Class::TcpFinWait => 4,
        Class::TcpTimeWait => 7,
        Class::TcpClose => 8,
        _ => 0,
    }
}

/// An established connection of TCP or UDP, with packets in both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Established {
    /// Zone of the kernel, one of [`TC_ZONES`].
    pub zone: u16,
    /// Tuple of the original direction.
    pub orig: Tuple,
    /// Tuple of the reply direction. The kernel translates addresses and ports so that replies have it.
    pub reply: Tuple,
    /// Mark.
    pub mark: u32,
    /// Label.
    pub label: u128,
    /// Life without packets, seconds. The first packet sets the kernel's timeout for the protocol.
    pub timeout_s: u32,
    /// The kernel does not drop the entry if its table is full.
    pub assured: bool,
    /// A card may take the connection.
    pub for_cards: bool,
}

impl Established {
    /// The key of the entry.
    pub fn key(&self) -> EntryKey {
        EntryKey {
            zone: self.zone,
            orig: self.orig,
        }
    }
}
