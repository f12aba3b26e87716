//! One connection: 192 bytes of atomic words, in the order in which packets need them.
//!
//! | line | words | fields | written by |
//! | --- | --- | --- | --- |
//! | 0 | 0 | zone, protocol, flags, generation | maker |
//! | | 1–2 | ports of both tuples | maker |
//! | | 3–4 | addresses: IPv4 all four, IPv6 the first | maker |
//! | | 5 | state: life, packets seen (not TCP), number of labels written | CAS |
//! | | 6 | time of expiry | packets, once a second |
//! | | 7 | mark, timeout policy | CAS |
//! | 1 | 8–9 | IPv6: destination address of the original direction | maker |
//! | | 10–11 | label, if their number is even | under a bit of word 5 |
//! | | 12–14 | TCP: sequence numbers; windows, scales, states | under a bit of word 14 |
//! | | 15 | zone limit; ports of the parent | maker |
//! | 2 | 16–19 | IPv6: addresses of the reply direction | maker |
//! | | 20–23 | overlay: addresses of the parent, or shifts of sequence numbers and label | see [`Overlay`] |
//!
//! An established packet of UDP over IPv4 reads one line and writes none; one of TCP writes line 1.
//!
//! **Labels** have 128 bits and two slots. A writer takes a lock and fills the slot that is not current. Then
//! one exchange of the state word makes this slot current and unlocks. So no thread reads half of a label.
//! Readers never wait for a writer, even if the system has preempted it. A connection that was announced
//! keeps its first label, so that the addresses of its parent may use the second slot.
//!
//! **Life.** A free record has a state word of zero. The maker fills the record, sets [`USED`], then enters
//! it into the index. A thread that ends the connection sets [`DEAD`], once. The connection expiry thread
//! takes a dead record out of the index. It frees the number when all threads that were reading then have
//! finished ([`heddle_sync::ReadGuard`]). So a record that a packet has found stays the same connection for
//! that packet. Each use has a new generation, so that a stored number can be checked later.

use crate::atomic::{AtomicU64, FromZeros, fence, spin_loop};
use crate::protocol::tcp::Peer;
use crate::table::hash::halves;
use crate::table::key::{Head, Key, TranslatedEnds4, addrs4, pair4, ports, tuple};
use crate::table::record_words::{NearAddrs, Overlay, Wide};
use crate::table::skew::Skew;
use crate::table::tcp_words::{MAX_LOCK_TRIES, TcpWords};
use crate::tuple::Tuple;
use heddle_simd::simd;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// One connection, or a free place for one. The module's text has the layout and the rules of writing.
#[derive(Debug, FromZeros)]
#[repr(C, align(64))]
pub(crate) struct Record {
    /// [`Head`].
    head: AtomicU64,
    /// Ports or ICMP identifiers of the original direction: source (upper half), destination.
    orig_ports: AtomicU64,
    /// Ports or ICMP identifiers of the reply direction.
    reply_ports: AtomicU64,
    near_addrs: NearAddrs,
    /// Bits: see the constants.
    state: AtomicU64,
    expires_ms: AtomicU64,
    /// Mark (upper half), index and generation of the timeout policy.
    mark_policy: AtomicU64,
    // Second cache line.
    orig_dst6: Wide,
    even_label: Wide,
    tcp: TcpWords,
    /// Admission of [`crate::table::zones`] (upper half). The lower half of a `RELATED` connection: both
    /// ports of its parent.
    admission: AtomicU64,
    // Third cache line.
    reply_src6: Wide,
    reply_dst6: Wide,
    overlay: Overlay,
}

#[cfg(not(loom))]
const _: () = {
    use std::mem::offset_of;
    const LINE: usize = 64;
    const WORD: usize = size_of::<u64>();
    assert!(size_of::<Record>() == 3 * LINE && align_of::<Record>() == LINE);
    assert!(offset_of!(Record, head) == 0);
    assert!(offset_of!(Record, orig_ports) == WORD);
    assert!(offset_of!(Record, reply_ports) == 2 * WORD);
    assert!(offset_of!(Record, near_addrs) == 3 * WORD);
    assert!(offset_of!(Record, state) == 5 * WORD);
    assert!(offset_of!(Record, expires_ms) == 6 * WORD);
    assert!(offset_of!(Record, mark_policy) + WORD == LINE);
    assert!(offset_of!(Record, orig_dst6) == LINE);
    assert!(offset_of!(Record, even_label) == LINE + 2 * WORD);
    assert!(offset_of!(Record, tcp) == LINE + 4 * WORD);
    assert!(offset_of!(Record, admission) + WORD == 2 * LINE);
    assert!(offset_of!(Record, reply_src6) == 2 * LINE);
    assert!(offset_of!(Record, reply_dst6) == 2 * LINE + 2 * WORD);
    assert!(offset_of!(Record, overlay) == 2 * LINE + 4 * WORD);
    assert!(size_of::<Overlay>() == 4 * WORD && size_of::<TcpWords>() == 3 * WORD);
};

/// Flag of the head: the source of the original direction is translated.
pub(crate) const SNAT: u64 = 1 << 1;
/// Flag: the destination of the original direction is translated.
pub(crate) const DNAT: u64 = 1 << 2;
/// Flag: another connection, the parent, announced this one.
pub(crate) const RELATED: u64 = 1 << 3;
/// Flag: the connection was committed with the FTP helper.
pub(crate) const FTP: u64 = 1 << 4;
/// Flag: the connection was committed with the TFTP helper.
pub(crate) const TFTP: u64 = 1 << 5;
/// Flag: a helper reads the packets. The connection is not [`RELATED`].
pub(crate) const CONTROL: u64 = 1 << 6;

/// State: in use.
pub(crate) const USED: u64 = 1;
/// State: ended; lookups ignore the record.
pub(crate) const DEAD: u64 = 1 << 1;
/// State: a label is being written, into the slot that is not current.
const LABEL_LOCK: u64 = 1 << 2;
/// State: a label was written.
const LABELLED: u64 = 1 << 3;
/// State: the [`Phase`] of UDP, ICMP and other protocols without states.
const PHASE_SHIFT: u32 = 4;
const PHASE_MASK: u64 = 3 << PHASE_SHIFT;
/// State: an offload back end forwards the packets ([`crate::track::offloaded`]).
pub(crate) const OFFLOADED: u64 = 1 << 6;
/// State: a back end forwarded the packets, and the TCP windows are unknown since.
pub(crate) const LOOSE: u64 = 1 << 7;
/// State: the connection came from another tracker ([`crate::transfer`]), until its move is finished.
pub(crate) const IMPORTED: u64 = 1 << 8;
/// State: imported, and no valid segment of TCP has passed since.
pub(crate) const UNTRIED: u64 = 1 << 9;
/// State: imported, and its segments since the export are unknown. The next one shows the TCP windows.
pub(crate) const RELEARN: u64 = 1 << 10;
/// State: the tracker had the connection before it was imported.
pub(crate) const HAD: u64 = 1 << 11;
/// State: number of labels written. The lowest bit selects the current slot.
const LABEL_COUNT_SHIFT: u32 = 16;
/// Maximum number of reads of a label. A reader repeats a read only if another label was written meanwhile.
/// The model checker's few writers prove it: no preempted writer can delay a reader.
const MAX_LABEL_READS: usize = if cfg!(loom) { 3 } else { usize::MAX };

/// Packets seen of a connection whose protocol has no states.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// One packet.
    First = 0,
    /// Several packets in one direction.
    Single = 1,
    /// Packets in both directions.
    Both = 2,
}

impl Phase {
    fn of_state(state: u64) -> Self {
        match (state & PHASE_MASK) >> PHASE_SHIFT {
            0 => Self::First,
            1 => Self::Single,
            _ => Self::Both,
        }
    }
    /// The phase as bits of the state.
    pub(crate) fn bits(self) -> u64 {
        (self as u64) << PHASE_SHIFT
    }
}

/// One reading of the words that [`Record::usual`] needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usual {
    pub(crate) generation: u32,
    pub(crate) flags: u64,
    pub(crate) reply: bool,
    pub(crate) expires_ms: u64,
    pub(crate) mark: u32,
    pub(crate) policy: u32,
    /// Number of labels written.
    pub(crate) label: u32,
}

/// A connection to be stored in a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct New {
    pub(crate) zone: u16,
    pub(crate) orig: Tuple,
    pub(crate) reply: Tuple,
    /// Flags of the head; [`crate::table::key::IPV6`] is added.
    pub(crate) flags: u64,
    pub(crate) expires_ms: u64,
    pub(crate) policy: u32,
    pub(crate) mark: u32,
    pub(crate) label: u128,
    pub(crate) tcp: [Peer; 2],
    /// Admission of [`crate::table::zones`].
    pub(crate) admission: u64,
    pub(crate) parent: Option<Tuple>,
    /// Shifts of sequence numbers of both directions, original first; only with the flag [`CONTROL`].
    pub(crate) skews: [Skew; 2],
    /// Bits of the state from the beginning, beside [`USED`] and those of the label.
    pub(crate) state: u64,
}

impl Record {
    #[inline]
    fn head(&self) -> Head {
        Head(self.head.load(Relaxed))
    }
    /// Prefetches the first cache line, and the second one for packets other than UDP over IPv4 (`all`).
    #[inline]
    pub(crate) fn prefetch(&self, all: bool) {
        simd::prefetch(&self.head);
        if all {
            simd::prefetch(&self.orig_dst6);
        }
    }

    /// Makes the kernel allocate the page.
    pub(crate) fn populate(&self) {
        // A write that never changes the value, even beside other writers. Compilers cannot make it a read.
        let word = self.head.load(Relaxed);
        let _ = self.head.compare_exchange(word, word, Relaxed, Relaxed);
    }

    /// All words of the record, in their order in memory.
    pub(crate) fn words(&self) -> [&AtomicU64; 24] {
        let [near0, near1] = self.near_addrs.words();
        let [[dst0, dst1], [even0, even1]] = [&self.orig_dst6, &self.even_label].map(Wide::words);
        let [tcp0, tcp1, tcp2] = self.tcp.words();
        let [[src6_0, src6_1], [dst6_0, dst6_1]] = [&self.reply_src6, &self.reply_dst6].map(Wide::words);
        let [o0, o1, o2, o3] = self.overlay.words();
        let lines = [
            [&self.head, &self.orig_ports, &self.reply_ports, near0],
            [near1, &self.state, &self.expires_ms, &self.mark_policy],
            [dst0, dst1, even0, even1],
            [tcp0, tcp1, tcp2, &self.admission],
            [src6_0, src6_1, dst6_0, dst6_1],
            [o0, o1, o2, o3],
        ];
        std::array::from_fn(|i| lines[i / 4][i % 4])
    }

    /// Fills a free record; no other thread sees it before [`Record::publish`]. Returns its new generation,
    /// which is above `past`.
    pub(crate) fn fill(&self, n: &New, past: u32) -> u32 {
        let generation = self.generation().max(past).wrapping_add(1);
        let key = Key::new(&n.orig, n.zone);
        let head = key.head.of_record(n.flags, generation);
        self.head.store(head.0, Relaxed);
        self.orig_ports.store(key.ports, Relaxed);
        self.reply_ports.store(ports(&n.reply), Relaxed);
        if key.ipv6 {
            self.near_addrs.orig_src6().put(key.src);
            self.orig_dst6.put(key.dst);
            self.reply_src6.put(halves(n.reply.src.addr));
            self.reply_dst6.put(halves(n.reply.dst.addr));
        } else {
            self.near_addrs.put4(key.src[0], pair4(&n.reply));
        }
        self.expires_ms.store(n.expires_ms, Relaxed);
        let mark_policy = u64::from(n.mark) << 32 | u64::from(n.policy);
        self.mark_policy.store(mark_policy, Relaxed);
        self.even_label.put(halves(n.label));
        self.tcp.put(&n.tcp);
        if n.flags & CONTROL != 0 {
            self.overlay.skews().put(n.skews);
        }
        let parent_ports = n.parent.map_or(0, |p| {
            self.overlay.parent().put(p.src.addr, p.dst.addr);
            // Ports have 16 bits; connections that announce others have ports.
            u64::from(p.src.l4 & 0xffff) << 16 | u64::from(p.dst.l4 & 0xffff)
        });
        self.admission.store(n.admission | parent_ports, Relaxed);
        generation
    }
    /// Makes a filled record visible to threads that scan all records.
    /// `bits`: of the state, beside [`USED`] and those of the label.
    pub(crate) fn publish(&self, labelled: bool, bits: u64) {
        let labelled = if labelled { LABELLED } else { 0 };
        // Release pairs with the Acquire in `state`.
        self.state.store(USED | bits | labelled, Release);
    }
    /// Makes the record free again. No thread reads it any more.
    pub(crate) fn free(&self) {
        self.state.store(0, Release);
    }
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        self.head().generation()
    }
    #[inline]
    pub(crate) fn zone(&self) -> u16 {
        self.head().zone()
    }
    #[inline]
    pub(crate) fn proto(&self) -> u8 {
        self.head().proto()
    }
    #[inline]
    pub(crate) fn flags(&self) -> u64 {
        self.head().flags()
    }
    /// The direction of packets with this key: `Some(true)` is the reply direction. `None`: they belong to
    /// another connection.
    #[inline]
    pub(crate) fn direction(&self, k: &Key) -> Option<bool> {
        if !self.head().is_same(k.head, 0) {
            return None;
        }
        if self.orig_ports.load(Relaxed) == k.ports && self.is_orig(k) {
            return Some(false);
        }
        (self.reply_ports.load(Relaxed) == k.ports && self.is_reply(k)).then_some(true)
    }
    /// The words that a packet of UDP over IPv4 needs, of a connection that has seen packets in both
    /// directions. `None`: a packet or a connection of another kind; also if the connection has a parent or
    /// announces others.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // halves
    pub(crate) fn usual(&self, k: &Key, zone: u16) -> Option<Usual> {
        const WANTED: u64 = USED | (Phase::Both as u64) << PHASE_SHIFT;
        let (head, wanted) = (self.head(), k.head.with_zone(zone));
        let state = self.state();
        // IPv6 has more words to compare.
        if k.ipv6 || !head.is_same(wanted, RELATED | CONTROL) || state & (USED | DEAD | PHASE_MASK) != WANTED
        {
            return None;
        }
        let near = &self.near_addrs;
        let reply = if self.orig_ports.load(Relaxed) == k.ports && near.orig4() == k.src[0] {
            false
        } else if self.reply_ports.load(Relaxed) == k.ports && near.reply4() == k.src[0] {
            true
        } else {
            return None;
        };
        let mark_policy = self.mark_policy.load(Relaxed);
        Some(Usual {
            generation: head.generation(),
            flags: head.flags(),
            reply,
            expires_ms: self.expires_ms(),
            mark: (mark_policy >> 32) as u32,
            policy: mark_policy as u32,
            label: (state >> LABEL_COUNT_SHIFT) as u32,
        })
    }
    #[inline]
    fn is_orig(&self, k: &Key) -> bool {
        if !k.ipv6 {
            return self.near_addrs.orig4() == k.src[0];
        }
        self.near_addrs.orig_src6().get() == k.src && self.orig_dst6.get() == k.dst
    }
    #[inline]
    fn is_reply(&self, k: &Key) -> bool {
        if !k.ipv6 {
            return self.near_addrs.reply4() == k.src[0];
        }
        // A connection without translation is compared without its third cache line.
        let [src, dst] = if self.flags() & (SNAT | DNAT) == 0 {
            [&self.orig_dst6, self.near_addrs.orig_src6()]
        } else {
            [&self.reply_src6, &self.reply_dst6]
        };
        src.get() == k.src && dst.get() == k.dst
    }
    /// The tuple of the original direction.
    pub(crate) fn orig(&self) -> Tuple {
        let head = self.head();
        let addrs = if head.is_v6() {
            [self.near_addrs.orig_src6(), &self.orig_dst6].map(Wide::get)
        } else {
            addrs4(self.near_addrs.orig4())
        };
        tuple(head, self.orig_ports.load(Relaxed), addrs)
    }
    /// The tuple of the reply direction.
    pub(crate) fn reply(&self) -> Tuple {
        let head = self.head();
        let addrs = if head.is_v6() {
            [&self.reply_src6, &self.reply_dst6].map(Wide::get)
        } else {
            addrs4(self.near_addrs.reply4())
        };
        tuple(head, self.reply_ports.load(Relaxed), addrs)
    }
    /// The endpoints after translation of packets in one direction, over IPv4: the opposite direction's
    /// endpoints, reversed.
    #[inline]
    pub(crate) fn translated4(&self, reply: bool) -> TranslatedEnds4 {
        let (addrs, ports) = if reply {
            (self.near_addrs.orig4(), &self.orig_ports)
        } else {
            (self.near_addrs.reply4(), &self.reply_ports)
        };
        TranslatedEnds4::of_reversed_words(addrs, ports.load(Relaxed))
    }
    /// The original tuple of the connection that announced this one.
    pub(crate) fn parent(&self) -> Option<Tuple> {
        let head = self.head();
        let word = self.admission();
        let ports = (word >> 16 & 0xffff) << 32 | word & 0xffff;
        let addrs = || self.overlay.parent().addrs();
        (head.flags() & RELATED != 0).then(|| tuple(head, ports, addrs()))
    }
    /// The shift of sequence numbers in one direction. Only a connection with the flag [`CONTROL`] has one.
    pub(crate) fn skew(&self, reply: bool) -> Skew {
        if self.flags() & CONTROL == 0 {
            return Skew::default();
        }
        self.overlay.skews().get(reply)
    }
    /// Replaces the shifts of a [`CONTROL`] connection, original direction first.
    pub(crate) fn set_skews(&self, skews: [Skew; 2]) {
        if self.flags() & CONTROL != 0 {
            self.overlay.skews().put(skews);
        }
    }
    /// The segment at `seq` of a direction has become longer by `n` bytes. `false`: nothing was changed. The
    /// shift would be too large, or the connection is not [`CONTROL`].
    pub(crate) fn skew_more(&self, reply: bool, seq: u32, n: i32) -> bool {
        self.flags() & CONTROL != 0 && self.overlay.skews().add(reply, seq, n)
    }
    /// The admission of [`crate::table::zones`], in its bits. The other bits may have ports of the parent.
    pub(crate) fn admission(&self) -> u64 {
        self.admission.load(Relaxed)
    }

    /// The state word, see the constants.
    #[inline]
    pub(crate) fn state(&self) -> u64 {
        self.state.load(Acquire) // pairs with `publish` and `set_label`
    }
    #[inline]
    pub(crate) fn expires_ms(&self) -> u64 {
        self.expires_ms.load(Relaxed)
    }
    /// Whether a packet may find the connection.
    #[inline]
    pub(crate) fn is_alive(&self, now_ms: u64) -> bool {
        self.state() & (USED | DEAD) == USED && now_ms < self.expires_ms()
    }
    /// Sets the time of expiry, unless it differs by less than a second. `true`: it is earlier than before.
    #[inline]
    pub(crate) fn touch(&self, expires_ms: u64) -> bool {
        let before = self.expires_ms();
        if before.abs_diff(expires_ms) < 1000 {
            return false;
        }
        // If two packets write at once, either time is right.
        self.expires_ms.store(expires_ms, Relaxed);
        expires_ms < before
    }
    /// Ends the connection. `false`: it had ended before.
    pub(crate) fn kill(&self) -> bool {
        let was = self.state.fetch_or(DEAD, AcqRel);
        was & (USED | DEAD) == USED
    }
    /// Packets seen of UDP, ICMP or another protocol without states.
    pub(crate) fn phase(&self) -> Phase {
        Phase::of_state(self.state())
    }
    /// Sets a bit of the state. `false`: it was set.
    pub(crate) fn set_state(&self, bit: u64) -> bool {
        self.state.fetch_or(bit, AcqRel) & bit == 0
    }
    /// Clears a bit of the state.
    pub(crate) fn clear_state(&self, bit: u64) {
        self.state.fetch_and(!bit, AcqRel);
    }
    /// The offload back end no longer forwards the packets.
    pub(crate) fn comes_back(&self) {
        self.set_state(LOOSE);
        self.clear_state(OFFLOADED);
    }
    /// Moves the phase by one packet; returns the phases before and after.
    #[inline]
    pub(crate) fn advance(&self, step: impl Fn(Phase) -> Phase) -> (Phase, Phase) {
        let mut state = self.state();
        loop {
            let before = Phase::of_state(state);
            let after = step(before);
            if after == before {
                return (before, after);
            }
            let next = state & !PHASE_MASK | (after as u64) << PHASE_SHIFT;
            match self.state.compare_exchange_weak(state, next, AcqRel, Acquire) {
                Ok(_) => return (before, after),
                Err(now) => state = now,
            }
        }
    }

    #[inline]
    pub(crate) fn mark(&self) -> u32 {
        (self.mark_policy.load(Relaxed) >> 32) as u32
    }
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // the low half
    pub(crate) fn policy(&self) -> u32 {
        self.mark_policy.load(Relaxed) as u32
    }
    /// Writes the bits of `mask`; returns the new mark.
    pub(crate) fn set_mark(&self, value: u32, mask: u32) -> u32 {
        let set = |w: u64| (w >> 32) as u32 & !mask | value & mask;
        let update = |w: u64| {
            let next = u64::from(set(w)) << 32 | w & 0xffff_ffff;
            (next != w).then_some(next)
        };
        let (Ok(w) | Err(w)) = self.mark_policy.fetch_update(Relaxed, Relaxed, update);
        set(w)
    }
    /// Number of labels that were written.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // 2^32 labels are enough to tell two apart
    pub(crate) fn label_count(&self) -> u32 {
        (self.state() >> LABEL_COUNT_SHIFT) as u32
    }
    /// The slot that has the label after `count` labels were written.
    #[inline]
    fn label_slot(&self, count: u64) -> &Wide {
        if count & 1 == 0 {
            &self.even_label
        } else {
            self.overlay.odd_label()
        }
    }
    /// The label.
    #[inline]
    pub(crate) fn label(&self) -> u128 {
        let mut state = self.state();
        if state & LABELLED == 0 {
            return 0;
        }
        for _ in 0..MAX_LABEL_READS {
            let count = state >> LABEL_COUNT_SHIFT;
            let label = self.label_slot(count).value();
            // Pairs with the fence in `set_label`: a thread that has read a word of a later label sees here
            // that `count` is no longer current.
            fence(Acquire);
            state = self.state();
            if state >> LABEL_COUNT_SHIFT == count {
                return label;
            }
        }
        unreachable!("more labels were written than there are counts")
    }
    /// Writes the bits of `mask`; returns the new label. `None`: nothing was written, since the system has
    /// preempted another writer, or since a [`RELATED`] connection keeps its label.
    pub(crate) fn set_label(&self, value: u128, mask: u128) -> Option<u128> {
        let now = self.label();
        if now == now & !mask | value & mask {
            return Some(now);
        }
        if self.flags() & RELATED != 0 {
            return None;
        }
        for _ in 0..MAX_LOCK_TRIES {
            let state = self.state.load(Relaxed);
            // Acquire pairs with the Release below: this thread sees the labels written before.
            if state & LABEL_LOCK == 0
                && self
                    .state
                    .compare_exchange_weak(state, state | LABEL_LOCK, Acquire, Relaxed)
                    .is_ok()
            {
                let count = state >> LABEL_COUNT_SHIFT;
                let label = self.label_slot(count).value() & !mask | value & mask;
                // Pairs with the fence in `label`.
                fence(Release);
                self.label_slot(count + 1).put(halves(label));
                // One step clears the lock, sets LABELLED, and increments the count. Other threads may change
                // other bits meanwhile.
                let done = |s: u64| Some((s & !LABEL_LOCK | LABELLED).wrapping_add(1 << LABEL_COUNT_SHIFT));
                // Release pairs with the Acquire in `state`: a thread that sees the count sees the label.
                let _ = self.state.fetch_update(Release, Relaxed, done);
                return Some(label);
            }
            spin_loop();
        }
        None
    }

    /// Both ends of TCP, for output: see [`TcpWords::get`].
    pub(crate) fn peers(&self) -> [Peer; 2] {
        self.tcp.get()
    }
    /// Changes both ends of TCP under their lock. `None`: another thread held the lock all the time.
    #[inline]
    pub(crate) fn with_peers<R>(&self, change: impl FnOnce(&mut [Peer; 2]) -> R) -> Option<R> {
        self.tcp.update(change)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
