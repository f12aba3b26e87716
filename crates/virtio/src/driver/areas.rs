//! The driver's view of a ring's areas: their set-up, and notifications both ways.

use crate::mem::{GuestMemory, HostRange};
use crate::ring::{
    AREA_DESC, AREA_DISABLE, AREA_ENABLE, F_AVAIL, F_USED, Features, QueueConfig, RingError,
    packed_event_passed, split_event_passed,
};
use core::sync::atomic::{Ordering, fence};

/// Offset of the index in the available and the used ring.
const IDX: usize = 2;
/// Offset of the entries in the available and the used ring.
pub(super) const RING: usize = 4;
/// Offset of the flags in a packed descriptor.
pub(super) const FLAGS: usize = 14;

/// The areas of a split ring (virtio 1.2 §2.7).
#[derive(Debug)]
pub(super) struct SplitAreas {
    pub(super) desc: HostRange,
    pub(super) avail: HostRange,
    pub(super) used: HostRange,
    pub(super) size: u16,
    event_idx: bool,
}

impl SplitAreas {
    /// The areas, with both indices at the start.
    pub(super) fn new(cfg: &QueueConfig, mem: &GuestMemory) -> Result<Self, RingError> {
        let areas = cfg.areas(mem)?;
        let start = cfg.start.index;
        areas.driver.store16(IDX, start, Ordering::Relaxed);
        areas.device.store16(IDX, start, Ordering::Relaxed);
        Ok(Self {
            desc: areas.desc,
            avail: areas.driver,
            used: areas.device,
            size: cfg.size,
            event_idx: cfg.features.contains(Features::EVENT_IDX),
        })
    }
    /// The entry of an index in either ring.
    #[inline]
    pub(super) fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }
    /// Publishes the available index; returns whether the device wants a kick for the entries since `old`.
    #[inline]
    pub(super) fn publish(&self, new: u16, old: u16) -> bool {
        // Release pairs with the device's acquire of `avail.idx`: entries, descriptors, tables and buffers
        // come first (§2.7.13.3).
        self.avail.store16(IDX, new, Ordering::Release);
        // SeqCst pairs with the device's barrier between its wish for kicks and its look at the index
        // (§2.7.13.4.1).
        fence(Ordering::SeqCst);
        if self.event_idx {
            let event = self
                .used
                .load16(RING + 8 * usize::from(self.size), Ordering::Relaxed);
            split_event_passed(event, new, old)
        } else {
            self.used.load16(0, Ordering::Relaxed) & 1 == 0
        }
    }
    /// The used index, as the device has published it.
    #[inline]
    pub(super) fn used_idx(&self) -> u16 {
        // Acquire pairs with the device's release of `used.idx`: entries and bytes come first.
        self.used.load16(IDX, Ordering::Acquire)
    }
    /// Enables notification of the used entry `index`. The caller looks at the used index again.
    pub(super) fn arm(&self, index: u16) {
        if self.event_idx {
            let at = RING + 2 * usize::from(self.size);
            self.avail.store16(at, index, Ordering::Relaxed);
        } else {
            self.avail.store16(0, 0, Ordering::Relaxed);
        }
        // SeqCst pairs with the device's barrier between `used.idx` and its look at this wish (§2.7.7.1).
        fence(Ordering::SeqCst);
    }
    /// Disables notification; `index` is the next used entry.
    pub(super) fn disarm(&self, index: u16) {
        if self.event_idx {
            // A threshold that the index has just passed.
            let at = RING + 2 * usize::from(self.size);
            self.avail.store16(at, index.wrapping_sub(1), Ordering::Relaxed);
        } else {
            self.avail.store16(0, 1, Ordering::Relaxed);
        }
    }
}

/// The areas of a packed ring (virtio 1.2 §2.8).
#[derive(Debug)]
pub(super) struct PackedAreas {
    pub(super) ring: HostRange,
    driver: HostRange,
    device: HostRange,
    pub(super) size: u16,
    event_idx: bool,
}

impl PackedAreas {
    /// The areas of an empty ring.
    pub(super) fn new(cfg: &QueueConfig, mem: &GuestMemory) -> Result<Self, RingError> {
        let areas = cfg.areas(mem)?;
        let start = cfg.start;
        if start.index >= cfg.size {
            return Err(RingError::Head(start.index));
        }
        // A ring that starts in the middle looks as if all was used: in the round of `start` behind it, in
        // the one before ahead.
        for slot in 0..cfg.size {
            let wrap = (slot < start.index) == start.wrap;
            let flags = if wrap { F_AVAIL | F_USED } else { 0 };
            areas
                .desc
                .store16(usize::from(slot) * 16 + FLAGS, flags, Ordering::Relaxed);
        }
        Ok(Self {
            ring: areas.desc,
            driver: areas.driver,
            device: areas.device,
            size: cfg.size,
            event_idx: cfg.features.contains(Features::EVENT_IDX),
        })
    }
    /// Whether the device has used the descriptor in `slot`, in the round `wrap`.
    #[inline]
    pub(super) fn is_used(&self, slot: u16, wrap: bool) -> bool {
        // Acquire pairs with the device's release of these flags: identifier, length and bytes come first.
        let flags = self
            .ring
            .load16(usize::from(slot) * 16 + FLAGS, Ordering::Acquire);
        (flags & F_AVAIL != 0) == wrap && (flags & F_USED != 0) == wrap
    }
    /// Whether the device wants a kick for the last `added` slots, which end before `slot` in round `wrap`.
    #[inline]
    pub(super) fn wants_kick(&self, slot: u16, wrap: bool, added: u32) -> bool {
        // SeqCst pairs with the device's barrier between its event area and its look at the flags
        // (§2.8.21.3.1).
        fence(Ordering::SeqCst);
        let area = self.device.load32(0, Ordering::Relaxed);
        match (area >> 16) as u16 & 3 {
            AREA_DISABLE => false,
            AREA_DESC if self.event_idx => packed_event_passed(area as u16, slot, wrap, added, self.size),
            _ => true,
        }
    }
    /// Enables notification of the used descriptor in `slot`. The caller looks at its flags again.
    pub(super) fn arm(&self, slot: u16, wrap: bool) {
        let area = if self.event_idx {
            u32::from(slot) | u32::from(wrap) << 15 | u32::from(AREA_DESC) << 16
        } else {
            u32::from(AREA_ENABLE) << 16
        };
        self.driver.store32(0, area, Ordering::Relaxed);
        // SeqCst pairs with the device's barrier between its used flags and its look at this area
        // (§2.8.21.3.1).
        fence(Ordering::SeqCst);
    }
    /// Disables notification.
    pub(super) fn disarm(&self) {
        self.driver
            .store32(0, u32::from(AREA_DISABLE) << 16, Ordering::Relaxed);
    }
}
