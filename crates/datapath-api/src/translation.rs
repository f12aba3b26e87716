//! The result of a translation: the actions, the bits of the key that they depend on, and the dependencies
//! that keep them valid.

use crate::action::Action;
use crate::changes::{KnownBits, Override};
use crate::generations::{Dep, Generations};
use heddle_flow::{FlowKey, FlowMask};
use std::ops::Deref;
use std::sync::Arc;

/// A creditor of the packets that a cached entry forwarded: a rule, a table, a MAC entry or a patch port.
/// Called off the fast path with the counts since the last call.
pub trait Credit: Send + Sync {
    /// Adds `packets` and `bytes`, last seen at `used_ms`, with the union of their TCP flags.
    fn credit(&self, packets: u64, bytes: u64, used_ms: u64, tcp_flags: u16);
}

/// The counters that are credited with the packets of a translation. Many translations in a row mostly credit
/// the same ones. When it is filled again, a counter that keeps its index costs no reference count.
#[derive(Clone, Default)]
pub struct Credits {
    held: Vec<Arc<dyn Credit>>,
    /// Elements behind are of the last translation.
    len: usize,
}

impl Credits {
    /// Appends a creditor.
    pub fn push(&mut self, who: Arc<dyn Credit>) {
        self.put(self.len, who);
        self.len += 1;
    }
    /// Replaces creditor number `at`.
    pub fn put(&mut self, at: usize, who: Arc<dyn Credit>) {
        match self.held.get_mut(at) {
            Some(place) => *place = who,
            None => self.held.push(who),
        }
    }
    /// Appends a creditor that other lists may share. `counted` makes a counted reference, and is called only
    /// if the list does not hold one already.
    pub fn push_shared<T: Credit + 'static>(&mut self, who: &T, counted: impl FnOnce() -> Arc<T>) {
        let there = self.held.get(self.len);
        if there.is_some_and(|held| std::ptr::addr_eq(Arc::as_ptr(held), who)) {
            self.len += 1;
        } else {
            self.push(counted());
        }
    }
    /// Keeps `len` at most.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
    /// Drops the creditors of the previous translation: this one is complete.
    pub fn settle(&mut self) {
        self.held.truncate(self.len);
    }
    /// Gives them away.
    pub fn take(&mut self) -> Box<[Arc<dyn Credit>]> {
        self.settle();
        self.len = 0;
        self.held.drain(..).collect()
    }
    fn clear(&mut self) {
        self.len = 0;
    }
}

impl Deref for Credits {
    type Target = [Arc<dyn Credit>];
    fn deref(&self) -> &Self::Target {
        &self.held[..self.len]
    }
}

/// The result of a translation. Cleared and reused by the caller, so that a warm worker does not allocate.
#[derive(Default)]
pub struct Translation {
    /// Bits of the key that the result depends on.
    pub mask: FlowMask,
    /// Actions on the packet.
    pub actions: Vec<Action>,
    /// Dependencies besides the key.
    pub deps: Vec<Dep>,
    /// Words of the key that lookups in tables (dependencies with a log) saw otherwise than the packet has
    /// them; see [`Override`]. There must be one of the input port at the first lookup.
    pub overrides: Vec<Override>,
    /// Counters to credit with the packets.
    pub credits: Credits,
    /// Must not be cached (a side effect could not be carried out, or differs per packet).
    pub uncacheable: bool,
}

impl Translation {
    /// Makes it empty again, keeping the allocations.
    pub fn clear(&mut self) {
        self.mask = FlowMask::default();
        self.actions.clear();
        self.deps.clear();
        self.overrides.clear();
        self.credits.clear();
        self.uncacheable = false;
    }
    /// Whether this result, made for `key`, still holds for all of its packets, as far as the logs of later
    /// changes show. The plain twin of the check that caches make.
    pub fn outlasts(&self, key: &FlowKey, generations: &Generations) -> bool {
        let known = KnownBits::new(&key.masked(&self.mask), &self.mask);
        generations.outlasts(&self.deps, &self.overrides, known, usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Default)]
    struct Tally;
    impl Credit for Tally {
        fn credit(&self, _: u64, _: u64, _: u64, _: u16) {}
    }

    proptest! {
        /// Compares with lists that are made anew: the creditors, and the number of references held.
        #[test]
        fn credits_are_a_list(answers in prop::collection::vec((prop::collection::vec((0_usize..3, any::<bool>()), 0..5), 0_usize..6, any::<bool>()), 0..20)) {
            let all: Vec<Arc<Tally>> = (0..3).map(|_| Arc::default()).collect();
            let mut credits = Credits::default();
            for (who, most, taken) in answers {
                let mut list = Vec::new();
                for (i, shared) in who {
                    let one = &all[i];
                    if shared {
                        credits.push_shared(&**one, || one.clone());
                    } else {
                        credits.push(one.clone());
                    }
                    list.push(one);
                }
                credits.truncate(most);
                list.truncate(most);
                credits.settle();
                let given = taken.then(|| credits.take());
                let told: &[_] = given.as_deref().unwrap_or(&credits);
                prop_assert_eq!(told.len(), list.len());
                prop_assert!(told.iter().zip(&list).all(|(a, b)| std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))));
                for one in &all {
                    let held = list.iter().filter(|l| Arc::ptr_eq(l, one)).count();
                    prop_assert_eq!(Arc::strong_count(one), 1 + held);
                }
                drop(given);
                credits.clear();
            }
        }
    }
}
