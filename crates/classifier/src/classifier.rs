//! The classifier: subtables by falling priority, versions, purge.

use crate::entry::{Entry, FOREVER};
use crate::mini::{MiniMask, MiniMatch};
use crate::prefix::{MAX_TRACKED, PrefixField, Tracked, Tries};
use crate::subtable::Subtable;
use heddle_flow::{FlowKey, FlowMask};
use heddle_sync::{RcuCell, ReadGuard};
use std::cmp::Reverse;
use std::collections::BTreeMap;
#[expect(clippy::disallowed_types, reason = "of writers")]
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
#[expect(clippy::disallowed_types, reason = "of writers")]
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

/// The data that lookups read. Writers replace it when subtables have come, gone or moved in the order.
struct View<T> {
    /// (highest priority of its rules, subtable), by falling priority.
    subtables: Vec<(i32, Arc<Subtable<T>>)>,
    tracked: Arc<[Tracked]>,
}

/// A subtable with the writers' bookkeeping.
struct KnownSubtable<T> {
    subtable: Arc<Subtable<T>>,
    /// A number that grows with each subtable made.
    serial: u64,
    /// The number of linked rules by priority.
    priorities: BTreeMap<i32, usize>,
}

/// The position of a subtable in lookups: the highest priority first, and among equal ones the oldest first.
/// If a packet matches two rules of equal priority, OpenFlow does not define which one wins. Open vSwitch
/// goes by this order, and some users count on it.
type Turn = (Reverse<i32>, u64);

/// The writers' data, under their lock.
struct Writer<T> {
    #[expect(clippy::disallowed_types, reason = "of writers")]
    known: HashMap<Arc<MiniMask>, KnownSubtable<T>>,
    /// Subtables that have rules, in the order of lookups.
    turns: BTreeMap<Turn, Arc<Subtable<T>>>,
    /// The number of subtables made so far.
    made: u64,
    /// Removed entries that are still linked, with their masks.
    garbage: Vec<(Arc<MiniMask>, Arc<Entry<T>>)>,
}

/// The number of rules that are unlinked under one lock.
const PIECE: usize = 256;

/// Maximum number of rules that are put into new tries while other writers wait.
const MAX_RULES_AT_ONCE: usize = 1024;

/// Rules with priorities, wildcards and versions. The crate's documentation explains it.
pub struct Classifier<T> {
    view: RcuCell<View<T>>,
    /// The writers' data is newer than the view.
    stale: AtomicBool,
    /// A removed rule or table was still being read when it was to be freed.
    untidy: AtomicBool,
    #[expect(clippy::disallowed_types, reason = "of writers")]
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
    #[expect(clippy::disallowed_types, reason = "of writers")]
    pub fn new() -> Self {
        let tracked = PrefixField::default_ones()
            .into_iter()
            .map(Tracked::new)
            .collect();
        Self {
            view: RcuCell::new(View {
                subtables: Vec::new(),
                tracked,
            }),
            stale: AtomicBool::new(false),
            untidy: AtomicBool::new(false),
            writer: Mutex::new(Writer {
                known: HashMap::new(),
                turns: BTreeMap::new(),
                made: 0,
                garbage: Vec::new(),
            }),
            seed: RandomState::new().hash_one(0u8),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "lookups do not call it")]
    fn writer(&self) -> MutexGuard<'_, Writer<T>> {
        // A writer that panicked left lookups a whole view: every step replaces one pointer.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The visible rule of highest priority that matches `key`. Adds to `wc` every bit that the result
    /// depends on, also if there is no such rule.
    pub fn lookup<'a>(
        &'a self,
        reading: &'a ReadGuard,
        version: u64,
        key: &FlowKey,
        wc: &mut FlowMask,
    ) -> Option<&'a Entry<T>> {
        self.lookup_where(reading, version, key, wc, |_| true)
    }

    /// Like [`Classifier::lookup`], among the rules that `accept` takes. `accept` gets every matching rule
    /// with a higher priority than the best one so far. Its result must depend on the rule only.
    pub fn lookup_where<'a>(
        &'a self,
        reading: &'a ReadGuard,
        version: u64,
        key: &FlowKey,
        wc: &mut FlowMask,
        mut accept: impl FnMut(&'a Entry<T>) -> bool,
    ) -> Option<&'a Entry<T>> {
        let view = self.view.load(reading);
        let mut tries = Tries::new(&view.tracked);
        let mut best: Option<&Entry<T>> = None;
        for (max, subtable) in &view.subtables {
            // A rule that was added since this view was made is not visible at `version`: the view is
            // published before the version.
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

    /// The same match, sharing the mask with existing rules: thousands of rules have few masks.
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

    /// Adds a rule, visible from `version` on. The caller calls [`Classifier::publish`] before it publishes
    /// that version; then lookups are sure to find the rule. Rules with equal match and priority may coexist
    /// if their versions do not overlap; the caller removes the old one at the same version.
    pub fn insert(&self, matches: &MiniMatch, priority: i32, version: u64, data: T) -> Arc<Entry<T>> {
        let mut writer = self.writer();
        let entry = Arc::new(Entry {
            values: matches.values.clone(),
            priority,
            added: version,
            removed: FOREVER.into(),
            data,
        });
        let known = self.known(&mut writer, &matches.mask);
        let max = known.max();
        *known.priorities.entry(priority).or_default() += 1;
        let wide = known.subtable.wide(&entry.values);
        // First the tries: they let lookups skip the rule.
        for t in self.view.load(&ReadGuard::begin()).tracked.iter() {
            let len = known.subtable.prefixes[usize::from(t.field.index)];
            if len > 0 {
                t.insert(&wide, len);
            }
        }
        known.subtable.insert(entry.clone(), &wide);
        if max.is_none_or(|m| priority > m) {
            self.moved(&mut writer, &matches.mask, max);
        }
        entry
    }

    /// Makes all existing rules visible to lookups. It costs time per mask, but only after masks, or highest
    /// priorities of masks, have come or gone.
    pub fn publish(&self) {
        // A writer sees its own change. Acquire pairs with the Release in `publish_with`: if another writer
        // has published this change, the new view is visible here.
        if self.stale.load(Ordering::Acquire) {
            let writer = self.writer();
            let tracked = self.view.load(&ReadGuard::begin()).tracked.clone();
            self.publish_with(&writer, tracked);
        }
    }

    /// Updates the order of subtables: the highest priority of the rules with this mask was `before`, and has
    /// changed, or no rule is left.
    fn moved(&self, writer: &mut Writer<T>, mask: &Arc<MiniMask>, before: Option<i32>) {
        self.stale.store(true, Ordering::Relaxed);
        let Some(known) = writer.known.get(mask) else {
            return;
        };
        if let Some(max) = before {
            writer.turns.remove(&(Reverse(max), known.serial));
        }
        if let Some(max) = known.max() {
            let turn = (Reverse(max), known.serial);
            writer.turns.insert(turn, known.subtable.clone());
        } else {
            writer.known.remove(mask);
        }
    }

    /// The writers' record of this mask, made if there is none.
    fn known<'w>(&self, writer: &'w mut Writer<T>, mask: &Arc<MiniMask>) -> &'w mut KnownSubtable<T> {
        let made = &mut writer.made;
        writer.known.entry(mask.clone()).or_insert_with(|| {
            *made += 1;
            KnownSubtable {
                subtable: Arc::new(Subtable::new(mask.clone(), self.seed)),
                serial: *made,
                priorities: BTreeMap::new(),
            }
        })
    }

    /// Makes room for `n` more rules with this mask. If the rules do not come, the next [`Classifier::purge`]
    /// of any rule frees the room.
    pub fn reserve(&self, mask: &Arc<MiniMask>, n: usize) {
        self.known(&mut self.writer(), mask).subtable.reserve(n);
    }

    /// Makes a view of the writers' data.
    fn publish_with(&self, writer: &Writer<T>, tracked: Arc<[Tracked]>) {
        #[cfg(test)]
        crate::tests::VIEWS.set(crate::tests::VIEWS.get() + 1);
        let turns = writer.turns.iter();
        self.view.replace(Arc::new(View {
            subtables: turns.map(|((max, _), s)| (max.0, s.clone())).collect(),
            tracked,
        }));
        // Release: see `publish`.
        self.stale.store(false, Ordering::Release);
    }

    /// Hides a rule from `version` on. It stays linked until [`Classifier::purge`], so that lookups at
    /// earlier versions still see it. A rule that was added at the same version was never visible, and is
    /// unlinked at once. Returns `false` if the rule was removed before.
    pub fn remove(&self, matches: &MiniMatch, entry: &Arc<Entry<T>>, version: u64) -> bool {
        let mut writer = self.writer();
        if entry.removed.load(Ordering::Relaxed) != FOREVER {
            return false;
        }
        entry.removed.store(version, Ordering::Relaxed);
        if entry.added == version {
            self.unlink(&mut writer, &matches.mask, entry);
        } else if let Some((mask, _)) = writer.known.get_key_value(&matches.mask) {
            let mask = mask.clone();
            writer.garbage.push((mask, entry.clone()));
        }
        true
    }

    fn unlink(&self, writer: &mut Writer<T>, mask: &Arc<MiniMask>, e: &Arc<Entry<T>>) {
        let Some(known) = writer.known.get_mut(mask) else {
            return;
        };
        let max = known.max();
        known.unlink(e, &self.view.load(&ReadGuard::begin()).tracked);
        if known.max() != max {
            self.moved(writer, mask, max);
        }
    }

    /// Undoes a removal, as long as no lookup has used its version. A rule that was added at that version
    /// stays gone.
    pub fn restore(&self, entry: &Arc<Entry<T>>) {
        let mut writer = self.writer();
        if entry.removed.load(Ordering::Relaxed) == entry.added {
            return;
        }
        entry.removed.store(FOREVER, Ordering::Relaxed);
        // Removals are undone newest first, so it is near the end.
        if let Some(at) = writer.garbage.iter().rposition(|(_, e)| Arc::ptr_eq(e, entry)) {
            writer.garbage.remove(at);
        }
    }

    /// Unlinks rules that are invisible from `version` on, and empty subtables. A lookup that still runs at
    /// an earlier version may then miss them. So the caller announces the purge before the call, and readers
    /// check for an announcement after their lookups.
    ///
    /// In pieces: other writers, such as workers that learn, wait for [`PIECE`] rules at most. Returns how
    /// many rules were unlinked.
    pub fn purge(&self, version: u64) -> u64 {
        let mut waiting = std::mem::take(&mut self.writer().garbage);
        let mut unlinked = 0;
        if waiting.is_empty() {
            return unlinked;
        }
        while !waiting.is_empty() {
            let mut writer = self.writer();
            for (mask, e) in waiting.drain(waiting.len().saturating_sub(PIECE)..) {
                match e.removed.load(Ordering::Relaxed) {
                    // Restored meanwhile.
                    FOREVER => {}
                    removed if removed > version => writer.garbage.push((mask, e)),
                    _ => {
                        self.unlink(&mut writer, &mask, &e);
                        unlinked += 1;
                    }
                }
            }
        }
        self.publish();
        self.free();
        unlinked
    }

    /// Frees what [`Classifier::purge`] could not free because of readers. Costs nothing if there is nothing
    /// to free. Called now and then, when rules do not change.
    pub fn tidy(&self) {
        if self.untidy.swap(false, Ordering::Relaxed) {
            self.free();
        }
    }

    /// Frees memory that no reader uses any more.
    fn free(&self) {
        let (mut done, mut rules) = (true, 0);
        let mut writer = self.writer();
        writer.known.retain(|_, k| {
            done &= k.subtable.tidy();
            rules += k.subtable.len();
            !k.priorities.is_empty()
        });
        // Rebuilds tries that were given up, or that are much bigger than the remaining rules need.
        let tracked = self.view.load(&ReadGuard::begin()).tracked.clone();
        if rules <= MAX_RULES_AT_ONCE && tracked.iter().any(|t| t.nodes() > MAX_RULES_AT_ONCE * 8) {
            self.track(&writer, tracked.iter().map(|t| t.field));
        }
        drop((writer, tracked));
        done &= self.view.tidy();
        self.untidy.fetch_or(!done, Ordering::Relaxed);
    }

    /// Chooses the fields whose prefixes are tracked (the first four count; a field named twice counts once).
    pub fn set_prefixes(&self, fields: &[PrefixField]) {
        let writer = self.writer();
        let mut wanted: Vec<PrefixField> = Vec::new();
        for f in fields {
            if wanted.len() < MAX_TRACKED && !wanted.contains(f) {
                wanted.push(*f);
            }
        }
        let now = self.view.load(&ReadGuard::begin()).tracked.clone();
        if now.iter().map(|t| t.field).eq(wanted.iter().copied()) {
            return;
        }
        self.track(&writer, wanted.into_iter());
    }

    /// Tracks these fields, in new tries with the linked rules.
    fn track(&self, writer: &Writer<T>, fields: impl Iterator<Item = PrefixField>) {
        let tracked: Arc<[Tracked]> = fields.map(Tracked::new).collect();
        for k in writer.known.values() {
            k.subtable.for_each(&mut |c| {
                let wide = k.subtable.wide(&c.entry.values);
                for t in tracked.iter() {
                    let len = k.subtable.prefixes[usize::from(t.field.index)];
                    if len > 0 {
                        t.insert(&wide, len);
                    }
                }
            });
        }
        self.publish_with(writer, tracked);
    }

    /// The rule with exactly this match and priority that is visible at `version`, which must be published.
    /// Waits for no writer.
    pub fn find_exact(&self, version: u64, matches: &MiniMatch, priority: i32) -> Option<Arc<Entry<T>>> {
        // Every subtable that has rules is in the view.
        let reading = ReadGuard::begin();
        let view = self.view.load(&reading);
        let mut subtables = view.subtables.iter();
        let (_, subtable) = subtables.find(|(max, s)| *max >= priority && s.mask == matches.mask)?;
        subtable.find(version, &matches.values, priority)
    }

    /// Like [`Classifier::find_exact`], for writers: it finds unpublished rules too, and its cost does not
    /// depend on the number of masks.
    pub fn find_linked(&self, version: u64, matches: &MiniMatch, priority: i32) -> Option<Arc<Entry<T>>> {
        let known = self.writer().known.get(&matches.mask)?.subtable.clone();
        known.find(version, &matches.values, priority)
    }

    /// Calls `f` for every rule that is visible at `version`, in no order.
    pub fn for_each(&self, version: u64, f: impl FnMut(&Arc<Entry<T>>)) {
        self.for_each_within(version, &MiniMatch::default(), f);
    }

    /// Calls `f` for every rule that is visible at `version` and [within](MiniMatch::within) this match, in
    /// no order. Under a mask with more bits than the match, it looks at all rules. Under an equal mask it
    /// looks only at rules with equal values.
    pub fn for_each_within(&self, version: u64, loose: &MiniMatch, mut f: impl FnMut(&Arc<Entry<T>>)) {
        self.publish();
        for (_, subtable) in &self.view.load(&ReadGuard::begin()).subtables {
            subtable.for_each_within(loose, &mut |c| {
                if c.entry.visible(version)
                    && let Some(e) = c.take()
                {
                    f(&e);
                }
            });
        }
    }

    /// Whether some packet could match both this match and a rule of this priority that is visible at
    /// `version`. Under a mask with bits outside of the match, it looks at all rules.
    pub fn overlaps(&self, version: u64, matches: &MiniMatch, priority: i32) -> bool {
        self.publish();
        let reading = ReadGuard::begin();
        let mut subtables = self.view.load(&reading).subtables.iter();
        let is = |e: &Entry<T>| e.priority == priority && e.visible(version);
        subtables.any(|(max, s)| *max >= priority && s.overlaps(matches, &is))
    }

    /// The number of linked rules (removed ones that are not purged count).
    pub fn len(&self) -> usize {
        self.view
            .load(&ReadGuard::begin())
            .subtables
            .iter()
            .map(|(_, s)| s.len())
            .sum()
    }

    /// Whether no rule is linked.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of distinct masks.
    pub fn n_masks(&self) -> usize {
        self.view.load(&ReadGuard::begin()).subtables.len()
    }
}

impl<T> KnownSubtable<T> {
    /// The highest priority.
    fn max(&self) -> Option<i32> {
        self.priorities.keys().next_back().copied()
    }

    fn unlink(&mut self, e: &Arc<Entry<T>>, tracked: &[Tracked]) {
        let wide = self.subtable.wide(&e.values);
        if !self.subtable.remove(e, &wide) {
            return;
        }
        for t in tracked {
            let len = self.subtable.prefixes[usize::from(t.field.index)];
            if len > 0 {
                t.remove(&wide, len);
            }
        }
        if let Some(n) = self.priorities.get_mut(&e.priority) {
            *n -= 1;
            if *n == 0 {
                self.priorities.remove(&e.priority);
            }
        }
    }
}
