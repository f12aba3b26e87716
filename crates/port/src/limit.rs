//! Rate limits of ports without a queueing discipline of the kernel between the switch and the receiver: taps
//! and virtio devices. The switch itself drops packets above the rate of `Port.qos`.
//!
//! Costs: one relaxed load a burst for ports without a limit; one reading of the clock a burst for others.

use crate::qos::{NOOP, number};
use crate::{PortError, QosConfig, TxCounts};
use arrayvec::ArrayVec;
use heddle_packet::{BURST, Packet};
use heddle_sync::{Published, TokenBucket};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The type of QoS whose `max-rate` applies.
const HTB: &str = "linux-htb";
/// Burst of a configuration that names none, bits: the default of `ingress_policing_burst`.
const DEFAULT_BURST_BITS: u64 = 8_000_000;
/// Smallest bucket, bits. A smaller one would never let the largest GSO packet pass.
const MIN_BURST_BITS: u64 = 525_000;

/// Rate in bits per second and burst in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rate {
    bps: u64,
    burst_bits: u64,
}

/// The limit of a port's transmit queues together.
#[derive(Debug)]
pub(crate) struct TxLimit {
    on: AtomicBool,
    bucket: Published<TokenBucket>,
    rate: Mutex<Option<Rate>>,
}

impl Default for TxLimit {
    fn default() -> Self {
        Self {
            on: AtomicBool::new(false),
            bucket: Published::new(TokenBucket::full(0, 0, 0)),
            rate: Mutex::default(),
        }
    }
}

/// The rate of a configuration; `None` if it requires anything else.
fn rate(qos: &QosConfig) -> Option<Option<Rate>> {
    if qos.kind != HTB || qos.queues.keys().any(|id| *id != 0) {
        return None;
    }
    let all = std::iter::once(&qos.details).chain(qos.queues.get(&0));
    let (mut bps, mut burst_bits) = (u64::MAX, 0);
    for details in all {
        if number(details, "min-rate") > 0 {
            return None;
        }
        match number(details, "max-rate") {
            0 => {}
            n => bps = bps.min(n),
        }
        burst_bits = number(details, "burst").max(burst_bits);
    }
    let burst_bits = if burst_bits == 0 {
        DEFAULT_BURST_BITS
    } else {
        burst_bits.max(MIN_BURST_BITS)
    };
    Some((bps != u64::MAX).then_some(Rate { bps, burst_bits }))
}

impl TxLimit {
    /// Applies a row of `QoS`.
    ///
    /// # Errors
    /// The row requires more than a maximum rate.
    pub(crate) fn set_qos(&self, name: &str, qos: Option<&QosConfig>) -> Result<(), PortError> {
        let qos = qos.filter(|q| !q.kind.is_empty() && q.kind != NOOP);
        let wanted = qos.map_or(Some(None), rate);
        let mut rate = self.rate.lock();
        let wish = wanted.flatten();
        if *rate != wish {
            *rate = wish;
            if let Some(r) = wish {
                // Tokens are bits, so that a bucket of any rate may be idle for years.
                let bucket =
                    TokenBucket::full(r.bps.div_ceil(1000), r.burst_bits, heddle_sys::monotonic_ms());
                self.bucket.store(bucket);
            }
            self.on.store(wish.is_some(), Relaxed);
        }
        match wanted {
            Some(_) => Ok(()),
            None => Err(PortError::sys(
                format!("could not set QoS of {name} (it obeys only max-rate of {HTB}, or of its queue 0)"),
                std::io::ErrorKind::Unsupported.into(),
            )),
        }
    }

    /// Whether there is a limit.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Sends, by `send`, the packets that the limit allows; the others count as dropped for want of room.
    #[cold]
    pub(crate) fn apply(
        &self,
        packets: &[&Packet],
        send: &mut dyn FnMut(&[&Packet]) -> TxCounts,
    ) -> TxCounts {
        let now_ms = heddle_sys::monotonic_ms();
        let mut counts = TxCounts::default();
        for burst in packets.chunks(BURST) {
            let bucket = self.bucket.load();
            let fits = |p: &&&Packet| bucket.take(p.len() as u64 * 8, now_ms);
            let kept: ArrayVec<&Packet, BURST> = burst.iter().filter(fits).copied().collect();
            counts.full += (burst.len() - kept.len()) as u64;
            if !kept.is_empty() {
                counts += send(&kept);
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn details(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    fn qos(kind: &str, all: &[(&str, &str)], queues: &[(u32, &[(&str, &str)])]) -> QosConfig {
        QosConfig {
            kind: kind.into(),
            details: details(all),
            queues: queues.iter().map(|(id, d)| (*id, details(d))).collect(),
        }
    }

    #[test]
    fn rates_that_can_be_kept() {
        let of = |bps, burst_bits| Some(Some(Rate { bps, burst_bits }));
        let rows = [("max-rate", "100000000")];
        assert_eq!(rate(&qos(HTB, &rows, &[])), of(100_000_000, 8_000_000));
        let queue: &[(&str, &str)] = &[("max-rate", "5000000"), ("burst", "1000000")];
        assert_eq!(rate(&qos(HTB, &rows, &[(0, queue)])), of(5_000_000, 1_000_000));
        assert_eq!(
            rate(&qos(HTB, &[("max-rate", "8"), ("burst", "1")], &[])),
            of(8, MIN_BURST_BITS)
        );
        assert_eq!(rate(&qos(HTB, &[], &[])), Some(None));
        for other in [
            qos("linux-hfsc", &rows, &[]),
            qos(HTB, &rows, &[(1, queue)]),
            qos(HTB, &[("min-rate", "5")], &[]),
        ] {
            assert_eq!(rate(&other), None);
        }
    }

    #[test]
    fn what_is_above_the_rate_is_dropped() {
        let limit = TxLimit::default();
        assert!(!limit.is_on());
        limit
            .set_qos(
                "p",
                Some(&qos(HTB, &[("max-rate", "1000000"), ("burst", "600000")], &[])),
            )
            .unwrap();
        assert!(limit.is_on());
        let packet = Packet::from_bytes(&[0; 1500]);
        let packets = vec![&packet; 100];
        let send = &mut |p: &[&Packet]| TxCounts {
            sent: p.len() as u64,
            ..TxCounts::default()
        };
        let counts = limit.apply(&packets, send);
        // 600,000 bits are 50 packets, and some more come in while the test runs.
        assert!(
            (50..60).contains(&counts.sent) && counts.sent + counts.full == 100,
            "{counts:?}"
        );
        // The same again leaves the bucket as it is.
        limit
            .set_qos(
                "p",
                Some(&qos(HTB, &[("max-rate", "1000000"), ("burst", "600000")], &[])),
            )
            .unwrap();
        assert!(limit.apply(&packets, send).sent < 20);
        assert!(limit.set_qos("p", Some(&qos("linux-hfsc", &[], &[]))).is_err());
        assert!(!limit.is_on());
    }
}
