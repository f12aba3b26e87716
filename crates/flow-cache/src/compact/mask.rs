//! Masks in the shape of compact keys.
//!
//! The bits of the family and of the origin always count. A tag's EtherType counts as a whole or not at all:
//! one bit too many is the safe error. An ordinary packet has zeros in all header fields that a compact key
//! has no room for. So the mask's bits of those fields are left out.

use super::{CompactKey, KIND_ODD, KIND_QINQ, KIND_V6, KIND_VLAN, Parts};
use heddle_flow::{FlowMask, Vlan};
use heddle_simd::hash::HashKey;

/// The bits of a compact key that count.
#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompactMask([u64; 8]);

impl CompactMask {
    /// No bits.
    pub(crate) const NOTHING: Self = Self([0; 8]);
    /// The part of `mask` inside compact keys of IPv6 packets (`v6`) or of all other packets.
    pub(crate) fn of(mask: &FlowMask, v6: bool) -> Self {
        let m = &mask.0;
        let mut kind = KIND_V6 | KIND_ODD;
        if m.vlans[0].tpid != 0 {
            kind |= KIND_VLAN | KIND_QINQ;
        }
        let parts = Parts {
            macs: super::mac_words(&m.dl_dst, &m.dl_src),
            origin: u32::MAX,
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
    /// Like [`CompactMask::of`], but without the bits that always count. It also converts the masked fields
    /// of a key.
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
    /// The eight words of the mask.
    #[inline]
    pub(crate) fn words(&self) -> &[u64; 8] {
        &self.0
    }
    /// Keyed hash of the masked key; `seed` separates masks.
    #[inline]
    pub(crate) fn hash(&self, key: &CompactKey, k: &HashKey, seed: u32) -> u64 {
        let (w, m) = (&key.0, &self.0);
        // Each mask has the family's bits, so a masked key has them too.
        k.key(|i| w[i] & m[i], key.is_v6(), seed)
    }
    /// Whether two keys agree in all bits of this mask; `a` may be masked already. IPv4 has only zeros after
    /// word 4.
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
    /// Whether the key has the shape of IPv6.
    #[inline]
    pub(crate) fn is_v6(&self) -> bool {
        self.kind() & KIND_V6 != 0
    }
}
