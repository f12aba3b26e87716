//! Recirculation: pipelines that stand still until the packet comes back, and the ids under which it does.
//!
//! **Problem.** Where the pipeline needs what only the datapath can say (headers behind a popped label, a hash), translation ends
//! with `recirc(id)`. When the packet is looked up again under that id, any worker must find the [`Frozen`] pipeline of it,
//! without waiting.
//!
//! **Invariants.** Equal pipelines that are held have the same id, so that a fresh translation of a cached entry says the same as
//! the entry. An id is held by the translations that name it and by those that were made under it ([`Held`] is among
//! their credits). When nobody holds it any more it is not given out again, but its pipeline is still found until
//! [`Recircs::expire`] was called twice: packets that are on their way then have arrived.
//!
//! **Costs.** A lookup is two loads. Taking and letting go of an id takes a mutex that is held for a few
//! hash map operations; only translations take it, never a packet that hits a cache.

use arc_swap::ArcSwapOption;
use heddle_datapath::Credit;
use heddle_flow::FlowKey;
use heddle_openflow::message::StackValue;
use heddle_openflow::text::{ActionsText, InstructionsText};
use heddle_openflow::{Action, Instruction, InstructionSet};
use parking_lot::Mutex;
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock, Weak};

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
#[derive(Clone, PartialEq, Hash, Debug)]
pub(crate) struct Frozen {
    pub(crate) bridge: u64,
    /// Where the packet is looked up if there is nothing left to do.
    pub(crate) table: u8,
    /// Input port (OpenFlow's, in the key's form), metadata, registers, tunnel; all else is zero.
    pub(crate) metadata: Box<FlowKey>,
    pub(crate) stack: Vec<StackValue>,
    pub(crate) was_mpls: bool,
    /// Mirrors that have had the packet.
    pub(crate) mirrored: u32,
    pub(crate) steps: Vec<Left>,
    pub(crate) action_set: Vec<Action>,
    /// Of the controller action that froze it: packet-ins that differ in it have different ids.
    pub(crate) userdata: Vec<u8>,
}

impl Frozen {
    fn digest(&self) -> u64 {
        let mut h = DefaultHasher::new();
        self.hash(&mut h);
        h.finish()
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

/// Ids below this are given out, in chunks of [`CHUNK`].
const MAX_IDS: u32 = 1 << 20;
const CHUNK: u32 = 1 << 10;
/// Ids that are made free at once.
const PIECE: usize = 256;

/// An id that is held.
pub(crate) struct Held {
    pub(crate) id: u32,
    pub(crate) frozen: Arc<Frozen>,
    digest: u64,
    of: Arc<Shared>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut index = self.of.index.lock();
        if let Some(ids) = index.by_digest.get_mut(&self.digest) {
            ids.retain(|id| *id != self.id);
            if ids.is_empty() {
                index.by_digest.remove(&self.digest);
            }
        }
        index.left[0].push(self.id);
    }
}

/// Nothing is counted: a credit is what an entry keeps for as long as it lives.
impl Credit for Held {
    fn credit(&self, _packets: u64, _bytes: u64, _used_ms: u64, _tcp_flags: u16) {}
}

struct Slot {
    frozen: Arc<Frozen>,
    held: Weak<Held>,
}

#[derive(Default)]
struct Index {
    /// Held ids by the digest of their pipelines.
    by_digest: HashMap<u64, Vec<u32>>,
    /// Ids below it were given out.
    next: u32,
    /// Ids that may be given out again, the longest unused first.
    free: VecDeque<u32>,
    /// Ids that nobody holds since the last call of `expire`, and since the one before.
    left: [Vec<u32>; 2],
}

type Chunk = Box<[ArcSwapOption<Slot>]>;

struct Shared {
    chunks: Box<[OnceLock<Chunk>]>,
    index: Mutex<Index>,
}

impl Shared {
    fn slot(&self, id: u32) -> Option<&ArcSwapOption<Slot>> {
        let chunk = self.chunks.get((id / CHUNK) as usize)?;
        chunk.get()?.get((id % CHUNK) as usize)
    }
}

/// All frozen pipelines.
pub(crate) struct Recircs(Arc<Shared>);

impl Default for Recircs {
    fn default() -> Self {
        Self(Arc::new(Shared {
            chunks: (0..MAX_IDS / CHUNK).map(|_| OnceLock::new()).collect(),
            index: Mutex::default(),
        }))
    }
}

impl Recircs {
    /// The id of a pipeline; a new one, unless an equal one is held. `None`: they have run out.
    pub(crate) fn take(&self, frozen: Frozen) -> Option<Arc<Held>> {
        let digest = frozen.digest();
        let mut index = self.0.index.lock();
        for id in index.by_digest.get(&digest).into_iter().flatten() {
            let slot = self.0.slot(*id).and_then(|s| s.load_full());
            if let Some(slot) = slot.filter(|s| *s.frozen == frozen)
                && let Some(held) = slot.held.upgrade()
            {
                return Some(held);
            }
        }
        let id = if index.next < MAX_IDS - 1 {
            index.next += 1;
            index.next
        } else {
            index.free.pop_front()?
        };
        let frozen = Arc::new(frozen);
        let held = Arc::new(Held {
            id,
            frozen: frozen.clone(),
            digest,
            of: self.0.clone(),
        });
        let chunk = self.0.chunks[(id / CHUNK) as usize]
            .get_or_init(|| (0..CHUNK).map(|_| ArcSwapOption::empty()).collect());
        chunk[(id % CHUNK) as usize].store(Some(Arc::new(Slot {
            frozen,
            held: Arc::downgrade(&held),
        })));
        index.by_digest.entry(digest).or_default().push(id);
        Some(held)
    }

    /// Calls `f` with the pipeline of an id. The id is held if anybody still holds it.
    pub(crate) fn with<R>(&self, id: u32, f: impl FnOnce(&Frozen, Option<Arc<Held>>) -> R) -> Option<R> {
        let slot = self.0.slot(id)?.load_full()?;
        Some(f(&slot.frozen, slot.held.upgrade()))
    }

    /// The pipeline of an id, whether anybody holds it or not.
    pub(crate) fn frozen(&self, id: u32) -> Option<Arc<Frozen>> {
        Some(self.0.slot(id)?.load_full()?.frozen.clone())
    }

    /// Time passes: forgets pipelines that nobody has held for a while.
    pub(crate) fn expire(&self) {
        let gone = {
            let mut index = self.0.index.lock();
            let now = std::mem::take(&mut index.left[0]);
            std::mem::replace(&mut index.left[1], now)
        };
        // Workers wait for the mutex: not until the memory of many pipelines is freed.
        for ids in gone.chunks(PIECE) {
            ids.iter()
                .filter_map(|id| self.0.slot(*id))
                .for_each(|slot| slot.store(None));
            self.0.index.lock().free.extend(ids);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frozen(table: u8) -> Frozen {
        Frozen {
            bridge: 1,
            table,
            metadata: Box::default(),
            stack: Vec::new(),
            was_mpls: false,
            mirrored: 0,
            steps: vec![Left::Action(Action::Exit)],
            action_set: Vec::new(),
            userdata: Vec::new(),
        }
    }

    fn known(r: &Recircs, id: u32) -> Option<(u8, bool)> {
        r.with(id, |f, held| (f.table, held.is_some()))
    }

    #[test]
    fn equal_pipelines_share_an_id_while_it_is_held() {
        let r = Recircs::default();
        let a = r.take(frozen(1)).expect("an id");
        let b = r.take(frozen(2)).expect("an id");
        assert_eq!((a.id, b.id), (1, 2));
        assert_eq!(r.take(frozen(1)).expect("an id").id, 1);
        assert_eq!(known(&r, 2), Some((2, true)));
        drop(a);
        assert_eq!(r.take(frozen(1)).expect("an id").id, 3);
    }

    /// Packets choose what is on the stack: no number of such pipelines makes another one dear to find.
    #[test]
    fn what_packets_push_spreads_over_the_index() {
        let r = Recircs::default();
        let of = |n: u16| Frozen {
            stack: vec![StackValue::from_bytes(&n.to_be_bytes())],
            ..frozen(1)
        };
        let held: Vec<_> = (0..500).map(|n| r.take(of(n)).expect("an id")).collect();
        let most = r.0.index.lock().by_digest.values().map(Vec::len).max();
        assert_eq!(most, Some(1));
        drop(held);
        r.expire();
        r.expire();
        assert_eq!((known(&r, 1), known(&r, 500)), (None, None));
        assert_eq!(r.0.index.lock().free.len(), 500);
    }

    #[test]
    fn packets_on_their_way_still_arrive() {
        let r = Recircs::default();
        let id = r.take(frozen(1)).expect("an id").id;
        assert_eq!(known(&r, id), Some((1, false)));
        r.expire();
        assert_eq!(known(&r, id), Some((1, false)));
        r.expire();
        assert_eq!(known(&r, id), None);
        assert_eq!(known(&r, 77), None);
    }
}
