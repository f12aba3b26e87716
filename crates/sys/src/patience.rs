//! A system call that another process can block: it is interrupted after a while.
//!
//! **Problem.** A worker notifies a guest by writing to a descriptor that the guest's monitor made. A flag of
//! the open file decides whether the write may block, and both processes share that file. The monitor can
//! clear the flag at any moment and fill the counter (or pipe): then the write never returns. Other ways do
//! not help. The kernel takes no non-blocking write for eventfds (`RWF_NOWAIT` is refused), and a check
//! before the write comes too early. Handing every notification to another thread costs a wake-up each.
//!
//! **How.** A thread marks in a slot of its own that it is in such a call. A watchman thread reads the slots
//! every [`TICK`] while calls are made. If it finds a thread in the same call twice, it sends that thread a
//! signal. The signal's handler does nothing, so that the call returns `EINTR`. The caller then never uses
//! that descriptor again.
//!
//! **Invariants.** A call waits for at most about two ticks. A signal that comes too late interrupts another
//! call of the same thread, which such calls have to expect anyway. A thread without a slot (there are
//! [`SLOTS`]) makes the call only when poll(2) reports that it would not wait now.
//!
//! **Costs.** Two stores and a load per call (one of the stores is a full barrier). The watchman sleeps when
//! no calls are made.

#![allow(unsafe_code)] // a signal to one thread

use std::cell::OnceCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// Time between two checks of the watchman.
pub(crate) const TICK: Duration = Duration::from_millis(20);
/// Maximum number of threads that are watched.
const SLOTS: usize = 256;
/// Looks without any call before the watchman sleeps.
const QUIET: u32 = 16;

struct Slot {
    /// The thread's id; 0: the slot is free.
    tid: AtomicI32,
    /// Odd while the thread is in a call; counts on with each call.
    turn: AtomicU64,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        tid: AtomicI32::new(0),
        turn: AtomicU64::new(0),
    }
}; SLOTS];

/// The watchman sleeps and is to be woken.
static ASLEEP: AtomicBool = AtomicBool::new(false);
/// `None`: it could not be started.
static WATCHMAN: OnceLock<Option<Thread>> = OnceLock::new();

/// A thread's slot, given back when the thread ends.
struct Mine(Option<&'static Slot>);

impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.tid.store(0, Ordering::Release);
        }
    }
}

thread_local! {
    static MINE: OnceCell<Mine> = const { OnceCell::new() };
}

/// The signal: one that nothing else uses.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 5
}

/// Makes `call`, which returns within about two ticks, interrupted if need be. `None`: the call was not made,
/// since this thread has no slot and `waits` returned true.
#[inline]
pub(crate) fn bounded<T>(waits: impl FnOnce() -> bool, call: impl FnOnce() -> T) -> Option<T> {
    let slot = MINE.try_with(|mine| mine.get_or_init(enrol).0).ok().flatten();
    let Some(slot) = slot else {
        return (!waits()).then(call);
    };
    let turn = slot.turn.load(Ordering::Relaxed).wrapping_add(1);
    // SeqCst, as the load behind it: either this sees the watchman asleep and wakes him, or he sees this turn
    // before he sleeps.
    slot.turn.store(turn, Ordering::SeqCst);
    if ASLEEP.load(Ordering::SeqCst) {
        wake();
    }
    let done = call();
    slot.turn.store(turn.wrapping_add(1), Ordering::Release);
    Some(done)
}

#[cold]
fn wake() {
    if ASLEEP.swap(false, Ordering::SeqCst)
        && let Some(Some(watchman)) = WATCHMAN.get()
    {
        watchman.unpark();
    }
}

#[cold]
fn enrol() -> Mine {
    let watched = WATCHMAN.get_or_init(start).is_some();
    // SAFETY: plain system call.
    let tid = unsafe { libc::gettid() };
    let free = |slot: &&Slot| {
        slot.tid
            .compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    };
    let slot = TABLE.iter().filter(|_| watched).find(free);
    if slot.is_some() {
        // SAFETY: an empty set is made, one signal added, and unblocked for this thread only.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, signal());
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        }
    }
    Mine(slot)
}

extern "C" fn nothing(_: libc::c_int) {}

fn start() -> Option<Thread> {
    // SAFETY: all-zero is a valid sigaction; the handler does nothing, and without SA_RESTART calls that it
    // interrupts return.
    let installed = unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(libc::c_int) = nothing;
        new.sa_sigaction = handler as libc::sighandler_t;
        libc::sigaction(signal(), &raw const new, std::ptr::null_mut()) == 0
    };
    if !installed {
        return None;
    }
    let thread = std::thread::Builder::new()
        .name("notify-watch".into())
        .spawn(watch)
        .ok()?;
    Some(thread.thread().clone())
}

fn watch() {
    let mut last = [0_u64; SLOTS];
    let mut quiet = 0;
    loop {
        std::thread::sleep(TICK);
        let mut calls = false;
        for (slot, last) in TABLE.iter().zip(&mut last) {
            let turn = slot.turn.load(Ordering::SeqCst);
            let same = *last == turn;
            *last = turn;
            calls |= !same || turn % 2 == 1;
            if same && turn % 2 == 1 {
                interrupt(slot);
            }
        }
        quiet = if calls { 0 } else { quiet + 1 };
        if quiet >= QUIET {
            ASLEEP.store(true, Ordering::SeqCst);
            // Check once more: a thread that did not see `ASLEEP` has moved its slot before this.
            let moved = |(slot, last): (&Slot, &u64)| slot.turn.load(Ordering::SeqCst) != *last;
            if !TABLE.iter().zip(&last).any(moved) {
                while ASLEEP.load(Ordering::SeqCst) {
                    std::thread::park();
                }
            }
            ASLEEP.store(false, Ordering::SeqCst);
            quiet = 0;
        }
    }
}

#[cold]
fn interrupt(slot: &Slot) {
    let tid = slot.tid.load(Ordering::Acquire);
    if tid > 0 {
        // SAFETY: a signal with a handler, to a thread of this process; one that has ended meanwhile is an
        // error without effect.
        let _ = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, signal()) };
    }
}
