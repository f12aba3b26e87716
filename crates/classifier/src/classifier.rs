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

/// What lookups read. RcuCell when subtables have come, gone or changed their places.
struct View<T> {
    /// With the highest priority in each, falling.
    subtables: Vec<(i32, Arc<Subtable<T>>)>,
    tracked: Arc<[Tracked]>,
}

/// A subtable as writers know it.
struct Known<T> {
    subtable: Arc<Subtable<T>>,
    /// Grows from one that is made to the next.
    serial: u64,
    /// How many linked rules have each priority.
    priorities: BTreeMap<i32, usize>,
}

/// Where a subtable comes in lookups: the highest priority in it first, and of equal ones the one that was
/// made first. OpenFlow leaves open which of two rules of equal priority a packet meets that matches both;
/// Open vSwitch goes by this order, and there are those who count on it.
type Turn = (Reverse<i32>, u64);

/// What only writers use; they take turns under its lock.
struct Writer<T> {
    #[expect(clippy::disallowed_types, reason = "of writers")]
    known: HashMap<Arc<MiniMask>, Known<T>>,
    /// Those that have rules.
    turns: BTreeMap<Turn, Arc<Subtable<T>>>,
    /// Subtables made so far.
    made: u64,
    /// Removed entries that are still linked, with their masks.
    garbage: Vec<(Arc<MiniMask>, Arc<Entry<T>>)>,
}

/// Rules that are unlinked at a time.
const PIECE: usize = 256;

/// So many rules are put into new tries while other writers wait.
const FEW: usize = 1024;

/// Rules with priorities, wildcards and versions. See the crate's text.
pub struct Classifier<T> {
    view: RcuCell<View<T>>,
    /// Writers know more than the view.
    stale: AtomicBool,
    /// Something that has gone was read by somebody when it was to be freed.
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

    /// The visible rule of highest priority that matches `key`. Adds to `wc` every bit that the answer
    /// depends on, also when there is none.
    pub fn lookup<'a>(
        &'a self,
        reading: &'a ReadGuard,
        version: u64,
        key: &FlowKey,
        wc: &mut FlowMask,
    ) -> Option<&'a Entry<T>> {
        self.lookup_where(reading, version, key, wc, |_| true)
    }

    /// As [`Classifier::lookup`], among the rules that `accept` takes. It is asked about every matching rule
    /// whose priority is higher than that of the best one so far; what it answers must follow from the rule.
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
            // A rule that was added since this view was made is not visible at `version`: whoever published
            // that version did it after the view.
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

    /// The same match, sharing the mask of the rules that are there already: thousands of rules have few
    /// masks.
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

    /// Adds a rule, visible from `version` on; lookups are sure to find it after [`Classifier::publish`],
    /// which is to come before anybody looks at that version. Rules that are equal in match and priority may
    /// both be there as long as their versions do not meet; the caller removes the old one at the same
    /// version.
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
        // What lets lookups pass the rule by goes first.
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

    /// Lets lookups find all rules that are there. Costs as much as there are masks, but only after masks or
    /// highest priorities of masks have come or gone.
    pub fn publish(&self) {
        // Who has changed something sees that it has. Acquire pairs with the Release in `publish_with`: if
        // another writer has shown it, it is there to be seen.
        if self.stale.load(Ordering::Acquire) {
            let writer = self.writer();
            let tracked = self.view.load(&ReadGuard::begin()).tracked.clone();
            self.publish_with(&writer, tracked);
        }
    }

    /// The highest priority of the rules with this mask, `before`, has become another, or there are none any
    /// more.
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

    /// What writers know of the rules with this mask, of which there may be none so far.
    fn known<'w>(&self, writer: &'w mut Writer<T>, mask: &Arc<MiniMask>) -> &'w mut Known<T> {
        let made = &mut writer.made;
        writer.known.entry(mask.clone()).or_insert_with(|| {
            *made += 1;
            Known {
                subtable: Arc::new(Subtable::new(mask.clone(), self.seed)),
                serial: *made,
                priorities: BTreeMap::new(),
            }
        })
    }

    /// Makes room for `n` more rules with this mask. If they do not come, the room goes with the next
    /// [`Classifier::purge`] of any rule.
    pub fn reserve(&self, mask: &Arc<MiniMask>, n: usize) {
        self.known(&mut self.writer(), mask).subtable.reserve(n);
    }

    /// Makes a view of what writers know.
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
    /// earlier versions still see it; one that came with the same version was never to be seen, and goes at
    /// once. `false` if it was removed before.
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

    /// Takes a removal back, as long as no lookup has used the version that it was to take effect at. A rule
    /// that came with that version stays gone.
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
    /// runs at an earlier version may then miss them: the caller says before the call that it will happen,
    /// and readers look for that after their lookups.
    ///
    /// In pieces: other writers, who may be workers that learn, wait for [`PIECE`] of a million rules at
    /// most. Returns how many were unlinked.
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

    /// Frees what [`Classifier::purge`] left because somebody read it. Costs nothing when there is nothing;
    /// to be called now and then, when nobody changes rules.
    pub fn tidy(&self) {
        if self.untidy.swap(false, Ordering::Relaxed) {
            self.free();
        }
    }

    /// Gives memory back, as far as nobody reads it.
    fn free(&self) {
        let (mut done, mut rules) = (true, 0);
        let mut writer = self.writer();
        writer.known.retain(|_, k| {
            done &= k.subtable.tidy();
            rules += k.subtable.len();
            !k.priorities.is_empty()
        });
        // Tries that many more rules have made so big, or given up, begin anew.
        let tracked = self.view.load(&ReadGuard::begin()).tracked.clone();
        if rules <= FEW && tracked.iter().any(|t| t.nodes() > FEW * 8) {
            self.track(&writer, tracked.iter().map(|t| t.field));
        }
        drop((writer, tracked));
        done &= self.view.tidy();
        self.untidy.fetch_or(!done, Ordering::Relaxed);
    }

    /// Chooses the fields whose prefixes are tracked (the first four count; a field named twice counts
    /// once).
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

    /// Tracks these fields, in tries that are as big as the rules that are there need.
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

    /// The rule with exactly this match and priority that is visible at `version`, one that was published.
    /// Waits for no writer.
    pub fn find_exact(&self, version: u64, matches: &MiniMatch, priority: i32) -> Option<Arc<Entry<T>>> {
        // Every subtable that has rules is in the view.
        let reading = ReadGuard::begin();
        let view = self.view.load(&reading);
        let mut subtables = view.subtables.iter();
        let (_, subtable) = subtables.find(|(max, s)| *max >= priority && s.mask == matches.mask)?;
        subtable.find(version, &matches.values, priority)
    }

    /// As [`Classifier::find_exact`], for writers: whether published or not, and however many masks there
    /// are.
    pub fn find_linked(&self, version: u64, matches: &MiniMatch, priority: i32) -> Option<Arc<Entry<T>>> {
        let known = self.writer().known.get(&matches.mask)?.subtable.clone();
        known.find(version, &matches.values, priority)
    }

    /// Calls `f` for every rule that is visible at `version`, in no order.
    pub fn for_each(&self, version: u64, f: impl FnMut(&Arc<Entry<T>>)) {
        self.for_each_within(version, &MiniMatch::default(), f);
    }

    /// Calls `f` for every rule that is visible at `version` and [within](MiniMatch::within) this match, in
    /// no order. Those of a mask are all looked at, if it asks for more than the match does; not if it asks
    /// for the same, or for less.
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

    /// Whether some packet could match both this and a rule of this priority that is visible at `version`.
    /// Those of a mask that asks for something that the match does not ask for are all looked at.
    pub fn overlaps(&self, version: u64, matches: &MiniMatch, priority: i32) -> bool {
        self.publish();
        let reading = ReadGuard::begin();
        let mut subtables = self.view.load(&reading).subtables.iter();
        let is = |e: &Entry<T>| e.priority == priority && e.visible(version);
        subtables.any(|(max, s)| *max >= priority && s.overlaps(matches, &is))
    }

    /// Number of linked rules (removed ones that are not purged count).
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

    /// Number of distinct masks.
    pub fn n_masks(&self) -> usize {
        self.view.load(&ReadGuard::begin()).subtables.len()
    }
}

impl<T> Known<T> {
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
