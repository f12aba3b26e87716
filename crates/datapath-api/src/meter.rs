//! Meters: token buckets that all workers share.
//!
//! **Problem.** A meter limits the packets of all workers together, so workers share its buckets. A lock per
//! packet would make them wait for each other ([`TokenBucket`] has none).
//!
//! **Units** are bits for rates in kbit/s, thousandths of a packet for rates in packets/s. In both cases the
//! rate of OpenFlow is in units per millisecond. **Time** is the burst's coarse clock.
//!
//! **Threads.** [`Meter::police`] from any worker; configuration and statistics from control threads.
//! Counters are relaxed.

use heddle_packet::Packet;
use heddle_sync::{Published, TokenBucket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A bucket that was not looked at for so long is full: far below 2⁶³ units at the highest rate (2³² a
/// millisecond).
const IDLE_MS: u64 = 1 << 30;

/// The action of a band on packets above its rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MeterAction {
    /// Drops them.
    Drop,
    /// Raises their drop precedence (RFC 2597) by this number of steps.
    Remark(u8),
}

/// One band of a meter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MeterBand {
    /// Action on packets above the rate.
    pub action: MeterAction,
    /// Kilobits or packets per second.
    pub rate: u32,
    /// Kilobits or packets that may come at once; 0: one second's worth.
    pub burst: u32,
}

/// The configuration of a meter.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MeterConfig {
    /// Rates and bursts are packets; kilobits otherwise.
    pub packets: bool,
    /// The bands. A packet above the rates of several meets the one with the highest rate.
    pub bands: Vec<MeterBand>,
}

/// Packets and bytes that a meter has counted, in all and per band.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MeterCounts {
    /// All packets.
    pub total: (u64, u64),
    /// Packets that each band acted on.
    pub bands: Vec<(u64, u64)>,
}

/// The result of metering one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The engine forwards it.
    Pass,
    /// The engine drops it.
    Drop,
    /// The engine raises its drop precedence by this many steps ([`remark`]).
    Remark(u8),
}

#[derive(Debug, Default)]
struct Counts {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Counts {
    fn add(&self, bytes: u64) {
        self.packets.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }
    fn read(&self) -> (u64, u64) {
        (self.packets.load(Relaxed), self.bytes.load(Relaxed))
    }
}

#[derive(Debug)]
struct Band {
    action: MeterAction,
    bucket: TokenBucket,
    hits: Counts,
}

impl Band {
    fn new(b: &MeterBand, now_ms: u64) -> Self {
        let burst = if b.burst == 0 { b.rate } else { b.burst };
        let (rate, size) = (u64::from(b.rate), u64::from(burst) * 1000);
        Self {
            action: b.action,
            bucket: TokenBucket::full(rate, size, now_ms),
            hits: Counts::default(),
        }
    }
}

#[derive(Debug)]
struct Buckets {
    packets: bool,
    bands: Vec<Band>,
    total: Counts,
    used_ms: AtomicU64,
}

/// A meter, as actions name it.
#[derive(Debug)]
pub struct Meter {
    /// Number in the datapath.
    pub id: u32,
    state: Published<Buckets>,
}

impl Meter {
    /// A meter with full buckets.
    pub fn new(id: u32, config: &MeterConfig, now_ms: u64) -> Arc<Self> {
        Arc::new(Self {
            id,
            state: Published::new(Buckets::new(config, now_ms)),
        })
    }
    /// Changes what it does; it starts counting anew, with full buckets.
    pub fn configure(&self, config: &MeterConfig, now_ms: u64) {
        self.state.store(Buckets::new(config, now_ms));
    }
    /// The packets counted so far.
    pub fn counts(&self) -> MeterCounts {
        let s = self.state.load();
        MeterCounts {
            total: s.total.read(),
            bands: s.bands.iter().map(|b| b.hits.read()).collect(),
        }
    }
    /// Meters one packet. A GSO packet is charged for its segments. If that is more than a bucket's size, it
    /// passes when the bucket is full, and the bucket owes the rest.
    pub fn police(&self, packet: &Packet, now_ms: u64) -> Verdict {
        let s = self.state.load();
        let len = packet.len() as u64;
        let wire = packet.on_wire();
        s.total.add(len);
        let last = s.used_ms.fetch_max(now_ms, Relaxed);
        if now_ms.saturating_sub(last) > IDLE_MS {
            s.bands.iter().for_each(|b| b.bucket.fill(now_ms));
        }
        let units = if s.packets {
            1000 * wire.packets
        } else {
            wire.bytes * 8
        };
        let is_gso = packet.offload.gso.is_some();
        let mut worst: Option<&Band> = None;
        for b in &s.bands {
            let needs = if is_gso { units.min(b.bucket.size()) } else { units };
            if !b.bucket.take_owing(units, needs, now_ms)
                && worst.is_none_or(|w| b.bucket.rate() > w.bucket.rate())
            {
                worst = Some(b);
            }
        }
        let Some(band) = worst else { return Verdict::Pass };
        band.hits.add(len);
        match band.action {
            MeterAction::Drop => Verdict::Drop,
            MeterAction::Remark(steps) => Verdict::Remark(steps),
        }
    }
}

/// The same meter.
impl std::hash::Hash for Meter {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl PartialEq for Meter {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Buckets {
    fn new(config: &MeterConfig, now_ms: u64) -> Self {
        Self {
            packets: config.packets,
            bands: config.bands.iter().map(|b| Band::new(b, now_ms)).collect(),
            total: Counts::default(),
            used_ms: AtomicU64::new(now_ms),
        }
    }
}

/// The type of service with its drop precedence raised: only classes of assured forwarding have one (RFC
/// 2597, 6).
pub fn remark(tos: u8, steps: u8) -> u8 {
    let (class, precedence, odd) = (tos >> 5, tos >> 3 & 3, tos >> 2 & 1);
    if !(1..=4).contains(&class) || precedence == 0 || odd != 0 {
        return tos;
    }
    let raised = precedence.saturating_add(steps).min(3);
    tos & !0x18 | raised << 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_packet::{Csum, Gso, GsoKind, Wraps};

    fn meter(packets: bool, bands: &[(u32, u32)]) -> Arc<Meter> {
        let band = |(rate, burst): &(u32, u32)| MeterBand {
            action: MeterAction::Drop,
            rate: *rate,
            burst: *burst,
        };
        let config = MeterConfig {
            packets,
            bands: bands.iter().map(band).collect(),
        };
        Meter::new(0, &config, 5_000)
    }

    /// The number of packets that pass, of `n` at once.
    fn passed(m: &Meter, n: usize, len: usize, now_ms: u64) -> usize {
        let packet = Packet::from_bytes(&vec![0; len]);
        (0..n)
            .filter(|_| m.police(&packet, now_ms) == Verdict::Pass)
            .count()
    }

    #[test]
    fn a_burst_then_the_rate() {
        let m = meter(true, &[(10, 3)]);
        assert_eq!(passed(&m, 10, 60, 5_000), 3);
        // Ten a second: one in 100 ms, and the bucket never holds more than three.
        assert_eq!(passed(&m, 10, 60, 5_100), 1);
        assert_eq!(passed(&m, 10, 60, 5_199), 0);
        assert_eq!(passed(&m, 10, 60, 60_000), 3);
        let counts = m.counts();
        assert_eq!(counts.total, (40, 2400));
        assert_eq!(counts.bands, [(33, 33 * 60)]);
    }

    #[test]
    fn kilobits_count_lengths_and_the_highest_band_acts() {
        let m = meter(false, &[(1, 1), (2, 2)]);
        // 60 bytes are 480 bits: two fit into 1 kbit, four into 2 kbit; the packets between hit the first
        // band only.
        assert_eq!(passed(&m, 6, 60, 5_000), 2);
        assert_eq!(m.counts().bands, [(2, 120), (2, 120)]);
    }

    #[test]
    fn a_gso_packet_is_charged_for_its_segments() {
        let mut frame = vec![0; 54 + 10_000];
        frame[46] = 5 << 4;
        let mut packet = Packet::from_bytes(&frame);
        packet.offload.csum = Csum::Partial {
            start: 34,
            offset: 16,
        };
        packet.offload.gso = Some(Gso {
            kind: GsoKind::Tcp4,
            ecn: false,
            size: 1000,
            hdr_len: 54,
            wraps: Wraps::default(),
        });
        let passed = |m: &Meter, now_ms| {
            (0..5)
                .filter(|_| m.police(&packet, now_ms) == Verdict::Pass)
                .count()
        };
        // Ten packets of 1,054 bytes.
        let m = meter(true, &[(10_000, 25)]);
        assert_eq!([5_000, 5_001].map(|now_ms| passed(&m, now_ms)), [2, 1]);
        let m = meter(false, &[(84_320, 170)]);
        assert_eq!([5_000, 5_001].map(|now_ms| passed(&m, now_ms)), [2, 1]);
        // A bucket that is smaller owes.
        let m = meter(true, &[(1000, 2)]);
        assert_eq!([5_000, 5_009, 5_010].map(|now_ms| passed(&m, now_ms)), [1, 0, 1]);
        assert_eq!(m.counts().total, (15, 15 * 10_054));
    }

    #[test]
    fn a_long_rest_fills_the_buckets_at_any_rate() {
        let m = meter(false, &[(u32::MAX, 1)]);
        let mut now = 5_000;
        for _ in 0..20 {
            // Steps of some twelve days: the products wrap several times on the way.
            now += IDLE_MS + 1;
            assert_eq!(passed(&m, 3, 125, now), 1, "at {now}");
        }
    }

    #[test]
    fn a_late_clock_takes_nothing_that_is_not_there() {
        let m = meter(true, &[(1000, 1)]);
        assert_eq!(passed(&m, 5, 60, 6_000), 1);
        assert_eq!(passed(&m, 5, 60, 5_990), 0);
        assert_eq!(passed(&m, 5, 60, 6_001), 1);
    }

    #[test]
    fn only_assured_forwarding_is_remarked() {
        // AF11 (0x28) becomes AF12, AF13, and stays there; class selectors, expedited forwarding and ECN
        // stay.
        assert_eq!([0, 1, 2, 9].map(|n| remark(0x28, n)), [0x28, 0x30, 0x38, 0x38]);
        assert_eq!(remark(0x2b, 1), 0x33);
        for other in [0, 0x20, 0xb8, 0xc0] {
            assert_eq!(remark(other, 2), other);
        }
    }

    #[test]
    fn workers_together_keep_the_rate() {
        let m = meter(true, &[(1, 1000)]);
        let total: usize = std::thread::scope(|s| {
            let threads: Vec<_> = (0..4).map(|_| s.spawn(|| passed(&m, 1000, 60, 5_000))).collect();
            threads.into_iter().map(|t| t.join().expect("no panic")).sum()
        });
        assert_eq!(total, 1000);
    }
}
