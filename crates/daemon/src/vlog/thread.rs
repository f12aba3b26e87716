//! The thread's name and message number in a log line.
//!
//! Threads with a name of their own (`pmd-c01/id:8`) show it in parentheses and number their messages
//! themselves. The main thread and the threads that run the control plane's tasks count as one: no name, one
//! common count. The first worker without a core of its own counts as one of them. In Open vSwitch the main
//! thread logs its messages, since that polls the ports that no PMD polls.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

static PROGRAM: OnceLock<String> = OnceLock::new();
static MAIN_SEQUENCE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static NAME: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
    static SEQUENCE: Cell<u32> = const { Cell::new(0) };
}

/// Threads named after the program are part of the control plane.
pub(super) fn set_program(program: &str) {
    let _ = PROGRAM.set(program.to_owned());
}

/// Gives the calling thread another name in the log; an empty one makes it count as the main thread.
pub fn set_thread_name(name: &str) {
    NAME.with(|slot| *slot.borrow_mut() = Some(name.into()));
}

/// The calling thread's name in the log (empty for the main thread) and its next message number.
pub(super) fn stamp() -> (Arc<str>, u32) {
    // Thread-local data is gone while a thread ends; such a late message counts as the main thread's.
    let name = NAME
        .try_with(|slot| match heddle_sys::cpu::renamed() {
            Some(renamed) => shown(&renamed),
            None => slot.borrow_mut().get_or_insert_with(own_name).clone(),
        })
        .unwrap_or_else(|_| Arc::from(""));
    let sequence = if name.is_empty() {
        MAIN_SEQUENCE.fetch_add(1, Relaxed).wrapping_add(1)
    } else {
        SEQUENCE
            .try_with(|count| {
                count.set(count.get().wrapping_add(1));
                count.get()
            })
            .unwrap_or(0)
    };
    (name, sequence)
}

fn own_name() -> Arc<str> {
    shown(std::thread::current().name().unwrap_or(""))
}

/// A thread's name as the log shows it.
fn shown(name: &str) -> Arc<str> {
    let control = matches!(name, "main" | "worker0")
        || name.starts_with("tokio-")
        || PROGRAM.get().is_some_and(|p| p == name);
    Arc::from(if control { "" } else { name })
}
