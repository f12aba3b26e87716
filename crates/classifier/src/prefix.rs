//! The fields that can be tracked by prefix, and what one lookup knows of them.

use crate::mini::MiniMask;
use crate::trie::{Found, Trie};
use heddle_flow::{FlowKey, FlowMask};

/// A field whose prefixes can be tracked (`Flow_Table.prefixes`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PrefixField {
    /// IPv4 source.
    NwSrc,
    /// IPv4 destination.
    NwDst,
    /// IPv6 source.
    Ipv6Src,
    /// IPv6 destination.
    Ipv6Dst,
    /// Outer IPv4 source.
    TunSrc,
    /// Outer IPv4 destination.
    TunDst,
    /// Outer IPv6 source.
    TunIpv6Src,
    /// Outer IPv6 destination.
    TunIpv6Dst,
    /// IPv4 source of the connection's original direction.
    CtNwSrc,
    /// IPv4 destination of the connection's original direction.
    CtNwDst,
    /// IPv6 source of the connection's original direction.
    CtIpv6Src,
    /// IPv6 destination of the connection's original direction.
    CtIpv6Dst,
}

/// How many there are.
pub(crate) const N_FIELDS: usize = 12;

/// A member of the key, by its kind.
enum Member<'a> {
    V4(&'a u32),
    V6(&'a [u8; 16]),
}

impl PrefixField {
    /// All of them.
    pub const ALL: [Self; N_FIELDS] = [
        Self::NwSrc,
        Self::NwDst,
        Self::Ipv6Src,
        Self::Ipv6Dst,
        Self::TunSrc,
        Self::TunDst,
        Self::TunIpv6Src,
        Self::TunIpv6Dst,
        Self::CtNwSrc,
        Self::CtNwDst,
        Self::CtIpv6Src,
        Self::CtIpv6Dst,
    ];
    /// What Open vSwitch tracks when nothing is configured.
    pub const DEFAULT: [Self; 2] = [Self::NwDst, Self::NwSrc];

    /// The field of this name (`nw_dst`, `ip_dst`, `ipv6_src`, ...), if it can be tracked.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "nw_src" | "ip_src" => Self::NwSrc,
            "nw_dst" | "ip_dst" => Self::NwDst,
            "ipv6_src" => Self::Ipv6Src,
            "ipv6_dst" => Self::Ipv6Dst,
            "tun_src" => Self::TunSrc,
            "tun_dst" => Self::TunDst,
            "tun_ipv6_src" => Self::TunIpv6Src,
            "tun_ipv6_dst" => Self::TunIpv6Dst,
            "ct_nw_src" => Self::CtNwSrc,
            "ct_nw_dst" => Self::CtNwDst,
            "ct_ipv6_src" => Self::CtIpv6Src,
            "ct_ipv6_dst" => Self::CtIpv6Dst,
            _ => return None,
        })
    }

    fn member(self, key: &FlowKey) -> Member<'_> {
        match self {
            Self::NwSrc => Member::V4(&key.nw_src),
            Self::NwDst => Member::V4(&key.nw_dst),
            Self::Ipv6Src => Member::V6(&key.ipv6_src),
            Self::Ipv6Dst => Member::V6(&key.ipv6_dst),
            Self::TunSrc => Member::V4(&key.tun_src),
            Self::TunDst => Member::V4(&key.tun_dst),
            Self::TunIpv6Src => Member::V6(&key.tun_ipv6_src),
            Self::TunIpv6Dst => Member::V6(&key.tun_ipv6_dst),
            Self::CtNwSrc => Member::V4(&key.ct_nw_src),
            Self::CtNwDst => Member::V4(&key.ct_nw_dst),
            Self::CtIpv6Src => Member::V6(&key.ct_ipv6_src),
            Self::CtIpv6Dst => Member::V6(&key.ct_ipv6_dst),
        }
    }

    /// A member as a left-aligned number of its width.
    fn value(self, key: &FlowKey) -> (u128, u32) {
        match self.member(key) {
            Member::V4(v) => (u128::from(*v) << 96, 32),
            Member::V6(v) => (u128::from_be_bytes(*v), 128),
        }
    }

    /// The number of bits that `mask` asks for, where these are a prefix; 0 where it asks for none, or for others.
    pub(crate) fn length(self, mask: &FlowMask) -> u8 {
        let (value, _) = self.value(&mask.0);
        let ones = value.leading_ones();
        let prefix = ones == value.count_ones();
        u8::try_from(if prefix { ones } else { 0 }).unwrap_or(0)
    }

    /// A mask of the first `n` bits of this field.
    fn prefix(self, n: u32) -> FlowMask {
        let bits = u128::MAX.checked_shl(128 - n.min(128)).unwrap_or(0);
        let mut m = FlowMask::default();
        #[allow(clippy::cast_possible_truncation)] // the upper 32 bits
        let v4 = (bits >> 96) as u32;
        let v6 = bits.to_be_bytes();
        let k = &mut m.0;
        match self {
            Self::NwSrc => k.nw_src = v4,
            Self::NwDst => k.nw_dst = v4,
            Self::Ipv6Src => k.ipv6_src = v6,
            Self::Ipv6Dst => k.ipv6_dst = v6,
            Self::TunSrc => k.tun_src = v4,
            Self::TunDst => k.tun_dst = v4,
            Self::TunIpv6Src => k.tun_ipv6_src = v6,
            Self::TunIpv6Dst => k.tun_ipv6_dst = v6,
            Self::CtNwSrc => k.ct_nw_src = v4,
            Self::CtNwDst => k.ct_nw_dst = v4,
            Self::CtIpv6Src => k.ct_ipv6_src = v6,
            Self::CtIpv6Dst => k.ct_ipv6_dst = v6,
        }
        m
    }

    /// The word of the key where the field begins, for choosing the stage that it belongs to.
    pub(crate) fn first_word(self) -> u8 {
        let all = MiniMask::new(&self.prefix(128));
        all.words().first().map_or(0, |w| w.0)
    }

    /// Adds the first `n` bits to `wc`.
    #[cold]
    fn add_prefix(self, wc: &mut FlowMask, n: u32) {
        wc.add(&self.prefix(n));
    }

    /// Whether `wc` has the first `n` bits already.
    fn has_prefix(self, wc: &FlowMask, n: u32) -> bool {
        self.value(&wc.0).0.leading_ones() >= n
    }
}

#[derive(Debug)]
enum AnyTrie {
    V4(Trie<1>),
    V6(Trie<4>),
}

/// The prefixes of one field in a table.
#[derive(Debug)]
pub(crate) struct Tracked {
    pub(crate) field: PrefixField,
    trie: AnyTrie,
}

fn words4(v: u128) -> [u32; 4] {
    #[allow(clippy::cast_possible_truncation)] // cut on purpose
    core::array::from_fn(|i| (v >> (96 - 32 * i)) as u32)
}

impl Tracked {
    pub(crate) fn new(field: PrefixField) -> Self {
        let trie = match field.member(&FlowKey::default()) {
            Member::V4(_) => AnyTrie::V4(Trie::default()),
            Member::V6(_) => AnyTrie::V6(Trie::default()),
        };
        Self { field, trie }
    }
    fn lookup(&self, key: &FlowKey) -> Found {
        let (value, _) = self.field.value(key);
        match &self.trie {
            AnyTrie::V4(t) => t.lookup(&[words4(value)[0]]),
            AnyTrie::V6(t) => t.lookup(&words4(value)),
        }
    }
    /// A rule that asks for `len` bits of the field comes, with these values.
    pub(crate) fn insert(&self, values: &FlowKey, len: u8) {
        let (value, _) = self.field.value(values);
        match &self.trie {
            AnyTrie::V4(t) => t.insert(&[words4(value)[0]], len.into()),
            AnyTrie::V6(t) => t.insert(&words4(value), len.into()),
        }
    }
    /// ... and goes.
    pub(crate) fn remove(&self, values: &FlowKey, len: u8) {
        let (value, _) = self.field.value(values);
        match &self.trie {
            AnyTrie::V4(t) => t.remove(&[words4(value)[0]], len.into()),
            AnyTrie::V6(t) => t.remove(&words4(value), len.into()),
        }
    }
}

/// Most fields that one table tracks, as in Open vSwitch.
pub(crate) const MAX_TRACKED: usize = 3;

/// What one lookup has asked the tries so far.
pub(crate) struct Tries<'a> {
    tracked: &'a [Tracked],
    found: [Option<Found>; MAX_TRACKED],
}

impl<'a> Tries<'a> {
    pub(crate) fn new(tracked: &'a [Tracked]) -> Self {
        Self {
            tracked,
            found: [None; MAX_TRACKED],
        }
    }

    /// Whether no rule that asks for `lengths` bits of the fields that begin in words below `end`, and not below `begin`, can
    /// match. Then the bits that say so are in `wc`.
    pub(crate) fn rule_out(
        &mut self,
        lengths: &[u8; N_FIELDS],
        words: core::ops::Range<u8>,
        key: &FlowKey,
        wc: &mut FlowMask,
    ) -> bool {
        for (t, found) in self.tracked.iter().zip(&mut self.found) {
            let asks = u32::from(lengths[t.field as usize]);
            if asks == 0 || !words.contains(&t.field.first_word()) {
                continue;
            }
            let found = *found.get_or_insert_with(|| t.lookup(key));
            if found.has(asks) {
                continue;
            }
            // The trie knows prefixes of rules that have nothing to do with this packet, too: it must not ask for more bits than
            // the subtable itself would.
            if t.field.has_prefix(wc, found.bits) {
                return true;
            }
            if found.bits <= asks {
                t.field.add_prefix(wc, found.bits);
                return true;
            }
        }
        false
    }
}
