//! One queue of either layout: follows the memory table, stops when the ring is broken.

use super::RingError;
use super::config::{Position, QueueConfig, Tracking};
use super::desc::{F_INDIRECT, RawDesc};
use super::limits::WINDOW;
use super::packed::Packed;
use super::split::Split;
use super::walk::{Direction, Scratch};
use super::window::Window;
use crate::mem::{Access, GuestMemory, MemError, SharedMemory};
use std::sync::Arc;

/// A buffer whose address is not in the memory table, on a queue that waits for such (IOTLB miss).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// First address that is missing.
    pub addr: u64,
    /// Bytes from there on that the buffer has.
    pub len: u64,
    /// Whether the device wants to write there.
    pub write: bool,
}

impl Miss {
    /// The part of a chain's first descriptor that the device cannot reach (the address of its indirect
    /// table, if it has one). No decision depends on this read of the descriptor: the chain is read again
    /// when it is taken.
    pub(super) fn of(mem: &GuestMemory, d: &RawDesc, flags: u16, direction: Direction) -> Option<Self> {
        let access = if flags & F_INDIRECT != 0 {
            Access::READ
        } else {
            direction.access()
        };
        match mem.pieces(&mut 0, d.addr, d.len, access, |_| {}) {
            Err(MemError::Unmapped { addr, len }) => Some(Self {
                addr,
                len,
                write: access == Access::WRITE,
            }),
            _ => None,
        }
    }
}

#[derive(Debug)]
enum Layout {
    Split(Split),
    Packed(Packed),
}

/// The state that both directions share.
#[derive(Debug)]
pub(super) struct Queue {
    layout: Option<Layout>,
    cfg: QueueConfig,
    tracking: Tracking,
    direction: Direction,
    shared: Arc<SharedMemory>,
    /// The snapshot that the window's pieces and the packets of the current burst point into.
    mem: Arc<GuestMemory>,
    generation: u64,
    /// Cut mappings of the process ([`heddle_sys::sigbus::cuts`]) when the memory was looked at last.
    cuts: u32,
    error: Option<RingError>,
    misses: Vec<Miss>,
    position: Position,
    pub(super) window: Window,
    scratch: Scratch,
}

impl Queue {
    pub(super) fn new(
        cfg: QueueConfig,
        shared: Arc<SharedMemory>,
        direction: Direction,
        tracking: Tracking,
    ) -> Result<Self, RingError> {
        let generation = shared.generation();
        let mem = shared.get();
        let mut q = Self {
            layout: None,
            cfg,
            tracking,
            direction,
            shared,
            mem,
            generation,
            cuts: 0,
            error: None,
            misses: Vec::new(),
            position: cfg.start,
            window: Window::new(),
            scratch: Scratch::default(),
        };
        q.open()?;
        Ok(q)
    }

    fn open(&mut self) -> Result<(), RingError> {
        let mut areas = self.cfg.areas(&self.mem)?;
        if let Some(log) = self.tracking.log_device {
            areas.device = areas.device.logged_at(log);
        }
        let cfg = QueueConfig {
            start: self.position,
            ..self.cfg
        };
        self.layout = Some(if cfg.packed() {
            let record = self.tracking.record.clone();
            Layout::Packed(Packed::new(&cfg, areas, self.direction, record, self.mem.log())?)
        } else {
            let resubmit = self.tracking.resubmit.clone();
            Layout::Split(Split::new(&cfg, areas, self.direction, resubmit))
        });
        Ok(())
    }

    pub(super) fn error(&self) -> Option<RingError> {
        self.error
    }
    pub(super) fn take_miss(&mut self) -> Option<Miss> {
        self.misses.pop()
    }
    /// Stops the queue. The first error is the one that is reported.
    pub(super) fn stop(&mut self, error: RingError) {
        self.error.get_or_insert(error);
    }
    /// The position of the next chain to use.
    pub(super) fn position(&self) -> Position {
        match &self.layout {
            Some(Layout::Split(s)) => Position {
                index: s.position(),
                wrap: true,
            },
            Some(Layout::Packed(p)) => p.position(),
            None => self.position,
        }
    }
    /// The memory that the window's pieces point into.
    #[inline]
    pub(super) fn mem(&self) -> &GuestMemory {
        &self.mem
    }
    /// Keeps the current snapshot mapped for ever; for a queue that is dropped while packets point into it.
    pub(super) fn leak_memory(&self) {
        core::mem::forget(Arc::clone(&self.mem));
    }

    /// Begins a call. Takes a new memory table over if there is one, unless packets point into the old one.
    /// Chains that were only read ahead are taken again, with new addresses.
    #[inline]
    pub(super) fn refresh(&mut self) {
        self.scratch.begin_call();
        if self.shared.generation() != self.generation && self.window.taken() == 0 {
            self.reload();
        }
        if heddle_sys::sigbus::cuts() != self.cuts {
            self.look_for_cuts();
        }
    }
    /// A guest's memory was cut: a queue over it stops here, without waiting for the session that will end.
    #[cold]
    fn look_for_cuts(&mut self) {
        // The number first: a file that is cut in between is noticed at the next call.
        self.cuts = heddle_sys::sigbus::cuts();
        if self.mem.is_cut() {
            self.stop(RingError::Cut);
        }
    }
    #[cold]
    fn reload(&mut self) {
        // The number first: a table that is replaced in between is taken again at the next call.
        self.generation = self.shared.generation();
        self.mem = self.shared.get();
        self.position = self.position();
        if matches!(&self.layout, Some(Layout::Split(s)) if !s.resubmits()) {
            // Positions come again after 2^16 chains; these do not.
            self.tracking.resubmit = None;
        }
        self.window.forget_ready();
        self.misses.clear();
        if self.error.is_some_and(|e| !e.may_recover()) {
            return;
        }
        self.layout = None;
        self.error = self.open().err();
    }

    /// Takes up to `max` more chains into the window, prefetches the lines of their first `NEAR` bytes, and
    /// returns their number. `WRITE`: prefetches to write, in accordance with the queue's direction. Stops
    /// the queue at an error, behind the good chains.
    #[inline]
    pub(super) fn fetch<const NEAR: usize, const WRITE: bool>(&mut self, max: usize) -> usize {
        debug_assert_eq!(WRITE, self.direction == Direction::ToGuest);
        if self.error.is_some() {
            return 0;
        }
        let before = self.window.len();
        let (mem, window, scratch) = (&*self.mem, &mut self.window, &mut self.scratch);
        let fetched = match &mut self.layout {
            Some(Layout::Split(s)) => s.fetch::<NEAR, WRITE>(mem, max, window, scratch),
            Some(Layout::Packed(p)) => p.fetch::<NEAR, WRITE>(mem, max, window, scratch),
            None => Ok(()),
        };
        if let Err(e) = fetched {
            self.refuse(e);
        }
        #[cfg(test)]
        self.check(before);
        self.window.len() - before
    }
    /// Checks every chain from number `from` on against the table, plainly: its pieces are in regions, and
    /// have its length.
    #[cfg(test)]
    fn check(&self, from: usize) {
        for chain in (from..).map_while(|i| self.window.get(i)) {
            let pieces = self.window.pieces(chain);
            assert!(
                pieces.iter().all(|p| self.mem.holds(p)),
                "a piece outside its region"
            );
            let sum: usize = pieces.iter().map(crate::mem::Piece::len).sum();
            assert_eq!(sum, chain.len as usize, "pieces as long as their chain");
        }
    }
    /// Prefetches the lines that giving `n` chains back will write.
    #[inline]
    pub(super) fn prepare(&self, n: usize) {
        match &self.layout {
            Some(Layout::Split(s)) => s.prepare(n.min(WINDOW)),
            Some(Layout::Packed(p)) => p.prepare(n.min(WINDOW)),
            None => {}
        }
    }
    #[cold]
    fn refuse(&mut self, error: RingError) {
        let (addr, len, write) = match error {
            RingError::Buffer(MemError::Unmapped { addr, len }) => {
                (addr, len, self.direction == Direction::ToGuest)
            }
            RingError::Table(MemError::Unmapped { addr, len }) => (addr, len, false),
            _ => return self.stop(error),
        };
        if !self.cfg.wait_for_miss {
            return self.stop(error);
        }
        self.misses.clear();
        // The chains behind will most likely miss theirs, too: one question for all of them.
        match &self.layout {
            Some(Layout::Split(s)) => s.look_ahead(&self.mem, &mut self.misses),
            Some(Layout::Packed(p)) => p.look_ahead(&self.mem, &mut self.misses),
            None => {}
        }
        // The first is taken first.
        self.misses.reverse();
        self.misses.retain(|m| m.addr != addr);
        self.misses.push(Miss { addr, len, write });
    }

    /// Gives the used chains back; returns whether there were some. Then [`Queue::needs_call`] is due, but
    /// independent work comes first: the call waits for all stores so far, whose lines come from another
    /// core. This works on a stopped queue, too: chains that were used before it broke are the driver's
    /// again.
    #[inline]
    pub(super) fn give_back(&mut self) -> bool {
        if self.window.taken() == 0 {
            return false;
        }
        let (log, wrote) = (self.mem.log(), self.direction == Direction::ToGuest);
        match &mut self.layout {
            Some(Layout::Split(s)) => s.publish(self.window.given(wrote), log),
            Some(Layout::Packed(p)) => p.publish(self.window.given(wrote), log),
            None => {}
        }
        self.window.release();
        true
    }
    /// Whether the driver wants to be notified of the chains that were given back.
    #[inline]
    pub(super) fn needs_call(&mut self) -> bool {
        match &mut self.layout {
            Some(Layout::Split(s)) => s.needs_call(),
            Some(Layout::Packed(p)) => p.needs_call(),
            None => false,
        }
    }
    /// Does both: gives chains back and returns whether to notify.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        self.give_back() && self.needs_call()
    }

    pub(super) fn arm(&mut self) -> bool {
        let log = self.mem.log();
        let waiting = match &mut self.layout {
            _ if self.error.is_some() => return false,
            Some(Layout::Split(s)) => s.arm(log),
            Some(Layout::Packed(p)) => Ok(p.arm(log)),
            None => Ok(false),
        };
        waiting.unwrap_or_else(|e| {
            self.stop(e);
            false
        })
    }
    pub(super) fn disarm(&mut self) {
        let log = self.mem.log();
        match &mut self.layout {
            _ if self.error.is_some() => {}
            Some(Layout::Split(s)) => s.disarm(log),
            Some(Layout::Packed(p)) => p.disarm(log),
            None => {}
        }
    }
    /// Gives back the chains that were taken and not used, so that [`Queue::position`] is the whole state.
    pub(super) fn rewind(&mut self) {
        self.window.forget_ready();
        match &mut self.layout {
            Some(Layout::Split(s)) => s.rewind(),
            Some(Layout::Packed(p)) => p.rewind(),
            None => {}
        }
    }
}
