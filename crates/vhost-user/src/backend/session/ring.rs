//! Rings: the settings that the front end sent for each, and when it runs.
//!
//! A ring starts when its size, its addresses and its kick are known and all of its areas can be reached. It
//! stops with GET_VRING_BASE. The specification starts a ring later, at its first kick. But front ends know
//! the earlier start from other back ends: they set rings up only when the driver is ready. A disabled ring
//! is started as disabled.

use super::{Handled, Outcome, Refusal, Session, refuse};
use crate::message::{Reply, VringAddr, VringFd, VringState};
use core::time::Duration;
use heddle_sys::{Foreign, foreign};
use heddle_virtio::device::{Call, Device, Queue, RingSetup};
use heddle_virtio::journal::Begun;
use heddle_virtio::mem::GuestMemory;
use heddle_virtio::ring::{Features, Position, QueueConfig, Record, Recovery, Resubmit, Tracking};
use heddle_virtio::{DeviceRx, DeviceTx};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// The settings that the front end sent for a ring.
#[derive(Debug, Default)]
pub(super) struct Ring {
    size: u16,
    addr: Option<VringAddr>,
    /// The base that either side sent last.
    base: Option<u32>,
    /// The ring's position when it was stopped without a reply to the front end.
    at: Option<Position>,
    /// Whether SET_VRING_KICK came since the ring was stopped.
    kicked: bool,
    /// Kept here until the ring starts.
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    err: Option<OwnedFd>,
    enabled: bool,
    /// The configuration of the running ring.
    running: Option<QueueConfig>,
    /// The number of checks in which the ring contradicted its record; it is checked again later.
    looks: u32,
}

/// Maximum number of checks of a ring that contradicts its record, and the time between them. Its driver may
/// just be writing to it, or was interrupted in the middle of a write.
const LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

impl Ring {
    pub(super) fn is_started(&self) -> bool {
        self.running.is_some()
    }
    /// Sets the ring to its first state, but keeps the descriptors that the front end need not send again.
    pub(super) fn reset(&mut self) {
        *self = Self {
            call: self.call.take(),
            err: self.err.take(),
            ..Self::default()
        };
    }
    /// Whether the front end sent everything that the ring needs to run.
    fn is_complete(&self) -> bool {
        self.size > 0 && self.addr.is_some() && self.kicked
    }
}

/// A copy for the ring; the session keeps its own, for a ring that is stopped and started again.
fn copy(fd: Option<&OwnedFd>) -> Result<Option<OwnedFd>, Refusal> {
    Ok(fd.map(OwnedFd::try_clone).transpose()?)
}

/// Notifications go through eventfds, or the pipes of front ends that have none. Any other descriptor may
/// have any effect when it is written, polled, queried or closed. A descriptor that workers write to must not
/// make them wait. It is set to non-blocking here; [`heddle_sys::EventFd`] copes with a front end that clears
/// the flag.
fn notifier(fd: Option<Foreign>, written: bool) -> Result<Option<OwnedFd>, Refusal> {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let Some(fd) = fd else { return Ok(None) };
    if fd.kind() != foreign::Kind::Notifier {
        refuse!("a descriptor is neither an eventfd nor a pipe");
    }
    if written {
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
    }
    Ok(Some(fd.into_fd()))
}

impl Session {
    fn ring(&mut self, index: u32) -> Result<&mut Ring, Refusal> {
        let n = self.rings.len();
        match self.rings.get_mut(index as usize) {
            Some(ring) => Ok(ring),
            None => refuse!("there is no ring {index} of {n}"),
        }
    }
    fn stopped_ring(&mut self, index: u32) -> Result<&mut Ring, Refusal> {
        let ring = self.ring(index)?;
        if ring.is_started() {
            refuse!("ring {index} is running");
        }
        Ok(ring)
    }

    pub(super) fn set_vring_num(&mut self, v: VringState, device: &mut dyn Device) -> Handled {
        let size = u16::try_from(v.num).ok();
        let size = size.filter(|s| (1..=heddle_virtio::ring::limits::MAX_QUEUE).contains(s));
        let Some(size) = size else {
            refuse!("a ring of {} entries", v.num)
        };
        let ring = self.ring(v.index)?;
        if ring.is_started() && ring.size != size {
            refuse!("ring {} is running", v.index);
        }
        ring.size = size;
        self.try_start(v.index, device)
    }

    pub(super) fn set_vring_base(&mut self, v: VringState) -> Handled {
        let ring = self.stopped_ring(v.index)?;
        ring.base = Some(v.num);
        ring.at = None;
        Ok(Outcome::Done)
    }

    pub(super) fn set_vring_addr(&mut self, v: VringAddr, device: &mut dyn Device) -> Handled {
        let ring = self.ring(v.index)?;
        let before = ring.addr.replace(v);
        if !ring.is_started() {
            return self.try_start(v.index, device);
        }
        if before == Some(v) {
            return Ok(Outcome::Done);
        }
        // A running ring's logging is switched on and off this way (specification, "Migration").
        self.restart(v.index, device)
    }

    pub(super) fn set_vring_kick(
        &mut self,
        v: VringFd,
        fd: Option<Foreign>,
        device: &mut dyn Device,
    ) -> Handled {
        let fd = notifier(fd, false)?;
        let ring = self.ring(v.index.into())?;
        ring.kicked = true;
        ring.kick = fd;
        if ring.is_started() {
            device.set_kick(v.index.into(), copy(ring.kick.as_ref())?);
            return Ok(Outcome::Done);
        }
        self.try_start(v.index.into(), device)
    }

    pub(super) fn set_vring_call(
        &mut self,
        v: VringFd,
        fd: Option<Foreign>,
        device: &mut dyn Device,
    ) -> Handled {
        let fd = notifier(fd, true)?;
        let ring = self.ring(v.index.into())?;
        ring.call = fd;
        if ring.is_started() {
            let fd = copy(ring.call.as_ref())?;
            device.set_call(v.index.into(), self.interrupt(fd));
        }
        Ok(Outcome::Done)
    }

    pub(super) fn set_vring_err(
        &mut self,
        v: VringFd,
        fd: Option<Foreign>,
        device: &mut dyn Device,
    ) -> Handled {
        let fd = notifier(fd, true)?;
        let ring = self.ring(v.index.into())?;
        ring.err = fd;
        if ring.is_started() {
            let fd = copy(ring.err.as_ref())?;
            device.set_err(v.index.into(), self.interrupt(fd));
        }
        Ok(Outcome::Done)
    }

    pub(super) fn set_vring_enable(&mut self, v: VringState, device: &mut dyn Device) -> Handled {
        if v.num > 1 {
            refuse!("a ring is enabled by 1 or disabled by 0, not by {}", v.num);
        }
        let before = self.is_enabled(v.index);
        self.ring(v.index)?.enabled = v.num == 1;
        let now = self.is_enabled(v.index);
        if before != now && self.ring(v.index)?.is_started() {
            device.enable(Self::short(v.index), now);
        }
        Ok(Outcome::Done)
    }

    /// RESET_OWNER is deprecated; of the two meanings allowed this is the one that loses nothing.
    pub(super) fn disable_all(&mut self, device: &mut dyn Device) -> Handled {
        for (i, ring) in (0..).zip(&mut self.rings) {
            if core::mem::take(&mut ring.enabled) && ring.is_started() {
                device.enable(i, false);
            }
        }
        Ok(Outcome::Done)
    }

    pub(super) fn get_vring_base(&mut self, v: VringState, device: &mut dyn Device) -> Handled {
        // A ring whose state was not determined yet keeps its known position.
        let unknown = self.ring(v.index)?.looks > 0;
        self.stop(v.index, device);
        let packed = self.features.contains(Features::RING_PACKED);
        let ring = self.ring(v.index)?;
        // A new start takes a new kick.
        ring.kicked = false;
        ring.kick = None;
        ring.looks = 0;
        let num = match ring.at.take() {
            Some(at) => at.to_base(packed),
            None => ring.base.unwrap_or_else(|| Position::default().to_base(packed)),
        };
        ring.base = Some(num);
        if let Some(journal) = self.journal.as_ref().filter(|_| !unknown) {
            journal.end(Self::short(v.index));
        }
        Ok(Outcome::Reply(
            Reply::Vring(VringState { index: v.index, num }),
            None,
        ))
    }

    /// Without PROTOCOL_FEATURES rings need not be enabled (specification, "Ring states").
    fn is_enabled(&self, index: u32) -> bool {
        !self.features.contains(Features::PROTOCOL_FEATURES)
            || self.rings.get(index as usize).is_some_and(|r| r.enabled)
    }
    /// Indices were checked against the number of rings, which fits.
    fn short(index: u32) -> u16 {
        u16::try_from(index).expect("at most 256 rings")
    }

    /// Starts the ring if all of its settings are known and its areas can be reached. An area behind the
    /// IOMMU that is not known yet is requested; the ring starts when the entry comes.
    pub(super) fn try_start(&mut self, index: u32, device: &mut dyn Device) -> Handled {
        let ring = self.ring(index)?;
        if ring.is_started() || !ring.is_complete() {
            return Ok(Outcome::Done);
        }
        let Some(cfg) = self.config(index)? else {
            return Ok(Outcome::Done);
        };
        let table = self.memory.shared.get();
        let (start, record, resubmit) = if cfg.packed() {
            let Some((start, record)) = self.packed_start(index, &cfg, &table)? else {
                self.ring(index)?.looks += 1;
                self.look_again = Some(Instant::now() + BETWEEN_LOOKS);
                return Ok(Outcome::Done);
            };
            (start, record, None)
        } else {
            let (start, resubmit) = self.split_start(index, &cfg, &table)?;
            (start, None, resubmit)
        };
        let cfg = QueueConfig { start, ..cfg };
        let setup = self.setup(index, cfg, record, resubmit)?;
        device.start(setup)?;
        let ring = self.ring(index)?;
        ring.running = Some(cfg);
        ring.at = None;
        ring.looks = 0;
        Ok(Outcome::Done)
    }

    /// The ring's configuration for a queue. `None`: entries for its areas are still missing.
    fn config(&mut self, index: u32) -> Result<Option<QueueConfig>, Refusal> {
        let iommu = self.has_iommu();
        let features = self.features;
        let ring = self.ring(index)?;
        let Some(addr) = ring.addr else { return Ok(None) };
        let mut cfg = QueueConfig {
            features,
            size: ring.size,
            desc: addr.desc,
            driver: addr.avail,
            device: addr.used,
            start: Position::default(),
            wait_for_miss: iommu,
        };
        let areas = cfg.area_len();
        if iommu {
            return Ok(self.areas_reachable(&cfg).then_some(cfg));
        }
        let table = self.memory.shared.get();
        for (at, len) in [&mut cfg.desc, &mut cfg.driver, &mut cfg.device]
            .into_iter()
            .zip(areas)
        {
            *at = table.addr_of_user(*at, len)?;
        }
        Ok(Some(cfg))
    }

    /// The position at which a split ring continues: behind its used index. All of this back end's queues use
    /// chains in order. So chains that were taken but not used before a crash of either side are taken again.
    /// Chains that another back end took out of order are in the front end's area. A different position from
    /// the front end is stale.
    fn split_start(
        &mut self,
        index: u32,
        cfg: &QueueConfig,
        table: &GuestMemory,
    ) -> Result<(Position, Option<Resubmit>), Refusal> {
        let area = self.inflight.as_ref();
        let record = area.and_then(|a| a.split_record(Self::short(index), cfg.size));
        let resubmit = record.map(|r| r.recover(cfg, table)).transpose()?.flatten();
        let start = Position {
            index: cfg.used_index(table)?,
            ..Position::default()
        };
        Ok((start, resubmit))
    }

    /// The position at which a packed ring continues. The front end's inflight area, or this process's
    /// journal, has it if the ring agrees; otherwise the front end's base counts. `None`: the ring
    /// contradicts its record, and is to be checked again.
    fn packed_start(
        &mut self,
        index: u32,
        cfg: &QueueConfig,
        table: &GuestMemory,
    ) -> Result<Option<(Position, Option<Record>)>, Refusal> {
        let short = Self::short(index);
        let ring = self.ring(index)?;
        let told = ring
            .base
            .map_or_else(Position::default, |b| Position::from_base(b, true));
        let known = ring.at;
        let last = ring.looks >= LOOKS;
        let area = self.inflight.as_ref();
        if let Some(record) = area.and_then(|a| a.record(short, cfg.size)) {
            let found = match known {
                Some(at) => Some(at),
                None => match record.recover(cfg, table)? {
                    Recovery::At(at) => Some(at),
                    Recovery::Contradicted if !last => return Ok(None),
                    Recovery::Contradicted | Recovery::Nothing => None,
                },
            };
            let at = found.unwrap_or(told);
            if found.is_none() || known.is_some_and(|at| !record.is_at(at)) {
                record.start(at);
            }
            return Ok(Some((at, Some(record))));
        }
        let journal = self.journal.as_ref();
        Ok(
            match journal.and_then(|j| j.begin(short, cfg, told, known, table, last)) {
                Some(Begun::At(at, record)) => Some((at, Some(record))),
                Some(Begun::Later) => None,
                None => Some((known.unwrap_or(told), None)),
            },
        )
    }

    /// Checks rings again that contradicted their records, when it is time.
    pub(super) fn look_at_rings(&mut self, now: Instant, device: &mut dyn Device) -> Result<(), Refusal> {
        if self.look_again.is_none_or(|at| now < at) {
            return Ok(());
        }
        self.look_again = None;
        for index in (0..).take(self.rings.len()) {
            if self.ring(index)?.looks > 0 {
                self.try_start(index, device)?;
            }
        }
        Ok(())
    }

    fn setup(
        &mut self,
        index: u32,
        config: QueueConfig,
        record: Option<Record>,
        resubmit: Option<Resubmit>,
    ) -> Result<RingSetup, Refusal> {
        let addr = self.ring(index)?.addr;
        let tracking = Tracking {
            // Behind an IOMMU the table's own log addresses count, as they do for Linux's back end: the front
            // end sends I/O virtual addresses.
            log_device: addr.filter(|a| a.log_used && !self.has_iommu()).map(|a| a.log),
            record,
            resubmit,
        };
        let enabled = self.is_enabled(index);
        let memory = Arc::clone(&self.memory.shared);
        let queue = if index.is_multiple_of(2) {
            Queue::ToGuest(DeviceTx::tracked(config, Arc::clone(&memory), tracking)?)
        } else {
            Queue::FromGuest(DeviceRx::tracked(config, Arc::clone(&memory), tracking)?)
        };
        let ring = self.ring(index)?;
        let kick = copy(ring.kick.as_ref())?;
        let (call, err) = (copy(ring.call.as_ref())?, copy(ring.err.as_ref())?);
        Ok(RingSetup {
            index: Self::short(index),
            config,
            queue,
            memory,
            kick,
            call: self.interrupt(call),
            err: self.interrupt(err),
            enabled,
        })
    }
    /// The call that signals one of the front end's descriptors.
    fn interrupt(&self, fd: Option<OwnedFd>) -> Option<Call> {
        fd.map(|fd| self.outbox.call(fd))
    }

    /// Stops a ring if it runs, and remembers where it was.
    fn stop(&mut self, index: u32, device: &mut dyn Device) {
        let Ok(ring) = self.ring(index) else { return };
        if ring.running.take().is_some() {
            ring.at = Some(device.stop(Self::short(index)));
        }
    }
    pub(super) fn stop_all(&mut self, device: &mut dyn Device) {
        for index in (0..).take(self.rings.len()) {
            self.stop(index, device);
        }
    }
    fn restart(&mut self, index: u32, device: &mut dyn Device) -> Handled {
        self.stop(index, device);
        self.try_start(index, device)
    }

    /// After the memory changed: restarts rings whose areas have moved, and starts rings that waited. A ring
    /// that fails does not keep the others from it.
    pub(super) fn follow_memory(&mut self, device: &mut dyn Device) -> Result<(), Refusal> {
        let rings = (0..).take(self.rings.len());
        let followed: Vec<_> = rings.map(|index| self.follow(index, device)).collect();
        followed.into_iter().collect()
    }
    fn follow(&mut self, index: u32, device: &mut dyn Device) -> Result<(), Refusal> {
        let Some(running) = self.ring(index)?.running else {
            return self.try_start(index, device).map(drop);
        };
        let moved = match self.config(index) {
            Ok(Some(cfg)) => {
                (cfg.desc, cfg.driver, cfg.device) != (running.desc, running.driver, running.device)
            }
            Ok(None) => false, // requested; the queue waits for it
            Err(_) => true,
        };
        if moved {
            self.restart(index, device)?;
        }
        Ok(())
    }
}
