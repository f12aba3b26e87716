//! Properties of a field, as types.

use super::{FieldId, Run};

/// Masks that a match on the field may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Maskable {
    /// All of the field or none of it.
    None,
    /// Any bits.
    Any,
}

/// Text form of the field's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Style {
    Decimal,
    Hex,
    Ethernet,
    Ipv4,
    Ipv6,
    /// A 16-bit OpenFlow 1.0 port number or name.
    OfPort,
    /// A 32-bit OpenFlow 1.1+ port number or name.
    OfPort32,
    /// `no`, `yes`, `first`, `later`, `not_later`.
    Frag,
    TunFlags,
    TcpFlags,
    CtState,
    /// `(ns,type)`.
    PacketType,
}

/// Protocol that a packet must have for the field to mean anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Prereq {
    None,
    Ethernet,
    /// ARP or RARP.
    Arp,
    /// A VLAN tag is present.
    Vlan,
    Ipv4,
    Ipv6,
    /// IPv4 or IPv6.
    IpAny,
    Mpls,
    Nsh,
    Tcp,
    Udp,
    Sctp,
    Icmpv4,
    Icmpv6,
    /// Neighbour solicitation or advertisement.
    Nd,
    NdSolicit,
    NdAdvert,
    /// The connection tracker knows the packet.
    Ct,
}

/// One OXM or NXM header that names a field (OpenFlow 1.5.1, 7.2.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OxmId {
    /// Such as `NXM_OF_IN_PORT`.
    pub name: &'static str,
    /// OXM class; 0xffff for an experimenter.
    pub class: u16,
    /// Field number within the class, 7 bits.
    pub field: u8,
    /// Bytes of the value (without mask and without the experimenter id).
    pub length: u8,
    /// Experimenter id; 0 where the class is not 0xffff.
    pub experimenter: u32,
    /// Wire number of the OpenFlow version that defined it (3 is 1.2); 0 for a Nicira extension.
    pub version: u8,
}

/// The class and experimenter that a header's name implies.
const CLASSES: &[(&str, u16, u32)] = &[
    ("OXM_OF_PKT_REG", 0x8001, 0),
    ("OXM_OF_", 0x8000, 0),
    ("NXM_OF_", 0x0000, 0),
    ("NXM_NX_", 0x0001, 0),
    ("NXOXM_ET_", 0xffff, 0x0000_2320),
    ("NXOXM_NSH_", 0xffff, 0x005a_d650),
    ("ONFOXM_ET_", 0xffff, 0x4f4e_4600),
    ("ERICOXM_OF_", 0x1000, 0),
];

const fn has_prefix(s: &str, prefix: &str) -> bool {
    let (s, p) = (s.as_bytes(), prefix.as_bytes());
    let mut i = 0;
    while i < p.len() {
        if i >= s.len() || s[i] != p[i] {
            return false;
        }
        i += 1;
    }
    true
}

impl OxmId {
    /// A header named `name`; its class follows from the prefix (a table row with an unknown one does not
    /// build).
    pub(crate) const fn new(name: &'static str, field: u8, length: u8, version: u8) -> Self {
        let mut i = 0;
        while i < CLASSES.len() {
            let (prefix, class, experimenter) = CLASSES[i];
            if has_prefix(name, prefix) {
                return Self {
                    name,
                    class,
                    field,
                    length,
                    experimenter,
                    version,
                };
            }
            i += 1;
        }
        panic!("unknown OXM class");
    }
    /// Bytes of the header: 4, or 8 with an experimenter id.
    pub fn header_len(&self) -> usize {
        if self.class == 0xffff { 8 } else { 4 }
    }
    /// The header's first 32 bits, with or without a mask to follow.
    pub fn header(&self, masked: bool) -> u32 {
        let exp = if self.class == 0xffff { 4 } else { 0 };
        let len = u32::from(self.length) * (1 + u32::from(masked)) + exp;
        u32::from(self.class) << 16 | u32::from(self.field) << 9 | u32::from(masked) << 8 | len
    }
}

/// Row of the table of fields.
#[derive(Clone, Copy, Debug)]
pub struct FieldInfo {
    /// The field.
    pub id: FieldId,
    /// Name of the field.
    pub name: &'static str,
    /// Alternative name.
    pub extra_name: Option<&'static str>,
    /// Width, in bits, as subfields count them.
    pub n_bits: u16,
    /// Width of its value on the wire.
    pub n_bytes: u16,
    /// Bits that a value may have set (wider than `n_bits` for `vlan_vid`, whose present bit does not count).
    pub valid: u128,
    /// Allowed masks.
    pub maskable: Maskable,
    /// Text form.
    pub style: Style,
    /// Prerequisite.
    pub prereq: Prereq,
    /// The bits of a word of the key where it is; none for a field that is no number within a word.
    pub run: Option<Run>,
    /// Whether an action may set it.
    pub writable: bool,
    /// Every header that names it, in rising order of version.
    pub nxm: &'static [OxmId],
}

impl FieldInfo {}
