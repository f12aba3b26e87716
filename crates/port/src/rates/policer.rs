//! Policers of Open vSwitch's DPDK ports: packets above the rate are dropped, none waits.
//!
//! * `egress-policer`: one bucket, `cir` bytes per second and `cbs` bytes (RFC 2697 without an excess
//!   bucket).
//! * `trtcm-policer`: a bucket for `cir` and `cbs` and one for `eir` and `ebs` (RFC 4115), for each queue and
//!   for the port. A packet has the colour that its queue's buckets give, then the port's buckets decide.
//!
//! A packet's Ethernet header is not charged, as there. A GSO packet is charged for its segments. If it is
//! longer than the bucket it passes when the bucket is full, and owes the rest. A guest's GSO packets are
//! usually longer than `cbs`, and each of their segments would pass.
//!
//! Buckets are in millionths of a byte, times in microseconds. They are shared by all workers, without a
//! lock.

use super::clock::MS;
use crate::QosConfig;
use crate::qos::{Details, EGRESS_POLICER, number};
use heddle_packet::Packet;
use heddle_sync::TokenBucket;
use heddle_sys::QueueCounts;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of the header that is not charged.
const ETH_LEN: u64 = 14;
/// Tokens of a byte.
const TOKENS: u64 = 1_000_000;
const MAX_BYTES: u64 = 1 << 40;

/// A time in microseconds.
fn us(now: u64) -> u64 {
    now / (MS / 1000)
}

/// A rate with its burst.
#[derive(Debug)]
pub(super) struct Limit {
    bucket: TokenBucket,
    size: u64,
    used_us: AtomicU64,
    /// Microseconds after which an unused bucket is full, and its arithmetic would wrap soon.
    idle_us: u64,
}

impl Limit {
    fn new(rate: u64, burst: u64, now: u64) -> Self {
        let (rate, size) = (rate.min(MAX_BYTES), burst.min(MAX_BYTES) * TOKENS);
        Self {
            bucket: TokenBucket::full(rate, size, us(now)),
            size,
            used_us: AtomicU64::new(us(now)),
            idle_us: (1 << 62) / rate.max(1),
        }
    }
    fn takes(&self, charge: &Charge, now: u64) -> bool {
        let now = us(now);
        let last = self.used_us.fetch_max(now, Relaxed);
        if now.saturating_sub(last) > self.idle_us {
            self.bucket.fill(now);
        }
        let tokens = charge.bytes * TOKENS;
        let needs = if charge.is_gso {
            tokens.min(self.size)
        } else {
            tokens
        };
        self.bucket.take_owing(tokens, needs, now)
    }
}

/// The charge of one packet.
struct Charge {
    bytes: u64,
    is_gso: bool,
}

impl Charge {
    fn of(packet: &Packet) -> Self {
        let wire = packet.on_wire();
        Self {
            bytes: wire.bytes.saturating_sub(ETH_LEN * wire.packets),
            is_gso: packet.offload.gso.is_some(),
        }
    }
}

/// Colours of RFC 4115.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Color {
    Green,
    Yellow,
    Red,
}

/// Settings of a policer. Bytes per second and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Settings {
    cir: u64,
    cbs: u64,
    eir: u64,
    ebs: u64,
}

impl Settings {
    fn read(details: &Details) -> Self {
        let [cir, cbs, eir, ebs] = ["cir", "cbs", "eir", "ebs"].map(|key| number(details, key));
        Self { cir, cbs, eir, ebs }
    }
    /// A rate without a burst passes nothing.
    fn check(&self) -> Result<(), String> {
        for (rate, burst, names) in [
            (self.cir, self.cbs, "cir and cbs"),
            (self.eir, self.ebs, "eir and ebs"),
        ] {
            if rate != 0 && burst == 0 {
                return Err(format!(
                    "{names} have to be numbers above 0, or the rate has to be 0"
                ));
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct TwoRates {
    settings: Settings,
    committed: Limit,
    excess: Limit,
}

impl TwoRates {
    fn new(settings: Settings, now: u64) -> Self {
        Self {
            settings,
            committed: Limit::new(settings.cir, settings.cbs, now),
            excess: Limit::new(settings.eir, settings.ebs, now),
        }
    }
    /// The colour of a packet that has had `before`.
    fn color(&self, charge: &Charge, before: Color, now: u64) -> Color {
        match before {
            Color::Red => Color::Red,
            Color::Green if self.committed.takes(charge, now) => Color::Green,
            _ if self.excess.takes(charge, now) => Color::Yellow,
            _ => Color::Red,
        }
    }
    fn details(&self) -> Details {
        let s = self.settings;
        let all = [("cir", s.cir), ("cbs", s.cbs), ("eir", s.eir), ("ebs", s.ebs)];
        all.map(|(key, n)| (key.to_owned(), n.to_string())).into()
    }
}

#[derive(Debug)]
pub(super) struct Queue {
    id: u32,
    rates: TwoRates,
    made: u64,
    packets: AtomicU64,
    bytes: AtomicU64,
    dropped: AtomicU64,
}

/// The policer of a port.
#[derive(Debug)]
pub(super) enum Policer {
    /// Buckets of the port alone.
    Port(Limit, Details),
    /// Buckets of queues, by their numbers, and of the port. Queue 0 is always there.
    Queues(Vec<Queue>, TwoRates),
}

impl Policer {
    /// The policer of a row, with full buckets.
    ///
    /// # Errors
    /// Text: rates that Open vSwitch refuses.
    pub(super) fn new(config: &QosConfig, now: u64) -> Result<Self, String> {
        let port = Settings::read(&config.details);
        if config.kind == EGRESS_POLICER {
            if port.cir == 0 || port.cbs == 0 {
                return Err("cir and cbs have to be numbers above 0".to_owned());
            }
            let shown = [("cir", port.cir), ("cbs", port.cbs)];
            let shown = shown.map(|(key, n)| (key.to_owned(), n.to_string()));
            return Ok(Self::Port(Limit::new(port.cir, port.cbs, now), shown.into()));
        }
        port.check()?;
        let queue = |id: u32, settings: Settings| {
            let checked = settings.check().map_err(|why| format!("queue {id}: {why}"));
            checked.map(|()| Queue {
                id,
                rates: TwoRates::new(settings, now),
                made: now,
                packets: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
                dropped: AtomicU64::new(0),
            })
        };
        let mut queues = Vec::new();
        // Queue 0 without settings has the port's.
        if config.queues.get(&0).is_none_or(Details::is_empty) {
            queues.push(queue(0, port)?);
        }
        for (id, details) in config.queues.iter().filter(|(id, d)| **id != 0 || !d.is_empty()) {
            queues.push(queue(*id, Settings::read(details))?);
        }
        Ok(Self::Queues(queues, TwoRates::new(port, now)))
    }

    /// Whether a packet passes.
    pub(super) fn passes(&self, packet: &Packet, now: u64) -> bool {
        let charge = Charge::of(packet);
        match self {
            Self::Port(limit, _) => limit.takes(&charge, now),
            Self::Queues(queues, port) => {
                let at = queues
                    .binary_search_by_key(&packet.queue(), |q| q.id)
                    .unwrap_or(0);
                let Some(queue) = queues.get(at) else { return false };
                let color = queue.rates.color(&charge, Color::Green, now);
                if color == Color::Red {
                    queue.dropped.fetch_add(1, Relaxed);
                } else {
                    queue.packets.fetch_add(1, Relaxed);
                    queue.bytes.fetch_add(charge.bytes, Relaxed);
                }
                port.color(&charge, color, now) != Color::Red
            }
        }
    }

    /// The settings in force: of the port, and of the queues.
    pub(super) fn shown(&self) -> (Details, Vec<(u32, Details)>) {
        match self {
            Self::Port(_, details) => (details.clone(), Vec::new()),
            Self::Queues(queues, port) => {
                let queues = queues.iter().map(|q| (q.id, q.rates.details()));
                (port.details(), queues.collect())
            }
        }
    }

    pub(super) fn counts(&self, now: u64) -> Vec<QueueCounts> {
        let Self::Queues(queues, _) = self else {
            return Vec::new();
        };
        let counts = queues.iter().map(|q| QueueCounts {
            queue: q.id,
            bytes: q.bytes.load(Relaxed),
            packets: q.packets.load(Relaxed),
            dropped: q.dropped.load(Relaxed),
            age_ms: now.saturating_sub(q.made) / MS,
        });
        counts.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::SECOND;
    use super::*;
    use crate::qos::TRTCM_POLICER;
    use heddle_packet::{Csum, Gso, GsoKind, Wraps};

    const NOW: u64 = 100 * SECOND;

    fn details(pairs: &[(&str, u64)]) -> Details {
        pairs
            .iter()
            .map(|(k, n)| ((*k).to_owned(), n.to_string()))
            .collect()
    }
    fn policer(
        kind: &str,
        port: &[(&str, u64)],
        queues: &[(u32, &[(&str, u64)])],
    ) -> Result<Policer, String> {
        let config = QosConfig {
            kind: kind.to_owned(),
            details: details(port),
            queues: queues.iter().map(|(id, d)| (*id, details(d))).collect(),
        };
        Policer::new(&config, NOW)
    }
    fn packet(queue: u32) -> Packet {
        let mut packet = Packet::from_bytes(&[0; 1014]);
        packet.set_queue(queue);
        packet
    }
    fn passed(p: &Policer, packet: &Packet, n: usize, now: u64) -> usize {
        (0..n).filter(|_| p.passes(packet, now)).count()
    }

    #[test]
    fn one_bucket() {
        let p = policer(EGRESS_POLICER, &[("cir", 1_000_000), ("cbs", 2500)], &[]).unwrap();
        // 1,000 bytes of each packet count.
        assert_eq!(passed(&p, &packet(0), 10, NOW), 2);
        assert_eq!(passed(&p, &packet(7), 10, NOW + MS), 1);
        // A thousand packets a second, each counted to the microsecond.
        let n = (1..=10_000)
            .filter(|i| p.passes(&packet(0), NOW + MS + i * (MS / 10)))
            .count();
        assert!((999..=1002).contains(&n), "{n}");
        // A packet that is longer than the bucket never passes, as in Open vSwitch.
        let later = NOW + 1000 * SECOND;
        assert!(!p.passes(&Packet::from_bytes(&[0; 3000]), later));
        assert_eq!(p.shown().0, details(&[("cir", 1_000_000), ("cbs", 2500)]));
        for wrong in [[("cir", 0), ("cbs", 5)], [("cir", 5), ("cbs", 0)]] {
            assert!(policer(EGRESS_POLICER, &wrong, &[]).is_err());
        }
    }

    #[test]
    fn a_gso_packet_longer_than_the_bucket_owes() {
        let p = policer(EGRESS_POLICER, &[("cir", 1_000_000), ("cbs", 2500)], &[]).unwrap();
        let mut frame = vec![0; 54 + 60_000];
        frame[46] = 5 << 4;
        let mut gso = Packet::from_bytes(&frame);
        gso.offload.csum = Csum::Partial {
            start: 34,
            offset: 16,
        };
        gso.offload.gso = Some(Gso {
            kind: GsoKind::Tcp4,
            ecn: false,
            size: 1000,
            hdr_len: 54,
            wraps: Wraps::default(),
        });
        // 60 segments of 1,040 bytes of IP: 62 ms.
        let n = (0..10_000).filter(|i| p.passes(&gso, NOW + i * MS)).count();
        assert!((158..=162).contains(&n), "{n}");
    }

    #[test]
    fn two_rates_of_queues_and_port() {
        let port = [("cir", 1_000_000), ("cbs", 4000), ("eir", 0), ("ebs", 0)];
        let queue: &[(&str, u64)] = &[("cir", 0), ("cbs", 0), ("eir", 1_000_000), ("ebs", 2000)];
        let p = policer(TRTCM_POLICER, &port, &[(7, queue)]).unwrap();
        // Queue 7's packets are yellow, and the port has no bucket for these.
        assert_eq!(passed(&p, &packet(7), 5, NOW), 0);
        // Others are queue 0's, which has the port's settings.
        assert_eq!(passed(&p, &packet(9), 6, NOW), 4);
        let counts = p.counts(NOW + SECOND);
        let of = |i: usize| {
            (
                counts[i].queue,
                counts[i].packets,
                counts[i].bytes,
                counts[i].dropped,
            )
        };
        assert_eq!((of(0), of(1)), ((0, 4, 4000, 2), (7, 2, 2000, 3)));
        assert_eq!(counts[0].age_ms, 1000);
        let port = [("cir", 0), ("cbs", 0), ("eir", 1_000_000), ("ebs", 3000)];
        let p = policer(TRTCM_POLICER, &port, &[]).unwrap();
        assert_eq!(passed(&p, &packet(0), 5, NOW), 3);
        let wrong: &[(&str, u64)] = &[("eir", 5)];
        assert!(
            policer(TRTCM_POLICER, &[], &[(3, wrong)])
                .unwrap_err()
                .starts_with("queue 3: eir")
        );
        assert_eq!(
            passed(&policer(TRTCM_POLICER, &[], &[]).unwrap(), &packet(0), 5, NOW),
            0
        );
    }

    #[test]
    fn a_long_rest_fills_the_buckets() {
        let p = policer(EGRESS_POLICER, &[("cir", 10_000_000_000), ("cbs", 1000)], &[]).unwrap();
        let mut now = NOW;
        for _ in 0..20 {
            now += 700 * SECOND;
            assert_eq!(passed(&p, &packet(0), 3, now), 1, "{now}");
        }
    }
}
