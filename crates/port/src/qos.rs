//! QoS of a port: its rates and its queues (`Port.qos` of the database).

use std::collections::BTreeMap;

/// Keys and values of a row.
pub type Details = BTreeMap<String, String>;

/// The type whose queues another program configures: the switch sets nothing up.
pub(crate) const NOOP: &str = "linux-noop";
pub(crate) const EGRESS_POLICER: &str = "egress-policer";
pub(crate) const TRTCM_POLICER: &str = "trtcm-policer";
pub(crate) const HTB: &str = "linux-htb";
pub(crate) const HFSC: &str = "linux-hfsc";
pub(crate) const SFQ: &str = "linux-sfq";
pub(crate) const CODEL: &str = "linux-codel";
pub(crate) const FQ_CODEL: &str = "linux-fq_codel";
pub(crate) const NETEM: &str = "linux-netem";

/// Settings of a queue, microseconds: the switch's own shaper controls the queue's delay.
pub(crate) const CODEL_TARGET: &str = "heddle-codel-target";
pub(crate) const CODEL_INTERVAL: &str = "heddle-codel-interval";

/// One row of `QoS` with its queues.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QosConfig {
    /// `type`, such as `linux-htb`.
    pub kind: String,
    /// `other_config`.
    pub details: Details,
    /// `other_config` of its queues, by their numbers.
    pub queues: BTreeMap<u32, Details>,
}

/// The settings of a type that are numbers: of the row, and of its queues; `None`: it has no queues.
fn settings(kind: &str) -> (&'static [&'static str], Option<&'static [&'static str]>) {
    match kind {
        HTB => (
            &["max-rate"],
            Some(&[
                "min-rate",
                "max-rate",
                "burst",
                "priority",
                CODEL_TARGET,
                CODEL_INTERVAL,
            ]),
        ),
        HFSC => (
            &["max-rate"],
            Some(&["min-rate", "max-rate", CODEL_TARGET, CODEL_INTERVAL]),
        ),
        SFQ => (&["perturb", "quantum"], None),
        CODEL => (&["target", "limit", "interval"], None),
        FQ_CODEL => (&["target", "limit", "interval", "flows", "quantum"], None),
        EGRESS_POLICER => (&["cir", "cbs"], None),
        TRTCM_POLICER => (&["cir", "cbs", "eir", "ebs"], Some(&["cir", "cbs", "eir", "ebs"])),
        NETEM => (&["latency", "limit", "loss", "jitter"], None),
        _ => (&[], Some(&[])),
    }
}

impl QosConfig {
    /// The parts of the row that have no effect, for people. For a value that is no number its default
    /// applies. `by_kernel`: disciplines of the kernel keep the port's rates.
    pub fn faults(&self, by_kernel: bool) -> Vec<String> {
        let (keys, of_queues) = settings(&self.kind);
        let wrong = |details: &Details, keys: &[&str]| -> Vec<String> {
            let given = keys.iter().filter_map(|key| Some((*key, details.get(*key)?)));
            let wrong = given.filter(|(_, value)| value.parse::<u64>().is_err());
            wrong
                .map(|(key, value)| format!("{key}={value} is no number"))
                .collect()
        };
        let mut faults = wrong(&self.details, keys);
        match of_queues {
            Some(keys) => {
                for (n, details) in &self.queues {
                    faults.extend(
                        wrong(details, keys)
                            .into_iter()
                            .map(|fault| format!("queue {n}: {fault}")),
                    );
                }
            }
            None if !self.queues.is_empty() => faults.push("this type has no queues".to_owned()),
            None => {}
        }
        for (n, details) in self.queues.iter().filter(|_| by_kernel) {
            let keys = [CODEL_TARGET, CODEL_INTERVAL].into_iter();
            let without_effect = keys.filter(|key| details.contains_key(*key));
            faults.extend(without_effect.map(|key| {
                format!("queue {n}: {key} has no effect, since the kernel keeps this port's rates")
            }));
        }
        faults
    }
}

/// A number of a row; 0: the row has none.
pub(crate) fn number(details: &Details, key: &str) -> u64 {
    details.get(key).and_then(|v| v.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_no_number_is_named() {
        let details = |pairs: &[(&str, &str)]| -> Details {
            let pairs = pairs.iter();
            pairs.map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        let mut qos = QosConfig {
            kind: HTB.to_owned(),
            details: details(&[("max-rate", "10M"), ("note", "x")]),
            queues: BTreeMap::from([(7, details(&[("min-rate", "-3"), ("priority", "2")]))]),
        };
        assert_eq!(
            qos.faults(false),
            ["max-rate=10M is no number", "queue 7: min-rate=-3 is no number"]
        );
        qos.kind = SFQ.to_owned();
        assert_eq!(qos.faults(true), ["this type has no queues"]);
        qos.kind = NOOP.to_owned();
        assert!(qos.faults(true).is_empty());
        qos.queues = BTreeMap::from([(7, details(&[(CODEL_TARGET, "5000")]))]);
        assert!(qos.faults(false).is_empty());
        assert_eq!(
            qos.faults(true),
            ["queue 7: heddle-codel-target has no effect, since the kernel keeps this port's rates"]
        );
    }
}
