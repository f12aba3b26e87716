//! Counters of changes, for caches of translations.
//!
//! **Invariant.** A thread that reads a generation and then the thing sees no older state of the thing than
//! that of the generation. A thread that reads [`Generations::any`] and then a generation sees no older
//! generation than that of `any`. So a translation that was found right at some `any` is right as long as
//! `any` stays. `tests/model.rs` goes through all interleavings.

use crate::atomic::AtomicU64;
use crate::changes::{Changes, FIRST, KnownBits, Log, Override};
use heddle_classifier::MiniMatch;
use heddle_simd::hash::HashKey;
use heddle_sync::OnceArc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of generation slots. Things hash onto slots; a collision costs a needless re-translation.
const N_SLOTS: usize = 1 << 15;
/// The first of them, without [`Generations::ALL`], are for things that controllers make. The others are for
/// things that packets make.
const N_MADE: usize = 1 << 10;
/// Number of further slots, for things with a log of their changes ([`Generations::bump_changed`]).
const N_LOGGED: usize = 1024;

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
    /// Index of the slot.
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
    /// The slot that a thing uses that packets make, such as a learned address. A sender makes up as many
    /// such things as it likes. It must neither hit the slots of all else nor choose a slot: the hash is
    /// keyed.
    pub fn learned_slot_of(thing: u64) -> u16 {
        let key = HashKey::of_process();
        place(key.finish(key.mix(key.start(), thing, 0)), N_MADE, N_SLOTS)
    }
    /// The slot that a thing (its stable hash or number) uses whose changes are logged with
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
    /// Reads a slot's generation. Callers read it before they read the thing itself.
    pub fn read(&self, slot: u16) -> Dep {
        // Acquire pairs with the Release in `bump`: a reader that sees the new generation sees the change.
        Dep {
            slot,
            generation: self.counter(slot).load(Ordering::Acquire),
        }
    }
    /// Counts a change of the thing, to be called after changing it. In a slot with a log, anything may be
    /// different then.
    pub fn bump(&self, slot: u16) {
        if self.log(slot).is_some() {
            self.bump_changed(slot, Changes::anything());
            return;
        }
        self.count_up(slot);
    }
    /// Logs a change of these rules of a table, to be called after changing them. Does not wait.
    pub fn bump_changed(&self, slot: u16, changes: Changes) {
        let Some(place) = self.log(slot) else {
            return self.count_up(slot);
        };
        if place.get().is_none() {
            // Another thread may have been quicker.
            let _ = place.set(Arc::default());
        }
        let Some(log) = place.get() else { return };
        log.write(changes, |generation| {
            self.counter(slot).fetch_max(generation, Ordering::Release);
            // The order of `count_up`.
            self.any.fetch_add(1, Ordering::Release);
        });
    }
    /// Gives `f` the matches that changed in `slot` after generation `from`, up to `now`, while it returns
    /// `true`. `false`: `f` did not get all.
    pub fn changed(&self, slot: u16, from: u64, now: u64, f: &mut dyn FnMut(&MiniMatch) -> bool) -> bool {
        self.log(slot)
            .and_then(OnceArc::get)
            .is_some_and(|log| log.visit(from, now, f))
    }
    #[cfg(all(test, not(loom)))]
    pub(crate) fn log_of(&self, slot: u16) -> Option<&Log> {
        self.log(slot)?.get()
    }
    fn count_up(&self, slot: u16) {
        self.counter(slot).fetch_add(1, Ordering::Release);
        // After the slot, so that a thread that sees `any` move (Acquire in `any`) sees the slot moved.
        self.any.fetch_add(1, Ordering::Release);
    }
    /// Moves whenever any slot moves: one read per burst shows whether dependencies need a look at all.
    pub fn any(&self) -> u64 {
        self.any.load(Ordering::Acquire)
    }
    /// Whether all of `deps` still hold.
    pub fn hold(&self, deps: &[Dep]) -> bool {
        deps.iter().all(|d| self.read(d.slot) == *d)
    }
    /// Whether a translation with these dependencies still holds, as far as the logs of later changes show
    /// with this number of comparisons. `known`: the bits of its packets that are known at the beginning.
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
