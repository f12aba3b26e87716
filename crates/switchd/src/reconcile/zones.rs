//! Zones of connection tracking, as the database has them: timeout policies and limits.
//!
//! **Policies.** A policy of the tracker is a number, by which actions name it (`ct(commit,timeout=3)`).
//! Zones with the same settings share one. Changed settings make a new policy. Connections keep the policy
//! that they were made under. A policy is removed some time after the last zone has left it; meanwhile the
//! flows that name it are translated again.
//!
//! **Limits.** The database's limits replace those of `dpctl/ct-set-limits`, which is refused from then on. A
//! limit that leaves the database leaves the zone.
//!
//! **Datapaths.** All types of datapaths share one tracker, and their zones are merged. If two datapaths
//! configure one zone differently, the first by name counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heddle_conntrack::Conntrack;
use heddle_datapath_api::Engine;
use heddle_ofproto::Ofproto;

use super::desired::{DatapathRow, ZoneRow};
use super::kinds;
use crate::switch::Switch;

/// The time for which a policy without a zone stays, by the switch's clock.
const LINGER_MS: u64 = 20_000;

type Settings = BTreeMap<String, u32>;

/// A policy of the tracker.
#[derive(Debug)]
struct Policy {
    number: u32,
    /// The time since which no zone has it.
    unused_ms: Option<u64>,
}

/// The policies and limits that the tracker has.
#[derive(Debug, Default)]
pub(super) struct Zones {
    /// Policies by settings.
    policies: BTreeMap<Settings, Policy>,
    /// Limits by zone.
    limits: BTreeMap<u16, u32>,
    default_limit: Option<u32>,
}

/// The database's settings of all zones.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted<'a> {
    policies: BTreeMap<u16, &'a Settings>,
    limits: BTreeMap<u16, u32>,
    default_limit: Option<u32>,
}

impl<'a> Wanted<'a> {
    fn of(datapaths: impl Iterator<Item = &'a DatapathRow>) -> Self {
        let mut wanted = Wanted::default();
        let mut zones: BTreeMap<u16, &ZoneRow> = BTreeMap::new();
        for row in datapaths {
            wanted.default_limit = wanted.default_limit.or(row.default_limit);
            for (zone, said) in &row.zones {
                let counts = *zones.entry(*zone).or_insert(said);
                if counts != said {
                    log::warn!(target: "bridge", "zone {zone} of connection tracking has different settings in two datapaths, which share it: the first by name counts");
                }
            }
        }
        for (zone, said) in zones {
            if !said.timeouts.is_empty() {
                wanted.policies.insert(zone, &said.timeouts);
            }
            wanted.limits.extend(said.limit.map(|limit| (zone, limit)));
        }
        wanted
    }
}

impl Zones {
    /// Whether the database has limits of zones, so that commands must not change them.
    pub(super) fn has_limits(&self) -> bool {
        !self.limits.is_empty() || self.default_limit.is_some()
    }

    /// Passes the database's zone settings to the tracker and the translation.
    pub(super) fn apply(&mut self, datapaths: &BTreeMap<String, DatapathRow>, switch: &Switch) {
        let types = kinds::datapath_types(&switch.options);
        let known = datapaths
            .iter()
            .filter(|(name, _)| types.contains(&name.as_str()));
        let wanted = Wanted::of(known.map(|(_, row)| row));
        let tracker = switch.datapath.conntrack();
        self.set(&wanted, tracker, &switch.ofproto, switch.clock.now_ms());
    }

    fn set(&mut self, wanted: &Wanted<'_>, tracker: &Conntrack, ofproto: &Ofproto, now_ms: u64) {
        let mut names: BTreeMap<u16, Arc<str>> = BTreeMap::new();
        for (zone, settings) in &wanted.policies {
            if let Some(number) = self.policy(settings, tracker) {
                names.insert(*zone, number.to_string().into());
            }
        }
        ofproto.set_ct_timeouts(Arc::new(names));
        let used: BTreeSet<&Settings> = wanted.policies.values().copied().collect();
        for (settings, policy) in &mut self.policies {
            policy.unused_ms = match used.contains(settings) {
                true => None,
                false => policy.unused_ms.or(Some(now_ms)),
            };
        }
        self.forget_unused(tracker, now_ms);

        for zone in self
            .limits
            .keys()
            .filter(|zone| !wanted.limits.contains_key(zone))
        {
            tracker.set_zone_limit(*zone, None);
        }
        for (zone, limit) in &wanted.limits {
            if self.limits.get(zone) != Some(limit) {
                tracker.set_zone_limit(*zone, Some(*limit));
            }
        }
        self.limits.clone_from(&wanted.limits);
        if self.default_limit != wanted.default_limit {
            tracker.set_default_limit(wanted.default_limit);
            self.default_limit = wanted.default_limit;
        }
    }

    /// The number of the policy with these settings; the lowest free one if it is new.
    fn policy(&mut self, settings: &Settings, tracker: &Conntrack) -> Option<u32> {
        if let Some(policy) = self.policies.get(settings) {
            return Some(policy.number);
        }
        let taken: BTreeSet<u32> = self.policies.values().map(|p| p.number).collect();
        let number = (1..).find(|n| !taken.contains(n))?;
        let list: Vec<(&str, u32)> = settings.iter().map(|(name, s)| (name.as_str(), *s)).collect();
        if let Err(why) = tracker.set_timeout_policy(&number.to_string(), &list) {
            log::error!(target: "ofproto_dpif", "failed to set timeout policy {number} ({why})");
            return None;
        }
        let policy = Policy {
            number,
            unused_ms: None,
        };
        self.policies.insert(settings.clone(), policy);
        Some(number)
    }

    /// Forgets policies that no zone has had for a while.
    pub(super) fn forget_unused(&mut self, tracker: &Conntrack, now_ms: u64) {
        self.policies.retain(|_, policy| {
            let goes = policy
                .unused_ms
                .is_some_and(|since| now_ms.saturating_sub(since) >= LINGER_MS);
            if goes {
                tracker.remove_timeout_policy(&policy.number.to_string());
            }
            !goes
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_ovsdb::Uuid;

    fn settings(pairs: &[(&str, u32)]) -> Settings {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect()
    }

    fn row(zones: &[(u16, &Settings, Option<u32>)], default_limit: Option<u32>) -> DatapathRow {
        let zone = |(zone, timeouts, limit): &(u16, &Settings, Option<u32>)| {
            let row = ZoneRow {
                timeouts: (*timeouts).clone(),
                limit: *limit,
            };
            (*zone, row)
        };
        DatapathRow {
            uuid: Uuid::default(),
            default_limit,
            zones: zones.iter().map(zone).collect(),
        }
    }

    struct Lab(Zones, Conntrack, Arc<Ofproto>);

    impl Lab {
        fn new() -> Lab {
            let tracker = Conntrack::new(heddle_conntrack::Config::default()).expect("room for a tracker");
            Lab(Zones::default(), tracker, Ofproto::new(Arc::default()))
        }
        fn apply(&mut self, rows: &[DatapathRow], now_ms: u64) {
            self.0.set(&Wanted::of(rows.iter()), &self.1, &self.2, now_ms);
        }
        /// Names of policies, each with its seconds for the first packet of UDP.
        fn policies(&self) -> Vec<(String, u32)> {
            let all = self.1.timeout_policies().into_iter();
            let udp = |s: Vec<(&str, u32)>| {
                s.into_iter()
                    .find(|(n, _)| *n == "udp_first")
                    .map_or(0, |(_, s)| s)
            };
            all.map(|(name, s)| (name.to_string(), udp(s))).collect()
        }
        fn zone(&self, zone: u16) -> Option<String> {
            let snapshot = self.2.pipeline().snapshot();
            snapshot.ct_timeouts.get(&zone).map(|name| name.to_string())
        }
    }

    #[test]
    fn policies_are_shared_and_stay_for_a_while() {
        let mut lab = Lab::new();
        let (a, b) = (settings(&[("udp_first", 1)]), settings(&[("udp_first", 2)]));
        lab.apply(
            &[row(
                &[
                    (5, &a, None),
                    (6, &b, None),
                    (7, &a, None),
                    (8, &Settings::new(), None),
                ],
                None,
            )],
            0,
        );
        assert_eq!(lab.policies(), [("1".to_owned(), 1), ("2".to_owned(), 2)]);
        assert_eq!(
            [5, 6, 7, 8].map(|z| lab.zone(z)),
            [Some("1"), Some("2"), Some("1"), None].map(|n| n.map(str::to_owned))
        );
        // The policy of two zones changes, and that of the third goes.
        let c = settings(&[("udp_first", 3)]);
        lab.apply(&[row(&[(5, &c, None), (7, &c, None)], None)], 1000);
        assert_eq!(lab.zone(5).as_deref(), Some("3"));
        assert_eq!((lab.zone(6), lab.policies().len()), (None, 3));
        lab.0.forget_unused(&lab.1, 1000 + LINGER_MS - 1);
        assert_eq!(lab.policies().len(), 3);
        // A policy is used again in time.
        lab.apply(&[row(&[(5, &c, None), (7, &b, None)], None)], 2000);
        lab.0.forget_unused(&lab.1, 1000 + LINGER_MS);
        assert_eq!(lab.policies(), [("2".to_owned(), 2), ("3".to_owned(), 3)]);
        lab.apply(&[row(&[(5, &a, None)], None)], 30_000);
        assert_eq!(
            lab.zone(5).as_deref(),
            Some("1"),
            "the lowest number that is free"
        );
    }

    #[test]
    fn limits_come_and_go_with_the_database() {
        let mut lab = Lab::new();
        lab.1.set_zone_limit(1, Some(10));
        let none = Settings::new();
        lab.apply(&[row(&[(2, &none, Some(20)), (3, &none, None)], Some(7))], 0);
        let all = |lab: &Lab| -> Vec<(u16, u32)> {
            lab.1.zone_limits().iter().map(|l| (l.zone, l.limit)).collect()
        };
        assert_eq!((all(&lab), lab.1.default_limit()), (vec![(1, 10), (2, 20)], 7));
        assert!(lab.0.has_limits());
        lab.apply(&[row(&[(2, &none, Some(21))], None)], 0);
        assert_eq!((all(&lab), lab.1.default_limit()), (vec![(1, 10), (2, 21)], 0));
        lab.apply(&[], 0);
        assert_eq!(all(&lab), [(1, 10)], "what others have set stays");
        assert!(!lab.0.has_limits());
    }

    #[test]
    fn the_first_datapath_counts() {
        let (a, b) = (settings(&[("udp_first", 1)]), settings(&[("udp_first", 2)]));
        let rows = [
            row(&[(5, &a, None)], None),
            row(&[(5, &b, None), (6, &b, Some(3))], Some(9)),
        ];
        let wanted = Wanted::of(rows.iter());
        assert_eq!(wanted.policies, [(5, &a), (6, &b)].into());
        assert_eq!((wanted.limits, wanted.default_limit), ([(6, 3)].into(), Some(9)));
    }
}
