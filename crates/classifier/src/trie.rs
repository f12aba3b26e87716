//! Which prefixes of a field the rules ask about: a path-compressed binary trie.
//!
//! **Problem.** A subtable whose rules match a prefix of an address need not be searched for a packet whose
//! address no rule's prefix covers, and to say so takes only as many bits of the address as tell it from all
//! the prefixes there are (Open vSwitch calls this prefix tracking). Fewer bits looked at, wider megaflows.
//!
//! **Shape.** Nodes hold their whole prefix, left aligned in `W` words, and the number of rules that end
//! there. They lie in chunks that never move, and are named by number.
//!
//! **Threads.** Any number of readers without locks, one writer (a mutex serialises). All fields are atomics.
//! New nodes are complete before one store links them, so that a reader finds the trie before it or after it.
//! Only a change that uses or frees a node that a reader may stand on makes the sequence number odd while it
//! lasts, and a reader that saw it move looks again. After a few tries, or when the trie has grown past its
//! limit, the answer is the safe one: every length may be there, all bits count.
//!
//! **Costs.** A lookup visits at most one node per distinct length on the way; an insertion makes at most two
//! nodes of `4 W + 16` bytes.

use crate::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Mutex, OnceLock, PoisonError};

/// No node.
const NIL: u32 = u32::MAX;
/// Nodes in the first chunk; each further chunk doubles.
const FIRST: u32 = 8;
const CHUNKS: usize = 16;
/// Most nodes: beyond, the trie stops telling prefixes apart, and memory stays bounded.
const LIMIT: u32 = 1 << 18;
/// How often a reader looks again when writers are at work.
const RETRIES: u32 = 16;

/// What a lookup tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Bit `n - 1` set: some rule asks for exactly the first `n` bits of this value.
    lengths: u128,
    /// So many leading bits of the value lead to this answer.
    pub(crate) bits: u32,
}

impl Found {
    /// Whether some rule asks for exactly the first `n` bits (`n > 0`) of the value looked up.
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

/// What only the writer uses.
#[derive(Debug, Default)]
struct Writer {
    used: u32,
    free: Vec<u32>,
}

/// A trie over values of `W` 32-bit words, most significant bit first.
#[derive(Debug)]
pub(crate) struct Trie<const W: usize> {
    root: AtomicU32,
    /// Odd while a change is under way.
    sequence: AtomicU64,
    /// It grew past its limit and is no longer kept.
    full: AtomicBool,
    chunks: [OnceLock<Box<[Node<W>]>>; CHUNKS],
    writer: Mutex<Writer>,
}

impl<const W: usize> Default for Trie<W> {
    fn default() -> Self {
        Self {
            root: AtomicU32::new(NIL),
            sequence: AtomicU64::new(0),
            full: AtomicBool::new(false),
            chunks: [const { OnceLock::new() }; CHUNKS],
            writer: Mutex::default(),
        }
    }
}

/// Leading bits that `a` and `b` have in common, at most `most`.
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

/// The chunk that node `id` lies in and its place there.
fn place(id: u32) -> (usize, usize) {
    let n = id / FIRST + 1;
    let chunk = n.ilog2();
    let first = ((1 << chunk) - 1) * FIRST;
    (chunk as usize, (id - first) as usize)
}

impl<const W: usize> Trie<W> {
    #[allow(clippy::cast_possible_truncation)] // W is 1 or 4
    const WIDTH: u32 = 32 * W as u32;
    /// The answer that is never wrong.
    const UNKNOWN: Found = Found {
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

    /// How many nodes there is memory for.
    pub(crate) fn nodes(&self) -> usize {
        self.chunks.iter().filter_map(|c| c.get()).map(|c| c.len()).sum()
    }

    /// Which prefixes of `value` rules ask for, and how many bits tell.
    pub(crate) fn lookup(&self, value: &[u32; W]) -> Found {
        for _ in 0..RETRIES {
            if self.full.load(Relaxed) {
                break;
            }
            let before = self.sequence.load(Acquire); // pairs with the Release that ends `change`
            if before.is_multiple_of(2) {
                let found = self.walk(value);
                // What was read above is read before the number below (pairs with the fence in `change`).
                fence(Acquire);
                if self.sequence.load(Relaxed) == before {
                    return found;
                }
            }
            core::hint::spin_loop();
        }
        Self::UNKNOWN
    }

    fn walk(&self, value: &[u32; W]) -> Found {
        let mut found = Found { lengths: 0, bits: 0 };
        let mut link = self.root.load(Acquire); // here and below: pairs with the Release stores in `insert`
        let mut before: Option<(&Node<W>, u32)> = None;
        // Lengths rise from node to node; a reader that races with a change must end, too.
        for _ in 0..=Self::WIDTH {
            let Some(node) = self.node(link) else {
                // The bit that leads nowhere was looked at only where there was a choice.
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

    /// A rule asks for the first `len` bits of `value`.
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
                // The node's prefix parts from the value (or is longer): something goes between.
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

    /// A rule that was inserted with these arguments is gone.
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

    /// Takes the node at `link`, where no rule ends, out if it has at most one child.
    fn shrink(&self, writer: &mut Writer, link: &AtomicU32) {
        let id = link.load(Relaxed);
        let Some(node) = self.node(id) else { return };
        let [a, b] = [node.child[0].load(Relaxed), node.child[1].load(Relaxed)];
        if a == NIL || b == NIL {
            link.store(if a == NIL { b } else { a }, Relaxed);
            writer.free.push(id);
        }
    }

    /// Runs a change, under the sequence number if it takes nodes away, or uses again those that were; `None`
    /// from it: there is no room, and the trie is given up.
    fn change(&self, takes: bool, f: impl FnOnce(&mut Writer) -> Option<()>) {
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

    /// The plain twin: a list of prefixes. Bits that tell: the fewest such that every value that agrees in
    /// them with `value` has the same prefixes ending on its way.
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
                    // Whatever the other bits are, the answer is the same.
                    let others = noise & u32::MAX.checked_shr(found.bits).unwrap_or(0);
                    prop_assert_eq!(trie.lookup(&[v ^ others]), found);
                }
            }
            for (v, len) in std::mem::take(&mut list) {
                trie.remove(&[v], len);
            }
            prop_assert_eq!(trie.lookup(&[0]), Found { lengths: 0, bits: 0 });
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
