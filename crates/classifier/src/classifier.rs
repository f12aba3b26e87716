//! The classifier: subtables by falling priority, versions, purge.

use crate::entry::{Entry, FOREVER};
use crate::mini::{MiniMask, MiniMatch};
use crate::prefix::{MAX_TRACKED, PrefixField, Tracked, Tries};
use crate::subtable::Subtable;
use heddle_flow::{FlowKey, FlowMask};
use heddle_sync::{Reading, Replaced};
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What lookups read. Replaced when a subtable comes, goes or changes its place.
struct View<T> {
    /// With the highest priority in each, falling.
    subtables: Vec<(i32, Arc<Subtable<T>>)>,
    tracked: Arc<[Tracked]>,
}

/// A subtable as writers know it.
struct Known<T> {
    subtable: Arc<Subtable<T>>,
    /// How many linked rules have each priority.
    priorities: BTreeMap<i32, usize>,
}

/// What only writers use; they take turns under its lock.
struct Writer<T> {
    known: HashMap<Arc<MiniMask>, Known<T>>,
    /// Removed entries that are still linked, with their masks.
    garbage: Vec<(Arc<MiniMask>, Arc<Entry<T>>)>,
}

/// Rules that are unlinked at a time.
const PIECE: usize = 256;

/// Rules with priorities, wildcards and versions. See the crate's text.
pub struct Classifier<T> {
    view: Replaced<View<T>>,
    writer: Mutex<Writer<T>>,
    seed: u64,
}

impl<T> Default for Classifier<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Classifier<T> {
    /// An empty classifier, with a hash key of its own, that tracks [`PrefixField::default_ones`].
    pub fn new() -> Self {
        let tracked = PrefixField::default_ones()
            .into_iter()
            .map(Tracked::new)
            .collect();
        Self {
            view: Replaced::new(View {
                subtables: Vec::new(),
                tracked,
            }),
            writer: Mutex::new(Writer {
                known: HashMap::new(),
                garbage: Vec::new(),
            }),
            seed: RandomState::new().hash_one(0u8),
        }
    }

    fn writer(&self) -> MutexGuard<'_, Writer<T>> {
        // A writer that panicked left lookups a whole view: every step replaces one pointer.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The visible rule of highest priority that matches `key`. Adds to `wc` every bit that the answer
    /// depends on, also when there is none.
    pub fn lookup<'a>(
        &'a self,
        reading: &'a Reading,
        version: u64,
        key: &FlowKey,
        wc: &mut FlowMask,
    ) -> Option<&'a Entry<T>> {
        self.lookup_where(reading, version, key, wc, |_| true)
    }

    /// As [`Classifier::lookup`], among the rules that `accept` takes. It is asked about every matching rule whose priority is
    /// higher than that of the best one so far; what it answers must follow from the rule.
    pub fn lookup_where<'a>(
        &'a self,
        reading: &'a Reading,
        version: u64,
        key: &FlowKey,
        wc: &mut FlowMask,
        mut accept: impl FnMut(&'a Entry<T>) -> bool,
    ) -> Option<&'a Entry<T>> {
        let view = self.view.load(reading);
        let mut tries = Tries::new(&view.tracked);
        let mut best: Option<&Entry<T>> = None;
        for (max, subtable) in &view.subtables {
            // A rule that was added since this view was made is not visible at `version`: whoever published that version
            // did it after the view.
            if best.is_some_and(|b| b.priority >= *max) {
                break;
            }
            let found = subtable.lookup(reading, version, key, &mut tries, wc, &mut accept);
            if found.is_some_and(|e| best.is_none_or(|b| e.priority > b.priority)) {
                best = found;
            }
        }
        best
    }

    /// The same match, sharing the mask of the rules that are there already: thousands of rules have few masks.
    #[must_use]
    pub fn share(&self, matches: MiniMatch) -> MiniMatch {
        let writer = self.writer();
        match writer.known.get_key_value(&matches.mask) {
            Some((mask, _)) => MiniMatch {
                mask: mask.clone(),
                values: matches.values,
            },
            None => matches,
        }
    }

    /// Adds a rule, visible from `version` on. Rules that are equal in match and priority may both be there as
    /// long as their versions do not meet; the caller removes the old one at the same version.
    pub fn insert(&self, matches: &MiniMatch, priority: i32, version: u64, data: T) -> Arc<Entry<T>> {
        let mut writer = self.writer();
        let entry = Arc::new(Entry {
            values: matches.values.clone(),
            priority,
            added: version,
            removed: FOREVER.into(),
            data,
        });
        let view = self.view.get();
        let known = self.known(&mut writer, &matches.mask);
        let max = known.priorities.keys().next_back().copied();
        *known.priorities.entry(priority).or_default() += 1;
        let wide = known.subtable.wide(&entry.values);
        // What lets lookups pass the rule by goes first.
        for t in view.tracked.iter() {
            let len = known.subtable.prefixes[usize::from(t.field.index)];
            if len > 0 {
                t.insert(&wide, len);
            }
        }
        known.subtable.insert(entry.clone(), &wide);
        if max.is_none_or(|m| priority > m) {
            self.publish(&writer, &view.tracked);
        }
        entry
    }

    /// What writers know of the rules with this mask, of which there may be none so far.
    fn known<'w>(&self, writer: &'w mut Writer<T>, mask: &Arc<MiniMask>) -> &'w mut Known<T> {
        writer.known.entry(mask.clone()).or_insert_with(|| Known {
            subtable: Arc::new(Subtable::new(mask.clone(), self.seed)),
            priorities: BTreeMap::new(),
        })
    }

    /// Makes room for `n` more rules with this mask. If they do not come, the room goes with the next [`Classifier::purge`] of any rule.
    pub fn reserve(&self, mask: &Arc<MiniMask>, n: usize) {
        self.known(&mut self.writer(), mask).subtable.reserve(n);
    }

    /// Makes a view of what writers know.
    fn publish(&self, writer: &Writer<T>, tracked: &Arc<[Tracked]>) {
        let mut subtables: Vec<_> = writer
            .known
            .values()
            .filter_map(|k| Some((*k.priorities.keys().next_back()?, k.subtable.clone())))
            .collect();
        // Of equal priorities any comes first; by mask, so that the same rules give the same megaflows.
        subtables.sort_by(|(a, s), (b, t)| b.cmp(a).then_with(|| s.mask.words().cmp(t.mask.words())));
        self.view.replace(Arc::new(View {
            subtables,
            tracked: tracked.clone(),
        }));
    }

    /// Hides a rule from `version` on. It stays linked until [`Classifier::purge`], so that lookups at earlier
    /// versions still see it; one that came with the same version was never to be seen, and goes at once. `false` if it was removed before.
    pub fn remove(&self, matches: &MiniMatch, entry: &Arc<Entry<T>>, version: u64) -> bool {
        let mut writer = self.writer();
        if entry.removed.load(Ordering::Relaxed) != FOREVER {
            return false;
        }
        entry.removed.store(version, Ordering::Relaxed);
        if entry.added == version {
            let tracked = self.view.load(&Reading::begin()).tracked.clone();
            let known = writer.known.get_mut(&matches.mask);
            let moved = known.is_some_and(|k| k.unlink(entry, &tracked));
            if moved {
                writer.known.retain(|_, k| !k.priorities.is_empty());
                self.publish(&writer, &tracked);
            }
        } else if let Some((mask, _)) = writer.known.get_key_value(&matches.mask) {
            let mask = mask.clone();
            writer.garbage.push((mask, entry.clone()));
        }
        true
    }

    /// Takes a removal back, as long as no lookup has used the version that it was to take effect at. A rule that came with that version stays gone.
    pub fn restore(&self, entry: &Arc<Entry<T>>) {
        let mut writer = self.writer();
        if entry.removed.load(Ordering::Relaxed) == entry.added {
            return;
        }
        entry.removed.store(FOREVER, Ordering::Relaxed);
        // Removals are taken back newest first, so it is near the end.
        if let Some(at) = writer.garbage.iter().rposition(|(_, e)| Arc::ptr_eq(e, entry)) {
            writer.garbage.remove(at);
        }
    }

    /// Unlinks rules that are invisible from `version` on, and subtables that are empty. A lookup that still
    /// runs at an earlier version may then miss them: the caller says before the call that it will happen, and readers look for that
    /// after their lookups.
    ///
    /// In pieces: other writers, who may be workers that learn, wait for [`PIECE`] of a million rules at most.
    pub fn purge(&self, version: u64) {
        let mut waiting = std::mem::take(&mut self.writer().garbage);
        if waiting.is_empty() {
            return;
        }
        while !waiting.is_empty() {
            let mut guard = self.writer();
            let Writer { known, garbage } = &mut *guard;
            let tracked = self.view.load(&Reading::begin()).tracked.clone();
            let mut moved = false;
            for (mask, e) in waiting.drain(waiting.len().saturating_sub(PIECE)..) {
                match e.removed.load(Ordering::Relaxed) {
                    // Restored meanwhile.
                    FOREVER => {}
                    removed if removed > version => garbage.push((mask, e)),
                    _ => moved |= known.get_mut(&mask).is_some_and(|k| k.unlink(&e, &tracked)),
                }
            }
            if moved {
                known.retain(|_, k| !k.priorities.is_empty());
                self.publish(&guard, &tracked);
            }
        }
        let guard = self.writer();
        guard.known.values().for_each(|k| k.subtable.tidy());
        self.view.tidy();
    }

    /// Chooses the fields whose prefixes are tracked (the first three count; a field named twice counts once).
    pub fn set_prefixes(&self, fields: &[PrefixField]) {
        let writer = self.writer();
        let mut wanted: Vec<PrefixField> = Vec::new();
        for f in fields {
            if wanted.len() < MAX_TRACKED && !wanted.contains(f) {
                wanted.push(*f);
            }
        }
        let now = self.view.load(&Reading::begin()).tracked.clone();
        if now.iter().map(|t| t.field).eq(wanted.iter().copied()) {
            return;
        }
        let tracked: Arc<[Tracked]> = wanted.into_iter().map(Tracked::new).collect();
        for k in writer.known.values() {
            k.subtable.for_each(&mut |e| {
                let wide = k.subtable.wide(&e.values);
                for t in tracked.iter() {
                    let len = k.subtable.prefixes[usize::from(t.field.index)];
                    if len > 0 {
                        t.insert(&wide, len);
                    }
                }
            });
        }
        self.publish(&writer, &tracked);
    }

    /// The rule with exactly this match and priority that is visible at `version`. Waits for no writer.
    pub fn find_exact(&self, version: u64, matches: &MiniMatch, priority: i32) -> Option<Arc<Entry<T>>> {
        // Every subtable that has rules is in the view.
        let reading = Reading::begin();
        let view = self.view.load(&reading);
        let mut subtables = view.subtables.iter();
        let (_, subtable) = subtables.find(|(max, s)| *max >= priority && s.mask == matches.mask)?;
        subtable.find(version, &matches.values, priority)
    }

    /// Calls `f` for every rule that is visible at `version`, in no order.
    pub fn for_each(&self, version: u64, mut f: impl FnMut(&Arc<Entry<T>>)) {
        for (_, subtable) in &self.view.load(&Reading::begin()).subtables {
            subtable.for_each(&mut |e| {
                if e.visible(version) {
                    f(e);
                }
            });
        }
    }

    /// Number of linked rules (removed ones that are not purged count).
    pub fn len(&self) -> usize {
        self.view
            .load(&Reading::begin())
            .subtables
            .iter()
            .map(|(_, s)| s.len())
            .sum()
    }

    /// Whether no rule is linked.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of distinct masks.
    pub fn n_masks(&self) -> usize {
        self.view.load(&Reading::begin()).subtables.len()
    }
}

impl<T> Known<T> {
    /// Unlinks an entry; says whether the subtable's place in the view changed by it.
    fn unlink(&mut self, e: &Arc<Entry<T>>, tracked: &[Tracked]) -> bool {
        let wide = self.subtable.wide(&e.values);
        if !self.subtable.remove(e, &wide) {
            return false;
        }
        for t in tracked {
            let len = self.subtable.prefixes[usize::from(t.field.index)];
            if len > 0 {
                t.remove(&wide, len);
            }
        }
        let highest = self.priorities.keys().next_back() == Some(&e.priority);
        if let Some(n) = self.priorities.get_mut(&e.priority) {
            *n -= 1;
            if *n == 0 {
                self.priorities.remove(&e.priority);
                return highest;
            }
        }
        false
    }
}
