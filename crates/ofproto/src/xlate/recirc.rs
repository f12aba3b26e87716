//! Recirculation: pipelines that stand still until the packet comes back, and the ids under which it does.
//!
//! **Problem.** Where the pipeline needs what only the datapath can say (headers behind a popped label, a
//! hash), translation ends with `recirc(id)`. When the packet is looked up again under that id, any worker
//! must find the [`Frozen`] pipeline of it, without waiting.
//!
//! **Invariants.** Equal pipelines that are held have the same id, so that a fresh translation of a cached
//! entry says the same as the entry. An id is held by the translations that name it and by those that were
//! made under it ([`Held`] is among their credits). When nobody holds it any more, its pipeline is still
//! found until [`Recircs::expire`] was called twice: packets that are on their way then have arrived.
//!
//! **Shape.** An id is a place in an array, which is filled when the id is given out and emptied when it
//! expires; ids are given out in turn, past places that are full. Lists of ids by the hash of their pipelines
//! ([`Chain`]) find the equal one. Who holds an id counts its [`Held`]; nobody does when only the place is
//! left.
//!
//! **Bounds.** [`MAX_IN_USE`] ids in all, and [`MAX_OF_SOURCE`] for packets of one input port, tunnel peer
//! and key: who makes up pipelines (by values on the stack or in registers, which packets choose) runs out of
//! its own ids. The hash is keyed.
//!
//! **Threads.** Workers take ids, look them up and let go of them without a lock. Only `expire` empties
//! places; it has a mutex, for control threads among themselves.

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
    /// From here on, packet-ins come from this table and rule.
    Unroll { table: u8, cookie: u64 },
}

/// A pipeline that stands still.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Frozen {
    pub(crate) bridge: u64,
    /// Where the packet is looked up if there is nothing left to do.
    pub(crate) table: u8,
    /// Input port (OpenFlow's, in the key's form), metadata, registers, tunnel; all else is zero.
    pub(crate) metadata: FlowKey,
    /// The tunnel is the one that the packet comes back with, whatever that is; none is kept.
    pub(crate) own_tunnel: bool,
    pub(crate) stack: Vec<StackValue>,
    pub(crate) was_mpls: bool,
    /// The packet comes back with what is known of its connection; else that is nothing to the pipeline.
    pub(crate) conntracked: bool,
    /// Mirrors that have had the packet.
    pub(crate) mirrored: u32,
    /// The packet comes back with this hash, or with what it had.
    pub(crate) hash: Option<(HashAlg, u32)>,
    pub(crate) steps: Vec<Left>,
    pub(crate) action_set: Vec<Action>,
    /// Of the controller action that froze it: packet-ins that differ in it have different ids.
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
    /// Who had it frozen: the bridge and port that the packet came in by, and the tunnel's other end and key.
    fn source(&self, keys: &RandomState) -> usize {
        let m = &self.metadata;
        let from = (self.bridge, m.in_port, m.tun_src, m.tun_ipv6_src, m.tun_id);
        usize::try_from(keys.hash_one(from) % N_SOURCES as u64).unwrap_or(0)
    }
}

/// Steps in the text of `ovs-ofctl`.
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

/// Ids are below this; they are in chunks of [`CHUNK`].
const MAX_IDS: u32 = 1 << 19;
const CHUNK: u32 = 1 << 10;
/// Most ids that are in use, or were until a moment ago.
const MAX_IN_USE: u32 = 1 << 18;
/// Most of those for packets from one source.
const MAX_OF_SOURCE: u32 = 1 << 15;
/// Sources are told apart by a hash of this many values.
const N_SOURCES: usize = 1 << 12;
/// Lists of ids.
const N_CHAINS: usize = 1 << 14;

/// As in Open vSwitch, a pipeline gets another id than it had when all had let go of it; but only so often
/// before the ids have expired.
const RESTING: usize = 4;

/// An id that is held, and its pipeline.
pub(crate) struct Held {
    pub(crate) id: u32,
    pub(crate) frozen: Frozen,
    digest: u64,
    source: usize,
    /// It has expired: nobody may begin to hold it.
    over: AtomicBool,
}

/// Nothing is counted: a credit is what an entry keeps for as long as it lives.
impl Credit for Held {
    fn credit(&self, _packets: u64, _bytes: u64, _used_ms: u64, _tcp_flags: u16) {}
}

/// RcuSlots of ids that follow each other.
struct Chunk {
    places: RcuSlots<Held>,
    /// In the list of its hash.
    of_hash: Box<[Link]>,
    /// Among those that `expire` has not seen yet.
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

/// What `expire` knows from its last call.
#[derive(Default)]
struct Known {
    /// Ids in use, and whether nobody held them then.
    ids: Vec<(u32, bool)>,
    /// Chunks with pipelines that somebody read when they were to be freed.
    untidy: BTreeSet<usize>,
}

/// All frozen pipelines.
pub(crate) struct Recircs {
    chunks: Box<[OnceArc<Chunk>]>,
    by_hash: Box<[Chain]>,
    keys: RandomState,
    /// The id that was given out last.
    last: AtomicU32,
    in_use: AtomicU32,
    of_source: Box<[AtomicU32]>,
    /// Ids that `expire` has not seen yet.
    fresh: Chain,
    known: Mutex<Known>,
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
    fn counted(&self, id: u32) -> Option<Arc<Held>> {
        self.chunk(id)?.places.arc(within(id))
    }
    fn chain(&self, digest: u64) -> &Chain {
        #[allow(clippy::cast_possible_truncation)] // any bits will do
        let at = digest as usize % N_CHAINS;
        &self.by_hash[at]
    }

    /// Whether one more id may be in use, which it then is.
    fn admit(&self, source: usize) -> bool {
        let (all, own) = (&self.in_use, &self.of_source[source]);
        // Relaxed: they count, and order nothing. A moment's excess has somebody refused who might have got
        // one.
        if all.fetch_add(1, Relaxed) < MAX_IN_USE {
            if own.fetch_add(1, Relaxed) < MAX_OF_SOURCE {
                return true;
            }
            own.fetch_sub(1, Relaxed);
        }
        all.fetch_sub(1, Relaxed);
        false
    }

    /// One that was admitted is in use no more.
    fn discharge(&self, source: usize) {
        self.in_use.fetch_sub(1, Relaxed);
        self.of_source[source].fetch_sub(1, Relaxed);
    }

    /// Gives out the next id whose place is empty, for somebody who was admitted.
    fn fill(&self, frozen: Frozen, digest: u64, source: usize) -> Option<Arc<Held>> {
        let mut held = Arc::new(Held {
            id: 0,
            frozen,
            digest,
            source,
            over: false.into(),
        });
        // At most half of them are full. What is passed by here is passed by once in as many ids.
        for _ in 0..MAX_IDS {
            let id = self.last.fetch_add(1, Relaxed).wrapping_add(1) % MAX_IDS;
            let place = self.chunks.get((id / CHUNK) as usize)?;
            if place.get().is_none() {
                // Who comes second takes that of who came first.
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
                // Somebody who took the id a whole turn ago was faster.
                Err(back) => drop(back),
            }
        }
        None
    }

    /// The id of a pipeline; a new one, unless an equal one is held. `None`: they have run out, or its
    /// source's have.
    pub(crate) fn take(&self, frozen: Frozen, reading: &ReadGuard) -> Option<Arc<Held>> {
        let digest = frozen.digest(&self.keys);
        let chain = self.chain(digest);
        // With whether nobody else holds it: only its place and this.
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
        // Somebody may have had the same one just now.
        let others = chain.add_unless(own.id, link, |id| {
            equal(&own.frozen, id).and_then(|(held, rests)| (!rests).then_some(held))
        });
        Some(others.unwrap_or(own))
    }

    /// The pipeline of an id that was given out, held from now on.
    pub(crate) fn hold(&self, id: u32) -> Option<Arc<Held>> {
        let held = self.counted(id)?;
        // Pairs with the fence in `expire`: either that sees this one counted, or this sees that it is over.
        fence(SeqCst);
        (!held.over.load(Relaxed)).then_some(held)
    }

    /// Time passes: forgets pipelines that nobody has held for a while.
    pub(crate) fn expire(&self) {
        let mut known = self.known.lock();
        let Known { ids, untidy } = &mut *known;
        let fresh = self.fresh.take(|id| self.fresh_link(id));
        ids.extend(fresh.into_iter().map(|id| (id, false)));
        ids.retain_mut(|(id, rested)| {
            let Some((chunk, held)) = self.chunk(*id).zip(self.counted(*id)) else {
                return false;
            };
            // Besides its place and this.
            let is_held = || Arc::strong_count(&held) > 2;
            if is_held() || !*rested {
                *rested = !is_held();
                return true;
            }
            held.over.store(true, Relaxed);
            fence(SeqCst); // as said in `hold`
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

    fn take(r: &Recircs, frozen: Frozen) -> Option<Arc<Held>> {
        r.take(frozen, &ReadGuard::begin())
    }

    /// Packets choose what is on the stack.
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
        // Again and again, but not without an end.
        let ids: Vec<u32> = (0..6).map(|_| take(&r, frozen(1)).expect("an id").id).collect();
        assert_eq!(ids, [4, 5, 6, 1, 1, 1]);
    }

    /// No number of pipelines that packets make up makes another one dear to find, or the ids of other ports
    /// run out.
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

    /// Threads take and drop the same few pipelines while they expire: those that are held are whole, and two
    /// that are held at a time have one id.
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
