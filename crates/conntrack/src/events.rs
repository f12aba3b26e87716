//! Events of packets in the tracker. Each has a name for `coverage/show`.
//!
//! The tracker itself has no counters, so that workers under a flood do not share a cache line. A verdict has
//! the events of a packet, and the worker counts them.

/// One kind of event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Event {
    /// A new connection was not kept: the number of connections has reached `dpctl/ct-set-maxconns`.
    Full,
    /// A new connection was not kept: its zone has reached its limit.
    ZoneLimit,
    /// A new connection was not kept: all addresses and ports that it could be translated to are taken.
    NatExhausted,
    /// A new connection was not kept: the table of connections has no room.
    NoRoom,
    /// A new connection was not kept: its reply tuple belongs to another connection.
    Clash,
    /// A new connection was not kept, or a TCP segment not followed: the system had preempted the thread with
    /// the lock.
    Busy,
    /// The IPv4 header's checksum is wrong.
    L3Checksum,
    /// The checksum of TCP, UDP or ICMP is wrong.
    L4Checksum,
    /// Headers are cut off or contradict themselves.
    Malformed,
    /// A fragment that was not reassembled.
    Fragment,
    /// TCP flags that contradict each other.
    TcpFlags,
    /// A TCP segment outside of its connection's windows.
    TcpOutOfWindow,
    /// A TCP segment outside of its connection's windows, which are not checked.
    TcpUnchecked,
    /// A translated packet came back, and its connection was gone.
    NatLost,
    /// A malformed message of FTP, or one that announces another host's address.
    FtpMalformed,
    /// A fragment whose headers contradict themselves, or whose datagram cannot exist.
    FragmentMalformed,
    /// A fragment with a wrong checksum of its IPv4 header.
    FragmentChecksum,
    /// A fragment, not the last, that is smaller than `dpctl/ipf-set-min-frag` allows.
    FragmentTooSmall,
    /// A fragment that overlaps another one, or is behind the end.
    FragmentOverlap,
    /// A fragment for which there is no room.
    FragmentsFull,
    /// A datagram with more fragments than a burst of packets.
    BurstGrown,
}

impl Event {
    /// All events, in the order of their numbers.
    pub const ALL: [Self; 21] = [
        Self::Full,
        Self::ZoneLimit,
        Self::NatExhausted,
        Self::NoRoom,
        Self::Clash,
        Self::Busy,
        Self::L3Checksum,
        Self::L4Checksum,
        Self::Malformed,
        Self::Fragment,
        Self::TcpFlags,
        Self::TcpOutOfWindow,
        Self::TcpUnchecked,
        Self::NatLost,
        Self::FtpMalformed,
        Self::FragmentMalformed,
        Self::FragmentChecksum,
        Self::FragmentTooSmall,
        Self::FragmentOverlap,
        Self::FragmentsFull,
        Self::BurstGrown,
    ];
    /// The name in `coverage/show`: Open vSwitch's, if it has one.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "conntrack_full",
            Self::ZoneLimit => "conntrack_zone_full",
            Self::NatExhausted => "conntrack_nat_exhausted",
            Self::NoRoom => "conntrack_no_room",
            Self::Clash => "conntrack_clash",
            Self::Busy => "conntrack_busy",
            Self::L3Checksum => "conntrack_l3csum_err",
            Self::L4Checksum => "conntrack_l4csum_err",
            Self::Malformed => "conntrack_malformed",
            Self::Fragment => "conntrack_fragment",
            Self::TcpFlags => "conntrack_invalid_tcp_flags",
            Self::TcpOutOfWindow => "conntrack_tcp_seq_chk_failed",
            Self::TcpUnchecked => "conntrack_tcp_seq_chk_bypass",
            Self::NatLost => "conntrack_lookup_natted_miss",
            Self::FtpMalformed => "conntrack_ftp_malformed",
            Self::FragmentMalformed => "ipf_malformed",
            Self::FragmentChecksum => "ipf_l3csum_err",
            Self::FragmentTooSmall => "ipf_too_small",
            Self::FragmentOverlap => "ipf_overlap",
            Self::FragmentsFull => "ipf_full",
            Self::BurstGrown => "dp_packet_batch_grow",
        }
    }
}

/// A set of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Events(u32);

impl Events {
    /// Whether the set is empty, as for nearly all packets.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// Adds an event.
    pub fn add(&mut self, e: Event) {
        self.0 |= 1 << e as u8;
    }
    /// Whether the set has this event.
    pub const fn has(self, e: Event) -> bool {
        self.0 & (1 << e as u8) != 0
    }
    /// All events of the set.
    pub fn iter(self) -> impl Iterator<Item = Event> {
        Event::ALL.into_iter().filter(move |e| self.has(*e))
    }
}

impl From<Event> for Events {
    fn from(e: Event) -> Self {
        Self(1 << e as u8)
    }
}
