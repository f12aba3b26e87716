//! Counters of rare events, under the names that Open vSwitch's `coverage/show` has for them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter of the whole process.
pub(crate) struct Counter {
    name: &'static str,
    n: AtomicU64,
}

impl Counter {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            n: AtomicU64::new(0),
        }
    }
    /// Counts one.
    pub(crate) fn count(&self) {
        self.n.fetch_add(1, Relaxed);
    }
}

/// Addresses that were learned.
pub(crate) static MAC_LEARNED: Counter = Counter::new("mac_learning_learned");
/// Addresses that have aged.
pub(crate) static MAC_EXPIRED: Counter = Counter::new("mac_learning_expired");
/// Addresses that were evicted to make room.
pub(crate) static MAC_EVICTED: Counter = Counter::new("mac_learning_evicted");
/// Addresses that moved to another port.
pub(crate) static MAC_MOVED: Counter = Counter::new("mac_learning_moved");
/// Translated packets whose source address is static at another port.
pub(crate) static MAC_STATIC_NONE_MOVE: Counter = Counter::new("mac_learning_static_none_move");
/// New configurations, after each of which cached entries are checked.
pub(crate) static REV_RECONFIGURE: Counter = Counter::new("rev_reconfigure");

/// Flows that packets could not learn, because the queue to control threads was full.
pub(crate) static LEARN_QUEUE_FULL: Counter = Counter::new("learn_queue_full");

/// Groups and router ports that multicast snooping learned.
pub(crate) static MCAST_LEARNED: Counter = Counter::new("mcast_snooping_learned");
/// Listeners and router ports that were silent for too long.
pub(crate) static MCAST_EXPIRED: Counter = Counter::new("mcast_snooping_expired");
/// Changes of the groups' listeners, after each of which cached entries are checked.
pub(crate) static REV_MCAST_SNOOPING: Counter = Counter::new("rev_mcast_snooping");
/// Reports that were not learned, because the queue of a busy table was full.
pub(crate) static MCAST_QUEUE_FULL: Counter = Counter::new("mcast_snooping_queue_full");

/// All counters by name.
pub fn all() -> impl Iterator<Item = (&'static str, u64)> {
    [
        &MAC_LEARNED,
        &MAC_EXPIRED,
        &MAC_EVICTED,
        &MAC_MOVED,
        &MAC_STATIC_NONE_MOVE,
        &REV_RECONFIGURE,
        &LEARN_QUEUE_FULL,
        &MCAST_LEARNED,
        &MCAST_EXPIRED,
        &REV_MCAST_SNOOPING,
        &MCAST_QUEUE_FULL,
    ]
    .into_iter()
    .map(|c| (c.name, c.n.load(Relaxed)))
}
