//! One connection: 192 bytes of atomic words, in the order in which packets need them.
//!
//! | line | words | what | who writes it |
//! | --- | --- | --- | --- |
//! | 0 | 0–4 | zone, protocol, flags, generation; both tuples' ports; IPv4 addresses | its maker |
//! | | 5 | state: whether it is in use or dead, what UDP and ICMP have seen, the label's count | CAS |
//! | | 6 | when it expires | packets, once a second |
//! | | 7 | mark; place and generation of the timeout policy | CAS |
//! | 1 | 8–9 | the rest of IPv6 addresses | its maker |
//! | | 10–11 | label, where its count is even | under a bit of word 5 |
//! | | 12–14 | TCP: sequence numbers; windows, scales, states and their lock | under a bit of word 14 |
//! | | 15 | zone limit that it counts under; helper | its maker, CAS |
//! | 2 | 16–19 | IPv6 addresses of the answers, where they were translated | its maker |
//! | | 20–23 | the connection that announced it | its maker |
//! | | 20–21 | or, of one that announces others: how its directions are shifted | CAS |
//! | | 22–23 | label, where its count is odd | under a bit of word 5 |
//!
//! So an established packet of UDP over IPv4 reads one line and writes none, and one of TCP writes line 1.
//!
//! **Labels** have 128 bits and two places. A writer, under a lock, fills the place that does not count, and
//! one exchange of the state word makes it count and unlocks. So nobody reads half of a label, and readers
//! wait for no writer, also where the system has put one aside in the midst. A connection that was announced
//! keeps the label that it was made with, so that its announcer's addresses may lie in the second place.
//!
//! **Life.** A free record has a state word of zero. Its maker fills it, then makes it [`USED`], then enters
//! it into the index. Who finds that it has expired, or wants it gone, makes it [`DEAD`], once; the sweeper
//! takes a dead one out of the index, and gives its number back when all who read then have ended
//! ([`heddle_sync::ReadGuard`]). So what a packet has found stays what it is as long as it looks at it. Each
//! use has a generation of its own, by which those who kept a number know whether it is still the same.

use crate::atomic::{AtomicU64, FromZeros, fence, spin_loop};
use crate::hash::{Hash, Keys, halves};
use crate::helper::Skew;
use crate::offloaded::{LOOSE, OFFLOADED};
use crate::rewrite::Ends4;
use crate::tcp::{Peer, Scale, State};
use crate::tuple::{Endpoint, Tuple};
use heddle_simd::simd;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// See the module's text.
#[derive(Debug, FromZeros)]
#[repr(C, align(64))]
pub(crate) struct Record {
    w: [AtomicU64; 24],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Record>() == 192);

/// Flag of word 0: IPv6.
const IPV6: u64 = 1;
/// Flag: the source of the original direction is translated.
pub(crate) const SNAT: u64 = 1 << 1;
/// Flag: the destination of the original direction is translated.
pub(crate) const DNAT: u64 = 1 << 2;
/// Flag: another connection announced it.
pub(crate) const RELATED: u64 = 1 << 3;
/// Flag: it was committed with this helper.
pub(crate) const FTP: u64 = 1 << 4;
/// Flag: it was committed with this helper.
pub(crate) const TFTP: u64 = 1 << 5;
/// Flag: its packets are looked at by the helper. It is not [`RELATED`].
pub(crate) const CONTROL: u64 = 1 << 6;
const FLAGS: u64 = 0xff;
/// What of word 0 belongs to the key.
const KEY: u64 = 0xffff_ffff_0000_0000 & !(0xff << 32) | IPV6 << 32;

/// State: in use.
pub(crate) const USED: u64 = 1;
/// State: over; nobody may find it.
pub(crate) const DEAD: u64 = 1 << 1;
/// State: a label is being written, into the place that does not count.
const LABEL_LOCK: u64 = 1 << 2;
/// State: there is a label, or was.
const LABELLED: u64 = 1 << 3;
/// State: what was seen of UDP, ICMP and others.
const PHASE: u32 = 4;
const PHASE_MASK: u64 = 3 << PHASE;
// Bits 6 and 7: see [`crate::offloaded`].
/// State: counts labels written. Its lowest bit says in which place the label is.
const LABEL_COUNT: u32 = 16;
/// How often a label is read anew because another was written meanwhile. The model checker's few writers show
/// that each such time one of them was done, so that none can keep a reader by being put aside.
const LABEL_TRIES: usize = if cfg!(loom) { 3 } else { usize::MAX };

/// Of word 14.
const TCP_LOCK: u64 = 1 << 63;
/// Attempts at the lock of a connection, a few microseconds.
const SPINS: u32 = 1024;

/// What was seen of a connection without states of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Phase {
    /// One packet.
    First = 0,
    /// Several, one way.
    Single = 1,
    /// Both ways.
    Both = 2,
}

impl Phase {
    fn of_state(state: u64) -> Self {
        match (state & PHASE_MASK) >> PHASE {
            0 => Self::First,
            1 => Self::Single,
            _ => Self::Both,
        }
    }
}

/// A tuple as words to compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Key {
    word: u64,
    ports: u64,
    src: [u64; 2],
    dst: [u64; 2],
    ipv6: bool,
}

impl Key {
    #[inline]
    pub(crate) fn new(t: &Tuple, zone: u16) -> Self {
        let head = u64::from(zone) << 48 | u64::from(t.proto) << 40 | (if t.ipv6 { IPV6 << 32 } else { 0 });
        Self {
            word: head,
            ports: ports(t),
            src: if t.ipv6 { halves(t.src.addr) } else { [pair(t), 0] },
            dst: if t.ipv6 { halves(t.dst.addr) } else { [0; 2] },
            ipv6: t.ipv6,
        }
    }
    /// Of IPv4, in zone 0: both addresses in one word, both ports in one, those of the source first.
    #[inline]
    pub(crate) fn of4(proto: u8, addrs: u64, src: u16, dst: u16) -> Self {
        Self {
            word: u64::from(proto) << 40,
            ports: u64::from(src) << 32 | u64::from(dst),
            src: [addrs, 0],
            dst: [0; 2],
            ipv6: false,
        }
    }
    /// Of IPv6, in zone 0.
    #[inline]
    pub(crate) fn of6(proto: u8, [a, b, c, d]: [u64; 4], src: u16, dst: u16) -> Self {
        Self {
            word: u64::from(proto) << 40 | IPV6 << 32,
            ports: u64::from(src) << 32 | u64::from(dst),
            src: [a, b],
            dst: [c, d],
            ipv6: true,
        }
    }
    #[inline]
    pub(crate) fn in_zone(mut self, zone: u16) -> Self {
        self.word = self.word & !(0xffff << 48) | u64::from(zone) << 48;
        self
    }
    pub(crate) fn is_v6(&self) -> bool {
        self.ipv6
    }
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // a byte is wanted
    pub(crate) fn proto(&self) -> u8 {
        (self.word >> 40) as u8
    }
    /// As [`Keys::hash`] of the tuple.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // halves
    pub(crate) fn hash(&self, keys: &Keys, zone: u16) -> Hash {
        if self.ipv6 {
            let (src, dst) = ((self.ports >> 32) as u32, self.ports as u32);
            return keys.hash6((self.src, src), (self.dst, dst), self.proto(), zone);
        }
        let Ends4 { src, dst } = self.ends4();
        keys.hash4(src, dst, self.proto(), zone)
    }
    /// The ends, of IPv4.
    #[inline]
    pub(crate) fn ends4(&self) -> Ends4 {
        let addrs = self.src[0];
        Ends4 {
            src: addrs & !0xffff_ffff | self.ports >> 32,
            dst: addrs << 32 | self.ports & 0xffff_ffff,
        }
    }
    pub(crate) fn tuple(&self) -> Tuple {
        let join = |[hi, lo]: [u64; 2]| u128::from(hi) << 64 | u128::from(lo);
        let (src, dst) = if self.ipv6 {
            (join(self.src), join(self.dst))
        } else {
            let addrs = u128::from(self.src[0]);
            (addrs >> 32, addrs & 0xffff_ffff)
        };
        let end = |addr, port: u64| Endpoint {
            addr,
            l4: (port & 0xffff_ffff) as u32,
        };
        Tuple {
            src: end(src, self.ports >> 32),
            dst: end(dst, self.ports),
            proto: self.proto(),
            ipv6: self.ipv6,
        }
    }
}

#[inline]
fn ports(t: &Tuple) -> u64 {
    u64::from(t.src.l4) << 32 | u64::from(t.dst.l4)
}

/// Both addresses of IPv4.
#[inline]
#[allow(clippy::cast_possible_truncation)] // IPv4
fn pair(t: &Tuple) -> u64 {
    u64::from(t.src.addr as u32) << 32 | u64::from(t.dst.addr as u32)
}

/// See [`Record::usual`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usual {
    pub(crate) generation: u32,
    pub(crate) flags: u64,
    pub(crate) reply: bool,
    pub(crate) expires_ms: u64,
    pub(crate) mark: u32,
    pub(crate) policy: u32,
    /// Labels written.
    pub(crate) label: u32,
}

/// What a record is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct New {
    pub(crate) zone: u16,
    pub(crate) orig: Tuple,
    pub(crate) reply: Tuple,
    /// All but that of IPv6.
    pub(crate) flags: u64,
    pub(crate) expires_ms: u64,
    pub(crate) policy: u32,
    pub(crate) mark: u32,
    pub(crate) label: u128,
    pub(crate) tcp: [Peer; 2],
    /// Word 15: see [`crate::zones`].
    pub(crate) admission: u64,
    pub(crate) parent: Option<Tuple>,
}

impl Record {
    #[inline]
    fn get(&self, i: usize) -> u64 {
        self.w[i].load(Relaxed)
    }
    fn put(&self, i: usize, v: u64) {
        self.w[i].store(v, Relaxed);
    }
    /// Fetches what packets read; `all`: also what those of UDP over IPv4 do without.
    #[inline]
    pub(crate) fn prefetch(&self, all: bool) {
        simd::prefetch(&self.w[0]);
        if all {
            simd::prefetch(&self.w[8]);
        }
    }

    /// Has the kernel give it memory.
    pub(crate) fn populate(&self) {
        // A write that changes nothing, whoever writes beside it; compilers make no read of it.
        let word = self.get(0);
        let _ = self.w[0].compare_exchange(word, word, Relaxed, Relaxed);
    }

    /// All words of the record, as shared numbers.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        &self.w
    }

    /// Fills a free record; no other thread sees it before [`Record::publish`]. Returns its new generation,
    /// which is above `past`.
    #[allow(clippy::cast_possible_truncation)] // the low half
    pub(crate) fn fill(&self, n: &New, past: u32) -> u32 {
        let generation = (self.get(0) as u32).max(past).wrapping_add(1);
        let key = Key::new(&n.orig, n.zone);
        self.put(0, key.word | (n.flags & FLAGS) << 32 | u64::from(generation));
        self.put(1, key.ports);
        self.put(2, ports(&n.reply));
        self.put(3, key.src[0]);
        if key.ipv6 {
            self.put(4, key.src[1]);
            self.put(8, key.dst[0]);
            self.put(9, key.dst[1]);
            let [a, b] = halves(n.reply.src.addr);
            let [c, d] = halves(n.reply.dst.addr);
            [a, b, c, d]
                .into_iter()
                .zip(16..)
                .for_each(|(v, i)| self.put(i, v));
        } else {
            self.put(4, pair(&n.reply));
        }
        self.put(6, n.expires_ms);
        self.put(7, u64::from(n.mark) << 32 | u64::from(n.policy));
        let [hi, lo] = halves(n.label);
        self.put(10, hi);
        self.put(11, lo);
        self.put_tcp(&n.tcp);
        self.put(15, n.admission);
        if n.flags & CONTROL != 0 {
            self.put(20, 0);
            self.put(21, 0);
        }
        if let Some(p) = n.parent {
            let [a, b] = halves(p.src.addr);
            let [c, d] = halves(p.dst.addr);
            [a, b, c, d]
                .into_iter()
                .zip(20..)
                .for_each(|(v, i)| self.put(i, v));
            // Ports have 16 bits; who announces connections has ports.
            self.put(
                15,
                n.admission | u64::from(p.src.l4 & 0xffff) << 16 | u64::from(p.dst.l4 & 0xffff),
            );
        }
        generation
    }
    /// Lets scanners see it.
    pub(crate) fn publish(&self, labelled: bool) {
        // Release pairs with the Acquire in `state`.
        self.w[5].store(USED | if labelled { LABELLED } else { 0 }, Release);
    }
    /// Makes it free again. Nobody reads it any more.
    pub(crate) fn free(&self) {
        self.w[5].store(0, Release);
    }
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // the low half
    pub(crate) fn generation(&self) -> u32 {
        self.get(0) as u32
    }
    #[inline]
    pub(crate) fn zone(&self) -> u16 {
        (self.get(0) >> 48) as u16
    }
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // bits are picked on purpose
    pub(crate) fn proto(&self) -> u8 {
        (self.get(0) >> 40) as u8
    }
    #[inline]
    pub(crate) fn flags(&self) -> u64 {
        (self.get(0) >> 32) & FLAGS
    }
    fn ipv6(&self) -> bool {
        self.flags() & IPV6 != 0
    }
    /// Whether packets with this tuple are its own: `Some(true)`, answers.
    #[inline]
    pub(crate) fn direction(&self, k: &Key) -> Option<bool> {
        if (self.get(0) ^ k.word) & KEY != 0 {
            return None;
        }
        if self.get(1) == k.ports && self.is_orig(k) {
            return Some(false);
        }
        (self.get(2) == k.ports && self.is_reply(k)).then_some(true)
    }
    /// What a packet with this key, of UDP over IPv4, has to know of a connection whose both ends have
    /// spoken, which nobody announced, and which announces no other. `None`: of any other one.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // halves
    pub(crate) fn usual(&self, k: &Key, zone: u16) -> Option<Usual> {
        /// What is not usual of word 0 beside the key.
        const ODD: u64 = (RELATED | CONTROL) << 32;
        const WANTED: u64 = USED | (Phase::Both as u64) << PHASE;
        let (head, word) = (self.get(0), k.word | u64::from(zone) << 48);
        let state = self.state();
        // Of IPv6 there is more to compare.
        let other = k.ipv6 || (head ^ word) & (KEY | ODD) != 0;
        if other || state & (USED | DEAD | PHASE_MASK) != WANTED {
            return None;
        }
        let reply = if self.get(1) == k.ports && self.get(3) == k.src[0] {
            false
        } else if self.get(2) == k.ports && self.get(4) == k.src[0] {
            true
        } else {
            return None;
        };
        let last = self.get(7);
        Some(Usual {
            generation: head as u32,
            flags: head >> 32 & FLAGS,
            reply,
            expires_ms: self.get(6),
            mark: (last >> 32) as u32,
            policy: last as u32,
            label: (state >> LABEL_COUNT) as u32,
        })
    }
    #[inline]
    fn is_orig(&self, k: &Key) -> bool {
        self.get(3) == k.src[0]
            && (!k.ipv6 || [self.get(4), self.get(8), self.get(9)] == [k.src[1], k.dst[0], k.dst[1]])
    }
    #[inline]
    fn is_reply(&self, k: &Key) -> bool {
        if !k.ipv6 {
            return self.get(4) == k.src[0];
        }
        let reply = if self.flags() & (SNAT | DNAT) == 0 {
            [self.get(8), self.get(9), self.get(3), self.get(4)]
        } else {
            [16, 17, 18, 19].map(|i| self.get(i))
        };
        reply == [k.src[0], k.src[1], k.dst[0], k.dst[1]]
    }
    fn tuple_of(&self, ports: u64, addrs: [u64; 4]) -> Tuple {
        let join = |hi: u64, lo: u64| u128::from(hi) << 64 | u128::from(lo);
        let [a, b, c, d] = addrs;
        Tuple {
            src: Endpoint {
                addr: join(a, b),
                l4: (ports >> 32) as u32,
            },
            dst: Endpoint {
                addr: join(c, d),
                l4: (ports & 0xffff_ffff) as u32,
            },
            proto: self.proto(),
            ipv6: self.ipv6(),
        }
    }
    /// The tuple of the direction in which it began.
    pub(crate) fn orig(&self) -> Tuple {
        let addrs = if self.ipv6() {
            [3, 4, 8, 9].map(|i| self.get(i))
        } else {
            [0, self.get(3) >> 32, 0, self.get(3) & 0xffff_ffff]
        };
        self.tuple_of(self.get(1), addrs)
    }
    /// The tuple of answers.
    pub(crate) fn reply(&self) -> Tuple {
        let addrs = if self.ipv6() {
            [16, 17, 18, 19].map(|i| self.get(i))
        } else {
            [0, self.get(4) >> 32, 0, self.get(4) & 0xffff_ffff]
        };
        self.tuple_of(self.get(2), addrs)
    }
    /// What packets of a direction of a translated connection over IPv4 get for their ends: the reverse of
    /// what comes back.
    #[inline]
    pub(crate) fn translated4(&self, reply: bool) -> Ends4 {
        let (ports, addrs) = if reply { (1, 3) } else { (2, 4) };
        let (ports, addrs) = (self.get(ports), self.get(addrs));
        Ends4 {
            src: addrs << 32 | ports & 0xffff_ffff,
            dst: addrs & !0xffff_ffff | ports >> 32,
        }
    }
    /// That of the connection that announced it.
    pub(crate) fn parent(&self) -> Option<Tuple> {
        let w = self.get(15);
        let ports = (w >> 16 & 0xffff) << 32 | w & 0xffff;
        let addrs = [20, 21, 22, 23].map(|i| self.get(i));
        (self.flags() & RELATED != 0).then(|| self.tuple_of(ports, addrs))
    }
    /// By how much a direction is shifted; only of one that is [`CONTROL`].
    pub(crate) fn skew(&self, reply: bool) -> Skew {
        if self.flags() & CONTROL == 0 {
            return Skew::default();
        }
        Skew(self.get(20 + usize::from(reply)))
    }
    /// The segment at `seq` of a direction has become longer by `n`. `false`: too much.
    pub(crate) fn skew_more(&self, reply: bool, seq: u32, n: i32) -> bool {
        let place = 20 + usize::from(reply);
        let more = |w: u64| Skew(w).with(seq, n).map(|s| s.0);
        self.flags() & CONTROL != 0 && self.w[place].fetch_update(Relaxed, Relaxed, more).is_ok()
    }
    pub(crate) fn admission(&self) -> u64 {
        self.get(15)
    }

    /// See the constants.
    #[inline]
    pub(crate) fn state(&self) -> u64 {
        self.w[5].load(Acquire) // pairs with `publish` and `set_label`
    }
    #[inline]
    pub(crate) fn expires_ms(&self) -> u64 {
        self.get(6)
    }
    /// Whether a packet may find it.
    #[inline]
    pub(crate) fn is_alive(&self, now_ms: u64) -> bool {
        self.state() & (USED | DEAD) == USED && now_ms < self.expires_ms()
    }
    /// Lets it live until then. What differs by less than a second is not written. `true`: it lives shorter
    /// than before.
    #[inline]
    pub(crate) fn touch(&self, expires_ms: u64) -> bool {
        let before = self.expires_ms();
        if before.abs_diff(expires_ms) < 1000 {
            return false;
        }
        self.put(6, expires_ms); // any of two packets' times will do
        expires_ms < before
    }
    /// Ends it. `false`: it was over already.
    pub(crate) fn kill(&self) -> bool {
        let was = self.w[5].fetch_or(DEAD, AcqRel);
        was & (USED | DEAD) == USED
    }
    /// What UDP or ICMP have seen.
    pub(crate) fn phase(&self) -> Phase {
        Phase::of_state(self.state())
    }
    /// Sets a bit of the state. `false`: it was set.
    pub(crate) fn set_state(&self, bit: u64) -> bool {
        self.w[5].fetch_or(bit, AcqRel) & bit == 0
    }
    /// Clears a bit of the state.
    pub(crate) fn clear_state(&self, bit: u64) {
        self.w[5].fetch_and(!bit, AcqRel);
    }
    /// A back end has it no more.
    pub(crate) fn comes_back(&self) {
        self.set_state(LOOSE);
        self.clear_state(OFFLOADED);
    }
    /// Takes note of a packet; gives what was seen before, and now.
    #[inline]
    pub(crate) fn advance(&self, step: impl Fn(Phase) -> Phase) -> (Phase, Phase) {
        let mut state = self.state();
        loop {
            let before = Phase::of_state(state);
            let after = step(before);
            if after == before {
                return (before, after);
            }
            let next = state & !PHASE_MASK | (after as u64) << PHASE;
            match self.w[5].compare_exchange_weak(state, next, AcqRel, Acquire) {
                Ok(_) => return (before, after),
                Err(now) => state = now,
            }
        }
    }

    #[inline]
    pub(crate) fn mark(&self) -> u32 {
        (self.get(7) >> 32) as u32
    }
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // the low half
    pub(crate) fn policy(&self) -> u32 {
        self.get(7) as u32
    }
    /// Writes the mark's bits of `mask`; gives the mark.
    pub(crate) fn set_mark(&self, value: u32, mask: u32) -> u32 {
        let set = |w: u64| (w >> 32) as u32 & !mask | value & mask;
        let update = |w: u64| {
            let next = u64::from(set(w)) << 32 | w & 0xffff_ffff;
            (next != w).then_some(next)
        };
        let (Ok(w) | Err(w)) = self.w[7].fetch_update(Relaxed, Relaxed, update);
        set(w)
    }
    /// Counts the labels that were written.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // 2^32 labels are enough to tell two apart
    pub(crate) fn label_count(&self) -> u32 {
        (self.state() >> LABEL_COUNT) as u32
    }
    /// The words of the label, by its count.
    fn label_at(&self, place: u64) -> u128 {
        let i = if place & 1 == 0 { 10 } else { 22 };
        u128::from(self.get(i)) << 64 | u128::from(self.get(i + 1))
    }
    /// The label.
    #[inline]
    pub(crate) fn label(&self) -> u128 {
        let mut state = self.state();
        if state & LABELLED == 0 {
            return 0;
        }
        for _ in 0..LABEL_TRIES {
            let count = state >> LABEL_COUNT;
            let label = self.label_at(count);
            // Pairs with the fence in `set_label`: who has read a word that a later label is made of sees
            // that this one counts no more.
            fence(Acquire);
            state = self.state();
            if state >> LABEL_COUNT == count {
                return label;
            }
        }
        unreachable!("more labels were written than there are counts")
    }
    /// Writes the label's bits of `mask`; gives the label. `None`: another writer was put aside by the system
    /// in the midst, or the label of this connection stays what it is; nothing was written.
    pub(crate) fn set_label(&self, value: u128, mask: u128) -> Option<u128> {
        let now = self.label();
        if now == now & !mask | value & mask {
            return Some(now);
        }
        if self.flags() & RELATED != 0 {
            return None;
        }
        for _ in 0..SPINS {
            let state = self.w[5].load(Relaxed);
            // Acquire pairs with the Release below: what is written over was written before.
            if state & LABEL_LOCK == 0
                && self.w[5]
                    .compare_exchange_weak(state, state | LABEL_LOCK, Acquire, Relaxed)
                    .is_ok()
            {
                let count = state >> LABEL_COUNT;
                let label = self.label_at(count) & !mask | value & mask;
                let [hi, lo] = halves(label);
                let i = if count & 1 == 0 { 22 } else { 10 };
                // Pairs with the fence in `label`.
                fence(Release);
                self.put(i, hi);
                self.put(i + 1, lo);
                // The lock's bit goes, "labelled" comes, and the count grows, in one step, whatever others do
                // to other bits.
                let done = |s: u64| Some((s & !LABEL_LOCK | LABELLED).wrapping_add(1 << LABEL_COUNT));
                // Release pairs with the Acquire in `state`: who sees the count sees the label.
                let _ = self.w[5].fetch_update(Release, Relaxed, done);
                return Some(label);
            }
            spin_loop();
        }
        None
    }

    fn put_tcp(&self, p: &[Peer; 2]) {
        let word = |p: &Peer| u64::from(p.lo) << 32 | u64::from(p.hi);
        self.put(12, word(&p[0]));
        self.put(13, word(&p[1]));
        self.put(14, windows(p));
    }
    fn take_tcp(&self, windows: u64) -> [Peer; 2] {
        let peer = |w: u64, shift: u32| Peer {
            lo: (w >> 32) as u32,
            hi: (w & 0xffff_ffff) as u32,
            window: (windows >> shift & 0xffff) as u16,
            scale: match windows >> (shift + 16) & 0x3f {
                0 => Scale::None,
                0x20 => Scale::Unknown,
                s => Scale::Known((s & 0xf) as u8),
            },
            state: State::from_bits(windows >> (shift + 22)),
        };
        [peer(self.get(12), 0), peer(self.get(13), 26)]
    }
    /// Both ends, for those who print: each is what it was at some time.
    pub(crate) fn peers(&self) -> [Peer; 2] {
        self.take_tcp(self.get(14))
    }
    /// Changes both ends under the lock of the connection. `None`: who has it was put aside by the system.
    #[inline]
    pub(crate) fn with_peers<R>(&self, change: impl FnOnce(&mut [Peer; 2]) -> R) -> Option<R> {
        for _ in 0..SPINS {
            let word = self.w[14].load(Relaxed);
            // Acquire pairs with the Release below.
            if word & TCP_LOCK == 0
                && self.w[14]
                    .compare_exchange_weak(word, word | TCP_LOCK, Acquire, Relaxed)
                    .is_ok()
            {
                let mut peers = self.take_tcp(word);
                let result = change(&mut peers);
                let word = |p: &Peer| u64::from(p.lo) << 32 | u64::from(p.hi);
                self.put(12, word(&peers[0]));
                self.put(13, word(&peers[1]));
                self.w[14].store(windows(&peers), Release);
                return Some(result);
            }
            spin_loop();
        }
        None
    }
}

/// Word 14: windows, scales and states, 26 bits for each end.
fn windows(p: &[Peer; 2]) -> u64 {
    let end = |p: &Peer| {
        let scale = match p.scale {
            Scale::None => 0,
            Scale::Unknown => 0x20,
            Scale::Known(s) => 0x10 | u64::from(s & 0xf),
        };
        u64::from(p.window) | scale << 16 | (p.state as u64) << 22
    };
    end(&p[0]) | end(&p[1]) << 26
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ends_survive_their_words() {
        let r = Record::new_zeroed();
        let peer = |scale, state| Peer {
            lo: u32::MAX,
            hi: 5,
            window: 0xffff,
            scale,
            state,
        };
        let all = [
            [
                peer(Scale::Known(14), State::TimeWait),
                peer(Scale::Known(0), State::Closed),
            ],
            [
                peer(Scale::Unknown, State::SynSent),
                peer(Scale::None, State::Closing),
            ],
            [
                peer(Scale::None, State::FinWait2),
                peer(Scale::Unknown, State::Established),
            ],
        ];
        for peers in all {
            r.put_tcp(&peers);
            assert_eq!(r.peers(), peers);
            assert_eq!(r.with_peers(|p| *p), Some(peers));
            assert_eq!(r.peers(), peers);
        }
        r.w[14].fetch_or(TCP_LOCK, Relaxed);
        assert_eq!(r.with_peers(|_| ()), None);
    }

    #[test]
    fn labels_are_read_whole() {
        let r = Record::new_zeroed();
        r.publish(false);
        std::thread::scope(|s| {
            for n in 1..3 {
                let r = &r;
                s.spawn(move || {
                    for i in 0..5000u64 {
                        let v = i * 2 + n;
                        r.set_label(u128::from(v) << 64 | u128::from(v), u128::MAX);
                    }
                });
            }
            for _ in 0..20_000 {
                let l = r.label();
                assert_eq!(l >> 64, l & u128::from(u64::MAX));
            }
        });
        assert_eq!(r.set_label(0xff, 0xf), Some((r.label() >> 4 << 4) | 0xf));
    }

    /// A writer that the system has put aside keeps nobody from reading, and another writer not for long.
    #[test]
    fn a_writer_put_aside_stops_no_reader() {
        let r = Record::new_zeroed();
        r.publish(false);
        for n in 1..4u128 {
            assert_eq!(r.set_label(n << 64 | n, u128::MAX), Some(n << 64 | n));
            // It has the lock, and half of its label is written.
            r.w[5].fetch_or(LABEL_LOCK, Relaxed);
            r.put(if n % 2 == 0 { 22 } else { 10 }, 99);
            assert_eq!(
                (r.label(), r.label_count()),
                (n << 64 | n, u32::try_from(n).unwrap())
            );
            assert_eq!(r.set_label(77, u128::MAX), None);
            assert_eq!(r.label(), n << 64 | n);
            r.w[5].fetch_and(!LABEL_LOCK, Relaxed);
        }
        // Word 22 of one that was announced is an address.
        let announced = Record::new_zeroed();
        announced.put(0, RELATED << 32);
        announced.publish(false);
        assert_eq!(announced.set_label(1, 1), None);
        assert_eq!(announced.get(22), 0);
    }
}
