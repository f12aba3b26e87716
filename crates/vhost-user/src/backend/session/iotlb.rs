//! The IOMMU: entries that the front end sent, misses that queues met, ring areas behind it.
//!
//! An entry maps a range of I/O virtual addresses to the front end's own addresses. The queues' memory table
//! is made of the entries. The front end sends entries on request (specification, "IOMMU support"). When
//! there are too many, the session forgets the oldest and requests them again when they are needed.
//!
//! Ring areas must be readable and writable in one contiguous piece. The queues hold buffers and indirect
//! tables to their permissions.

use super::{Handled, Outcome, PLAIN, Refusal, Session, memory::Mapped, refuse};
use crate::message::{Access, BackendRequest, Connection, IotlbKind, IotlbMsg, Received, Reply};
use core::time::Duration;
use heddle_sys::Foreign;
use heddle_virtio::device::Device;
use heddle_virtio::mem::{self, Region};
use heddle_virtio::ring::QueueConfig;
use std::collections::{BTreeMap, VecDeque};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

/// Maximum number of entries: each change makes a new table of them all.
const MAX_ENTRIES: usize = mem::MAX_ENTRIES / 2;
/// Maximum number of addresses that are requested at a time.
const MAX_REQUESTED: usize = 1024;
/// Time that the front end has for a reply before the session repeats the request.
const REQUEST_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IotlbEntry {
    pub(super) size: u64,
    pub(super) user: u64,
    pub(super) access: Access,
}

/// Entries, and the channel on which the session requests more.
#[derive(Debug, Default)]
pub(super) struct Iotlb {
    /// The entries by first address; disjoint.
    entries: BTreeMap<u64, IotlbEntry>,
    /// First addresses in the order in which they came; may name entries that are gone.
    age: VecDeque<u64>,
    /// Requested addresses whose entries have not come.
    requested: Vec<(u64, Access, Instant)>,
    channel: Option<Connection>,
    /// Why a request could not be sent.
    complaint: Option<String>,
}

impl Iotlb {
    /// Forgets all entries.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.age.clear();
        self.requested.clear();
    }

    /// Removes entries that have an address in the range. It removes whole entries, since the rest of one is
    /// requested again.
    pub(super) fn remove(&mut self, iova: u64, size: u64) -> bool {
        let end = iova.saturating_add(size);
        let before = self.entries.len();
        self.entries
            .retain(|&at, e| at >= end || at.saturating_add(e.size) <= iova);
        self.entries.len() != before
    }

    /// Adds an entry; returns whether others had to go.
    pub(super) fn insert(&mut self, iova: u64, entry: IotlbEntry) -> bool {
        let mut gone = self.remove(iova, entry.size);
        while self.entries.len() >= MAX_ENTRIES {
            gone = true;
            let oldest = self.age.pop_front();
            if oldest.is_none_or(|at| self.entries.remove(&at).is_none()) && oldest.is_none() {
                self.entries.pop_first();
            }
        }
        if self.age.len() >= 4 * MAX_ENTRIES {
            let mut seen = std::collections::HashSet::new();
            let entries = &self.entries;
            self.age.retain(|at| entries.contains_key(at) && seen.insert(*at));
        }
        self.entries.insert(iova, entry);
        self.age.push_back(iova);
        let end = iova.saturating_add(entry.size);
        self.requested.retain(|(at, ..)| !(iova..end).contains(at));
        gone
    }

    /// The queues' regions: entries next to each other in both spaces are one, since a ring's area has to be.
    pub(super) fn regions(&self, memory: &[Mapped]) -> Vec<Region> {
        let mut merged: Vec<(u64, IotlbEntry)> = Vec::with_capacity(self.entries.len());
        for (&iova, e) in &self.entries {
            match merged.last_mut() {
                Some((at, last))
                    if last.access == e.access
                        && at.checked_add(last.size) == Some(iova)
                        && last.user.checked_add(last.size) == Some(e.user) =>
                {
                    last.size += e.size;
                }
                _ => merged.push((iova, *e)),
            }
        }
        let memory = Places::new(memory);
        merged
            .iter()
            .flat_map(|(iova, e)| pieces(*iova, e, &memory))
            .collect()
    }

    /// First address of the range that no entry with this access holds.
    pub(super) fn missing(&self, iova: u64, size: u64, access: Access) -> Option<u64> {
        let (mut at, end) = (iova, iova.saturating_add(size));
        while at < end {
            match self.entries.range(..=at).next_back() {
                Some((&from, e)) if at - from < e.size && e.access.contains(access) => {
                    at = from.saturating_add(e.size);
                }
                _ => return Some(at),
            }
        }
        None
    }

    /// Requests the entry at `iova` from the front end, unless that was just done. A channel that does not
    /// work is no fault of the message that is being handled: it is reported once.
    fn request(&mut self, iova: u64, access: Access) {
        if let Err(why) = self.try_request(iova, access) {
            self.complaint.get_or_insert(why.text);
        }
    }
    fn try_request(&mut self, iova: u64, access: Access) -> Result<(), Refusal> {
        let now = Instant::now();
        self.requested
            .retain(|(.., at)| now.duration_since(*at) < REQUEST_INTERVAL);
        if self.requested.len() >= MAX_REQUESTED
            || self.requested.iter().any(|&(a, x, _)| (a, x) == (iova, access))
        {
            return Ok(());
        }
        let Some(channel) = &mut self.channel else {
            refuse!("{iova:#x} is not known, and there is no channel to request it");
        };
        let request = BackendRequest::Iotlb(IotlbMsg {
            iova,
            size: 0,
            user: 0,
            access,
            kind: IotlbKind::Miss,
        });
        let mut payload = Vec::new();
        request.encode(&mut payload);
        if let Err(e) = channel.send(request.code(), PLAIN, &payload, &[]) {
            self.channel = None;
            refuse!("cannot request {iova:#x}: {e}");
        }
        self.requested.push((iova, access, now));
        Ok(())
    }

    /// When a request has to be repeated.
    pub(super) fn next(&self) -> Option<Instant> {
        self.requested.iter().map(|(.., at)| *at + REQUEST_INTERVAL).min()
    }

    /// Sends the messages that wait, and drops the front end's messages on the channel: replies that this
    /// back end did not request.
    pub(super) fn serve(&mut self) -> Result<(), Refusal> {
        let Some(channel) = &mut self.channel else {
            return Ok(());
        };
        let mut end = channel.flush().err();
        for _ in 0..super::TURN {
            match channel.recv() {
                Ok(Received::Frame(_)) => {}
                Ok(Received::Nothing) => break,
                Ok(Received::Closed) => {
                    self.channel = None;
                    return Ok(());
                }
                Err(e) => {
                    end = Some(e);
                    break;
                }
            }
        }
        if let Some(e) = end {
            self.channel = None;
            refuse!("the back end's channel: {e}");
        }
        Ok(())
    }
}

/// The guest's memory by the front end's addresses.
struct Places<'a>(Vec<&'a Mapped>);

impl<'a> Places<'a> {
    fn new(memory: &'a [Mapped]) -> Self {
        let mut all: Vec<&Mapped> = memory.iter().collect();
        all.sort_by_key(|m| m.given.user);
        Self(all)
    }
    /// The region with this address, and where in it that is. Regions may overlap in these addresses: then
    /// the one that begins last.
    fn find(&self, user: u64) -> Option<(&'a Mapped, u64)> {
        let at = self.0.partition_point(|m| m.given.user <= user).checked_sub(1)?;
        let m = self.0.get(at)?;
        let offset = user - m.given.user;
        (offset < m.given.size).then_some((m, offset))
    }
}

/// The parts of an entry that are in the guest's memory; the entry may span several regions of the front
/// end's addresses.
fn pieces(iova: u64, e: &IotlbEntry, memory: &Places<'_>) -> Vec<Region> {
    let (mut done, mut out) = (0, Vec::new());
    let access = mem::Access::from_bits_truncate(e.access.bits());
    while done < e.size {
        let user = e.user.saturating_add(done);
        let Some((m, offset)) = memory.find(user) else {
            break;
        };
        let size = (e.size - done).min(m.given.size - offset);
        let part = usize::try_from(offset)
            .ok()
            .and_then(|at| Region::part(iova.checked_add(done)?, size, user, Arc::clone(&m.map), at).ok());
        out.extend(part.map(|r| {
            r.logged_at(m.given.guest.saturating_add(offset))
                .restricted(access)
        }));
        done += size;
    }
    out
}

impl Session {
    pub(super) fn set_backend_req_fd(&mut self, fd: Option<Foreign>) -> Handled {
        let Some(fd) = fd else { refuse!("no descriptor") };
        use rustix::net::{AddressFamily, SocketType, sockopt};
        let family = sockopt::socket_domain(&fd);
        let kind = sockopt::socket_type(&fd);
        if (family, kind) != (Ok(AddressFamily::UNIX), Ok(SocketType::STREAM)) {
            refuse!("the descriptor is no Unix stream socket");
        }
        self.iotlb.channel = Some(Connection::new(UnixStream::from(fd.into_fd())));
        Ok(Outcome::Done)
    }

    pub(super) fn iotlb_message(&mut self, msg: IotlbMsg, device: &mut dyn Device) -> Handled {
        let wraps = msg.iova.checked_add(msg.size).is_none() || msg.user.checked_add(msg.size).is_none();
        let gone = match msg.kind {
            IotlbKind::Update => {
                if msg.size == 0 || wraps {
                    refuse!("an entry of {:#x} bytes at {:#x}", msg.size, msg.iova);
                }
                let table = Places::new(&self.memory.regions);
                let entry = IotlbEntry {
                    size: msg.size,
                    user: msg.user,
                    access: msg.access,
                };
                // "Addresses and size must be within vhost memory regions."
                let inside: u64 = pieces(msg.iova, &entry, &table).iter().map(Region::len).sum();
                if inside != msg.size {
                    refuse!("{:#x}+{:#x} is not in the guest's memory", msg.user, msg.size);
                }
                self.iotlb.insert(msg.iova, entry)
            }
            IotlbKind::Invalidate => {
                // A range of no bytes and a range of all bytes both mean "everything".
                if msg.size == 0 {
                    self.iotlb.clear();
                    true
                } else {
                    self.iotlb.remove(msg.iova, msg.size)
                }
            }
            IotlbKind::Miss | IotlbKind::AccessFail => refuse!("{:?} goes the other way", msg.kind),
        };
        if !gone && msg.kind == IotlbKind::Invalidate {
            return Ok(super::number(0));
        }
        let published = match self.publish_memory(device) {
            Ok(published) => published,
            Err(why) => {
                // No table can hold the entries, since they span too many regions: the needed ones are
                // requested again.
                self.iotlb.clear();
                self.publish_memory(device)?;
                return Err(why);
            }
        };
        self.follow_memory(device)?;
        match published {
            // Workers that still use the old table use nothing that is gone.
            Outcome::Await(..) if !gone => Ok(super::number(0)),
            Outcome::Await(old, _) => Ok(Outcome::Await(old, Some(Reply::U64(0)))),
            other => Ok(other),
        }
    }

    /// Whether all of a ring's areas are known; requests the first missing address of each area.
    pub(super) fn areas_reachable(&mut self, cfg: &QueueConfig) -> bool {
        let mut all = true;
        for (at, len) in [cfg.desc, cfg.driver, cfg.device].into_iter().zip(cfg.area_len()) {
            if let Some(addr) = self.iotlb.missing(at, len, Access::all()) {
                all = false;
                self.iotlb.request(addr, Access::all());
            }
        }
        all
    }

    /// Requests the entries that queues wait for, and repeats requests whose entries never came.
    pub(super) fn serve_iotlb(&mut self, device: &mut dyn Device) {
        let misses = self.outbox.take();
        if !self.has_iommu() {
            return;
        }
        let mut served = self.iotlb.serve();
        for miss in misses {
            let access = if miss.write { Access::WRITE } else { Access::READ };
            self.iotlb.request(miss.addr, access);
        }
        if self.iotlb.next().is_some_and(|t| t <= Instant::now()) {
            self.iotlb.requested.clear();
            // Queues that still wait report their misses again; the rings' areas are checked here.
            served = served.and(self.follow_memory(device));
            device.refresh_memory();
        }
        let complaint = self.iotlb.complaint.take();
        for why in complaint.into_iter().chain(served.err().map(|why| why.text)) {
            device.trouble(&why);
        }
    }
    /// When to serve the IOTLB again at the latest.
    pub(super) fn iotlb_deadline(&self) -> Option<Instant> {
        self.iotlb.next()
    }
}
