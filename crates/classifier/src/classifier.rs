//! The classifier: subtables by falling priority, versions, purge.

use crate::mini::MiniMatch;
use crate::subtable::{Entry, FOREVER, Subtable};
use arc_swap::ArcSwap;
use heddle_flow::{FlowKey, FlowMask};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Subtables<T> = Vec<Arc<Subtable<T>>>;
/// Removed entries that are still linked, with the subtables that link them.
type Garbage<T> = Vec<(Arc<Subtable<T>>, Arc<Entry<T>>)>;

/// Rules with priorities, wildcards and versions. See the crate's text.
pub struct Classifier<T> {
    /// Sorted by falling `max_priority`.
    subtables: ArcSwap<Subtables<T>>,
    /// What `purge` has to unlink. Also serialises writers.
    garbage: Mutex<Garbage<T>>,
    seed: u64,
}

impl<T> Default for Classifier<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Classifier<T> {
    /// An empty classifier, with a hash key of its own.
    pub fn new() -> Self {
        let seed = RandomState::new().hash_one(0u8);
        Self {
            subtables: ArcSwap::from_pointee(Vec::new()),
            garbage: Mutex::new(Vec::new()),
            seed,
        }
    }

    fn writer(&self) -> MutexGuard<'_, Garbage<T>> {
        // A writer that panicked left the lists whole: every step replaces one pointer.
        self.garbage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The visible rule of highest priority that matches `key`. Adds to `wc` every bit that the answer
    /// depends on, also when there is none.
    pub fn lookup(&self, version: u64, key: &FlowKey, wc: &mut FlowMask) -> Option<Arc<Entry<T>>> {
        let mut best: Option<Arc<Entry<T>>> = None;
        for st in self.subtables.load().iter() {
            // Acquire pairs with the Release in `Subtable::insert`.
            if best
                .as_ref()
                .is_some_and(|b| b.priority >= st.max_priority.load(Ordering::Acquire))
            {
                // The list is sorted, but a concurrent insertion may have raised a later subtable's
                // priority: go through them all, each costs one load.
                continue;
            }
            st.mask.add_to(wc);
            let found = st.lookup(version, key);
            if found
                .as_ref()
                .is_some_and(|e| best.as_ref().is_none_or(|b| e.priority > b.priority))
            {
                best = found;
            }
        }
        best
    }

    /// Adds a rule, visible from `version` on. Rules that are equal in match and priority may both be there as
    /// long as their versions do not meet; the caller removes the old one at the same version.
    pub fn insert(&self, matches: &MiniMatch, priority: i32, version: u64, data: T) -> Arc<Entry<T>> {
        let _writer = self.writer();
        let entry = Arc::new(Entry {
            values: matches.values.clone(),
            priority,
            added: version,
            removed: FOREVER.into(),
            data,
        });
        let list = self.subtables.load_full();
        let known = list.iter().find(|s| *s.mask == *matches.mask).cloned();
        let st = known
            .clone()
            .unwrap_or_else(|| Arc::new(Subtable::new(matches.mask.clone(), self.seed)));
        let rises = priority > st.max_priority.load(Ordering::Relaxed);
        st.insert(entry.clone());
        if known.is_none() || rises {
            let mut list = Vec::clone(&list);
            if known.is_none() {
                list.push(st);
            }
            list.sort_by_key(|s| core::cmp::Reverse(s.max_priority.load(Ordering::Relaxed)));
            self.subtables.store(Arc::new(list));
        }
        entry
    }

    /// Hides a rule from `version` on. It stays linked until [`Classifier::purge`], so that lookups at earlier
    /// versions still see it. `false` if it was removed before.
    pub fn remove(&self, matches: &MiniMatch, entry: &Arc<Entry<T>>, version: u64) -> bool {
        let mut garbage = self.writer();
        if entry.removed.load(Ordering::Relaxed) != FOREVER {
            return false;
        }
        entry.removed.store(version, Ordering::Relaxed);
        if let Some(st) = self.subtables.load().iter().find(|s| *s.mask == *matches.mask) {
            garbage.push((st.clone(), entry.clone()));
        }
        true
    }

    /// Unlinks rules that are invisible from `version` on, and subtables that are empty. A lookup that still
    /// runs at an earlier version may then miss them; whatever it caches carries the old generation.
    pub fn purge(&self, version: u64) {
        let mut garbage = self.writer();
        if garbage.is_empty() {
            return;
        }
        garbage.retain(|(st, e)| {
            let dead = e.removed.load(Ordering::Relaxed) <= version;
            if dead {
                st.remove(e);
            }
            !dead
        });
        let list = self.subtables.load_full();
        if list.iter().any(|s| s.len() == 0) {
            self.subtables
                .store(Arc::new(list.iter().filter(|s| s.len() != 0).cloned().collect()));
        }
    }

    /// The rule with exactly this match and priority that is visible at `version`.
    pub fn find_exact(&self, version: u64, matches: &MiniMatch, priority: i32) -> Option<Arc<Entry<T>>> {
        let list = self.subtables.load();
        let st = list.iter().find(|s| *s.mask == *matches.mask)?;
        st.with_values(&matches.values)
            .into_iter()
            .find(|e| e.priority == priority && e.visible(version))
    }

    /// Calls `f` for every rule that is visible at `version`, in no order.
    pub fn for_each(&self, version: u64, mut f: impl FnMut(&Arc<Entry<T>>)) {
        for st in self.subtables.load().iter() {
            st.for_each(&mut |e| {
                if e.visible(version) {
                    f(e);
                }
            });
        }
    }

    /// Number of linked rules (removed ones that are not purged count).
    pub fn len(&self) -> usize {
        self.subtables.load().iter().map(|s| s.len()).sum()
    }

    /// Whether no rule is linked.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of distinct masks.
    pub fn n_masks(&self) -> usize {
        self.subtables.load().len()
    }
}
