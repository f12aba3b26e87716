//! The guest's memory and the dirty log.
//!
//! **A request is done or refused.** Each reason to refuse a request is found before the table changes. A
//! ring whose areas are not in the new table stops, with a line in the log. It starts again when a later
//! table has them: front ends also replace memory region by region.
//!
//! A table is built from the front end's message and published. The reply follows when the old table is out
//! of use ([`super::Outcome::Await`]). "Use after unmap" cannot happen, since a table keeps its mappings. The
//! front end does not learn that memory is free while a worker may still copy into it.

use super::{Handled, Outcome, Refusal, Session, is_starved, memory_file, no_memory, refuse};
use crate::backend::quota::{Quota, Share};
use crate::message::{LogArea, MemRegion, Reply};
use heddle_sys::{Foreign, Mapping};
use heddle_virtio::device::Device;
use heddle_virtio::mem::{DirtyLog, GuestMemory, Region, SharedMemory};
use heddle_virtio::ring::Features;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Maximum number of bytes of a dirty log: a guest of 1 PiB.
const MAX_LOG: u64 = 1 << 35;

/// Maximum number of bytes of a guest's memory: this process has 128 TiB of addresses for all of them.
const MAX_MEMORY: u64 = 16 << 40;

/// A region that the front end handed over.
#[derive(Clone, Debug)]
pub(super) struct Mapped {
    pub(super) given: MemRegion,
    file: FileId,
    region: Region,
    pub(super) map: Arc<Mapping>,
    /// The region's share of the quota of all sessions.
    share: Arc<Share>,
}

/// Identity of a descriptor's file: device and inode.
type FileId = (u64, u64);

/// The memory that the front end set up.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) regions: Vec<Mapped>,
    log: Option<Arc<DirtyLog>>,
    pub(super) shared: Arc<SharedMemory>,
    quota: Arc<Quota>,
}

fn file_id(fd: &Foreign) -> Result<FileId, Refusal> {
    memory_file(fd)?;
    let st = rustix::fs::fstat(fd)?;
    Ok((st.st_dev, st.st_ino))
}

/// Maps a region that the front end handed over.
pub(super) fn mapped(fd: &Foreign, offset: u64, size: u64) -> Result<Mapping, Refusal> {
    Mapping::guarded(fd.as_fd(), offset, size).map_err(|e| {
        let why = match e.kind() {
            std::io::ErrorKind::InvalidInput => "its file is not that long".to_owned(),
            _ => e.to_string(),
        };
        Refusal {
            text: format!("{size:#x} bytes at {offset:#x} cannot be mapped: {why}"),
            is_starved: is_starved(&e),
        }
    })
}

/// Refuses more than [`MAX_MEMORY`] bytes, before they are mapped.
fn check_sum(sizes: impl Iterator<Item = u64>) -> Result<(), Refusal> {
    let sum = sizes.fold(0, u64::saturating_add);
    if sum > MAX_MEMORY {
        refuse!("{sum:#x} bytes of memory, more than {MAX_MEMORY:#x}");
    }
    Ok(())
}

impl Memory {
    pub(super) fn new(quota: Arc<Quota>) -> Self {
        Self {
            regions: Vec::new(),
            log: None,
            shared: no_memory(),
            quota,
        }
    }

    /// Maps a region that is to come beside `others`, or takes the mapping that is there already for the same
    /// bytes of the same file.
    fn map(&self, given: &MemRegion, fd: &Foreign, others: &[Mapped]) -> Result<Mapped, Refusal> {
        let file = file_id(fd)?;
        let same =
            |m: &&Mapped| m.file == file && (m.given.offset, m.given.size) == (given.offset, given.size);
        let (map, share) = match self.regions.iter().chain(others).find(same) {
            Some(m) => (Arc::clone(&m.map), Arc::clone(&m.share)),
            None => {
                let held = others.iter().map(|m| m.given.size).sum();
                let share = self
                    .quota
                    .take(given.size, held, others.len() as u64)
                    .map_err(Refusal::new)?;
                let map = mapped(fd, given.offset, given.size)?;
                (Arc::new(map), Arc::new(share))
            }
        };
        let region = Region::new(given.guest, given.user, Arc::clone(&map))?;
        Ok(Mapped {
            given: *given,
            file,
            region,
            map,
            share,
        })
    }
}

impl Session {
    pub(super) fn set_mem_table(
        &mut self,
        regions: &[MemRegion],
        fds: &[Foreign],
        device: &mut dyn Device,
    ) -> Handled {
        check_sum(regions.iter().map(|r| r.size))?;
        let mut table = Vec::with_capacity(regions.len());
        for (given, fd) in regions.iter().zip(fds) {
            table.push(self.memory.map(given, fd, &table)?);
        }
        self.take_regions(table, device)
    }

    pub(super) fn add_mem_reg(
        &mut self,
        given: &MemRegion,
        fd: Option<Foreign>,
        device: &mut dyn Device,
    ) -> Handled {
        let Some(fd) = fd else { refuse!("no descriptor") };
        if self.memory.regions.len() >= self.offer.mem_slots {
            refuse!("all {} memory slots are in use", self.offer.mem_slots);
        }
        let there = self.memory.regions.iter().map(|m| m.given.size);
        check_sum(there.chain([given.size]))?;
        let mut table = self.memory.regions.clone();
        table.push(self.memory.map(given, &fd, &table)?);
        self.take_regions(table, device)
    }

    pub(super) fn rem_mem_reg(&mut self, given: &MemRegion, device: &mut dyn Device) -> Handled {
        // The file's offset does not count (specification, REM_MEM_REG).
        let same =
            |m: &Mapped| (m.given.guest, m.given.size, m.given.user) == (given.guest, given.size, given.user);
        let mut table = self.memory.regions.clone();
        let Some(at) = table.iter().position(same) else {
            refuse!("no region of {:#x} bytes at {:#x}", given.size, given.guest);
        };
        table.remove(at);
        self.take_regions(table, device)
    }

    /// Makes `table` the guest's memory, if it makes sense.
    fn take_regions(&mut self, table: Vec<Mapped>, device: &mut dyn Device) -> Handled {
        GuestMemory::new(table.iter().map(|m| m.region.clone()).collect())?;
        self.memory.regions = table;
        // Entries name the front end's addresses, which may mean other bytes now.
        self.iotlb.clear();
        let published = self.publish_memory(device)?;
        if let Err(why) = self.follow_memory(device) {
            device.note(&format!("a ring waits for its memory: {why}"));
        }
        Ok(published)
    }

    /// Whether the front end cut a file whose memory is in use: bytes read there since then mean nothing.
    pub(super) fn is_cut(&self) -> bool {
        self.memory.regions.iter().any(|m| m.map.was_cut())
            || self.memory.log.as_ref().is_some_and(|log| log.is_cut())
            || self.inflight.as_ref().is_some_and(super::inflight::Area::is_cut)
    }

    /// Publishes the table that follows from regions, IOTLB, features and log.
    pub(super) fn publish_memory(&mut self, device: &mut dyn Device) -> Handled {
        let regions = if self.has_iommu() {
            self.iotlb.regions(&self.memory.regions)
        } else {
            self.memory.regions.iter().map(|m| m.region.clone()).collect()
        };
        let log = self.memory.log.clone();
        let log = log.filter(|_| self.features.contains(Features::LOG_ALL));
        let table = GuestMemory::new(regions)?.with_log(log);
        let old = self.memory.shared.replace(table);
        device.refresh_memory();
        Ok(Outcome::Await(old, None))
    }

    pub(super) fn set_log_base(
        &mut self,
        area: Option<LogArea>,
        fd: Option<Foreign>,
        device: &mut dyn Device,
    ) -> Handled {
        let (Some(area), Some(fd)) = (area, fd) else {
            refuse!("a log can only be shared by a descriptor (LOG_SHMFD)");
        };
        if area.size > MAX_LOG {
            refuse!("a log of {:#x} bytes", area.size);
        }
        memory_file(&fd)?;
        let map = mapped(&fd, area.offset, area.size)?;
        self.memory.log = Some(Arc::new(DirtyLog::new(map)?));
        // "The back-end must reply" (specification, Communication); QEMU reads and ignores the number.
        let reply = Some(Reply::U64(0));
        match self.publish_memory(device)? {
            Outcome::Await(old, _) => Ok(Outcome::Await(old, reply)),
            other => Ok(other),
        }
    }
}
