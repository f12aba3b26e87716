//! Transmit side of one worker: per-port batches, sent at the end of the burst or when full.

use crate::counters::PortCounters;
use crate::drops::{DropKind, Drops};
use crate::exec::{Live, LiveId};
use arrayvec::ArrayVec;
use heddle_packet::{Packet, Pool};
use heddle_port::TxQueue;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Most packets handed to a transmit queue at once.
pub(crate) const TX_BATCH: usize = 64;
/// Bytes of the L2 header, one VLAN tag included, that the MTU does not count.
const L2_LEN: usize = 18;

/// A port as a worker sends on it.
pub(crate) struct TxPort {
    pub(crate) queue: Box<dyn TxQueue>,
    /// Largest IP packet; 0: no limit. Written by the control side.
    pub(crate) mtu: Arc<AtomicU32>,
    pub(crate) counters: Arc<PortCounters>,
    batch: ArrayVec<LiveId, TX_BATCH>,
}

impl TxPort {
    pub(crate) fn new(queue: Box<dyn TxQueue>, mtu: Arc<AtomicU32>, counters: Arc<PortCounters>) -> Self {
        Self {
            queue,
            mtu,
            counters,
            batch: ArrayVec::new(),
        }
    }
    /// Queues one by one, until the batch is full.
    #[cold]
    fn push_those_that_fit(&mut self, ids: &mut Range<LiveId>, mtu: usize, live: &Live<'_>, drops: &Drops) {
        while !self.batch.is_full() {
            let Some(id) = ids.next() else { return };
            let packet = live.get(id);
            if packet.len() > mtu + L2_LEN && packet.offload.gso.is_none() {
                self.counters.tx_dropped.add(1);
                drops.add(DropKind::TxTooLong, 1);
            } else {
                self.batch.push(id);
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
        let was_empty = port.batch.is_empty();
        let mtu = port.mtu.load(Relaxed) as usize;
        if mtu != 0 && longest as usize > mtu + L2_LEN {
            port.push_those_that_fit(ids, mtu, live, drops);
        } else {
            let n = ids.len().min(port.batch.remaining_capacity());
            // `n` is at most the range's length.
            #[allow(clippy::cast_possible_truncation)]
            let end = ids.start + n as LiveId;
            port.batch.extend(ids.start..end);
            ids.start = end;
        }
        if was_empty && !port.batch.is_empty() {
            self.active.push(no);
        }
        Ok(port.batch.is_full())
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
    let refs: ArrayVec<&Packet, TX_BATCH> = port.batch.iter().map(|id| live.get(*id)).collect();
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
