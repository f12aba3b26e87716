//! Index for lookups: buckets of entries. Writers replace a bucket as a whole; readers keep the old one
//! alive.

use super::{NeighEntry, NeighKey};
use arc_swap::ArcSwapOption;
use std::net::IpAddr;
use std::sync::Arc;

/// Number of buckets: half the maximum number of entries.
const N_BUCKETS: usize = super::MAX_ENTRIES / 2;

type Bucket = Vec<Arc<NeighEntry>>;

pub(super) struct Index(Box<[ArcSwapOption<Bucket>]>);

impl Default for Index {
    fn default() -> Self {
        Self((0..N_BUCKETS).map(|_| ArcSwapOption::empty()).collect())
    }
}

impl Index {
    /// `hash` is the hash of the key by a secret seed, so packets cannot fill one bucket on purpose.
    fn bucket(&self, hash: u64) -> &ArcSwapOption<Bucket> {
        #[allow(clippy::cast_possible_truncation)] // less than the number of buckets
        let at = ((u128::from(hash) * N_BUCKETS as u128) >> 64) as usize;
        &self.0[at]
    }
    pub(super) fn find(&self, hash: u64, bridge: &str, ip: IpAddr) -> Option<Arc<NeighEntry>> {
        let bucket = self.bucket(hash).load();
        let same = |e: &&Arc<NeighEntry>| e.key.ip == ip && &*e.key.bridge == bridge;
        bucket.as_ref()?.iter().find(same).cloned()
    }
    /// Puts an entry in place of one with the same key. The caller holds the lock of writers.
    pub(super) fn put(&self, entry: Arc<NeighEntry>) {
        let slot = self.bucket(entry.thing);
        let mut bucket = slot.load_full().map_or_else(Vec::new, |b| Vec::clone(&b));
        bucket.retain(|e| e.key != entry.key);
        bucket.push(entry);
        slot.store(Some(Arc::new(bucket)));
    }
    /// Removes an entry. The caller holds the lock of writers.
    pub(super) fn remove(&self, hash: u64, key: &NeighKey) {
        let slot = self.bucket(hash);
        if let Some(old) = slot.load_full() {
            let kept: Bucket = old.iter().filter(|e| e.key != *key).cloned().collect();
            slot.store((!kept.is_empty()).then(|| Arc::new(kept)));
        }
    }
}
