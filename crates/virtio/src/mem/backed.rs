//! Pages of a guest's memory that its owner has written to.
//!
//! **Problem.** Reading a page without data makes one, and the kernel charges the reader for it. A peer that
//! shares a large empty file and transmits all of it makes the switch run into its own memory limit.
//!
//! **How.** A bit per page means that the file was found to have it ([`heddle_sys::Mapping::data_from`]). The
//! first read of a buffer queries the file, for the buffer and all present pages around it. From then on a
//! check is one load. A sound guest transmits only bytes that it has written. [`SPARE_PAGES`] are tolerated,
//! and one page more stops the queue.
//!
//! **Pages that are taken away later** (a file that is cut and made longer again, holes that are punched)
//! still have their bit. So now and then the file is queried for a buffer although its bits are set. If there
//! is a hole, all bits are cleared, and [`CAUGHT_PAGES`] are counted as lost.
//!
//! Costs: a load of a line that holds the bits of 512 pages for each buffer that is read.

use heddle_sys::Mapping;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Pages of one mapping that may be read although they were never written: 16 MiB.
const SPARE_PAGES: u32 = 4096;
/// Pages that were probably read when one is found to be gone.
const CAUGHT_PAGES: u32 = 1024;
/// Maximum number of pages that one question marks: 1 GiB.
const MAX_MARKED: u64 = 1 << 18;

/// The pages of one mapping.
#[derive(Debug)]
pub(super) struct Backed {
    map: Arc<Mapping>,
    first: usize,
    // Relaxed throughout: a bit that is seen late leads to a second query.
    bits: Box<[AtomicU64]>,
    spare: AtomicU32,
}

impl Backed {
    /// For a mapping of a file that may have holes.
    pub(super) fn of(map: &Arc<Mapping>) -> Option<Arc<Self>> {
        if !map.is_sparse() {
            return None;
        }
        let pages = (map.misalignment() + map.len()).div_ceil(PAGE as usize);
        Some(Arc::new(Self {
            first: map.as_ptr().addr().get() - map.misalignment(),
            bits: (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            map: Arc::clone(map),
            spare: SPARE_PAGES.into(),
        }))
    }

    fn pages(&self, address: usize, len: usize) -> std::ops::RangeInclusive<u64> {
        let at = address.wrapping_sub(self.first) as u64;
        at / PAGE..=(at + (len as u64).saturating_sub(1)) / PAGE
    }
    #[inline]
    fn bit(&self, page: u64) -> bool {
        let word = self.bits.get((page / 64) as usize);
        word.is_some_and(|w| w.load(Relaxed) >> (page % 64) & 1 != 0)
    }

    /// Whether `len` bytes at an address of this process are known to be there. They are in the mapping.
    #[inline]
    pub(super) fn is_known(&self, address: usize, len: usize) -> bool {
        self.pages(address, len).all(|page| self.bit(page))
    }

    /// Whether they may be read. `again`: query the file in any case.
    #[cold]
    pub(super) fn may_read(&self, address: usize, len: usize, again: bool) -> bool {
        let pages = self.pages(address, len);
        let mut page = *pages.start();
        while page <= *pages.end() {
            let known = self.bit(page);
            if known && !again {
                page += 1;
                continue;
            }
            // A file that cannot be queried counts as written.
            let there = self
                .map
                .data_from(page * PAGE)
                .map_or(1, |bytes| bytes.div_ceil(PAGE));
            if there == 0 {
                if known {
                    self.bits.iter().for_each(|w| w.store(0, Relaxed));
                }
                let cost = if known { CAUGHT_PAGES } else { 1 };
                let left = self.spare.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(cost));
                if left.is_err() {
                    return false;
                }
            }
            let marked = there.clamp(1, MAX_MARKED);
            self.mark(page, marked);
            page += marked;
        }
        true
    }

    fn mark(&self, page: u64, n: u64) {
        let (mut at, end) = (page, page + n);
        while at < end {
            let upto = (at / 64 + 1) * 64;
            let n = upto.min(end) - at;
            let ones = if n == 64 { u64::MAX } else { (1 << n) - 1 };
            if let Some(word) = self.bits.get((at / 64) as usize) {
                word.fetch_or(ones << (at % 64), Relaxed);
            }
            at += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_sys::mmap::{Pages, memfd};
    use std::os::fd::AsFd;

    const LEN: u64 = 64 << 20;

    fn file() -> (std::os::fd::OwnedFd, Arc<Mapping>, Arc<Backed>) {
        let fd = memfd("test", LEN, Pages::Normal).unwrap();
        let map = Arc::new(Mapping::guarded(fd.as_fd(), 0, LEN).unwrap());
        let backed = Backed::of(&map).unwrap();
        (fd, map, backed)
    }

    #[test]
    fn what_was_written_may_be_read_and_little_else() {
        let (fd, map, backed) = file();
        let base = map.as_ptr().addr().get();
        rustix::io::pwrite(&fd, &[1; 3 * 4096], 4096).unwrap();
        assert!(!backed.is_known(base + 4096, 8192));
        assert!(backed.may_read(base + 5000, 100, false));
        assert!(backed.is_known(base + 4096, 3 * 4096) && !backed.is_known(base, 4097));
        let hole = |page: u64| base + (page * PAGE) as usize;
        let read = (100..).take_while(|page| backed.may_read(hole(*page), 64, false));
        assert_eq!(read.count() as u32, SPARE_PAGES);
        assert!(backed.may_read(base + 4096, 8192, true), "that was written");
    }

    /// Pages that are taken away after they were found are noticed, and count against their owner.
    #[test]
    fn pages_that_are_taken_away_are_missed() {
        let (fd, map, backed) = file();
        let base = map.as_ptr().addr().get();
        for round in 0.. {
            rustix::io::pwrite(&fd, &[1; 4096], 0).unwrap();
            if !backed.may_read(base, 64, false) {
                assert!(round <= SPARE_PAGES / CAUGHT_PAGES);
                break;
            }
            // Cut, and made longer again.
            rustix::fs::ftruncate(&fd, 0).unwrap();
            rustix::fs::ftruncate(&fd, LEN).unwrap();
            if !backed.may_read(base, 64, true) {
                assert_eq!(round, SPARE_PAGES / CAUGHT_PAGES);
                break;
            }
        }
    }
}
