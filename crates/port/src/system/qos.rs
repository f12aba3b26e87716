//! Rates and queues of a device: the kernel keeps them ([`heddle_sys::qdisc`]), packets name their queue.
//!
//! Settings come from rows in the way that Open vSwitch reads them, with its defaults. The rate of an HTB
//! queue is at least one MTU a second and at most the device's rate.

use crate::qos::{self, Details, NOOP, QosConfig, number};
use heddle_sys::QueueCounts;
use heddle_sys::qdisc::{HfscClass, HtbClass, MAX_QUEUES, Qdisc, Qdiscs, TrafficClass};
use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

/// Types of QoS that system ports have: by the kernel, and queues that another program configures.
pub(super) const TYPES: &[&str] = &[
    qos::HTB,
    qos::HFSC,
    qos::SFQ,
    qos::CODEL,
    qos::FQ_CODEL,
    qos::NETEM,
    NOOP,
];
/// Rate of a device whose speed is not known, bits per second.
const DEFAULT_BPS: u64 = 100_000_000;
/// Headers that may be added to a frame of one MTU.
const FRAME_ROOM: u64 = 64;

/// A device as rates depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Device {
    pub(super) index: u32,
    pub(super) mtu: u32,
    pub(super) speed_bps: u64,
}

/// The configuration that has been set up.
#[derive(Debug, Default)]
pub(super) struct Qos {
    applied: Option<Applied>,
    /// Whether the device was checked for the discipline of an earlier daemon.
    looked: bool,
    classes: BTreeMap<u32, (TrafficClass, Instant)>,
    /// The rate of all classes, bytes per second.
    whole: u64,
}

#[derive(Debug)]
struct Applied {
    device: Device,
    config: QosConfig,
    /// `None`: another program has set the discipline up.
    qdisc: Option<Qdisc>,
}

/// The discipline of a row. `Ok(None)`: it is another program's.
///
/// # Errors
/// `Unsupported`: system ports do not have its type. `InvalidInput`: a value that the kernel cannot have.
fn qdisc(d: Device, config: &QosConfig) -> io::Result<Option<Qdisc>> {
    let get = |key: &str, default: u32| match number(&config.details, key) {
        0 => default,
        n => u32::try_from(n).unwrap_or(u32::MAX),
    };
    Ok(Some(match config.kind.as_str() {
        NOOP => return Ok(None),
        qos::HTB => Qdisc::Htb,
        qos::HFSC => Qdisc::Hfsc,
        qos::SFQ => Qdisc::Sfq {
            quantum: get("quantum", d.mtu),
            perturb_s: get("perturb", 10),
        },
        qos::CODEL => Qdisc::Codel {
            target: get("target", 5000),
            limit: get("limit", 10_240),
            interval: get("interval", 100_000),
        },
        qos::FQ_CODEL => Qdisc::FqCodel {
            target: get("target", 5000),
            limit: get("limit", 10_240),
            interval: get("interval", 1_000_000),
            flows: get("flows", 1024),
            quantum: get("quantum", 1514),
        },
        qos::NETEM => match get("loss", 0) {
            loss @ 0..=100 => Qdisc::Netem {
                latency: get("latency", 0),
                limit: get("limit", 1000),
                loss,
                jitter: get("jitter", 0),
            },
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "loss is more than 100 percent",
                ));
            }
        },
        _ => return Err(io::ErrorKind::Unsupported.into()),
    }))
}

/// A rate as HFSC has it.
fn narrow(rate: u64) -> u32 {
    u32::try_from(rate).unwrap_or(u32::MAX)
}

fn whole(d: Device, kind: &Qdisc, details: &Details) -> (u64, TrafficClass) {
    let rate = match number(details, "max-rate") / 8 {
        0 if d.speed_bps != 0 => d.speed_bps / 8,
        0 => DEFAULT_BPS / 8,
        rate => rate,
    };
    match kind {
        Qdisc::Hfsc => {
            let rate = narrow(rate);
            (
                rate.into(),
                TrafficClass::Hfsc(HfscClass { min: rate, max: rate }),
            )
        }
        _ => {
            let class = HtbClass {
                rate,
                ceil: rate,
                burst: 0,
                prio: 0,
            };
            (rate, TrafficClass::Htb(class))
        }
    }
}

fn htb_class(d: Device, whole: u64, details: &Details) -> HtbClass {
    let rate = (number(details, "min-rate") / 8).max(d.mtu.into()).min(whole);
    let ceil = match number(details, "max-rate") / 8 {
        0 => whole,
        ceil => ceil.max(rate).min(whole),
    };
    HtbClass {
        rate,
        ceil,
        burst: (number(details, "burst") / 8).max(u64::from(d.mtu) + FRAME_ROOM),
        prio: u32::try_from(number(details, "priority")).unwrap_or(u32::MAX),
    }
}

fn hfsc_class(whole: u64, details: &Details) -> HfscClass {
    let min = (number(details, "min-rate") / 8).max(1).min(whole);
    let max = match number(details, "max-rate") / 8 {
        0 => whole,
        max => max.max(min).min(whole),
    };
    HfscClass {
        min: narrow(min),
        max: narrow(max),
    }
}

impl Qos {
    /// Sets the device's discipline and queues up as in `config`, if they are not.
    pub(super) fn set(&mut self, d: Device, config: Option<&QosConfig>) -> io::Result<()> {
        let config = config.filter(|c| !c.kind.is_empty());
        let same = match (&self.applied, config) {
            (Some(now), Some(config)) => now.device == d && now.config == *config,
            (now, config) => now.is_none() && config.is_none(),
        };
        if same && self.looked {
            return Ok(());
        }
        // If this fails, the earlier configuration stays, as in Open vSwitch.
        let qdisc = config.map(|c| qdisc(d, c)).transpose()?.flatten();
        // A partial configuration is removed when it is not wanted any more.
        self.looked = config.is_none();
        let before = self.applied.take();
        let before = before
            .filter(|old| old.device.index == d.index)
            .and_then(|old| old.qdisc);
        match (config, qdisc) {
            (Some(config), Some(qdisc)) => self.make(d, config, &qdisc, before.as_ref())?,
            // Another program configures the device: only a discipline that was set up here goes.
            (Some(_), None) if before.is_none() => self.classes.clear(),
            _ => self.clear(d)?,
        }
        self.looked = true;
        self.applied = config.map(|config| Applied {
            device: d,
            config: config.clone(),
            qdisc,
        });
        Ok(())
    }

    fn clear(&mut self, d: Device) -> io::Result<()> {
        self.classes.clear();
        Qdiscs::new()?.remove(d.index)
    }

    fn make(
        &mut self,
        d: Device,
        config: &QosConfig,
        qdisc: &Qdisc,
        before: Option<&Qdisc>,
    ) -> io::Result<()> {
        let qdiscs = Qdiscs::new()?;
        if before != Some(qdisc) {
            self.classes.clear();
            qdiscs.make(d.index, qdisc)?;
        }
        if !matches!(qdisc, Qdisc::Htb | Qdisc::Hfsc) {
            return Ok(());
        }
        let (rate, all) = whole(d, qdisc, &config.details);
        qdiscs.set_whole(d.index, d.mtu, &all)?;
        self.whole = rate;
        let none = Details::default();
        // Queue 0 takes packets that name no other queue: it is there in any case.
        let mut queues: BTreeMap<u32, &Details> = config.queues.iter().map(|(n, d)| (*n, d)).collect();
        queues.entry(0).or_insert(&none);
        let gone: Vec<u32> = self
            .classes
            .keys()
            .filter(|n| !queues.contains_key(n))
            .copied()
            .collect();
        for n in gone {
            self.classes.remove(&n);
            qdiscs.remove_queue(d.index, n)?;
        }
        for (n, details) in queues.into_iter().filter(|(n, _)| *n < MAX_QUEUES) {
            let wanted = match qdisc {
                Qdisc::Hfsc => TrafficClass::Hfsc(hfsc_class(rate, details)),
                _ => TrafficClass::Htb(htb_class(d, rate, details)),
            };
            let made = match self.classes.get(&n) {
                Some((class, _)) if *class == wanted => continue,
                Some((_, made)) => *made,
                None => Instant::now(),
            };
            qdiscs.set_queue(d.index, n, d.mtu, &wanted)?;
            self.classes.insert(n, (wanted, made));
        }
        Ok(())
    }

    /// The port goes, and with it the discipline that was set up for it.
    pub(super) fn end(&mut self) {
        if let Some(applied) = self.applied.take()
            && applied.qdisc.is_some()
            && let Err(error) = self.clear(applied.device)
        {
            log::debug!("queues could not be removed: {error}");
        }
    }

    /// The present configuration, as the kernel has it.
    pub(super) fn shown(&self) -> Option<QosConfig> {
        let applied = self.applied.as_ref()?;
        let queues = self.classes.iter().map(|(n, (c, _))| (*n, details(c)));
        Some(QosConfig {
            kind: applied.config.kind.clone(),
            details: applied
                .qdisc
                .as_ref()
                .map(|q| shown(q, self.whole))
                .unwrap_or_default(),
            queues: queues.collect(),
        })
    }

    /// The counters of the queues.
    pub(super) fn counts(&self) -> Vec<QueueCounts> {
        let Some(d) = self.applied.as_ref().filter(|_| !self.classes.is_empty()) else {
            return Vec::new();
        };
        let counted = Qdiscs::new().and_then(|all| all.counts(d.device.index));
        let queues = counted.unwrap_or_default().into_iter().filter_map(|(n, c)| {
            let (_, made) = self.classes.get(&n)?;
            Some(QueueCounts {
                queue: n,
                bytes: c.bytes,
                packets: c.packets,
                dropped: c.dropped,
                age_ms: u64::try_from(made.elapsed().as_millis()).unwrap_or(u64::MAX),
            })
        });
        queues.collect()
    }
}

/// Numbers in the form of a row.
fn row(numbers: &[(&str, u64)]) -> Details {
    let texts = numbers.iter().map(|(key, n)| ((*key).to_owned(), n.to_string()));
    texts.collect()
}

/// A discipline in the form of a row.
fn shown(qdisc: &Qdisc, whole: u64) -> Details {
    match *qdisc {
        Qdisc::Htb | Qdisc::Hfsc => row(&[("max-rate", 8 * whole)]),
        Qdisc::Sfq { quantum, perturb_s } => {
            row(&[("quantum", quantum.into()), ("perturb", perturb_s.into())])
        }
        Qdisc::Codel {
            target,
            limit,
            interval,
        } => row(&[
            ("target", target.into()),
            ("limit", limit.into()),
            ("interval", interval.into()),
        ]),
        Qdisc::FqCodel {
            target,
            limit,
            interval,
            flows,
            quantum,
        } => row(&[
            ("target", target.into()),
            ("limit", limit.into()),
            ("interval", interval.into()),
            ("flows", flows.into()),
            ("quantum", quantum.into()),
        ]),
        Qdisc::Netem {
            latency,
            limit,
            loss,
            jitter,
        } => row(&[
            ("latency", latency.into()),
            ("limit", limit.into()),
            ("loss", loss.into()),
            ("jitter", jitter.into()),
        ]),
    }
}

/// A class in the form of a row.
fn details(class: &TrafficClass) -> Details {
    let (min, max) = match class {
        TrafficClass::Htb(c) => (c.rate, c.ceil),
        TrafficClass::Hfsc(c) => (c.min.into(), c.max.into()),
    };
    let mut d = row(&[("min-rate", 8 * min)]);
    if max != min {
        d.extend(row(&[("max-rate", 8 * max)]));
    }
    if let TrafficClass::Htb(c) = class {
        d.extend(row(&[("burst", 8 * c.burst)]));
        if c.prio != 0 {
            d.extend(row(&[("priority", c.prio.into())]));
        }
    }
    d
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pairs: &[(&str, &str)]) -> Details {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn rates_are_within_bounds() {
        let d = Device {
            index: 1,
            mtu: 1500,
            speed_bps: 0,
        };
        let whole = |d, details: &Details| super::whole(d, &Qdisc::Htb, details).0;
        assert_eq!(whole(d, &text(&[])), 12_500_000);
        assert_eq!(
            whole(
                Device {
                    speed_bps: 8_000_000,
                    ..d
                },
                &text(&[])
            ),
            1_000_000
        );
        assert_eq!(whole(d, &text(&[("max-rate", "8000")])), 1000);
        let q = |pairs| htb_class(d, 1_000_000, &text(pairs));
        assert_eq!((q(&[]).rate, q(&[]).ceil, q(&[]).burst), (1500, 1_000_000, 1564));
        let over = q(&[
            ("min-rate", "99999999"),
            ("max-rate", "1"),
            ("priority", "5"),
            ("burst", "80000"),
        ]);
        assert_eq!(
            (over.rate, over.ceil, over.burst, over.prio),
            (1_000_000, 1_000_000, 10_000, 5)
        );
        let nonsense = q(&[("min-rate", "-3"), ("max-rate", "x")]);
        assert_eq!((nonsense.rate, nonsense.ceil), (1500, 1_000_000));
    }

    #[test]
    fn rates_of_hfsc_fit_its_width() {
        let d = Device {
            index: 1,
            mtu: 1500,
            speed_bps: 100_000_000_000,
        };
        assert_eq!(whole(d, &Qdisc::Hfsc, &text(&[])).0, u32::MAX.into());
        assert_eq!(
            hfsc_class(1_000_000, &text(&[("max-rate", "800")])),
            HfscClass { min: 1, max: 100 }
        );
        let over = text(&[("min-rate", "99999999"), ("max-rate", "8")]);
        let all = HfscClass {
            min: 1_000_000,
            max: 1_000_000,
        };
        assert_eq!(hfsc_class(1_000_000, &over), all);
    }

    #[test]
    fn disciplines_have_the_defaults_of_open_vswitch() {
        let d = Device {
            index: 1,
            mtu: 1400,
            speed_bps: 0,
        };
        let config = |kind: &str, pairs| QosConfig {
            kind: kind.to_owned(),
            details: text(pairs),
            ..QosConfig::default()
        };
        let of = |kind, pairs| {
            let qdisc = qdisc(d, &config(kind, pairs)).unwrap().unwrap();
            let shown = shown(&qdisc, 0).into_iter().map(|(k, v)| format!("{k}={v}"));
            shown.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("linux-sfq", &[]), "perturb=10 quantum=1400");
        assert_eq!(of("linux-codel", &[]), "interval=100000 limit=10240 target=5000");
        assert_eq!(
            of("linux-fq_codel", &[("target", "x")]),
            "flows=1024 interval=1000000 limit=10240 quantum=1514 target=5000"
        );
        let netem: &[(&str, &str)] = &[("latency", "9"), ("loss", "100"), ("jitter", "3")];
        assert_eq!(of("linux-netem", netem), "jitter=3 latency=9 limit=1000 loss=100");
        let error = qdisc(d, &config("linux-netem", &[("loss", "101")])).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_type_that_is_not_there_changes_nothing() {
        let device = Device::default();
        let config = |kind: &str| QosConfig {
            kind: kind.to_owned(),
            ..QosConfig::default()
        };
        let mut qos = Qos {
            applied: Some(Applied {
                device,
                config: config("linux-htb"),
                qdisc: Some(Qdisc::Htb),
            }),
            looked: true,
            ..Qos::default()
        };
        let error = qos.set(device, Some(&config("egress-policer"))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        // The existing configuration is known, so that it can be removed.
        assert_eq!(qos.shown().map(|q| q.kind).as_deref(), Some("linux-htb"));
    }
}
