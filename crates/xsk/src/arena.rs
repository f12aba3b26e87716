//! Memory that the sockets of several queues and devices share, and the part of each socket.
//!
//! **Problem.** The kernel takes a frame only from memory that is registered with the socket, as long as
//! the socket is open. So that a frame goes from card to card, all sockets of a NUMA node have one
//! region. The region has room for sockets that are opened later. Each socket has a part for itself:
//! frames to receive, and frames to send.
//!
//! **Invariants.**
//! * A part is given to another socket only when the kernel has ended its use. The kernel does that some time
//!   after the socket was closed, without a report. A new socket at the same queue of the same device
//!   proves it. Otherwise it is assumed after [`RELEASE_TIME`].
//! * While a sending half holds frames of a part, only a socket with the same sizes gets the part. The frames
//!   come back to it.
//! * A part to whose frames packets still refer is lost.
//!
//! **Thread-safety.** Opening a socket takes the lock, and so do reading a port's status and dropping the
//! last half of a socket. No worker takes it while it forwards.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // opened and closed by control threads

use crate::loans::Holder;
use crate::region::Region;
use core::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Time after which we assume that the kernel has ended its use of a closed socket's frames. A work item of
/// the kernel does that, which waits for the lock of all changes of devices (rtnl). If a device holds that
/// lock longer, frames may be used again too early.
const RELEASE_TIME: Duration = Duration::from_secs(10);

/// Properties that all sockets of a region have in common: the kernel takes them from the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// NUMA node of the memory.
    pub(crate) node: Option<u32>,
    pub(crate) zero_copy: bool,
    pub(crate) many_frames: bool,
    /// The kernel may fill checksums in.
    pub(crate) checksums: bool,
    pub(crate) need_wakeup: bool,
}

/// One queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueId {
    pub(crate) ifindex: u32,
    pub(crate) queue: u32,
}

/// A region, and the sockets that share it.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) kind: Kind,
    pub(crate) region: Arc<Region>,
    /// The region has room for metadata in front of packets to be sent.
    pub(crate) metadata: bool,
    frames: u32,
    state: Mutex<Directory>,
}

#[derive(Debug, Default)]
struct Directory {
    parts: Vec<PartRecord>,
    /// Bound sockets: the kernel takes the region from one of them.
    sockets: Vec<Weak<OwnedFd>>,
}

#[derive(Debug)]
struct PartRecord {
    holder: u16,
    received: u32,
    range: Range<u32>,
    queue: QueueId,
    /// When the socket was closed; `None`: it is open.
    closed: Option<Instant>,
    /// The kernel has ended its use, as far as we know.
    released: bool,
    /// Packets refer to frames for ever.
    lost: bool,
}

/// The frames of one socket. They are free again some time after this is dropped, with the socket.
#[derive(Debug)]
pub(crate) struct Part {
    arena: Arc<Arena>,
    pub(crate) holder: Holder,
    pub(crate) received: Range<u32>,
    pub(crate) sent: Range<u32>,
}

impl Arena {
    pub(crate) fn new(kind: Kind, region: Arc<Region>, frames: u32, metadata: bool) -> Arc<Self> {
        Arc::new(Self {
            kind,
            region,
            metadata,
            frames,
            state: Mutex::default(),
        })
    }
    fn state(&self) -> MutexGuard<'_, Directory> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a part for a queue, with these numbers of frames to receive and to send, both multiples of
    /// [`crate::loans::BLOCK`]. `None`: there is no room now.
    pub(crate) fn take(self: &Arc<Self>, received: u32, sent: u32, queue: QueueId) -> Option<Part> {
        let mut state = self.state();
        self.tidy(&mut state, None);
        let wanted = received + sent;
        // The part of the same queue before, or another one of the same sizes; both may miss held frames.
        let same = |e: &PartRecord| e.range.len() as u32 == wanted && e.received == received && !e.lost;
        let usable = |e: &PartRecord| e.closed.is_some() && same(e) && (e.released || e.queue == queue);
        let mut usable: Vec<_> = state.parts.iter_mut().filter(|e| usable(e)).collect();
        usable.sort_by_key(|e| e.queue != queue);
        if let Some(entry) = usable.into_iter().next() {
            (entry.queue, entry.closed, entry.released) = (queue, None, false);
            let range = entry.range.clone();
            return Some(self.part(entry.holder, received, range));
        }
        // First gap. Released parts of other sizes are gone from the list, if all of their frames are there.
        state.parts.sort_by_key(|e| e.range.start);
        let mut start = 0;
        for entry in &state.parts {
            if entry.range.start - start >= wanted {
                break;
            }
            start = entry.range.end;
        }
        let holder = (0..Holder::MAX).find(|n| state.parts.iter().all(|e| e.holder != *n))?;
        let range = start..start.checked_add(wanted).filter(|end| *end <= self.frames)?;
        state.parts.push(PartRecord {
            holder,
            received,
            range: range.clone(),
            queue,
            closed: None,
            released: false,
            lost: false,
        });
        Some(self.part(holder, received, range))
    }
    fn part(self: &Arc<Self>, holder: u16, received: u32, range: Range<u32>) -> Part {
        let middle = range.start + received;
        Part {
            arena: Arc::clone(self),
            holder: Holder::new(holder),
            received: range.start..middle,
            sent: middle..range.end,
        }
    }

    /// Returns frames that closed sockets have held, and frees their parts, where the kernel has ended its
    /// use. `bound`: a queue of which a new socket proves that.
    fn tidy(&self, state: &mut Directory, bound: Option<QueueId>) {
        let loans = &self.region.loans;
        for entry in &mut state.parts {
            let Some(closed) = entry.closed.filter(|_| !entry.released) else {
                continue;
            };
            entry.released = closed.elapsed() >= RELEASE_TIME || bound == Some(entry.queue);
            if entry.released {
                loans.return_all(Holder::new(entry.holder));
            }
        }
        state.parts.retain(|entry| {
            if !entry.released || entry.lost {
                return true;
            }
            // Afterwards, a frame that is still out is held, or about to be put into the list.
            loans.take_returned(entry.range.start, |_| ());
            loans.has_out(entry.range.clone())
        });
        state.sockets.retain(|socket| socket.strong_count() > 0);
    }
    /// A socket of this region that `is_bound`. `None`: there is none any more, and the kernel has forgotten
    /// the region.
    pub(crate) fn any_socket(&self, is_bound: impl Fn(&OwnedFd) -> bool) -> Option<Arc<OwnedFd>> {
        // The last reference to a socket may be one of these: it is dropped without the lock.
        let sockets: Vec<_> = self.state().sockets.iter().filter_map(Weak::upgrade).collect();
        sockets.into_iter().find(|fd| is_bound(fd))
    }
}

impl Part {
    /// Packets refer to frames of this part, and will do so for ever.
    pub(crate) fn lose(&self) {
        let mut state = self.arena.state();
        let own = state
            .parts
            .iter_mut()
            .find(|e| e.range.start == self.received.start);
        if let Some(entry) = own {
            entry.lost = true;
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut state = self.arena.state();
        let own = state
            .parts
            .iter_mut()
            .find(|e| e.range.start == self.received.start);
        if let Some(entry) = own {
            entry.closed = Some(Instant::now());
        }
    }
}

/// All regions of a process.
static ARENAS: Mutex<Vec<Weak<Arena>>> = Mutex::new(Vec::new());

fn arenas() -> Vec<Arc<Arena>> {
    let mut all = ARENAS.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|arena| arena.strong_count() > 0);
    all.iter().filter_map(Weak::upgrade).collect()
}

/// Returns frames that sockets held which are closed for [`RELEASE_TIME`].
pub(crate) fn tidy_up() {
    for arena in arenas() {
        arena.tidy(&mut arena.state(), None);
    }
}

/// The regions of a kind, oldest first.
pub(crate) fn of_kind(kind: Kind) -> Vec<Arc<Arena>> {
    arenas().into_iter().filter(|arena| arena.kind == kind).collect()
}

/// A socket with a part of `arena` is bound to a queue: earlier sockets of that queue are gone.
pub(crate) fn bound(arena: &Arc<Arena>, holder: Holder, queue: QueueId, socket: &Arc<OwnedFd>) {
    for other in arenas() {
        other.tidy(&mut other.state(), Some(queue));
    }
    // Frames that an earlier socket with this part has held.
    arena.region.loans.return_all(holder);
    arena.state().sockets.push(Arc::downgrade(socket));
    let mut all = ARENAS.lock().unwrap_or_else(PoisonError::into_inner);
    if !all.iter().any(|known| known.as_ptr() == Arc::as_ptr(arena)) {
        all.push(Arc::downgrade(arena));
    }
}
