//! The fields whose prefixes can be tracked, and the tries' results for one lookup.

use crate::trie::{Trie, TrieMatch};
use heddle_flow::{FieldId, FieldValue, FlowKey, FlowMask};

/// A field whose prefixes can be tracked (`Flow_Table.prefixes`): addresses, and the tunnel key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixField {
    id: FieldId,
    /// Index in [`FIELDS`].
    pub(crate) index: u8,
}

/// The number of such fields.
pub(crate) const N_FIELDS: usize = FIELDS.len();

/// All fields whose prefixes can be tracked, as in Open vSwitch.
const FIELDS: [FieldId; 13] = [
    FieldId::Ipv4Src,
    FieldId::Ipv4Dst,
    FieldId::Ipv6Src,
    FieldId::Ipv6Dst,
    FieldId::TunId,
    FieldId::TunSrc,
    FieldId::TunDst,
    FieldId::TunIpv6Src,
    FieldId::TunIpv6Dst,
    FieldId::CtNwSrc,
    FieldId::CtNwDst,
    FieldId::CtIpv6Src,
    FieldId::CtIpv6Dst,
];

impl PrefixField {
    /// All fields that can be tracked.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..).zip(FIELDS).map(|(index, id)| Self { id, index })
    }
    /// The fields that Open vSwitch tracks by default: IPv4 destination and source.
    pub fn default_ones() -> Vec<Self> {
        [FieldId::Ipv4Dst, FieldId::Ipv4Src]
            .into_iter()
            .filter_map(Self::of)
            .collect()
    }
    /// A field, if it can be tracked.
    pub fn of(id: FieldId) -> Option<Self> {
        Self::all().find(|f| f.id == id)
    }
    /// The field itself.
    pub fn id(self) -> FieldId {
        self.id
    }

    fn width(self) -> u32 {
        u32::from(self.id.info().n_bits)
    }

    /// The field as a left-aligned number.
    fn value(self, key: &FlowKey) -> u128 {
        self.id.get(key).as_u128() << (128 - self.width())
    }

    /// The length of the prefix that `mask` has in this field. 0 if the mask has no bits there, or bits that
    /// are no prefix.
    pub(crate) fn length(self, mask: &FlowMask) -> u8 {
        let value = self.value(&mask.0);
        let ones = value.leading_ones();
        let prefix = ones == value.count_ones();
        u8::try_from(if prefix { ones } else { 0 }).unwrap_or(0)
    }

    /// A mask of the first `n` bits of this field.
    fn prefix(self, n: u32) -> FlowMask {
        let bits = u128::MAX.checked_shl(128 - n.min(128)).unwrap_or(0);
        let mut m = FlowMask::default();
        self.id
            .set(&mut m.0, FieldValue::from_u128(bits >> (128 - self.width())));
        m
    }

    /// The index of the field's first word in the key, which selects its stage.
    fn first_word(self) -> u8 {
        let all = self.prefix(128);
        let first = all.words().iter().position(|w| *w != 0);
        first.and_then(|w| u8::try_from(w).ok()).unwrap_or(0)
    }

    /// Adds the first `n` bits to `wc`.
    #[cold]
    fn add_prefix(self, wc: &mut FlowMask, n: u32) {
        wc.add(&self.prefix(n));
    }

    /// Whether `wc` has the first `n` bits already.
    fn has_prefix(self, wc: &FlowMask, n: u32) -> bool {
        self.value(&wc.0).leading_ones() >= n
    }
}

#[derive(Debug)]
enum AnyTrie {
    W32(Trie<1>),
    W64(Trie<2>),
    W128(Trie<4>),
}

/// The prefixes of one field in a table.
#[derive(Debug)]
pub(crate) struct Tracked {
    pub(crate) field: PrefixField,
    /// The index of the field's first word in the key.
    word: u8,
    trie: AnyTrie,
}

/// The first `W` words of a left-aligned number.
fn words<const W: usize>(v: u128) -> [u32; W] {
    #[allow(clippy::cast_possible_truncation)] // cut on purpose
    core::array::from_fn(|i| (v >> (96 - 32 * i)) as u32)
}

impl Tracked {
    pub(crate) fn new(field: PrefixField) -> Self {
        let trie = match field.width() {
            32 => AnyTrie::W32(Trie::default()),
            64 => AnyTrie::W64(Trie::default()),
            _ => AnyTrie::W128(Trie::default()),
        };
        let word = field.first_word();
        Self { field, word, trie }
    }
    fn lookup(&self, key: &FlowKey) -> TrieMatch {
        let value = self.field.value(key);
        match &self.trie {
            AnyTrie::W32(t) => t.lookup(&words(value)),
            AnyTrie::W64(t) => t.lookup(&words(value)),
            AnyTrie::W128(t) => t.lookup(&words(value)),
        }
    }
    /// The number of nodes that memory is allocated for.
    pub(crate) fn nodes(&self) -> usize {
        match &self.trie {
            AnyTrie::W32(t) => t.nodes(),
            AnyTrie::W64(t) => t.nodes(),
            AnyTrie::W128(t) => t.nodes(),
        }
    }
    /// Adds a rule that matches the first `len` bits of the field, with these values.
    pub(crate) fn insert(&self, values: &FlowKey, len: u8) {
        let value = self.field.value(values);
        match &self.trie {
            AnyTrie::W32(t) => t.insert(&words(value), len.into()),
            AnyTrie::W64(t) => t.insert(&words(value), len.into()),
            AnyTrie::W128(t) => t.insert(&words(value), len.into()),
        }
    }
    /// Removes a rule that was added with these arguments.
    pub(crate) fn remove(&self, values: &FlowKey, len: u8) {
        let value = self.field.value(values);
        match &self.trie {
            AnyTrie::W32(t) => t.remove(&words(value), len.into()),
            AnyTrie::W64(t) => t.remove(&words(value), len.into()),
            AnyTrie::W128(t) => t.remove(&words(value), len.into()),
        }
    }
}

/// Maximum number of fields that one table tracks, as in Open vSwitch.
pub const MAX_TRACKED: usize = 4;

/// The results of the tries so far for one lookup.
pub(crate) struct Tries<'a> {
    tracked: &'a [Tracked],
    found: [Option<TrieMatch>; MAX_TRACKED],
}

impl<'a> Tries<'a> {
    pub(crate) fn new(tracked: &'a [Tracked]) -> Self {
        Self {
            tracked,
            found: [None; MAX_TRACKED],
        }
    }

    /// Whether the tries exclude all rules with prefixes of these lengths. Looks at fields whose first word
    /// is in `words`. If so, `wc` has the bits that prove it.
    pub(crate) fn rule_out(
        &mut self,
        lengths: &[u8; N_FIELDS],
        words: core::ops::Range<u8>,
        key: &FlowKey,
        wc: &mut FlowMask,
    ) -> bool {
        for (t, found) in self.tracked.iter().zip(&mut self.found) {
            let asks = u32::from(lengths[usize::from(t.field.index)]);
            if asks == 0 || !words.contains(&t.word) {
                continue;
            }
            let found = *found.get_or_insert_with(|| t.lookup(key));
            if found.has(asks) {
                continue;
            }
            // The trie has prefixes of rules of other subtables, too. It must not add more bits than the
            // subtable itself would.
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
