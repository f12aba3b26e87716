//! The flow key: one fixed layout of 64-bit words with named fields.
//!
//! **Invariants.** Integers are held in host order; MAC, IPv6, ND and label fields are byte arrays in network
//! order. A field that the packet does not have is zero, so two packets with equal headers have equal keys.
//! Padding (`_pad*`) is always zero. A VLAN tag that is present has [`Vlan::CFI`] set in its `tci`. Values of
//! a tunnel's options are zero where none is present (in masks: where the presence of none counts). So loops
//! over a key's words leave them out of nearly all keys ([`FlowKey::used`]).
//!
//! **Which mask error is the safe one.** A mask with a bit too many costs a cache entry; a mask with a bit
//! too few forwards packets the wrong way. When in doubt, set the bit.

mod nsh;

pub use nsh::Nsh;

use core::hash::{Hash, Hasher};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Number of VLAN tags that a key can hold, outermost first.
pub const N_VLANS: usize = 2;
/// Number of MPLS label stack entries that a key can hold, outermost first.
pub const N_MPLS: usize = 3;
/// Bytes that a key has for the options of a tunnel; [`crate::field::tlv`] divides them among fields.
pub const TLV_SPACE: usize = 256;
/// Size of a [`FlowKey`] in 64-bit words.
pub const N_WORDS: usize = core::mem::size_of::<FlowKey>() / 8;
/// First word of a key behind the values of a tunnel's options.
pub const FIRST_WORD: usize = core::mem::offset_of!(FlowKey, tun_present) / 8;

/// One VLAN tag: the EtherType that announced it and its tag control information.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Vlan {
    /// 0x8100 or 0x88a8; zero where there is no tag.
    pub tpid: u16,
    /// Priority (3 bits), present bit ([`Vlan::CFI`]), VLAN id (12 bits).
    pub tci: u16,
}

impl Vlan {
    /// Set in `tci` of every tag that is present (the wire's DEI bit is not kept).
    pub const CFI: u16 = 0x1000;
    /// The VLAN id's bits of `tci`.
    pub const VID_MASK: u16 = 0x0fff;
    /// The priority's bits of `tci`.
    pub const PCP_MASK: u16 = 0xe000;

    /// Whether there is a tag.
    pub fn present(self) -> bool {
        self.tci & Self::CFI != 0
    }
    /// The VLAN id, 0 to 4095.
    pub fn vid(self) -> u16 {
        self.tci & Self::VID_MASK
    }
    /// The priority, 0 to 7.
    pub fn pcp(self) -> u8 {
        (self.tci >> 13) as u8
    }
}

/// Packet types: namespace << 16 | type. A packet without an Ethernet header has the namespace of EtherTypes.
pub mod packet_type {
    use heddle_wire::eth::ethertype;

    /// An Ethernet frame.
    pub const ETHERNET: u32 = 0;
    /// The namespace of EtherTypes.
    pub const NS_ETHERTYPE: u32 = 1;
    /// An IPv4 packet.
    pub const IPV4: u32 = of_ethertype(ethertype::IP);
    /// An IPv6 packet.
    pub const IPV6: u32 = of_ethertype(ethertype::IPV6);
    /// A packet that begins with a network service header.
    pub const NSH: u32 = of_ethertype(ethertype::NSH);
    /// A packet that begins with a label stack.
    pub const MPLS: u32 = of_ethertype(ethertype::MPLS);
    /// A packet that begins with a multicast label stack.
    pub const MPLS_MCAST: u32 = of_ethertype(ethertype::MPLS_MCAST);

    /// Packet type of a packet that begins with the header of this EtherType.
    pub const fn of_ethertype(ethertype: u16) -> u32 {
        NS_ETHERTYPE << 16 | ethertype as u32
    }
}

/// Values of `tun_flags` (bits).
pub mod tun_flag {
    /// A control packet of the tunnel itself.
    pub const OAM: u16 = 1;
    /// Not to be fragmented.
    pub const DF: u16 = 1 << 1;
    /// The outer header has a checksum.
    pub const CSUM: u16 = 1 << 2;
    /// There is a tunnel key.
    pub const KEY: u16 = 1 << 3;
}

/// Values of `nw_frag` (bits).
pub mod frag {
    /// The packet is a fragment.
    pub const ANY: u8 = 1;
    /// The packet is a fragment and not the first one (no L4 header in it).
    pub const LATER: u8 = 2;
    /// Both bits: the mask of the field.
    pub const MASK: u8 = 3;
}

/// All fields of a packet that a lookup can match on. See the module's invariants.
#[repr(C)]
#[derive(Clone, Copy, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct FlowKey {
    // -- tunnel that the packet arrived in (zero: none)
    /// Values of the options that are present, at the places of the bridge's map. See the module's
    /// invariants.
    pub tun_metadata: [u8; TLV_SPACE],
    /// Mapped options that are present (`tun_metadata0` is bit 0).
    pub tun_present: u64,
    /// Tunnel key: VNI, GRE key.
    pub tun_id: u64,
    /// Outer IPv4 source.
    pub tun_src: u32,
    /// Outer IPv4 destination.
    pub tun_dst: u32,
    /// Outer IPv6 source.
    pub tun_ipv6_src: [u8; 16],
    /// Outer IPv6 destination.
    pub tun_ipv6_dst: [u8; 16],
    /// Tunnel flags (OAM, don't fragment, checksum, key).
    pub tun_flags: u16,
    /// Outer type of service.
    pub tun_tos: u8,
    /// Outer time to live.
    pub tun_ttl: u8,
    /// VXLAN group policy id.
    pub tun_gbp_id: u16,
    /// VXLAN group policy flags.
    pub tun_gbp_flags: u8,
    /// GTP-U message type.
    pub tun_gtpu_msgtype: u8,
    /// ERSPAN version 1: index, 20 bits.
    pub tun_erspan_idx: u32,
    /// ERSPAN version, 4 bits.
    pub tun_erspan_ver: u8,
    /// ERSPAN version 2: direction, 1 bit.
    pub tun_erspan_dir: u8,
    /// ERSPAN version 2: hardware id, 6 bits.
    pub tun_erspan_hwid: u8,
    /// GTP-U flags.
    pub tun_gtpu_flags: u8,
    // -- the pipeline's own
    /// OpenFlow metadata.
    pub metadata: u64,
    /// Registers; `xreg0` is `regs[0] << 32 | regs[1]`, `xxreg0` the first four.
    pub regs: [u32; 16],
    /// Queue that the packet is to use.
    pub skb_priority: u32,
    /// Mark carried with the packet.
    pub pkt_mark: u32,
    /// Hash that the datapath computed on request.
    pub dp_hash: u32,
    /// Input port: a datapath port number in the datapath, an OpenFlow port in a pipeline.
    pub in_port: u32,
    /// Recirculation id; 0 for a packet fresh from a port.
    pub recirc_id: u32,
    /// Conjunction id.
    pub conj_id: u32,
    /// Connection state bits.
    pub ct_state: u32,
    /// Connection mark.
    pub ct_mark: u32,
    /// Connection label, network order.
    pub ct_label: [u8; 16],
    /// Original direction's IPv4 source.
    pub ct_nw_src: u32,
    /// Original direction's IPv4 destination.
    pub ct_nw_dst: u32,
    /// Original direction's IPv6 source.
    pub ct_ipv6_src: [u8; 16],
    /// Original direction's IPv6 destination.
    pub ct_ipv6_dst: [u8; 16],
    /// Original direction's L4 source port.
    pub ct_tp_src: u16,
    /// Original direction's L4 destination port.
    pub ct_tp_dst: u16,
    /// Connection tracking zone.
    pub ct_zone: u16,
    /// Original direction's IP protocol.
    pub ct_nw_proto: u8,
    /// Zero.
    pub _pad1: u8,
    /// Output port in the action set (OpenFlow 1.5).
    pub actset_output: u32,
    /// Packet type: namespace << 16 | type; 0 is Ethernet.
    pub packet_type: u32,
    // -- L2
    /// Ethernet destination.
    pub dl_dst: [u8; 6],
    /// Ethernet source.
    pub dl_src: [u8; 6],
    /// EtherType behind the VLAN tags; 0x05ff for an 802.2 frame without SNAP.
    pub dl_type: u16,
    /// Zero.
    pub _pad2: u16,
    /// VLAN tags, outermost first.
    pub vlans: [Vlan; N_VLANS],
    /// MPLS label stack entries, outermost first.
    pub mpls_lse: [u32; N_MPLS],
    /// Zero.
    pub _pad3: u32,
    // -- L3
    /// IPv4 source, or ARP sender protocol address.
    pub nw_src: u32,
    /// IPv4 destination, or ARP target protocol address.
    pub nw_dst: u32,
    /// IPv6 source.
    pub ipv6_src: [u8; 16],
    /// IPv6 destination.
    pub ipv6_dst: [u8; 16],
    /// IPv6 flow label, 20 bits.
    pub ipv6_label: u32,
    /// IP protocol, or the low byte of an ARP opcode.
    pub nw_proto: u8,
    /// DSCP and ECN.
    pub nw_tos: u8,
    /// Time to live, hop limit.
    pub nw_ttl: u8,
    /// Fragment bits, see [`frag`].
    pub nw_frag: u8,
    /// IPv6 neighbour discovery target.
    pub nd_target: [u8; 16],
    /// ARP sender hardware address, or ND source link-layer address.
    pub arp_sha: [u8; 6],
    /// ARP target hardware address, or ND target link-layer address.
    pub arp_tha: [u8; 6],
    /// TCP flags, 12 bits. (ND: reserved and option type are not kept.)
    pub tcp_flags: u16,
    /// Zero.
    pub _pad4: u16,
    /// Network service header.
    pub nsh: Nsh,
    // -- L4
    /// TCP, UDP, SCTP source port; ICMP type.
    pub tp_src: u16,
    /// TCP, UDP, SCTP destination port; ICMP code.
    pub tp_dst: u16,
    /// IGMP group address.
    pub igmp_group: u32,
}

// Compared by words: a comparison field by field takes ten times as long.
impl PartialEq for FlowKey {
    fn eq(&self, other: &Self) -> bool {
        self.used() == other.used()
    }
}

impl Hash for FlowKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.used().hash(state);
    }
}

impl Default for FlowKey {
    #[inline]
    fn default() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }
}

/// Words of the key with fields of the tunnel: those before the pipeline's own.
const TUNNEL_WORDS: usize = std::mem::offset_of!(FlowKey, metadata) / 8;
/// First word of the key with fields of the packet's headers.
pub const HEADER_WORD: usize = std::mem::offset_of!(FlowKey, dl_dst) / 8;
const _: () = assert!(std::mem::offset_of!(FlowKey, dl_dst).is_multiple_of(8));
/// Words of the key up to the VLAN tags.
const L2_WORDS: usize = std::mem::offset_of!(FlowKey, mpls_lse) / 8;
const _: () = assert!(std::mem::offset_of!(FlowKey, mpls_lse).is_multiple_of(8));
const _: () = assert!(
    std::mem::offset_of!(FlowKey, metadata).is_multiple_of(8)
        && std::mem::offset_of!(FlowKey, tun_metadata) == 0
        && FIRST_WORD * 8 == TLV_SPACE
);

impl FlowKey {
    /// The key as words, for masking, comparing and hashing.
    #[inline]
    pub fn words(&self) -> &[u64; N_WORDS] {
        zerocopy::transmute_ref!(self)
    }
    /// The key as words, to write.
    #[inline]
    pub fn words_mut(&mut self) -> &mut [u64; N_WORDS] {
        zerocopy::transmute_mut!(self)
    }
    /// Index of the first word that may be other than zero: values of options are skipped where there are
    /// none.
    #[inline]
    pub fn first_used(&self) -> usize {
        if self.tun_present == 0 { FIRST_WORD } else { 0 }
    }
    /// The words from [`FlowKey::first_used`] on; those before are zero.
    #[inline]
    pub fn used(&self) -> &[u64] {
        &self.words()[self.first_used()..]
    }
    /// Takes the fields of the packet's headers from another key: the members from the Ethernet addresses on.
    pub fn copy_headers(&mut self, from: &FlowKey) {
        self.words_mut()[HEADER_WORD..].copy_from_slice(&from.words()[HEADER_WORD..]);
    }
    /// Takes the tunnel of the packet from another key (for masks: the bits of the tunnel that count); all
    /// zero: none.
    pub fn copy_tunnel(&mut self, from: &FlowKey) {
        let first = self.first_used().min(from.first_used());
        self.words_mut()[first..TUNNEL_WORDS].copy_from_slice(&from.words()[first..TUNNEL_WORDS]);
    }
    /// Whether the members of the tunnel are the same.
    pub fn has_same_tunnel(&self, other: &FlowKey) -> bool {
        let first = self.first_used().min(other.first_used()).min(TUNNEL_WORDS);
        self.words()[first..TUNNEL_WORDS] == other.words()[first..TUNNEL_WORDS]
    }
    /// Takes the context from another key, except the fields of the packet's origin and its type.
    pub fn copy_context(&mut self, from: &FlowKey) {
        let own = (self.in_port, self.recirc_id, self.packet_type);
        let first = self.first_used().min(from.first_used());
        self.words_mut()[first..HEADER_WORD].copy_from_slice(&from.words()[first..HEADER_WORD]);
        (self.in_port, self.recirc_id, self.packet_type) = own;
    }
    /// The packet's context, which it has in a datapath besides its headers: the tunnel that it came out of,
    /// its connection, marks. Fields of a pipeline alone, and of the packet's origin, are left out.
    #[must_use]
    pub fn context(&self) -> FlowKey {
        let mut all = FlowKey::default();
        all.copy_context(self);
        (all.metadata, all.regs, all.conj_id) = (0, [0; 16], 0);
        all
    }
    /// Forgets the context, and the fields of the packet's origin.
    #[inline]
    pub fn clear_context(&mut self) {
        if self.first_used() < FIRST_WORD {
            self.words_mut()[..FIRST_WORD].fill(0);
        }
        self.words_mut()[FIRST_WORD..HEADER_WORD].fill(0);
    }
    /// Whether the context, and the fields of the packet's origin, are the same.
    #[inline]
    pub fn has_same_context(&self, other: &FlowKey) -> bool {
        let first = self.first_used();
        first == other.first_used() && self.words()[first..HEADER_WORD] == other.words()[first..HEADER_WORD]
    }
    /// Forgets the VLAN tags behind the first `limit`, and the headers behind those. The EtherType becomes
    /// that of the first forgotten tag, as in a key from a packet that was parsed with this limit.
    pub fn limit_vlans(&mut self, limit: usize) {
        let Some(beyond) = self.vlans.get(limit).copied().filter(|v| v.present()) else {
            return;
        };
        let seen = Self {
            dl_type: beyond.tpid,
            ..*self
        };
        *self = Self::default();
        self.words_mut()[..L2_WORDS].copy_from_slice(&seen.words()[..L2_WORDS]);
        self.vlans[limit..].fill(Vlan::default());
    }
    /// `self & mask`, field by field.
    pub fn masked(&self, mask: &FlowMask) -> FlowKey {
        let mut out = *self;
        let first = self.first_used();
        for (w, m) in out.words_mut()[first..].iter_mut().zip(&mask.words()[first..]) {
            *w &= m;
        }
        out
    }
    /// Whether `self` and `other` agree in every bit of `mask`.
    pub fn equal_under(&self, other: &FlowKey, mask: &FlowMask) -> bool {
        let (a, b, m) = (self.words(), other.words(), mask.words());
        let first = self.first_used().min(other.first_used());
        (first..N_WORDS).all(|i| (a[i] ^ b[i]) & m[i] == 0)
    }
}

/// Bits of a [`FlowKey`] that count: the same shape, a set bit for each bit that does.
#[repr(transparent)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct FlowMask(pub FlowKey);

impl FlowMask {
    /// The mask as words.
    #[inline]
    pub fn words(&self) -> &[u64; N_WORDS] {
        self.0.words()
    }
    /// The mask as words, to write.
    #[inline]
    pub fn words_mut(&mut self) -> &mut [u64; N_WORDS] {
        self.0.words_mut()
    }
    /// Adds every bit of `other`.
    pub fn add(&mut self, other: &FlowMask) {
        let first = other.0.first_used();
        for (w, o) in self.words_mut()[first..].iter_mut().zip(other.0.used()) {
            *w |= o;
        }
    }
    /// Whether every bit of `other` is in `self`.
    pub fn contains(&self, other: &FlowMask) -> bool {
        let words = self.words()[other.0.first_used()..].iter();
        words.zip(other.0.used()).all(|(a, b)| a & b == *b)
    }
    /// Whether no bit counts.
    pub fn is_empty(&self) -> bool {
        self.0.used().iter().all(|w| *w == 0)
    }
}

/// A key, and the mask of its bits that count. Bits of the key outside the mask are zero
/// ([`Match::normalize`]).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Match {
    /// The values.
    pub key: FlowKey,
    /// Bits of the key that count.
    pub mask: FlowMask,
}

impl Match {
    /// Matches every packet.
    pub fn any() -> Self {
        Self::default()
    }
    /// Clears the key's bits that do not count.
    pub fn normalize(&mut self) {
        self.key = self.key.masked(&self.mask);
    }
    /// Whether a packet with this key matches.
    pub fn matches(&self, key: &FlowKey) -> bool {
        key.equal_under(&self.key, &self.mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_copied_and_nothing_else() {
        let mut from = FlowKey::default();
        from.words_mut().fill(u64::MAX);
        let mut key = FlowKey::default();
        key.copy_headers(&from);
        let others = FlowKey {
            metadata: 0,
            regs: [0; 16],
            skb_priority: 0,
            pkt_mark: 0,
            dp_hash: 0,
            in_port: 0,
            recirc_id: 0,
            conj_id: 0,
            ct_state: 0,
            ct_mark: 0,
            ct_label: [0; 16],
            ct_nw_src: 0,
            ct_nw_dst: 0,
            ct_ipv6_src: [0; 16],
            ct_ipv6_dst: [0; 16],
            ct_tp_src: 0,
            ct_tp_dst: 0,
            ct_zone: 0,
            ct_nw_proto: 0,
            _pad1: 0,
            actset_output: 0,
            packet_type: 0,
            ..from
        };
        from = others;
        from.copy_tunnel(&FlowKey::default());
        assert_eq!(key, from);
    }

    #[test]
    fn the_tunnel_is_copied_and_nothing_else() {
        let mut from = FlowKey::default();
        from.words_mut().fill(u64::MAX);
        let mut key = FlowKey::default();
        key.copy_tunnel(&from);
        let all = FlowKey {
            tun_present: u64::MAX,
            tun_metadata: [0xff; TLV_SPACE],
            tun_id: u64::MAX,
            tun_src: u32::MAX,
            tun_dst: u32::MAX,
            tun_ipv6_src: [0xff; 16],
            tun_ipv6_dst: [0xff; 16],
            tun_flags: u16::MAX,
            tun_tos: u8::MAX,
            tun_ttl: u8::MAX,
            tun_gbp_id: u16::MAX,
            tun_gbp_flags: u8::MAX,
            tun_gtpu_msgtype: u8::MAX,
            tun_erspan_idx: u32::MAX,
            tun_erspan_ver: u8::MAX,
            tun_erspan_dir: u8::MAX,
            tun_erspan_hwid: u8::MAX,
            tun_gtpu_flags: u8::MAX,
            ..FlowKey::default()
        };
        assert_eq!(key, all);
        key.copy_tunnel(&FlowKey::default());
        assert_eq!(key, FlowKey::default());
    }
}
