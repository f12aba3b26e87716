//! Packets that wait until something is known: the neighbour on a tunnel's way, which was asked for just now.
//!
//! **Problem.** The first packets into a fresh tunnel come before the answer to the question whom to send
//! them to. Dropped, each first connection would lose a second or more.
//!
//! **Shape.** What a packet waits for is a slot of the generations ([`Wait`]): a copy of it, with all that it
//! carries, stands in that slot's queue. When the slot moves, the queue is taken, and its packets go on under
//! the recirculation id that the translation gave, before the worker takes anything else from its ports. Who
//! has to wait again (another thing shares the slot, or a question was repeated) does so with the time that
//! is left to it.
//!
//! **Order.** Packets of one flow come by one receive queue, so they wait at one worker. Until the burst
//! after the change begins, entries are taken for what they were, so what follows waits behind them. A flow
//! that has no entry (the cache is full) may overtake in the burst in which the answer itself comes.
//!
//! **Bounds.** [`MAX_OF_ONE`] packets and [`MAX_BYTES_OF_ONE`] of a slot, [`MAX`] and [`MAX_BYTES`] of a
//! worker, [`LIMIT_MS`] each. What is too much or too late is dropped with the name that it would have had at
//! once (`drop_action_tunnel_neighbour`).
//!
//! **Cost.** Where nothing waits, one comparison per round over the ports.

use super::Worker;
use super::keys::Carried;
use super::stage::Stage;
use crate::exec::program::Program;
use crate::exec::{Meta, Recirculated};
use heddle_datapath_api::{Action, Dep, DropKind, Generations, Wait};
use heddle_flow::FlowKey;
use heddle_packet::Packet;
use heddle_sys::Tsc;
use std::collections::VecDeque;
use std::sync::Arc;

/// Packets that wait for one thing.
const MAX_OF_ONE: usize = 256;
/// Their bytes: 32 of the longest trains.
const MAX_BYTES_OF_ONE: usize = 2 << 20;
/// Packets that wait at a worker.
const MAX: usize = 1024;
/// Their bytes.
const MAX_BYTES: usize = 8 << 20;
/// How long a packet waits, ms: three questions, as hosts do.
const LIMIT_MS: u64 = 3000;

/// A packet with what it carries.
struct Waiter {
    packet: Packet,
    packet_type: u32,
    carried: Box<FlowKey>,
    recirc: u32,
    since_ms: u64,
}

/// Who waits for one thing.
struct Queue {
    slot: u16,
    generation: u64,
    packets: VecDeque<Waiter>,
    bytes: usize,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Waiting {
    /// Few: hosts that are asked for and have not answered yet.
    queues: Vec<Queue>,
    packets: usize,
    bytes: usize,
    /// Since when the packet at hand has waited, if it does not come from a port.
    since_ms: Option<u64>,
}

impl Waiting {
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.packets > 0
    }
    /// Whether one more packet of `len` bytes may wait for this at time `now_ms`; since when it does.
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
        // One that saw an older state has the queue looked at sooner, which does no harm.
        queue.generation = queue.generation.min(wait.generation);
        let len = waiter.packet.len();
        (self.packets, self.bytes) = (self.packets + 1, self.bytes + len);
        queue.bytes += len;
        queue.packets.push_back(waiter);
    }
    /// Takes a queue whose thing has changed.
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
        let packet = queue.packets.pop_front()?.packet;
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
    /// Has a copy of a packet wait, which was looked up in a stage as one of run `r`.
    #[cold]
    pub(super) fn have_wait(&mut self, st: &Stage, r: usize, wait: &Wait, of: &Recirculated) {
        let (id, now_ms) = (of.id, self.engine.now_ms);
        let len = self.engine.live().get(id).len();
        let Some(since_ms) = self.waiting.admit(wait, len, now_ms) else {
            return self.engine.lost(DropKind::TunnelNeighbour, id);
        };
        let mut carried = Box::<FlowKey>::default();
        // A hash that was to be taken was for another one who goes on.
        let meta = Meta {
            hash: None,
            ..of.meta
        };
        let with = Carried {
            ct: of.ct.as_ref(),
            ..st.carried(r, meta)
        };
        with.write(&mut carried, None);
        let mut packet = self.engine.pool.get_for(len);
        self.engine.live().get(id).copy_into(&mut packet);
        self.counters.waited.add(1);
        let waiter = Waiter {
            packet,
            packet_type: meta.packet_type,
            carried,
            recirc: wait.recirc,
            since_ms,
        };
        self.waiting.push(wait, waiter);
    }

    /// Sends packets on whose time has come, and drops those that are late. Between bursts.
    #[inline]
    pub(super) fn end_waiting(&mut self) {
        if self.waiting.any() {
            self.end_some();
        }
    }
    #[cold]
    fn end_some(&mut self) {
        debug_assert!(self.engine.burst.is_empty());
        let now_ms = self.shared.clock.now_ms();
        while let Some(packet) = self.waiting.late(now_ms) {
            self.counters.drops.add(DropKind::TunnelNeighbour, 1);
            self.engine
                .tx
                .watch
                .lost(DropKind::TunnelNeighbour, 1, &packet, None);
            self.engine.pool.put(packet);
        }
        // Those that wait again are behind the others then, and are not met twice.
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
                self.go_on_waiter(waiter, &program);
            }
        }
    }
    fn go_on_waiter(&mut self, waiter: Waiter, program: &Arc<Program>) {
        self.engine.burst.push(waiter.packet);
        self.scratch.packet_type = waiter.packet_type;
        self.scratch.carried = Some(waiter.carried);
        self.waiting.since_ms = Some(waiter.since_ms);
        self.burst(Some(program), Tsc::now());
        self.waiting.since_ms = None;
        self.scratch.carried = None;
        self.scratch.packet_type = heddle_flow::packet_type::ETHERNET;
    }
}
