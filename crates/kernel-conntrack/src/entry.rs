//! A connection as the kernel's table has it.

use heddle_conntrack::scan::Seen;
use heddle_conntrack::{Class, Tuple};

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
