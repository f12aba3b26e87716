//! What a port may send, and by which queues (`Port.qos` of the database).

use std::collections::BTreeMap;

/// Keys and values of a row.
pub type Details = BTreeMap<String, String>;

/// The type whose queues are somebody else's: nothing is to be set up.
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

/// A number of a row; 0: it says none.
pub(crate) fn number(details: &Details, key: &str) -> u64 {
    details.get(key).and_then(|v| v.parse().ok()).unwrap_or(0)
}
