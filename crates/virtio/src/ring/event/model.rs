//! All interleavings of notification suppression: no thread sleeps over work.
//!
//! Run by `make models`.
//!
//! The rings are not run themselves (their fields are in raw memory). The model has their accesses in their
//! order and with their orderings, and decides with their functions. One side gives (publishes an index or
//! flags, barrier, reads the wish, notifies). The other side takes (expresses a wish, barrier, looks again,
//! sleeps). Kicks and calls are this with the roles exchanged. `Kick` begins with an index that was already
//! decided on, `Call` may know nothing of earlier signals. A lost wake-up is a thread that waits for ever,
//! which loom reports as a deadlock.

use super::{packed_event_passed, split_event_passed};
use loom::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};

/// Packets that are given, one at a time.
const GIVEN: u16 = 2;
const SIZE: u16 = 2;

/// An eventfd.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    woken: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.woken.notify_one();
    }
    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.woken.wait(rung).unwrap();
        }
        *rung = false;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// A flag: 1 suppresses (split without EVENT_IDX).
    Flag,
    /// An index (split with EVENT_IDX).
    Index,
    /// An event area with a flag: 1 suppresses (packed without EVENT_IDX).
    Area,
    /// An event area that names a descriptor (packed with EVENT_IDX).
    Descriptor,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Notification {
    Kick,
    Call,
}

struct Shared {
    /// The index of a split ring. For a packed ring, the flags of the slots: here the round in which each was
    /// given, or 0.
    index: AtomicU16,
    slots: [AtomicU16; SIZE as usize],
    wish: AtomicU32,
    /// The data that the index covers.
    data: [AtomicU16; GIVEN as usize],
    bell: Bell,
}

const AREA_DISABLE: u32 = 1 << 16;
const AREA_DESC: u32 = 2 << 16;

impl Shape {
    fn packed(self) -> bool {
        matches!(self, Self::Area | Self::Descriptor)
    }
    /// Wish at the start: none.
    fn quiet(self) -> u32 {
        match self {
            Self::Flag => 1,
            // Behind the start: passed by nothing that comes.
            Self::Index => u32::from(u16::MAX),
            Self::Area | Self::Descriptor => AREA_DISABLE,
        }
    }
    /// A wish for a notification of item `n` (counted from 0) or any behind it.
    fn loud(self, n: u16) -> u32 {
        match self {
            Self::Flag | Self::Area => 0,
            Self::Index => u32::from(n),
            Self::Descriptor => u32::from(n % SIZE) | u32::from(n / SIZE % 2 == 0) << 15 | AREA_DESC,
        }
    }
}

fn visible(s: &Shared, shape: Shape, n: u16) -> bool {
    if shape.packed() {
        // Acquire pairs with the Release in `give`.
        s.slots[usize::from(n % SIZE)].load(Ordering::Acquire) > n / SIZE
    } else {
        s.index.load(Ordering::Acquire) > n
    }
}

fn give(s: &Shared, shape: Shape, way: Notification, barrier: bool) {
    // The giving side's record of its last signal: the device has none at its start, and notifies then.
    let mut signalled = (way == Notification::Kick).then_some(0_u16);
    for n in 0..GIVEN {
        s.data[usize::from(n)].store(n + 1, Ordering::Relaxed);
        if shape.packed() {
            s.slots[usize::from(n % SIZE)].store(n / SIZE + 1, Ordering::Release);
        } else {
            s.index.store(n + 1, Ordering::Release);
        }
        if barrier {
            fence(Ordering::SeqCst);
        }
        let wish = s.wish.load(Ordering::Relaxed);
        let new = n + 1;
        let due = match shape {
            Shape::Flag => wish & 1 == 0,
            Shape::Index => signalled
                .replace(new)
                .is_none_or(|old| split_event_passed(wish as u16, new, old)),
            Shape::Area | Shape::Descriptor => {
                let since = signalled.replace(new).map(|old| u32::from(new - old));
                match wish >> 16 & 3 {
                    1 => false,
                    2 if shape == Shape::Descriptor => since.is_none_or(|count| {
                        packed_event_passed(wish as u16, new % SIZE, new / SIZE % 2 == 0, count, SIZE)
                    }),
                    _ => true,
                }
            }
        };
        if due {
            s.bell.ring();
        }
    }
}

fn take(s: &Shared, shape: Shape, barrier: bool) {
    let mut n = 0;
    while n < GIVEN {
        if visible(s, shape, n) {
            assert_eq!(
                s.data[usize::from(n)].load(Ordering::Relaxed),
                n + 1,
                "the index covers its data"
            );
            n += 1;
            continue;
        }
        s.wish.store(shape.loud(n), Ordering::Relaxed);
        if barrier {
            fence(Ordering::SeqCst);
        }
        if !visible(s, shape, n) {
            s.bell.wait();
        }
    }
}

fn check(shape: Shape, way: Notification, barriers: [bool; 2]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let s = Arc::new(Shared {
            index: AtomicU16::new(0),
            slots: core::array::from_fn(|_| AtomicU16::new(0)),
            wish: AtomicU32::new(shape.quiet()),
            data: core::array::from_fn(|_| AtomicU16::new(0)),
            bell: Bell::default(),
        });
        let giver = Arc::clone(&s);
        let t = loom::thread::spawn(move || give(&giver, shape, way, barriers[0]));
        take(&s, shape, barriers[1]);
        t.join().unwrap();
    });
}

#[test]
fn split_flags() {
    check(Shape::Flag, Notification::Kick, [true, true]);
    check(Shape::Flag, Notification::Call, [true, true]);
}

#[test]
fn split_event_index_kicks() {
    check(Shape::Index, Notification::Kick, [true, true]);
}

#[test]
fn split_event_index_calls() {
    check(Shape::Index, Notification::Call, [true, true]);
}

#[test]
fn packed_flags() {
    check(Shape::Area, Notification::Kick, [true, true]);
    check(Shape::Area, Notification::Call, [true, true]);
}

#[test]
fn packed_event_descriptor_kicks() {
    check(Shape::Descriptor, Notification::Kick, [true, true]);
}

#[test]
fn packed_event_descriptor_calls() {
    check(Shape::Descriptor, Notification::Call, [true, true]);
}

/// The model can fail: without either side's barrier a wake-up is lost.
#[test]
#[should_panic(expected = "deadlock")]
fn without_the_givers_barrier_a_side_sleeps_over_work() {
    check(Shape::Flag, Notification::Kick, [false, true]);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_takers_barrier_a_side_sleeps_over_work() {
    check(Shape::Index, Notification::Kick, [true, false]);
}
