//! Masks in the shape of compact keys, and the way back from a masked compact key to a full one.
//!
//! An ordinary packet has zeros in all fields that a compact key has no room for, so bits of a mask there say nothing about
//! it and are left out. Bits that tell the layout (IPv6 or not) and the input port always count. A tag's EtherType counts as
//! a whole or not at all: one bit too many is the safe error.

use super::{CompactKey, KIND_QINQ, KIND_V6, KIND_VLAN, Parts};
use crate::hash::HashKey;
use heddle_flow::{FlowKey, FlowMask, Vlan};

/// Which bits of a compact key count.
#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompactMask([u64; 8]);

impl CompactMask {
    /// What `mask` says of ordinary packets, of IPv6 (`v6`) or of IPv4.
    pub(crate) fn of(mask: &FlowMask, v6: bool) -> Self {
        let m = &mask.0;
        let mut kind = KIND_V6;
        if m.vlans[0].tpid != 0 {
            kind |= KIND_VLAN | KIND_QINQ;
        }
        let parts = Parts {
            macs: super::mac_words(&m.dl_dst, &m.dl_src),
            in_port: u32::MAX,
            tci: m.vlans[0].tci,
            flags: u16::from_ne_bytes((m.tcp_flags & 0x0fff).to_be_bytes()),
            tos: m.nw_tos,
            ttl: m.nw_ttl,
            proto: m.nw_proto,
            kind,
            ports: super::port_word(m.tp_src, m.tp_dst),
            label: m.ipv6_label & 0xf_ffff,
            addrs: if v6 {
                super::v6_words(&m.ipv6_src, &m.ipv6_dst)
            } else {
                super::v4_words(m.nw_src, m.nw_dst)
            },
        };
        Self(parts.key().0)
    }
    /// As [`CompactMask::of`], without what always counts: of no bits, none. The same of a key gives its words as far as fields go.
    pub(crate) fn of_fields(mask: &FlowMask, v6: bool) -> Self {
        let mut bits = Self::of(mask, v6);
        bits.0[1] &= u64::from(u32::MAX);
        bits.0[2] &= u64::MAX >> 8;
        bits
    }
    /// Any bits, for tests.
    #[cfg(test)]
    pub(crate) fn from_key(key: &CompactKey) -> Self {
        Self(key.0)
    }
    /// The bits of `mask` that compact keys have no room for.
    pub(crate) fn beyond(mask: &FlowMask) -> FlowMask {
        let mut out = *mask;
        let k = &mut out.0;
        (k.dl_dst, k.dl_src, k.vlans[0]) = ([0; 6], [0; 6], Vlan::default());
        (k.nw_tos, k.nw_ttl, k.nw_proto) = (0, 0, 0);
        (k.nw_src, k.nw_dst) = (0, 0);
        (k.ipv6_src, k.ipv6_dst) = ([0; 16], [0; 16]);
        k.ipv6_label &= !0xf_ffff;
        k.tcp_flags &= !0x0fff;
        (k.tp_src, k.tp_dst) = (0, 0);
        out
    }
    /// For entries that have no compact key: with [`CompactKey::NONE`] as theirs, no packet's key agrees under it.
    pub(crate) const NEVER: Self = Self([0, 0, 0xff << 56, 0, 0, 0, 0, 0]);
    /// All bits.
    #[inline]
    pub(crate) fn words(&self) -> &[u64; 8] {
        &self.0
    }
    /// Keyed hash of the masked key; `seed` tells masks apart.
    #[inline]
    pub(crate) fn hash(&self, key: &CompactKey, k: &HashKey, seed: u32) -> u64 {
        let (w, m) = (&key.0, &self.0);
        // Each mask has the bit that tells the family, so a masked key has it too.
        k.key(|i| w[i] & m[i], key.is_v6(), seed)
    }
    /// Whether two keys, of which `a` may be masked already, agree in all bits of this mask. Behind word 4 IPv4 has nothing but zeros.
    #[inline]
    pub(crate) fn same(&self, a: impl Fn(usize) -> u64, b: &CompactKey) -> bool {
        let odd = |words: std::ops::Range<usize>| words.fold(0, |odd, i| odd | ((a(i) ^ b.0[i]) & self.0[i]));
        odd(0..5) == 0 && (!b.is_v6() || odd(5..8) == 0)
    }
}

impl CompactKey {
    #[cfg(test)]
    pub(crate) fn masked(&self, mask: &CompactMask) -> Self {
        Self(std::array::from_fn(|i| self.0[i] & mask.0[i]))
    }
    /// Of an ordinary packet of this family, with nothing else in it.
    pub(crate) fn of_family(v6: bool) -> Self {
        Self([0, 0, if v6 { u64::from(KIND_V6) << 56 } else { 0 }, 0, 0, 0, 0, 0])
    }
    /// Whether it is IPv6's.
    #[inline]
    pub(crate) fn is_v6(&self) -> bool {
        self.kind() & KIND_V6 != 0
    }
    /// The full key of which this is the compact one, masked by `mask` (whose compact form this key was masked by, if any).
    pub(crate) fn expand(&self, mask: &FlowMask) -> FlowKey {
        self.whole().masked(mask)
    }
    /// The full key of which this is the compact one.
    pub(crate) fn whole(&self) -> FlowKey {
        let mut key = FlowKey::default();
        self.write_to(&mut key);
        key
    }
    /// Writes all members that ordinary packets' keys have; the others are zero already.
    #[allow(clippy::cast_possible_truncation)] // fields are taken out of words
    fn write_to(&self, key: &mut FlowKey) {
        let w = &self.0;
        let (a, b) = (w[0].to_ne_bytes(), (w[1] as u32).to_ne_bytes());
        key.dl_dst.copy_from_slice(&a[..6]);
        key.dl_src[..2].copy_from_slice(&a[6..]);
        key.dl_src[2..].copy_from_slice(&b);
        key.in_port = (w[1] >> 32) as u32;
        key.vlans[0].tci = w[2] as u16;
        key.vlans[0].tpid = match self.kind() & (KIND_VLAN | KIND_QINQ) {
            0 => 0,
            KIND_VLAN => 0x8100,
            _ => 0x88a8,
        };
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
            key.dl_type = 0x0800;
            let a = w[4].to_ne_bytes();
            key.nw_src = u32::from_be_bytes([a[0], a[1], a[2], a[3]]);
            key.nw_dst = u32::from_be_bytes([a[4], a[5], a[6], a[7]]);
            (key.ipv6_src, key.ipv6_dst) = ([0; 16], [0; 16]);
        }
    }
}

/// Room for one ordinary packet's full key after the other. Of what no such packet has it stays empty, so a new key costs what it writes.
#[derive(Debug, Default)]
pub(crate) struct Room(FlowKey);

impl Room {
    /// The full key of which this is the compact one.
    pub(crate) fn whole(&mut self, key: &CompactKey) -> &FlowKey {
        key.write_to(&mut self.0);
        &self.0
    }
}
