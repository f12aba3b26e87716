//! A bounded queue between exactly one producer and one consumer.
//!
//! **Invariants.** `head` (next to read) and `tail` (next to write) only grow, modulo 2^64. Slots are
//! numbered modulo the capacity, a power of two, and `tail - head <= capacity`. Slots in `head..tail` are
//! initialised and belong to the consumer, the others to the producer. Each side keeps a private copy of the
//! other's index. It refreshes the copy only when the ring looks full (or empty). So a busy ring rarely moves
//! cache lines between cores.
//!
//! **Orderings.** The producer writes the slot, then stores `tail` with Release. The consumer's Acquire load
//! of `tail` pairs with it, so that it sees the slot's content. The consumer moves the item out, then stores
//! `head` with Release. The producer's Acquire load of `head` pairs with that, so that it overwrites only
//! slots that were read.
//!
//! Neither side waits or allocates. [`Producer`] and [`Consumer`] are `Send`, not `Clone`: one thread each.

#![allow(unsafe_code)] // the cells of the ring

#[cfg(loom)]
use loom::{cell::UnsafeCell, sync::Arc, sync::atomic::AtomicU64};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
#[cfg(not(loom))]
use std::sync::{Arc, atomic::AtomicU64};

use crossbeam_utils::CachePadded;

/// `std`'s cell with loom's interface.
#[cfg(not(loom))]
struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    fn new(v: T) -> Self {
        Self(std::cell::UnsafeCell::new(v))
    }
    fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }
    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

struct Shared<T> {
    head: CachePadded<AtomicU64>,
    tail: CachePadded<AtomicU64>,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: the index protocol above gives each slot to one side at a time; items move between threads, so `T:
// Send`.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above; the cells themselves are plain memory.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    fn slot(&self, at: u64) -> &UnsafeCell<MaybeUninit<T>> {
        // The length is a power of two, so the mask keeps the index inside; the cast drops only masked bits.
        #[allow(clippy::cast_possible_truncation)]
        let i = at as usize & (self.slots.len() - 1);
        &self.slots[i]
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let (head, tail) = (self.head.load(Relaxed), self.tail.load(Relaxed));
        for at in head..tail {
            // SAFETY: both sides are gone (we are the last owner) and `head..tail` is initialised.
            self.slot(at).with_mut(|p| unsafe { (*p).assume_init_drop() });
        }
    }
}

/// The writing end.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    tail: u64,
    head_seen: u64,
}

/// The reading end.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: u64,
    tail_seen: u64,
}

/// A ring for at least `capacity` items (rounded up to a power of two, at least 2).
pub fn ring<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let n = capacity.max(2).next_power_of_two();
    let shared = Arc::new(Shared {
        head: CachePadded::new(AtomicU64::new(0)),
        tail: CachePadded::new(AtomicU64::new(0)),
        slots: (0..n).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
    });
    (
        Producer {
            shared: Arc::clone(&shared),
            tail: 0,
            head_seen: 0,
        },
        Consumer {
            shared,
            head: 0,
            tail_seen: 0,
        },
    )
}

impl<T: Send> Producer<T> {
    /// Appends an item, or gives it back if the ring is full.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.free() == 0 {
            return Err(item);
        }
        // SAFETY: `tail - head < capacity`, so this slot is the producer's and holds nothing to drop.
        self.shared
            .slot(self.tail)
            .with_mut(|p| unsafe { (*p).write(item) });
        self.tail += 1;
        self.shared.tail.store(self.tail, Release); // pairs with the Acquire in `Consumer::pop`
        Ok(())
    }
    /// The number of items that surely fit. If it is not zero, more may fit; see [`Producer::has_room`].
    pub fn free(&mut self) -> usize {
        let cap = self.shared.slots.len() as u64;
        if self.tail - self.head_seen == cap {
            self.head_seen = self.shared.head.load(Acquire); // pairs with the Release in `Consumer::pop`
        }
        usize::try_from(cap - (self.tail - self.head_seen)).unwrap_or(0)
    }
    /// Whether `n` more items fit. Refreshes the copy of `head` if needed.
    pub fn has_room(&mut self, n: usize) -> bool {
        self.free() >= n || self.shared.slots.len() - self.len() >= n
    }
    /// The number of waiting items, as seen now.
    pub fn len(&mut self) -> usize {
        self.head_seen = self.shared.head.load(Acquire);
        usize::try_from(self.tail - self.head_seen).unwrap_or(0)
    }
    /// Whether no item waits.
    pub fn is_empty(&mut self) -> bool {
        self.len() == 0
    }
}

impl<T: Send> Consumer<T> {
    /// Whether the producer is gone: no more items will come.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }
    /// Takes the oldest item.
    pub fn pop(&mut self) -> Option<T> {
        if self.head == self.tail_seen {
            self.tail_seen = self.shared.tail.load(Acquire); // pairs with the Release in `Producer::push`
            if self.head == self.tail_seen {
                return None;
            }
        }
        // SAFETY: `head < tail`: the slot is initialised and the consumer's; it is read once, then given up.
        let item = self
            .shared
            .slot(self.head)
            .with(|p| unsafe { (*p).assume_init_read() });
        self.head += 1;
        self.shared.head.store(self.head, Release); // pairs with the Acquire in `Producer::free`
        Some(item)
    }
    /// Whether no item waits, as seen now.
    pub fn is_empty(&mut self) -> bool {
        if self.head == self.tail_seen {
            self.tail_seen = self.shared.tail.load(Acquire);
        }
        self.head == self.tail_seen
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// Compares with a `VecDeque`: `true` pushes, `false` pops.
        #[test]
        fn same_as_a_queue(cap in 1_usize..20, ops in prop::collection::vec(any::<bool>(), 0..400)) {
            let (mut p, mut c) = ring::<Box<usize>>(cap);
            let cap = cap.max(2).next_power_of_two();
            let mut twin = VecDeque::new();
            for (i, push) in ops.into_iter().enumerate() {
                if push {
                    let r = p.push(Box::new(i));
                    prop_assert_eq!(r.is_ok(), twin.len() < cap);
                    if r.is_ok() { twin.push_back(i); }
                } else {
                    prop_assert_eq!(c.pop().map(|b| *b), twin.pop_front());
                }
                let room = cap - twin.len();
                prop_assert!(p.has_room(room) && !p.has_room(room + 1));
                prop_assert_eq!(p.len(), twin.len());
                prop_assert_eq!(c.is_empty(), twin.is_empty());
            }
        }
    }

    #[test]
    fn two_threads_in_order() {
        let (mut p, mut c) = ring::<u64>(8);
        let t = std::thread::spawn(move || {
            for i in 0..100_000_u64 {
                let mut item = i;
                while let Err(back) = p.push(item) {
                    item = back;
                    std::thread::yield_now();
                }
            }
        });
        for i in 0..100_000 {
            let got = loop {
                if let Some(x) = c.pop() {
                    break x;
                }
                std::thread::yield_now();
            };
            assert_eq!(got, i);
        }
        t.join().unwrap();
        assert!(c.pop().is_none());
    }

    #[test]
    fn drops_what_was_not_taken() {
        let item = std::sync::Arc::new(());
        let (mut p, mut c) = ring(4);
        for _ in 0..3 {
            p.push(std::sync::Arc::clone(&item)).unwrap();
        }
        drop(c.pop());
        drop((p, c));
        assert_eq!(std::sync::Arc::strong_count(&item), 1);
    }
}

/// All interleavings of a small run: `make models`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn every_interleaving_keeps_order() {
        loom::model(|| {
            let (mut p, mut c) = ring::<Box<u32>>(2);
            let t = loom::thread::spawn(move || {
                for i in 0..3 {
                    let mut item = Box::new(i);
                    while let Err(back) = p.push(item) {
                        item = back;
                        loom::thread::yield_now();
                    }
                }
            });
            for want in 0..3 {
                loop {
                    if let Some(got) = c.pop() {
                        assert_eq!(*got, want);
                        break;
                    }
                    loom::thread::yield_now();
                }
            }
            t.join().unwrap();
        });
    }
}
