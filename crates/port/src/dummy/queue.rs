//! Queues of a dummy port.

use super::state::{QueueId, Shared};
use super::tso;
use crate::drops::Drops;
use crate::flow_hash;
use crate::segment;
use crate::{RxQueue, TxCounts, TxQueue, WakeFd};
use heddle_packet::{Burst, Offload, Packet, Pool};
use heddle_wire::eth::is_vlan;
use std::os::fd::AsRawFd;
use std::sync::Arc;

const ETH_HEADER: usize = 14;
const VLAN_HEADER: usize = 4;

#[derive(Debug)]
pub(super) struct DummyRx {
    shared: Arc<Shared>,
    id: QueueId,
    /// Packets handed out that the worker may still be at.
    at_worker: u64,
    drops: Drops,
}

impl DummyRx {
    pub(super) fn new(shared: Arc<Shared>, id: QueueId) -> Self {
        Self {
            shared,
            id,
            at_worker: 0,
            drops: Drops::new(),
        }
    }
}

impl RxQueue for DummyRx {
    fn rx(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        self.complete();
        let state = &mut *self.shared.state.lock();
        if state.generation != self.id.generation {
            return 0;
        }
        let Some(queue) = state.queues.get_mut(self.id.index) else {
            return 0;
        };
        let before = burst.len();
        while !burst.is_full()
            && let Some(mut frame) = queue.frames.pop_front()
        {
            self.at_worker += 1;
            if frame.len() < ETH_HEADER {
                self.drops.count("runt");
                continue;
            }
            let offload = match state.tso_bytes {
                0 => Offload::default(),
                size => tso::mark(&mut frame, size),
            };
            let mut p = pool.get_for(frame.len());
            p.set_bytes(&frame);
            p.offload = offload;
            burst.push(p);
            state.received.add(self.id.index, frame.len());
        }
        if queue.frames.is_empty() && queue.signalled {
            queue.signalled = false;
            queue.wake.drain();
        }
        burst.len() - before
    }
    fn complete(&mut self) {
        if self.at_worker == 0 {
            return;
        }
        let done = std::mem::take(&mut self.at_worker);
        let mut state = self.shared.state.lock();
        if state.generation == self.id.generation
            && let Some(queue) = state.queues.get_mut(self.id.index)
        {
            queue.finished += done;
        }
        drop(state);
        self.shared.processed.notify_all();
    }
    fn wake_fd(&self) -> Option<WakeFd> {
        Some(WakeFd(self.id.wake.as_raw_fd()))
    }
    fn arm(&mut self) -> bool {
        let state = self.shared.state.lock();
        state.generation == self.id.generation
            && state
                .queues
                .get(self.id.index)
                .is_some_and(|q| !q.frames.is_empty())
    }
    fn dropped(&self) -> &[(&'static str, u64)] {
        self.drops.all()
    }
}

#[derive(Debug)]
pub(super) struct DummyTx {
    shared: Arc<Shared>,
    worker: usize,
}

impl DummyTx {
    pub(super) fn new(shared: Arc<Shared>, worker: usize) -> Self {
        Self { shared, worker }
    }
}

impl TxQueue for DummyTx {
    fn tx(&mut self, pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
        let mut counts = TxCounts::default();
        for packet in packets {
            let mut state = self.shared.state.lock();
            let mtu = state.mtu as usize;
            if packet.len() < ETH_HEADER {
                counts.error += 1;
                continue;
            }
            if packet.offload.gso.is_none() && packet.len() > max_frame(packet.head(), mtu) {
                counts.too_long += 1;
                continue;
            }
            let whole = match state.tso_bytes {
                0 => None,
                _ => tso::whole(pool, packet),
            };
            let done = match whole {
                Some(frame) => frame.map(|frame| state.transmit(&frame)),
                None => segment::finish(pool, packet, &mut |p| {
                    if p.segs().is_empty() {
                        state.transmit(p.head())
                    } else {
                        state.transmit(&p.to_vec())
                    }
                })
                .map(|_| ()),
            };
            match done {
                Ok(()) => {
                    let by = match state.by_flow {
                        true => flow_hash::hash(packet.head()) as usize,
                        false => self.worker,
                    };
                    let queue = by % state.sent.len();
                    state.sent.add(queue, packet.len());
                    counts.sent += 1;
                    counts.bytes += packet.len() as u64;
                }
                Err(_) => counts.error += 1,
            }
        }
        counts
    }
}

/// Longest frame of a device with this MTU: one VLAN tag is not counted.
fn max_frame(head: &[u8], mtu: usize) -> usize {
    let tagged = matches!(head, [_, _, _, _, _, _, _, _, _, _, _, _, a, b, ..] if is_vlan(u16::from_be_bytes([*a, *b])));
    mtu + ETH_HEADER + if tagged { VLAN_HEADER } else { 0 }
}
