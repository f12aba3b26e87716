//! Conversion between full keys and compact keys.

use super::{
    CompactKey, CompactMask, Family, KIND_ODD, KIND_QINQ, KIND_V6, KIND_VLAN, Parts, mac_words, port_word,
    v4_words, v6_words,
};
use heddle_flow::key::HEADER_WORD;
use heddle_flow::{FlowKey, FlowMask};
use std::sync::LazyLock;

/// The origin of packets, as they came in.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// The input port.
    pub in_port: u32,
    /// The recirculation id.
    pub recirc_id: u32,
}

/// The bits of headers that have no room in a compact key. An ordinary packet has zeros there; those of an
/// odd packet belong to the context.
static ODD: LazyLock<FlowMask> = LazyLock::new(|| {
    let mut m = FlowMask::default();
    m.words_mut()[HEADER_WORD..].fill(u64::MAX);
    let k = &mut m.0;
    (k.dl_dst, k.dl_src) = ([0; 6], [0; 6]);
    k.vlans[0].tci = 0;
    (k.nw_src, k.nw_dst) = (0, 0);
    k.ipv6_label = 0xfff0_0000;
    (k.nw_proto, k.nw_tos, k.nw_ttl) = (0, 0, 0);
    k.tcp_flags = 0xf000;
    (k.tp_src, k.tp_dst) = (0, 0);
    m
});

/// The same without the fields that [`CompactKey::of`] checks one by one.
static REST: LazyLock<FlowMask> = LazyLock::new(|| {
    let mut m = *ODD;
    let k = &mut m.0;
    (k.dl_type, k.vlans[0].tpid) = (0, 0);
    (k.ipv6_src, k.ipv6_dst) = ([0; 16], [0; 16]);
    m
});

/// The metadata of a packet: all bits before its headers, but for its origin.
static CONTEXT: LazyLock<FlowMask> = LazyLock::new(|| {
    let mut m = FlowMask::default();
    m.words_mut()[..HEADER_WORD].fill(u64::MAX);
    (m.0.in_port, m.0.recirc_id) = (0, 0);
    m
});

/// Both metadata and odd headers.
static BOTH: LazyLock<FlowMask> = LazyLock::new(|| {
    let mut m = *ODD;
    m.add(&CONTEXT);
    m
});

/// The bits of a full key outside of compact keys of this family. For an odd IPv6 packet the address bits are
/// in both, which does no harm.
pub(crate) fn context_mask(family: Family) -> &'static FlowMask {
    if family.is_odd() { &BOTH } else { &CONTEXT }
}

impl CompactKey {
    /// The compact key of a full one, whose input port and recirculation id are this origin.
    pub fn of(key: &FlowKey, origin: u32) -> Self {
        let vlan = key.vlans[0];
        let (mut kind, mut usual) = match vlan.tpid {
            0 => (0, vlan.tci == 0),
            0x8100 => (KIND_VLAN, true),
            0x88a8 => (KIND_VLAN | KIND_QINQ, true),
            _ => (0, false),
        };
        let addrs = if key.dl_type == 0x86dd {
            kind |= KIND_V6;
            usual &= (key.nw_src, key.nw_dst) == (0, 0);
            v6_words(&key.ipv6_src, &key.ipv6_dst)
        } else {
            usual &= key.dl_type == 0x0800
                && (key.ipv6_src, key.ipv6_dst, key.ipv6_label) == ([0; 16], [0; 16], 0);
            v4_words(key.nw_src, key.nw_dst)
        };
        let words = key.words()[HEADER_WORD..]
            .iter()
            .zip(&REST.words()[HEADER_WORD..]);
        if !usual || words.fold(0, |odd, (w, m)| odd | w & m) != 0 {
            kind |= KIND_ODD;
        }
        let parts = Parts {
            macs: mac_words(&key.dl_dst, &key.dl_src),
            origin,
            tci: vlan.tci,
            flags: u16::from_ne_bytes((key.tcp_flags & 0x0fff).to_be_bytes()),
            tos: key.nw_tos,
            ttl: key.nw_ttl,
            proto: key.nw_proto,
            kind,
            ports: port_word(key.tp_src, key.tp_dst),
            label: key.ipv6_label & 0xf_ffff,
            addrs,
        };
        parts.key()
    }
    /// The key of an ordinary packet of this family with zeros everywhere else.
    pub(crate) fn of_family(v6: bool) -> Self {
        Self([0, 0, if v6 { u64::from(KIND_V6) << 56 } else { 0 }, 0, 0, 0, 0, 0])
    }
    /// The full key of this compact one, under `mask`. The bits outside of the compact key are zero. If the
    /// compact key is masked, then by the compact form of `mask`.
    pub(crate) fn expand(&self, mask: &FlowMask) -> FlowKey {
        self.whole().masked(mask)
    }
    /// The full key of this compact one. The bits outside of the compact key are zero.
    pub fn whole(&self) -> FlowKey {
        let mut key = FlowKey::default();
        self.write_to(&mut key);
        key
    }
    /// Writes all members that ordinary packets' keys have, but for the origin. The other members must be
    /// zero already.
    #[allow(clippy::cast_possible_truncation)] // fields are taken out of words
    pub fn write_to(&self, key: &mut FlowKey) {
        let w = &self.0;
        let (a, b) = (w[0].to_ne_bytes(), (w[1] as u32).to_ne_bytes());
        key.dl_dst.copy_from_slice(&a[..6]);
        key.dl_src[..2].copy_from_slice(&a[6..]);
        key.dl_src[2..].copy_from_slice(&b);
        key.vlans[0].tci = w[2] as u16;
        let odd = self.kind() & KIND_ODD != 0;
        match self.kind() & (KIND_VLAN | KIND_QINQ) {
            0 if odd => {}
            0 => key.vlans[0].tpid = 0,
            KIND_VLAN => key.vlans[0].tpid = 0x8100,
            _ => key.vlans[0].tpid = 0x88a8,
        }
        key.tcp_flags = self.tcp_flags();
        (key.nw_tos, key.nw_ttl, key.nw_proto) = (self.byte(4), self.byte(5), self.proto());
        let p = (w[3] as u32).to_ne_bytes();
        (key.tp_src, key.tp_dst) = (u16::from_be_bytes([p[0], p[1]]), u16::from_be_bytes([p[2], p[3]]));
        key.ipv6_label = (w[3] >> 32) as u32;
        let addr = |i: usize| {
            let mut a = [0; 16];
            a[..8].copy_from_slice(&w[i].to_ne_bytes());
            a[8..].copy_from_slice(&w[i + 1].to_ne_bytes());
            a
        };
        if self.is_v6() {
            key.dl_type = 0x86dd;
            (key.ipv6_src, key.ipv6_dst) = (addr(4), addr(6));
            (key.nw_src, key.nw_dst) = (0, 0);
        } else {
            if !odd {
                key.dl_type = 0x0800;
                (key.ipv6_src, key.ipv6_dst) = ([0; 16], [0; 16]);
            }
            let a = w[4].to_ne_bytes();
            key.nw_src = u32::from_be_bytes([a[0], a[1], a[2], a[3]]);
            key.nw_dst = u32::from_be_bytes([a[4], a[5], a[6], a[7]]);
        }
    }
}

impl CompactMask {
    /// The bits of `mask` outside of compact keys of this family: words that are not zero, with their index.
    pub(crate) fn rest(mask: &FlowMask, family: Family) -> impl Iterator<Item = (u8, u64)> {
        let words = mask
            .words()
            .iter()
            .zip(context_mask(family).words())
            .map(|(m, o)| m & o);
        (0_u8..).zip(words).filter(|(_, w)| *w != 0)
    }
}

/// A reusable full key. Members that no ordinary packet has stay zero, so a new key costs only the members
/// that it writes.
#[derive(Debug, Default)]
pub struct Room {
    key: FlowKey,
    /// Whether the key still has the context of the last packet.
    has_context: bool,
}

impl Room {
    /// Builds the full key of a packet from its compact key and its context.
    pub fn whole(&mut self, key: &CompactKey, source: Source, context: Option<&FlowKey>) -> &FlowKey {
        if self.has_context || context.is_some() {
            self.key.clear_context();
        }
        self.has_context = context.is_some();
        if let Some(context) = context {
            self.key.copy_context(context);
        }
        key.write_to(&mut self.key);
        (self.key.in_port, self.key.recirc_id) = (source.in_port, source.recirc_id);
        &self.key
    }
}
