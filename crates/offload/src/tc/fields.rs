//! Sets of header fields: comparison, union, and the effect of steps.

use crate::rule::VLAN_PRESENT;
use crate::{Headers, Op};

/// Bits of a field.
trait Bits: Copy {
    /// Whether both have the same bits under both masks.
    fn agrees(self, mask: Self, other: Self, other_mask: Self) -> bool;
    /// The bits of `self` under `mask`, and those of the other one elsewhere; with the union of both masks.
    fn union(self, mask: Self, other: Self, other_mask: Self) -> (Self, Self);
}

macro_rules! integers {
    ($($t:ty)*) => { $(impl Bits for $t {
        fn agrees(self, mask: Self, other: Self, other_mask: Self) -> bool {
            (self ^ other) & mask & other_mask == 0
        }
        fn union(self, mask: Self, other: Self, other_mask: Self) -> (Self, Self) {
            (self & mask | other & other_mask & !mask, mask | other_mask)
        }
    })* };
}

integers!(u8 u16 u32);

impl<const N: usize> Bits for [u8; N] {
    fn agrees(self, mask: Self, other: Self, other_mask: Self) -> bool {
        let one = self.into_iter().zip(mask);
        one.zip(other.into_iter().zip(other_mask))
            .all(|((a, am), (b, bm))| a.agrees(am, b, bm))
    }
    fn union(self, mask: Self, other: Self, other_mask: Self) -> (Self, Self) {
        let (mut value, mut both) = ([0; N], [0; N]);
        for i in 0..N {
            (value[i], both[i]) = self[i].union(mask[i], other[i], other_mask[i]);
        }
        (value, both)
    }
}

/// Headers of which some bits are known.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct KnownHeaders {
    pub(super) key: Headers,
    pub(super) mask: Headers,
}

macro_rules! each {
    ($f:ident) => {
        $f!(dl_dst dl_src dl_type vlan nw_proto nw_tos nw_ttl label tp_src tp_dst src dst)
    };
}

impl KnownHeaders {
    /// Whether a packet may have both.
    pub(super) fn agrees(&self, other: &KnownHeaders) -> bool {
        macro_rules! all {
            ($($f:ident)*) => {
                true $(&& self.key.$f.agrees(self.mask.$f, other.key.$f, other.mask.$f))*
            };
        }
        each!(all)
    }
    /// The bits that one of both knows. Fields of connections and tunnels are left out.
    pub(super) fn union(&self, other: &KnownHeaders) -> KnownHeaders {
        let mut all = KnownHeaders::default();
        macro_rules! all {
            ($($f:ident)*) => {
                $((all.key.$f, all.mask.$f) =
                    self.key.$f.union(self.mask.$f, other.key.$f, other.mask.$f);)*
            };
        }
        each!(all);
        all
    }
    /// Addresses and ports are not known any more.
    pub(super) fn forget_ends(&mut self) {
        for h in [&mut self.key, &mut self.mask] {
            (h.src, h.dst, h.tp_src, h.tp_dst) = ([0; 16], [0; 16], 0, 0);
        }
    }
    /// The step that restores a field which `op` is about to rewrite. `None`: its value is not known.
    pub(super) fn restoring(&self, op: &Op) -> Option<Op> {
        let (k, m) = (&self.key, &self.mask);
        let first4 = |all: &[u8; 16]| *all.first_chunk::<4>().unwrap_or(&[0; 4]);
        let v4 = |mask: &[u8; 16]| mask.starts_with(&[0xff; 4]);
        match op {
            Op::EthDst(_) => (m.dl_dst == [0xff; 6]).then_some(Op::EthDst(k.dl_dst)),
            Op::EthSrc(_) => (m.dl_src == [0xff; 6]).then_some(Op::EthSrc(k.dl_src)),
            Op::Ipv4Src(_) => v4(&m.src).then(|| Op::Ipv4Src(first4(&k.src))),
            Op::Ipv4Dst(_) => v4(&m.dst).then(|| Op::Ipv4Dst(first4(&k.dst))),
            Op::Ipv6Word { at, .. } => {
                let word = |of: &Headers| *word_of(of, *at).first_chunk::<4>().unwrap_or(&[0; 4]);
                let (at, word) = (*at, (word(m) == [0xff; 4]).then(|| word(k))?);
                Some(Op::Ipv6Word { at, word })
            }
            Op::Tos { mask, .. } => (m.nw_tos & mask == *mask).then_some(Op::Tos {
                value: k.nw_tos & mask,
                mask: *mask,
            }),
            Op::Ttl(_) => (m.nw_ttl == u8::MAX).then_some(Op::Ttl(k.nw_ttl)),
            Op::L4Src(_) => (m.tp_src == u16::MAX).then_some(Op::L4Src(k.tp_src)),
            Op::L4Dst(_) => (m.tp_dst == u16::MAX).then_some(Op::L4Dst(k.tp_dst)),
            Op::PushVlan(_) => Some(Op::PopVlan),
            Op::PopVlan => (m.vlan == u16::MAX).then_some(Op::PushVlan(k.vlan)),
            Op::Output(_) | Op::Ct(_) | Op::CtClear | Op::Recirc(_) | Op::Encap | Op::Decap(_) => None,
        }
    }
    /// The headers after a step that rewrites a field.
    pub(super) fn apply(&mut self, op: &Op) {
        let (k, m) = (&mut self.key, &mut self.mask);
        match op {
            Op::EthDst(mac) => (k.dl_dst, m.dl_dst) = (*mac, [0xff; 6]),
            Op::EthSrc(mac) => (k.dl_src, m.dl_src) = (*mac, [0xff; 6]),
            Op::Ipv4Src(a) => {
                k.src[..4].copy_from_slice(a);
                m.src[..4].fill(0xff);
            }
            Op::Ipv4Dst(a) => {
                k.dst[..4].copy_from_slice(a);
                m.dst[..4].fill(0xff);
            }
            Op::Ipv6Word { at, word } => {
                word_of_mut(k, *at).copy_from_slice(word);
                word_of_mut(m, *at).fill(0xff);
            }
            Op::Tos { value, mask } => {
                k.nw_tos = k.nw_tos & !mask | value;
                m.nw_tos |= mask;
            }
            Op::Ttl(ttl) => (k.nw_ttl, m.nw_ttl) = (*ttl, u8::MAX),
            Op::L4Src(p) => (k.tp_src, m.tp_src) = (*p, u16::MAX),
            Op::L4Dst(p) => (k.tp_dst, m.tp_dst) = (*p, u16::MAX),
            Op::PushVlan(tci) => (k.vlan, m.vlan) = (*tci | VLAN_PRESENT, u16::MAX),
            Op::PopVlan => (k.vlan, m.vlan) = (0, u16::MAX),
            Op::Output(_) | Op::Ct(_) | Op::CtClear | Op::Recirc(_) | Op::Encap | Op::Decap(_) => {}
        }
    }
}

/// Bytes of a word of both IPv6 addresses: the source has words 0 to 3, the destination 4 to 7.
fn range(at: u8) -> (bool, std::ops::Range<usize>) {
    let first = usize::from(at & 3) * 4;
    (at < 4, first..first + 4)
}

fn word_of(h: &Headers, at: u8) -> &[u8] {
    match range(at) {
        (true, r) => &h.src[r],
        (false, r) => &h.dst[r],
    }
}

fn word_of_mut(h: &mut Headers, at: u8) -> &mut [u8] {
    match range(at) {
        (true, r) => &mut h.src[r],
        (false, r) => &mut h.dst[r],
    }
}
