//! Reports about workers' entries to an observer, see [`heddle_datapath_api::FlowObserver`].
//!
//! A pass marks the flow of each entry that it finds valid. A flow without a mark at the end of a pass is
//! gone: its entries were evicted or replaced, or their workers ended. No count of the workers that have a
//! flow is kept.
//!
//! **Cost**, with an observer: about 800 bytes for each flow, 16 for each entry. The first sight of an entry
//! costs a lookup by key; later each pass costs a few reads per entry.

use crate::flow_cache::{CachedTranslation, Records};
use hashbrown::HashTable;
use heddle_datapath_api::{FlowCounts, FlowId, FlowObserver, ObservedFlow};
use heddle_flow::{FlowKey, FlowMask};
use heddle_flow_cache::{HashKey, ScannedEntry, Subtable, same_credits};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A worker's entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct EntrySlot {
    /// The worker's index.
    pub(super) worker: usize,
    pub(super) slot: u32,
}

/// A flow that was reported to the observer.
struct Flow {
    id: FlowId,
    hash: u64,
    key: FlowKey,
    subtable: Arc<Subtable>,
    translation: Arc<CachedTranslation>,
    /// Counts of the observer.
    counts: FlowCounts,
    /// The entry that is shown with these counts.
    shown: EntrySlot,
}

impl Flow {
    fn observed(&self) -> ObservedFlow<'_> {
        ObservedFlow {
            id: self.id,
            key: &self.key,
            mask: &self.subtable.mask,
            actions: &self.translation.compiled.actions,
            credits: &self.translation.credits,
        }
    }
    /// Adds and credits packets that the observer has counted under this translation.
    fn count(&mut self, translation: &CachedTranslation, n: &FlowCounts) {
        self.counts.add(n);
        n.credit(&translation.credits);
    }
}

/// The flows reported to an observer.
pub(super) struct Observed {
    pub(super) observer: Box<dyn FlowObserver>,
    hash_key: HashKey,
    flows: Vec<Option<Box<Flow>>>,
    /// The last pass that found each flow valid, by index.
    marks: Vec<u64>,
    free: Vec<u32>,
    by_key: HashTable<u32>,
    pass: u64,
    /// Number of flows reported so far.
    n_reported: u32,
    /// Time spent on these reports since it was last taken.
    pub(super) reporting: Duration,
}

/// Index of a flow in the lists.
#[allow(clippy::cast_possible_truncation)] // the lower half
fn place(id: FlowId) -> usize {
    id.0 as u32 as usize
}

fn get(flows: &mut [Option<Box<Flow>>], id: FlowId) -> Option<&mut Flow> {
    let flow = flows.get_mut(place(id))?.as_deref_mut()?;
    (flow.id == id).then_some(flow)
}

fn hash_of(hash_key: HashKey, key: &FlowKey, mask: &FlowMask) -> u64 {
    let words = key.words().iter().zip(mask.words()).filter(|(_, m)| **m != 0);
    hash_key.finish(words.fold(hash_key.start(), |h, (k, m)| hash_key.mix(h, k & m, *m)))
}

impl Observed {
    pub(super) fn new(observer: Box<dyn FlowObserver>, hash_key: HashKey) -> Self {
        Self {
            observer,
            hash_key,
            flows: Vec::new(),
            marks: Vec::new(),
            free: Vec::new(),
            by_key: HashTable::new(),
            pass: 0,
            n_reported: 0,
            reporting: Duration::ZERO,
        }
    }
    /// The flow of an entry, if it was reported.
    pub(super) fn find(&mut self, r: &mut Records, seen: &ScannedEntry<'_>) -> Option<FlowId> {
        if let Some(id) = r.flow_of(seen).map(FlowId)
            && get(&mut self.flows, id).is_some()
        {
            return Some(id);
        }
        let (key, subtable) = r.whole_key(seen)?;
        let mask = &subtable.mask;
        let same = |at: &u32| {
            self.flows[*at as usize].as_ref().is_some_and(|f| {
                let mut words = f.key.words().iter().zip(key.words()).zip(mask.words());
                f.subtable.mask == *mask && words.all(|((a, b), m)| (a ^ b) & m == 0)
            })
        };
        let at = *self.by_key.find(hash_of(self.hash_key, &key, mask), same)?;
        let id = self.flows[at as usize].as_ref()?.id;
        r.set_flow(seen, id.0);
        Some(id)
    }
    /// Counts of the observer for a flow.
    pub(super) fn counts(&mut self, id: FlowId) -> FlowCounts {
        get(&mut self.flows, id).map_or(FlowCounts::default(), |f| f.counts)
    }
    /// The place outside the workers that forwards packets of an entry, or the reason why there is none.
    pub(super) fn place(
        &mut self,
        r: &mut Records,
        seen: &ScannedEntry<'_>,
    ) -> (Option<&'static str>, Option<String>) {
        let Some(id) = self.find(r, seen) else {
            return (None, None);
        };
        (self.observer.place(id), self.observer.waits(id))
    }
    /// [`Observed::counts`], if this entry is the one that is shown with them.
    pub(super) fn shown(
        &mut self,
        r: &mut Records,
        seen: &ScannedEntry<'_>,
        worker: usize,
    ) -> Option<FlowCounts> {
        let id = self.find(r, seen)?;
        let flow = get(&mut self.flows, id)?;
        let this = EntrySlot {
            worker,
            slot: seen.slot,
        };
        (flow.shown == this).then_some(flow.counts)
    }
    /// An entry of the flow `known` is valid with this translation.
    pub(super) fn right(
        &mut self,
        known: Option<FlowId>,
        r: &mut Records,
        seen: &ScannedEntry<'_>,
        worker: usize,
        translation: Arc<CachedTranslation>,
    ) {
        let shown = EntrySlot {
            worker,
            slot: seen.slot,
        };
        let Some(id) = known else {
            if let Some((key, subtable)) = r.whole_key(seen) {
                r.set_flow(seen, self.add(key, subtable, translation, shown).0);
            }
            return;
        };
        let Some(flow) = get(&mut self.flows, id) else {
            return;
        };
        if !Arc::ptr_eq(&flow.translation, &translation) {
            let same = flow.translation.compiled.actions == translation.compiled.actions
                && same_credits(&flow.translation.credits, &translation.credits);
            let before = std::mem::replace(&mut flow.translation, translation);
            if !same {
                let counted = self.observer.changed(&flow.observed());
                flow.count(&before, &counted);
            }
        }
        if std::mem::replace(&mut self.marks[place(id)], self.pass) != self.pass {
            flow.shown = shown;
        }
    }
    fn add(
        &mut self,
        key: FlowKey,
        subtable: Arc<Subtable>,
        translation: Arc<CachedTranslation>,
        shown: EntrySlot,
    ) -> FlowId {
        let at = self.free.pop().unwrap_or_else(|| {
            self.flows.push(None);
            self.marks.push(0);
            u32::try_from(self.flows.len() - 1).expect("there are fewer entries than that")
        });
        self.n_reported = self.n_reported.wrapping_add(1);
        let hash = hash_of(self.hash_key, &key, &subtable.mask);
        let flow = Box::new(Flow {
            id: FlowId(u64::from(self.n_reported) << 32 | u64::from(at)),
            hash,
            key,
            subtable,
            translation,
            counts: FlowCounts::default(),
            shown,
        });
        let began = Instant::now();
        self.observer.added(&flow.observed());
        self.reporting += began.elapsed();
        let id = flow.id;
        (self.flows[at as usize], self.marks[at as usize]) = (Some(flow), self.pass);
        let flows = &self.flows;
        self.by_key
            .insert_unique(hash, at, |at| flows[*at as usize].as_ref().map_or(0, |f| f.hash));
        id
    }
    /// Reports that a flow is gone.
    pub(super) fn gone(&mut self, id: FlowId) {
        let Some(flow) = get(&mut self.flows, id) else {
            return;
        };
        flow.count(&Arc::clone(&flow.translation), &self.observer.gone(id));
        if let Ok(found) = self.by_key.find_entry(flow.hash, |at| *at as usize == place(id)) {
            self.free.push(found.remove().0);
        }
        self.flows[place(id)] = None;
    }
    /// Reports that all flows are gone.
    pub(super) fn all_gone(&mut self) {
        for at in 0..self.flows.len() {
            if let Some(id) = self.flows[at].as_ref().map(|f| f.id) {
                self.gone(id);
            }
        }
        (self.flows, self.marks, self.free) = <_>::default();
        self.by_key = HashTable::new();
    }
    /// Begins a pass.
    pub(super) fn begin(&mut self) {
        self.pass += 1;
        self.collect();
    }
    /// The next flow, from index `from` on, that this pass has not found valid, and an entry that it had.
    pub(super) fn missed(&self, from: &mut usize) -> Option<(FlowId, EntrySlot)> {
        let marked = |at: usize| self.marks[at] == self.pass;
        let at = (*from..self.flows.len()).find(|at| self.flows[*at].is_some() && !marked(*at));
        *from = at.map_or(self.flows.len(), |at| at + 1);
        self.flows[at?].as_ref().map(|f| (f.id, f.shown))
    }
    /// Reports a flow that this pass has not found valid as gone.
    pub(super) fn gone_if_missed(&mut self, id: FlowId) {
        if self.marks[place(id)] != self.pass {
            self.gone(id);
        }
    }
    /// Credits the counts of the observer.
    pub(super) fn collect(&mut self) {
        let flows = &mut self.flows;
        self.observer.counters(&mut |id, n| {
            if let Some(flow) = get(flows, id) {
                flow.count(&Arc::clone(&flow.translation), &n);
            }
        });
    }
}
