//! Cached translations: the result of a translation, shared by all entries with equal results.
//!
//! A hundred thousand flows of one rule have one list of actions, one program, one list of dependencies and
//! one of creditors. So an entry is a key, counters and the number of a [`CachedTranslation`]. A new flow
//! whose cached translation exists already compiles nothing.
//!
//! **Validity.** `validated` is a value of [`Generations::any`] that was read before the dependencies were
//! found to hold. Worker and revalidator both store it; a late store of an old value only causes another
//! check. When a dependency has moved, the cached translation alone cannot prove its entries valid. Then each
//! entry is compared with the changes ([`crate::validity`]).
//!
//! The worker numbers cached translations. The revalidator learns the numbers through events, in order.

use crate::hash::Mixer;
use crate::numbered::{Interned, Numbered};
use crate::program_table::{CompiledActions, Program, ProgramId, ProgramTable};
use heddle_datapath_api::changes::KnownBits;
use heddle_datapath_api::{Credit, Dep, Generations, Override, Translation};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Maximum number of comparisons with changed rules. Beyond it a new translation is cheaper.
const COMPARISONS: usize = 64;

/// The result of a translation without its mask.
pub struct CachedTranslation<P: Program> {
    /// Actions and their program.
    pub compiled: Arc<CompiledActions<P>>,
    deps: Box<[Dep]>,
    overrides: Box<[Override]>,
    /// The rules, tables and others that are credited with the packets.
    pub credits: Box<[Arc<dyn Credit>]>,
    validated: AtomicU64,
}

impl<P: Program> std::fmt::Debug for CachedTranslation<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedTranslation")
            .field("compiled", &self.compiled)
            .field("deps", &self.deps)
            .finish_non_exhaustive()
    }
}

/// Whether both lists have the same creditors in the same order.
pub fn same_credits(a: &[Arc<dyn Credit>], b: &[Arc<dyn Credit>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}

impl<P: Program> CachedTranslation<P> {
    /// Takes the result of a translation, made after `any` was read; `compiled` is its compiled actions.
    fn new(t: &mut Translation, compiled: Arc<CompiledActions<P>>, any: u64) -> Self {
        Self {
            compiled,
            deps: t.deps.drain(..).collect(),
            overrides: t.overrides.drain(..).collect(),
            credits: t.credits.take(),
            validated: AtomicU64::new(any),
        }
    }
    /// Like [`CachedTranslation::new`], for a translation with the same actions as `compiled`.
    pub fn renewed(t: &mut Translation, compiled: Arc<CompiledActions<P>>, any: u64) -> Arc<Self> {
        Arc::new(Self::new(t, compiled, any))
    }
    /// Whether it is known to be valid at generation `any`.
    #[inline]
    pub fn valid_at(&self, any: u64) -> bool {
        self.validated.load(Relaxed) == any
    }
    /// Checks the dependencies. If all hold, remembers that they did at `any` (read before this call).
    pub fn recheck(&self, any: u64, generations: &Generations) -> bool {
        let hold = generations.hold(&self.deps);
        if hold {
            self.validated.store(any, Relaxed);
        }
        hold
    }
    /// Whether no change since the translation concerns the packets that `known` describes. `false` also if
    /// finding out would take too many comparisons.
    pub fn outlasts(&self, known: KnownBits, generations: &Generations) -> bool {
        generations.outlasts(&self.deps, &self.overrides, known, COMPARISONS)
    }
    /// The generations that the result depends on.
    pub fn deps(&self) -> &[Dep] {
        &self.deps
    }
    /// The words that lookups saw other than the packet brought them.
    pub(crate) fn overrides(&self) -> &[Override] {
        &self.overrides
    }
    /// A translation made after `any` was read had the same result.
    pub fn confirm(&self, any: u64) {
        self.validated.store(any, Relaxed);
    }
    /// Whether `t` has the same result, dependencies and creditors included.
    pub fn is_result_of(&self, t: &Translation) -> bool {
        *self.deps == *t.deps
            && *self.overrides == *t.overrides
            && same_credits(&self.credits, &t.credits)
            && *self.compiled.actions == *t.actions
    }
    fn same(&self, other: &Self) -> bool {
        self.deps == other.deps
            && self.overrides == other.overrides
            && same_credits(&self.credits, &other.credits)
            && (Arc::ptr_eq(&self.compiled, &other.compiled) || self.compiled == other.compiled)
    }
}

/// A short hash of a translation's actions, dependencies and creditors.
pub fn fingerprint(actions: &[impl Hash], deps: &[Dep], credits: &[Arc<dyn Credit>]) -> u64 {
    let mut h = Mixer::new(actions.len() as u64);
    actions.hash(&mut h);
    for d in deps {
        h.write_u64(d.generation);
        h.write_u16(d.slot);
    }
    for c in credits {
        h.write_usize(Arc::as_ptr(c).cast::<()>().addr());
    }
    h.finish()
}

/// A worker's cached translations, by number.
#[derive(Debug)]
pub(crate) struct CachedTranslations<P: Program> {
    /// With the number of their program. Their users are entries.
    all: Numbered<(Arc<CachedTranslation<P>>, ProgramId)>,
    programs: ProgramTable<P>,
    /// The number that [`CachedTranslations::intern`] returned last.
    last: u32,
    /// Numbers without users, which this burst may still run. They are freed from the end.
    unused: Vec<u32>,
}

impl<P: Program> Default for CachedTranslations<P> {
    fn default() -> Self {
        Self {
            all: Numbered::default(),
            programs: ProgramTable::default(),
            last: 0,
            unused: Vec::new(),
        }
    }
}

impl<P: Program> CachedTranslations<P> {
    #[inline]
    pub(crate) fn get(&self, n: u32) -> Option<&Arc<CachedTranslation<P>>> {
        self.all.get(n).map(|(cached, _)| cached)
    }
    /// The number of the result of `t`. Takes all but the actions out of `t` if it is new. `any` was read
    /// before the translation.
    pub(crate) fn intern(&mut self, t: &mut Translation, any: u64) -> Interned {
        // New flows often come by thousands with one result.
        if let Some(v) = self.get(self.last).filter(|v| v.is_result_of(t)) {
            v.confirm(any);
            return Interned::known(self.last);
        }
        let print = fingerprint(&t.actions, &t.deps, &t.credits);
        if let Some(n) = self.all.find(print, |(v, _)| v.is_result_of(t)) {
            if let Some(v) = self.get(n) {
                v.confirm(any);
            }
            self.last = n;
            return Interned::known(n);
        }
        let n = self
            .programs
            .retain(&t.actions, || CompiledActions::of(&t.actions));
        let compiled = Arc::clone(self.programs.get(n).expect("it was given just now"));
        let cached = Arc::new(CachedTranslation::new(t, compiled, any));
        self.last = self.hold(cached, n, print);
        Interned::new(self.last)
    }
    /// The actions of this number, with their program.
    #[inline]
    pub(crate) fn program(&self, n: ProgramId) -> Option<&Arc<CompiledActions<P>>> {
        self.programs.get(n)
    }
    /// The number of a cached translation's program.
    pub(crate) fn program_of(&self, translation: u32) -> Option<ProgramId> {
        self.all.get(translation).map(|(_, program)| *program)
    }
    /// The number of a cached translation that the revalidator made.
    pub(crate) fn adopt(&mut self, cached: &Arc<CachedTranslation<P>>) -> Interned {
        let print = fingerprint(&cached.compiled.actions, &cached.deps, &cached.credits);
        match self.all.find(print, |(v, _)| v.same(cached)) {
            Some(n) => Interned::known(n),
            None => {
                let program = self
                    .programs
                    .retain(&cached.compiled.actions, || Arc::clone(&cached.compiled));
                Interned::new(self.hold(Arc::clone(cached), program, print))
            }
        }
    }
    fn hold(&mut self, cached: Arc<CachedTranslation<P>>, program: ProgramId, fingerprint: u64) -> u32 {
        let n = self.all.insert(fingerprint, (cached, program));
        // Unused until the caller retains it.
        self.unused.push(n);
        n
    }
    /// Counts one more entry that refers to it.
    pub(crate) fn retain(&mut self, n: u32) {
        self.all.retain(n);
    }
    /// Counts one entry less. The program may still run until the next [`CachedTranslations::free_unused`].
    pub(crate) fn release(&mut self, n: u32) {
        if self.all.release(n) {
            self.unused.push(n);
        }
    }
    /// Drops up to `most` unused cached translations between bursts. `report` reports each to the revalidator
    /// first; if it returns `false`, the rest waits.
    pub(crate) fn free_unused(&mut self, most: usize, mut report: impl FnMut(u32) -> bool) {
        for _ in 0..most {
            let Some(n) = self.unused.pop() else { break };
            if self.all.users(n) != Some(0) {
                // In use again, or listed twice.
                continue;
            }
            if !report(n) {
                self.unused.push(n);
                break;
            }
            if let Some((_, program)) = self.all.remove(n) {
                self.programs.release(program);
            }
        }
        if self.all.is_spacious() {
            *self = Self::default();
        }
    }
}
