//! Threads that come before those of other programs.
//!
//! The kernel shares a processor fairly among all that want it: a thread that works for a microsecond a
//! thousand times a second may still wait for tens of milliseconds where many want to run, and for hundreds
//! where they are in groups. One with a real-time priority (`SCHED_RR`) runs at once. Whoever has one and
//! does not sleep keeps others from the processor, so it is for threads that hardly work, or for moments.

#![allow(unsafe_code)] // two system calls

use std::io;

/// The number of a thread, as the kernel counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadId(libc::pid_t);

impl ThreadId {
    /// Of the calling thread.
    pub fn own() -> Self {
        Self(rustix::thread::gettid().as_raw_nonzero().get())
    }
}

/// Gives a thread of this process real-time priority `level`, from 1 to 99. What it starts has none.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE` (and without `RLIMIT_RTPRIO`), or where the thread's group may have none.
pub fn raise(thread: ThreadId, level: i32) -> io::Result<()> {
    set(thread, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, level)
}

/// Makes a thread of this process an ordinary one again; its nice value is what it was.
///
/// # Errors
/// As [`raise`].
pub fn lower(thread: ThreadId) -> io::Result<()> {
    set(thread, libc::SCHED_OTHER, 0)
}

/// Whether a thread is an ordinary one: nobody has given it a priority.
pub fn is_ordinary(thread: ThreadId) -> bool {
    // SAFETY: takes a number, touches no memory.
    unsafe { libc::sched_getscheduler(thread.0) == libc::SCHED_OTHER }
}

fn set(thread: ThreadId, policy: i32, level: i32) -> io::Result<()> {
    // SAFETY: a C structure for which all zeroes are a value.
    let mut param: libc::sched_param = unsafe { core::mem::zeroed() };
    param.sched_priority = level;
    // SAFETY: reads `param`, which outlives the call.
    match unsafe { libc::sched_setscheduler(thread.0, policy, &raw const param) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_raised_and_lowered() {
        std::thread::spawn(|| {
            let own = ThreadId::own();
            assert!(is_ordinary(own));
            match raise(own, 1) {
                Ok(()) => {
                    assert!(!is_ordinary(own));
                    let child = std::thread::spawn(|| is_ordinary(ThreadId::own()));
                    assert!(child.join().expect("no panic"), "inherited");
                    lower(own).expect("who may raise may lower");
                }
                // Not everybody may.
                Err(e) => assert_eq!(e.kind(), io::ErrorKind::PermissionDenied),
            }
            assert!(is_ordinary(own));
        })
        .join()
        .expect("no panic");
    }
}
