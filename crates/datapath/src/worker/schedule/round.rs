//! Rounds over the receive queues: which queues are polled, for how many packets, and what they are charged
//! ([`super::queue`] decides this).

use super::super::command::{Reply, token_of};
use super::super::{BELL_TOKEN, RxSlot, Source, Taken, Worker};
use super::backoff::RING_BUSY_CYCLES;
use super::queue::{Others, PortBudget, QUANTUM_CYCLES};
use heddle_datapath_api::DropKind;
use heddle_packet::{BURST, Packet};
use heddle_sys::Tsc;
#[expect(clippy::disallowed_types, reason = "when queues have gone")]
use std::collections::HashMap;
use std::os::fd::RawFd;

/// A round over the queues.
struct Polled {
    packets: usize,
    /// A queue was left out.
    left_out: bool,
}

/// The events of one wait.
#[derive(Default)]
pub(crate) struct Events {
    /// There was any event.
    pub(crate) any: bool,
    /// The bell rang.
    pub(crate) bell: bool,
}

impl Worker {
    /// One turn of each queue that need not wait for others ([`super::queue`]); returns the number of
    /// packets. Queues with few packets share a burst. It is forwarded when it is half full, so that the next
    /// queue always finds room, or at the end of the round. A queue whose packets are expensive shares no
    /// burst.
    pub(crate) fn poll_all(&mut self, t0: u64) -> usize {
        let Polled {
            packets: mut total,
            left_out,
        } = self.poll_each(t0, true);
        if total == 0 && left_out {
            // The other queues have no packets after all, or wait too.
            total = self.poll_each(Tsc::now(), false).packets;
        }
        if !self.syncing.is_empty() {
            self.publish_rx_drops();
            self.syncing.retain_mut(|(reply, rounds)| {
                *rounds = rounds.saturating_sub(1);
                let over = total == 0 || *rounds == 0;
                if over {
                    // The caller may have stopped waiting.
                    let _ = reply.send(Reply::Done);
                }
                !over
            });
        }
        total
    }

    /// Polls each queue, in their order. If `patient`, it skips queues that have to wait for others, and
    /// queues in back-off. Queues in back-off are also skipped while rings had packets recently.
    fn poll_each(&mut self, t0: u64, patient: bool) -> Polled {
        let (mut total, mut waited) = (0, false);
        let mut t = t0;
        let was_full = std::mem::take(&mut self.schedule.full);
        let was_active = std::mem::take(&mut self.schedule.active);
        self.schedule.round += 1;
        let n_queues = self.rx.len();
        let alone = n_queues == 1;
        let mut queried = false;
        for i in 0..self.rx.len() {
            let slot = &mut self.rx[i];
            if !self.schedule.budgets[slot.budget].admits(&mut slot.pass, self.schedule.round) {
                let full = usize::from(slot.scheduler.full);
                self.schedule.full += full;
                self.schedule.active += full;
                waited = true;
                continue;
            }
            let others = was_full.saturating_sub(usize::from(slot.scheduler.full));
            if patient && slot.scheduler.waits(t, others) {
                self.schedule.full += usize::from(slot.scheduler.full);
                self.schedule.active += 1;
                waited = true;
                continue;
            }
            // A `Sync` command requires a round over all queues.
            let hasty = (patient || t < self.schedule.rings_busy_until) && self.syncing.is_empty();
            if hasty
                && !queried
                && slot.watched.is_some()
                && slot.backoff.as_ref().is_some_and(|l| l.is_due(t))
            {
                queried = true;
                t = self.query_kernel(t);
            }
            let slot = &mut self.rx[i];
            if hasty && slot.backoff.as_ref().is_some_and(|l| l.waits(t)) {
                waited |= t >= self.schedule.rings_busy_until;
                continue;
            }
            if slot.scheduler.is_expensive() && !self.scratch.sources.is_empty() {
                t = self.forward(t);
            }
            if self.scratch.sources.is_empty() {
                // Later packets of a queue must not overtake the waiting ones.
                self.end_waiting();
            }
            let slot = &mut self.rx[i];
            let max = slot.scheduler.max_packets(match was_active {
                _ if alone => Others::None,
                0 | 1 => Others::Quiet,
                _ => Others::Active,
            });
            let resources = &mut self.resources;
            let Taken {
                packets: n,
                more: full,
            } = slot.take(
                max,
                &mut resources.pool,
                &mut resources.live.burst,
                &mut self.scratch.spare,
            );
            let mut kept = n;
            if n > 0 && slot.shared.policing.is_on() {
                let from = resources.live.burst.len() - n;
                let lose = |mut p: Packet| {
                    p.in_port = slot.port;
                    self.counters.drops.add(DropKind::RxPoliced, 1);
                    resources.tx.watch.lost(DropKind::RxPoliced, 1, &p, None);
                    resources.pool.put(p);
                };
                // The time of the last burst may be long ago.
                let now_ms = self.shared.clock.now_ms();
                kept -= slot
                    .shared
                    .policing
                    .police(&mut resources.live.burst, from, now_ms, lose);
            }
            slot.scheduler.begin_turn(n, full, t);
            self.schedule.full += usize::from(full);
            self.schedule.active += usize::from(n > 0);
            let now = Tsc::now();
            let cycles = now.wrapping_sub(t);
            if n == 0 {
                // An empty poll is not free, and the next queue must not pay for it.
                if cycles > QUANTUM_CYCLES / 4 {
                    slot.scheduler.end_turn(0, cycles, now, others);
                }
                if let Some(backoff) = &mut slot.backoff {
                    backoff.found_nothing(cycles, now, n_queues);
                }
                self.schedule.budgets[slot.budget].charge(cycles);
                t = now;
            } else {
                match &mut slot.backoff {
                    Some(backoff) => backoff.found(),
                    None => self.schedule.rings_busy_until = now + RING_BUSY_CYCLES,
                }
                self.counters.cycles_rx.add(cycles);
                self.scratch.sources.push(Source {
                    slot: i,
                    packets: kept,
                    cycles,
                });
                total += n;
                t = now;
                if self.resources.live.burst.len() >= BURST / 2 || self.rx[i].scheduler.is_expensive() {
                    t = self.forward(t);
                }
            }
        }
        if !self.scratch.sources.is_empty() {
            self.forward(t);
        }
        Polled {
            packets: total,
            left_out: waited,
        }
    }

    /// Queries the kernel at time `t` for queues that have packets; the other ones are skipped for a while.
    /// Returns the time.
    fn query_kernel(&mut self, t: u64) -> u64 {
        if self.poll_events(0).bell {
            // The round reads commands in any case.
            self.bell.drain();
        }
        let now = Tsc::now();
        let due = |s: &RxSlot| s.watched.is_some() && s.backoff.as_ref().is_some_and(|l| l.is_due(t));
        match self.rx.iter().any(|s| s.fired && due(s)) {
            true => self.schedule.kernel_query.found(),
            false => self
                .schedule
                .kernel_query
                .found_nothing(now.wrapping_sub(t), now, 1),
        }
        self.skip_empty(now);
        now
    }

    /// Waits up to `timeout_ms` for events on queues and the bell, and marks the queues.
    pub(crate) fn poll_events(&mut self, timeout_ms: i32) -> Events {
        let mut events = Events::default();
        let Ok(ready) = self.epoll.wait(timeout_ms) else {
            return events;
        };
        for r in ready {
            events.any = true;
            events.bell |= r.token == BELL_TOKEN;
            let same = |fd: RawFd| token_of(fd) == r.token;
            for slot in self.rx.iter_mut().filter(|s| s.watched.is_some_and(same)) {
                slot.fired = true;
                self.schedule.idle.fired = true;
            }
        }
        events
    }

    /// Skips the queues for which the kernel reported no packets at time `now`.
    pub(crate) fn skip_empty(&mut self, now: u64) {
        let others = self.rx.iter_mut().filter(|s| !s.fired && s.watched.is_some());
        others
            .filter_map(|s| s.backoff.as_mut())
            .for_each(|l| l.kernel_reports_empty(now, Some(&self.schedule.kernel_query)));
    }

    /// Adds a queue to poll from now on.
    pub(crate) fn add_slot(&mut self, mut slot: RxSlot) {
        slot.budget = match self.rx.iter().find(|s| s.port == slot.port) {
            Some(sibling) => sibling.budget,
            None => {
                self.schedule.budgets.push(PortBudget::default());
                self.schedule.budgets.len() - 1
            }
        };
        slot.pass = self.schedule.budgets[slot.budget].join();
        self.rx.push(slot);
    }

    /// Makes the ports' accounts anew, after queues were removed.
    pub(crate) fn regroup(&mut self) {
        #[expect(clippy::disallowed_types, reason = "when queues have gone")]
        let mut ports = HashMap::new();
        self.schedule.budgets.clear();
        for slot in &mut self.rx {
            slot.budget = *ports.entry(slot.port).or_insert_with(|| {
                self.schedule.budgets.push(PortBudget::default());
                self.schedule.budgets.len() - 1
            });
            slot.pass = self.schedule.budgets[slot.budget].join();
        }
    }

    /// Forwards the held packets of a queue.
    pub(crate) fn finish_held(&mut self, slot: usize) {
        let held = std::mem::take(&mut self.rx[slot].held);
        let packets = held.len();
        if packets > 0 {
            self.resources.live.burst.extend(held);
            let source = Source {
                slot,
                packets,
                cycles: 0,
            };
            self.scratch.sources.push(source);
            self.forward(Tsc::now());
        }
    }

    /// Forwards the received packets, and notifies the queues that their packets are done.
    fn forward(&mut self, t0: u64) -> u64 {
        let n = self.resources.live.burst.len() as u64;
        let mut packets = self.resources.live.burst.iter_mut();
        for source in &self.scratch.sources {
            let slot = &self.rx[source.slot];
            let mut bytes = 0;
            for p in packets.by_ref().take(source.packets) {
                p.in_port = slot.port;
                bytes += p.len() as u64;
            }
            slot.counters.rx_packets.add(source.packets as u64);
            slot.counters.rx_bytes.add(bytes);
        }
        let t1 = self.burst(None, t0);
        // Packets measured by themselves are charged already; the rest is charged by the number of packets.
        let sources = self.scratch.sources.iter();
        let charged: u64 = sources.map(|s| self.rx[s.slot].scheduler.charged).sum();
        let cycles = t1.wrapping_sub(t0).saturating_sub(charged);
        for source in self.scratch.sources.drain(..) {
            let slot = &mut self.rx[source.slot];
            if slot.held.is_empty() {
                slot.queue.complete();
            }
            let share = cycles * source.packets as u64 / n.max(1);
            let cost = source.cycles + share + slot.scheduler.charged;
            let others = self
                .schedule
                .full
                .saturating_sub(usize::from(slot.scheduler.full));
            slot.scheduler.end_turn(source.packets, cost, t1, others);
            self.schedule.budgets[slot.budget].charge(cost);
            slot.shared.usage.add(self.resources.now_ms, cost);
        }
        t1
    }
}
