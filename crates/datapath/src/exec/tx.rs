//! Transmit side of one worker: per-port batches, sent at the end of the burst or when full.
//!
//! Packets for a device that takes GSO packets are joined first, unless that is turned off
//! ([`heddle_port::gro`]); counters count the packets before joining.
//!
//! Queues borrow the packets that they send. A queue that wants to keep packets
//! ([`TxQueue::wants_ownership`]) gets its own, all of whose bytes are private. At the end of the burst it
//! gets the burst's packets themselves if they are private and no other such queue gets them too. Otherwise
//! it gets copies. Other queues pay nothing for that.

use crate::counters::Drops;
use crate::counters::PortCounters;
use crate::exec::watch::PacketWatch;
use crate::exec::{Live, LiveId};
use arrayvec::ArrayVec;
use heddle_datapath_api::DropKind;
use heddle_packet::{BURST, Csum, GsoKind, Packet, Pool};
use heddle_port::gro::{self, Gro};
use heddle_port::segment;
use heddle_port::{TxCounts, TxQueue};
use heddle_wire::l4::Udp;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Maximum number of packets handed to a transmit queue at once.
pub(crate) const TX_BATCH: usize = 64;
/// Bytes of the L2 header, one VLAN tag included, that the MTU does not count.
const L2_LEN: usize = 18;

/// Packets that wait for a port's queue. Adjacent packets are one range, since mostly all packets of a burst
/// leave by one port.
#[derive(Default)]
struct Batch {
    ranges: ArrayVec<Range<LiveId>, TX_BATCH>,
    len: usize,
}

impl Batch {
    fn room(&self) -> usize {
        TX_BATCH - self.len
    }
    /// Adds packets, for which there is room.
    #[inline]
    fn push(&mut self, ids: Range<LiveId>) {
        if ids.is_empty() {
            return;
        }
        self.len += ids.len();
        match self.ranges.last_mut() {
            // Copies are not adjacent to the burst's packets.
            Some(last) if last.end == ids.start && usize::from(ids.start) != BURST => last.end = ids.end,
            _ => self.ranges.push(ids),
        }
    }
    fn clear(&mut self) {
        self.ranges.clear();
        self.len = 0;
    }
}

/// Whether a packet is longer than `most` bytes on the wire. GSO packets are checked by their segments, but
/// not TCP: its segments are made to fit.
fn is_too_long(p: &Packet, most: usize) -> bool {
    match (p.offload.gso, p.offload.csum) {
        (None, _) => p.len() > most,
        (Some(gso), _) if gso.kind == GsoKind::Fragments => {
            segment::longest_piece(p).map_or(true, |n| n > most)
        }
        (Some(gso), Csum::Partial { start, .. }) if gso.kind == GsoKind::Udp => {
            p.len().min(usize::from(start) + Udp::LEN + usize::from(gso.size)) > most
        }
        (Some(_), _) => false,
    }
}

/// The receivers of reports about packets that a port sends or loses.
struct Witness<'a> {
    drops: &'a Drops,
    watch: &'a mut PacketWatch,
    /// The port's number.
    port: u32,
    /// [`TxTable::timers`].
    timers: &'a mut Vec<u32>,
}

/// No packets wait.
const NEVER: u64 = u64::MAX;

/// A port for sending by one worker.
pub(crate) struct TxPort {
    pub(crate) queue: Box<dyn TxQueue>,
    /// Largest IP packet; 0: no limit. Written by the control side.
    pub(crate) mtu: Arc<AtomicU32>,
    pub(crate) counters: Arc<PortCounters>,
    /// [`TxQueue::wants_ownership`].
    owns: bool,
    /// When packets that wait in the queue may leave, by [`Tsc`](heddle_sys::Tsc).
    due: u64,
    batch: Batch,
}

impl TxPort {
    pub(crate) fn new(queue: Box<dyn TxQueue>, mtu: Arc<AtomicU32>, counters: Arc<PortCounters>) -> Self {
        Self {
            owns: queue.wants_ownership(),
            queue,
            mtu,
            counters,
            due: NEVER,
            batch: Batch::default(),
        }
    }
    /// Queues packets one by one, until the batch is full.
    #[cold]
    fn push_those_that_fit(
        &mut self,
        ids: &mut Range<LiveId>,
        mtu: usize,
        live: &Live,
        witness: Witness<'_>,
    ) {
        while self.batch.room() > 0 {
            let Some(id) = ids.next() else { return };
            let packet = live.get(id);
            if is_too_long(packet, mtu + L2_LEN) {
                self.counters.tx_dropped.add(1);
                witness.drops.add(DropKind::TxTooLong, 1);
                witness
                    .watch
                    .lost_to(witness.port, DropKind::TxTooLong, 1, packet);
            } else {
                self.batch.push(id..id + 1);
            }
        }
    }
}

/// All ports of one worker, by number.
#[derive(Default)]
pub(crate) struct TxTable {
    ports: Vec<Option<TxPort>>,
    /// Ports with a batch that is not empty.
    active: Vec<u32>,
    /// Ports with packets that wait in the queue.
    timers: Vec<u32>,
    /// Number of ports whose queues take packets over.
    owners: usize,
    given: Given,
    gro: Gro,
    /// Packets are joined for devices that take GSO packets.
    pub(crate) joins: bool,
    /// Drop examples and capture of this worker.
    pub(crate) watch: PacketWatch,
    /// Number of this worker, for counters of its own.
    pub(crate) worker: usize,
    /// Number of the last move of a bond's bucket that this worker has seen
    /// ([`heddle_datapath_api::BucketChoice::moved`]).
    pub(crate) moves_seen: u32,
    /// Batches and packets sent since the worker last took the numbers.
    pub(crate) batches: u64,
    pub(crate) sent: u64,
}

impl TxTable {
    /// A table without ports, of worker `worker`, with this watch.
    pub(crate) fn watched(watch: PacketWatch, worker: usize) -> Self {
        Self {
            watch,
            worker,
            ..Self::default()
        }
    }
    /// Adds or replaces a port; its batch must be empty, that is, call this between bursts.
    pub(crate) fn insert(&mut self, no: u32, port: TxPort) -> Option<TxPort> {
        let at = no as usize;
        if self.ports.len() <= at {
            self.ports.resize_with(at + 1, || None);
        }
        self.owners += usize::from(port.owns);
        self.timers.retain(|n| *n != no);
        let before = self.ports[at].replace(port);
        self.owners -= usize::from(before.as_ref().is_some_and(|p| p.owns));
        before
    }
    /// Removes a port, between bursts.
    pub(crate) fn remove(&mut self, no: u32) -> Option<TxPort> {
        let port = self.ports.get_mut(no as usize)?.take()?;
        self.owners -= usize::from(port.owns);
        self.timers.retain(|n| *n != no);
        Some(port)
    }
    /// Whether packets wait in a port's queue.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.timers.is_empty()
    }
    /// When waiting packets may leave, by [`Tsc`](heddle_sys::Tsc); `u64::MAX`: none wait.
    pub(crate) fn next_due(&self) -> u64 {
        let due = |no: &u32| self.ports.get(*no as usize)?.as_ref().map(|port| port.due);
        self.timers.iter().filter_map(due).min().unwrap_or(NEVER)
    }
    /// Sends waiting packets that may leave at the cycle count `now`.
    #[cold]
    pub(crate) fn release(&mut self, now: u64, pool: &mut Pool, drops: &Drops) {
        let mut i = 0;
        while let Some(&no) = self.timers.get(i) {
            let Some(Some(port)) = self.ports.get_mut(no as usize) else {
                self.timers.swap_remove(i);
                continue;
            };
            if port.due <= now {
                let released = port.queue.release(pool);
                port.due = released.next.unwrap_or(NEVER);
                self.sent += count(port, released.counts, drops);
            }
            if port.due == NEVER {
                self.timers.swap_remove(i);
            } else {
                i += 1;
            }
        }
    }
    /// A port's counters.
    pub(crate) fn counters(&self, no: u32) -> Option<&Arc<PortCounters>> {
        Some(&self.ports.get(no as usize)?.as_ref()?.counters)
    }
    /// Queues packets `ids` on a port, and removes from the range the packets that were queued or too long.
    /// `longest` is the length of the longest packet. `Ok(true)`: the batch is full now.
    #[inline]
    pub(crate) fn push(
        &mut self,
        no: u32,
        ids: &mut Range<LiveId>,
        longest: u32,
        live: &Live,
        drops: &Drops,
    ) -> Result<bool, DropKind> {
        let Some(Some(port)) = self.ports.get_mut(no as usize) else {
            return Err(DropKind::InvalidPort);
        };
        let was_empty = port.batch.len == 0;
        let mtu = port.mtu.load(Relaxed) as usize;
        if mtu != 0 && longest as usize > mtu + L2_LEN {
            let witness = Witness {
                drops,
                watch: &mut self.watch,
                port: no,
                timers: &mut self.timers,
            };
            port.push_those_that_fit(ids, mtu, live, witness);
        } else {
            let n = ids.len().min(port.batch.room());
            // `n` is at most the range's length.
            #[allow(clippy::cast_possible_truncation)]
            let end = ids.start + n as LiveId;
            port.batch.push(ids.start..end);
            ids.start = end;
        }
        if was_empty && port.batch.len > 0 {
            self.active.push(no);
        }
        Ok(port.batch.room() == 0)
    }
    /// Sends one port's batch.
    pub(crate) fn flush_port(&mut self, no: u32, live: &Live, pool: &mut Pool, drops: &Drops) {
        self.active.retain(|a| *a != no);
        self.send_batch(no, live, pool, drops);
    }
    /// Sends all batches. The packets may be reused.
    pub(crate) fn flush(&mut self, live: &Live, pool: &mut Pool, drops: &Drops) {
        while let Some(no) = self.active.pop() {
            self.send_batch(no, live, pool, drops);
        }
    }
    #[inline]
    fn send_batch(&mut self, no: u32, live: &Live, pool: &mut Pool, drops: &Drops) {
        if let Some(Some(port)) = self.ports.get_mut(no as usize) {
            self.batches += 1;
            let gro = self.joins.then_some(&mut self.gro);
            let witness = Witness {
                drops,
                watch: &mut self.watch,
                port: no,
                timers: &mut self.timers,
            };
            self.sent += send(port, live, &mut self.given, gro, pool, witness);
        }
    }
    /// Sends all batches at the end of a burst. Afterwards the burst may contain other packets in place of
    /// its own.
    #[inline]
    pub(crate) fn finish(&mut self, live: &mut Live, pool: &mut Pool, drops: &Drops) {
        if self.owners == 0 {
            self.flush(live, pool, drops);
        } else {
            self.hand_over(live, pool, drops);
        }
    }
    /// Sends by the queues that borrow first, then gives the other queues their packets.
    #[inline(never)]
    fn hand_over(&mut self, live: &mut Live, pool: &mut Pool, drops: &Drops) {
        let mut owners = std::mem::take(&mut self.given.ports);
        self.active.retain(|&no| {
            let owns = matches!(self.ports.get(no as usize), Some(Some(port)) if port.owns);
            if owns {
                owners.push(no);
            }
            !owns
        });
        self.flush(live, pool, drops);
        self.given.want.clear();
        self.given.want.resize(BURST + live.copies.len(), 0);
        for no in &owners {
            if let Some(Some(port)) = self.ports.get(*no as usize) {
                let ids = port.batch.ranges.iter().flat_map(Clone::clone);
                ids.for_each(|id| self.given.want[usize::from(id)] += 1);
            }
        }
        for no in owners.drain(..) {
            if let Some(Some(port)) = self.ports.get_mut(no as usize) {
                self.watch.sent(no, live, &port.batch.ranges);
                for id in port.batch.ranges.iter().flat_map(Clone::clone) {
                    self.given.give(live.get_mut(id), id, pool);
                }
                self.batches += 1;
                self.sent += send_given(port, &mut self.given, pool, drops);
            }
        }
        self.given.ports = owners;
    }
}

/// Packets for queues that take them over. The lists are reused.
#[derive(Default)]
struct Given {
    /// Ports of such queues with a batch.
    ports: Vec<u32>,
    /// Packets for the next of these ports.
    packets: Vec<Packet>,
    /// Number of such queues that want each packet of the burst, by its number.
    want: Vec<u16>,
}

impl Given {
    fn copy(&mut self, packet: &Packet, pool: &mut Pool) {
        let mut copy = pool.get_for(packet.len());
        packet.copy_into(&mut copy);
        self.packets.push(copy);
    }
    /// Gives packet `id`, or a copy if some of its bytes are shared or another queue wants it.
    fn give(&mut self, packet: &mut Packet, id: LiveId, pool: &mut Pool) {
        let want = &mut self.want[usize::from(id)];
        *want -= 1;
        if *want == 0 && packet.segs().is_empty() {
            self.packets.push(std::mem::replace(packet, pool.get()));
        } else {
            self.copy(packet, pool);
        }
    }
}

/// Sends a port's batch, whose packets may be reused.
#[inline]
fn send(
    port: &mut TxPort,
    live: &Live,
    given: &mut Given,
    gro: Option<&mut Gro>,
    pool: &mut Pool,
    witness: Witness<'_>,
) -> u64 {
    witness.watch.sent(witness.port, live, &port.batch.ranges);
    let mut refs: ArrayVec<&Packet, TX_BATCH> = ArrayVec::new();
    for ids in &port.batch.ranges {
        refs.extend(live.all(ids));
    }
    if port.owns {
        refs.iter().for_each(|p| given.copy(p, pool));
        return send_given(port, given, pool, witness.drops);
    }
    if let Some(gro) = gro
        && refs.len() > 1
        && port.queue.gso_support().any()
        && gro::is_worth_it(&refs)
    {
        return send_joined(port, &refs, gro, pool, witness);
    }
    let n = port.queue.tx(pool, &refs);
    let drops = witness.drops;
    show_lost(&n, &refs, &mut port.due, witness);
    count(port, n, drops)
}

/// Reports packets that a queue did not take to the watch. The queue does not report which ones: the example
/// is the last one. Notes `due` for a queue in which packets wait.
#[inline]
fn show_lost(n: &TxCounts, refs: &[&Packet], due: &mut u64, witness: Witness<'_>) {
    if n.waits && std::mem::replace(due, 0) == NEVER {
        witness.timers.push(witness.port);
    }
    if n.sent != refs.len() as u64
        && let Some(last) = refs.last()
    {
        for (lost, kind) in losses(n).into_iter().filter(|(lost, _)| *lost != 0) {
            witness.watch.lost_to(witness.port, kind, lost, last);
        }
    }
}

/// Joins packets where possible, and sends.
#[inline(never)]
fn send_joined(
    port: &mut TxPort,
    refs: &[&Packet],
    gro: &mut Gro,
    pool: &mut Pool,
    witness: Witness<'_>,
) -> u64 {
    let kinds = port.queue.gso_support();
    let n = if gro.join(pool, refs, kinds) {
        let (joined, order) = gro.result(refs);
        let sent: ArrayVec<&Packet, TX_BATCH> = joined.iter().map(|(p, _)| *p).collect();
        let n = port.queue.tx(pool, &sent);
        as_received(n, joined.iter().map(|(_, range)| range), order, refs)
    } else {
        port.queue.tx(pool, refs)
    };
    gro.done(pool);
    let drops = witness.drops;
    show_lost(&n, refs, &mut port.due, witness);
    count(port, n, drops)
}

/// Converts a queue's counts of joined packets to counts of the original packets. The queue reports no
/// identity of lost packets, so the last ones count as lost.
fn as_received<'a>(
    n: TxCounts,
    ranges: impl Iterator<Item = &'a Range<usize>>,
    order: &[u8],
    refs: &[&Packet],
) -> TxCounts {
    let mut all = TxCounts {
        sent: 0,
        bytes: 0,
        ..n
    };
    let mut more = 0;
    for (range, at) in ranges.zip(0_u64..) {
        let members = order.get(range.clone()).unwrap_or_default();
        if at < n.sent {
            all.sent += members.len() as u64;
            let len = |i: &u8| refs.get(usize::from(*i)).map_or(0, |p| p.len() as u64);
            all.bytes += members.iter().map(len).sum::<u64>();
        } else {
            more += members.len() as u64 - 1;
        }
    }
    let mut lost = [
        &mut all.full,
        &mut all.too_long,
        &mut all.down,
        &mut all.nowhere,
        &mut all.error,
    ];
    if let Some(lost) = lost.iter_mut().find(|n| ***n > 0) {
        **lost += more;
    }
    all
}

/// Gives a port its packets.
#[inline(never)]
fn send_given(port: &mut TxPort, given: &mut Given, pool: &mut Pool, drops: &Drops) -> u64 {
    let n = port.queue.tx_owned(pool, &mut given.packets);
    pool.put_all(given.packets.drain(..));
    count(port, n, drops)
}

/// Packets that a queue did not send, by reason.
fn losses(n: &TxCounts) -> [(u64, DropKind); 5] {
    [
        (n.full, DropKind::TxFull),
        (n.too_long, DropKind::TxTooLong),
        (n.down, DropKind::TxDown),
        (n.nowhere, DropKind::InvalidPort),
        (n.error, DropKind::TxError),
    ]
}

/// Counts the results of a port's batch, which was sent.
#[inline]
fn count(port: &mut TxPort, n: TxCounts, drops: &Drops) -> u64 {
    port.batch.clear();
    let c = &port.counters;
    c.tx_packets.add(n.sent);
    c.tx_bytes.add(n.bytes);
    for (n, kind) in losses(&n) {
        if n != 0 {
            let counter = match kind {
                DropKind::TxError => &c.tx_errors,
                _ => &c.tx_dropped,
            };
            counter.add(n);
            drops.add(kind, n);
        }
    }
    n.sent
}

#[cfg(test)]
mod tests;
