//! Hands out aligned addresses of a guest's memory, upwards; nothing is given back.

use crate::mem::{GuestMemory, MemError, Region};
use crate::ring::{Features, Position, QueueConfig};
use heddle_sys::Mapping;
use std::sync::Arc;

/// A bump allocator over one range of driver addresses.
#[derive(Clone, Copy, Debug)]
pub struct Arena {
    next: u64,
    end: u64,
}

impl Arena {
    /// Hands out `len` bytes from `base` on.
    pub fn new(base: u64, len: u64) -> Self {
        Self {
            next: base,
            end: base.saturating_add(len),
        }
    }
    /// A table of one private region of `len` bytes at `base`, and an arena over it: for tests and
    /// measurements in one process.
    ///
    /// # Errors
    /// When the system has no memory, or the range makes no sense.
    pub fn private(base: u64, len: usize) -> std::io::Result<(GuestMemory, Self)> {
        let map = Arc::new(Mapping::anonymous(len)?);
        let region = Region::new(base, base, map).and_then(|r| GuestMemory::new(vec![r]));
        let mem = region.map_err(std::io::Error::other)?;
        Ok((mem, Self::new(base, len as u64)))
    }
    /// `len` bytes at a multiple of `align`.
    ///
    /// # Errors
    /// [`MemError::Unmapped`] when the arena is used up.
    pub fn take(&mut self, len: u64, align: u64) -> Result<u64, MemError> {
        let none = MemError::Unmapped { addr: self.next, len };
        let at = self.next.checked_next_multiple_of(align.max(1)).ok_or(none)?;
        let next = at.checked_add(len).filter(|&n| n <= self.end).ok_or(none)?;
        self.next = next;
        Ok(at)
    }
    /// Places the areas of a queue, each on lines of its own.
    ///
    /// # Errors
    /// The errors of [`Arena::take`].
    pub fn queue(&mut self, features: Features, size: u16) -> Result<QueueConfig, MemError> {
        let mut cfg = QueueConfig {
            features,
            size,
            desc: 0,
            driver: 0,
            device: 0,
            start: Position::default(),
            wait_for_miss: false,
        };
        let [desc, driver, device] = cfg.area_len();
        cfg.desc = self.take(desc, 128)?;
        cfg.driver = self.take(driver, 128)?;
        cfg.device = self.take(device, 128)?;
        Ok(cfg)
    }
}
