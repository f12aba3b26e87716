//! The compact key of a full key: the plain way, which the reader of bytes is compared with.

use super::{CompactKey, KIND_QINQ, KIND_V6, KIND_VLAN, Parts, mac_words, port_word, v4_words, v6_words};
use heddle_flow::{FlowKey, FlowMask, N_WORDS};

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
        let addrs = match key.dl_type {
            0x0800 => {
                if (key.ipv6_src, key.ipv6_dst, key.ipv6_label) != ([0; 16], [0; 16], 0) {
                    return None;
                }
                v4_words(key.nw_src, key.nw_dst)
            }
            0x86dd => {
                if key.nw_src != 0 || key.nw_dst != 0 {
                    return None;
                }
                kind |= KIND_V6;
                v6_words(&key.ipv6_src, &key.ipv6_dst)
            }
            _ => return None,
        };
        let parts = Parts {
            macs: mac_words(&key.dl_dst, &key.dl_src),
            in_port: key.in_port,
            tci: vlan.tci,
            flags: u16::from_ne_bytes(key.tcp_flags.to_be_bytes()),
            tos: key.nw_tos,
            ttl: key.nw_ttl,
            proto: key.nw_proto,
            kind,
            ports: port_word(key.tp_src, key.tp_dst),
            label: key.ipv6_label,
            addrs,
        };
        Some(parts.key())
    }
}
