//! Threads that run before those of other programs.
//!
//! The kernel shares a processor fairly among all threads that want it. A thread that works for a microsecond
//! a thousand times a second may still wait for tens of milliseconds where many want to run. If they are in
//! groups, it may wait for hundreds.
//!
//! * [`Scheduling`]: a thread under the ordinary policy may have a short *slice* (Linux 6.12). It then gets
//!   its processor in shorter pieces, each of them earlier. Its share of the time remains the same. The share
//!   is what its nice value is for, among the threads of its group ([`crate::cpu_group`]).
//! * [`set_realtime`]: a thread with a real-time priority (`SCHED_RR`, sched(7)) runs at once. If it does not
//!   sleep, it keeps other threads from the processor. So it is for threads that hardly work, or where an
//!   operator wants it.

#![allow(unsafe_code)] // system calls

use crate::cvt;
use rustix::process::{Pid, getpriority_process, setpriority_process};
use std::io;

/// A thread of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId(Pid);

impl ThreadId {
    /// The calling thread.
    pub fn current() -> Self {
        Self(rustix::thread::gettid())
    }

    /// The thread's nice value.
    ///
    /// # Errors
    /// `ESRCH`: it has ended.
    pub fn nice(self) -> io::Result<i32> {
        Ok(getpriority_process(Some(self.0))?)
    }

    /// Changes its nice value.
    ///
    /// # Errors
    /// `EPERM` or `EACCES`: a lower value than before needs `CAP_SYS_NICE` or `RLIMIT_NICE`.
    pub fn set_nice(self, nice: i32) -> io::Result<()> {
        Ok(setpriority_process(Some(self.0), nice)?)
    }

    /// The length of its slices, nanoseconds; 0 before Linux 6.12, and for a real-time thread.
    ///
    /// # Errors
    /// The system has no such call, or a filter refuses it.
    pub fn slice_ns(self) -> io::Result<u64> {
        Ok(self.attributes()?.sched_runtime)
    }

    /// Requests slices of this length, between 0.1 and 100 ms; `None`: the kernel's default. A real-time
    /// thread has no slices, and remains as it is.
    ///
    /// # Errors
    /// `Unsupported` before Linux 6.12, which ignores the request. As for [`ThreadId::slice_ns`].
    pub fn set_slice_ns(self, slice_ns: Option<u64>) -> io::Result<()> {
        let mut attributes = self.attributes()?;
        if attributes.sched_policy != SCHED_OTHER {
            return Ok(());
        }
        attributes.sched_runtime = slice_ns.unwrap_or(0);
        // SAFETY: the kernel reads `size` bytes of the structure, which outlives the call.
        let done = unsafe { libc::syscall(libc::SYS_sched_setattr, self.raw(), &raw const attributes, 0) };
        crate::cvt_len(done as libc::ssize_t)?;
        match slice_ns {
            Some(ns) if self.slice_ns()? != ns => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel has no such slices (Linux 6.12 has)",
            )),
            _ => Ok(()),
        }
    }

    fn raw(self) -> libc::pid_t {
        self.0.as_raw_nonzero().get()
    }

    fn attributes(self) -> io::Result<libc::sched_attr> {
        // SAFETY: a C structure for which all zeroes are a value.
        let mut attributes: libc::sched_attr = unsafe { core::mem::zeroed() };
        let size = size_of_val(&attributes);
        // SAFETY: the kernel writes at most `size` bytes, the structure's.
        let done =
            unsafe { libc::syscall(libc::SYS_sched_getattr, self.raw(), &raw mut attributes, size, 0) };
        crate::cvt_len(done as libc::ssize_t)?;
        Ok(attributes)
    }
}

const SCHED_OTHER: u32 = libc::SCHED_OTHER.unsigned_abs();

/// Treatment of a thread under the ordinary policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scheduling {
    /// Length of slices, nanoseconds; `None`: the kernel's default.
    pub slice_ns: Option<u64>,
    /// The nice value.
    pub nice: i32,
}

/// The parts of a [`Scheduling`] that the kernel refused.
#[derive(Debug, Default)]
pub struct Refused {
    /// The slice, and the reason.
    pub slice: Option<io::Error>,
    /// The nice value, and the reason.
    pub nice: Option<io::Error>,
}

impl Refused {
    /// The first refusal of each part, of this value and `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            slice: self.slice.or(other.slice),
            nice: self.nice.or(other.nice),
        }
    }
}

impl Scheduling {
    /// Requests it for a thread. A refused part leaves the other one in effect.
    pub fn apply(self, thread: ThreadId) -> Refused {
        let nice = match thread.nice() {
            Ok(nice) if nice == self.nice => Ok(()),
            _ => thread.set_nice(self.nice),
        };
        Refused {
            slice: thread.set_slice_ns(self.slice_ns).err(),
            nice: nice.err(),
        }
    }
}

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

    /// Runs `test` in a thread of its own, whose scheduling no other test sees.
    fn alone(test: fn(ThreadId)) {
        let thread = std::thread::spawn(move || test(ThreadId::current()));
        thread.join().expect("no panic");
    }

    #[test]
    fn slices_are_short_until_they_are_given_back() {
        alone(|own| {
            let default = own.slice_ns().expect("no filter in tests");
            let short = Scheduling {
                slice_ns: Some(100_000),
                nice: own.nice().expect("alive"),
            };
            let refused = short.apply(own);
            assert!(refused.nice.is_none(), "unchanged");
            match refused.slice {
                None => assert_eq!(own.slice_ns().expect("as before"), 100_000),
                Some(e) => assert_eq!((e.kind(), default), (io::ErrorKind::Unsupported, 0)),
            }
            let ordinary = Scheduling {
                slice_ns: None,
                ..short
            };
            assert!(ordinary.apply(own).slice.is_none());
            assert_eq!(own.slice_ns().expect("as before"), default);
        });
    }

    #[test]
    fn a_refused_nice_value_leaves_the_slice() {
        alone(|own| {
            let wanted = Scheduling {
                slice_ns: Some(100_000),
                nice: -20,
            };
            let refused = wanted.apply(own);
            match refused.nice {
                None => assert_eq!(own.nice().expect("alive"), -20),
                Some(e) => assert_eq!(e.kind(), io::ErrorKind::PermissionDenied),
            }
            if refused.slice.is_none() {
                assert_eq!(own.slice_ns().expect("as before"), 100_000);
            }
            // Every thread may have a higher value.
            own.set_nice(3).expect("no right is needed");
            assert_eq!(own.nice().expect("alive"), 3);
        });
    }

    #[test]
    fn a_real_time_thread_has_no_slice() {
        alone(|own| {
            if set_realtime(1).is_ok() {
                own.set_slice_ns(Some(100_000)).expect("nothing to do");
                assert_eq!(own.slice_ns().expect("as before"), 0);
                assert_eq!(policy(), libc::SCHED_RR);
            }
        });
    }

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
