//! Rates of ports without a queueing discipline of the kernel between the switch and the receiver: taps,
//! virtio devices and AF_XDP. The switch itself keeps the rates of `Port.qos`, by policers ([`policer`]) or
//! by a shaper ([`shaper`]).
//!
//! **The shaper and the workers.** All workers share a port's shaper. A worker that sends takes it for the
//! time of a burst, and copies its packets into the queues. Then it takes the shaper again to send the
//! packets that may leave ([`Rates::release`]). If it finds the shaper in use, it leaves its packets in a
//! ring ([`Shaping::handed`]) and tries again soon. No worker waits while it sends, and packets of a queue
//! leave in the order in which they came.
//!
//! **The keeper.** Packets that may not leave yet need a worker that comes back. The worker that last left
//! packets behind is the keeper, and knows when to come. Another worker becomes the keeper if a packet is due
//! before that, or if the keeper is late.
//!
//! **The end.** When a keeper's queue is closed, or the row goes, the waiting packets are dropped. The next
//! worker that sends counts them in [`TxCounts::full`].
//!
//! **Costs.** One relaxed load a burst for ports without rates. Policers: one reading of the cycle counter a
//! burst and a compare-and-swap for each packet and bucket. The shaper is taken twice a burst, with a
//! reading of the cycle counter each time. Each packet costs two copies and a logarithm of the number of
//! queues.

mod bucket;
mod clock;
mod codel;
mod fifo;
mod policer;
mod shaper;
#[cfg(test)]
mod tests;

use crate::qos::{
    CODEL_INTERVAL, CODEL_TARGET, Details, EGRESS_POLICER, HFSC, HTB, NOOP, TRTCM_POLICER, number,
};
use crate::{PortError, QosConfig, Released, TxCounts};
use arrayvec::ArrayVec;
use crossbeam_queue::ArrayQueue;
use heddle_packet::{BURST, Packet, Pool};
use heddle_sync::{Combining, CombiningGuard, Published};
use heddle_sys::{QueueCounts, Tsc};
use parking_lot::Mutex;
use policer::Policer;
use shaper::{Class, Counts, Hierarchy, Shaper};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Types of QoS that these ports have.
pub(crate) const TYPES: &[&str] = &[EGRESS_POLICER, TRTCM_POLICER, HTB, HFSC, NOOP];
/// A frame of Ethernet with a tag, which a queue may send in a second at least, and at once.
const FRAME_BYTES: u64 = 1518;
/// Interval of CoDel if the row has none, and the longest target and interval, microseconds.
const DEFAULT_CODEL_INTERVAL_US: u64 = 100_000;
const MAX_CODEL_US: u64 = 1_000_000;
/// Packets that workers leave while the shaper is in use.
const HANDED: usize = 16 * BURST;
/// Time until a worker tries again.
const RETRY_US: u64 = 20;
/// Bursts that one call of [`Rates::release`] sends.
const MAX_BURSTS: usize = 4;
/// A keeper that is later than this has other work, or is gone.
const LATE: u64 = 2 * clock::MS;

/// The rates of a port as the transmit queue of one worker has them.
#[derive(Debug)]
pub(crate) struct Share {
    rates: Arc<Rates>,
    worker: usize,
}

impl Share {
    pub(crate) fn new(rates: Arc<Rates>, worker: usize) -> Self {
        Self { rates, worker }
    }
    pub(crate) fn get(&self) -> Arc<Rates> {
        Arc::clone(&self.rates)
    }
    pub(crate) fn worker(&self) -> usize {
        self.worker
    }
}

impl std::ops::Deref for Share {
    type Target = Rates;
    #[inline]
    fn deref(&self) -> &Rates {
        &self.rates
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let lost = self.rates.close(self.worker);
        if let Some(shaping) = self.rates.shaping.get() {
            shaping.lost.fetch_add(lost, Relaxed);
        }
    }
}

/// The part of a port's transmit queue that sends now.
pub(crate) type Send<'a> = &'a mut dyn FnMut(&mut Pool, &[&Packet]) -> TxCounts;

const OFF: u8 = 0;
const POLICES: u8 = 1;
const SHAPES: u8 = 2;

/// The rates of a port's transmit queues together.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    mode: AtomicU8,
    policer: Published<Option<Policer>>,
    shaping: OnceLock<Box<Shaping>>,
    applied: Mutex<Option<Applied>>,
    /// Packets that the rates dropped.
    dropped: AtomicU64,
}

#[derive(Debug)]
struct Applied {
    config: QosConfig,
    /// The numbers in force.
    shown: QosConfig,
    /// Counters of the shaper's queues.
    counts: Vec<(u32, Arc<Counts>)>,
}

/// A shaper and what workers leave for its next user.
#[derive(Debug)]
struct Shaping {
    cell: Combining<WaitingPackets>,
    handed: ArrayQueue<Packet>,
    /// Waiting packets that were dropped, and not reported yet.
    lost: AtomicU64,
}

#[derive(Debug, Default)]
struct WaitingPackets {
    /// `None`: the row is gone.
    shaper: Option<Shaper>,
    /// The worker that comes back, and when.
    keeper: Option<(usize, u64)>,
}

impl Shaping {
    fn new() -> Box<Self> {
        Box::new(Self {
            cell: Combining::new(WaitingPackets::default()),
            handed: ArrayQueue::new(HANDED),
            lost: AtomicU64::new(0),
        })
    }
    /// The shaper, for the control side and for a worker that closes its queue. Spins until the current
    /// user's burst ends.
    fn wait(&self) -> CombiningGuard<'_, WaitingPackets> {
        loop {
            if let Some(guard) = self.cell.try_take() {
                return guard;
            }
            std::thread::yield_now();
        }
    }
    /// Puts packets that workers have left into their queues. Returns the number of those without room.
    fn take_handed(&self, state: &mut WaitingPackets, pool: &mut Pool, now: u64) -> u64 {
        let mut full = 0;
        // Later packets stay in the ring: their worker calls `release` again.
        for _ in 0..HANDED {
            let Some(packet) = self.handed.pop() else { break };
            full += u64::from(!state.shaper.as_mut().is_some_and(|s| s.push(&packet, now)));
            pool.put(packet);
        }
        full
    }
    /// Drops all waiting packets.
    fn drop_all(&self, state: &mut WaitingPackets) {
        let waiting = state.shaper.take().map_or(0, |s| s.waiting() as u64);
        let handed = std::iter::from_fn(|| self.handed.pop()).count() as u64;
        self.lost.fetch_add(waiting + handed, Relaxed);
    }
}

/// Control of a queue's delay, if the row requests it.
fn codel_settings(details: &Details) -> Option<codel::Settings> {
    let us = |key, default| match number(details, key) {
        0 => default,
        us => us.min(MAX_CODEL_US),
    };
    let ticks = |us| us * (clock::MS / 1000);
    Some(us(CODEL_TARGET, 0))
        .filter(|us| *us != 0)
        .map(|target| codel::Settings {
            target: ticks(target),
            interval: ticks(us(CODEL_INTERVAL, DEFAULT_CODEL_INTERVAL_US)),
        })
}

/// The hierarchy of a row. Bytes per second.
fn hierarchy(config: &QosConfig) -> Hierarchy {
    let max = Some(number(&config.details, "max-rate").div_ceil(8)).filter(|n| *n != 0);
    let most = max.unwrap_or(u64::MAX);
    let least = if config.kind == HFSC { 1 } else { FRAME_BYTES };
    let class = |details: &Details| {
        let min = (number(details, "min-rate") / 8).max(least).min(most);
        let own = Some(number(details, "max-rate").div_ceil(8)).filter(|n| *n != 0 && *n < most);
        Class {
            min,
            max: own.map(|n| n.max(min)),
            burst: (number(details, "burst") / 8).max(FRAME_BYTES),
            priority: u32::try_from(number(details, "priority")).unwrap_or(u32::MAX),
            codel: codel_settings(details),
        }
    };
    let mut classes: BTreeMap<u32, Class> = config.queues.iter().map(|(n, d)| (*n, class(d))).collect();
    // Queue 0 takes packets that name no other queue: it is there in any case.
    classes.entry(0).or_insert_with(|| class(&Details::new()));
    let burst = classes.values().map(|c| c.burst).max().unwrap_or(FRAME_BYTES);
    Hierarchy { max, burst, classes }
}

/// A hierarchy in the form of a row.
fn shown(kind: &str, hierarchy: &Hierarchy) -> QosConfig {
    let row = |numbers: &[(&str, u64)]| -> Details {
        let texts = numbers.iter().map(|(key, n)| ((*key).to_owned(), n.to_string()));
        texts.collect()
    };
    let queue = |c: &Class| {
        let mut details = row(&[("min-rate", 8 * c.min), ("burst", 8 * c.burst)]);
        if let Some(max) = c.max.or(hierarchy.max).filter(|max| *max != c.min) {
            details.extend(row(&[("max-rate", 8 * max)]));
        }
        if let Some(codel) = &c.codel {
            let us = |ticks| ticks / (clock::MS / 1000);
            let of = [
                (CODEL_TARGET, us(codel.target)),
                (CODEL_INTERVAL, us(codel.interval)),
            ];
            details.extend(row(&of));
        }
        if c.priority != 0 {
            details.extend(row(&[("priority", c.priority.into())]));
        }
        details
    };
    QosConfig {
        kind: kind.to_owned(),
        details: hierarchy
            .max
            .map(|max| row(&[("max-rate", 8 * max)]))
            .unwrap_or_default(),
        queues: hierarchy.classes.iter().map(|(id, c)| (*id, queue(c))).collect(),
    }
}

// -- the control side

impl Rates {
    /// Applies a row of `QoS`.
    ///
    /// # Errors
    /// The row is of none of [`TYPES`], or its numbers make no sense; then there is no limit.
    pub(crate) fn set_qos(&self, name: &str, qos: Option<&QosConfig>) -> Result<(), PortError> {
        let wanted = qos.filter(|q| !q.kind.is_empty() && q.kind != NOOP);
        let mut applied = self.applied.lock();
        if applied.as_ref().map(|a| &a.config) == wanted {
            return Ok(());
        }
        let now = clock::at(Tsc::now());
        let made = match wanted {
            Some(config) if [HTB, HFSC].contains(&config.kind.as_str()) => {
                let hierarchy = hierarchy(config);
                let counts = self.shape(&hierarchy, now);
                Ok(Some((SHAPES, shown(&config.kind, &hierarchy), counts)))
            }
            Some(config) if [EGRESS_POLICER, TRTCM_POLICER].contains(&config.kind.as_str()) => {
                let made = Policer::new(config, now).map(|policer| {
                    let (details, queues) = policer.shown();
                    let shown = QosConfig {
                        kind: config.kind.clone(),
                        details,
                        queues: queues.into_iter().collect(),
                    };
                    self.policer.store(Some(policer));
                    Some((POLICES, shown, Vec::new()))
                });
                made.map_err(|why| PortError::Config(format!("could not set QoS of {name}: {why}")))
            }
            Some(_) => Err(PortError::no_qos_type(name, TYPES)),
            None => Ok(None),
        };
        let mode = made
            .as_ref()
            .ok()
            .and_then(|made| made.as_ref().map(|m| m.0))
            .unwrap_or(OFF);
        self.mode.store(mode, Relaxed);
        if mode != SHAPES
            && let Some(shaping) = self.shaping.get()
        {
            shaping.drop_all(&mut shaping.wait());
        }
        *applied = None;
        if let (Some(config), Some((_, shown, counts))) = (wanted, made?) {
            *applied = Some(Applied {
                config: config.clone(),
                shown,
                counts,
            });
        }
        Ok(())
    }

    /// Puts a shaper in place of the one that there is.
    fn shape(&self, hierarchy: &Hierarchy, now: u64) -> Vec<(u32, Arc<Counts>)> {
        let shaping = self.shaping.get_or_init(Shaping::new);
        let mut new = Shaper::new(hierarchy, now);
        let mut state = shaping.wait();
        if let Some(old) = state.shaper.take() {
            let lost = new.take_over(old, now);
            shaping.lost.fetch_add(lost, Relaxed);
        }
        let counts = new.counts();
        state.shaper = Some(new);
        // The rates of its packets may be higher now: any worker may come.
        if let Some((_, due)) = &mut state.keeper {
            *due = 0;
        }
        counts
    }

    /// Number of packets that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// The row in force, with the numbers that apply.
    pub(crate) fn shown(&self) -> Option<QosConfig> {
        self.applied.lock().as_ref().map(|a| a.shown.clone())
    }

    /// The counters of its queues.
    pub(crate) fn counts(&self) -> Vec<QueueCounts> {
        let now = clock::at(Tsc::now());
        match self.applied.lock().as_ref() {
            None => Vec::new(),
            Some(applied) if applied.counts.is_empty() => {
                let policer = self.policer.load();
                policer
                    .as_ref()
                    .as_ref()
                    .map(|p| p.counts(now))
                    .unwrap_or_default()
            }
            Some(applied) => {
                let counts = applied.counts.iter().map(|(id, c)| QueueCounts {
                    queue: *id,
                    bytes: c.bytes.get(),
                    packets: c.packets.get(),
                    dropped: c.dropped.get(),
                    age_ms: c.age_ms(now),
                });
                counts.collect()
            }
        }
    }
}

// -- the workers' side

impl Rates {
    /// Whether there are rates.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.mode.load(Relaxed) != OFF
    }
    /// Whether a shaper is configured, so packets may wait.
    #[inline]
    pub(crate) fn shapes(&self) -> bool {
        self.mode.load(Relaxed) == SHAPES
    }

    /// Sends, by `send`, the packets that a policer passes, or puts packets into the shaper's queues. Packets
    /// that are dropped are counted in [`TxCounts::full`].
    #[cold]
    pub(crate) fn tx(&self, pool: &mut Pool, packets: &[&Packet], send: Send<'_>) -> TxCounts {
        match self.mode.load(Relaxed) {
            POLICES => self.police(pool, packets, send),
            SHAPES => self.enqueue(pool, packets, send),
            _ => send(pool, packets),
        }
    }

    fn police(&self, pool: &mut Pool, packets: &[&Packet], send: Send<'_>) -> TxCounts {
        let now = clock::at(Tsc::now());
        let policer = self.policer.load();
        let Some(policer) = policer.as_ref() else {
            return send(pool, packets);
        };
        let mut counts = TxCounts::default();
        for burst in packets.chunks(BURST) {
            let kept = burst.iter().filter(|p| policer.passes(p, now));
            let kept: ArrayVec<&Packet, BURST> = kept.copied().collect();
            let dropped = (burst.len() - kept.len()) as u64;
            counts.full += dropped;
            self.dropped.fetch_add(dropped, Relaxed);
            if !kept.is_empty() {
                counts += send(pool, &kept);
            }
        }
        counts
    }

    fn enqueue(&self, pool: &mut Pool, packets: &[&Packet], send: Send<'_>) -> TxCounts {
        let mut counts = TxCounts::default();
        let Some(shaping) = self.shaping.get() else {
            return send(pool, packets);
        };
        let Some(mut state) = shaping.cell.try_take() else {
            for packet in packets {
                let mut copy = pool.get_for(packet.len());
                packet.copy_into(&mut copy);
                copy.set_queue(packet.queue());
                copy.set_mark(packet.mark());
                match shaping.handed.push(copy) {
                    Ok(()) => counts.waits = true,
                    Err(copy) => {
                        pool.put(copy);
                        counts.full += 1;
                    }
                }
            }
            self.dropped.fetch_add(counts.full, Relaxed);
            return counts;
        };
        let now = clock::at(Tsc::now());
        counts.full += shaping.take_handed(&mut state, pool, now);
        let Some(shaper) = &mut state.shaper else {
            // The row has just gone: packets that other workers left are dropped.
            drop(state);
            self.dropped.fetch_add(counts.full, Relaxed);
            counts += send(pool, packets);
            return counts;
        };
        for packet in packets {
            counts.full += u64::from(!shaper.push(packet, now));
        }
        self.dropped.fetch_add(counts.full, Relaxed);
        counts.waits = true;
        counts
    }

    /// Sends, by `send`, waiting packets that may leave now, for `worker`. Returns when to come back, in
    /// cycles.
    #[cold]
    pub(crate) fn release(&self, worker: usize, pool: &mut Pool, send: Send<'_>) -> Released {
        let mut released = Released::default();
        let Some(shaping) = self.shaping.get() else {
            return released;
        };
        let cycles = Tsc::now();
        let Some(mut state) = shaping.cell.try_take() else {
            released.next = Some(cycles + Tsc::from_us(RETRY_US));
            return released;
        };
        let now = clock::at(cycles);
        let mut dropped = shaping.lost.swap(0, Relaxed) + shaping.take_handed(&mut state, pool, now);
        let WaitingPackets { shaper, keeper } = &mut *state;
        let Some(shaper) = shaper else {
            *keeper = None;
            released.counts.full += dropped;
            self.dropped.fetch_add(dropped, Relaxed);
            return released;
        };
        let mut has_sent = false;
        let mut more = false;
        for _ in 0..MAX_BURSTS {
            let popped = std::iter::from_fn(|| shaper.pop(pool, now));
            let burst: ArrayVec<Packet, BURST> = popped.take(BURST).collect();
            if burst.is_empty() {
                more = false;
                break;
            }
            {
                let packets: ArrayVec<&Packet, BURST> = burst.iter().collect();
                released.counts += send(pool, &packets);
            }
            (has_sent, more) = (true, true);
            pool.put_all(burst);
        }
        dropped += std::mem::take(&mut shaper.late);
        released.counts.full += dropped;
        self.dropped.fetch_add(dropped, Relaxed);
        let next = if more { Some(now) } else { shaper.next_at() };
        let Some(next) = next else {
            *keeper = None;
            return released;
        };
        let kept_by_another =
            keeper.is_some_and(|(other, due)| other != worker && due <= next && due + LATE > now);
        if has_sent || !kept_by_another {
            *keeper = Some((worker, next));
            released.next = Some(clock::cycles(next).max(cycles));
        }
        released
    }

    /// The queue of `worker` is closed. If no other worker is to come back for waiting packets, these are
    /// dropped: the next sender would send them late. Returns their number.
    pub(crate) fn close(&self, worker: usize) -> u64 {
        let Some(shaping) = self.shaping.get() else {
            return 0;
        };
        let mut state = shaping.wait();
        if state.keeper.is_some_and(|(keeper, _)| keeper != worker) {
            return 0;
        }
        state.keeper = None;
        let handed = std::iter::from_fn(|| shaping.handed.pop()).count() as u64;
        handed + state.shaper.as_mut().map_or(0, Shaper::drop_all)
    }
}
