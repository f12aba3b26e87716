//! The compact key: 64 bytes that say all about an ordinary packet.
//!
//! Ordinary: TCP, UDP or ICMP over IPv4 or IPv6, at most one VLAN tag, no fragment, fresh from a port (no tunnel, no
//! recirculation, registers zero). **Invariant:** two ordinary keys have equal compact keys exactly when the full keys
//! are equal. Whatever else a key may hold makes it extraordinary ([`CompactKey::of`] gives `None`): it is looked up in
//! the wildcarded cache only. The check is one pass over the words that an ordinary key has zero.
//!
//! Layout of the words: 0 in_port 32, TCI 16, TCP flags 12, kind 4; 1 dl_dst 48, tp_src 16; 2 dl_src 48, tp_dst 16;
//! 3 label 20, proto 8, tos 8, ttl 8; 4-5 source; 6-7 destination (IPv4: word 4 holds both).

use crate::hash::HashKey;
use heddle_flow::{FlowKey, FlowMask, N_WORDS};

/// An ordinary packet's key.
#[repr(align(64))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct CompactKey([u64; 8]);

const KIND_V6: u64 = 1;
const KIND_VLAN: u64 = 2;
const KIND_QINQ: u64 = 4;

/// The words of a full key that must be zero in an ordinary one, and which bits of them.
fn extraordinary() -> FlowMask {
    let mut m = FlowMask::default();
    m.words_mut().fill(u64::MAX);
    let k = &mut m.0;
    k.in_port = 0;
    k.dl_dst = [0; 6];
    k.dl_src = [0; 6];
    k.dl_type = 0;
    k.vlans[0] = Default::default();
    k.nw_src = 0;
    k.nw_dst = 0;
    k.ipv6_src = [0; 16];
    k.ipv6_dst = [0; 16];
    k.ipv6_label = 0xfff0_0000;
    k.nw_proto = 0;
    k.nw_tos = 0;
    k.nw_ttl = 0;
    k.tcp_flags = 0xf000;
    k.tp_src = 0;
    k.tp_dst = 0;
    m
}

/// Makes compact keys; holds the precomputed words to check.
#[derive(Debug)]
pub(crate) struct Compactor {
    zero: [(usize, u64); N_WORDS],
    n: usize,
}

impl Default for Compactor {
    fn default() -> Self {
        let mask = extraordinary();
        let mut zero = [(0, 0); N_WORDS];
        let mut n = 0;
        for (i, w) in mask.words().iter().enumerate().filter(|(_, w)| **w != 0) {
            zero[n] = (i, *w);
            n += 1;
        }
        Self { zero, n }
    }
}

impl Compactor {
    /// The compact form of `key`, if it is ordinary.
    #[inline]
    pub(crate) fn of(&self, key: &FlowKey) -> Option<CompactKey> {
        let words = key.words();
        let odd = self.zero[..self.n]
            .iter()
            .fold(0, |acc, &(i, m)| acc | (words[i] & m));
        if odd != 0 || !matches!(key.nw_proto, 1 | 6 | 17 | 58) {
            return None;
        }
        let vlan = key.vlans[0];
        let mut kind = match vlan.tpid {
            0 if vlan.tci == 0 => 0,
            0x8100 => KIND_VLAN,
            0x88a8 => KIND_VLAN | KIND_QINQ,
            _ => return None,
        };
        let mut w = [0; 8];
        match key.dl_type {
            0x0800 => {
                if (key.ipv6_src, key.ipv6_dst, key.ipv6_label) != ([0; 16], [0; 16], 0) {
                    return None;
                }
                w[4] = u64::from(key.nw_src) << 32 | u64::from(key.nw_dst);
            }
            0x86dd => {
                if key.nw_src != 0 || key.nw_dst != 0 {
                    return None;
                }
                kind |= KIND_V6;
                (w[4], w[5]) = halves(&key.ipv6_src);
                (w[6], w[7]) = halves(&key.ipv6_dst);
            }
            _ => return None,
        }
        w[0] = u64::from(key.in_port) << 32
            | u64::from(vlan.tci) << 16
            | u64::from(key.tcp_flags & 0xfff) << 4
            | kind;
        w[1] = mac(key.dl_dst) << 16 | u64::from(key.tp_src);
        w[2] = mac(key.dl_src) << 16 | u64::from(key.tp_dst);
        w[3] = u64::from(key.ipv6_label) << 24
            | u64::from(key.nw_proto) << 16
            | u64::from(key.nw_tos) << 8
            | u64::from(key.nw_ttl);
        Some(CompactKey(w))
    }
}

impl CompactKey {
    /// Keyed hash.
    #[inline]
    pub(crate) fn hash(&self, k: HashKey) -> u64 {
        let w = &self.0;
        let mut h = k.mix(k.start(), w[0], w[1]);
        h = k.mix(h, w[2], w[3]);
        h = k.mix(h, w[4], w[5]);
        if w[0] & KIND_V6 != 0 {
            h = k.mix(h, w[6], w[7]);
        }
        k.finish(h)
    }
}

fn mac(m: [u8; 6]) -> u64 {
    u64::from(u16::from_be_bytes([m[0], m[1]])) << 32
        | u64::from(u32::from_be_bytes([m[2], m[3], m[4], m[5]]))
}

fn halves(a: &[u8; 16]) -> (u64, u64) {
    let v = u128::from_ne_bytes(*a);
    #[allow(clippy::cast_possible_truncation)] // the halves are what is wanted
    (v as u64, (v >> 64) as u64)
}
