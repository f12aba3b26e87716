//! The scheduler of a port's waiting packets: a hierarchy of two levels, the port and its queues.
//!
//! **Rates.** The port has a maximum rate. A queue has a minimum rate, a maximum rate, and a priority. It
//! gets its minimum rate before any other queue gets more than its own. While a queue has credit of its
//! minimum rate, its packets are *guaranteed*; the earliest credit goes first. Other packets are *excess*:
//! the queues with the lowest number of priority go first. Queues of one priority take turns in proportion
//! to their minimum rates (deficit round robin). This is what `tc-htb` does with a root class of one rate,
//! but the port's rate also holds if the minimum rates together exceed it.
//!
//! **Data.** A queue with packets has an entry in `guaranteed`, a heap by the time of its next guaranteed
//! packet. It also has a place in the excess: the ring of its priority, or the heap `paused`. A queue
//! without credit of its maximum rate is in that heap, by the time of the credit. Entries of queues that
//! became empty are removed when they are met. So a packet costs a logarithm of the number of queues.
//!
//! **Bounds.** A queue holds the bytes of [`LIMIT_MS`] at its maximum rate, within [`MIN_LIMIT_BYTES`] and
//! [`MAX_LIMIT_BYTES`]; a port holds [`MAX_PORT_BYTES`]. No packet waits longer than [`MAX_WAIT`]. A queue
//! may also control its delay ([`super::codel`]).
//!
//! The scheduler has no clock: the caller passes the time, in ticks ([`super::clock`]).

use super::bucket::Bucket;
use super::clock::{MS, SECOND};
use super::codel::{self, Codel};
use super::fifo::Fifo;
use heddle_packet::{Packet, Pool};
use heddle_sync::Counter;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

/// Milliseconds that a full queue takes to send its packets at its maximum rate.
const LIMIT_MS: u64 = 50;
/// Two of the longest GSO packets.
const MIN_LIMIT_BYTES: u64 = 128 << 10;
const MAX_LIMIT_BYTES: u64 = 8 << 20;
const MAX_PORT_BYTES: usize = 64 << 20;
/// All empty queues of a port keep up to this memory, bytes.
const KEEP_PORT_BYTES: usize = 16 << 20;
/// An empty queue keeps up to this memory, bytes.
const KEEP_QUEUE_BYTES: usize = 64 << 10;
/// A packet that has waited longer is dropped.
pub(super) const MAX_WAIT: u64 = 2 * SECOND;
/// A queue's turn: its minimum rate over this, bytes.
const RATE_TO_QUANTUM: u64 = 10;
/// Bounds of a queue's turn, bytes: as the kernel has them, but a frame at least.
const MIN_QUANTUM: u64 = 1514;
const MAX_QUANTUM: u64 = 200_000;

/// The rates of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Class {
    /// Bytes per second.
    pub(super) min: u64,
    /// Bytes per second; `None`: the port's.
    pub(super) max: Option<u64>,
    /// Bytes that an unused queue may send at once.
    pub(super) burst: u64,
    pub(super) priority: u32,
    /// Control of the delay; `None`: there is none.
    pub(super) codel: Option<codel::Settings>,
}

/// The configuration of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Hierarchy {
    /// Bytes per second; `None`: no limit.
    pub(super) max: Option<u64>,
    /// Bytes that an unused port may send at once.
    pub(super) burst: u64,
    /// The queues, with queue 0.
    pub(super) classes: BTreeMap<u32, Class>,
}

/// Counters of a queue's packets.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Bytes of sent packets, with the headers of their segments.
    pub(super) bytes: Counter,
    pub(super) packets: Counter,
    pub(super) dropped: Counter,
    pub(super) made: u64,
}

#[derive(Debug)]
struct Queue {
    id: u32,
    class: Class,
    min: Bucket,
    max: Bucket,
    /// Index of the priority's ring.
    ring: usize,
    quantum: i64,
    deficit: i64,
    limit: usize,
    fifo: Fifo,
    codel: Codel,
    counts: Arc<Counts>,
    /// The queue has an entry in `guaranteed`.
    in_guaranteed: bool,
    /// The queue has a place in a ring or in `paused`.
    in_excess: bool,
}

impl Queue {
    /// The time of its next guaranteed packet.
    fn guaranteed_at(&self) -> u64 {
        self.min.at.max(self.max.at)
    }
    /// Whether a packet that came at `since`, the first one, is dropped in place of being sent.
    fn is_too_late(&mut self, since: u64, now: u64) -> bool {
        let is_last = self.fifo.len() == 1;
        let delay = now.saturating_sub(since);
        delay > MAX_WAIT
            || self
                .class
                .codel
                .is_some_and(|codel| self.codel.drops(&codel, delay, is_last, now))
    }
    fn drop_first(&mut self) {
        self.fifo.drop_first();
        self.counts.dropped.add(1);
    }
}

type Heap = BinaryHeap<Reverse<(u64, usize)>>;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Shaper {
    /// In the order of their numbers; the first is queue 0.
    queues: Vec<Queue>,
    port: Bucket,
    guaranteed: Heap,
    paused: Heap,
    /// One for each priority, the lowest number first.
    rings: Vec<VecDeque<usize>>,
    bytes: usize,
    waiting: usize,
    /// Packets that were dropped for their delay.
    pub(super) late: u64,
}

impl Shaper {
    /// A scheduler without packets.
    pub(super) fn new(hierarchy: &Hierarchy, now: u64) -> Self {
        let mut priorities: Vec<u32> = hierarchy.classes.values().map(|c| c.priority).collect();
        priorities.sort_unstable();
        priorities.dedup();
        let keep = (KEEP_PORT_BYTES / hierarchy.classes.len().max(1)).min(KEEP_QUEUE_BYTES);
        let queues = hierarchy.classes.iter().map(|(id, class)| {
            let quantum = (class.min / RATE_TO_QUANTUM).clamp(MIN_QUANTUM, MAX_QUANTUM);
            let most = class
                .max
                .or(hierarchy.max)
                .map_or(MAX_LIMIT_BYTES, |r| r / 1000 * LIMIT_MS);
            let limit = most.clamp(MIN_LIMIT_BYTES, MAX_LIMIT_BYTES);
            Queue {
                id: *id,
                class: *class,
                min: Bucket::full(Some(class.min), class.burst, now),
                max: Bucket::full(class.max, class.burst, now),
                ring: priorities.partition_point(|p| *p < class.priority),
                quantum: i64::try_from(quantum).unwrap_or(i64::MAX),
                deficit: 0,
                limit: usize::try_from(limit).unwrap_or(usize::MAX),
                fifo: Fifo::new(keep),
                codel: Codel::default(),
                counts: Arc::new(Counts {
                    made: now,
                    ..Counts::default()
                }),
                in_guaranteed: false,
                in_excess: false,
            }
        });
        Self {
            queues: queues.collect(),
            port: Bucket::full(hierarchy.max, hierarchy.burst, now),
            guaranteed: Heap::new(),
            paused: Heap::new(),
            rings: vec![VecDeque::new(); priorities.len()],
            bytes: 0,
            waiting: 0,
            late: 0,
        }
    }

    /// Takes over the packets and counters of the queues that stay. Returns the number of packets of queues
    /// that are gone, which are dropped.
    pub(super) fn take_over(&mut self, old: Self, now: u64) -> u64 {
        let mut lost = 0;
        for before in old.queues {
            match self.queues.binary_search_by_key(&before.id, |q| q.id) {
                Ok(i) => {
                    let queue = &mut self.queues[i];
                    (self.bytes, self.waiting) =
                        (self.bytes + before.fifo.bytes(), self.waiting + before.fifo.len());
                    (queue.fifo, queue.counts) = (before.fifo, before.counts);
                    if queue.class == before.class {
                        (queue.min, queue.max) = (before.min, before.max);
                    } else {
                        // Neither the old rate's debt nor a full bucket.
                        (queue.min.at, queue.max.at) = (now, now);
                    }
                    self.activate(i);
                }
                Err(_) => lost += before.fifo.len() as u64,
            }
        }
        self.port.at = now;
        lost
    }

    /// Number of packets.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Drops all packets, and returns their number.
    pub(super) fn drop_all(&mut self) -> u64 {
        let dropped = std::mem::take(&mut self.waiting);
        self.bytes = 0;
        self.queues.iter_mut().for_each(|q| q.fifo.clear());
        dropped as u64
    }

    /// The counters of each queue.
    pub(super) fn counts(&self) -> Vec<(u32, Arc<Counts>)> {
        self.queues
            .iter()
            .map(|q| (q.id, Arc::clone(&q.counts)))
            .collect()
    }

    fn activate(&mut self, i: usize) {
        let queue = &mut self.queues[i];
        if queue.fifo.is_empty() {
            return;
        }
        if !std::mem::replace(&mut queue.in_guaranteed, true) {
            self.guaranteed.push(Reverse((queue.guaranteed_at(), i)));
        }
        if !std::mem::replace(&mut queue.in_excess, true) {
            self.rings[queue.ring].push_back(i);
        }
    }

    /// Stores a copy of a packet in its queue; `false`: there is no room.
    pub(super) fn push(&mut self, packet: &Packet, now: u64) -> bool {
        let id = packet.queue();
        let i = match id {
            0 => 0,
            id => self.queues.binary_search_by_key(&id, |q| q.id).unwrap_or(0),
        };
        let Some(queue) = self.queues.get_mut(i) else {
            return false;
        };
        let was_empty = queue.fifo.is_empty();
        let len = packet.len();
        if !was_empty && (queue.fifo.bytes() + len > queue.limit || self.bytes + len > MAX_PORT_BYTES) {
            queue.counts.dropped.add(1);
            return false;
        }
        if self.waiting == 0 {
            self.port.begin(now);
        }
        queue.fifo.push(packet, packet.on_wire().bytes, now);
        (self.bytes, self.waiting) = (self.bytes + len, self.waiting + 1);
        if was_empty {
            queue.min.begin(now);
            queue.max.begin(now);
            self.activate(i);
        }
        true
    }

    /// Takes the next packet that may leave.
    pub(super) fn pop(&mut self, pool: &mut Pool, now: u64) -> Option<Packet> {
        while self.port.is_ready(now) {
            let (i, is_guaranteed) = match self.next_guaranteed(now) {
                Some(i) => (i, true),
                None => (self.next_excess(now)?, false),
            };
            if let Some(packet) = self.take(i, is_guaranteed, pool, now) {
                return Some(packet);
            }
        }
        None
    }

    /// A queue whose first packet is guaranteed now.
    fn next_guaranteed(&mut self, now: u64) -> Option<usize> {
        while let Some(&Reverse((at, i))) = self.guaranteed.peek() {
            if at > now {
                return None;
            }
            let queue = &mut self.queues[i];
            let due = queue.guaranteed_at();
            if !queue.fifo.is_empty() && due <= now {
                return Some(i);
            }
            self.guaranteed.pop();
            if queue.fifo.is_empty() {
                queue.in_guaranteed = false;
            } else {
                self.guaranteed.push(Reverse((due, i)));
            }
        }
        None
    }

    /// The next queue that may send beyond its minimum rate.
    fn next_excess(&mut self, now: u64) -> Option<usize> {
        while let Some(&Reverse((at, i))) = self.paused.peek() {
            if at > now {
                break;
            }
            self.paused.pop();
            let queue = &mut self.queues[i];
            // In front: its turn continues. At the back it would wait for the turns of all others, and its
            // bucket would overflow.
            self.rings[queue.ring].push_front(i);
        }
        for ring in &mut self.rings {
            while let Some(&i) = ring.front() {
                let queue = &mut self.queues[i];
                if queue.fifo.is_empty() {
                    ring.pop_front();
                    (queue.in_excess, queue.deficit) = (false, 0);
                } else if !queue.max.is_ready(now) {
                    ring.pop_front();
                    self.paused.push(Reverse((queue.max.at, i)));
                } else if queue.deficit > 0 {
                    return Some(i);
                } else {
                    queue.deficit += queue.quantum;
                    ring.rotate_left(1);
                }
            }
        }
        None
    }

    /// Takes the first packet of queue `i`; `None`: it was dropped.
    fn take(&mut self, i: usize, is_guaranteed: bool, pool: &mut Pool, now: u64) -> Option<Packet> {
        let queue = &mut self.queues[i];
        let first = queue.fifo.first()?;
        let bytes = queue.fifo.bytes();
        let packet = if queue.is_too_late(first.since, now) {
            queue.drop_first();
            self.late += 1;
            None
        } else {
            queue.max.charge(first.charge, now);
            self.port.charge(first.charge, now);
            if is_guaranteed {
                queue.min.charge(first.charge, now);
            } else {
                queue.deficit -= i64::try_from(first.charge).unwrap_or(0);
            }
            queue.counts.packets.add(1);
            queue.counts.bytes.add(first.charge);
            queue.fifo.pop(pool)
        };
        (self.bytes, self.waiting) = (self.bytes - (bytes - queue.fifo.bytes()), self.waiting - 1);
        packet
    }

    /// The time at which [`Shaper::pop`] may have a packet; `None`: there is none. Called after `pop` had
    /// none.
    pub(super) fn next_at(&self) -> Option<u64> {
        if self.waiting == 0 {
            return None;
        }
        let first = |heap: &Heap| heap.peek().map(|Reverse((at, _))| *at);
        let any_ring = self.rings.iter().any(|ring| !ring.is_empty());
        let queues = [
            first(&self.guaranteed),
            first(&self.paused),
            any_ring.then_some(0),
        ];
        let queues = queues.into_iter().flatten().min()?;
        Some(queues.max(self.port.at))
    }
}

impl Counts {
    /// Milliseconds since the queue was made.
    pub(super) fn age_ms(&self, now: u64) -> u64 {
        now.saturating_sub(self.made) / MS
    }
}

#[cfg(test)]
mod tests;
