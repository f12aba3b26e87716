//! The driver's memory: regions that are requested from the kernel as they are needed.
//!
//! Under `virtio_vdpa` each ring is a region of its own. All packets are in one, the bounce region, which
//! exists from the first packet on. So a region is requested when a ring starts in it or a queue misses an
//! address. A reset takes all regions back.
//!
//! The regions' pages are the kernel's. One that no driver has used raises SIGBUS, so mappings are guarded
//! ([`Mapping::guarded`]). With `vhost_vdpa` the files are a guest's.

use crate::host::DeviceEnd;
use heddle_sys::Mapping;
use heddle_virtio::device::Device;
use heddle_virtio::mem::{Access, GuestMemory, Region, SharedMemory};
use heddle_virtio::ring::QueueConfig;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Maximum number of known regions. With one more all are forgotten, and those in use are requested again.
const MAX_KNOWN: usize = 1024;

#[derive(Debug)]
struct KnownRegion {
    start: u64,
    last: u64,
    access: Access,
    region: Region,
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressState {
    /// The address is in the table, now or since before.
    Yes,
    /// No region has the address now.
    Nothing,
    /// The region does not allow it.
    Forbidden,
}

#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) shared: Arc<SharedMemory>,
    known: Vec<KnownRegion>,
    changed: bool,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self {
            shared: Arc::new(SharedMemory::new(GuestMemory::default())),
            known: Vec::new(),
            changed: false,
        }
    }

    fn holder(&self, addr: u64) -> Option<&KnownRegion> {
        self.known.iter().find(|k| (k.start..=k.last).contains(&addr))
    }

    /// Finds the region with `addr`, and queries the kernel if need be.
    pub(crate) fn resolve(
        &mut self,
        end: &dyn DeviceEnd,
        addr: u64,
        access: Access,
    ) -> io::Result<AddressState> {
        if self.holder(addr).is_none_or(|k| !k.access.contains(access)) {
            self.request(end, addr)?;
        }
        Ok(match self.holder(addr) {
            None => AddressState::Nothing,
            Some(k) if k.access.contains(access) => AddressState::Yes,
            Some(_) => AddressState::Forbidden,
        })
    }

    fn request(&mut self, end: &dyn DeviceEnd, addr: u64) -> io::Result<()> {
        let Some((entry, fd)) = end.region(addr, addr)? else {
            return Ok(());
        };
        if entry.start > addr || entry.last < addr {
            return Err(io::Error::other(format!(
                "no memory at {addr:#x}: the kernel reported {:#x} to {:#x}",
                entry.start, entry.last
            )));
        }
        let mut access = Access::empty();
        access.set(Access::READ, entry.readable);
        access.set(Access::WRITE, entry.writable);
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let len = (entry.last - entry.start).checked_add(1);
        let len = len.ok_or_else(|| invalid("a region of all addresses".into()))?;
        let map = Mapping::guarded(fd.as_fd(), entry.offset, len)?;
        let region = Region::new(entry.start, 0, Arc::new(map)).map_err(|e| invalid(e.to_string()))?;
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known
            .retain(|k| k.last < entry.start || k.start > entry.last);
        self.known.push(KnownRegion {
            start: entry.start,
            last: entry.last,
            access,
            region: region.restricted(access),
        });
        self.changed = true;
        Ok(())
    }

    /// Whether all areas of a ring are there, readable and writable; requests the unknown ones.
    pub(crate) fn covers(&mut self, end: &dyn DeviceEnd, cfg: &QueueConfig) -> io::Result<AddressState> {
        for addr in [cfg.desc, cfg.driver, cfg.device] {
            match self.resolve(end, addr, Access::all())? {
                AddressState::Yes => {}
                other => return Ok(other),
            }
        }
        Ok(AddressState::Yes)
    }

    /// Forgets the regions with these addresses, the last included.
    pub(crate) fn forget(&mut self, start: u64, last: u64) {
        let before = self.known.len();
        self.known.retain(|k| k.last < start || k.start > last);
        self.changed |= before != self.known.len();
    }

    /// Gives the queues the regions that are known. Returns the table before, if it was another one.
    pub(crate) fn publish(&mut self, device: &mut dyn Device) -> Option<Arc<GuestMemory>> {
        if !core::mem::take(&mut self.changed) {
            return None;
        }
        let regions = self.known.iter().map(|k| k.region.clone()).collect();
        // They are disjoint and few; a table that could not be made is one without memory.
        let table = GuestMemory::new(regions).unwrap_or_default();
        let old = self.shared.replace(table);
        device.refresh_memory();
        Some(old)
    }
}
