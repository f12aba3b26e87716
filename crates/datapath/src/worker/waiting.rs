//! Packets that wait for an event: a neighbour request of their tunnel is open.
//!
//! **Problem.** The first packets into a fresh tunnel come before the reply to the neighbour request. If they
//! were dropped, each first connection would lose a second or more.
//!
//! **Design.** A packet waits for a slot of the generations ([`Wait`]). A copy of it, with its context, is
//! stored in the queue of that slot. When the slot changes, the worker recirculates the packets of the queue
//! under the id that the translation gave. It does so before it polls its ports again. A packet may have to
//! wait again, because another thing shares the slot or a request was repeated. Then only the rest of its
//! time limit is left.
//!
//! **Order.** Packets of one flow come by one receive queue, so they wait at one worker. Until the burst
//! after the change, the flow's cached entry stays in use, so later packets wait behind the first ones. A
//! flow without an entry (the cache is full) may overtake in the burst in which the reply arrives.
//!
//! **Bounds.** [`MAX_OF_ONE`] packets and [`MAX_BYTES_OF_ONE`] of a slot, [`MAX`] and [`MAX_BYTES`] of a
//! worker, [`LIMIT_MS`] each. Packets beyond these bounds are dropped under the name of an unresolved
//! neighbour (`drop_action_tunnel_neighbour`).
//!
//! **Cost.** Without waiting packets, one comparison per round over the ports.

use super::Worker;
use super::command::Injected;
use super::keys::{ChangedContext, Context};
use super::stage::Stage;
use crate::exec::program::Program;
use crate::exec::{Meta, Recirculated};
use heddle_datapath_api::{Action, Dep, DropKind, Generations, Wait};
use heddle_flow::FlowKey;
use heddle_packet::Packet;
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum number of packets that wait for one slot.
const MAX_OF_ONE: usize = 256;
/// Their maximum bytes: 32 of the longest GSO packets.
const MAX_BYTES_OF_ONE: usize = 2 << 20;
/// Maximum number of packets that wait at a worker.
const MAX: usize = 1024;
/// Their maximum bytes.
const MAX_BYTES: usize = 8 << 20;
/// Time limit of a waiting packet: three neighbour requests, as hosts send them.
const LIMIT_MS: u64 = 3000;

/// A waiting packet with its context.
struct Waiter {
    injected: Injected,
    recirc: u32,
    since_ms: u64,
}

/// Packets that wait for one slot.
struct Queue {
    slot: u16,
    generation: u64,
    packets: VecDeque<Waiter>,
    bytes: usize,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct WaitingPackets {
    /// Few: hosts with an open neighbour request.
    queues: Vec<Queue>,
    packets: usize,
    bytes: usize,
    /// Time since which the packet at hand has waited, if it does not come from a port.
    since_ms: Option<u64>,
}

impl WaitingPackets {
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.packets > 0
    }
    /// Checks whether one more packet of `len` bytes may wait at time `now_ms`. Returns the time since which
    /// it waits.
    fn admit(&self, wait: &Wait, len: usize, now_ms: u64) -> Option<u64> {
        let since = self.since_ms.unwrap_or(now_ms);
        let (packets, bytes) = match self.queues.iter().find(|q| q.slot == wait.slot) {
            Some(q) => (q.packets.len(), q.bytes),
            None => (0, 0),
        };
        let fits = packets < MAX_OF_ONE
            && bytes + len <= MAX_BYTES_OF_ONE
            && self.packets < MAX
            && self.bytes + len <= MAX_BYTES
            && now_ms < since + LIMIT_MS;
        fits.then_some(since)
    }
    fn push(&mut self, wait: &Wait, waiter: Waiter) {
        let at = self.queues.iter().position(|q| q.slot == wait.slot);
        let at = at.unwrap_or_else(|| {
            self.queues.push(Queue {
                slot: wait.slot,
                generation: wait.generation,
                packets: VecDeque::new(),
                bytes: 0,
            });
            self.queues.len() - 1
        });
        let queue = &mut self.queues[at];
        // A packet that saw an older state makes the queue be checked sooner, which does no harm.
        queue.generation = queue.generation.min(wait.generation);
        let len = waiter.injected.packet.len();
        (self.packets, self.bytes) = (self.packets + 1, self.bytes + len);
        queue.bytes += len;
        queue.packets.push_back(waiter);
    }
    /// Takes a queue whose slot has changed.
    fn changed(&mut self, generations: &Generations) -> Option<VecDeque<Waiter>> {
        let moved = |q: &Queue| {
            let (slot, generation) = (q.slot, q.generation);
            !generations.hold(&[Dep { slot, generation }])
        };
        let at = self.queues.iter().position(moved)?;
        let queue = self.queues.remove(at);
        self.packets -= queue.packets.len();
        self.bytes -= queue.bytes;
        Some(queue.packets)
    }
    /// Takes a packet that has waited for too long.
    fn late(&mut self, now_ms: u64) -> Option<Packet> {
        let is_late = |w: &Waiter| now_ms >= w.since_ms + LIMIT_MS;
        let at = self
            .queues
            .iter()
            .position(|q| q.packets.front().is_some_and(is_late))?;
        let queue = &mut self.queues[at];
        let packet = queue.packets.pop_front()?.injected.packet;
        let len = packet.len();
        (self.packets, self.bytes) = (self.packets - 1, self.bytes - len);
        queue.bytes -= len;
        if queue.packets.is_empty() {
            self.queues.remove(at);
        }
        Some(packet)
    }
}

impl Worker {
    /// Stores a copy of a packet of run `r` of a stage, until its slot changes.
    #[cold]
    pub(super) fn have_wait(&mut self, st: &Stage, r: usize, wait: &Wait, of: &Recirculated) {
        let (id, now_ms) = (of.id, self.resources.now_ms);
        let len = self.resources.live.get(id).len();
        let Some(since_ms) = self.waiting.admit(wait, len, now_ms) else {
            return self.resources.lost(DropKind::TunnelNeighbour, id);
        };
        let mut context = Box::<FlowKey>::default();
        // The hash, if any, belongs to the original packet, which continues without waiting.
        let meta = Meta {
            hash: None,
            ..of.meta
        };
        let with = ChangedContext {
            ct: of.ct.as_ref(),
            ..st.changed_context(r, meta)
        };
        Context::Changed(with).write(&mut context, None);
        let mut packet = self.resources.pool.get_for(len);
        self.resources.live.get(id).copy_into(&mut packet);
        self.counters.waited.add(1);
        let waiter = Waiter {
            injected: Injected {
                packet,
                packet_type: meta.packet_type,
                context: Some(context),
            },
            recirc: wait.recirc,
            since_ms,
        };
        self.waiting.push(wait, waiter);
    }

    /// Recirculates packets whose slot has changed, and drops those that are late. Called between bursts.
    #[inline]
    pub(super) fn end_waiting(&mut self) {
        if self.waiting.any() {
            self.end_some();
        }
    }
    #[cold]
    fn end_some(&mut self) {
        debug_assert!(self.resources.live.burst.is_empty());
        let now_ms = self.shared.clock.now_ms();
        while let Some(packet) = self.waiting.late(now_ms) {
            self.counters.drops.add(DropKind::TunnelNeighbour, 1);
            self.resources
                .tx
                .watch
                .lost(DropKind::TunnelNeighbour, 1, &packet, None);
            self.resources.pool.put(packet);
        }
        // Packets that wait again are behind the other queues then, so this loop does not meet them twice.
        for _ in 0..self.waiting.queues.len() {
            let generations = self.shared.translate.generations();
            let Some(packets) = self.waiting.changed(generations) else {
                return;
            };
            let mut program: Option<(u32, Arc<Program>)> = None;
            for waiter in packets {
                let recirc = waiter.recirc;
                let program = match &program {
                    Some((id, p)) if *id == recirc => Arc::clone(p),
                    _ => {
                        let p = Arc::new(Program::compile(&[Action::Recirc(recirc)]));
                        program = Some((recirc, Arc::clone(&p)));
                        p
                    }
                };
                self.waiting.since_ms = Some(waiter.since_ms);
                self.run_injected(waiter.injected, Some(&program));
                self.waiting.since_ms = None;
            }
        }
    }
}
