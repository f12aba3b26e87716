//! A sampled packet: the key of its flow as bytes of a record, and its part of the flow's counters.

use crate::template::{Kind, L2, L3, L4};
use heddle_flow::FlowKey;
use heddle_wire::eth::ethertype;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const SCTP: u8 = 132;
/// Lengths of an Ethernet header and of a VLAN tag, bytes.
const ETH_LEN: u8 = 14;
const TAG_LEN: u8 = 4;
/// Maximum length of an interface's or exporter's name, bytes. One length byte is enough for it.
const MAX_NAME: usize = 64;

/// The side of a port at which a packet was sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Sampled at the input port.
    Ingress,
    /// Sampled at the output port.
    Egress,
}

/// An interface. The default is an unknown one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Interface {
    /// The system's index of the interface; 0: none.
    pub index: u32,
    /// Name; cut off after 64 bytes.
    pub name: String,
}

/// The tunnel of a packet: the one it came from, or the one it enters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tunnel {
    /// Outer source and destination (IPv4).
    pub src: u32,
    /// See `src`.
    pub dst: u32,
    /// IP protocol.
    pub proto: u8,
    /// UDP ports; 0: none.
    pub tp_src: u16,
    /// See `tp_src`.
    pub tp_dst: u16,
    /// 1 VXLAN, 2 GRE, 7 Geneve.
    pub kind: u8,
    /// Tunnel key.
    pub key: u64,
    /// Length of keys of this kind, at most 8 bytes.
    pub key_len: u8,
}

/// A sampled packet, or a sampled GSO packet.
#[derive(Clone, Debug)]
pub struct Sampled<'a> {
    /// Headers.
    pub key: &'a FlowKey,
    /// Bytes of all segments, with headers.
    pub bytes: u64,
    /// Number of segments of a GSO packet; otherwise 1.
    pub segments: u64,
    /// Number of packets that each sampled packet represents.
    pub each: u64,
    /// Observation domain.
    pub domain: u32,
    /// Observation point.
    pub point: u32,
    /// The side of the port at which it was sampled.
    pub direction: Direction,
    /// Input interface.
    pub input: &'a Interface,
    /// Output interface; exported for [`Direction::Egress`].
    pub output: &'a Interface,
    /// Tunnel, if there is one.
    pub tunnel: Option<&'a Tunnel>,
    /// The packet is dropped.
    pub dropped: bool,
}

/// The key of a flow.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub(crate) domain: u32,
    pub(crate) kind: Kind,
    /// Values of the record's key fields.
    pub(crate) bytes: Vec<u8>,
}

fn kind(s: &Sampled<'_>) -> Kind {
    let l3 = match s.key.dl_type {
        ethertype::IP => L3::V4,
        ethertype::IPV6 => L3::V6,
        _ => L3::None,
    };
    let l4 = match (l3, s.key.nw_proto) {
        (L3::None, _) => L4::None,
        (_, TCP) => L4::Tcp,
        (_, UDP) => L4::Udp,
        (_, SCTP) => L4::Sctp,
        (L3::V4, ICMP) | (L3::V6, ICMPV6) => L4::Icmp,
        _ => L4::None,
    };
    Kind {
        l2: if s.key.vlans[0].tci == 0 {
            L2::Plain
        } else {
            L2::Vlan
        },
        l3,
        l4,
        tunnel: s.tunnel.is_some(),
        egress: s.direction == Direction::Egress,
    }
}

/// Appends a text with its length before it.
pub(crate) fn put_text(text: &str, out: &mut Vec<u8>) {
    let text = text.as_bytes();
    let text = text.get(..MAX_NAME).unwrap_or(text);
    out.push(u8::try_from(text.len()).unwrap_or(0));
    out.extend(text);
}

fn put_interface(i: &Interface, out: &mut Vec<u8>) {
    out.extend(i.index.to_be_bytes());
    // Type and description exist only for devices of userspace drivers, and there are none.
    out.extend([0; 4]);
    put_text(&i.name, out);
    put_text("", out);
}

impl Key {
    pub(crate) fn of(s: &Sampled<'_>) -> Key {
        let (k, kind) = (s.key, kind(s));
        let mut out = Vec::with_capacity(160);
        out.extend(s.point.to_be_bytes());
        out.push(u8::from(kind.egress));
        out.extend(k.dl_src);
        out.extend(k.dl_dst);
        out.extend(k.dl_type.to_be_bytes());
        out.push(header_len(kind));
        put_interface(s.input, &mut out);
        if kind.egress {
            put_interface(s.output, &mut out);
        }
        if kind.l2 == L2::Vlan {
            let tag = k.vlans[0];
            out.extend(tag.vid().to_be_bytes());
            out.extend(tag.vid().to_be_bytes());
            out.push(tag.pcp());
        }
        if kind.l3 != L3::None {
            let version = if kind.l3 == L3::V4 { 4 } else { 6 };
            out.extend([
                version,
                k.nw_ttl,
                k.nw_proto,
                k.nw_tos >> 2,
                k.nw_tos >> 5,
                k.nw_tos,
            ]);
        }
        match kind.l3 {
            L3::None => {}
            L3::V4 => {
                out.extend(k.nw_src.to_be_bytes());
                out.extend(k.nw_dst.to_be_bytes());
            }
            L3::V6 => {
                out.extend(k.ipv6_src);
                out.extend(k.ipv6_dst);
                out.extend(k.ipv6_label.to_be_bytes());
            }
        }
        match kind.l4 {
            L4::None => {}
            L4::Tcp | L4::Udp | L4::Sctp => {
                out.extend(k.tp_src.to_be_bytes());
                out.extend(k.tp_dst.to_be_bytes());
            }
            // Type and code are in the low bytes of the ports.
            L4::Icmp => out.extend([k.tp_src.to_be_bytes()[1], k.tp_dst.to_be_bytes()[1]]),
        }
        if let Some(t) = s.tunnel {
            out.extend(t.src.to_be_bytes());
            out.extend(t.dst.to_be_bytes());
            out.push(t.proto);
            out.extend(t.tp_src.to_be_bytes());
            out.extend(t.tp_dst.to_be_bytes());
            let len = usize::from(t.key_len.min(8));
            out.extend([t.kind, t.key_len.min(8)]);
            out.extend(&t.key.to_be_bytes()[8 - len..]);
        }
        Key {
            domain: s.domain,
            kind,
            bytes: out,
        }
    }
}

fn header_len(kind: Kind) -> u8 {
    match kind.l2 {
        L2::Plain => ETH_LEN,
        L2::Vlan => ETH_LEN + TAG_LEN,
    }
}

/// Counters over all packets of an exporter: these elements are not about one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) in_unicast: u64,
    pub(crate) in_multicast: u64,
    pub(crate) in_broadcast: u64,
    pub(crate) out_unicast: u64,
    pub(crate) out_broadcast: u64,
}

/// Bits of TCP's flags in the order of [`Counts::tcp`].
const TCP_FLAGS: [u16; 6] = [0x10, 0x01, 0x08, 0x04, 0x02, 0x20];

/// Counters of a flow since its record began. A flow ends with its record, so they are its deltas as well as
/// its totals (RFC 7012: totals are of a flow). Open vSwitch sends totals of all flows, which collectors
/// misread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) dropped_packets: u64,
    pub(crate) packets: u64,
    pub(crate) post_multicast_packets: u64,
    pub(crate) l2_bytes: u64,
    pub(crate) dropped_bytes: u64,
    pub(crate) bytes: u64,
    pub(crate) squares: u64,
    /// Lengths of IP packets, bytes; 0: there was no IP packet.
    pub(crate) min_len: u64,
    pub(crate) max_len: u64,
    pub(crate) post_multicast_bytes: u64,
    /// ACK, FIN, PSH, RST, SYN, URG.
    pub(crate) tcp: [u64; 6],
}

impl Counts {
    /// Counts a packet. Adds it to `totals` too.
    pub(crate) fn of(s: &Sampled<'_>, kind: Kind, totals: &mut Totals) -> Counts {
        let segments = s.segments.max(1);
        let packets = s.each.saturating_mul(segments);
        let l2_bytes = s.each.saturating_mul(s.bytes);
        // For a GSO packet, the length of one segment.
        let len = (s.bytes / segments).saturating_sub(header_len(kind).into());
        let is_ip = kind.l3 != L3::None;
        let bytes = if is_ip { packets.saturating_mul(len) } else { 0 };
        let broadcast = s.key.dl_dst == [0xff; 6];
        let multicast = !broadcast && s.key.dl_dst[0] & 1 != 0;
        let leaves_as_multicast = multicast && kind.egress;
        let if_so = |so: bool, n: u64| if so { n } else { 0 };
        let d = Counts {
            dropped_packets: if_so(s.dropped, packets),
            packets,
            post_multicast_packets: if_so(leaves_as_multicast, packets),
            l2_bytes,
            dropped_bytes: if_so(s.dropped, bytes),
            bytes,
            squares: bytes.saturating_mul(len),
            min_len: if_so(is_ip, len),
            max_len: if_so(is_ip, len),
            post_multicast_bytes: if_so(leaves_as_multicast, bytes),
            tcp: TCP_FLAGS.map(|bit| if_so(kind.l4 == L4::Tcp && s.key.tcp_flags & bit != 0, packets)),
        };
        let add = |sum: &mut u64, n: u64| *sum = sum.wrapping_add(n);
        match (broadcast, multicast, kind.egress) {
            (true, _, false) => add(&mut totals.in_broadcast, packets),
            (true, _, true) => add(&mut totals.out_broadcast, packets),
            (false, true, false) => add(&mut totals.in_multicast, packets),
            // Counted by `post_multicast_packets`.
            (false, true, true) => {}
            (false, false, false) => add(&mut totals.in_unicast, packets),
            (false, false, true) => add(&mut totals.out_unicast, packets),
        }
        d
    }

    /// Adds the counters of another packet.
    pub(crate) fn add(&mut self, more: &Counts) {
        let pairs = [
            (&mut self.dropped_packets, more.dropped_packets),
            (&mut self.packets, more.packets),
            (&mut self.post_multicast_packets, more.post_multicast_packets),
            (&mut self.l2_bytes, more.l2_bytes),
            (&mut self.dropped_bytes, more.dropped_bytes),
            (&mut self.bytes, more.bytes),
            (&mut self.squares, more.squares),
            (&mut self.post_multicast_bytes, more.post_multicast_bytes),
        ];
        for (sum, n) in pairs.into_iter().chain(self.tcp.iter_mut().zip(more.tcp)) {
            *sum = sum.saturating_add(n);
        }
        if self.min_len == 0 || more.min_len != 0 && more.min_len < self.min_len {
            self.min_len = more.min_len;
        }
        self.max_len = self.max_len.max(more.max_len);
    }
}

/// Times of a flow, and the reason why its record is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Microseconds from the flow's first packet to the time in the message's header, and from its last one.
    pub(crate) start_us: u64,
    pub(crate) end_us: u64,
    pub(crate) reason: u8,
}

/// Appends the fields behind the key.
pub(crate) fn put_counters(kind: Kind, span: Span, d: &Counts, t: &Totals, out: &mut Vec<u8>) {
    for us in [span.start_us, span.end_us] {
        // The field holds at most 71 minutes.
        out.extend(u32::try_from(us).unwrap_or(u32::MAX).to_be_bytes());
    }
    let mut put = |list: &[u64]| list.iter().for_each(|n| out.extend(n.to_be_bytes()));
    put(&[d.dropped_packets, d.dropped_packets, d.packets, d.packets]);
    put(&[
        t.in_unicast,
        t.in_multicast,
        t.in_broadcast,
        t.out_unicast,
        t.out_broadcast,
    ]);
    put(&[d.post_multicast_packets, d.post_multicast_packets]);
    put(&[d.l2_bytes, d.l2_bytes]);
    out.push(span.reason);
    let mut put = |list: &[u64]| list.iter().for_each(|n| out.extend(n.to_be_bytes()));
    if kind.l3 != L3::None {
        put(&[
            d.dropped_bytes,
            d.dropped_bytes,
            d.bytes,
            d.bytes,
            d.squares,
            d.squares,
        ]);
        put(&[
            d.min_len,
            d.max_len,
            d.post_multicast_bytes,
            d.post_multicast_bytes,
        ]);
    }
    if kind.l4 == L4::Tcp {
        put(&d.tcp);
    }
}
