//! Counters of workers: per port and worker, and per worker. Single writer, any reader (see
//! `heddle_sync::Counter`).

use crate::perf::{Perf, Start};
use heddle_conntrack::{Event, Events};
use heddle_datapath_api::DropKind;
use heddle_sync::Counter;

/// One worker's counters of one port.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct PortCounters {
    pub(crate) rx_packets: Counter,
    pub(crate) rx_bytes: Counter,
    pub(crate) rx_errors: Counter,
    pub(crate) tx_packets: Counter,
    pub(crate) tx_bytes: Counter,
    pub(crate) tx_dropped: Counter,
    pub(crate) tx_errors: Counter,
}

/// One worker's drop counters. Each drop is counted by the code that decides it.
#[derive(Debug)]
pub(crate) struct Drops([Counter; DropKind::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl Drops {
    /// Counts `n` drops. Only the owning worker calls this.
    pub(crate) fn add(&self, kind: DropKind, n: u64) {
        self.0[kind as usize].add(n);
    }
    /// Number of these drops.
    pub(crate) fn get(&self, kind: DropKind) -> u64 {
        self.0[kind as usize].get()
    }
}

/// Counts of the events in [`Event::ALL`], in that order.
pub(crate) type Tally = [u64; Event::ALL.len()];

/// Adds one tally to another.
pub(crate) fn add_all(to: &mut Tally, more: Tally) {
    for (to, more) in to.iter_mut().zip(more) {
        *to += more;
    }
}

/// One worker's counters of tracking events.
#[derive(Debug)]
pub(crate) struct CtCounts([Counter; Event::ALL.len()]);

impl Default for CtCounts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl CtCounts {
    #[cold]
    pub(crate) fn add(&self, events: Events) {
        for (event, counter) in Event::ALL.into_iter().zip(&self.0) {
            if events.has(event) {
                counter.add(1);
            }
        }
    }
    /// The counts so far.
    pub(crate) fn get(&self) -> Tally {
        std::array::from_fn(|i| self.0[i].get())
    }
}

/// Length of a usage interval.
pub(crate) const INTERVAL_MS: u64 = 5000;
/// Intervals of the window: 60 seconds.
pub(crate) const INTERVALS: usize = 12;
/// Intervals that are kept: those of the window, the current one, and some for a late reader.
const KEPT: usize = 16;
/// The window over which usage is shown, milliseconds.
pub(crate) const WINDOW_MS: u64 = INTERVAL_MS * INTERVALS as u64;

/// Cycles spent in the last minute, in intervals. Interval `n` is in slot `n % 16`, with its number. So a
/// reader can distinguish a current slot from an old one that remained while the worker slept. Readers read
/// complete intervals only.
#[derive(Debug, Default)]
pub(crate) struct Window {
    slots: [(Counter, Counter); KEPT],
}

impl Window {
    /// Adds cycles spent at `now_ms`. Owner only.
    pub(crate) fn add(&self, now_ms: u64, cycles: u64) {
        let n = now_ms / INTERVAL_MS;
        let (number, sum) = &self.slots[usize::try_from(n).unwrap_or(0) % KEPT];
        if number.get() != n {
            sum.set(0);
            number.set(n);
        }
        sum.add(cycles);
    }
    /// Cycles of each of the window's intervals, the newest first.
    pub(crate) fn each(&self, now_ms: u64) -> [u64; INTERVALS] {
        let now = now_ms / INTERVAL_MS;
        std::array::from_fn(|back| {
            let n = now.saturating_sub(1 + back as u64);
            let (number, sum) = &self.slots[usize::try_from(n).unwrap_or(0) % KEPT];
            if number.get() == n && n > 0 { sum.get() } else { 0 }
        })
    }
    /// The sum over the last `window_ms`, in whole intervals.
    pub(crate) fn sum(&self, now_ms: u64, window_ms: u64) -> u64 {
        let intervals = usize::try_from(window_ms / INTERVAL_MS)
            .unwrap_or(INTERVALS)
            .max(1);
        self.each(now_ms).iter().take(intervals).sum()
    }
}

/// Number of whole intervals of the last `window_ms` since a thread's start at `started_ms`.
pub(crate) fn whole_intervals(now_ms: u64, started_ms: u64, window_ms: u64) -> u64 {
    let lived = (now_ms / INTERVAL_MS).saturating_sub(started_ms.div_ceil(INTERVAL_MS));
    lived.min(window_ms / INTERVAL_MS)
}

impl WorkerCounters {
    /// The counters that an iteration's measurement begins with.
    pub(crate) fn perf_start(&self) -> Start {
        Start {
            batches: self.bursts.get(),
            upcalls: self.misses.get(),
            upcall_cycles: self.cycles_translate.get(),
        }
    }
}

macro_rules! worker_counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One worker's counters.
        #[derive(Debug, Default)]
        #[repr(align(64))]
        pub(crate) struct WorkerCounters { $($(#[$doc])* pub(crate) $name: Counter,)* pub(crate) drops: Drops, pub(crate) ct: CtCounts, pub(crate) usage: Window, pub(crate) perf: Perf }

        /// A copy of them.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct WorkerNumbers { $($(#[$doc])* pub(crate) $name: u64,)* }

        impl WorkerCounters {
            pub(crate) fn read(&self) -> WorkerNumbers {
                WorkerNumbers { $($name: self.$name.get(),)* }
            }
        }
        impl WorkerNumbers {
            /// All of them, by name.
            pub(crate) fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
            /// Counts since `base`.
            pub(crate) fn since(&self, base: &Self) -> Self {
                Self { $($name: self.$name.wrapping_sub(base.$name),)* }
            }
        }
    };
}

worker_counters! {
    /// Packets received or injected.
    packets,
    /// Packets recirculated, counted at each lookup.
    recirculated,
    /// Packets that had to wait for a neighbour.
    waited,
    /// Bursts that were not empty.
    bursts,
    /// Equal to the packet before.
    l0_hits,
    /// Exact-match hits.
    l1_hits,
    /// Wildcarded hits.
    l2_hits,
    /// Masks that wildcarded hits went through, each up to its own.
    l2_probes,
    /// Packets translated because no entry matched.
    misses,
    /// Hits whose entry was translated again because something it depends on had changed.
    revalidated,
    /// Results that were not cached: limit reached, ring full, or not cacheable.
    not_cached,
    /// The part of `not_cached` that is due to the flow limit.
    limit_hits,
    /// Transmit calls.
    tx_batches,
    /// Packets accepted by transmit calls.
    tx_packets,
    /// Loop iterations that found packets. Counted after all iterations and read before them, so the shown
    /// number is never greater than theirs.
    iterations_busy,
    /// Loop iterations.
    iterations,
    /// Times that the worker slept.
    sleeps,
    /// Cycles of iterations that found packets.
    cycles_busy,
    /// Cycles of iterations that found no packets.
    cycles_idle,
    /// Cycles asleep, in completed sleeps.
    cycles_asleep,
    /// Time stamp counter when the worker fell asleep; 0: it is awake.
    asleep_since,
    /// Cycles in receive calls that returned packets.
    cycles_rx,
    /// Cycles parsing.
    cycles_parse,
    /// Cycles in cache lookups.
    cycles_lookup,
    /// Cycles translating and caching.
    cycles_translate,
    /// Cycles running actions.
    cycles_exec,
    /// Cycles in transmit calls.
    cycles_tx,
    /// Entries now.
    flows,
    /// Masks now.
    masks,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_shows_intervals_that_are_over() {
        let w = Window::default();
        w.add(5_000, 7);
        w.add(9_999, 1);
        assert_eq!(w.sum(9_999, WINDOW_MS), 0, "this interval is not over");
        assert_eq!(w.sum(10_000, INTERVAL_MS), 8);
        w.add(10_000, 5);
        assert_eq!(w.sum(15_000, INTERVAL_MS), 5);
        assert_eq!(w.sum(15_000, WINDOW_MS), 13);
        assert_eq!(w.each(15_000)[..3], [5, 8, 0]);
        assert_eq!(w.sum(69_999, WINDOW_MS), 13);
        assert_eq!(w.sum(70_000, WINDOW_MS), 5, "a minute ago");
        assert_eq!(
            w.sum(5_000 + 16 * INTERVAL_MS, WINDOW_MS),
            0,
            "the slot's number tells"
        );
    }

    #[test]
    fn intervals_lived_through() {
        assert_eq!(whole_intervals(9_999, 1_000, WINDOW_MS), 0);
        assert_eq!(whole_intervals(10_000, 1_000, WINDOW_MS), 1);
        assert_eq!(whole_intervals(10_000, 5_000, WINDOW_MS), 1);
        assert_eq!(whole_intervals(900_000, 1_000, WINDOW_MS), 12);
        assert_eq!(whole_intervals(900_000, 1_000, INTERVAL_MS), 1);
    }
}
