//! What a translation said, shared by all entries for which it said the same.
//!
//! A hundred thousand flows of one rule have one list of actions, one program, one list of dependencies and of creditors. So an entry
//! is a key, counters and the number of a [`Verdict`]; a change is checked once per verdict, not per entry, and a new flow
//! whose verdict is there already compiles nothing.
//!
//! **Validity.** `validated` is a value of [`Generations::any`] that was read before the dependencies were found to hold. Worker
//! and sweeper both store it; a late store of an old value only causes another check. Where dependencies have moved, the log of what changed
//! ([`crate::changes`]) may say that none of it is about the verdict's packets: then it goes on from there. Otherwise it is stale for
//! ever: its entries are looked at, and translated again, one by one, each into whatever verdict comes out.
//!
//! Numbers of verdicts are the worker's; the sweeper learns them through notes, in order.

use crate::action::Action;
use crate::bodies::Bodies;
use crate::changes::{Known, Override};
use crate::compact::{CompactKey, CompactMask};
use crate::hash::Mixer;
use crate::program::Program;
use crate::translate::{Credit, Dep, Generations, Translation};
use arrayvec::ArrayVec;
use hashbrown::HashTable;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Dependencies that may move at once without a new translation.
const MAX_MOVED: usize = 64;

/// Actions with their program.
#[derive(Debug, PartialEq)]
pub(crate) struct Body {
    pub(crate) actions: Arc<[Action]>,
    pub(crate) program: Program,
}

impl Body {
    /// Compiles a list of actions.
    pub(crate) fn of(actions: &[Action]) -> Arc<Self> {
        Arc::new(Self {
            program: Program::compile(actions),
            actions: actions.iter().cloned().collect(),
        })
    }
}

/// A dependency; its generation moves on when what changed has nothing to do with the verdict's packets.
pub(crate) struct HeldDep {
    slot: u16,
    generation: AtomicU64,
}

impl HeldDep {
    fn now(&self) -> Dep {
        Dep {
            slot: self.slot,
            generation: self.generation.load(Relaxed),
        }
    }
}

/// A translation's answer without its mask.
///
/// Only the worker that holds it moves its generations on, and knows for which packets that holds; the sweeper reads them.
pub(crate) struct Verdict {
    pub(crate) body: Arc<Body>,
    deps: Box<[HeldDep]>,
    overrides: Box<[Override]>,
    pub(crate) credits: Box<[Arc<dyn Credit>]>,
    validated: AtomicU64,
    /// Its generations are not those that it was made with.
    moved: AtomicBool,
}

impl std::fmt::Debug for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verdict")
            .field("body", &self.body)
            .field("deps", &self.deps.iter().map(HeldDep::now).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

pub(crate) fn same_credits(a: &[Arc<dyn Credit>], b: &[Arc<dyn Credit>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}

impl Verdict {
    /// Takes a translation's answer, made after `any` was read; `body` is its actions compiled.
    fn new(t: &mut Translation, body: Arc<Body>, any: u64) -> Self {
        Self {
            body,
            deps: t
                .deps
                .drain(..)
                .map(|d| HeldDep {
                    slot: d.slot,
                    generation: d.generation.into(),
                })
                .collect(),
            overrides: t.overrides.drain(..).collect(),
            moved: AtomicBool::new(false),
            credits: t.credits.take(),
            validated: AtomicU64::new(any),
        }
    }
    /// As [`Verdict::new`], of a translation whose actions are those of `body`.
    pub(crate) fn renewed(t: &mut Translation, body: Arc<Body>, any: u64) -> Arc<Self> {
        Arc::new(Self::new(t, body, any))
    }
    /// Whether it may be used as far as generation `any` is known.
    #[inline]
    pub(crate) fn valid_at(&self, any: u64) -> bool {
        self.validated.load(Relaxed) == any
    }
    /// Looks at the dependencies; if all hold, remembers that they did at `any` (read before this call).
    pub(crate) fn recheck(&self, any: u64, generations: &Generations) -> bool {
        let hold = self.deps.iter().all(|d| generations.read(d.slot) == d.now());
        if hold {
            self.validated.store(any, Relaxed);
        }
        hold
    }
    /// Whether what has changed since has nothing to do with packets of which this is `known`. With `keep`, all of the verdict's packets
    /// are such (as the worker that holds it says), and it goes on from the generations of now; `any` was read before this call.
    pub(crate) fn passes_by(
        &self,
        known: &mut Known,
        mut patience: usize,
        keep: Option<u64>,
        generations: &Generations,
    ) -> bool {
        let mut moved: ArrayVec<(&HeldDep, u64), MAX_MOVED> = ArrayVec::new();
        let mut overrides = self.overrides.iter().peekable();
        for (i, d) in (0_u16..).zip(&self.deps) {
            while let Some(o) = overrides.next_if(|o| o.from <= i) {
                known.apply(o);
            }
            let (old, now) = (d.now().generation, generations.read(d.slot).generation);
            if old == now {
                continue;
            }
            if !generations.passes_by(d.slot, old, now, known, &mut patience)
                || moved.try_push((d, now)).is_err()
            {
                return false;
            }
        }
        if let Some(any) = keep {
            self.moved.store(true, Relaxed);
            for (d, now) in moved {
                d.generation.store(now, Relaxed);
            }
            self.validated.store(any, Relaxed);
        }
        true
    }
    /// What it depends on.
    pub(crate) fn deps(&self) -> impl ExactSizeIterator<Item = Dep> + Clone {
        self.deps.iter().map(HeldDep::now)
    }
    /// What lookups saw that is not what the packet brought.
    pub(crate) fn overrides(&self) -> &[Override] {
        &self.overrides
    }
    /// Whether its generations have been moved on since it was made.
    pub(crate) fn moved(&self) -> bool {
        self.moved.load(Relaxed)
    }
    /// The same was said again, by a translation made after `any` was read.
    pub(crate) fn confirm(&self, any: u64) {
        self.validated.store(any, Relaxed);
    }
    /// Whether `t` says the same, dependencies and creditors included.
    pub(crate) fn says(&self, t: &Translation) -> bool {
        self.depends_on(t.deps.iter().copied())
            && *self.overrides == *t.overrides
            && same_credits(&self.credits, &t.credits)
            && *self.body.actions == *t.actions
    }
    fn depends_on(&self, deps: impl ExactSizeIterator<Item = Dep>) -> bool {
        self.deps.len() == deps.len() && self.deps.iter().zip(deps).all(|(a, b)| a.now() == b)
    }
    fn same(&self, other: &Self) -> bool {
        self.depends_on(other.deps.iter().map(HeldDep::now))
            && *self.overrides == *other.overrides
            && same_credits(&self.credits, &other.credits)
            && (Arc::ptr_eq(&self.body, &other.body) || self.body == other.body)
    }
}

/// A short hash of what a translation says.
pub(crate) fn fingerprint(
    actions: &[Action],
    deps: impl Iterator<Item = Dep>,
    credits: &[Arc<dyn Credit>],
) -> u64 {
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

#[derive(Debug)]
struct Held {
    verdict: Arc<Verdict>,
    /// Its program.
    body: u32,
    /// Entries that refer to it.
    users: u32,
    fingerprint: u64,
    /// Slot of the first of them.
    first: u32,
    scope: Scope,
}

/// What is known of the packets of a verdict's entries together.
#[derive(Debug)]
enum Scope {
    /// There is one entry at most, which says it.
    One,
    /// All are entries under the same mask, and agree with this key in these bits of it.
    Agree(Box<Agreement>),
    /// Nothing.
    Any,
}

#[derive(Debug)]
struct Agreement {
    tuple: u32,
    key: CompactKey,
    bits: CompactMask,
}

/// An entry that comes to a verdict, or is already there.
#[derive(Clone, Copy)]
pub(crate) struct Member {
    pub(crate) slot: u32,
    /// Its key and its mask, if it is an ordinary packet's.
    pub(crate) key: Option<(CompactKey, u32)>,
}

/// A worker's verdicts, by number.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    held: Vec<Option<Held>>,
    bodies: Bodies,
    free: Vec<u32>,
    index: HashTable<u32>,
    /// The last one that was said.
    last: u32,
    /// Without users, perhaps still to be run in this burst; the last ones go first.
    unused: Vec<u32>,
}

impl Verdicts {
    #[inline]
    pub(crate) fn get(&self, n: u32) -> Option<&Arc<Verdict>> {
        Some(&self.held.get(n as usize)?.as_ref()?.verdict)
    }
    /// The number of what `t` says; the flag says that it is new. Takes out of `t` what it keeps. `any` was read before the translation.
    pub(crate) fn intern(&mut self, t: &mut Translation, any: u64) -> (u32, bool) {
        // New flows come by thousands, and mostly one answer is for all of them.
        if let Some(v) = self.get(self.last).filter(|v| v.says(t)) {
            v.confirm(any);
            return (self.last, false);
        }
        let print = fingerprint(&t.actions, t.deps.iter().copied(), &t.credits);
        let held = &self.held;
        let same = |n: &u32| {
            held[*n as usize]
                .as_ref()
                .is_some_and(|h| h.fingerprint == print && h.verdict.says(t))
        };
        if let Some(&n) = self.index.find(print, same) {
            self.held[n as usize]
                .as_ref()
                .expect("what is in the index is held")
                .verdict
                .confirm(any);
            self.last = n;
            return (n, false);
        }
        let n = self.bodies.retain(&t.actions, || Body::of(&t.actions));
        let body = Arc::clone(self.bodies.get(n).expect("it was given just now"));
        let verdict = Arc::new(Verdict::new(t, body, any));
        self.last = self.hold(verdict, n, print);
        (self.last, true)
    }
    /// The program of this number.
    #[inline]
    pub(crate) fn body(&self, n: u32) -> Option<&Arc<Body>> {
        self.bodies.get(n)
    }
    /// The number of a verdict's program.
    pub(crate) fn body_of(&self, n: u32) -> Option<u32> {
        Some(self.held.get(n as usize)?.as_ref()?.body)
    }
    /// The number of a verdict that somebody else made.
    pub(crate) fn adopt(&mut self, verdict: &Arc<Verdict>) -> (u32, bool) {
        let print = fingerprint(
            &verdict.body.actions,
            verdict.deps.iter().map(HeldDep::now),
            &verdict.credits,
        );
        let held = &self.held;
        let same = |n: &u32| {
            held[*n as usize]
                .as_ref()
                .is_some_and(|h| h.fingerprint == print && h.verdict.same(verdict))
        };
        match self.index.find(print, same) {
            Some(&n) => (n, false),
            None => {
                let body = self
                    .bodies
                    .retain(&verdict.body.actions, || Arc::clone(&verdict.body));
                (self.hold(Arc::clone(verdict), body, print), true)
            }
        }
    }
    fn hold(&mut self, verdict: Arc<Verdict>, body: u32, fingerprint: u64) -> u32 {
        let held = Some(Held {
            verdict,
            body,
            users: 0,
            fingerprint,
            first: 0,
            scope: Scope::One,
        });
        let n = match self.free.pop() {
            Some(n) => {
                self.held[n as usize] = held;
                n
            }
            None => {
                self.held.push(held);
                u32::try_from(self.held.len() - 1)
                    .expect("each is used by an entry, of which there are fewer")
            }
        };
        let all = &self.held;
        self.index.insert_unique(fingerprint, n, |n| {
            all[*n as usize].as_ref().map_or(0, |h| h.fingerprint)
        });
        // Until somebody uses it.
        self.unused.push(n);
        n
    }
    /// How many entries refer to it.
    pub(crate) fn users(&self, n: u32) -> u32 {
        self.held
            .get(n as usize)
            .and_then(Option::as_ref)
            .map_or(0, |h| h.users)
    }
    /// The slot of the only entry that refers to it, if there is one.
    pub(crate) fn only(&self, n: u32) -> Option<u32> {
        let h = self.held.get(n as usize)?.as_ref()?;
        (h.users == 1 && matches!(h.scope, Scope::One)).then_some(h.first)
    }
    /// An entry refers to it from now on. `only`: the one that does so already, if it is the only one. `compact` gives masks by number.
    pub(crate) fn retain<'a>(
        &mut self,
        n: u32,
        member: Member,
        only: Option<Member>,
        compact: impl Fn(u32) -> Option<&'a CompactMask>,
    ) {
        let Some(Some(h)) = self.held.get_mut(n as usize) else {
            return;
        };
        h.users += 1;
        if h.users == 1 {
            (h.first, h.scope) = (member.slot, Scope::One);
            return;
        }
        let Some((key, tuple)) = member.key else {
            h.scope = Scope::Any;
            return;
        };
        if matches!(h.scope, Scope::One) {
            h.scope = match only.and_then(|o| o.key) {
                Some((key, t))
                    if t == tuple
                        && let Some(bits) = compact(t) =>
                {
                    Scope::Agree(Box::new(Agreement {
                        tuple,
                        key,
                        bits: *bits,
                    }))
                }
                _ => Scope::Any,
            };
        }
        match &mut h.scope {
            Scope::Agree(a) if a.tuple == tuple => a.bits = a.bits.agreeing(&a.key, &key),
            Scope::Agree(_) => h.scope = Scope::Any,
            Scope::One | Scope::Any => {}
        }
    }
    /// What all entries of a verdict have in common: a key, the bits in which they agree with it, their mask. `None`: nothing, or there
    /// is but one.
    pub(crate) fn agreement(&self, n: u32) -> Option<(&CompactKey, &CompactMask, u32)> {
        match &self.held.get(n as usize)?.as_ref()?.scope {
            Scope::Agree(a) => Some((&a.key, &a.bits, a.tuple)),
            Scope::One | Scope::Any => None,
        }
    }
    /// An entry refers to it no more. It may still be run until the next [`Verdicts::reap`].
    pub(crate) fn release(&mut self, n: u32) {
        if let Some(Some(h)) = self.held.get_mut(n as usize) {
            h.users -= 1;
            if h.users == 0 {
                self.unused.push(n);
            }
        }
    }
    /// Between bursts: drops those without users, at most so many, telling of each first; `false` from `told`: no more for now.
    pub(crate) fn reap(&mut self, most: usize, mut told: impl FnMut(u32) -> bool) {
        for _ in 0..most {
            let Some(n) = self.unused.pop() else { break };
            let Some(h) = self.held[n as usize].as_ref().filter(|h| h.users == 0) else {
                // In use again, or listed twice.
                continue;
            };
            if !told(n) {
                self.unused.push(n);
                break;
            }
            if let Ok(found) = self.index.find_entry(h.fingerprint, |m| *m == n) {
                found.remove();
            }
            self.bodies.release(h.body);
            self.held[n as usize] = None;
            self.free.push(n);
        }
        if self.free.len() == self.held.len() && self.held.capacity() > 1024 {
            *self = Self::default();
        }
    }
}
