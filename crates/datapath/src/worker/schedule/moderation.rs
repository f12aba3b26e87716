//! Pauses in a stream, where the sender shares the worker's processor.
//!
//! **Problem.** Such a sender is interrupted for each packet: the packet wakes the worker, which forwards it
//! and sleeps again. Two switches of threads cost more than the packet. If the worker waited for some
//! microseconds, it would find many packets at once, as with the interrupt moderation of network cards. But a
//! request or a reply must not wait: nothing follows it until it has been forwarded.
//!
//! **Trial.** Now and then, after packets, the worker pauses for [`PAUSE`] rather than sleep until a packet
//! comes. If it then finds [`STREAM_PACKETS`] or more, this is a stream. It pauses again after these, until a
//! pause gives fewer. Then the next trial comes after [`FIRST_WAIT_US`]. Each time this doubles, up to
//! [`LAST_WAIT_US`]. So of all packets that are no stream, one in some thousands waits.

use heddle_sys::Tsc;
use std::time::Duration;

/// The length of a pause.
pub(super) const PAUSE: Duration = Duration::from_micros(20);
/// Packets in a pause that are a stream.
const STREAM_PACKETS: usize = 4;
/// Time before the second trial, and the longest time between two, microseconds.
const FIRST_WAIT_US: u64 = 1000;
const LAST_WAIT_US: u64 = 256_000;

/// See the module's text. Times are cycle counts.
#[derive(Debug, Default)]
pub(super) struct Moderation {
    /// There were packets since the last pause.
    had_packets: bool,
    /// The round after a pause has not come yet.
    paused: bool,
    streams: bool,
    next_trial: u64,
    wait: u64,
}

impl Moderation {
    /// A round that ended at `now` had `packets`, one at least.
    #[inline]
    pub(super) fn found(&mut self, packets: usize, now: u64) {
        self.had_packets = true;
        if std::mem::take(&mut self.paused) {
            self.judge(packets, now);
        }
    }

    /// Whether the worker, which has no packets at `now`, pauses rather than sleep until there is one.
    pub(super) fn pauses(&mut self, now: u64) -> bool {
        if std::mem::take(&mut self.paused) {
            self.judge(0, now);
        }
        self.paused = std::mem::take(&mut self.had_packets) && (self.streams || now >= self.next_trial);
        self.paused
    }

    fn judge(&mut self, packets: usize, now: u64) {
        let first = Tsc::from_us(FIRST_WAIT_US);
        if packets >= STREAM_PACKETS {
            (self.streams, self.wait) = (true, first);
        } else {
            self.streams = false;
            self.next_trial = now + self.wait.max(first);
            self.wait = (self.wait.max(first) * 2).min(Tsc::from_us(LAST_WAIT_US));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds with the packets that `packets` tells for a pause, 30 us apart. Returns the number of pauses.
    fn pauses(rounds: u64, packets: impl Fn(u64) -> usize) -> u64 {
        let mut moderation = Moderation::default();
        let mut pauses = 0;
        for round in 0..rounds {
            let now = Tsc::from_us(1_000_000 + round * 30);
            let paused = moderation.pauses(now);
            pauses += u64::from(paused);
            let found = if paused { packets(round) } else { 1 };
            if found > 0 {
                moderation.found(found, now);
            }
        }
        pauses
    }

    #[test]
    fn a_stream_is_noticed_and_requests_do_not_wait() {
        assert!(pauses(100_000, |_| 10) > 99_000);
        let requests = pauses(100_000, |_| 1);
        assert!((10..40).contains(&requests), "{requests} in three seconds");
        let rests = pauses(100_000, |_| 0);
        assert!((10..40).contains(&rests), "{rests}");
        // A stream that ends is none any more after one pause.
        let ended = pauses(20_000, |round| if round < 10_000 { 10 } else { 1 });
        assert!((9_900..10_040).contains(&ended), "{ended}");
    }

    #[test]
    fn a_pause_only_follows_packets() {
        let mut moderation = Moderation::default();
        assert!(!moderation.pauses(1 << 50));
        moderation.found(1, 1 << 50);
        assert!(moderation.pauses(1 << 50));
        assert!(!moderation.pauses(1 << 51), "nothing came in the pause");
    }
}
