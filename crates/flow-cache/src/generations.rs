//! Counters of changes, for caches of results that depend on what changes.
//!
//! **Invariant.** A reader that reads a generation and then the thing never sees the thing older than that
//! generation. A reader that reads [`Generations::any`] and then a generation never sees a generation older
//! than that `any`. So a result that was found valid at some `any` is valid as long as `any` stays the same.
//! `tests/model.rs` checks all interleavings.

use crate::atomic::AtomicU64;
use crate::changes::{Changes, Log};
use crate::hash::HashKey;
use heddle_classifier::MiniMatch;
use heddle_sync::OnceArc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of generation slots. Things hash onto slots; a collision costs a needless re-translation.
pub const N_SLOTS: usize = 1 << 15;
/// Slots below this one are for things that controllers make, [`Generations::ALL`] apart. The slots from it
/// on are for things that packets make.
const N_MADE: usize = 1 << 10;
/// The first generation of each slot.
pub(crate) const FIRST: u64 = 1;
/// Number of further slots, for tables that log their changes ([`Generations::bump_changed`]).
pub const N_LOGGED: usize = 1024;

/// Generation counters that cached translations depend on.
pub struct Generations {
    any: AtomicU64,
    slots: Box<[AtomicU64]>,
    /// The logs of the slots from `N_SLOTS` on.
    logs: Box<[OnceArc<Log>]>,
}

/// A dependency on a slot at a generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dep {
    /// The slot.
    pub slot: u16,
    /// The slot's generation when it was read.
    pub generation: u64,
}

impl Default for Generations {
    fn default() -> Self {
        Self {
            any: AtomicU64::new(1),
            slots: (0..N_SLOTS + N_LOGGED).map(|_| AtomicU64::new(FIRST)).collect(),
            logs: (0..N_LOGGED).map(|_| OnceArc::empty()).collect(),
        }
    }
}

/// Maps a hash to one of the slots from `first` up to `end`.
const fn place(hash: u64, first: usize, end: usize) -> u16 {
    const { assert!(N_SLOTS + N_LOGGED <= u16::MAX as usize && N_MADE < N_SLOTS) };
    let n = (end - first) as u64;
    #[allow(clippy::cast_possible_truncation)] // less than `end`, which is asserted above
    let at = (((hash >> 32) * n) >> 32) as u16 + first as u16;
    at
}

impl Generations {
    /// The slot that all translations depend on. No other thing hashes onto it.
    pub const ALL: u16 = 0;

    /// The slot of a thing that a controller or the configuration makes. `thing` is its stable hash or
    /// number.
    pub fn slot_of(thing: u64) -> u16 {
        place(thing.wrapping_mul(0x9e37_79b9_7f4a_7c15), 1, N_MADE)
    }
    /// The slot of a thing that packets make, such as a learned address. Senders of packets can make any
    /// number of such things. They must neither hit the slots of other things nor choose a slot, so the hash
    /// is keyed.
    pub fn learned_slot_of(thing: u64) -> u16 {
        let key = HashKey::of_process();
        place(key.finish(key.mix(key.start(), thing, 0)), N_MADE, N_SLOTS)
    }
    /// The slot of a thing whose changes are logged by [`Generations::bump_changed`]. `thing` is its stable
    /// hash or number.
    pub fn logged_slot_of(thing: u64) -> u16 {
        const { assert!(N_LOGGED == 1 << 10) };
        let h = thing.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        #[allow(clippy::cast_possible_truncation)] // `place` asserts it
        let first = N_SLOTS as u16;
        first + (h >> 54) as u16
    }
    fn counter(&self, slot: u16) -> &AtomicU64 {
        &self.slots[usize::from(slot) % (N_SLOTS + N_LOGGED)]
    }
    fn log(&self, slot: u16) -> Option<&OnceArc<Log>> {
        self.logs.get(usize::from(slot).checked_sub(N_SLOTS)?)
    }
    /// Reads a slot's generation. Callers read it before they read the thing itself.
    pub fn read(&self, slot: u16) -> Dep {
        // Acquire pairs with the Release in `bump`: a reader that sees the new generation sees the change.
        Dep {
            slot,
            generation: self.counter(slot).load(Ordering::Acquire),
        }
    }
    /// Counts a change of a thing, after the change was made. If the slot has a log, the log records that
    /// anything may be different.
    pub fn bump(&self, slot: u16) {
        if self.log(slot).is_some() {
            self.bump_changed(slot, Changes::anything());
            return;
        }
        self.count_up(slot);
    }
    /// Records changed rules of a table, after the change was made. Never waits for another thread.
    pub fn bump_changed(&self, slot: u16, changes: Changes) {
        let Some(place) = self.log(slot) else {
            return self.count_up(slot);
        };
        if place.get().is_none() {
            // Fails if another thread has set the log first; that log is as good.
            let _ = place.set(Arc::default());
        }
        let Some(log) = place.get() else { return };
        log.write(changes, |generation| {
            self.counter(slot).fetch_max(generation, Ordering::Release);
            // After the slot, as in `count_up`.
            self.any.fetch_add(1, Ordering::Release);
        });
    }
    /// Calls `f` with what changed in `slot` after generation `from`, up to `now`, until `f` returns `false`.
    /// Returns `false` if `f` did, or if the log is incomplete.
    pub(crate) fn changed(
        &self,
        slot: u16,
        from: u64,
        now: u64,
        f: &mut dyn FnMut(&MiniMatch) -> bool,
    ) -> bool {
        self.log(slot)
            .and_then(OnceArc::get)
            .is_some_and(|log| log.tell(from, now, f))
    }
    #[cfg(all(test, not(loom)))]
    pub(crate) fn log_of(&self, slot: u16) -> Option<&Log> {
        self.log(slot)?.get()
    }
    fn count_up(&self, slot: u16) {
        self.counter(slot).fetch_add(1, Ordering::Release);
        // After the slot: a reader that sees `any` move (Acquire in `any`) sees the slot moved.
        self.any.fetch_add(1, Ordering::Release);
    }
    /// A number that moves whenever any slot moves. One read per burst shows whether dependencies need a
    /// check at all.
    pub fn any(&self) -> u64 {
        self.any.load(Ordering::Acquire)
    }
    /// Whether all of `deps` still hold.
    pub fn hold(&self, deps: &[Dep]) -> bool {
        deps.iter().all(|d| self.read(d.slot) == *d)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// A guest knows the code and its own addresses. It makes up addresses that fall on one slot, or on the
    /// slot of the configuration.
    #[test]
    fn who_makes_things_up_chooses_no_slot() {
        let plain = |thing: u64| thing.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
        for wanted in [0, 77] {
            let crafted = (0_u64..).filter(|thing| plain(*thing) == wanted).take(2000);
            let slots: HashSet<u16> = crafted.map(Generations::learned_slot_of).collect();
            assert!(slots.len() > 1800, "{} slots", slots.len());
            assert!(slots.iter().all(|s| (N_MADE..N_SLOTS).contains(&usize::from(*s))));
        }
        let made: HashSet<u16> = (0..10_000).map(Generations::slot_of).collect();
        assert!(
            made.iter()
                .all(|s| *s != Generations::ALL && usize::from(*s) < N_MADE)
        );
        assert!(made.len() > N_MADE * 9 / 10);
    }
}
