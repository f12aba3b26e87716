//! The dirty log of live migration (vhost-user SET_LOG_BASE): one bit per 4 KiB page that the device wrote.
//!
//! Ordering: a bit is set with Release after the page was written. The front end's atomic exchange of the
//! bitmap pairs with it, so that a page whose bit it has seen holds the bytes. The bit is always set, never
//! tested first: a test could see a bit that the front end is just clearing.

#![allow(unsafe_code)] // a byte of the shared log as an atomic

use super::MemError;
use core::sync::atomic::{AtomicU8, Ordering};
use heddle_sys::Mapping;

/// Bytes that one bit stands for (`VHOST_LOG_PAGE`).
const PAGE: u64 = 4096;

/// A bitmap that the front end reads and clears. Costs one locked instruction per page written, while a
/// migration runs.
#[derive(Debug)]
pub struct DirtyLog {
    map: Mapping,
}

impl DirtyLog {
    /// Whether its file was found shorter than it was.
    pub fn is_cut(&self) -> bool {
        self.map.was_cut()
    }
    /// Takes over the mapped bitmap.
    ///
    /// # Errors
    /// [`MemError::Wraps`] for an empty one.
    pub fn new(map: Mapping) -> Result<Self, MemError> {
        if map.is_empty() {
            return Err(MemError::Wraps { base: 0, len: 0 });
        }
        Ok(Self { map })
    }
    fn byte(&self, at: u64) -> Option<&AtomicU8> {
        let at = usize::try_from(at).ok().filter(|&i| i < self.map.len())?;
        // SAFETY: inside the mapping, which lives as long as `self`; all access to it is atomic.
        Some(unsafe { AtomicU8::from_ptr(self.map.as_ptr().add(at).as_ptr()) })
    }
    /// Marks the pages of `len` bytes at guest physical address `gpa`. Pages beyond the bitmap are not in the
    /// migration.
    pub fn mark(&self, gpa: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = gpa.saturating_add(len - 1) / PAGE;
        for page in gpa / PAGE..=last {
            let Some(byte) = self.byte(page / 8) else { return };
            // Release pairs with the front end's exchange: see above.
            byte.fetch_or(1 << (page % 8), Ordering::Release);
        }
    }
    /// Whether the page of a guest physical address is marked.
    #[cfg(test)]
    pub(crate) fn is_marked(&self, gpa: u64) -> bool {
        let page = gpa / PAGE;
        // Acquire pairs with the Release in `mark`: a reader that sees the bit sees the page.
        self.byte(page / 8)
            .is_some_and(|b| b.load(Ordering::Acquire) & (1 << (page % 8)) != 0)
    }
}
