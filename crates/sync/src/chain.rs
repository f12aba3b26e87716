//! Lists of numbered things. Any thread adds to a list and reads it without waiting; one thread at a time
//! removes.
//!
//! **Shape.** A thing's number leads to its [`Link`], and a list is the number of its newest thing. A
//! compare-and-exchange adds a thing in front. So if two threads add the same thing, one of them finds the
//! other's. Number zero is the end.
//!
//! **Reuse.** A removed thing keeps its link, so that a reader at this thing can continue. If the number is
//! reused while a reader is still there, the reader continues in another list and may miss things of its own.
//! Such a reader finds no thing that does not exist. With it, [`Chain::add_unless`] may add a thing twice.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

#[cfg(loom)]
use loom::sync::atomic::AtomicU32;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU32;

/// The number of a thing's successor in its list.
#[derive(Debug, Default)]
pub struct Link(AtomicU32);

/// A list; the module's text explains it.
#[derive(Debug, Default)]
pub struct Chain(AtomicU32);

impl Chain {
    /// The first result that `f` returns, newest things first.
    pub fn find<'a, R>(
        &self,
        link: impl Fn(u32) -> Option<&'a Link>,
        mut f: impl FnMut(u32) -> Option<R>,
    ) -> Option<R> {
        // Acquire pairs with the Release of the thread that added the thing, so the thing is complete.
        look(self.0.load(Acquire), 0, &link, &mut f)
    }

    /// Adds `id`, unless `same` returns a result for a thing in the list. The caller has made the thing
    /// before.
    pub fn add_unless<'a, R>(
        &self,
        id: u32,
        link: impl Fn(u32) -> Option<&'a Link>,
        mut same: impl FnMut(u32) -> Option<R>,
    ) -> Option<R> {
        let own = link(id)?;
        let (mut first, mut seen) = (self.0.load(Acquire), 0); // pairs with the exchange below
        loop {
            // Only the things that were added since the last try.
            if let Some(found) = look(first, seen, &link, &mut same) {
                return Some(found);
            }
            own.0.store(first, Relaxed);
            // Release: a thread that finds `id` finds its link and the thing.
            match self.0.compare_exchange(first, id, AcqRel, Acquire) {
                Ok(_) => return None,
                Err(now) => (first, seen) = (now, first),
            }
        }
    }

    /// Adds `id` without a check for equal things.
    pub fn push<'a>(&self, id: u32, link: impl Fn(u32) -> Option<&'a Link>) {
        let Some(own) = link(id) else { return };
        let mut first = self.0.load(Relaxed);
        loop {
            own.0.store(first, Relaxed);
            // Release: as in `add_unless`. Acquire: the things behind it were added by other threads.
            match self.0.compare_exchange_weak(first, id, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Removes `id`; `false`: it was not there. One thread at a time may remove.
    pub fn remove<'a>(&self, id: u32, link: impl Fn(u32) -> Option<&'a Link>) -> bool {
        let Some(own) = link(id) else { return false };
        let next = own.0.load(Acquire); // pairs with the Release of an earlier `remove`
        // Release: `next` and the things behind it were added by other threads.
        let Err(first) = self.0.compare_exchange(id, next, AcqRel, Acquire) else {
            return true;
        };
        // From here on `id` cannot be the first. The things behind the first change only here.
        let before = look(first, 0, &link, &mut |at| {
            let link = link(at)?;
            (link.0.load(Acquire) == id).then_some(link)
        });
        if let Some(before) = before {
            before.0.store(next, Release);
        }
        before.is_some()
    }

    /// Empties the list and returns its things, newest first.
    pub fn take<'a>(&self, link: impl Fn(u32) -> Option<&'a Link>) -> Vec<u32> {
        let mut all = Vec::new();
        // Acquire: as in `find`.
        look(self.0.swap(0, AcqRel), 0, &link, &mut |id| {
            all.push(id);
            None::<()>
        });
        all
    }
}

/// Walks from `at` on, up to `end` or the list's end.
fn look<'a, R>(
    mut at: u32,
    end: u32,
    link: &impl Fn(u32) -> Option<&'a Link>,
    f: &mut impl FnMut(u32) -> Option<R>,
) -> Option<R> {
    while at != 0 && at != end {
        // Read before `f`, which may give the thing to another thread.
        let next = link(at)?.0.load(Acquire); // pairs with the Release in `remove`
        if let Some(found) = f(at) {
            return Some(found);
        }
        at = next;
    }
    None
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(c: &Chain, links: &[Link]) -> Vec<u32> {
        let mut seen = Vec::new();
        c.find(
            |id| links.get(id as usize),
            |id| {
                seen.push(id);
                None::<()>
            },
        );
        seen
    }

    proptest! {
        /// Compares with a vector: things are added unless one of the same class is there, removed, and all
        /// taken.
        #[test]
        fn same_as_a_vector(ops in prop::collection::vec((1_u32..20, 0_u8..8), 0..200)) {
            let links: Vec<Link> = (0..20).map(|_| Link::default()).collect();
            let link = |id: u32| links.get(id as usize);
            let chain = Chain::default();
            let mut twin: Vec<u32> = Vec::new();
            for (id, op) in ops {
                match op {
                    0..4 if !twin.contains(&id) => {
                        let same = |other: u32| (other % 7 == id % 7).then_some(other);
                        let want = twin.iter().copied().find(|o| same(*o).is_some());
                        prop_assert_eq!(chain.add_unless(id, link, same), want);
                        if want.is_none() {
                            twin.insert(0, id);
                        }
                    }
                    4 if !twin.contains(&id) => {
                        chain.push(id, link);
                        twin.insert(0, id);
                    }
                    7 => prop_assert_eq!(chain.take(link), std::mem::take(&mut twin)),
                    _ => {
                        let there = twin.contains(&id);
                        prop_assert_eq!(chain.remove(id, link), there);
                        twin.retain(|other| *other != id);
                    }
                }
                prop_assert_eq!(all(&chain, &links), twin.clone());
            }
        }
    }
}

/// All interleavings of two threads that add the same thing while another one is removed: `scripts/models
/// loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn equal_things_are_added_once() {
        loom::model(|| {
            let links: Arc<Vec<Link>> = Arc::new((0..5).map(|_| Link::default()).collect());
            let chain = Arc::new(Chain::default());
            chain.push(3, |id| links.get(id as usize));
            chain.push(4, |id| links.get(id as usize));
            let theirs = (links.clone(), chain.clone());
            let other = thread::spawn(move || {
                let (links, chain) = theirs;
                chain.add_unless(1, |id| links.get(id as usize), |id| (id < 3).then_some(id))
            });
            let theirs = (links.clone(), chain.clone());
            let remover = thread::spawn(move || {
                let (links, chain) = theirs;
                assert!(chain.remove(3, |id| links.get(id as usize)));
            });
            let mine = chain.add_unless(2, |id| links.get(id as usize), |id| (id < 3).then_some(id));
            let other = other.join().expect("it ends");
            remover.join().expect("it ends");
            let left = chain.take(|id| links.get(id as usize));
            match (mine, other) {
                (None, Some(2)) => assert_eq!(left, [2, 4]),
                (Some(1), None) => assert_eq!(left, [1, 4]),
                both => panic!("{both:?}"),
            }
        });
    }

    #[test]
    fn what_is_pushed_while_all_is_taken_is_there_or_taken() {
        loom::model(|| {
            let links: Arc<Vec<Link>> = Arc::new((0..4).map(|_| Link::default()).collect());
            let chain = Arc::new(Chain::default());
            let theirs = (links.clone(), chain.clone());
            let other = thread::spawn(move || {
                let (links, chain) = theirs;
                for id in 1..3 {
                    chain.push(id, |id| links.get(id as usize));
                }
            });
            let mut seen = chain.take(|id| links.get(id as usize));
            other.join().expect("it ends");
            seen.splice(0..0, chain.take(|id| links.get(id as usize)));
            assert_eq!(seen, [2, 1]);
        });
    }
}
