//! Limits and counters of a table.

use super::MacTable;

/// Limits, as `other_config:mac-table-size` and `mac-aging-time` set them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MacConfig {
    /// Maximum number of entries, 10 to 1,000,000.
    pub max_entries: usize,
    /// Seconds without a packet before an entry goes, 15 to 3600.
    pub idle_s: u64,
}

impl Default for MacConfig {
    fn default() -> Self {
        Self {
            max_entries: 8192,
            idle_s: 300,
        }
    }
}

/// Counters of a table.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct MacStats {
    /// Entries now, static ones among them.
    pub current: usize,
    /// Limit.
    pub max: usize,
    /// Static entries now.
    pub statics: usize,
    /// Entries learned.
    pub learned: u64,
    /// Entries that aged.
    pub expired: u64,
    /// Entries that were evicted.
    pub evicted: u64,
    /// Entries that moved to another port.
    pub moved: u64,
}

impl MacTable {
    /// Changes the limits. Values out of range are brought into it. Too many entries go at the next
    /// [`MacTable::age`].
    pub fn configure(&self, config: MacConfig) {
        let mut inner = self.inner.lock();
        inner.config = MacConfig {
            max_entries: config.max_entries.clamp(10, 1_000_000),
            idle_s: config.idle_s.clamp(15, 3600),
        };
        // Entries above the limit go first (`age`): in few buckets each change would copy many of them.
        self.index.resize(inner.config.max_entries.max(inner.len()));
    }
    /// The limits.
    pub fn config(&self) -> MacConfig {
        self.inner.lock().config
    }
    /// Counters (`fdb/stats-show`).
    pub fn stats(&self) -> MacStats {
        let inner = self.inner.lock();
        MacStats {
            current: inner.len(),
            max: inner.config.max_entries,
            statics: inner.n_statics(),
            ..inner.stats
        }
    }
    /// Zeroes the counters (`fdb/stats-clear`).
    pub fn clear_stats(&self) {
        self.inner.lock().stats = MacStats::default();
    }
}
