//! The memory of a cache, and the makers that prepare its growth.

use crate::entry::CacheEntry;
use crate::signature::Bucket;
use crate::spare_memory::{Maker, Pace};
use crate::store::Store;
use crate::table::Table;

/// The memory of a cache that grows with its entries.
pub(crate) struct Memory {
    pub(crate) store: Store,
    pub(crate) table: Table,
}

impl Memory {
    /// An empty cache's memory, and the makers that prepare its growth. [`crate::spare_memory`] explains
    /// `near`.
    pub(crate) fn new(near: bool) -> (Self, Makers) {
        let (store, entries) = Store::with_spares(near);
        let (table, buckets) = Table::with_spares(near);
        let makers = Makers {
            entries,
            buckets,
            pace: Pace::new(),
        };
        (Self { store, table }, makers)
    }
}

/// The makers of the two growing parts of [`Memory`]. The revalidator runs them.
pub(crate) struct Makers {
    entries: Maker<CacheEntry>,
    buckets: Maker<Bucket>,
    pace: Pace,
}

impl Makers {
    /// Makes missing pieces, as far as the pace allows.
    pub(crate) fn fill(&mut self) {
        // Buckets first: fewer of them are needed.
        self.buckets.fill(&mut self.pace);
        self.entries.fill(&mut self.pace);
    }
}
