//! Memory that is made ready before a worker needs it.
//!
//! **Problem.** Who writes first into a page waits until the kernel has found and zeroed it: a tenth of a
//! millisecond for a huge one, several milliseconds where the machine is a virtual one whose host has to find
//! the memory first. While flows come by hundred thousands, that was a seventh of a worker's time.
//!
//! **Shape.** Pieces of one size wait in a ring that the revalidator fills, [`PER_CALL`] at a time. Who finds
//! none there takes a piece with small pages: these cost more when all of them are counted, but no packet
//! waits long for one.
//!
//! **Cost.** The revalidator may have the processor of a worker, or of one that sends to it, and no huge page
//! is zeroed by halves: while one is, rings run over. So [`Pace`] holds it to a small part of the time. Where
//! memory is at hand that is enough for millions of flows a second; where the host has to find it, the worker
//! makes most of it, page by page, at the expense of those packets that need it.

use heddle_sync::ring::{Consumer, Producer, ring};
use heddle_sys::Zeroed;
use std::time::{Duration, Instant};
use zerocopy::FromZeros;

/// Pieces that are made in one go: one in place of what was taken, and one more until enough wait.
const PER_CALL: usize = 2;
/// Every so many bytes there is a page that has to be found.
const PAGE: usize = 4096;

/// It may take one part in this many of the time ...
const PART: u32 = 32;
/// ... and what was not used of that is kept, up to here.
const KEPT: Duration = Duration::from_millis(4);

/// How much is made.
#[derive(Debug)]
pub(crate) struct Pace {
    /// From then on time is gained. A piece moves it on, by as much as pays for it.
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
    /// A piece was made meanwhile.
    fn spent(&mut self, began: Instant, now: Instant) {
        self.from = self.from.max(now - KEPT * PART) + (now - began) * PART;
    }
}

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

/// Both ends for pieces of `len` values, of which up to `most` wait. `near`: memory that another thread has
/// touched first is as near as any; otherwise nothing is made ahead.
pub(crate) fn spares<T: FromZeros + Send>(len: usize, most: usize, near: bool) -> (Spares<T>, Maker<T>) {
    let (tx, rx) = ring(most);
    let rx = near.then_some(rx);
    let tx = near.then_some(tx);
    (Spares { ring: rx, len }, Maker { ring: tx, len })
}

impl<T: FromZeros + Send> Maker<T> {
    /// Makes what is missing, with its pages, as far as the pace allows.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// However long pieces take, they take a small part of the time, and the first one is made at once.
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
            // Where there is enough to do all the time, it is not much less either.
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
