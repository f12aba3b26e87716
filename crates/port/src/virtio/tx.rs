//! Transmit queue: into a guest's receive rings. Exits of a packet: sent, full, too long, down, error; each
//! counted; or handed over to the worker that has the ring, which counts it.
//!
//! A burst goes out with one taking of the ring and at most one notification. Packets whose metadata the
//! guest has not negotiated are finished in software, one by one, in their place among the others.

use super::Shared;
use super::txset::{Choice, ToGuest, TxCell, TxSet};
use crate::flow_hash;
use crate::gro::GsoKinds;
use crate::rates::Share;
use crate::segment;
use crate::{Released, TxCounts, TxQueue};
use arrayvec::ArrayVec;
use heddle_packet::{BURST, Packet, Pool};
use heddle_sync::CombiningGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Number of times that a worker sends all packets handed over by others. Then it leaves them to the next
/// worker that comes: at the latest itself, after its other work ([`TxCounts::waits`]).
const ROUNDS: usize = 4;

/// One worker's transmit queue into the guest.
pub(super) struct VirtioTx {
    shared: Arc<Shared>,
    worker: usize,
    rates: Share,
    /// The last turn that was handled; 0: none.
    seen: u32,
    cell: Option<Arc<TxCell>>,
    /// The rings among which flows choose.
    choice: Arc<Choice>,
}

impl VirtioTx {
    pub(super) fn new(shared: Arc<Shared>, worker: usize) -> Self {
        Self {
            rates: Share::new(Arc::clone(&shared.rates), worker),
            shared,
            worker,
            seen: 0,
            cell: None,
            choice: Arc::default(),
        }
    }
    #[cold]
    fn choose(&mut self) -> TxCounts {
        let (turn, choice, pending) = self.set().choice();
        self.seen = turn;
        self.cell = choice.of(self.worker).cloned();
        self.choice = choice;
        pending
    }
    fn set(&self) -> &TxSet {
        &self.shared.tx
    }
}

impl TxQueue for VirtioTx {
    #[inline]
    fn gso_support(&self) -> GsoKinds {
        // A joined packet would wait as a whole.
        if self.rates.shapes() {
            return GsoKinds::default();
        }
        self.choice.takes.gso_support()
    }
    fn tx(&mut self, pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
        if self.set().turn() != self.seen {
            let mut counts = self.choose();
            counts += self.tx(pool, packets);
            return counts;
        }
        if self.rates.is_on() {
            let rates = self.rates.get();
            return rates.tx(pool, packets, &mut |pool, kept| self.send_all(pool, kept));
        }
        self.send_all(pool, packets)
    }
    fn abandon(&mut self) -> u64 {
        self.rates.close(self.rates.worker())
    }
    fn release(&mut self, pool: &mut Pool) -> Released {
        let mut pending = TxCounts::default();
        if self.set().turn() != self.seen {
            pending = self.choose();
        }
        let (rates, worker) = (self.rates.get(), self.rates.worker());
        // Packets of one flow may leave by several workers one after the other: a flow keeps its ring.
        let mut released = rates.release(worker, pool, &mut |pool, kept| self.by_flow(pool, kept));
        released.counts += pending;
        released.counts += self.send_left(pool);
        if released.counts.waits {
            released.next = Some(0);
        }
        released
    }
}

impl VirtioTx {
    #[inline]
    fn send_all(&mut self, pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
        match &self.cell {
            Some(cell) => send(self.set(), cell, pool, packets),
            None => self.by_flow(pool, packets),
        }
    }
}

impl VirtioTx {
    /// Sends the packets that a worker left to the next one.
    #[cold]
    fn send_left(&self, pool: &mut Pool) -> TxCounts {
        let mut sum = TxCounts::default();
        for cell in &self.choice.cells {
            if let Some(held) = cell.ring.take_left() {
                sum += let_go(self.set(), cell, pool, held, TxCounts::default());
            }
        }
        sum
    }
    /// Each packet by the ring of its flow, in order.
    #[cold]
    fn by_flow(&self, pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
        let mut sum = TxCounts::default();
        let cells = &self.choice.cells;
        if cells.is_empty() {
            sum.down = packets.len() as u64;
            return sum;
        }
        if let [cell] = &cells[..] {
            return send(self.set(), cell, pool, packets);
        }
        let place = |p: &Packet| flow_hash::hash(p.head()) as usize % cells.len();
        for (i, cell) in cells.iter().enumerate() {
            for burst in packets.chunks(BURST) {
                let mine: ArrayVec<&Packet, BURST> =
                    burst.iter().copied().filter(|p| place(p) == i).collect();
                if !mine.is_empty() {
                    sum += send(self.set(), cell, pool, &mine);
                }
            }
        }
        sum
    }
}

type RingGuard<'a> = CombiningGuard<'a, Option<ToGuest>>;

/// Sends by one ring.
#[inline]
fn send(set: &TxSet, cell: &TxCell, pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
    let Some(mut held) = cell.ring.try_take() else {
        return hand_over(set, cell, pool, packets);
    };
    if held.is_posted() {
        return behind_others(set, cell, pool, held, packets);
    }
    let counts = use_ring(set, cell, &mut held, pool, packets);
    match held.release() {
        None => counts,
        Some(held) => let_go(set, cell, pool, held, counts),
    }
}

/// The ring is in use: leaves copies for the worker that has it.
#[cold]
fn hand_over(set: &TxSet, cell: &TxCell, pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
    // Relaxed: statistics.
    cell.contention.fetch_add(1, Relaxed);
    let mut counts = TxCounts::default();
    for packet in packets {
        // A later one must not overtake one that was dropped for want of room.
        if counts.full > 0 || cell.handed.is_full() {
            counts.full += 1;
            continue;
        }
        let mut copy = pool.get_for(packet.len());
        packet.copy_into(&mut copy);
        if let Err(copy) = cell.handed.push(copy) {
            pool.put(copy);
            counts.full += 1;
        }
    }
    cell.refused.fetch_add(counts.full, Relaxed);
    match cell.ring.post() {
        None => counts,
        Some(held) => let_go(set, cell, pool, held, counts),
    }
}

/// Sends the packets that others have handed over, then `packets`: a worker's earlier ones may be among them.
#[cold]
fn behind_others(
    set: &TxSet,
    cell: &TxCell,
    pool: &mut Pool,
    mut held: RingGuard<'_>,
    packets: &[&Packet],
) -> TxCounts {
    let mut counts = handed(set, cell, &mut held, pool);
    counts += use_shared(set, cell, &mut held, pool, packets);
    match held.release() {
        None => counts,
        Some(held) => let_go(set, cell, pool, held, counts),
    }
}

/// Releases a ring, and sends the packets that others hand over until then; bounded. Adds to `counts`.
/// [`TxCounts::waits`]: packets are left.
#[cold]
pub(super) fn let_go(
    set: &TxSet,
    cell: &TxCell,
    pool: &mut Pool,
    mut held: RingGuard<'_>,
    mut counts: TxCounts,
) -> TxCounts {
    for _ in 0..ROUNDS {
        if held.is_posted() {
            counts += handed(set, cell, &mut held, pool);
        }
        match held.release() {
            None => return counts,
            Some(again) => held = again,
        }
    }
    // Packets come faster than this worker can send them: the next worker that comes continues.
    held.leave();
    counts.waits = true;
    counts
}

/// Sends the packets that others had handed over when the ring was taken, or at their last post.
#[cold]
fn handed(set: &TxSet, cell: &TxCell, held: &mut RingGuard<'_>, pool: &mut Pool) -> TxCounts {
    let mut counts = TxCounts::default();
    // Packets beyond that were handed over later, and have a post of their own.
    let mut left = cell.handed.capacity();
    while left > 0 {
        let next = std::iter::from_fn(|| cell.handed.pop());
        let burst: ArrayVec<Packet, BURST> = next.take(left.min(BURST)).collect();
        if burst.is_empty() {
            break;
        }
        left -= burst.len();
        {
            let packets: ArrayVec<&Packet, BURST> = burst.iter().collect();
            counts += use_shared(set, cell, held, pool, &packets);
        }
        burst.into_iter().for_each(|p| pool.put(p));
    }
    counts
}

/// [`use_ring`] for a ring that several workers share.
#[cold]
#[inline(never)]
fn use_shared(
    set: &TxSet,
    cell: &TxCell,
    held: &mut Option<ToGuest>,
    pool: &mut Pool,
    packets: &[&Packet],
) -> TxCounts {
    use_ring(set, cell, held, pool, packets)
}

/// Sends by the ring that is held.
#[inline(always)] // into `send`: a burst costs one call less
fn use_ring(
    set: &TxSet,
    cell: &TxCell,
    held: &mut Option<ToGuest>,
    pool: &mut Pool,
    packets: &[&Packet],
) -> TxCounts {
    let mut counts = TxCounts::default();
    let all = packets.len() as u64;
    // Taken away since the choice was made.
    let Some(to) = held else {
        counts.down = all;
        return counts;
    };
    let retries = set.retries_max.load(Relaxed);
    let mut send = Send {
        to,
        cell,
        retries,
        counts: &mut counts,
        call: false,
        segments: SEGMENTS,
    };
    send.all(pool, packets);
    let (call, broken) = (send.call, send.to.ring.error() != send.to.reported);
    if call && let Some(call) = &to.call {
        call.raise();
        cell.counts.calls.add(1);
    }
    if broken {
        report_failure(set, to, cell);
    } else if counts.full > 0
        && let Some(link) = &to.link
    {
        while let Some(miss) = to.ring.take_miss() {
            link.miss(miss);
        }
    }
    let c = &cell.counts;
    c.packets.add(counts.sent);
    c.bytes.add(counts.bytes);
    if counts.sent < all {
        c.full.add(counts.full);
        c.too_long.add(counts.too_long);
        c.invalid.add(counts.error);
    }
    counts
}

#[cold]
fn report_failure(set: &TxSet, to: &mut ToGuest, cell: &TxCell) {
    let (failure, name) = (to.ring.error(), &set.name);
    if !cell.try_set_failure(failure) {
        return;
    }
    to.reported = failure;
    if let Some(error) = to.reported {
        cell.counts.broken.add(1);
        if let Some(err) = &to.err {
            err.raise();
        }
        log::warn!(target: "netdev_dpdk", per_min = 10, burst = 10;
            "{name}: a queue to the guest is stopped: {error}");
    }
    (set.changed)();
}

/// One burst on its way.
struct Send<'a> {
    to: &'a mut ToGuest,
    cell: &'a TxCell,
    retries: u32,
    counts: &'a mut TxCounts,
    call: bool,
    /// The number of packets of this burst that may still be made in software. Further ones are dropped as if
    /// the guest had no room.
    segments: u32,
}

/// Packets that are made in software of one burst: enough for 32 of the longest GSO packets with segments of
/// 512 bytes.
const SEGMENTS: u32 = 4096;

impl Send<'_> {
    #[inline(always)] // like `use_ring`
    fn all(&mut self, pool: &mut Pool, packets: &[&Packet]) {
        let takes = self.to.takes;
        let mut rest = packets;
        while !rest.is_empty() {
            let n = rest.iter().take_while(|p| takes.takes(&p.offload)).count();
            let (plain, others) = rest.split_at(n);
            self.run(plain);
            let Some((unfinished, behind)) = others.split_first() else {
                return;
            };
            self.finish(pool, unfinished);
            rest = behind;
        }
    }

    /// Packets that the guest takes as they are.
    fn run(&mut self, packets: &[&Packet]) {
        let mut rest = packets;
        let mut tries = 0;
        while !rest.is_empty() {
            let out = self.to.ring.tx(rest);
            self.call |= out.call;
            self.counts.sent += out.sent;
            self.counts.bytes += out.bytes;
            self.counts.too_long += out.too_long;
            self.counts.down += out.down;
            if out.full == 0 {
                return;
            }
            // A guest that took some packets may take more. It is notified of those first, or it would not
            // make room.
            let again = out.sent > 0 && tries < self.retries;
            if !again {
                self.counts.full += out.full;
                return;
            }
            tries += 1;
            self.cell.counts.retries.add(1);
            let done = rest.len() - usize::try_from(out.full).unwrap_or(rest.len());
            rest = rest.get(done..).unwrap_or_default();
        }
    }

    /// A packet to be segmented or completed. It counts as one packet, sent if all of it was.
    fn finish(&mut self, pool: &mut Pool, packet: &Packet) {
        if self.segments == 0 {
            self.counts.full += 1;
            return;
        }
        self.cell.counts.finished.add(1);
        let (mut sent, mut full, mut too_long, mut down) = (0, 0, 0, 0);
        let (ring, call) = (&mut self.to.ring, &mut self.call);
        let left = &mut self.segments;
        let cut = segment::finish_while(pool, packet, &mut |piece| {
            let out = ring.tx(&[piece]);
            *call |= out.call;
            sent += out.bytes;
            full += out.full;
            too_long += out.too_long;
            down += out.down;
            *left = left.saturating_sub(1);
            // A ring without room for one has none for those behind it: they are of one length, and the guest
            // empties it later.
            full + too_long + down == 0
        });
        if full > 0 {
            // The guest has no room for other GSO packets of this burst either.
            self.segments = 0;
        }
        self.counts.bytes += sent;
        if cut.is_err() {
            self.counts.error += 1;
        } else if down > 0 {
            self.counts.down += 1;
        } else if too_long > 0 {
            self.counts.too_long += 1;
        } else if full > 0 {
            self.counts.full += 1;
        } else {
            self.counts.sent += 1;
        }
    }
}
