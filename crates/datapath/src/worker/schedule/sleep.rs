//! A worker without packets polls for a while. Then it sleeps until a queue or the control side wakes it.
//!
//! **How long to poll** is decided by [`super::polling`]. An unpinned worker yields between polls, because
//! there may be fewer processors than threads.
//!
//! **Where the senders share the processor**, the worker pauses between the packets of a stream
//! ([`super::moderation`]).
//!
//! **`pmd-sleep-max`** ([`crate::MaxSleep`]) replaces the polling by pauses of that length, during which
//! queues are not armed. After two pauses without packets it goes to sleep. With 0 it polls for ever. After a
//! round with many packets more may come at any moment, and rings overflow in a long pause. So the first
//! pauses after such a round are short.
//!
//! **Light sleep** (`heddle-light-sleep`). The cost of waking is mostly the processor's halt (in a virtual
//! machine the host's). As long as packets come every few milliseconds, a worker keeps processors from
//! halting while it sleeps ([`Awake`]). After [`LIGHT_MS`] without packets it lets them halt, and continues
//! to sleep.
//!
//! **No lost wake-up.** Before sleeping every queue is armed and looks again after arming; commands are
//! pushed before the eventfd is written, and the descriptor is level triggered. Queues without a descriptor
//! are polled every millisecond.
//!
//! **The packet first.** A packet that woke the worker is forwarded before the queue's descriptor is made
//! unreadable again ([`Worker::settle`]). That is a system call, and it only has to happen before the next
//! arming.

use super::super::Worker;
use super::moderation::{Moderation, PAUSE};
use super::polling::AdaptivePolling;
use super::round::Events;
use heddle_sys::Tsc;
use heddle_sys::awake::Awake;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// Interval of polling queues without a descriptor, milliseconds.
const POLL_ONLY_MS: i32 = 1;

/// Sleeps shorter than this are short; after [`LIGHT_AFTER`] short sleeps in a row, sleeps are light.
/// Milliseconds.
const LIGHT_MS: i32 = 20;
const LIGHT_AFTER: u8 = 4;

/// The worker does not sleep if packets that wait in a queue may leave this soon, microseconds.
const SOON_US: u64 = 50;

/// The worker's waiting for packets.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    polling: AdaptivePolling,
    moderation: Moderation,
    /// The last call of [`Worker::idle`] slept.
    pub(crate) slept: bool,
    /// Descriptors were readable and [`Worker::settle`] has not reset them yet.
    pub(super) fired: bool,
    /// `pmd-sleep-max`, microseconds.
    pause_us: Option<u64>,
    /// Pauses of full length since the last packet.
    pauses: u8,
    /// The next pause is the configured one divided by 2^`shorter`.
    shorter: u8,
    /// Short sleeps in a row.
    short_sleeps: u8,
    /// Set during a light sleep.
    awake: Option<Awake>,
}

/// Pauses before a worker sleeps.
const PAUSES: u8 = 2;
/// A round with this number of packets has many of them. It is half of what Open vSwitch takes from a queue
/// at once, which is its measure, too.
const BUSY_ROUND_PACKETS: usize = 16;
/// Power of two by which the first pause after that is shorter, and the step by which the power falls.
const SHORTER: u8 = 6;
const STEP: u8 = 2;

impl Idle {
    /// The last round, which took place within these cycle counts, found `packets` packets.
    pub(crate) fn busy(&mut self, packets: usize, round: Range<u64>, max: u64) {
        self.polling.found(round.start, round.end, packets, max);
        self.moderation.found(packets, round.end);
        self.pauses = 0;
        if packets >= BUSY_ROUND_PACKETS {
            self.shorter = SHORTER;
        }
    }
    /// Length of the next pause of [`Moderation`] at `now`; `None`: it is time to sleep.
    fn next_moderation(&mut self, now: u64) -> Option<Duration> {
        (self.polling.is_yielding(now) && self.moderation.pauses(now)).then_some(PAUSE)
    }
    /// Length of the next pause, if the maximum is `us` microseconds; `None`: it is time to sleep.
    fn next_pause(&mut self, us: u64) -> Option<Duration> {
        if self.pauses >= PAUSES {
            return None;
        }
        let pause = Duration::from_nanos((us * 1000) >> self.shorter);
        match self.shorter.checked_sub(STEP) {
            Some(less) => self.shorter = less,
            None => self.pauses += 1,
        }
        Some(pause)
    }
}

impl Worker {
    /// Sets the length of pauses from now on.
    pub(crate) fn pause(&mut self, us: Option<u64>) {
        self.schedule.idle.pause_us = us;
        self.schedule.idle.shorter = 0;
        // With pauses, the worker may never sleep again.
        (self.schedule.idle.short_sleeps, self.schedule.idle.awake) = (0, None);
    }

    /// Called when a round, from cycle count `begin` to `now`, found no packets.
    pub(crate) fn idle(&mut self, begin: u64, now: u64) {
        let max = self.shared.spin_cycles.load(Relaxed);
        self.schedule.idle.polling.found_nothing(begin, now, max);
        let polls = match self.schedule.idle.pause_us {
            None => self.schedule.idle.polling.continues(now, max),
            Some(us) => us == 0,
        };
        let due = self.resources.tx.next_due().saturating_sub(now);
        if polls || due < Tsc::from_us(SOON_US) {
            if self.pinned {
                std::hint::spin_loop();
            } else {
                #[expect(clippy::disallowed_methods, reason = "others want the processor")]
                std::thread::yield_now();
            }
            return;
        }
        if self.stop || !self.commands.is_empty() || !self.findings.is_empty() || !self.syncing.is_empty() {
            return;
        }
        self.publish_rx_drops();
        let idle = &mut self.schedule.idle;
        let pause = match idle.pause_us {
            Some(us) => idle.next_pause(us),
            None => idle.next_moderation(now),
        };
        match pause {
            Some(pause) => {
                self.schedule.idle.slept = true;
                self.counters.sleeps.add(1);
                // Packets do not wake the worker from a pause.
                #[expect(clippy::disallowed_methods, reason = "packets gather meanwhile")]
                std::thread::sleep(pause.min(Duration::from_micros(to_us(due))));
            }
            None => self.sleep(due),
        }
    }

    /// Whether processors are kept from halting in the sleep that begins now.
    fn sleeps_lightly(&mut self) -> bool {
        let idle = &mut self.schedule.idle;
        if idle.short_sleeps < LIGHT_AFTER || !self.shared.light_sleep.load(Relaxed) {
            idle.awake = None;
        } else if idle.awake.is_none() {
            idle.awake = Awake::hold().ok();
        }
        idle.awake.is_some()
    }

    /// `due`: cycles until packets that wait in a queue may leave.
    fn sleep(&mut self, due: u64) {
        let mut work = false;
        // No sleep is longer than [`POLL_ONLY_MS`] while events wait for room in the revalidator's ring,
        // segments wait, or packets wait for a neighbour. Another worker may learn that neighbour.
        let mut poll_only = self.cache.has_evicted() || self.frames.any() || self.waiting.any();
        for slot in &mut self.rx {
            work |= slot.queue.arm();
            poll_only |= slot.watched.is_none();
        }
        // Orders the arming before epoll checks the descriptors (the queues do the same for rings).
        std::sync::atomic::fence(SeqCst);
        let mut rung = false;
        if !work {
            let lightly = self.sleeps_lightly();
            let timeout = if poll_only {
                POLL_ONLY_MS
            } else if lightly {
                LIGHT_MS
            } else {
                -1
            };
            let timeout = if due == u64::MAX {
                timeout
            } else {
                shorter(timeout, due)
            };
            self.counters.sleeps.add(1);
            let asleep = Tsc::now();
            self.counters.asleep_since.set(asleep);
            let Events { any: woken, bell } = self.poll_events(timeout);
            rung = bell;
            let now = Tsc::now();
            if woken {
                let max = self.shared.spin_cycles.load(Relaxed);
                self.schedule.idle.polling.woken(asleep, now, max);
                self.schedule.kernel_query.found();
                self.skip_empty(now);
            }
            let slept = now.wrapping_sub(asleep);
            let soon = slept < Tsc::hz() / 1000 * u64::from(LIGHT_MS.unsigned_abs());
            self.schedule.idle.short_sleeps = if woken && soon {
                (self.schedule.idle.short_sleeps + 1).min(LIGHT_AFTER)
            } else {
                0
            };
            self.schedule.idle.slept = true;
        }
        for slot in &mut self.rx {
            slot.queue.disarm();
        }
        if rung {
            self.bell.drain();
        }
    }

    /// Makes descriptors unreadable whose queues were polled since they woke the worker. Called after a
    /// round, and before a queue is moved.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if std::mem::take(&mut self.schedule.idle.fired) {
            for slot in self.rx.iter_mut().filter(|s| s.fired) {
                slot.fired = false;
                slot.queue.woken();
            }
        }
    }
}

fn to_us(cycles: u64) -> u64 {
    cycles / Tsc::from_us(1).max(1)
}

/// A time-out in milliseconds that ends when packets may leave in `due` cycles. It is a millisecond at least:
/// a shaper makes up for the time by which its worker is late.
fn shorter(timeout_ms: i32, due: u64) -> i32 {
    let ms = i32::try_from(to_us(due) / 1000).unwrap_or(i32::MAX).max(1);
    if timeout_ms < 0 { ms } else { timeout_ms.min(ms) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths of the pauses until it is time to sleep, microseconds.
    fn pauses(idle: &mut Idle) -> Vec<u128> {
        std::iter::from_fn(|| idle.next_pause(1000))
            .map(|p| p.as_micros())
            .collect()
    }

    #[test]
    fn waiting_packets_end_a_sleep() {
        let in_us = Tsc::from_us;
        assert_eq!(
            [(-1, 100), (-1, 7900), (3, 7900), (1, 100)].map(|(t, us)| shorter(t, in_us(us))),
            [1, 7, 3, 1]
        );
        assert_eq!(shorter(-1, u64::MAX - 1), i32::MAX);
    }

    #[test]
    fn pauses_are_short_at_first_where_many_packets_came() {
        let mut idle = Idle::default();
        assert_eq!(pauses(&mut idle), [1000, 1000]);
        idle.busy(1, 0..1, 0);
        assert_eq!(pauses(&mut idle), [1000, 1000]);
        idle.busy(32, 0..1, 0);
        assert_eq!(pauses(&mut idle), [15, 62, 250, 1000, 1000]);
        idle.busy(32, 0..1, 0);
        assert_eq!(idle.next_pause(1000), Some(Duration::from_nanos(15_625)));
        idle.busy(2, 0..1, 0);
        assert_eq!(pauses(&mut idle), [62, 250, 1000, 1000]);
    }
}
