//! The seam between the datapath and the pipeline: what a worker asks on a miss, and what it gets.
//!
//! **Correctness.** A [`Translation`] is true for every packet whose key agrees with the request's key in all
//! bits of `mask`, for as long as every [`Dep`] still has the generation it names. An implementation reads the
//! generation of a thing *before* it reads the thing; a writer changes the thing *before* it bumps the
//! generation. So a translation that raced with a change carries an old generation and dies on its first
//! check. That is the safe error: one translation too many, never one too few.
//!
//! **Threads.** [`Translate::translate`] is called from any worker at any time and must not block: no lock that
//! a control-plane writer may hold, no I/O.

use crate::action::Action;
use crate::changes::{Changed, Changes, Known, Log, Override};
use heddle_flow::{FlowKey, FlowMask};
use heddle_packet::Packet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Number of generation slots. Things hash onto slots; a collision costs a needless re-translation.
pub const N_SLOTS: usize = 4096;
/// Number of further slots, of things that say what changes in them ([`Generations::bump_changed`]).
pub const N_LOGGED: usize = 1024;

/// Generation counters that cached translations depend on.
pub struct Generations {
    any: AtomicU64,
    slots: Box<[AtomicU64]>,
    /// Of the slots from `N_SLOTS` on.
    logs: Box<[OnceLock<Log>]>,
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
            slots: (0..N_SLOTS + N_LOGGED).map(|_| AtomicU64::new(1)).collect(),
            logs: (0..N_LOGGED).map(|_| OnceLock::new()).collect(),
        }
    }
}

impl Generations {
    /// The slot that a thing (its stable hash or number) uses.
    pub fn slot_of(thing: u64) -> u16 {
        let h = thing.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (h >> 52) as u16
    }
    /// The slot that a thing (its stable hash or number) uses whose changes are said with [`Generations::bump_changed`].
    pub fn logged_slot_of(thing: u64) -> u16 {
        const { assert!(N_SLOTS + N_LOGGED <= u16::MAX as usize && N_LOGGED == 1 << 10) };
        let h = thing.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        #[allow(clippy::cast_possible_truncation)] // asserted above
        let first = N_SLOTS as u16;
        first + (h >> 54) as u16
    }
    fn counter(&self, slot: u16) -> &AtomicU64 {
        &self.slots[usize::from(slot) % (N_SLOTS + N_LOGGED)]
    }
    fn log(&self, slot: u16) -> Option<&OnceLock<Log>> {
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
    /// Says that the thing has changed, to be called after changing it. Of a slot with a log: that anything may be different.
    pub fn bump(&self, slot: u16) {
        if self.log(slot).is_some() {
            self.bump_changed(slot, Changes::anything());
            return;
        }
        self.count_up(slot);
    }
    /// Says that these rules of a table have changed, to be called after changing them. Waits for others who do so at the time.
    pub fn bump_changed(&self, slot: u16, changes: Changes) {
        match self.log(slot) {
            Some(log) => log.get_or_init(Log::default).write(
                changes,
                || self.counter(slot).load(Ordering::Relaxed),
                || self.count_up(slot),
            ),
            None => self.count_up(slot),
        }
    }
    /// Whether what changed in `slot` from `generation` until `now` has nothing to do with these packets.
    pub(crate) fn passes_by(
        &self,
        slot: u16,
        from: u64,
        now: u64,
        known: &Known,
        patience: &mut usize,
    ) -> bool {
        self.log(slot)
            .and_then(OnceLock::get)
            .is_some_and(|log| log.pass_by(from, now, known, patience))
    }
    /// Tells what changed in `slot` from `generation` until `now`, as far as `f` goes along. `false`: not all was told.
    pub(crate) fn changed(
        &self,
        slot: u16,
        from: u64,
        now: u64,
        f: &mut dyn FnMut(Changed<'_>) -> bool,
    ) -> bool {
        self.log(slot)
            .and_then(OnceLock::get)
            .is_some_and(|log| log.tell(from, now, f))
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
}

/// Why a translation is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A packet missed the caches. Side effects (MAC learning) take place.
    Miss,
    /// Background or on-hit check of a cached entry: no packet, no side effects but refreshing.
    Revalidate,
}

/// A miss.
pub struct Request<'a> {
    /// The packet's key; `in_port` is the datapath's port number.
    pub key: &'a FlowKey,
    /// The packet, where there is one.
    pub packet: Option<&'a Packet>,
    /// Coarse clock, milliseconds, read once per burst.
    pub now_ms: u64,
    /// Why.
    pub purpose: Purpose,
}

/// Someone who wants to know about packets that a cached entry forwarded: a rule, a table, a MAC entry, a
/// patch port. Called off the fast path with what was counted since the last call.
pub trait Credit: Send + Sync {
    /// Adds `packets` and `bytes`, last seen at `used_ms`, with the union of their TCP flags.
    fn credit(&self, packets: u64, bytes: u64, used_ms: u64, tcp_flags: u16);
}

/// The answer to a miss. Cleared and reused by the caller, so that a warm worker does not allocate.
#[derive(Default)]
pub struct Translation {
    /// Which bits of the key the answer depends on.
    pub mask: FlowMask,
    /// What to do.
    pub actions: Vec<Action>,
    /// What it depends on besides the key.
    pub deps: Vec<Dep>,
    /// What lookups in tables (dependencies with a log) saw of the key, where that is not what the packet brought; see [`Override`]. Of
    /// the input port it must be said at the first one.
    pub overrides: Vec<Override>,
    /// Who is credited with the packets.
    pub credits: Vec<Arc<dyn Credit>>,
    /// Must not be cached (a side effect could not be carried out, or differs per packet).
    pub uncacheable: bool,
}

impl Translation {
    /// Makes it empty again, keeping the allocations.
    pub fn clear(&mut self) {
        self.mask = FlowMask::default();
        self.actions.clear();
        self.deps.clear();
        self.overrides.clear();
        self.credits.clear();
        self.uncacheable = false;
    }
    /// Whether this answer, made for `key`, still holds for all packets that it was for, as far as the logs of what has changed since can
    /// tell. The plain twin of what caches do.
    pub fn outlasts(&self, key: &FlowKey, generations: &Generations) -> bool {
        let mut known = Known::new(&key.masked(&self.mask), &self.mask);
        (0_u16..).zip(&self.deps).all(|(i, d)| {
            self.overrides
                .iter()
                .filter(|o| o.from == i)
                .for_each(|o| known.apply(o));
            let now = generations.read(d.slot);
            now == *d || generations.passes_by(d.slot, d.generation, now.generation, &known, &mut 1_000_000)
        })
    }
}

/// The pipeline, as the datapath sees it.
pub trait Translate: Send + Sync {
    /// Translates one key; see the module for what the answer promises.
    fn translate(&self, request: &Request<'_>, out: &mut Translation);
    /// The counters that [`Dep`]s refer to.
    fn generations(&self) -> &Generations;
}
