//! The device side of a ring, with nothing checked: each buffer is one descriptor, the driver is this
//! process.

use crate::error::RunError;
use arrayvec::ArrayVec;
use core::sync::atomic::{Ordering, fence};
use heddle_vhost_user::frontend::{FrontendError, Nic, NicQueue};
use heddle_virtio::mem::HostRange;

/// Maximum number of descriptors held.
pub(super) const WINDOW: usize = 64;
const F_AVAIL: u16 = 1 << 7;
const F_USED: u16 = 1 << 15;

/// A buffer: where it is in the port's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Buffer {
    pub(super) at: usize,
    pub(super) len: usize,
    id: u16,
}

/// A ring and the memory that its buffers are in.
#[derive(Debug)]
pub(super) struct Ring {
    desc: HostRange,
    driver: HostRange,
    device: HostRange,
    pub(super) data: HostRange,
    base: u64,
    size: u16,
    packed: bool,
    /// Next descriptor to take, next to give back; packed: with their wrap counters.
    fetch: u16,
    fetch_wrap: bool,
    done: u16,
    done_wrap: bool,
    /// Split: the available index as last read.
    seen: u16,
    /// Taken buffers, to be given back from the front.
    window: ArrayVec<Buffer, WINDOW>,
    /// Filled buffers of the window, with the bytes written to each.
    used: ArrayVec<(u16, u32), WINDOW>,
}

impl Ring {
    pub(super) fn new(nic: &Nic, queue: &NicQueue) -> Result<Self, RunError> {
        let wrong = |error: FrontendError| RunError::Session { port: 0, error };
        let table = nic.ram().table().map_err(wrong)?;
        let range = |addr, len, align| table.range(addr, len, align).map_err(|e| wrong(e.into()));
        let region = nic.ram().region();
        let cfg = &queue.config;
        let [desc, driver, device] = cfg.area_len();
        let packed = cfg.packed();
        let ring = Self {
            desc: range(cfg.desc, desc, 16)?,
            driver: range(cfg.driver, driver, 2)?,
            device: range(cfg.device, device, 4)?,
            data: range(region.guest, region.size, 8)?,
            base: region.guest,
            size: cfg.size,
            packed,
            fetch: 0,
            fetch_wrap: true,
            done: 0,
            done_wrap: true,
            seen: 0,
            window: ArrayVec::new(),
            used: ArrayVec::new(),
        };
        // Suppress the driver's kicks, for good: the device polls.
        if packed {
            ring.device.store32(0, 1 << 16, Ordering::Relaxed);
        } else {
            ring.device.store16(0, 1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        Ok(ring)
    }
    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }
    /// The taken buffers.
    pub(super) fn window(&self) -> &[Buffer] {
        &self.window
    }
    /// Takes buffers until `want` are taken, or none is left.
    pub(super) fn fetch(&mut self, want: usize) {
        let want = want.min(WINDOW);
        while self.window.len() < want {
            let next = if self.packed {
                self.next_packed()
            } else {
                self.next_split()
            };
            let Some(buffer) = next else { break };
            self.window.push(buffer);
        }
    }
    fn next_split(&mut self) -> Option<Buffer> {
        if self.seen == self.fetch {
            // Acquire pairs with the driver's release (virtio 1.2 §2.7.13.3).
            self.seen = self.driver.load16(2, Ordering::Acquire);
            if self.seen == self.fetch {
                return None;
            }
        }
        let id = self
            .driver
            .load16(4 + 2 * self.slot(self.fetch), Ordering::Relaxed);
        self.fetch = self.fetch.wrapping_add(1);
        Some(self.buffer(usize::from(id) * 16, id))
    }
    fn next_packed(&mut self) -> Option<Buffer> {
        let off = usize::from(self.fetch) * 16;
        // Acquire pairs with the driver's release (§2.8.21).
        let flags = self.desc.load16(off + 14, Ordering::Acquire);
        if (flags & F_AVAIL != 0) != self.fetch_wrap || (flags & F_USED != 0) == self.fetch_wrap {
            return None;
        }
        let id = self.desc.load16(off + 12, Ordering::Relaxed);
        (self.fetch, self.fetch_wrap) = self.step(self.fetch, self.fetch_wrap);
        Some(self.buffer(off, id))
    }
    fn step(&self, at: u16, wrap: bool) -> (u16, bool) {
        if at + 1 == self.size {
            (0, !wrap)
        } else {
            (at + 1, wrap)
        }
    }
    fn buffer(&self, off: usize, id: u16) -> Buffer {
        let at = self.desc.load64(off).wrapping_sub(self.base);
        Buffer {
            at: usize::try_from(at).unwrap_or(usize::MAX),
            len: self.desc.load32(off + 8, Ordering::Relaxed) as usize,
            id,
        }
    }
    /// Marks the first buffer that is not yet used as used, with `bytes` bytes written.
    pub(super) fn use_first(&mut self, bytes: usize) {
        let n = self.used.len();
        if let Some(b) = self.window.get(n) {
            self.used.push((b.id, u32::try_from(bytes).unwrap_or(0)));
        }
    }
    /// Gives the used buffers back.
    pub(super) fn publish(&mut self) {
        if self.used.is_empty() {
            return;
        }
        if self.packed {
            self.publish_packed();
        } else {
            for &(id, len) in &self.used {
                let off = 4 + 8 * self.slot(self.done);
                self.device.store32(off, id.into(), Ordering::Relaxed);
                self.device.store32(off + 4, len, Ordering::Relaxed);
                self.done = self.done.wrapping_add(1);
            }
            self.device.store16(2, self.done, Ordering::Release); // pairs with the driver's acquire (§2.7.14)
        }
        self.window.drain(..self.used.len());
        self.used.clear();
    }
    fn publish_packed(&mut self) {
        let flags = |wrap: bool, len: u32| {
            let write = if len > 0 { 2 } else { 0 };
            if wrap { F_AVAIL | F_USED | write } else { write }
        };
        let (first, first_wrap) = (self.done, self.done_wrap);
        for (i, &(id, len)) in self.used.iter().enumerate() {
            let off = usize::from(self.done) * 16;
            self.desc.store32(off + 8, len, Ordering::Relaxed);
            self.desc.store16(off + 12, id, Ordering::Relaxed);
            if i > 0 {
                self.desc
                    .store16(off + 14, flags(self.done_wrap, len), Ordering::Relaxed);
            }
            (self.done, self.done_wrap) = self.step(self.done, self.done_wrap);
        }
        let len = self.used.first().map_or(0, |u| u.1);
        // Pairs with the driver's acquire: once the first one's flags are visible, the whole burst is.
        self.desc.store16(
            usize::from(first) * 16 + 14,
            flags(first_wrap, len),
            Ordering::Release,
        );
    }
    /// Prefetches the first line of the taken buffers from number `from` on.
    pub(super) fn prefetch(&self, from: usize) {
        for b in self.window.iter().skip(from) {
            self.data.prefetch(b.at);
        }
    }
}
