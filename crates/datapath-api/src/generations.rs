//! Counters of what changes, for those who keep answers.
//!
//! **Invariant.** Who has read a generation and then the thing has not read an older state of the thing than
//! that generation stands for; who has read [`Generations::any`] and then a generation has not read an older
//! one than `any` stands for. So an answer that was found right at some `any` is right as long as `any` is
//! that. `tests/model.rs` goes through all interleavings.

use crate::atomic::AtomicU64;
use crate::changes::{Changes, FIRST, KnownBits, Log, Override};
use heddle_classifier::MiniMatch;
use heddle_simd::hash::HashKey;
use heddle_sync::OnceArc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of generation slots. Things hash onto slots; a collision costs a needless re-translation.
const N_SLOTS: usize = 1 << 15;
/// The first of them, that of [`Generations::ALL`] apart, are of what controllers make; the others of what
/// packets make.
const N_MADE: usize = 1 << 10;
/// Number of further slots, of things that say what changes in them ([`Generations::bump_changed`]).
const N_LOGGED: usize = 1024;

/// Generation counters that cached translations depend on.
pub struct Generations {
    any: AtomicU64,
    slots: Box<[AtomicU64]>,
    /// Of the slots from `N_SLOTS` on.
    logs: Box<[OnceArc<Log>]>,
}

/// "I depend on slot `slot` as it was at generation `generation`."
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dep {
    /// Which slot.
    pub slot: u16,
    /// Its generation when it was read.
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

/// Puts a hash into one of the slots from `first` up to `end`.
const fn place(hash: u64, first: usize, end: usize) -> u16 {
    const { assert!(N_SLOTS + N_LOGGED <= u16::MAX as usize && N_MADE < N_SLOTS) };
    let n = (end - first) as u64;
    #[allow(clippy::cast_possible_truncation)] // less than `end`, which is asserted above
    let at = (((hash >> 32) * n) >> 32) as u16 + first as u16;
    at
}

impl Generations {
    /// The slot of what all translations read. Nothing else hashes onto it.
    pub const ALL: u16 = 0;

    /// The slot that a thing (its stable hash or number) uses that controllers or the configuration make.
    pub fn slot_of(thing: u64) -> u16 {
        place(thing.wrapping_mul(0x9e37_79b9_7f4a_7c15), 1, N_MADE)
    }
    /// The slot that a thing uses that packets make, such as a learned address. Who sends packets makes as
    /// many such things as they like, and must neither hit the slots of all else nor choose whose: the hash
    /// is keyed.
    pub fn learned_slot_of(thing: u64) -> u16 {
        let key = HashKey::of_process();
        place(key.finish(key.mix(key.start(), thing, 0)), N_MADE, N_SLOTS)
    }
    /// The slot that a thing (its stable hash or number) uses whose changes are said with
    /// [`Generations::bump_changed`].
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
    /// Reads a slot, to be called before reading the thing itself.
    pub fn read(&self, slot: u16) -> Dep {
        // Acquire pairs with the Release in `bump`: a reader that sees the new generation sees the change.
        Dep {
            slot,
            generation: self.counter(slot).load(Ordering::Acquire),
        }
    }
    /// Says that the thing has changed, to be called after changing it. Of a slot with a log: that anything
    /// may be different.
    pub fn bump(&self, slot: u16) {
        if self.log(slot).is_some() {
            self.bump_changed(slot, Changes::anything());
            return;
        }
        self.count_up(slot);
    }
    /// Says that these rules of a table have changed, to be called after changing them. Waits for nobody.
    pub fn bump_changed(&self, slot: u16, changes: Changes) {
        let Some(place) = self.log(slot) else {
            return self.count_up(slot);
        };
        if place.get().is_none() {
            // Somebody else may have been quicker.
            let _ = place.set(Arc::default());
        }
        let Some(log) = place.get() else { return };
        log.write(changes, |generation| {
            self.counter(slot).fetch_max(generation, Ordering::Release);
            // As in `count_up`.
            self.any.fetch_add(1, Ordering::Release);
        });
    }
    /// Tells what changed in `slot` after generation `from`, up to `now`, as long as `f` goes along. `false`:
    /// not all was told.
    pub fn changed(&self, slot: u16, from: u64, now: u64, f: &mut dyn FnMut(&MiniMatch) -> bool) -> bool {
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
        // After the slot, so that whoever sees `any` move (Acquire in `any`) sees the slot moved.
        self.any.fetch_add(1, Ordering::Release);
    }
    /// Moves whenever any slot moves: one read per burst tells whether dependencies need a look at all.
    pub fn any(&self) -> u64 {
        self.any.load(Ordering::Acquire)
    }
    /// Whether all of `deps` still hold.
    pub fn hold(&self, deps: &[Dep]) -> bool {
        deps.iter().all(|d| self.read(d.slot) == *d)
    }
    /// Whether an answer with these dependencies still holds for packets of which `known` was known at the
    /// beginning, as far as the logs of what has changed since can tell with so many comparisons.
    pub fn outlasts(
        &self,
        deps: &[Dep],
        overrides: &[Override],
        mut known: KnownBits,
        mut comparisons: usize,
    ) -> bool {
        let mut overrides = overrides.iter().peekable();
        (0_u16..).zip(deps).all(|(at, d)| {
            while let Some(o) = overrides.next_if(|o| o.from <= at) {
                known.apply(o);
            }
            let now = self.read(d.slot).generation;
            let count = usize::try_from(now.saturating_sub(d.generation)).unwrap_or(usize::MAX);
            count == 0
                || count <= comparisons
                    && self.changed(d.slot, d.generation, now, &mut |m| {
                        let goes_on = comparisons > 0;
                        comparisons = comparisons.saturating_sub(1);
                        goes_on && known.excludes(m)
                    })
        })
    }
}

#[cfg(all(test, not(loom)))]
#[path = "generations/tests.rs"] // the model checker includes this file from elsewhere
mod tests;
