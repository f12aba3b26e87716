//! Transmit queue: into a guest's receive rings. Exits of a packet: sent, full, too long, down, error; each counted.
//!
//! A burst goes out with one lock and at most one notification. Packets whose metadata the guest has not negotiated are finished in
//! software, one by one, in their place among the others.

use super::txset::{ToGuest, TxCell, TxSet};
use super::{Shared, rx::Changed, spread};
use crate::segment;
use crate::{TxCounts, TxQueue};
use arrayvec::ArrayVec;
use heddle_packet::{Packet, Pool};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// One worker's way into the guest.
pub(super) struct VhostTx {
    shared: Arc<Shared>,
    worker: usize,
    /// The turn that was answered last; 0: none.
    seen: u32,
    cell: Option<Arc<TxCell>>,
    /// The rings, where flows choose among them.
    spread: Vec<Arc<TxCell>>,
}

impl VhostTx {
    pub(super) fn new(shared: Arc<Shared>, worker: usize) -> Self {
        Self {
            shared,
            worker,
            seen: 0,
            cell: None,
            spread: Vec::new(),
        }
    }
    #[cold]
    fn choose(&mut self) {
        (self.seen, self.cell) = self.set().choose(self.worker);
        self.spread = self.set().spread();
    }
    fn set(&self) -> &TxSet {
        &self.shared.tx
    }
}

impl TxQueue for VhostTx {
    fn tx(&mut self, pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
        if self.set().turn() != self.seen {
            self.choose();
        }
        if !self.spread.is_empty() {
            return self.by_flow(pool, packets);
        }
        match &self.cell {
            Some(cell) => send(&self.shared, cell, pool, packets),
            None => TxCounts {
                down: packets.len() as u64,
                ..TxCounts::default()
            },
        }
    }
}

impl VhostTx {
    /// Each packet by the ring of its flow, in order.
    #[cold]
    fn by_flow(&self, pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
        let mut sum = TxCounts::default();
        let place = |p: &Packet| spread::hash(p.head()) as usize % self.spread.len();
        for (i, cell) in self.spread.iter().enumerate() {
            for burst in packets.chunks(heddle_packet::BURST) {
                let mine: ArrayVec<&Packet, { heddle_packet::BURST }> =
                    burst.iter().copied().filter(|p| place(p) == i).collect();
                if !mine.is_empty() {
                    sum += send(&self.shared, cell, pool, &mine);
                }
            }
        }
        sum
    }
}

/// Sends by one ring.
#[inline]
fn send(shared: &Shared, cell: &TxCell, pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
    let mut counts = TxCounts::default();
    let all = packets.len() as u64;
    let Some(mut guard) = cell.lock() else {
        counts.full = all;
        return counts;
    };
    // Taken away since the choice was made.
    let Some(to) = guard.as_mut() else {
        counts.down = all;
        return counts;
    };
    let retries = shared.tx_retries_max.load(Relaxed);
    let mut send = Send {
        to,
        cell,
        retries,
        counts: &mut counts,
        call: false,
        segments: SEGMENTS,
    };
    send.all(pool, packets);
    let (call, broken) = (send.call, send.to.ring.error() != send.to.told);
    if call && let Some(fd) = &to.call {
        fd.notify();
        cell.counts.calls.add(1);
        if fd.is_stuck()
            && let Some(link) = &to.link
        {
            link.stuck();
        }
    }
    if broken {
        tell_failure(to, cell, &shared.name, &shared.changed);
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
fn tell_failure(to: &mut ToGuest, cell: &TxCell, name: &str, changed: &Changed) {
    to.told = to.ring.error();
    cell.set_failure(to.told);
    if let Some(error) = to.told {
        cell.counts.broken.add(1);
        if let Some(err) = &to.err {
            err.notify();
        }
        log::warn!(target: "netdev_dpdk", per_min = 10, burst = 10;
            "{name}: a queue to the guest is stopped: {error}");
    }
    changed();
}

/// One burst on its way.
struct Send<'a> {
    to: &'a mut ToGuest,
    cell: &'a TxCell,
    retries: u32,
    counts: &'a mut TxCounts,
    call: bool,
    /// How many more packets are made in software of this burst's: what is beyond is dropped as if the guest had no room.
    segments: u32,
}

/// Packets that are made in software of one burst: enough for 32 of the longest trains of segments of 512 bytes.
const SEGMENTS: u32 = 4096;

impl Send<'_> {
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
            // As long as it takes some it may take more; the guest is told of those first, or it would not make room.
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
            // A ring without room for one has none for those behind it: they are of one length, and the guest empties it later.
            full + too_long + down == 0
        });
        if full > 0 {
            // Nor has it for other trains of this burst.
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
