//! Recirculation: pipelines that are frozen until the packet comes back, and their recirculation ids.
//!
//! **Problem.** If the pipeline needs something that only the datapath knows (headers behind a popped label,
//! a hash), translation ends with `recirc(id)`. When the packet is looked up again under that id, any worker
//! must find its [`Frozen`] pipeline, without waiting.
//!
//! **Invariants.** Equal pipelines that are held have the same id, so a fresh translation of a cached entry
//! gives the same actions as the entry. An id is held by the translations that emit it and by those that were
//! made under it ([`Recirculation`] is among their credits). Without holders, its pipeline can still be found
//! until [`Recircs::expire`] was called twice. By then, packets in flight have arrived.
//!
//! **Shape.** An id is an index into an array, whose slot is filled when the id is allocated and emptied when
//! it expires. Ids are allocated in order, and full slots are skipped. Lists of ids by the hash of their
//! pipelines ([`Chain`]) find an equal one. A holder has a reference to the [`Recirculation`] of its id;
//! without holders, the slot's reference is the only one.
//!
//! **Bounds.** [`MAX_IN_USE`] ids in all, and [`MAX_OF_SOURCE`] for packets of one input port, tunnel peer
//! and tunnel key. A sender that makes up pipelines (by values on the stack or in registers, which packets
//! choose) uses up the ids of its own source. The hash is keyed.
//!
//! **Threads.** Workers take ids, look them up and release them without a lock. Only `expire` empties slots;
//! its mutex is for control threads among themselves.

use heddle_datapath_api::{Credit, HashAlg};
use heddle_flow::FlowKey;
use heddle_openflow::message::StackValue;
use heddle_openflow::text::{ActionsText, InstructionsText};
use heddle_openflow::{Action, Instruction, InstructionSet};
use heddle_sync::{Chain, Link, OnceArc, RcuSlots, ReadGuard};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::SeqCst, fence};

/// One step that is left to do.
#[derive(Clone, PartialEq, Hash, Debug)]
pub(crate) enum Left {
    /// An action.
    Action(Action),
    /// An instruction that has no form as an action.
    Instruction(Instruction),
    /// From here on, packet-ins name this table and rule.
    Unroll { table: u8, cookie: u64 },
}

/// One frozen pipeline: the state in which it continues when the packet comes back.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Frozen {
    pub(crate) bridge: u64,
    /// Table to look the packet up in if no steps are left.
    pub(crate) table: u8,
    /// Input port (OpenFlow's, in the key's form), metadata, registers, tunnel; all else is zero.
    pub(crate) metadata: FlowKey,
    /// The tunnel fields are those that the packet comes back with; `metadata` has none.
    pub(crate) own_tunnel: bool,
    pub(crate) stack: Vec<StackValue>,
    pub(crate) was_mpls: bool,
    /// The pipeline sees the connection state that the packet comes back with. Otherwise the state is
    /// cleared.
    pub(crate) conntracked: bool,
    /// Mirrors that have received the packet, one bit each.
    pub(crate) mirrored: u32,
    /// The datapath computes this hash before the packet comes back. `None`: `dp_hash` stays as it is.
    pub(crate) hash: Option<(HashAlg, u32)>,
    pub(crate) steps: Vec<Left>,
    pub(crate) action_set: Vec<Action>,
    /// Userdata of the controller action that froze the pipeline: packet-ins that differ in it have different
    /// ids.
    pub(crate) userdata: Vec<u8>,
}

impl Frozen {
    fn digest(&self, keys: &RandomState) -> u64 {
        let Self {
            bridge,
            table,
            metadata,
            own_tunnel,
            stack,
            was_mpls,
            conntracked,
            mirrored,
            hash,
            steps,
            action_set,
            userdata,
        } = self;
        let mut h = keys.build_hasher();
        // Most words are zero.
        for (i, word) in metadata.used().iter().enumerate().filter(|(_, w)| **w != 0) {
            h.write_usize(i);
            h.write_u64(*word);
        }
        (bridge, table, own_tunnel, was_mpls, conntracked, mirrored, hash).hash(&mut h);
        (stack, steps, action_set, userdata).hash(&mut h);
        h.finish()
    }
    /// Number of the packet's source: the input port with its bridge, the tunnel peer and the tunnel key.
    fn source(&self, keys: &RandomState) -> usize {
        let m = &self.metadata;
        let from = (self.bridge, m.in_port, m.tun_src, m.tun_ipv6_src, m.tun_id);
        usize::try_from(keys.hash_one(from) % N_SOURCES as u64).unwrap_or(0)
    }
}

/// Steps in the syntax of `ovs-ofctl`.
pub(crate) fn steps_text(steps: &[Left]) -> String {
    let one = |s: &Left| match s {
        Left::Action(a) => ActionsText {
            actions: std::slice::from_ref(a),
            names: None,
        }
        .to_string(),
        Left::Instruction(i) => InstructionsText {
            set: &InstructionSet(vec![i.clone()]),
            names: None,
        }
        .to_string(),
        Left::Unroll { table, cookie } => {
            format!("unroll_xlate(table={table}, cookie={cookie})")
        }
    };
    steps.iter().map(one).collect::<Vec<_>>().join(",")
}

/// Ids are below this; they are stored in chunks of [`CHUNK`].
const MAX_IDS: u32 = 1 << 19;
const CHUNK: u32 = 1 << 10;
/// Maximum number of ids that have holders, or had some and did not expire yet.
const MAX_IN_USE: u32 = 1 << 18;
/// Maximum number of these ids for packets from one source.
const MAX_OF_SOURCE: u32 = 1 << 15;
/// Number of sources; several input ports and peers may share one, by their hash.
const N_SOURCES: usize = 1 << 12;
/// Number of lists of ids.
const N_CHAINS: usize = 1 << 14;

/// A pipeline without holders gets a new id, as in Open vSwitch. But if it has more than this number of ids
/// without holders, it gets one of these again.
const RESTING: usize = 4;

/// One id in use, and its pipeline.
pub(crate) struct Recirculation {
    pub(crate) id: u32,
    pub(crate) frozen: Frozen,
    digest: u64,
    source: usize,
    /// The id has expired: it gets no new holders.
    over: AtomicBool,
}

/// Counts no packets: as a credit, it holds the id for as long as the cached entry lives.
impl Credit for Recirculation {
    fn credit(&self, _packets: u64, _bytes: u64, _used_ms: u64, _tcp_flags: u16) {}
}

/// Slots of [`CHUNK`] consecutive ids.
struct Chunk {
    places: RcuSlots<Recirculation>,
    /// Links of the lists of ids with one hash.
    of_hash: Box<[Link]>,
    /// Links of the list of ids that `expire` has not seen yet.
    fresh: Box<[Link]>,
}

impl Chunk {
    fn new() -> Self {
        let links = || (0..CHUNK).map(|_| Link::default()).collect();
        Self {
            places: RcuSlots::new(CHUNK as usize),
            of_hash: links(),
            fresh: links(),
        }
    }
}

/// State of `expire` from its last call.
#[derive(Default)]
struct ExpiryState {
    /// Ids in use, and whether they had no holder then.
    ids: Vec<(u32, bool)>,
    /// Chunks with removed pipelines that readers still used then.
    untidy: BTreeSet<usize>,
}

/// All frozen pipelines.
pub(crate) struct Recircs {
    chunks: Box<[OnceArc<Chunk>]>,
    by_hash: Box<[Chain]>,
    keys: RandomState,
    /// The id that was allocated last.
    last: AtomicU32,
    in_use: AtomicU32,
    of_source: Box<[AtomicU32]>,
    /// Ids that `expire` has not seen yet.
    fresh: Chain,
    known: Mutex<ExpiryState>,
}

impl Default for Recircs {
    fn default() -> Self {
        Self {
            chunks: (0..MAX_IDS / CHUNK).map(|_| OnceArc::empty()).collect(),
            by_hash: (0..N_CHAINS).map(|_| Chain::default()).collect(),
            keys: RandomState::new(),
            last: 0.into(),
            in_use: 0.into(),
            of_source: (0..N_SOURCES).map(|_| 0.into()).collect(),
            fresh: Chain::default(),
            known: Mutex::default(),
        }
    }
}

const fn within(id: u32) -> usize {
    (id % CHUNK) as usize
}

impl Recircs {
    fn chunk(&self, id: u32) -> Option<&Chunk> {
        self.chunks.get((id / CHUNK) as usize)?.get()
    }
    fn hash_link(&self, id: u32) -> Option<&Link> {
        self.chunk(id)?.of_hash.get(within(id))
    }
    fn fresh_link(&self, id: u32) -> Option<&Link> {
        self.chunk(id)?.fresh.get(within(id))
    }
    fn counted(&self, id: u32) -> Option<Arc<Recirculation>> {
        self.chunk(id)?.places.arc(within(id))
    }
    fn chain(&self, digest: u64) -> &Chain {
        #[allow(clippy::cast_possible_truncation)] // any bits will do
        let at = digest as usize % N_CHAINS;
        &self.by_hash[at]
    }

    /// Counts one more id as in use, if the limits allow it.
    fn admit(&self, source: usize) -> bool {
        let (all, own) = (&self.in_use, &self.of_source[source]);
        // Relaxed: the counters order nothing. They may exceed a limit for a moment, and then another thread
        // may be refused an id that was free.
        if all.fetch_add(1, Relaxed) < MAX_IN_USE {
            if own.fetch_add(1, Relaxed) < MAX_OF_SOURCE {
                return true;
            }
            own.fetch_sub(1, Relaxed);
        }
        all.fetch_sub(1, Relaxed);
        false
    }

    /// Takes back what `admit` has counted.
    fn discharge(&self, source: usize) {
        self.in_use.fetch_sub(1, Relaxed);
        self.of_source[source].fetch_sub(1, Relaxed);
    }

    /// Allocates the next id whose slot is empty. The caller was admitted.
    fn fill(&self, frozen: Frozen, digest: u64, source: usize) -> Option<Arc<Recirculation>> {
        let mut held = Arc::new(Recirculation {
            id: 0,
            frozen,
            digest,
            source,
            over: false.into(),
        });
        // At most half of the slots are full. A full slot is skipped once in [`MAX_IDS`] allocations.
        for _ in 0..MAX_IDS {
            let id = self.last.fetch_add(1, Relaxed).wrapping_add(1) % MAX_IDS;
            let place = self.chunks.get((id / CHUNK) as usize)?;
            if place.get().is_none() {
                // If two threads make the chunk, the second one uses the first one's.
                let _ = place.set(Arc::new(Chunk::new()));
            }
            let chunk = place.get()?;
            if id == 0 || !chunk.places.is_empty(within(id)) {
                continue;
            }
            Arc::get_mut(&mut held)?.id = id;
            match chunk.places.set(within(id), held.clone()) {
                Ok(()) => {
                    self.fresh.push(id, |id| self.fresh_link(id));
                    return Some(held);
                }
                // Another thread took the same number one round of ids earlier, and has filled the slot just
                // now.
                Err(back) => drop(back),
            }
        }
        None
    }

    /// Holds the id of a pipeline: a new id, unless an equal pipeline is held. `None`: all ids are in use, or
    /// all ids of its source.
    pub(crate) fn take(&self, frozen: Frozen, reading: &ReadGuard) -> Option<Arc<Recirculation>> {
        let digest = frozen.digest(&self.keys);
        let chain = self.chain(digest);
        // Returns also whether the id has no other holder: only the slot and this function have references.
        let equal = |frozen: &Frozen, id| {
            let found = self.chunk(id)?.places.load(within(id), reading)?;
            if found.digest != digest || found.frozen != *frozen {
                return None;
            }
            let held = self.hold(id).filter(|h| std::ptr::eq(&**h, found))?;
            let rests = Arc::strong_count(&held) == 2;
            Some((held, rests))
        };
        let link = |id| self.hash_link(id);
        let mut resting = 0;
        let found = chain.find(link, |id| {
            let (held, rests) = equal(&frozen, id)?;
            resting += usize::from(rests);
            (!rests || resting > RESTING).then_some(held)
        });
        if found.is_some() {
            return found;
        }
        let source = frozen.source(&self.keys);
        if !self.admit(source) {
            return None;
        }
        let Some(own) = self.fill(frozen, digest, source) else {
            self.discharge(source);
            return None;
        };
        // Another thread may have added an equal pipeline just now.
        let others = chain.add_unless(own.id, link, |id| {
            equal(&own.frozen, id).and_then(|(held, rests)| (!rests).then_some(held))
        });
        Some(others.unwrap_or(own))
    }

    /// Holds an id that was allocated. `None`: it has expired, or was never allocated.
    pub(crate) fn hold(&self, id: u32) -> Option<Arc<Recirculation>> {
        let held = self.counted(id)?;
        // Pairs with the fence in `expire`: either `expire` counts this reference, or this thread sees
        // `over`.
        fence(SeqCst);
        (!held.over.load(Relaxed)).then_some(held)
    }

    /// Removes pipelines that had no holder at the last call and have none now.
    pub(crate) fn expire(&self) {
        let mut known = self.known.lock();
        let ExpiryState { ids, untidy } = &mut *known;
        let fresh = self.fresh.take(|id| self.fresh_link(id));
        ids.extend(fresh.into_iter().map(|id| (id, false)));
        ids.retain_mut(|(id, rested)| {
            let Some((chunk, held)) = self.chunk(*id).zip(self.counted(*id)) else {
                return false;
            };
            // More references than those of the slot and of this function.
            let is_held = || Arc::strong_count(&held) > 2;
            if is_held() || !*rested {
                *rested = !is_held();
                return true;
            }
            held.over.store(true, Relaxed);
            fence(SeqCst); // pairs with the fence in `hold`
            if is_held() {
                held.over.store(false, Relaxed);
                *rested = false;
                return true;
            }
            self.chain(held.digest).remove(*id, |id| self.hash_link(id));
            chunk.places.clear(within(*id));
            self.discharge(held.source);
            untidy.insert((*id / CHUNK) as usize);
            false
        });
        let chunk = |at: usize| self.chunks.get(at).and_then(OnceArc::get);
        untidy.retain(|at| chunk(*at).is_some_and(|c| !c.places.tidy()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frozen(table: u8) -> Frozen {
        Frozen {
            bridge: 1,
            table,
            metadata: FlowKey::default(),
            own_tunnel: false,
            stack: Vec::new(),
            was_mpls: false,
            conntracked: false,
            mirrored: 0,
            hash: None,
            steps: vec![Left::Action(Action::Exit)],
            action_set: Vec::new(),
            userdata: Vec::new(),
        }
    }

    fn known(r: &Recircs, id: u32) -> Option<u8> {
        r.hold(id).map(|h| h.frozen.table)
    }

    fn take(r: &Recircs, frozen: Frozen) -> Option<Arc<Recirculation>> {
        r.take(frozen, &ReadGuard::begin())
    }

    /// A pipeline that differs by the value on the stack, which packets choose.
    fn pushed(n: u32) -> Frozen {
        Frozen {
            stack: vec![StackValue::from_bytes(&n.to_be_bytes())],
            ..frozen(1)
        }
    }

    #[test]
    fn equal_pipelines_share_an_id_while_it_is_held() {
        let r = Recircs::default();
        let a = take(&r, frozen(1)).expect("an id");
        let b = take(&r, frozen(2)).expect("an id");
        assert_eq!((a.id, b.id), (1, 2));
        assert_eq!(take(&r, frozen(1)).expect("an id").id, 1);
        assert_eq!(known(&r, 2), Some(2));
        drop(a);
        assert_eq!(take(&r, frozen(1)).expect("an id").id, 3);
        // A pipeline that is released again and again gets a limited number of ids.
        let ids: Vec<u32> = (0..6).map(|_| take(&r, frozen(1)).expect("an id").id).collect();
        assert_eq!(ids, [4, 5, 6, 1, 1, 1]);
    }

    /// Pipelines that packets make up neither slow down lookups nor use up the ids of other ports.
    #[test]
    fn who_makes_pipelines_up_runs_out_of_its_own() {
        let r = Recircs::default();
        let held: Vec<_> = (0..=MAX_OF_SOURCE).map_while(|n| take(&r, pushed(n))).collect();
        assert_eq!(held.len(), MAX_OF_SOURCE as usize);
        let mut longest = 0;
        for chain in &r.by_hash {
            let mut n = 0;
            chain.find(
                |id| r.hash_link(id),
                |_| {
                    n += 1;
                    None::<()>
                },
            );
            longest = longest.max(n);
        }
        assert!(longest < 16, "a list of {longest}");
        let mut other = frozen(1);
        other.metadata.in_port = 7;
        let other = take(&r, other).expect("another port has its own");
        let (first, last) = (held[0].id, held[held.len() - 1].id);
        drop(held);
        r.expire();
        assert_eq!(known(&r, first), Some(1));
        r.expire();
        assert_eq!((known(&r, first), known(&r, last)), (None, None));
        assert_eq!(known(&r, other.id), Some(1));
        assert_eq!(r.in_use.load(Relaxed), 1);
        assert!(take(&r, pushed(1)).is_some_and(|h| h.id > other.id));
    }

    #[test]
    fn ids_come_round_again_past_those_that_are_held() {
        let r = Recircs::default();
        let held: Vec<_> = (0..3000).map(|n| take(&r, pushed(n)).expect("an id")).collect();
        r.last.store(MAX_IDS - 2, Relaxed);
        let ids: Vec<u32> = (3000..3003)
            .map(|n| take(&r, pushed(n)).expect("an id").id)
            .collect();
        assert_eq!(ids, [MAX_IDS - 1, 3001, 3002]);
        drop(held);
    }

    #[test]
    fn packets_on_their_way_still_arrive() {
        let r = Recircs::default();
        let id = take(&r, frozen(1)).expect("an id").id;
        assert_eq!(known(&r, id), Some(1));
        r.expire();
        assert_eq!(known(&r, id), Some(1));
        r.expire();
        assert_eq!(known(&r, id), None);
        assert_eq!(known(&r, 77), None);
    }

    /// Threads take and drop the same few pipelines while they expire. Pipelines that are held stay whole,
    /// and equal pipelines that are held at a time have one id.
    #[test]
    fn threads_agree() {
        let r = Recircs::default();
        let anchor: Vec<_> = (0..4).map(|n| take(&r, pushed(n)).expect("an id")).collect();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for n in 0..20_000_u32 {
                        let (kept, passing) = (pushed(n % 4), pushed(4 + n % 3));
                        let id = take(&r, kept).expect("an id").id;
                        assert_eq!(id, anchor[(n % 4) as usize].id);
                        let held = take(&r, passing.clone()).expect("an id");
                        assert_eq!(held.frozen, passing);
                        assert!(r.hold(held.id).is_some_and(|h| h.frozen == passing));
                    }
                });
            }
            scope.spawn(|| (0..500).for_each(|_| r.expire()));
        });
        r.expire();
        r.expire();
        assert_eq!(r.in_use.load(Relaxed), 4);
    }
}
