//! The structure that lookups read ([`Buckets`]).

use super::MacKey;
use crate::buckets::Buckets;
use heddle_openflow::Port;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// One learned address.
#[derive(Debug)]
pub(super) struct LearnedMac {
    pub(super) key: MacKey,
    port: AtomicU32,
    /// Coarse clock when last seen, ms. Also written by threads that found the mutex taken.
    pub(super) used_ms: AtomicU64,
}

impl LearnedMac {
    pub(super) fn new(key: MacKey, port: Port, now_ms: u64) -> Self {
        Self {
            key,
            port: port.0.into(),
            used_ms: now_ms.into(),
        }
    }
    /// Relaxed, here and below: the generation that the writer bumps after a change is what orders it for
    /// readers.
    pub(super) fn port(&self) -> Port {
        Port(self.port.load(Relaxed))
    }
    pub(super) fn set_port(&self, port: Port) {
        self.port.store(port.0, Relaxed);
    }
    pub(super) fn used_ms(&self) -> u64 {
        self.used_ms.load(Relaxed)
    }
}

pub(super) struct Index(Buckets<LearnedMac>);

impl Index {
    pub(super) fn new(max_entries: usize) -> Self {
        Self(Buckets::new(max_entries))
    }

    /// The port of an entry, without counting a reference.
    pub(super) fn port_of(&self, key: MacKey) -> Option<Port> {
        self.0.read(key.bits(), |e| e.key == key, |e| e.port())
    }

    pub(super) fn find(&self, key: MacKey) -> Option<Arc<LearnedMac>> {
        self.0.read(key.bits(), |e| e.key == key, Arc::clone)
    }

    /// Adds an entry (the caller holds the mutex).
    pub(super) fn insert(&self, entry: Arc<LearnedMac>) {
        let key = entry.key;
        self.0.put(key.bits(), |e| e.key == key, entry);
    }

    /// Takes an entry out (the caller holds the mutex).
    pub(super) fn remove(&self, key: MacKey) {
        self.0.remove(key.bits(), |e| e.key == key);
    }

    /// Rebuilds for another number of entries (the caller holds the mutex).
    pub(super) fn resize(&self, max_entries: usize) {
        self.0.resize(max_entries, |e| e.key.bits());
    }
}
