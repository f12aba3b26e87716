//! The limit of the work that a port causes by messages of IGMP and MLD.
//!
//! **Problem.** Each message is translated, and each of its group records changes the table. A frame of 1,500
//! bytes has room for 180 records, so a port that sends nothing else would take most of a worker's time.
//!
//! **Shape.** A token bucket of records for each port. A message without records costs one. If the bucket is
//! empty, a cached flow drops the port's further messages ([`crate::xlate`]). That drop holds until the next
//! [`SnoopingTable::age`](super::SnoopingTable::age).
//!
//! **Threads.** Workers charge the bucket without locks.

use heddle_sync::TokenBucket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Records that a port may send in a second, in the long run. Hosts reply to a query within ten seconds, so
/// about 14,000 groups behind one port are known after each query.
pub(crate) const RECORDS_PER_SECOND: u64 = RECORDS_PER_MS * 1000;
const RECORDS_PER_MS: u64 = 1;
/// Records that a port which was silent may send at once: twice the default size of a table. The message that
/// empties the bucket is learned as a whole.
const MAX_BURST_RECORDS: u64 = 4096;

/// The bucket of one port. It is state, not configuration: all buckets are equal.
#[derive(Clone, Debug, Default)]
pub struct ReportBudget(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    records: TokenBucket,
    is_reported: AtomicBool,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            records: TokenBucket::full(RECORDS_PER_MS, MAX_BURST_RECORDS, 0),
            is_reported: AtomicBool::new(false),
        }
    }
}

impl ReportBudget {
    /// Whether the bucket has a token.
    pub(crate) fn has_room(&self, now_ms: u64) -> bool {
        self.0.records.holds(1, now_ms)
    }

    /// Takes the tokens of a message. The bucket may owe as many as one message has for each worker.
    pub(crate) fn charge(&self, records: u64, now_ms: u64) {
        self.0.records.charge(records, now_ms);
    }

    /// Whether the log has no line about this port yet. Returns `true` once.
    pub(crate) fn take_unreported(&self) -> bool {
        !self.0.is_reported.swap(true, Relaxed)
    }
}

impl PartialEq for ReportBudget {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ReportBudget {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records that get through if `per_ms` messages of `records` records come every millisecond.
    fn admitted(budget: &ReportBudget, records: u64, per_ms: u64, from_ms: u64, ms: u64) -> u64 {
        let mut n = 0;
        for now_ms in from_ms..from_ms + ms {
            for _ in 0..per_ms {
                if budget.has_room(now_ms) {
                    budget.charge(records, now_ms);
                    n += records;
                }
            }
        }
        n
    }

    #[test]
    fn a_flood_gets_its_rate_and_a_burst() {
        for records in [1, 180, 512] {
            let budget = ReportBudget::default();
            let n = admitted(&budget, records, 20, 50_000, 10_000);
            // The last message may owe its records.
            let bound = MAX_BURST_RECORDS + 9_999 * RECORDS_PER_MS;
            assert!((bound..bound + records).contains(&n), "{n}");
        }
    }

    #[test]
    fn below_the_rate_nothing_is_lost() {
        let budget = ReportBudget::default();
        assert_eq!(admitted(&budget, 1, 1, 0, 10_000), 10_000);
        // After a time of silence the whole burst is there again, and no more than that.
        let n = admitted(&budget, 1, 10_000, 20_000, 1);
        assert_eq!(n, MAX_BURST_RECORDS);
        assert!(!budget.has_room(20_000) && budget.has_room(20_001));
    }

    #[test]
    fn a_port_is_reported_once() {
        let budget = ReportBudget::default();
        assert!(budget.take_unreported() && !budget.clone().take_unreported());
    }
}
