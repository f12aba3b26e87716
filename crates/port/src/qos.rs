//! QoS of a port: its rates and its queues (`Port.qos` of the database).

use std::collections::BTreeMap;

/// Keys and values of a row.
pub type Details = BTreeMap<String, String>;

/// The type whose queues another program configures: the switch sets nothing up.
pub(crate) const NOOP: &str = "linux-noop";

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

/// A number of a row; 0: the row has none.
pub(crate) fn number(details: &Details, key: &str) -> u64 {
    details.get(key).and_then(|v| v.parse().ok()).unwrap_or(0)
}
