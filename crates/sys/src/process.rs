//! Forking a daemon.
//!
//! `fork` copies one thread only. A lock that another thread holds at that moment stays locked in the child
//! for ever. So the call is sound only while the process has a single thread. [`fork`] checks that against
//! the kernel's own count instead of trusting its caller.
//!
//! Cost: one read of `/proc/self/status` and one system call. Call it at start-up only.

#![allow(unsafe_code)] // fork, signal

use crate::cvt;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// The side of a [`fork`] that this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fork {
    /// The process that called [`fork`], with the id of the new one.
    Parent(Pid),
    /// The new process.
    Child,
}

/// Splits the process in two, as fork(2) does.
///
/// # Errors
/// `Unsupported` when the process has more than one thread, or their number cannot be read. Otherwise the
/// errors of fork(2) (out of memory, process limit).
pub fn fork() -> io::Result<Fork> {
    let threads = thread_count()?;
    if threads != 1 {
        let text = format!("cannot fork with {threads} threads running");
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    // SAFETY: the process has one thread (checked above, and only this thread could start another). So no
    // lock of the allocator or of any library can be held by a thread that the child lacks.
    let child = cvt(unsafe { libc::fork() })?;
    Ok(Pid::from_raw(child).map_or(Fork::Child, Fork::Parent))
}

/// Lets SIGSEGV and SIGBUS end the process again, as they do by default.
///
/// Rust's runtime handles both, to report a stack overflow. If one is sent by kill(2) instead of caused by an
/// access, its handler continues as if nothing had happened. Then a monitor would never see a crash.
///
/// # Errors
/// No error in practice: both signals exist.
pub fn die_of_faults() -> io::Result<()> {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the default disposition runs no code of ours.
        if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Maximum number of descriptors that [`raise_descriptor_limit`] requests: tools size tables by the limit.
const MAX_DESCRIPTORS: u64 = 1 << 20;

/// Raises the process's soft limit of descriptors (`RLIMIT_NOFILE`) to its hard one, at most about a million.
/// Returns the limit before and the one that holds now.
///
/// # Errors
/// The error of setrlimit(2).
pub fn raise_descriptor_limit() -> io::Result<(u64, u64)> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let soft = current.unwrap_or(u64::MAX);
    let want = maximum.unwrap_or(u64::MAX).min(MAX_DESCRIPTORS).max(soft);
    if want > soft {
        let current = Some(want);
        setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
    }
    Ok((soft, want))
}

/// The number of descriptors that this process may have open (`RLIMIT_NOFILE`).
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The number of threads of this process, as the kernel counts them.
///
/// # Errors
/// When `/proc` is not mounted or has no `Threads:` line.
pub fn thread_count() -> io::Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("Threads:"))
        .and_then(|count| count.trim().parse().ok())
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "/proc/self/status has no thread count",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_limit_is_raised_to_the_hard_one() {
        let (_, now) = raise_descriptor_limit().unwrap();
        assert_eq!(
            raise_descriptor_limit().unwrap(),
            (now, now),
            "nothing more to raise"
        );
    }

    /// The test harness runs this on a thread of its own, so the process has at least two.
    #[test]
    fn refuses_with_threads() {
        assert!(thread_count().unwrap() >= 2);
        assert_eq!(fork().unwrap_err().kind(), io::ErrorKind::Unsupported);
    }
}
