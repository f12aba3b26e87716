//! The table of regions and its translations.

#![allow(unsafe_code)] // addresses of the regions that it checks against

use super::backed::Backed;
use super::{Access, DirtyLog, HostRange, MemError, Piece, Region};
use core::ptr::NonNull;
use std::sync::Arc;

/// Maximum number of regions of a guest's memory (QEMU's limit of memory slots with CONFIGURE_MEM_SLOTS).
pub const MAX_REGIONS: usize = 512;
/// Maximum number of regions of one table: behind an IOMMU there is one for each range that the guest mapped.
pub const MAX_ENTRIES: usize = 4096;

/// The fields of a region that translation needs, without indirection.
#[derive(Clone, Copy, Debug)]
struct Fast {
    base: u64,
    len: u64,
    log: u64,
    host: NonNull<u8>,
    /// Valid as long as the table.
    backed: Option<NonNull<Backed>>,
}

/// A copy of one region's fields for translation. Its pieces are valid as long as its table's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Near {
    region: Fast,
    number: u16,
}

impl Near {
    /// A region without addresses.
    const NOWHERE: Self = Self {
        region: Fast {
            base: 0,
            len: 0,
            log: 0,
            host: NonNull::dangling(),
            backed: None,
        },
        number: 0,
    };
    /// The piece of `len` bytes at `addr`, if all of them are in the region.
    #[inline]
    pub(crate) fn piece(&self, addr: u64, len: u32) -> Option<Piece> {
        let r = &self.region;
        let off = addr.wrapping_sub(r.base);
        if off >= r.len || u64::from(len) > r.len - off {
            return None;
        }
        // SAFETY: `off < r.len`, and the region is inside its mapping.
        let ptr = unsafe { r.host.add(off as usize) };
        Some(Piece::new(ptr, len, self.number))
    }
    /// [`Near::piece`] for reading: only if the bytes are known to be there.
    #[inline]
    pub(crate) fn readable(&self, addr: u64, len: u32) -> Option<Piece> {
        let piece = self.piece(addr, len)?;
        let known = self.region.backed.is_none_or(|backed| {
            // SAFETY: the table that this is of keeps it alive.
            unsafe { backed.as_ref() }.is_known(piece.ptr().addr().get(), piece.len())
        });
        known.then_some(piece)
    }
}

/// An immutable table of a guest's memory. Sorted by address; see the module header for its invariants.
#[derive(Debug, Default)]
pub struct GuestMemory {
    regions: Vec<Region>,
    fast: Vec<Fast>,
    log: Option<Arc<DirtyLog>>,
    /// Whether the device may not do everything everywhere.
    restricted: bool,
    holes: bool,
}

// SAFETY: the raw pointers are addresses inside mappings that `regions` keeps alive; they grant raw copies
// only.
unsafe impl Send for GuestMemory {}
// SAFETY: as above; the table is immutable.
unsafe impl Sync for GuestMemory {}

impl GuestMemory {
    /// A table of `regions` in any order.
    ///
    /// # Errors
    /// [`MemError::Overlap`], [`MemError::TooMany`].
    pub fn new(mut regions: Vec<Region>) -> Result<Self, MemError> {
        if regions.len() > MAX_ENTRIES {
            return Err(MemError::TooMany);
        }
        regions.sort_by_key(|r| r.base);
        for (a, b) in regions.iter().zip(regions.iter().skip(1)) {
            if b.base - a.base < a.len {
                return Err(MemError::Overlap { base: b.base });
            }
        }
        let fast = regions
            .iter()
            .map(|r| Fast {
                base: r.base,
                len: r.len,
                log: r.log,
                // SAFETY: `Region::part` checked that the offset is inside the mapping.
                host: unsafe { r.map.as_ptr().add(r.offset) },
                backed: r.backed.as_deref().map(NonNull::from),
            })
            .collect();
        Ok(Self {
            restricted: regions.iter().any(|r| r.access != Access::all()),
            holes: regions.iter().any(|r| r.backed.is_some()),
            regions,
            fast,
            log: None,
        })
    }
    /// The same table with another dirty log (`None`: no migration runs).
    #[must_use]
    pub fn with_log(&self, log: Option<Arc<DirtyLog>>) -> Self {
        Self {
            regions: self.regions.clone(),
            fast: self.fast.clone(),
            log,
            restricted: self.restricted,
            holes: self.holes,
        }
    }
    /// The regions, by address.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }
    /// The NUMA node of the byte at `addr`; `None` where there is no such byte, or the kernel does not report
    /// it.
    pub fn numa_node(&self, addr: u64) -> Option<u32> {
        heddle_sys::memory::node_of(self.range(addr, 1, 1).ok()?.ptr())
    }
    /// Whether a file was found shorter than it was when it was mapped ([`heddle_sys::Mapping::was_cut`]): of
    /// a region, or of the dirty log. Looks at each.
    pub fn is_cut(&self) -> bool {
        self.regions.iter().any(|r| r.map.was_cut()) || self.log.as_ref().is_some_and(|l| l.is_cut())
    }
    /// The dirty log, while a migration runs.
    #[inline]
    pub fn log(&self) -> Option<&DirtyLog> {
        self.log.as_deref()
    }
    /// The driver's address of the front end's own address `user` (vhost-user gives ring addresses in that
    /// form).
    ///
    /// # Errors
    /// [`MemError::Unmapped`] when no region holds all of the `len` bytes.
    pub fn addr_of_user(&self, user: u64, len: u64) -> Result<u64, MemError> {
        self.regions
            .iter()
            .find_map(|r| {
                let off = user.checked_sub(r.user)?;
                (off < r.len && len <= r.len - off).then_some(r.base + off)
            })
            .ok_or(MemError::Unmapped { addr: user, len })
    }

    /// The region that holds `addr`, as its place in `fast` and the offset. `hint` remembers the place for
    /// the next call.
    #[inline]
    fn locate(&self, hint: &mut usize, addr: u64) -> Option<(&Fast, u64)> {
        if let Some(r) = self.fast.get(*hint) {
            let off = addr.wrapping_sub(r.base);
            if off < r.len {
                return Some((r, off));
            }
        }
        let at = self.fast.partition_point(|r| r.base <= addr).checked_sub(1)?;
        let r = self.fast.get(at)?;
        let off = addr - r.base;
        (off < r.len).then(|| {
            *hint = at;
            (r, off)
        })
    }

    /// The region that `hint` remembers, to translate many addresses: nearly all are in the same one. It has
    /// none if it forbids the `access`.
    #[inline]
    pub(crate) fn near(&self, hint: usize, access: Access) -> Near {
        match self.fast.get(hint) {
            Some(&region) if !self.restricted || self.allows(hint, access) => Near {
                region,
                number: hint as u16, // a table has at most `MAX_ENTRIES`
            },
            _ => Near::NOWHERE,
        }
    }
    fn allows(&self, region: usize, access: Access) -> bool {
        self.regions
            .get(region)
            .is_some_and(|r| r.access.contains(access))
    }

    /// Whether all of `piece` is in one region: a plain walk, to check translations against.
    #[cfg(test)]
    pub(crate) fn holds(&self, piece: &Piece) -> bool {
        let at = piece.ptr().addr().get() as u64;
        self.regions.iter().any(|r| {
            let first = (r.map.as_ptr().addr().get() + r.offset) as u64;
            piece.len() == 0 || (first <= at && at + piece.len() as u64 <= first + r.len)
        })
    }

    /// Whether some region is of a file that may have holes.
    #[inline]
    pub(crate) fn may_have_holes(&self) -> bool {
        self.holes
    }
    /// Whether `piece`, which this table made, may be read: the guest has written to it, or little else was
    /// read so far. `again`: it is looked at anew.
    #[inline]
    pub(crate) fn may_read(&self, piece: &Piece, again: bool) -> bool {
        let backed = self
            .regions
            .get(usize::from(piece.region))
            .and_then(|r| r.backed.as_ref());
        let (at, len) = (piece.ptr().addr().get(), piece.len());
        backed.is_none_or(|b| !again && b.is_known(at, len) || b.may_read(at, len, again))
    }

    /// Marks the first `n` bytes of `piece`, which this table made, as written in the dirty log.
    pub(crate) fn mark(&self, piece: &Piece, n: usize) {
        if let (Some(log), Some(r)) = (&self.log, self.fast.get(usize::from(piece.region))) {
            let off = piece.ptr().addr().get().wrapping_sub(r.host.addr().get());
            log.mark(r.log.wrapping_add(off as u64), n as u64);
        }
    }

    /// Calls `each` with the pieces of `len` bytes at `addr`: one, or several where adjacent regions share
    /// the range. A region that forbids the `access` is as good as none.
    #[inline]
    pub(crate) fn pieces(
        &self,
        hint: &mut usize,
        addr: u64,
        len: u32,
        access: Access,
        mut each: impl FnMut(Piece),
    ) -> Result<(), MemError> {
        let (mut addr, mut left) = (addr, len);
        while left > 0 {
            let unmapped = MemError::Unmapped {
                addr,
                len: u64::from(left),
            };
            let Some((r, off)) = self.locate(hint, addr) else {
                return Err(unmapped);
            };
            // `locate` left the region's place in the hint.
            if self.restricted && !self.allows(*hint, access) {
                return Err(unmapped);
            }
            let n = u64::from(left).min(r.len - off) as u32;
            // SAFETY: `off < r.len`, and the region is inside its mapping.
            let ptr = unsafe { r.host.add(off as usize) };
            each(Piece::new(ptr, n, *hint as u16)); // a table has at most `MAX_ENTRIES`
            left -= n;
            // Regions do not wrap, so neither does their end.
            addr = r.base + off + u64::from(n);
        }
        Ok(())
    }

    /// A range inside one region, for a ring or an event area, whose start is a multiple of `align` here.
    ///
    /// # Errors
    /// [`MemError::Unmapped`], [`MemError::Crosses`], [`MemError::Misaligned`].
    pub fn range(&self, addr: u64, len: u64, align: usize) -> Result<HostRange, MemError> {
        let mut hint = 0;
        let Some((_, off)) = self.locate(&mut hint, addr) else {
            return Err(MemError::Unmapped { addr, len });
        };
        let at = self.regions.partition_point(|r| r.base <= addr) - 1;
        #[expect(clippy::indexing_slicing, reason = "`locate` found that one")]
        let r = &self.regions[at];
        if len > r.len - off {
            return Err(MemError::Crosses { addr, len });
        }
        HostRange::new(
            Arc::clone(&r.map),
            r.offset + off as usize,
            len as usize,
            r.log + off,
            align,
        )
    }

    /// Copies bytes out of the guest; for the driver side, the control plane and tests.
    ///
    /// # Errors
    /// [`MemError::Unmapped`].
    #[expect(clippy::indexing_slicing, reason = "the pieces are as long as `dst`")]
    pub fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), MemError> {
        let (mut hint, mut done) = (0, 0);
        let len = u32::try_from(dst.len()).map_err(|_| MemError::Unmapped { addr, len: u64::MAX })?;
        self.pieces(&mut hint, addr, len, Access::empty(), |p| {
            done += p.read(0, &mut dst[done..]);
        })
    }
    /// Copies bytes into the guest; for the driver side, the control plane and tests. The dirty log gets no
    /// mark.
    ///
    /// # Errors
    /// [`MemError::Unmapped`].
    #[expect(clippy::indexing_slicing, reason = "the pieces are as long as `src`")]
    pub fn write(&self, addr: u64, src: &[u8]) -> Result<(), MemError> {
        let (mut hint, mut done) = (0, 0);
        let len = u32::try_from(src.len()).map_err(|_| MemError::Unmapped { addr, len: u64::MAX })?;
        self.pieces(&mut hint, addr, len, Access::empty(), |p| {
            done += p.write(0, &src[done..]);
        })
    }
}
