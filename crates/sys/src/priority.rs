//! Threads that run before those of other programs.
//!
//! The kernel shares a processor fairly among all threads that want it. A thread that works for a microsecond
//! a thousand times a second may still wait for tens of milliseconds where many want to run. If they are in
//! groups, it may wait for hundreds. A thread with a real-time priority (`SCHED_RR`, sched(7)) runs at once.
//! If it does not sleep, it keeps other threads from the processor. So it is for threads that hardly work, or
//! where an operator wants it.

#![allow(unsafe_code)] // a system call

use crate::cvt;
use std::io;

/// Gives the calling thread real-time priority `level`, from 1 to 99; 0 makes it an ordinary one again.
/// Threads and processes that it starts are ordinary.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE` (and without `RLIMIT_RTPRIO`), or where the thread's group may have none.
pub fn set_realtime(level: u8) -> io::Result<()> {
    let policy = match level {
        0 => libc::SCHED_OTHER,
        _ => libc::SCHED_RR | libc::SCHED_RESET_ON_FORK,
    };
    // SAFETY: a C structure for which all zeroes are a value.
    let mut param: libc::sched_param = unsafe { core::mem::zeroed() };
    param.sched_priority = level.into();
    // SAFETY: reads `param`, which outlives the call.
    cvt(unsafe { libc::sched_setscheduler(0, policy, &raw const param) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: takes a number, touches no memory.
        unsafe { libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK }
    }

    #[test]
    fn a_thread_is_raised_and_lowered() {
        let own = std::thread::spawn(|| {
            match set_realtime(1) {
                Ok(()) => {
                    assert_eq!(policy(), libc::SCHED_RR);
                    let child = std::thread::spawn(policy);
                    assert_eq!(child.join().expect("no panic"), libc::SCHED_OTHER, "inherited");
                    set_realtime(0).expect("who may raise may lower");
                }
                // Some users may not.
                Err(e) => assert_eq!(e.kind(), io::ErrorKind::PermissionDenied),
            }
            assert_eq!(policy(), libc::SCHED_OTHER);
        });
        own.join().expect("no panic");
    }
}
