//! The prefixes of a field in all rules: a path-compressed binary trie.
//!
//! **Problem.** A subtable whose rules match a prefix of an address cannot match a packet if none of the
//! prefixes covers its address. The lookup can prove that with the few address bits that separate it from all
//! existing prefixes (Open vSwitch calls this prefix tracking). Fewer bits make wider megaflows.
//!
//! **Shape.** Nodes hold their whole prefix, left aligned in `W` words, and the number of rules that end
//! there. They are stored in chunks that never move, and identified by number.
//!
//! **Threads.** Any number of readers without locks, one writer (a mutex serialises). All fields are atomics.
//! New nodes are complete before one store links them, so that a reader finds the trie before it or after it.
//! A change that frees or reuses nodes makes the sequence number odd while it lasts, and readers that see the
//! number move retry. After some retries, or when the trie is full, a lookup returns the safe result: every
//! length may exist, and all bits count.
//!
//! **Costs.** A lookup visits at most one node per distinct length on its path. An insertion makes at most
//! two nodes of `4 W + 16` bytes.

use crate::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
#[expect(clippy::disallowed_types, reason = "of the writer")]
use std::sync::Mutex;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{OnceLock, PoisonError};

/// No node.
const NIL: u32 = u32::MAX;
/// Nodes in the first chunk; each further chunk doubles.
const FIRST: u32 = 8;
const CHUNKS: usize = 16;
/// Maximum number of nodes. A trie that needs more is given up, so that memory stays bounded.
const LIMIT: u32 = 1 << 18;
/// Maximum number of tries of a reader while writers disturb it.
const RETRIES: u32 = 16;

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrieMatch {
    /// Bit `n - 1` set: some rule matches exactly the first `n` bits of this value.
    lengths: u128,
    /// The number of leading bits of the value that this result depends on.
    pub(crate) bits: u32,
}

impl TrieMatch {
    /// Whether some rule matches exactly the first `n` bits (`n > 0`) of the value looked up.
    pub(crate) fn has(&self, n: u32) -> bool {
        self.lengths >> (n - 1) & 1 != 0
    }
}

#[derive(Debug)]
struct Node<const W: usize> {
    bits: [AtomicU32; W],
    len: AtomicU32,
    rules: AtomicU32,
    child: [AtomicU32; 2],
}

impl<const W: usize> Node<W> {
    fn vacant() -> Self {
        Self {
            bits: core::array::from_fn(|_| AtomicU32::new(0)),
            len: AtomicU32::new(0),
            rules: AtomicU32::new(0),
            child: core::array::from_fn(|_| AtomicU32::new(NIL)),
        }
    }
    fn prefix(&self) -> [u32; W] {
        core::array::from_fn(|i| self.bits[i].load(Relaxed))
    }
}

/// The writer's data.
#[derive(Debug, Default)]
struct Writer {
    used: u32,
    free: Vec<u32>,
}

/// A trie over values of `W` 32-bit words, most significant bit first.
#[derive(Debug)]
pub(crate) struct Trie<const W: usize> {
    root: AtomicU32,
    /// Odd during a change that frees or reuses nodes.
    sequence: AtomicU64,
    /// The trie ran out of nodes, and is no longer maintained.
    full: AtomicBool,
    chunks: [OnceLock<Box<[Node<W>]>>; CHUNKS],
    #[expect(clippy::disallowed_types, reason = "of the writer")]
    writer: Mutex<Writer>,
}

impl<const W: usize> Default for Trie<W> {
    fn default() -> Self {
        Self {
            root: AtomicU32::new(NIL),
            sequence: AtomicU64::new(0),
            full: AtomicBool::new(false),
            chunks: [const { OnceLock::new() }; CHUNKS],
            #[expect(clippy::disallowed_types, reason = "of the writer")]
            writer: Mutex::default(),
        }
    }
}

/// The number of leading bits that `a` and `b` have in common, at most `most`.
fn common<const W: usize>(a: &[u32; W], b: &[u32; W], most: u32) -> u32 {
    let mut n = 0;
    for (x, y) in a.iter().zip(b) {
        let same = (x ^ y).leading_zeros();
        n += same;
        if same < 32 {
            break;
        }
    }
    n.min(most)
}

/// Bit `n` of a value, 0 being the most significant.
fn bit<const W: usize>(value: &[u32; W], n: u32) -> usize {
    let word = value.get((n / 32) as usize).copied().unwrap_or(0);
    (word >> (31 - n % 32) & 1) as usize
}

/// The chunk of node `id`, and its index there.
fn place(id: u32) -> (usize, usize) {
    let n = id / FIRST + 1;
    let chunk = n.ilog2();
    let first = ((1 << chunk) - 1) * FIRST;
    (chunk as usize, (id - first) as usize)
}

impl<const W: usize> Trie<W> {
    #[allow(clippy::cast_possible_truncation)] // W is 1 or 4
    const WIDTH: u32 = 32 * W as u32;
    /// The safe result: any length may exist, and all bits count.
    const UNKNOWN: TrieMatch = TrieMatch {
        lengths: u128::MAX,
        bits: Self::WIDTH,
    };

    fn node(&self, id: u32) -> Option<&Node<W>> {
        if id == NIL {
            return None;
        }
        let (chunk, at) = place(id);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    /// The number of nodes that memory is allocated for.
    pub(crate) fn nodes(&self) -> usize {
        self.chunks.iter().filter_map(|c| c.get()).map(|c| c.len()).sum()
    }

    /// Finds the prefixes of `value` that rules have, and the number of bits that this result depends on.
    pub(crate) fn lookup(&self, value: &[u32; W]) -> TrieMatch {
        for _ in 0..RETRIES {
            if self.full.load(Relaxed) {
                break;
            }
            let before = self.sequence.load(Acquire); // pairs with the Release that ends `change`
            if before.is_multiple_of(2) {
                let found = self.walk(value);
                // The reads above come before the read of the number below (pairs with the fence in
                // `change`).
                fence(Acquire);
                if self.sequence.load(Relaxed) == before {
                    return found;
                }
            }
            core::hint::spin_loop();
        }
        Self::UNKNOWN
    }

    fn walk(&self, value: &[u32; W]) -> TrieMatch {
        let mut found = TrieMatch { lengths: 0, bits: 0 };
        let mut link = self.root.load(Acquire); // here and below: pairs with the Release stores in `insert`
        let mut before: Option<(&Node<W>, u32)> = None;
        // Lengths rise from node to node. The bound ends a walk that races with a change.
        for _ in 0..=Self::WIDTH {
            let Some(node) = self.node(link) else {
                // The bit that leads to no node counts only if there was a choice.
                found.bits = before.map_or(0, |(node, len)| {
                    let leaf = node.child.iter().all(|c| c.load(Relaxed) == NIL);
                    len + u32::from(!leaf)
                });
                return found;
            };
            let len = node.len.load(Relaxed).min(Self::WIDTH);
            let same = common(value, &node.prefix(), len);
            if same < len {
                found.bits = same + 1;
                return found;
            }
            if len > 0 && node.rules.load(Relaxed) > 0 {
                found.lengths |= 1 << (len - 1);
            }
            if len == Self::WIDTH {
                break;
            }
            before = Some((node, len));
            link = node.child[bit(value, len)].load(Acquire);
        }
        found.bits = Self::WIDTH;
        found
    }

    /// Adds a rule that matches the first `len` bits of `value`.
    pub(crate) fn insert(&self, value: &[u32; W], len: u32) {
        self.change(false, |writer| {
            let mut link = &self.root;
            loop {
                let id = link.load(Relaxed);
                let Some(node) = self.node(id) else {
                    let leaf = self.make(writer, value, len, 1)?;
                    link.store(leaf, Release);
                    return Some(());
                };
                let (prefix, has) = (node.prefix(), node.len.load(Relaxed));
                let same = common(value, &prefix, has.min(len));
                if same == has {
                    if has == len {
                        node.rules.fetch_add(1, Relaxed);
                        return Some(());
                    }
                    link = &node.child[bit(value, has)];
                    continue;
                }
                // The node's prefix differs from the value, or is longer: a new node goes between.
                let between = self.make(writer, value, same, u32::from(same == len))?;
                let inner = self.node(between)?;
                inner.child[bit(&prefix, same)].store(id, Relaxed);
                if same < len {
                    let leaf = self.make(writer, value, len, 1)?;
                    inner.child[bit(value, same)].store(leaf, Relaxed);
                }
                link.store(between, Release);
                return Some(());
            }
        });
    }

    /// Removes a rule that was inserted with these arguments.
    pub(crate) fn remove(&self, value: &[u32; W], len: u32) {
        self.change(true, |writer| {
            let mut above: Option<(&AtomicU32, &Node<W>)> = None;
            let mut link = &self.root;
            loop {
                let id = link.load(Relaxed);
                let node = self.node(id)?;
                let has = node.len.load(Relaxed);
                if has < len {
                    above = Some((link, node));
                    link = &node.child[bit(value, has)];
                    continue;
                }
                let left = node.rules.load(Relaxed).checked_sub(1)?;
                node.rules.store(left, Relaxed);
                if left == 0 {
                    self.shrink(writer, link);
                    if let Some((link, node)) = above
                        && node.rules.load(Relaxed) == 0
                    {
                        self.shrink(writer, link);
                    }
                }
                return Some(());
            }
        });
    }

    /// Removes the node at `link`, where no rule ends, if it has at most one child.
    fn shrink(&self, writer: &mut Writer, link: &AtomicU32) {
        let id = link.load(Relaxed);
        let Some(node) = self.node(id) else { return };
        let [a, b] = [node.child[0].load(Relaxed), node.child[1].load(Relaxed)];
        if a == NIL || b == NIL {
            link.store(if a == NIL { b } else { a }, Relaxed);
            writer.free.push(id);
        }
    }

    /// Runs a change. If it frees or reuses nodes, the sequence number is odd meanwhile. If `f` returns
    /// `None`, there is no room, and the trie is given up.
    fn change(&self, takes: bool, f: impl FnOnce(&mut Writer) -> Option<()>) {
        #[expect(clippy::disallowed_methods, reason = "lookups do not call it")]
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if self.full.load(Relaxed) {
            return;
        }
        let disturbs = takes || !writer.free.is_empty();
        if disturbs {
            self.sequence.fetch_add(1, AcqRel);
            // Readers that see any write below see the odd number, too (pairs with the fence in `lookup`).
            fence(Release);
        }
        if f(&mut writer).is_none() {
            self.full.store(true, Relaxed);
        }
        if disturbs {
            self.sequence.fetch_add(1, Release);
        }
    }

    fn make(&self, writer: &mut Writer, value: &[u32; W], len: u32, rules: u32) -> Option<u32> {
        let id = writer.free.pop().or_else(|| {
            (writer.used < LIMIT).then(|| {
                writer.used += 1;
                writer.used - 1
            })
        })?;
        let (chunk, at) = place(id);
        let nodes = self
            .chunks
            .get(chunk)?
            .get_or_init(|| (0..FIRST << chunk).map(|_| Node::vacant()).collect());
        let node = nodes.get(at)?;
        for (i, (to, from)) in (0..).zip(node.bits.iter().zip(value)) {
            let keep = len.saturating_sub(32 * i).min(32);
            let mask = u32::MAX.checked_shl(32 - keep).unwrap_or(0);
            to.store(from & mask, Relaxed);
        }
        node.len.store(len, Relaxed);
        node.rules.store(rules, Relaxed);
        node.child.iter().for_each(|c| c.store(NIL, Relaxed));
        Some(id)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The plain twin: the lengths of all prefixes of `value` in a list.
    fn plain(list: &[(u32, u32)], value: u32) -> u128 {
        list.iter()
            .filter(|(v, n)| common(&[*v], &[value], 32) >= *n)
            .fold(0, |l, (_, n)| l | 1 << (n - 1))
    }

    proptest! {
        #[test]
        fn tells_what_the_list_tells(
            ops in prop::collection::vec((0u32..64, 1u32..=32, any::<bool>(), any::<bool>()), 1..80),
            values in prop::collection::vec((0u32..64, any::<bool>(), any::<u32>()), 1..40),
        ) {
            // Values of few bits at either end, so that prefixes meet.
            let spread = |v: u32, high: bool| if high { v << 26 } else { v };
            let trie = Trie::<1>::default();
            let mut list: Vec<(u32, u32)> = Vec::new();
            for (v, len, high, remove) in ops {
                let v = spread(v, high) & u32::MAX << (32 - len);
                let at = list.iter().position(|x| *x == (v, len));
                match (remove, at) {
                    (true, Some(at)) => {
                        list.swap_remove(at);
                        trie.remove(&[v], len);
                    }
                    _ => {
                        list.push((v, len));
                        trie.insert(&[v], len);
                    }
                }
                for &(v, high, noise) in &values {
                    let v = spread(v, high);
                    let found = trie.lookup(&[v]);
                    prop_assert_eq!(found.lengths, plain(&list, v));
                    // The other bits do not change the result.
                    let others = noise & u32::MAX.checked_shr(found.bits).unwrap_or(0);
                    prop_assert_eq!(trie.lookup(&[v ^ others]), found);
                }
            }
            for (v, len) in std::mem::take(&mut list) {
                trie.remove(&[v], len);
            }
            prop_assert_eq!(trie.lookup(&[0]), TrieMatch { lengths: 0, bits: 0 });
            let w = trie.writer.lock().expect("no panic");
            prop_assert_eq!(w.used as usize, w.free.len(), "no node is lost");
        }
    }

    #[test]
    fn wide_values() {
        let trie = Trie::<4>::default();
        let v = [0x2001_0db8, 1, 2, 3];
        trie.insert(&v, 64);
        trie.insert(&v, 128);
        let found = trie.lookup(&v);
        assert!(found.has(64) && found.has(128) && !found.has(65));
        assert_eq!(found.bits, 128);
        let found = trie.lookup(&[0x2001_0db8, 1, 2, 2]);
        assert!(found.has(64) && !found.has(128));
        assert_eq!(found.bits, 128);
        assert_eq!(trie.lookup(&[0x3001_0db8, 0, 0, 0]).bits, 4);
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes hours")]
    fn gives_up_when_it_has_grown_past_its_limit() {
        let trie = Trie::<1>::default();
        for n in 0..LIMIT {
            trie.insert(&[n.wrapping_mul(0x9e37_79b1)], 32);
        }
        assert_eq!(trie.lookup(&[1]), Trie::<1>::UNKNOWN);
        trie.remove(&[0], 32);
        assert_eq!(trie.lookup(&[1]), Trie::<1>::UNKNOWN);
    }

    #[test]
    fn readers_never_miss_a_prefix_while_others_come_and_go() {
        let trie = std::sync::Arc::new(Trie::<1>::default());
        trie.insert(&[0xc0a8_0000], 16);
        let writer = {
            let trie = trie.clone();
            std::thread::spawn(move || {
                for n in 0..if cfg!(miri) { 50 } else { 50_000_u32 } {
                    let v = n.wrapping_mul(0x9e37_79b1);
                    trie.insert(&[v], 24);
                    trie.insert(&[0xc0a8_0000 | v & 0xff00], 24);
                    trie.remove(&[v], 24);
                    trie.remove(&[0xc0a8_0000 | v & 0xff00], 24);
                }
            })
        };
        while !writer.is_finished() {
            assert!(trie.lookup(&[0xc0a8_1234]).has(16));
        }
        writer.join().expect("writer ends");
        assert_eq!(trie.lookup(&[0xc0a8_1234]).bits, 16);
    }
}
