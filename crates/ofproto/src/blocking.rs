//! Work that blocks, on threads that many tasks share.
//!
//! **Problem.** Connections share a few threads with each other, the database and the control socket. A
//! bundle of a million rules is committed under the bridge's lock. A task that simply blocks on that lock
//! keeps its thread, and all other tasks of the thread wait.

use parking_lot::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs `f`, which may block, without blocking the other tasks of this thread.
pub(crate) fn block_in_place<R>(f: impl FnOnce() -> R) -> R {
    match Handle::try_current().map(|h| h.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(f),
        _ => f(),
    }
}

/// A mutex that may be held for long: a task that waits for it does not block the other tasks of its thread.
#[derive(Default)]
pub(crate) struct SlowMutex<T>(Mutex<T>);

impl<T> SlowMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.try_lock()
            .unwrap_or_else(|| block_in_place(|| self.0.lock()))
    }
    /// Whether the mutex becomes free within this time.
    pub(crate) fn is_free_within(&self, patience: Duration) -> bool {
        self.0.try_lock_for(patience).is_some()
    }
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock()
    }
}
