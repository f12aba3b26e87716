//! Controlled delay of a queue (CoDel, RFC 8289). If packets wait for longer than a target during a whole
//! interval, some are dropped, so that senders slow down.
//!
//! The drops come at shorter and shorter distances until the delay is below the target. The last packet of a
//! queue is never dropped. Packets are dropped, not marked.

/// Times of a queue, in ticks ([`super::clock`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Settings {
    /// Delay that a packet may have.
    pub(super) target: u64,
    /// Time for which the delay may be longer: about the round-trip time of connections.
    pub(super) interval: u64,
}

/// State of a queue (RFC 8289 §5).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Codel {
    /// When the delay will have been above the target for an interval; `None`: it is below.
    above_until: Option<u64>,
    /// Time of the next drop; `None`: packets are not dropped.
    drop_next: Option<u64>,
    /// Number of drops since the delay was last below the target.
    count: u64,
    last_count: u64,
    /// Time of the last drop that was planned.
    last_next: u64,
}

impl Settings {
    /// Time of the drop behind the one at `from` (§5.4).
    fn next_drop(&self, from: u64, count: u64) -> u64 {
        let square = u128::from(self.interval) * u128::from(self.interval);
        from + u64::try_from((square / u128::from(count.max(1))).isqrt()).unwrap_or(self.interval)
    }
}

impl Codel {
    /// Whether the first packet of a queue is to be dropped at `now`. It has waited for `delay`; `is_last`:
    /// it is the only one.
    pub(super) fn drops(&mut self, settings: &Settings, delay: u64, is_last: bool, now: u64) -> bool {
        if !self.is_above(settings, delay, is_last, now) {
            self.drop_next = None;
            return false;
        }
        match self.drop_next {
            Some(at) if now < at => false,
            Some(at) => {
                self.count += 1;
                self.plan(settings, at);
                true
            }
            None => {
                // The queue was just emptied by drops: continue at about that distance.
                let delta = self.count - self.last_count;
                let is_recent = now < self.last_next.saturating_add(16 * settings.interval);
                self.count = if delta > 1 && is_recent { delta } else { 1 };
                self.last_count = self.count;
                self.plan(settings, now);
                true
            }
        }
    }

    fn plan(&mut self, settings: &Settings, from: u64) {
        self.last_next = settings.next_drop(from, self.count);
        self.drop_next = Some(self.last_next);
    }

    /// Whether the delay has been above the target for an interval.
    fn is_above(&mut self, settings: &Settings, delay: u64, is_last: bool, now: u64) -> bool {
        if delay < settings.target || is_last {
            self.above_until = None;
            return false;
        }
        now >= *self.above_until.get_or_insert(now + settings.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::MS;
    use super::*;

    const SETTINGS: Settings = Settings {
        target: 5 * MS,
        interval: 100 * MS,
    };

    /// Times (ms) of the drops while a packet is taken each millisecond, by its delay (ms).
    fn drops(codel: &mut Codel, ms: std::ops::Range<u64>, delay_ms: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut found = Vec::new();
        for now_ms in ms {
            if codel.drops(&SETTINGS, delay_ms(now_ms) * MS, false, now_ms * MS) {
                found.push(now_ms);
            }
        }
        found
    }

    #[test]
    fn a_short_delay_and_a_burst_lose_nothing() {
        let mut codel = Codel::default();
        assert_eq!(drops(&mut codel, 1000..3000, |_| 4), [0; 0]);
        // 90 ms above the target, then 10 ms below it.
        let bursts = |ms| if ms % 100 < 90 { 50 } else { 1 };
        assert_eq!(drops(&mut codel, 3000..6000, bursts), [0; 0]);
    }

    #[test]
    fn a_standing_queue_loses_packets_at_shorter_and_shorter_distances() {
        let mut codel = Codel::default();
        let all = drops(&mut codel, 1000..2000, |_| 50);
        assert_eq!(all[..5], [1100, 1200, 1271, 1329, 1379]);
        assert!(all.windows(3).all(|w| w[2] - w[1] <= w[1] - w[0] + 1), "{all:?}");
        // When the delay is below the target, drops end at once, and resume where they were soon after.
        assert_eq!(drops(&mut codel, 2000..2010, |_| 1), [0; 0]);
        let again = drops(&mut codel, 2010..2400, |_| 50);
        assert_eq!(again[0], 2110);
        assert!(again[1] - again[0] < 50, "{again:?}");
        // Much later they begin anew.
        assert_eq!(drops(&mut codel, 8000..8001, |_| 1), [0; 0]);
        let anew = drops(&mut codel, 9000..9400, |_| 50);
        assert_eq!(anew[..3], [9100, 9200, 9271]);
    }

    #[test]
    fn the_last_packet_stays() {
        let mut codel = Codel::default();
        let lost = (0..1000).filter(|ms| codel.drops(&SETTINGS, SETTINGS.target * 9, true, ms * MS));
        assert_eq!(lost.count(), 0);
    }
}
