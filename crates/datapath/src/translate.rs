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
use heddle_flow::{FlowKey, FlowMask};
use heddle_packet::Packet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of generation slots. Things hash onto slots; a collision costs a needless re-translation.
pub const N_SLOTS: usize = 4096;

/// Generation counters that cached translations depend on.
pub struct Generations {
    any: AtomicU64,
    slots: Box<[AtomicU64]>,
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
            slots: (0..N_SLOTS).map(|_| AtomicU64::new(1)).collect(),
        }
    }
}

impl Generations {
    /// The slot that a thing (its stable hash or number) uses.
    pub fn slot_of(thing: u64) -> u16 {
        let h = thing.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (h >> 52) as u16
    }
    /// Reads a slot, to be called before reading the thing itself.
    pub fn read(&self, slot: u16) -> Dep {
        // Acquire pairs with the Release in `bump`: a reader that sees the new generation sees the change.
        Dep {
            slot,
            generation: self.slots[usize::from(slot) % N_SLOTS].load(Ordering::Acquire),
        }
    }
    /// Says that the thing has changed, to be called after changing it.
    pub fn bump(&self, slot: u16) {
        self.slots[usize::from(slot) % N_SLOTS].fetch_add(1, Ordering::Release);
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
        self.credits.clear();
        self.uncacheable = false;
    }
}

/// The pipeline, as the datapath sees it.
pub trait Translate: Send + Sync {
    /// Translates one key; see the module for what the answer promises.
    fn translate(&self, request: &Request<'_>, out: &mut Translation);
    /// The counters that [`Dep`]s refer to.
    fn generations(&self) -> &Generations;
}
