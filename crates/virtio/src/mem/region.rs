//! One region of a guest's memory.

use super::backed::Backed;
use heddle_sys::Mapping;
use std::sync::Arc;

/// Why a table or a range is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemError {
    /// A region without bytes, or one that wraps around the address space.
    #[error("memory region {base:#x}+{len:#x} is empty or wraps around")]
    Wraps {
        /// First address.
        base: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A region longer than its mapping.
    #[error("memory region at {base:#x} is longer than what is mapped")]
    BeyondMapping {
        /// First address.
        base: u64,
    },
    /// Two regions with a common address.
    #[error("memory region at {base:#x} overlaps another one")]
    Overlap {
        /// First address of the second of the two.
        base: u64,
    },
    /// More regions than [`super::MAX_REGIONS`].
    #[error("too many memory regions")]
    TooMany,
    /// The range is not in the table.
    #[error("{addr:#x}+{len:#x} is not in the guest's memory")]
    Unmapped {
        /// First address that is missing.
        addr: u64,
        /// Bytes from there on.
        len: u64,
    },
    /// The range is in several regions where one mapping is needed.
    #[error("{addr:#x}+{len:#x} crosses memory regions")]
    Crosses {
        /// First address.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The address does not have the alignment that the structure needs (virtio 1.2 §2.7, §2.8.10.1).
    #[error("{addr:#x} is not aligned to {align}")]
    Misaligned {
        /// The address.
        addr: u64,
        /// The alignment.
        align: usize,
    },
}

bitflags::bitflags! {
    /// Permissions of the device in a region.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u8 {
        /// The device reads.
        const READ = 1;
        /// The device writes.
        const WRITE = 2;
    }
}

/// A range of the addresses that a driver puts into rings (guest physical addresses; I/O virtual addresses
/// behind an IOMMU), and where its bytes are.
#[derive(Clone, Debug)]
pub struct Region {
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) user: u64,
    pub(super) log: u64,
    pub(super) map: Arc<Mapping>,
    pub(super) offset: usize,
    pub(super) access: Access,
    /// For a mapping of a file that may have holes.
    pub(super) backed: Option<Arc<Backed>>,
}

impl Region {
    /// All of `map` at the driver's address `base`. `user` is the front end's own address of the same bytes
    /// (vhost-user "userspace address"), 0 where there is none.
    ///
    /// # Errors
    /// [`MemError::Wraps`].
    pub fn new(base: u64, user: u64, map: Arc<Mapping>) -> Result<Self, MemError> {
        let len = map.len() as u64;
        Self::part(base, len, user, map, 0)
    }
    /// `len` bytes from `offset` of `map` on.
    ///
    /// # Errors
    /// [`MemError::Wraps`], [`MemError::BeyondMapping`].
    pub fn part(base: u64, len: u64, user: u64, map: Arc<Mapping>, offset: usize) -> Result<Self, MemError> {
        if len == 0 || base.checked_add(len).is_none() || user.checked_add(len).is_none() {
            return Err(MemError::Wraps { base, len });
        }
        let end = usize::try_from(len).ok().and_then(|n| offset.checked_add(n));
        if end.is_none_or(|e| e > map.len()) {
            return Err(MemError::BeyondMapping { base });
        }
        Ok(Self {
            base,
            len,
            user,
            log: base,
            backed: Backed::of(&map),
            map,
            offset,
            access: Access::all(),
        })
    }
    /// Restricts the device's access to it (an IOMMU's permissions). Buffers and indirect tables are held to
    /// it. Ring areas are not, since the session checks them when it sets a ring up.
    #[must_use]
    pub fn restricted(mut self, access: Access) -> Self {
        self.access = access;
        self
    }
    /// Sets the guest physical address that dirty logging reports, where it differs from `base` (behind an
    /// IOMMU).
    #[must_use]
    pub fn logged_at(mut self, gpa: u64) -> Self {
        self.log = gpa;
        self
    }
    /// First address.
    pub fn base(&self) -> u64 {
        self.base
    }
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }
    /// Always false: an empty region is refused.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The front end's address of the first byte.
    pub fn user(&self) -> u64 {
        self.user
    }
}
