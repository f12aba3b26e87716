//! The current memory table, as the session publishes it and queues follow it.

use super::GuestMemory;
use core::sync::atomic::{AtomicU64, Ordering};
use heddle_sync::Published;
use std::sync::Arc;

/// A cell with the current [`GuestMemory`].
///
/// A queue compares [`SharedMemory::generation`] once per burst and takes the new table when no packet of it
/// points into the old one. A session that must not reply before the old table is out of use keeps the `Arc`
/// that [`SharedMemory::replace`] returns. It wakes the workers and waits (bounded) until it is the only
/// owner ([`Arc::strong_count`]).
#[derive(Debug)]
pub struct SharedMemory {
    table: Published<GuestMemory>,
    generation: AtomicU64,
}

impl SharedMemory {
    /// A cell that holds `table`.
    pub fn new(table: GuestMemory) -> Self {
        Self {
            table: Published::new(table),
            generation: AtomicU64::new(1),
        }
    }
    /// Publishes another table; returns the one before, which stays mapped while anybody holds it. One writer
    /// at a time: the session.
    pub fn replace(&self, table: GuestMemory) -> Arc<GuestMemory> {
        let old = self.table.get();
        self.table.store(table);
        // Release pairs with the Acquire in `generation`: a reader that sees the number sees the table.
        self.generation.fetch_add(1, Ordering::Release);
        old
    }
    /// The current table.
    pub fn get(&self) -> Arc<GuestMemory> {
        self.table.get()
    }
    /// Changes with every replacement.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire) // pairs with the Release in `replace`
    }
}
