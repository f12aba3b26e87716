//! The last example of each reason and port.

use std::collections::BTreeMap;
use std::time::SystemTime;

use heddle_datapath::{Datapath, DropExample};
use heddle_datapath_api::{DropKind, PortNo};
use parking_lot::Mutex;

/// Maximum number of pairs of a reason and a port that are kept.
const MAX_PAIRS: usize = 4096;

/// The last packet that was dropped for one reason at one port, and the counts.
#[derive(Clone)]
pub(crate) struct LastDrop {
    /// Number of the example among all.
    pub(crate) number: u64,
    /// Packets that were dropped.
    seen: u64,
    /// The number of these packets that were dropped before the last reset.
    forgotten: u64,
    pub(crate) at: SystemTime,
    pub(crate) example: DropExample,
}

impl LastDrop {
    /// Packets that were dropped since the last reset.
    pub(crate) fn packets(&self) -> u64 {
        self.seen - self.forgotten
    }
}

/// The drops of one port, or of all.
pub(crate) struct DropReport {
    /// The number of examples so far.
    pub(crate) number: u64,
    /// Packets by reason, since the last reset.
    pub(crate) totals: BTreeMap<&'static str, u64>,
    /// Reasons and examples, the latest first.
    pub(crate) examples: Vec<(&'static str, LastDrop)>,
}

/// The known drops.
#[derive(Default)]
pub(crate) struct Drops(Mutex<Examples>);

#[derive(Default)]
struct Examples {
    by_reason_and_port: BTreeMap<(&'static str, u32), LastDrop>,
    number: u64,
    /// The number of the last example before the last reset, and the totals then.
    reset_number: u64,
    reset_totals: BTreeMap<&'static str, u64>,
}

impl Examples {
    fn add(&mut self, e: DropExample, at: SystemTime) {
        self.number += 1;
        let key = (e.kind.name(), e.in_port.0);
        let old = self.by_reason_and_port.get(&key);
        let (seen, forgotten) = old.map_or((0, 0), |old| (old.seen, old.forgotten));
        let seen = seen + e.seen;
        if self.by_reason_and_port.len() >= MAX_PAIRS && !self.by_reason_and_port.contains_key(&key) {
            // The entry with the oldest example is removed.
            let oldest = self
                .by_reason_and_port
                .iter()
                .min_by_key(|(_, e)| e.number)
                .map(|(key, _)| *key);
            oldest.and_then(|key| self.by_reason_and_port.remove(&key));
        }
        let last = LastDrop {
            number: self.number,
            seen,
            forgotten,
            at,
            example: e,
        };
        self.by_reason_and_port.insert(key, last);
    }

    /// Reports leave out earlier drops from now on. Metrics continue to count.
    fn reset(&mut self, totals: BTreeMap<&'static str, u64>) {
        self.by_reason_and_port
            .values_mut()
            .for_each(|e| e.forgotten = e.seen);
        self.reset_number = self.number;
        self.reset_totals = totals;
    }

    /// Removes entries of ports that are gone: another port may get the number.
    fn retain_ports(&mut self, is_there: impl Fn(u32) -> bool) {
        self.by_reason_and_port
            .retain(|(_, port), _| *port == PortNo::NONE.0 || is_there(*port));
    }
}

impl Drops {
    /// Takes the examples of workers.
    pub(crate) fn gather(&self, datapath: &Datapath) {
        let now = SystemTime::now();
        let mut examples = self.0.lock();
        datapath.take_drop_examples(&mut |e| examples.add(e, now));
        examples.retain_ports(|no| datapath.port(PortNo(no)).is_some());
    }

    /// Resets the counts, for an operator who wants to see only later drops.
    pub(crate) fn reset(&self, datapath: &Datapath) {
        self.gather(datapath);
        self.0.lock().reset(totals(datapath));
    }

    /// Packets by the port that they came in by and the reason.
    pub(crate) fn by_port(&self, datapath: &Datapath) -> BTreeMap<u32, BTreeMap<&'static str, u64>> {
        self.gather(datapath);
        let mut all: BTreeMap<u32, BTreeMap<&'static str, u64>> = BTreeMap::new();
        for ((reason, port), last) in &self.0.lock().by_reason_and_port {
            all.entry(*port).or_default().insert(reason, last.seen);
        }
        all
    }

    /// The drops at one port or all, with the examples after number `since`.
    ///
    /// The totals of one port leave out the drops since its last examples.
    pub(crate) fn report(&self, datapath: &Datapath, port: Option<u32>, since: u64) -> DropReport {
        self.gather(datapath);
        let known = self.0.lock();
        let of_port = known
            .by_reason_and_port
            .iter()
            .filter(|((_, no), _)| port.is_none_or(|wanted| wanted == *no));
        let mut totals = totals(datapath);
        for (reason, n) in &mut totals {
            *n = n.saturating_sub(known.reset_totals.get(reason).copied().unwrap_or(0));
        }
        if port.is_some() {
            totals = of_port
                .clone()
                .map(|((reason, _), last)| (*reason, last.packets()))
                .collect();
        }
        totals.retain(|_, n| *n > 0);
        let mut examples: Vec<_> = of_port
            .filter(|(_, last)| last.number > since.max(known.reset_number))
            .map(|((reason, _), last)| (*reason, last.clone()))
            .collect();
        examples.sort_by_key(|(_, last)| std::cmp::Reverse(last.number));
        DropReport {
            number: known.number,
            totals,
            examples,
        }
    }
}

/// Packets by reason, since the daemon started.
fn totals(datapath: &Datapath) -> BTreeMap<&'static str, u64> {
    let all: BTreeMap<&str, u64> = datapath.coverage().into_iter().collect();
    let of = |kind: &DropKind| Some((kind.name(), *all.get(kind.name()).filter(|n| **n > 0)?));
    DropKind::ALL.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An example, for tests.
    fn example(kind: DropKind, port: u32, seen: u64) -> DropExample {
        DropExample {
            kind,
            in_port: PortNo(port),
            out_port: None,
            at_ms: 0,
            seen,
            len: 60,
            head: vec![0; 60],
            context: None,
        }
    }

    #[test]
    fn counts_add_up_and_the_oldest_gives_way() {
        let mut examples = Examples::default();
        let now = SystemTime::UNIX_EPOCH;
        for port in 0..MAX_PAIRS {
            examples.add(example(DropKind::Policy, u32::try_from(port).unwrap(), 2), now);
        }
        examples.add(example(DropKind::Policy, 0, 5), now);
        assert_eq!(examples.by_reason_and_port[&(DropKind::Policy.name(), 0)].seen, 7);
        examples.add(example(DropKind::TxFull, 0, 1), now);
        assert_eq!(examples.by_reason_and_port.len(), MAX_PAIRS);
        assert!(
            !examples
                .by_reason_and_port
                .contains_key(&(DropKind::Policy.name(), 1)),
            "the one that is longest ago"
        );
        assert!(
            examples
                .by_reason_and_port
                .contains_key(&(DropKind::Policy.name(), 0))
        );
    }
}
