//! Memory that the revalidator prepares before a worker needs it.
//!
//! **Problem.** The first write into a page waits until the kernel has found and zeroed it. A huge page takes
//! a tenth of a millisecond, or several milliseconds in a virtual machine whose host has to find the memory
//! first. While flows came by hundred thousands, a worker spent a seventh of its time on that.
//!
//! **Shape.** Pieces of one size wait in a ring that the revalidator fills, [`PER_CALL`] at a time. If the
//! ring is empty, the worker takes a piece with small pages. These cost more in total, but no packet waits
//! long for one page.
//!
//! **Cost.** The revalidator may share a processor with a worker, or with a sender of its packets. The kernel
//! zeroes a huge page in one go, and rings overflow meanwhile. So [`Pace`] limits it to a small part of the
//! time. With memory at hand, that part is enough for millions of flows a second. If the host has to find the
//! memory, the worker makes most of it, page by page, and the packets that need it wait.

use heddle_sync::ring::{Consumer, Producer, ring};
use heddle_sys::Zeroed;
use std::time::{Duration, Instant};
use zerocopy::FromZeros;

/// Pieces that are made in one call: one for the piece that was taken, and one more until the ring is full.
const PER_CALL: usize = 2;
/// The size of a small page: each one is touched to make the kernel find it.
const PAGE: usize = 4096;

/// The maker may take one part in this number of the time ...
const PART: u32 = 32;
/// ... and time that it did not use is saved, up to this much.
const KEPT: Duration = Duration::from_millis(4);

/// The time budget of a maker.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The maker may work after this time. Each piece moves it into the future, by as much as pays for the
    /// piece.
    from: Instant,
}

impl Pace {
    #[expect(clippy::disallowed_methods, reason = "on the revalidator's thread")]
    pub(crate) fn new() -> Self {
        Self {
            from: Instant::now() - KEPT * PART,
        }
    }
    fn allows(&self, now: Instant) -> bool {
        now > self.from
    }
    /// Charges the time for a piece that was made from `began` to `now`.
    fn spent(&mut self, began: Instant, now: Instant) {
        self.from = self.from.max(now - KEPT * PART) + (now - began) * PART;
    }
}

/// The producer's end: it prepares pieces of memory.
pub(crate) struct Maker<T> {
    /// The ring of prepared pieces; without one, no piece is prepared.
    ring: Option<Producer<Zeroed<T>>>,
    len: usize,
}

/// The consumer's end: it takes prepared pieces.
pub(crate) struct Spares<T> {
    ring: Option<Consumer<Zeroed<T>>>,
    len: usize,
}

/// Both ends for pieces of `len` values, of which up to `most` wait. `near`: all threads are equally near to
/// the memory that any of them has touched first. Otherwise no piece is prepared.
pub(crate) fn spares<T: FromZeros + Send>(len: usize, most: usize, near: bool) -> (Spares<T>, Maker<T>) {
    let (tx, rx) = ring(most);
    let rx = near.then_some(rx);
    let tx = near.then_some(tx);
    (Spares { ring: rx, len }, Maker { ring: tx, len })
}

impl<T: FromZeros + Send> Maker<T> {
    /// Makes missing pieces and touches their pages, as far as the pace allows.
    #[expect(clippy::disallowed_methods, reason = "on the revalidator's thread")]
    pub(crate) fn fill(&mut self, pace: &mut Pace) {
        let Some(ring) = &mut self.ring else { return };
        for _ in 0..PER_CALL {
            let began = Instant::now();
            if !ring.has_room(1) || !pace.allows(began) {
                return;
            }
            let Ok(mut piece) = Zeroed::<T>::new(self.len, true) else {
                return;
            };
            let step = (PAGE / size_of::<T>()).max(1);
            piece.iter_mut().step_by(step).for_each(FromZeros::zero);
            pace.spent(began, Instant::now());
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
    /// Without a ring: each piece is made when it is taken.
    pub(crate) fn none(len: usize) -> Self {
        Self { ring: None, len }
    }
    /// Takes a piece. `first`: the piece is the owner's first one, and gets small pages, so that the owner
    /// stays small while it suffices.
    ///
    /// # Errors
    /// The system's error if it has no memory.
    pub(crate) fn take(&mut self, first: bool) -> std::io::Result<Zeroed<T>> {
        match &mut self.ring {
            _ if first => Zeroed::new(self.len, false),
            Some(ring) => ring.pop().map_or_else(|| Zeroed::new(self.len, false), Ok),
            None => Zeroed::new(self.len, true),
        }
    }
    /// Frees the waiting pieces.
    pub(crate) fn give_back(&mut self) {
        if let Some(ring) = &mut self.ring {
            while ring.pop().is_some() {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Making pieces takes a small part of the time, however long a piece takes, and the first one is made at
    /// once.
    #[test]
    fn pieces_take_a_small_part_of_the_time() {
        for each in [1, 300, 6000].map(Duration::from_micros) {
            let mut pace = Pace::new();
            let start = Instant::now();
            let (mut now, mut worked) = (start, Duration::ZERO);
            while now < start + Duration::from_secs(1) {
                if pace.allows(now) {
                    pace.spent(now, now + each);
                    (now, worked) = (now + each, worked + each);
                }
                now += Duration::from_micros(200);
            }
            let part = (now - start) / PART;
            assert!(
                worked >= each && worked <= part + KEPT + each,
                "{each:?}: {worked:?}"
            );
            // If there is always work, it uses not much less than its part.
            assert!(
                worked >= part || each < Duration::from_micros(20),
                "{each:?}: {worked:?}"
            );
        }
    }

    #[test]
    fn what_is_not_due_is_left_out() {
        let (mut spares, mut maker) = spares::<u64>(1000, 4, true);
        let mut pace = Pace::new();
        pace.spent(Instant::now(), Instant::now() + Duration::from_secs(100));
        maker.fill(&mut pace);
        assert_eq!(maker.waiting(), 0);
        assert!(spares.take(false).is_ok_and(|p| p.len() == 1000), "made here");
        while maker.waiting() < 4 {
            maker.fill(&mut Pace::new());
        }
        spares.give_back();
        assert_eq!(maker.waiting(), 0);
    }
}
