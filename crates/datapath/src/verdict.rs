//! What a translation said, shared by all entries for which it said the same.
//!
//! A hundred thousand flows of one rule have one list of actions, one program, one list of dependencies and of creditors. So an entry
//! is a key, counters and the number of a [`Verdict`]; a change is checked once per verdict, not per entry, and a new flow
//! whose verdict is there already compiles nothing.
//!
//! **Validity.** `validated` is a value of [`Generations::any`] that was read before the dependencies were found to hold. Worker
//! and sweeper both store it; a late store of an old value only causes another check. A verdict whose dependencies have moved is
//! stale for ever: its entries are translated again one by one, each into whatever verdict comes out.
//!
//! Numbers of verdicts are the worker's; the sweeper learns them through notes, in order.

use crate::action::Action;
use crate::program::Program;
use crate::translate::{Credit, Dep, Generations, Translation};
use hashbrown::HashTable;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Actions with their program.
#[derive(Debug, PartialEq)]
pub(crate) struct Body {
    pub(crate) actions: Arc<[Action]>,
    pub(crate) program: Program,
}

/// A translation's answer without its mask.
pub(crate) struct Verdict {
    pub(crate) body: Arc<Body>,
    pub(crate) deps: Box<[Dep]>,
    pub(crate) credits: Box<[Arc<dyn Credit>]>,
    validated: AtomicU64,
}

impl std::fmt::Debug for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verdict")
            .field("body", &self.body)
            .field("deps", &self.deps)
            .finish_non_exhaustive()
    }
}

fn same_credits(a: &[Arc<dyn Credit>], b: &[Arc<dyn Credit>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}

impl Verdict {
    /// Takes a translation's answer, made after `any` was read; `body` is its actions compiled.
    fn new(t: &mut Translation, body: Arc<Body>, any: u64) -> Self {
        Self {
            body,
            deps: t.deps.drain(..).collect(),
            credits: t.credits.drain(..).collect(),
            validated: AtomicU64::new(any),
        }
    }
    /// As [`Verdict::new`], of a translation whose actions are those of `body`.
    pub(crate) fn renewed(t: &mut Translation, body: &Arc<Body>, any: u64) -> Arc<Self> {
        Arc::new(Self::new(t, Arc::clone(body), any))
    }
    /// Whether it may be used as far as generation `any` is known.
    #[inline]
    pub(crate) fn valid_at(&self, any: u64) -> bool {
        self.validated.load(Relaxed) == any
    }
    /// Looks at the dependencies; if all hold, remembers that they did at `any` (read before this call).
    pub(crate) fn recheck(&self, any: u64, generations: &Generations) -> bool {
        let hold = generations.hold(&self.deps);
        if hold {
            self.validated.store(any, Relaxed);
        }
        hold
    }
    /// The same was said again, by a translation made after `any` was read.
    pub(crate) fn confirm(&self, any: u64) {
        self.validated.store(any, Relaxed);
    }
    /// Whether `t` says the same, dependencies and creditors included.
    pub(crate) fn says(&self, t: &Translation) -> bool {
        *self.deps == *t.deps && same_credits(&self.credits, &t.credits) && *self.body.actions == *t.actions
    }
    fn same(&self, other: &Self) -> bool {
        *self.deps == *other.deps
            && same_credits(&self.credits, &other.credits)
            && (Arc::ptr_eq(&self.body, &other.body) || self.body == other.body)
    }
}

/// A short hash of what a translation says.
pub(crate) fn fingerprint(actions: &[Action], deps: &[Dep], credits: &[Arc<dyn Credit>]) -> u64 {
    let mut h = Mixer(actions.len() as u64);
    actions.hash(&mut h);
    for d in deps {
        h.write_u64(d.generation ^ u64::from(d.slot) << 48);
    }
    for c in credits {
        h.write_usize(Arc::as_ptr(c).cast::<()>().addr());
    }
    h.finish()
}

/// Not keyed: nobody outside chooses what is hashed.
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64((*b).into());
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }
    fn write_u16(&mut self, n: u16) {
        self.write_u64(n.into());
    }
    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
}

#[derive(Debug)]
struct Held {
    verdict: Arc<Verdict>,
    /// Entries that refer to it.
    users: u32,
    fingerprint: u64,
}

/// A worker's verdicts, by number.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    held: Vec<Option<Held>>,
    free: Vec<u32>,
    index: HashTable<u32>,
    /// Without users, perhaps still to be run in this burst.
    unused: Vec<u32>,
}

impl Verdicts {
    #[inline]
    pub(crate) fn get(&self, n: u32) -> Option<&Arc<Verdict>> {
        Some(&self.held.get(n as usize)?.as_ref()?.verdict)
    }
    /// The number of what `t` says; the flag says that it is new. Takes out of `t` what it keeps. `any` was read before the translation.
    pub(crate) fn intern(&mut self, t: &mut Translation, any: u64) -> (u32, bool) {
        let print = fingerprint(&t.actions, &t.deps, &t.credits);
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
            return (n, false);
        }
        let body = Body {
            program: Program::compile(&t.actions),
            actions: t.actions.drain(..).collect(),
        };
        let verdict = Arc::new(Verdict::new(t, Arc::new(body), any));
        (self.hold(verdict, print), true)
    }
    /// The number of a verdict that somebody else made.
    pub(crate) fn adopt(&mut self, verdict: &Arc<Verdict>) -> (u32, bool) {
        let print = fingerprint(&verdict.body.actions, &verdict.deps, &verdict.credits);
        let held = &self.held;
        let same = |n: &u32| {
            held[*n as usize]
                .as_ref()
                .is_some_and(|h| h.fingerprint == print && h.verdict.same(verdict))
        };
        match self.index.find(print, same) {
            Some(&n) => (n, false),
            None => (self.hold(Arc::clone(verdict), print), true),
        }
    }
    fn hold(&mut self, verdict: Arc<Verdict>, fingerprint: u64) -> u32 {
        let held = Some(Held {
            verdict,
            users: 0,
            fingerprint,
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
    /// An entry refers to it from now on.
    pub(crate) fn retain(&mut self, n: u32) {
        if let Some(Some(h)) = self.held.get_mut(n as usize) {
            h.users += 1;
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
    /// Between bursts: drops those without users, telling of each first; `false` from `told` keeps it until the next time.
    pub(crate) fn reap(&mut self, mut told: impl FnMut(u32) -> bool) {
        let mut i = 0;
        while let Some(&n) = self.unused.get(i) {
            match &self.held[n as usize] {
                Some(h) if h.users == 0 => {
                    if !told(n) {
                        i += 1;
                        continue;
                    }
                    if let Ok(found) = self.index.find_entry(h.fingerprint, |m| *m == n) {
                        found.remove();
                    }
                    self.held[n as usize] = None;
                    self.free.push(n);
                }
                // In use again, or listed twice.
                _ => {}
            }
            self.unused.swap_remove(i);
        }
        if self.free.len() == self.held.len() && self.held.capacity() > 1024 {
            *self = Self::default();
        }
    }
}
