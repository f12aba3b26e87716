//! Masks in the shape of compact keys.
//!
//! Bits that tell the family and the origin always count. A tag's EtherType counts as a whole or not at all:
//! one bit too many is the safe error. An ordinary packet's headers have zeros in all fields that a compact
//! key has no room for, so bits of a mask there say nothing about it and are left out.

use super::{CompactKey, KIND_ODD, KIND_QINQ, KIND_V6, KIND_VLAN, Parts};
use heddle_flow::{FlowMask, Vlan};
use heddle_simd::hash::HashKey;

/// Which bits of a compact key count.
#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompactMask([u64; 8]);

impl CompactMask {
    /// No bits.
    pub(crate) const NOTHING: Self = Self([0; 8]);
    /// What `mask` says of the compact keys of packets of IPv6 (`v6`) or of all others.
    pub(crate) fn of(mask: &FlowMask, v6: bool) -> Self {
        let m = &mask.0;
        let mut kind = KIND_V6 | KIND_ODD;
        if m.vlans[0].tpid != 0 {
            kind |= KIND_VLAN | KIND_QINQ;
        }
        let parts = Parts {
            macs: super::mac_words(&m.dl_dst, &m.dl_src),
            context: u32::MAX,
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
    /// As [`CompactMask::of`], without what always counts: of no bits, none. The same of a key gives its
    /// words as far as fields go.
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
    /// All bits.
    #[inline]
    pub(crate) fn words(&self) -> &[u64; 8] {
        &self.0
    }
    /// Keyed hash of the masked key; `seed` tells masks apart.
    #[inline]
    pub(crate) fn hash(&self, key: &CompactKey, k: &HashKey, seed: u32) -> u64 {
        let (w, m) = (&key.0, &self.0);
        // Each mask has the bits that tell the family, so a masked key has them too.
        k.key(|i| w[i] & m[i], key.is_v6(), seed)
    }
    /// Whether two keys, of which `a` may be masked already, agree in all bits of this mask. Behind word 4
    /// IPv4 has nothing but zeros.
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
    /// Whether it is IPv6's.
    #[inline]
    pub(crate) fn is_v6(&self) -> bool {
        self.kind() & KIND_V6 != 0
    }
}
