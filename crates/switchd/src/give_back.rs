//! When memory that was freed goes back to the system.
//!
//! **Problem.** The allocator keeps what a million rules or flows took, page by page, until somebody asks it not to ([`heddle_sys::memory::trim`]). To ask
//! costs it a walk through all that is free, and takes pages away that the next rules want: so not while much is being freed, nor for little.
//!
//! **Rule.** Something is due when most of many cached flows, or of what waited in bundles, is gone, or when a quarter as many rules were freed as there are (whether
//! others have come in their places or not). It is done when nothing more has been freed for a while, or after some more time in any case.

/// Fewer cached flows, and fewer rules, than this are not worth giving their memory back.
const MANY: u64 = 10_000;
/// Bytes that count as one of these in a bundle.
const MESSAGE: u64 = 256;
/// Ticks between the end of many cached flows, or of a bundle, and giving their memory back: workers and sweeper let go of them first.
const LATER: u32 = 50;
/// Ticks without rules being freed before their memory is given back.
const CALM: u32 = 10;
/// Ticks after which it is given back though more is being freed.
const PATIENCE: u32 = 100;

/// What there is, and what was freed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sizes {
    /// Cached flows.
    pub(crate) flows: u64,
    /// Bytes that wait in bundles.
    pub(crate) bundled: u64,
    /// Rules.
    pub(crate) rules: u64,
    /// Rules that were freed since the start.
    pub(crate) freed: u64,
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct GiveBack {
    /// Most cached flows, and most that waited in bundles, since most of them went.
    most: [u64; 2],
    /// Ticks until memory is given back because of that, 0: it is not due.
    later: u32,
    /// Rules freed when memory was last given back, and at the last tick.
    settled: u64,
    freed: u64,
    /// Ticks since rules were freed, and since so many were that their memory is worth it.
    calm: u32,
    due: u32,
}

impl GiveBack {
    /// Whether to give memory back now. To be called at each tick.
    pub(crate) fn tick(&mut self, now: Sizes) -> bool {
        for (most, now) in self.most.iter_mut().zip([now.flows, now.bundled / MESSAGE]) {
            *most = (*most).max(now);
            if *most > MANY.max(now * 2) {
                *most = now;
                self.later = LATER;
            }
        }
        let moved = std::mem::replace(&mut self.freed, now.freed) != now.freed;
        self.calm = if moved { 0 } else { self.calm + 1 };
        let waits = now.freed - self.settled >= MANY.max(now.rules / 4);
        self.due = if waits { self.due + 1 } else { 0 };
        let last = self.later == 1;
        self.later = self.later.saturating_sub(1);
        let give = last || waits && (self.calm >= CALM || self.due >= PATIENCE);
        if give {
            self.settled = now.freed;
            self.due = 0;
        }
        give
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks until memory is given back, of so many.
    fn wait(g: &mut GiveBack, ticks: u32, mut sizes: impl FnMut(u32) -> Sizes) -> Option<u32> {
        (0..ticks).find(|n| g.tick(sizes(*n)))
    }

    fn rules(rules: u64, freed: u64) -> Sizes {
        Sizes {
            rules,
            freed,
            ..Sizes::default()
        }
    }

    #[test]
    fn rules_that_were_replaced_count() {
        let mut g = GiveBack::default();
        assert_eq!(wait(&mut g, 1000, |_| rules(1_000_000, 0)), None);
        // A tenth is not worth it; what comes to a quarter is, once that is over.
        assert_eq!(wait(&mut g, 1000, |_| rules(1_000_000, 100_000)), None);
        let replacing = |n: u32| rules(1_000_000, 100_000 + 20_000 * u64::from(n.min(50)));
        assert_eq!(wait(&mut g, 1000, replacing), Some(50 + CALM));
        assert_eq!(wait(&mut g, 1000, |_| rules(1_000_000, 1_100_000)), None);
        assert_eq!(wait(&mut g, 1000, |_| rules(0, 2_100_000)), Some(CALM));
        assert_eq!(wait(&mut g, 1000, |_| rules(0, 2_100_000 + MANY - 1)), None);
    }

    #[test]
    fn it_does_not_wait_for_ever() {
        let mut g = GiveBack::default();
        let busy = |n: u32| rules(1000, 1000 * u64::from(n + 1));
        let first = wait(&mut g, 1000, busy).expect("in the end");
        assert_eq!(first, 9 + PATIENCE - 1);
    }

    #[test]
    fn flows_and_bundles_that_went_count_later() {
        let mut g = GiveBack::default();
        let flows = |flows: u64| {
            move |_| Sizes {
                flows,
                ..Sizes::default()
            }
        };
        assert_eq!(wait(&mut g, 500, flows(50_000)), None);
        assert_eq!(wait(&mut g, 500, flows(30_000)), None);
        assert_eq!(wait(&mut g, 500, flows(20_000)), Some(LATER - 1));
        assert_eq!(wait(&mut g, 500, flows(0)), Some(LATER - 1));
        let bundled = |bundled: u64| {
            move |_| Sizes {
                bundled,
                ..Sizes::default()
            }
        };
        assert_eq!(wait(&mut g, 500, bundled(100 << 20)), None);
        assert_eq!(wait(&mut g, 500, bundled(0)), Some(LATER - 1));
        assert_eq!(wait(&mut g, 500, bundled(0)), None);
    }
}
