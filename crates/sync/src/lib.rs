//! Published snapshots, single-producer rings, per-core counters.
