//! Templates: the fields of a record, in order, for each kind of packet.

/// The enterprise whose elements describe tunnels (as in Open vSwitch).
const VMWARE: u32 = 6876;
/// The length of a field whose length is in each record (RFC 7011 §7).
pub const VARIABLE: u16 = 0xffff;
/// Smaller ids are those of sets (RFC 7011 §3.3.2).
const FIRST_ID: u16 = 256;

/// A field of a record: information element, length, enterprise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Number of the information element.
    pub id: u16,
    /// Length in bytes, or [`VARIABLE`].
    pub len: u16,
    /// Enterprise number; 0: IANA.
    pub enterprise: u32,
}

const fn f(id: u16, len: u16) -> Field {
    Field {
        id,
        len,
        enterprise: 0,
    }
}
const fn tunnel(id: u16, len: u16) -> Field {
    Field {
        id,
        len,
        enterprise: VMWARE,
    }
}

/// Layer 2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum L2 {
    /// Ethernet without a tag.
    Plain,
    /// Ethernet with a VLAN tag.
    Vlan,
}
/// Layer 3.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum L3 {
    /// No IP.
    None,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}
/// Layer 4.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum L4 {
    /// No transport protocol, or an unknown one.
    None,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// ICMP or ICMPv6.
    Icmp,
}

/// The kind of a packet, which determines the template of its record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Kind {
    /// Layer 2.
    pub l2: L2,
    /// Layer 3.
    pub l3: L3,
    /// Layer 4.
    pub l4: L4,
    /// The packet came from a tunnel or enters one.
    pub tunnel: bool,
    /// Sampled at the output port.
    pub egress: bool,
}

impl Kind {
    /// All valid kinds.
    pub fn all() -> impl Iterator<Item = Kind> {
        let l2s = [L2::Plain, L2::Vlan];
        let l3s = [L3::None, L3::V4, L3::V6];
        let l4s = [L4::None, L4::Tcp, L4::Udp, L4::Sctp, L4::Icmp];
        let layers = move |l2| {
            l3s.into_iter()
                .flat_map(move |l3| l4s.into_iter().map(move |l4| (l2, l3, l4)))
        };
        l2s.into_iter()
            .flat_map(layers)
            .filter(|(_, l3, l4)| *l3 != L3::None || *l4 == L4::None)
            .flat_map(|(l2, l3, l4)| {
                [(false, false), (false, true), (true, false), (true, true)].map(|(tunnel, egress)| Kind {
                    l2,
                    l3,
                    l4,
                    tunnel,
                    egress,
                })
            })
    }

    /// The template id.
    pub fn id(self) -> u16 {
        let mut id = self.l2 as u16;
        id = id * 3 + self.l3 as u16;
        id = id * 5 + self.l4 as u16;
        id = id * 2 + u16::from(self.tunnel);
        id = id * 2 + u16::from(self.egress);
        FIRST_ID + id
    }

    /// The fields of a record. `named`: exporters have a name of their own (`virtual_obs_id`).
    pub fn fields(self, named: bool) -> Vec<Field> {
        let mut all = Vec::with_capacity(72);
        // Observation point, direction, addresses, EtherType, length of the Ethernet header.
        all.extend([f(138, 4), f(61, 1), f(56, 6), f(80, 6), f(256, 2), f(240, 1)]);
        // Input interface: index, type, name, description.
        all.extend([f(10, 4), f(368, 4), f(82, VARIABLE), f(83, VARIABLE)]);
        if self.egress {
            all.extend([f(14, 4), f(369, 4), f(82, VARIABLE), f(83, VARIABLE)]);
        }
        if self.l2 == L2::Vlan {
            all.extend([f(58, 2), f(243, 2), f(244, 1)]);
        }
        if self.l3 != L3::None {
            // Version, TTL, protocol, DSCP, precedence, class of service.
            all.extend([f(60, 1), f(192, 1), f(4, 1), f(195, 1), f(196, 1), f(5, 1)]);
        }
        match self.l3 {
            L3::None => {}
            L3::V4 => all.extend([f(8, 4), f(12, 4)]),
            L3::V6 => all.extend([f(27, 16), f(28, 16), f(31, 4)]),
        }
        match (self.l4, self.l3) {
            (L4::None, _) => {}
            (L4::Tcp | L4::Udp | L4::Sctp, _) => all.extend([f(7, 2), f(11, 2)]),
            (L4::Icmp, L3::V6) => all.extend([f(178, 1), f(179, 1)]),
            (L4::Icmp, _) => all.extend([f(176, 1), f(177, 1)]),
        }
        if self.tunnel {
            // Outer addresses, protocol, ports, type, key.
            all.extend([
                tunnel(893, 4),
                tunnel(894, 4),
                tunnel(895, 1),
                tunnel(896, 2),
                tunnel(897, 2),
            ]);
            all.extend([tunnel(891, 1), tunnel(892, VARIABLE)]);
        }
        if named {
            all.push(tunnel(898, VARIABLE));
        }
        all.extend(COMMON);
        if self.l3 != L3::None {
            all.extend(IP);
        }
        if self.l4 == L4::Tcp {
            all.extend(TCP);
        }
        all
    }
}

/// Times, packets, bytes of layer 2, reason of the record.
const COMMON: [Field; 16] = [
    f(158, 4),
    f(159, 4),
    f(133, 8),
    f(135, 8),
    f(2, 8),
    f(86, 8),
    f(354, 8),
    f(355, 8),
    f(356, 8),
    f(357, 8),
    f(358, 8),
    f(19, 8),
    f(174, 8),
    f(352, 8),
    f(353, 8),
    f(136, 1),
];
/// Bytes of IP packets.
const IP: [Field; 10] = [
    f(132, 8),
    f(134, 8),
    f(1, 8),
    f(85, 8),
    f(198, 8),
    f(199, 8),
    f(25, 8),
    f(26, 8),
    f(20, 8),
    f(175, 8),
];
/// ACK, FIN, PSH, RST, SYN, URG.
const TCP: [Field; 6] = [f(222, 8), f(219, 8), f(221, 8), f(220, 8), f(218, 8), f(223, 8)];

/// The id of the options template of an exporter's own counters, behind those of all kinds.
pub const STATS_ID: u16 = FIRST_ID + ((((2 * 3 + 3) * 5 + 5) * 2 + 2) * 2 + 2);
/// Exporter (the scope), number of messages that were not sent.
pub const STATS: [Field; 2] = [f(144, 4), f(167, 8)];

/// Appends a field in the form of templates (RFC 7011 §3.2).
pub(crate) fn put_field(field: Field, out: &mut Vec<u8>) {
    let of_enterprise = u16::from(field.enterprise != 0) << 15;
    out.extend((field.id | of_enterprise).to_be_bytes());
    out.extend(field.len.to_be_bytes());
    if field.enterprise != 0 {
        out.extend(field.enterprise.to_be_bytes());
    }
}
