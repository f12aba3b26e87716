//! Memory that is made ready before a worker needs it.
//!
//! **Problem.** Who writes first into a page waits until the kernel has found and zeroed it: a tenth of a millisecond for a huge one, several milliseconds where the
//! machine is a virtual one whose host has to find the memory first. While flows come by hundred thousands, that was a seventh of a worker's time.
//!
//! **Shape.** Pieces of one size wait in a ring that the sweeper fills, [`PER_CALL`] at a time. Who finds none there takes a piece with small pages: these cost more
//! when all of them are counted, but no packet waits long for one.

use heddle_sync::ring::{Consumer, Producer, ring};
use heddle_sys::Zeroed;
use zerocopy::FromZeros;

/// Pieces that are made in one go: one in place of what was taken, and one more until enough wait.
const PER_CALL: usize = 2;
/// Every so many bytes there is a page that has to be found.
const PAGE: usize = 4096;

/// Where pieces of memory are made.
pub(crate) struct Maker<T> {
    /// None: nothing is made ahead.
    ring: Option<Producer<Zeroed<T>>>,
    len: usize,
}

/// Where they are taken.
pub(crate) struct Spares<T> {
    ring: Option<Consumer<Zeroed<T>>>,
    len: usize,
}

/// Both ends for pieces of `len` values, of which up to `most` wait. `near`: memory that another thread has touched first is as near as any; otherwise
/// nothing is made ahead.
pub(crate) fn spares<T: FromZeros + Send>(len: usize, most: usize, near: bool) -> (Spares<T>, Maker<T>) {
    let (tx, rx) = ring(most);
    let rx = near.then_some(rx);
    let tx = near.then_some(tx);
    (Spares { ring: rx, len }, Maker { ring: tx, len })
}

impl<T: FromZeros + Send> Maker<T> {
    /// Makes what is missing, with its pages.
    pub(crate) fn fill(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        for _ in 0..PER_CALL {
            if !ring.has_room(1) {
                return;
            }
            let Ok(mut piece) = Zeroed::<T>::new(self.len, true) else {
                return;
            };
            let step = (PAGE / size_of::<T>()).max(1);
            piece.iter_mut().step_by(step).for_each(FromZeros::zero);
            if ring.push(piece).is_err() {
                return;
            }
        }
    }
    #[cfg(test)]
    pub(crate) fn waiting(&mut self) -> usize {
        self.ring.as_mut().map_or(0, |ring| ring.len())
    }
}

impl<T: FromZeros + Send> Spares<T> {
    /// Only what is made here, when it is asked for.
    pub(crate) fn none(len: usize) -> Self {
        Self { ring: None, len }
    }
    /// A piece. `first`: of its owner, which is to stay small as long as this one is enough for it.
    ///
    /// # Errors
    /// What the system says when it gives no memory.
    pub(crate) fn take(&mut self, first: bool) -> std::io::Result<Zeroed<T>> {
        match &mut self.ring {
            _ if first => Zeroed::new(self.len, false),
            Some(ring) => ring.pop().map_or_else(|| Zeroed::new(self.len, false), Ok),
            None => Zeroed::new(self.len, true),
        }
    }
    /// Gives back what waits.
    pub(crate) fn give_back(&mut self) {
        if let Some(ring) = &mut self.ring {
            while ring.pop().is_some() {}
        }
    }
}
