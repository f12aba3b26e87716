//! Words of memory that the kernel shares with this process: an array map of BPF, of which programs write
//! words while they are read here.
//!
//! Each word is read and written as one. A value of several words is not read as one: the programs that write
//! it have to order their writes.

#![allow(unsafe_code)] // atomics in mapped memory

use crate::Mapping;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a mapped descriptor.
#[derive(Debug)]
pub struct SharedWords {
    map: Mapping,
    len: usize,
}

impl SharedWords {
    /// Maps the first `len` words of `fd`.
    ///
    /// # Errors
    /// The error of mmap(2).
    pub fn of_fd(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let map = Mapping::of_fd(fd, 0, len as u64 * 8)?;
        Ok(Self { map, len })
    }
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.len, "word {at} of {}", self.len);
        // SAFETY: within the mapping, which lives as long as `self`, and aligned, since it begins with a
        // page; all other writers write whole words, too.
        unsafe { self.map.as_ptr().cast::<AtomicU64>().add(at).as_ref() }
    }
    /// Reads a word; later reads see all that its writer wrote before it.
    pub fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::SeqCst)
    }
    /// Writes a word after all earlier writes of this thread.
    pub fn store(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::SeqCst);
    }
}

/// Waits until all programs of BPF that ran when this was called have ended. Takes some milliseconds.
pub fn wait_for_programs() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_long = 1;
    // SAFETY: takes no memory. It waits for a grace period of RCU, under which such programs run.
    unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
}
