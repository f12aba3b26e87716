//! Memory that stays in RAM (`--mlockall`): every page that is used, and no more address space than needed.
//!
//! **Problem.** `mlockall(2)` locks mappings. Tables for millions of connections and the heaps of the
//! allocator's threads are gigabytes of address space, of which megabytes are used. With `MCL_ONFAULT` only
//! used pages stay in RAM. But the kernel counts the whole address space: in `VmLck`, which operators read,
//! and against `RLIMIT_MEMLOCK`.
//!
//! **How.** [`lock`] locks everything on fault, now and in future. Big tables ([`crate::Zeroed`]) and large
//! mappings without access rights are unlocked. [`follow`], called about once a second, locks memory that
//! came into use since. Tables fill from their beginning: if a page of a table's next [`WINDOW_BYTES`] is
//! used, these are locked. All writable pages of other mappings are locked. So a page is locked about a
//! second after its first use.
//!
//! **Limit.** [`lock`] finds out by a trial whether a limit would make later mappings fail. If so, it locks
//! nothing.

#![allow(unsafe_code)] // mlock2, munlock and mincore, of ranges of this process

use crate::cvt;
use rustix::mm::{MlockAllFlags, mlockall, munlockall};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Size of a page, bytes.
pub(crate) const PAGE: usize = 4096;
/// Tables of at least this size are locked as they fill.
pub(crate) const MIN_TABLE_BYTES: usize = 8 << 20;
/// Size of the piece of a table that is locked at a time.
const WINDOW_BYTES: usize = 4 << 20;
/// Size of the trial's mapping: more than any single mapping of a running switch.
const TRIAL_BYTES: usize = 4 << 30;

/// Whether [`lock`] has locked memory.
static LOCKS: AtomicBool = AtomicBool::new(false);
/// Big tables, by the address of their first byte.
static TABLES: Mutex<BTreeMap<usize, Table>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Copy)]
struct Table {
    /// Bytes.
    len: usize,
    /// Bytes from the beginning that are locked.
    locked: usize,
}

fn tables() -> MutexGuard<'static, BTreeMap<usize, Table>> {
    TABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks all memory of this process, as it is used. Call this before there are big tables.
///
/// # Errors
/// The error of mlockall(2); `OutOfMemory` if the limit of locked memory (`RLIMIT_MEMLOCK`) would make later
/// mappings fail. Then nothing is locked.
pub fn lock() -> io::Result<()> {
    let on_fault = MlockAllFlags::ONFAULT;
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | on_fault)?;
    // SAFETY: a fresh mapping at an address of the kernel's choice, which is removed untouched.
    let trial = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let at = libc::mmap(std::ptr::null_mut(), TRIAL_BYTES, libc::PROT_NONE, flags, -1, 0);
        at != libc::MAP_FAILED && libc::munmap(at, TRIAL_BYTES) == 0
    };
    if !trial {
        munlockall()?;
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    LOCKS.store(true, Relaxed);
    Ok(())
}

/// Registers a big table that was just mapped, none of whose pages is used yet.
pub(crate) fn add(address: usize, len: usize) {
    if len >= MIN_TABLE_BYTES && LOCKS.load(Relaxed) {
        tables().insert(address, Table { len, locked: 0 });
        unlock(address, len);
    }
}

/// Forgets a table that is about to be unmapped.
pub(crate) fn remove(address: usize, len: usize) {
    if len >= MIN_TABLE_BYTES && LOCKS.load(Relaxed) {
        tables().remove(&address);
    }
}

fn lock_range(address: usize, len: usize) -> bool {
    // SAFETY: locking changes neither the contents nor the validity of a range. For a range that is no longer
    // mapped, the kernel returns an error.
    cvt(unsafe { libc::mlock2(std::ptr::without_provenance(address), len, libc::MLOCK_ONFAULT) }).is_ok()
}

fn unlock(address: usize, len: usize) {
    // SAFETY: as in `lock_range`.
    let _ = cvt(unsafe { libc::munlock(std::ptr::without_provenance(address), len) });
}

/// Whether a page of the range is in memory.
fn is_used(address: usize, len: usize) -> bool {
    let mut pages = vec![0_u8; len.div_ceil(PAGE)];
    let at = std::ptr::without_provenance_mut(address);
    // SAFETY: the vector has a byte for each page; the kernel looks the addresses up.
    let done = cvt(unsafe { libc::mincore(at, len, pages.as_mut_ptr()) });
    done.is_ok() && pages.iter().any(|page| page & 1 != 0)
}

/// Locks memory that came into use, if [`lock`] has locked memory. Reads `/proc/self/maps`: the calling
/// thread may wait.
pub fn follow() {
    if !LOCKS.load(Relaxed) {
        return;
    }
    // The lock is held so that no table is unmapped meanwhile: another mapping could take its addresses.
    let mut tables = tables();
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else {
        return;
    };
    for (address, table) in tables.iter_mut() {
        while table.locked < table.len {
            let piece = WINDOW_BYTES.min(table.len - table.locked);
            let at = address + table.locked;
            if !is_used(at, piece) || !lock_range(at, piece) {
                break;
            }
            table.locked += piece;
        }
    }
    for (start, end, writable, none) in maps.lines().filter_map(mapping) {
        let of_a_table = tables
            .range(..end)
            .next_back()
            .is_some_and(|(at, t)| at + t.len > start);
        if of_a_table {
            continue;
        }
        if none && end - start >= MIN_TABLE_BYTES {
            unlock(start, end - start);
        } else if writable {
            lock_range(start, end - start);
        }
    }
}

/// A line of `/proc/self/maps` of a mapping without a file: first address, end, whether it is writable,
/// whether it has no access rights.
fn mapping(line: &str) -> Option<(usize, usize, bool, bool)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    let anonymous = words.nth(2)? == "0" && rights.ends_with('p');
    let number = |text| usize::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    (anonymous && start < end).then(|| (start, end, rights.starts_with("rw"), rights.starts_with("---")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps() {
        assert_eq!(
            mapping("7f4cb4021000-7f4cb8000000 ---p 00000000 00:00 0 "),
            Some((0x7f4c_b402_1000, 0x7f4c_b800_0000, false, true))
        );
        assert_eq!(
            mapping("56429f1de000-56429f4de000 rw-p 00000000 00:00 0     [heap]"),
            Some((0x5642_9f1d_e000, 0x5642_9f4d_e000, true, false))
        );
        for other in [
            "7f4d13e00000-7f4dd3e00000 rw-s 00000000 00:01 2049    /memfd:connections (deleted)",
            "564268099000-564268b70000 r-xp 004b8000 08:02 77      /usr/sbin/heddled",
            "nonsense",
            "",
        ] {
            assert_eq!(mapping(other), None, "{other}");
        }
    }
}
