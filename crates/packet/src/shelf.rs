//! Big buffers that several packets refer to.
//!
//! **Problem.** A segment train of 64 KiB that a device has written into a packet's own buffer is copied as a
//! whole for each further place that it goes to, as it would be for each tunnel of a flood.
//!
//! **Shape.** [`crate::Pool::share`] takes the buffer away from the packet and puts it on a shelf; the
//! packet keeps its first bytes in its small area, and has the others as a tail that it may share
//! ([`crate::Packet::share_into`]). Each place of the shelf has a [`Lender`], which says when nobody refers
//! to its buffer any more. Then the pool hands it out again.
//!
//! **Invariants.** A buffer leaves the shelf only while its lender is whole. It is kept by its address, so
//! that no reference claims what packets read.
//!
//! **Bounds.** [`PLACES`] buffers; more trains are not shared but copied. Nothing is allocated once the
//! places are there.

#![allow(unsafe_code)] // buffers by their address

use crate::buf::Big;
use crate::{Lender, Packet};
use core::ptr::NonNull;

/// Buffers on a shelf at most: 64 trains under way at one worker.
const PLACES: usize = 64;

#[derive(Debug, Default)]
struct Place {
    lender: Lender,
    big: Option<NonNull<Big>>,
}

// SAFETY: it owns the buffer, which others only read while the lender is not whole.
unsafe impl Send for Place {}

impl Place {
    /// Its buffer, if nobody refers to that.
    fn take(&mut self) -> Option<Box<Big>> {
        if !self.lender.is_whole() {
            return None;
        }
        // SAFETY: made by `Box::into_raw` in `put`, and taken once; no packet refers to it any more.
        self.big.take().map(|big| unsafe { Box::from_raw(big.as_ptr()) })
    }
    fn put(&mut self, big: Box<Big>) -> NonNull<Big> {
        debug_assert!(self.big.is_none());
        let at = NonNull::from(Box::leak(big));
        self.big = Some(at);
        at
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // One that is referred to leaks, as its lender's count does.
        drop(self.take());
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Shelf(Vec<Place>);

impl Shelf {
    /// A buffer that nobody refers to any more.
    pub(crate) fn take(&mut self) -> Option<Box<Big>> {
        self.0.iter_mut().find_map(Place::take)
    }
    /// Has all but the first bytes of a packet lie here. `false`: it has no buffer of its own, or there is no
    /// place.
    pub(crate) fn share(&mut self, p: &mut Packet) -> bool {
        let free = |p: &Place| p.big.is_none();
        let Some(at) = self.0.iter().position(free).or_else(|| {
            let at = self.0.iter_mut().position(|p| p.take().is_some());
            at.or_else(|| {
                (self.0.len() < PLACES).then(|| {
                    self.0.push(Place::default());
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
        // SAFETY: `take_big` says that these bytes are in the buffer, which stays where it is until the
        // lender is whole ([`Place::take`]); and for ever if the shelf goes before.
        unsafe {
            let bytes = big.cast::<u8>().add(from);
            p.push_seg(bytes, len, &mut place.lender)
        }
    }
}
