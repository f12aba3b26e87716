//! Results: as data (JSON) and as text.

use crate::traffic::Phase;
use hdrhistogram::Histogram;
use serde::Serialize;

/// Latency of packets, one way, microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Packets that were timed.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// Nine of ten are faster.
    pub p90_us: f64,
    /// 99 of 100 are faster.
    pub p99_us: f64,
    /// 999 of 1000 are faster.
    pub p999_us: f64,
    /// The slowest.
    pub max_us: f64,
}

impl Latency {
    /// Summary of a histogram of cycles on a counter of `hz`.
    pub fn of(h: &Histogram<u64>, hz: u64) -> Self {
        let us = |cycles: f64| cycles * 1e6 / hz as f64;
        let quantile = |q: f64| us(h.value_at_quantile(q) as f64);
        Self {
            count: h.len(),
            mean_us: us(h.mean()),
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: us(h.max() as f64),
        }
    }
}

/// A time without packets while senders were sending.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Outage {
    /// Begin, since the start.
    pub at_ms: u64,
    /// Duration.
    pub ms: u64,
}

/// Results of one pair of ports, if pairs have loads of their own.
#[derive(Clone, Debug, Serialize)]
pub struct PairOutcome {
    /// Packets per second that the switch took.
    pub sent_pps: f64,
    /// Packets per second that arrived.
    pub received_pps: f64,
    /// Share of the sent packets that did not arrive.
    pub loss: f64,
    /// At a fixed rate: packets that could not be sent in time.
    pub skipped: u64,
    /// One way latency.
    pub latency: Option<Latency>,
}

impl PairOutcome {
    /// Results of the pair's part of a phase.
    pub fn of(p: &Phase, latency: Option<Histogram<u64>>, hz: u64) -> Self {
        let o = Outcome::of(p, hz);
        Self {
            sent_pps: o.sent_pps,
            received_pps: o.received_pps,
            loss: o.loss,
            skipped: o.skipped,
            latency: latency.map(|h| Latency::of(&h, hz)),
        }
    }
}

/// Results of a measurement. Rates are of the measured phase; totals include warming up and the last packets.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// Length of the measured phase.
    pub seconds: f64,
    /// Packets per second that the switch took.
    pub sent_pps: f64,
    /// Packets per second that arrived.
    pub received_pps: f64,
    /// Bits of frames per second that arrived, segments included.
    pub received_gbps: f64,
    /// Packets per second of another length that arrived: segments of GSO packets, neighbour discovery.
    pub foreign_pps: f64,
    /// Share of the packets sent in the measured phase that did not arrive in it.
    pub loss: f64,
    /// Packets sent, in all.
    pub sent_total: u64,
    /// Packets received, in all.
    pub received_total: u64,
    /// Packets that were read.
    pub read: u64,
    /// Read packets with wrong contents.
    pub corrupt: u64,
    /// Read packets that were out of order.
    pub reordered: u64,
    /// At a fixed rate: packets that could not be sent in time.
    pub skipped: u64,
    /// Share of the generator's time in turns that moved packets.
    pub generator_busy: f64,
    /// Cycles of those turns per packet received.
    pub generator_cycles: f64,
    /// Share of the senders' attempts that found the ring full: near 0 the generator is the limit, near 1 the
    /// switch.
    pub ring_full: f64,
    /// One way latency.
    pub latency: Option<Latency>,
    /// Results of each pair, if pairs have loads of their own.
    pub pairs: Vec<PairOutcome>,
    /// The longest pauses of reception, by time; only with reconnection.
    pub outages: Vec<Outage>,
}

impl Outcome {
    /// The rates of a phase on a counter of `hz`.
    pub fn of(p: &Phase, hz: u64) -> Self {
        let seconds = p.cycles as f64 / hz as f64;
        let per_second = |n: u64| n as f64 / seconds;
        let share = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
        Self {
            seconds,
            sent_pps: per_second(p.sent.taken),
            received_pps: per_second(p.received.packets),
            received_gbps: per_second(p.received.bytes + p.received.foreign_bytes) * 8.0 / 1e9,
            foreign_pps: per_second(p.received.foreign),
            loss: share(p.sent.taken.saturating_sub(p.received.packets), p.sent.taken),
            skipped: p.sent.skipped,
            generator_busy: share(p.busy, p.cycles),
            generator_cycles: share(p.busy, p.received.packets),
            ring_full: share(p.sent.full, p.sent.wishes),
            ..Self::default()
        }
    }
    /// One line of text under [`HEADING`].
    pub fn row(&self) -> String {
        let [p50, p99] = match self.latency {
            // No packet arrived.
            None => ["-", "-"].map(str::to_owned),
            Some(l) => [l.p50_us, l.p99_us].map(|us| format!("{us:.2}")),
        };
        format!(
            "{:>9.3} {:>9.3} {:>8.2} {:>8.4} {p50:>8} {p99:>8} {:>6.0} {:>5.2}",
            self.sent_pps / 1e6,
            self.received_pps / 1e6,
            self.received_gbps,
            self.loss * 100.0,
            self.generator_cycles,
            self.ring_full,
        )
    }
}

/// The columns of [`Outcome::row`]: millions of packets per second, gigabits per second, percent,
/// microseconds, cycles per packet, share.
pub const HEADING: &str = "sent Mpps recv Mpps   Gbit/s   loss %   p50 us   p99 us gen cy  full";
