//! What takes long, on threads that many tasks share.
//!
//! **Problem.** Connections share a few threads with each other, the database and the control socket. A
//! bundle of a million rules is committed under the bridge's lock, and a task that waited for that lock as
//! one waits for a lock would keep its thread, and whatever else the thread has to do.

use parking_lot::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Does something that takes long, without keeping the tasks that share this thread waiting.
pub(crate) fn aside<R>(f: impl FnOnce() -> R) -> R {
    match Handle::try_current().map(|h| h.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(f),
        _ => f(),
    }
}

/// A mutex that may be held for long: who waits does so aside.
#[derive(Default)]
pub(crate) struct SlowMutex<T>(Mutex<T>);

impl<T> SlowMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| aside(|| self.0.lock()))
    }
    /// Whether nobody holds it for longer than that.
    pub(crate) fn is_free_within(&self, patience: Duration) -> bool {
        self.0.try_lock_for(patience).is_some()
    }
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock()
    }
}
