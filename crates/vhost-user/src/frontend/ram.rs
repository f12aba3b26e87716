//! Memory of a pretended guest.

use super::FrontendError;
use super::Result;
use crate::message::MemRegion;
use heddle_sys::Mapping;
use heddle_sys::mmap::{Pages, memfd};
use heddle_virtio::driver::Arena;
use heddle_virtio::{GuestMemory, Region};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Whether memory is made of hugepages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Huge pages if the system has enough of them, otherwise usual pages.
    #[default]
    Try,
    /// An error where the system has too few.
    Need,
    /// Usual pages.
    Never,
}

/// One region of memory in a memfd.
#[derive(Debug)]
pub struct Ram {
    fd: OwnedFd,
    pages: Pages,
    base: u64,
    map: Arc<Mapping>,
}

impl Ram {
    /// Makes `len` zero bytes at the guest's address `base`. All pages are there afterwards: a page fault
    /// during a measurement would be its result.
    ///
    /// # Errors
    /// [`FrontendError::Memory`].
    pub fn new(base: u64, len: u64, huge: HugePages) -> Result<Self> {
        const HUGE: u64 = 2 << 20;
        if huge != HugePages::Never {
            let len = len.next_multiple_of(HUGE);
            match Self::of_pages(base, len, Pages::Huge2M) {
                Ok(ram) => return Ok(ram),
                Err(e) if huge == HugePages::Need => return Err(e),
                Err(_) => {} // too few of them: usual pages do as well
            }
        }
        Self::of_pages(base, len.next_multiple_of(4096), Pages::Normal)
    }
    fn of_pages(base: u64, len: u64, pages: Pages) -> Result<Self> {
        let fd = memfd("heddle-guest", len, pages).map_err(FrontendError::Memory)?;
        let map = Mapping::of_fd(fd.as_fd(), 0, len).map_err(FrontendError::Memory)?;
        if pages == Pages::Normal {
            map.advise_huge();
        }
        let ram = Self {
            fd,
            pages,
            base,
            map: Arc::new(map),
        };
        let table = ram.table()?;
        for at in (0..len).step_by(4096) {
            table.write(base + at, &[0])?;
        }
        Ok(ram)
    }
    /// A table of this one region.
    ///
    /// # Errors
    /// [`FrontendError::Layout`] for a base near the end of the address space.
    pub fn table(&self) -> Result<GuestMemory> {
        let region = Region::new(self.base, self.user(), Arc::clone(&self.map))?;
        Ok(GuestMemory::new(vec![region])?)
    }
    /// Hands out its addresses.
    pub fn arena(&self) -> Arena {
        Arena::new(self.base, self.map.len() as u64)
    }
    /// The region as messages describe it.
    pub fn region(&self) -> MemRegion {
        MemRegion {
            guest: self.base,
            size: self.map.len() as u64,
            user: self.user(),
            offset: 0,
        }
    }
    /// The kind of its pages.
    pub fn pages(&self) -> Pages {
        self.pages
    }
    /// The front end's own address of the guest's address `addr`, in the form in which ring addresses are
    /// sent.
    pub fn user_addr(&self, addr: u64) -> u64 {
        self.user().wrapping_add(addr.wrapping_sub(self.base))
    }
    fn user(&self) -> u64 {
        self.map.as_ptr().addr().get() as u64
    }
}

impl AsFd for Ram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
