//! Decides when freed memory goes back to the system.
//!
//! The allocator keeps the memory of a million freed rules or flows until it is trimmed
//! ([`heddle_sys::memory::trim`]), which costs a walk through all free memory. So it is trimmed when most of
//! many cached flows, connections or messages in bundles are gone. It is also trimmed when the number of
//! freed rules is a quarter of the rules that are left. That happens [`LATER_TICKS`] after it was first seen,
//! because workers and the revalidator free their references later.
//!
//! Allocators with a decay of their own decay only at their next call. Resident 10 s after 300,000 rules were
//! added, replaced and deleted: jemalloc 5.3 73 MB, mimalloc 2.0 120 MB, glibc with this 16 MB. (jemalloc ran
//! without its thread, which does not survive the daemon's fork.)

/// Fewer cached flows, and fewer rules, than this are not worth a trim.
const MIN_FREED: u64 = 10_000;
/// Bytes in a bundle that count as one message.
const MESSAGE_BYTES: u64 = 256;
/// Five seconds.
const LATER_TICKS: u32 = 50;

/// Numbers of things in memory, and of freed ones.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sizes {
    /// Cached flows.
    pub(crate) flows: u64,
    /// Connections.
    pub(crate) connections: u64,
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
    /// Maximum numbers of cached flows, of messages in bundles and of connections since memory was last given
    /// back; rules freed by then.
    max: [u64; 3],
    freed: u64,
    /// Ticks since a trim was found to be due.
    due_ticks: u32,
}

impl GiveBack {
    /// Whether to give memory back now. To be called at each tick.
    pub(crate) fn tick(&mut self, now: Sizes) -> bool {
        let held = [now.flows, now.bundled / MESSAGE_BYTES, now.connections];
        let mut due = now.freed - self.freed >= MIN_FREED.max(now.rules / 4);
        for (max, held) in self.max.iter_mut().zip(held) {
            *max = (*max).max(held);
            due |= *max > MIN_FREED.max(held * 2);
        }
        self.due_ticks = if due { self.due_ticks + 1 } else { 0 };
        let give = self.due_ticks >= LATER_TICKS;
        if give {
            *self = Self {
                max: held,
                freed: now.freed,
                due_ticks: 0,
            };
        }
        give
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ticks of a thousand after which memory is given back.
    fn given(g: &mut GiveBack, sizes: impl Fn(u64) -> Sizes) -> Vec<u64> {
        (1..=1000).filter(|n| g.tick(sizes(*n))).collect()
    }

    #[test]
    fn rules_that_were_replaced_count() {
        let mut g = GiveBack::default();
        let rules = |rules: u64, freed: u64| Sizes {
            rules,
            freed,
            ..Sizes::default()
        };
        // A tenth is not worth it.
        assert_eq!(given(&mut g, |_| rules(1_000_000, 100_000)), [0; 0]);
        // All of them replaced within five seconds, then deleted within ten.
        assert_eq!(
            given(&mut g, |n| rules(1_000_000, 100_000 + 20_000 * n.min(50))),
            [57]
        );
        let deleting = |n: u64| rules(1_000_000 - 10_000 * n.min(100), 1_100_000 + 10_000 * n.min(100));
        let all = given(&mut g, deleting);
        assert!(
            all.first().is_some_and(|n| *n < 100) && all.last().is_some_and(|n| (100..160).contains(n)),
            "{all:?}"
        );
    }

    #[test]
    fn connections_that_went_count() {
        let mut g = GiveBack::default();
        let many = |connections: u64| Sizes {
            connections,
            ..Sizes::default()
        };
        assert_eq!(given(&mut g, |_| many(1_000_000)), [0; 0]);
        assert_eq!(given(&mut g, |_| many(1000)), [50]);
    }

    #[test]
    fn flows_and_bundles_that_went_count() {
        let mut g = GiveBack::default();
        let flows = |flows: u64| Sizes {
            flows,
            ..Sizes::default()
        };
        assert_eq!(given(&mut g, |_| flows(50_000)), [0; 0]);
        assert_eq!(given(&mut g, |_| flows(30_000)), [0; 0]);
        assert_eq!(given(&mut g, |_| flows(20_000)), [50]);
        assert_eq!(given(&mut g, |_| flows(0)), [50]);
        let bundled = |bundled: u64| Sizes {
            bundled,
            ..Sizes::default()
        };
        assert_eq!(
            given(&mut g, |n| bundled(if n < 10 { 100 << 20 } else { 0 })),
            [59]
        );
    }
}
