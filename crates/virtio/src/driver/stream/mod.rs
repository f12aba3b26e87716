//! A queue whose buffers stay where they are: the driver of a load generator.
//!
//! **Problem.** A generator shares its machine with the switch that it measures. Each line of memory that
//! travels between the two limits both. So a generator must touch few of them, and must not spend more cycles
//! per packet than the switch does.
//!
//! **Shape.** The ring has one buffer for each entry, each one descriptor long. Buffer `i` starts in entry
//! `i`. A buffer that the device gives back goes into the entry behind the last one. So a device that works
//! in order never makes the driver rewrite an address. In the split layout the steady state writes the
//! available index once per burst and nothing else. In the packed layout it writes half a descriptor per
//! packet, because the device overwrites that half.
//!
//! **Invariants.** Out-of-order completion is served (a little slower). A device that completes a buffer that
//! it does not have is a [`DriverError::Device`]. The device's bytes in buffers are read by value only.
//!
//! **Costs.** Per packet: split 8 bytes of the used ring read; with IN_ORDER and nothing written by the
//! device not even that. Packed: one descriptor. Per call of [`Stream::post`]: a full barrier and one look at
//! the device's wish for kicks.
//!
//! One thread per stream.

mod packed;
mod split;
#[cfg(test)]
mod tests;

use super::DriverError;
use crate::mem::{GuestMemory, HostRange};
use crate::ring::{Position, QueueConfig, RingError};
use packed::Packed;
use split::Split;

/// Whether the device writes into the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// A transmit queue: the device reads.
    ToDevice,
    /// A receive queue: the device writes.
    FromDevice,
}

/// The location of a stream's buffers: one per entry of the ring, `stride` bytes apart.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// Address of the first one.
    pub base: u64,
    /// Bytes from one to the next.
    pub stride: u32,
    /// Bytes that each has at the start; see [`Stream::set_len`].
    pub len: u32,
}

impl Buffers {
    /// Bytes that `count` buffers take.
    pub fn total(&self, count: u16) -> u64 {
        u64::from(self.stride) * u64::from(count)
    }
    fn addr(&self, id: u16) -> u64 {
        self.base + u64::from(self.stride) * u64::from(id)
    }
}

#[derive(Debug)]
enum Layout {
    Split(Split),
    Packed(Packed),
}

/// The bytes of a stream's buffers; clones see the same ones, so that they can be read while buffers are
/// being taken.
#[derive(Clone, Debug)]
pub struct View {
    data: HostRange,
    stride: usize,
}

impl View {
    /// Copies `bytes` to `at` of `buffer`; bytes beyond its end are left out.
    #[inline]
    pub fn write(&self, buffer: u16, at: usize, bytes: &[u8]) {
        let (off, room) = self.place(buffer, at);
        self.data.write(off, &bytes[..bytes.len().min(room)]);
    }
    /// Reads from `at` of `buffer` on into `bytes`, as far as the buffer reaches.
    #[inline]
    pub fn read(&self, buffer: u16, at: usize, bytes: &mut [u8]) {
        let (off, room) = self.place(buffer, at);
        let n = bytes.len().min(room);
        self.data.read(off, &mut bytes[..n]);
    }
    /// Prefetches the line at `at` of `buffer`, to be written.
    #[inline]
    pub fn prefetch_write(&self, buffer: u16, at: usize) {
        let (off, room) = self.place(buffer, at);
        if room > 0 {
            self.data.prefetch_write(off);
        }
    }
    /// Prefetches the line at `at` of `buffer`.
    #[inline]
    pub fn prefetch(&self, buffer: u16, at: usize) {
        let (off, room) = self.place(buffer, at);
        if room > 0 {
            self.data.prefetch(off);
        }
    }
    #[inline]
    fn place(&self, buffer: u16, at: usize) -> (usize, usize) {
        let at = at.min(self.stride);
        (usize::from(buffer) * self.stride + at, self.stride - at)
    }
}

/// One queue with its buffers.
#[derive(Debug)]
pub struct Stream {
    layout: Layout,
    view: View,
}

macro_rules! each {
    ($self:expr, $l:ident => $e:expr) => {
        match $self {
            Layout::Split($l) => $e,
            Layout::Packed($l) => $e,
        }
    };
}

impl Stream {
    /// Sets a queue up in zeroed memory, at the position that `cfg` names. Nothing is posted yet.
    ///
    /// # Errors
    /// [`RingError::Size`]; [`RingError::Area`] for a ring, [`RingError::Buffer`] for buffers that are not in
    /// one region of `mem`.
    pub fn new(
        cfg: &QueueConfig,
        mem: &GuestMemory,
        flow: Flow,
        buffers: Buffers,
    ) -> Result<Self, RingError> {
        let data = mem
            .range(buffers.base, buffers.total(cfg.size), 8)
            .map_err(RingError::Buffer)?;
        Ok(Self {
            layout: if cfg.packed() {
                Layout::Packed(Packed::new(cfg, mem, flow, buffers)?)
            } else {
                Layout::Split(Split::new(cfg, mem, flow, buffers)?)
            },
            view: View {
                data,
                stride: buffers.stride as usize,
            },
        })
    }
    /// Buffers that can be posted, as far as is known without a look at the ring.
    pub fn free(&self) -> usize {
        each!(&self.layout, l => l.free())
    }
    /// The buffer that the `k`th post from now on will use (`k` below [`Stream::free`]).
    #[inline]
    pub fn upcoming(&self, k: usize) -> u16 {
        each!(&self.layout, l => l.upcoming(k))
    }
    /// Changes how many bytes of `buffer` the device may use, from its next post on.
    pub fn set_len(&mut self, buffer: u16, len: u32) {
        let len = len.min(u32::try_from(self.view.stride).unwrap_or(u32::MAX));
        each!(&mut self.layout, l => l.set_len(buffer, len));
    }
    /// Posts the next `n` buffers (at most [`Stream::free`]); returns whether the device wants a kick.
    pub fn post(&mut self, n: usize) -> bool {
        let n = n.min(self.free());
        n > 0 && each!(&mut self.layout, l => l.post(n))
    }
    /// Takes up to `max` buffers back and returns their number. Calls `each` with the buffer's number and the
    /// number of bytes that the device reports as written (0 for a transmit queue).
    ///
    /// # Errors
    /// [`DriverError::Device`].
    #[inline]
    pub fn take(&mut self, max: usize, each: impl FnMut(u16, u32)) -> Result<usize, DriverError> {
        each!(&mut self.layout, l => l.take(max, each))
    }
    /// Enables notification of the next used buffer. Returns whether there is one already.
    pub fn arm(&mut self) -> bool {
        each!(&mut self.layout, l => l.arm())
    }
    /// Disables notification.
    pub fn disarm(&mut self) {
        each!(&mut self.layout, l => l.disarm());
    }
    /// The position for a device that knows nothing but the ring: behind the last buffer that was used.
    /// Buffers that were posted and not used are in flight, and the next device uses them.
    pub fn position(&self) -> Position {
        each!(&self.layout, l => l.position())
    }
    /// The buffers' bytes.
    pub fn view(&self) -> &View {
        &self.view
    }
    /// [`View::write`].
    #[inline]
    pub fn write(&self, buffer: u16, at: usize, bytes: &[u8]) {
        self.view.write(buffer, at, bytes);
    }
    /// [`View::read`].
    #[inline]
    pub fn read(&self, buffer: u16, at: usize, bytes: &mut [u8]) {
        self.view.read(buffer, at, bytes);
    }
}
