//! Transmit side of one worker: per-port batches, sent at the end of the burst or when full.

use crate::counters::PortCounters;
use crate::drops::{DropKind, Drops};
use crate::exec::{Live, LiveId};
use arrayvec::ArrayVec;
use heddle_packet::{BURST, Packet, Pool};
use heddle_port::TxQueue;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Most packets handed to a transmit queue at once.
pub(crate) const TX_BATCH: usize = 64;
/// Bytes of the L2 header, one VLAN tag included, that the MTU does not count.
const L2_LEN: usize = 18;

/// Packets that wait for a port's queue: neighbours together, since all packets of a burst mostly leave by one port.
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
            // Copies are no neighbours of the burst's packets.
            Some(last) if last.end == ids.start && usize::from(ids.start) != BURST => last.end = ids.end,
            _ => self.ranges.push(ids),
        }
    }
    fn clear(&mut self) {
        self.ranges.clear();
        self.len = 0;
    }
}

/// A port as a worker sends on it.
pub(crate) struct TxPort {
    pub(crate) queue: Box<dyn TxQueue>,
    /// Largest IP packet; 0: no limit. Written by the control side.
    pub(crate) mtu: Arc<AtomicU32>,
    pub(crate) counters: Arc<PortCounters>,
    batch: Batch,
}

impl TxPort {
    pub(crate) fn new(queue: Box<dyn TxQueue>, mtu: Arc<AtomicU32>, counters: Arc<PortCounters>) -> Self {
        Self {
            queue,
            mtu,
            counters,
            batch: Batch::default(),
        }
    }
    /// Queues one by one, until the batch is full.
    #[cold]
    fn push_those_that_fit(&mut self, ids: &mut Range<LiveId>, mtu: usize, live: &Live<'_>, drops: &Drops) {
        while self.batch.room() > 0 {
            let Some(id) = ids.next() else { return };
            let packet = live.get(id);
            if packet.len() > mtu + L2_LEN && packet.offload.gso.is_none() {
                self.counters.tx_dropped.add(1);
                drops.add(DropKind::TxTooLong, 1);
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
    /// Batches and packets sent since the worker last took the numbers.
    pub(crate) batches: u64,
    pub(crate) sent: u64,
}

impl TxTable {
    /// Adds or replaces a port; its batch must be empty, that is, call this between bursts.
    pub(crate) fn insert(&mut self, no: u32, port: TxPort) -> Option<TxPort> {
        let at = no as usize;
        if self.ports.len() <= at {
            self.ports.resize_with(at + 1, || None);
        }
        self.ports[at].replace(port)
    }
    /// Removes a port, between bursts.
    pub(crate) fn remove(&mut self, no: u32) -> Option<TxPort> {
        self.ports.get_mut(no as usize)?.take()
    }
    /// A port's counters.
    pub(crate) fn counters(&self, no: u32) -> Option<&Arc<PortCounters>> {
        Some(&self.ports.get(no as usize)?.as_ref()?.counters)
    }
    /// Queues packets `ids` on a port, taking out of the range what was queued (or was too long); `longest` is the longest
    /// one's length. `Ok(true)`: the batch is full now.
    #[inline]
    pub(crate) fn push(
        &mut self,
        no: u32,
        ids: &mut Range<LiveId>,
        longest: u32,
        live: &Live<'_>,
        drops: &Drops,
    ) -> Result<bool, DropKind> {
        let Some(Some(port)) = self.ports.get_mut(no as usize) else {
            return Err(DropKind::InvalidPort);
        };
        let was_empty = port.batch.len == 0;
        let mtu = port.mtu.load(Relaxed) as usize;
        if mtu != 0 && longest as usize > mtu + L2_LEN {
            port.push_those_that_fit(ids, mtu, live, drops);
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
    pub(crate) fn flush_port(&mut self, no: u32, live: &Live<'_>, pool: &mut Pool, drops: &Drops) {
        self.active.retain(|a| *a != no);
        if let Some(Some(port)) = self.ports.get_mut(no as usize) {
            self.batches += 1;
            self.sent += send(port, live, pool, drops);
        }
    }
    /// Sends all batches.
    pub(crate) fn flush(&mut self, live: &Live<'_>, pool: &mut Pool, drops: &Drops) {
        while let Some(no) = self.active.pop() {
            if let Some(Some(port)) = self.ports.get_mut(no as usize) {
                self.batches += 1;
                self.sent += send(port, live, pool, drops);
            }
        }
    }
}

fn send(port: &mut TxPort, live: &Live<'_>, pool: &mut Pool, drops: &Drops) -> u64 {
    let mut refs: ArrayVec<&Packet, TX_BATCH> = ArrayVec::new();
    for ids in &port.batch.ranges {
        refs.extend(live.all(ids));
    }
    let n = port.queue.tx(pool, &refs);
    port.batch.clear();
    let c = &port.counters;
    c.tx_packets.add(n.sent);
    c.tx_bytes.add(n.bytes);
    let lost = [
        (n.full, DropKind::TxFull, &c.tx_dropped),
        (n.too_long, DropKind::TxTooLong, &c.tx_dropped),
        (n.down, DropKind::TxDown, &c.tx_dropped),
        (n.error, DropKind::TxError, &c.tx_errors),
    ];
    for (n, kind, counter) in lost {
        if n != 0 {
            counter.add(n);
            drops.add(kind, n);
        }
    }
    n.sent
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Beside the plain twin, a list of numbers.
        #[test]
        fn a_batch_has_what_was_put_in_in_this_order(all in prop::collection::vec((0_u16..40, 0_u16..6), 0..80)) {
            let (mut batch, mut plain) = (Batch::default(), Vec::new());
            for (first, n) in all {
                // Of the burst, or copies.
                let most = if usize::from(first) < BURST { BURST } else { BURST + 16 };
                let end = (first + n).min(LiveId::try_from(most).unwrap());
                let end = end.min(first + LiveId::try_from(batch.room()).unwrap());
                batch.push(first..end);
                plain.extend(first..end);
                prop_assert_eq!(batch.room(), TX_BATCH - plain.len());
                let one_side = |r: &Range<LiveId>| (usize::from(r.start) < BURST) == (usize::from(r.end) <= BURST);
                prop_assert!(batch.ranges.iter().all(one_side));
            }
            let ids: Vec<_> = batch.ranges.iter().flat_map(Clone::clone).collect();
            prop_assert_eq!(ids, plain);
            batch.clear();
            prop_assert_eq!(batch.room(), TX_BATCH);
        }
    }
}
