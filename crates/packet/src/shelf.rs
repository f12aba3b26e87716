//! Big buffers that several packets refer to.
//!
//! **Problem.** A device may write a GSO packet of 64 KiB into a packet's own buffer. Without sharing, each
//! further output, such as each tunnel of a flood, copies it as a whole.
//!
//! **Shape.** [`crate::Pool::share`] moves the buffer from the packet to a shelf. The packet keeps its first
//! bytes in its small area, and has the others as a tail that it may share ([`crate::Packet::share_into`]).
//! Each place of the shelf has a [`Lender`], which shows when no packet refers to the buffer any more. Then
//! the pool reuses the buffer.
//!
//! **Invariants.** A buffer leaves the shelf only while its lender is whole. The shelf stores its address
//! only, since a reference would claim the bytes that packets read.
//!
//! **Bounds.** [`SLOTS`] buffers; further GSO packets are copied, not shared. Nothing is allocated once the
//! places exist.

#![allow(unsafe_code)] // buffers by their addresses

use crate::buf::Big;
use crate::{Lender, Packet};
use core::ptr::NonNull;

/// Maximum number of buffers on a shelf: 64 GSO packets in flight at one worker.
const SLOTS: usize = 64;

#[derive(Debug, Default)]
struct ShelfSlot {
    lender: Lender,
    big: Option<NonNull<Big>>,
}

// SAFETY: it owns the buffer. Other threads only read it while the lender is not whole.
unsafe impl Send for ShelfSlot {}

impl ShelfSlot {
    /// Takes the buffer, if no packet refers to it.
    fn take(&mut self) -> Option<Box<Big>> {
        if !self.lender.is_whole() {
            return None;
        }
        // SAFETY: made by `Box::leak` in `put`, and taken once; no packet refers to it any more.
        self.big.take().map(|big| unsafe { Box::from_raw(big.as_ptr()) })
    }
    fn put(&mut self, big: Box<Big>) -> NonNull<Big> {
        debug_assert!(self.big.is_none());
        let at = NonNull::from(Box::leak(big));
        self.big = Some(at);
        at
    }
}

impl Drop for ShelfSlot {
    fn drop(&mut self) {
        // A buffer that packets refer to leaks, as its lender's count does.
        drop(self.take());
    }
}

/// A worker's shared buffers; the module's text explains it.
#[derive(Debug, Default)]
pub(crate) struct Shelf(Vec<ShelfSlot>);

impl Shelf {
    /// Takes a buffer that no packet refers to any more.
    pub(crate) fn take(&mut self) -> Option<Box<Big>> {
        self.0.iter_mut().find_map(ShelfSlot::take)
    }
    /// Moves all but the first bytes of a packet to the shelf. `false`: the packet has no buffer of its own,
    /// or there is no free place.
    pub(crate) fn share(&mut self, p: &mut Packet) -> bool {
        let free = |p: &ShelfSlot| p.big.is_none();
        let Some(at) = self.0.iter().position(free).or_else(|| {
            let at = self.0.iter_mut().position(|p| p.take().is_some());
            at.or_else(|| {
                (self.0.len() < SLOTS).then(|| {
                    self.0.push(ShelfSlot::default());
                    self.0.len() - 1
                })
            })
        }) else {
            return false;
        };
        let place = &mut self.0[at];
        let Some((big, from, len)) = p.take_big() else {
            return false;
        };
        let big = place.put(big);
        // SAFETY: `take_big` has returned the range of these bytes in the buffer. The buffer stays there
        // until the lender is whole ([`ShelfSlot::take`]), and for ever if the shelf is dropped before.
        unsafe {
            let bytes = big.cast::<u8>().add(from);
            p.push_seg(bytes, len, &mut place.lender)
        }
    }
}
