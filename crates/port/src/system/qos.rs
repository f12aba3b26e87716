//! Queues of a device: the kernel keeps their rates ([`heddle_sys::htb`]), packets name them.
//!
//! Rates come from rows in the way that Open vSwitch reads them. The rate of a queue is at least one MTU a
//! second and at most the device's rate.

use crate::qos::{Details, NOOP, QosConfig, number};
use heddle_sys::QueueCounts;
use heddle_sys::htb::{Htb, HtbClass, MAX_QUEUES};
use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

/// Types of QoS that system ports have: rates by the kernel, and queues that another program configures.
pub(super) const TYPES: &[&str] = &[HTB, NOOP];
const HTB: &str = "linux-htb";
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
    applied: Option<(Device, QosConfig)>,
    /// Whether the device was checked for the hierarchy of an earlier daemon.
    looked: bool,
    classes: BTreeMap<u32, (HtbClass, Instant)>,
    /// The rate of all, bytes per second.
    whole: u64,
}

fn whole(d: Device, details: &Details) -> HtbClass {
    let rate = match number(details, "max-rate") / 8 {
        0 if d.speed_bps != 0 => d.speed_bps / 8,
        0 => DEFAULT_BPS / 8,
        rate => rate,
    };
    HtbClass {
        rate,
        ceil: rate,
        burst: 0,
        prio: 0,
    }
}

fn class(d: Device, whole: u64, details: &Details) -> HtbClass {
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

impl Qos {
    /// Sets the device's queues up as in `config`, if they are not.
    pub(super) fn set(&mut self, d: Device, config: Option<&QosConfig>) -> io::Result<()> {
        let config = config.filter(|c| !c.kind.is_empty());
        if self.applied.as_ref().map(|(d, c)| (d, c)) == config.map(|c| (&d, c)) && self.looked {
            return Ok(());
        }
        if config.is_some_and(|c| !TYPES.contains(&c.kind.as_str())) {
            // The earlier configuration stays, as in Open vSwitch.
            return Err(io::ErrorKind::Unsupported.into());
        }
        // A partial configuration is removed when it is not wanted any more.
        self.looked = config.is_none();
        let was_htb = self
            .applied
            .take()
            .is_some_and(|(old, c)| old.index == d.index && c.kind == HTB);
        match config {
            Some(c) if c.kind == HTB => self.set_htb(d, c, was_htb)?,
            // Another program configures the device: only queues that were set up here go.
            Some(c) if c.kind == NOOP && !was_htb => self.classes.clear(),
            Some(_) | None => self.clear(d)?,
        }
        self.looked = true;
        self.applied = config.map(|c| (d, c.clone()));
        Ok(())
    }

    fn clear(&mut self, d: Device) -> io::Result<()> {
        self.classes.clear();
        Htb::new()?.remove(d.index)
    }

    fn set_htb(&mut self, d: Device, config: &QosConfig, is_there: bool) -> io::Result<()> {
        let htb = Htb::new()?;
        if !is_there {
            self.classes.clear();
            htb.make(d.index)?;
        }
        let all = whole(d, &config.details);
        htb.set_whole(d.index, d.mtu, &all)?;
        self.whole = all.rate;
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
            htb.remove_queue(d.index, n)?;
        }
        for (n, details) in queues.into_iter().filter(|(n, _)| *n < MAX_QUEUES) {
            let wanted = class(d, all.rate, details);
            let made = match self.classes.get(&n) {
                Some((class, _)) if *class == wanted => continue,
                Some((_, made)) => *made,
                None => Instant::now(),
            };
            htb.set_queue(d.index, n, d.mtu, &wanted)?;
            self.classes.insert(n, (wanted, made));
        }
        Ok(())
    }

    /// The port goes, and with it the hierarchy that was set up for it.
    pub(super) fn end(&mut self) {
        if let Some((d, config)) = self.applied.take()
            && config.kind == HTB
            && let Err(error) = self.clear(d)
        {
            log::debug!("queues could not be removed: {error}");
        }
    }

    /// The present configuration, as the kernel has it.
    pub(super) fn shown(&self) -> Option<QosConfig> {
        let (_, config) = self.applied.as_ref()?;
        let mut shown = QosConfig {
            kind: config.kind.clone(),
            ..QosConfig::default()
        };
        if config.kind == HTB {
            shown
                .details
                .insert("max-rate".into(), (8 * self.whole).to_string());
            let queues = self.classes.iter().map(|(n, (c, _))| (*n, details(c)));
            shown.queues = queues.collect();
        }
        Some(shown)
    }

    /// The counters of the queues.
    pub(super) fn counts(&self) -> Vec<QueueCounts> {
        let Some((d, _)) = self.applied.as_ref().filter(|(_, c)| c.kind == HTB) else {
            return Vec::new();
        };
        let counted = Htb::new().and_then(|htb| htb.counts(d.index)).unwrap_or_default();
        let queues = counted.into_iter().filter_map(|(n, c)| {
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

/// A class in the form of a row.
fn details(c: &HtbClass) -> Details {
    let mut d = Details::new();
    let mut put = |key: &str, n: u64| _ = d.insert(key.into(), n.to_string());
    put("min-rate", 8 * c.rate);
    if c.ceil != c.rate {
        put("max-rate", 8 * c.ceil);
    }
    put("burst", 8 * c.burst);
    if c.prio != 0 {
        put("priority", c.prio.into());
    }
    d
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pairs: &[(&str, &str)]) -> Details {
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
        assert_eq!(whole(d, &row(&[])).rate, 12_500_000);
        assert_eq!(
            whole(
                Device {
                    speed_bps: 8_000_000,
                    ..d
                },
                &row(&[])
            )
            .rate,
            1_000_000
        );
        assert_eq!(whole(d, &row(&[("max-rate", "8000")])).rate, 1000);
        let q = |pairs| class(d, 1_000_000, &row(pairs));
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
    fn a_type_that_is_not_there_changes_nothing() {
        let d = Device::default();
        let config = |kind: &str| QosConfig {
            kind: kind.to_owned(),
            ..QosConfig::default()
        };
        let mut qos = Qos {
            applied: Some((d, config(HTB))),
            looked: true,
            ..Qos::default()
        };
        let error = qos.set(d, Some(&config("linux-hfsc"))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        // The existing configuration is known, so that it can be removed.
        assert_eq!(qos.shown().map(|q| q.kind).as_deref(), Some(HTB));
    }
}
