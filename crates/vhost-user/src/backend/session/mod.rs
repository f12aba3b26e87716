//! One connection of a front end: its settings, and the messages that change them.
//!
//! **Problem.** The front end sends any message in any order, while rings run in workers. Memory that it
//! takes away must be out of use before the reply. And one front end must not delay the others.
//!
//! **Invariants.**
//! * No function waits for the front end. A request that has to wait for workers ([`Pending`]) is checked
//!   again later; until then no further message is read.
//! * Each request gets the reply that the specification defines, once. A refused request gets an error reply
//!   if it has a reply. Otherwise the connection ends with a text that gives the reason.
//! * Memory: one table, one table of IOTLB entries, one unfinished message, two bounded queues of unsent
//!   bytes.
//! * After [`Session::close`] no ring runs.
//!
//! **Thread-safety.** Belongs to the control thread.

mod inflight;
mod iotlb;
mod memory;
mod negotiate;
mod ring;

use super::PROTOCOL;
use super::link::Outbox;
use super::quota::Quota;
use crate::message::{
    Connection, Frame, HeaderFlags, MessageError, ProtocolFeatures, Received, Reply, ReplyKind, Request,
    SocketError,
};
use core::time::Duration;
use heddle_sys::{EventFd, Foreign, foreign};
use heddle_virtio::device::{Device, MAX_QUEUE_PAIRS, Offer};
use heddle_virtio::journal::Journal;
use heddle_virtio::mem::{GuestMemory, MAX_REGIONS, SharedMemory};
use heddle_virtio::ring::Features;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// Time in which workers must stop using an old memory table. After it the session ends.
const MEMORY_WAIT: Duration = Duration::from_secs(2);
/// Time that the session waits for workers at once: busy workers refresh their table within it.
const AT_ONCE: Duration = Duration::from_micros(200);
/// Timeout of a message, from its first byte to its last.
const PARTIAL_WAIT: Duration = Duration::from_secs(2);
/// Time that a front end may leave replies unread.
const UNSENT_WAIT: Duration = Duration::from_secs(2);
/// Timeout of a front end's first message.
const HELLO_WAIT: Duration = Duration::from_secs(10);
/// Maximum number of messages that a session handles before other sessions get their turn, and the time after
/// which it handles no further one.
const TURN: usize = 64;
const TURN_TIME: Duration = Duration::from_millis(1);

/// Why a session ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum CloseReason {
    /// The front end closed the connection.
    #[error("the front end closed the connection")]
    Closed,
    /// The connection is broken, or the received bytes are no message.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A message that makes no sense here.
    #[error("{0}")]
    Refused(Refusal),
    /// The front end has not sent anything.
    #[error("no message from the front end (does it serve another port at this socket?)")]
    Silent,
    /// The port drops the socket, with the reason.
    #[error("{0}")]
    Removed(&'static str),
}

impl CloseReason {
    fn refused(text: impl Into<String>) -> Self {
        Self::Refused(Refusal::new(text))
    }
    /// Whether the front end did something wrong, so that it should not be back at once.
    pub(super) fn is_fault(&self) -> bool {
        match self {
            Self::Closed | Self::Silent | Self::Removed(_) => false,
            Self::Socket(SocketError::Io(_)) => false,
            Self::Socket(_) | Self::Refused(_) => !self.is_starved(),
        }
    }
    /// Whether this process had no descriptors left for the front end's.
    pub(super) fn is_starved(&self) -> bool {
        match self {
            Self::Socket(SocketError::NoDescriptors) => true,
            Self::Socket(SocketError::Io(e)) => is_starved(e),
            Self::Refused(why) => why.is_starved,
            Self::Socket(_) | Self::Closed | Self::Silent | Self::Removed(_) => false,
        }
    }
}

/// The process, or the system, has no descriptors left.
const STARVED: [i32; 2] = [Errno::MFILE.raw_os_error(), Errno::NFILE.raw_os_error()];

/// Whether the error means that the process or the system has no descriptor left.
pub(super) fn is_starved(e: &std::io::Error) -> bool {
    e.raw_os_error().is_some_and(|e| STARVED.contains(&e))
}

/// A request that is refused, with a text for people.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    text: String,
    /// The cause is that the process or the system had no descriptor left.
    is_starved: bool,
}

impl Refusal {
    fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            is_starved: false,
        }
    }
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.text)
    }
}

impl<E: std::error::Error + 'static> From<E> for Refusal {
    fn from(error: E) -> Self {
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
        let mut numbers = causes.filter_map(|e| match e.downcast_ref::<Errno>() {
            Some(e) => Some(e.raw_os_error()),
            None => e.downcast_ref::<std::io::Error>()?.raw_os_error(),
        });
        Self {
            is_starved: numbers.any(|e| STARVED.contains(&e)),
            text: error.to_string(),
        }
    }
}

/// Refuses, with a text.
macro_rules! refuse {
    ($($arg:tt)*) => { return Err(Refusal::new(format!($($arg)*))) };
}
use refuse;

/// Whether `fd` is a file in memory. Other files belong to servers (network, FUSE) or devices, which reply
/// when they like. A worker that touches their pages would wait for them, and so would the control thread
/// when it queries the file.
fn memory_file(fd: &Foreign) -> Result<(), Refusal> {
    if fd.kind() != foreign::Kind::Memory {
        refuse!("a descriptor is no file in memory (memfd, tmpfs or hugetlbfs)");
    }
    Ok(())
}

/// The result of a request.
#[derive(Debug)]
enum Outcome {
    /// Done; an acknowledgement if one is wanted.
    Done,
    /// The request has a reply of its own, with or without a descriptor.
    Reply(Reply, Option<OwnedFd>),
    /// Done when no worker uses this table any more; then the reply is sent.
    Await(Arc<GuestMemory>, Option<Reply>),
}

type Handled = Result<Outcome, Refusal>;

/// A request whose reply waits until the old memory table is out of use.
#[derive(Debug)]
struct Pending {
    old: Arc<GuestMemory>,
    request: u32,
    reply: Option<Reply>,
    deadline: Instant,
}

/// A connection's state.
#[derive(Debug)]
pub(super) struct Session {
    conn: Connection,
    outbox: Outbox,
    offer: Offer,
    protocol_offer: ProtocolFeatures,
    features: Features,
    protocol: ProtocolFeatures,
    status: u8,
    memory: memory::Memory,
    rings: Vec<ring::Ring>,
    iotlb: iotlb::Iotlb,
    inflight: Option<inflight::Area>,
    journal: Option<Journal>,
    pending: Option<Pending>,
    began: Instant,
    /// Whether a message came.
    greeted: bool,
    unsent_since: Option<Instant>,
    /// The time of the next check of rings that contradict their records.
    look_again: Option<Instant>,
}

impl Session {
    /// A connection just made. The device raises `wake` when it has something to report.
    pub(super) fn new(
        conn: Connection,
        device: &mut dyn Device,
        wake: Arc<EventFd>,
        journal: Option<Journal>,
        quota: Arc<Quota>,
    ) -> Self {
        let offer = bounded(device.offer());
        let mut protocol_offer = PROTOCOL;
        if device.config().is_empty() {
            protocol_offer.remove(ProtocolFeatures::CONFIG);
        }
        let outbox = Outbox::new(wake);
        device.connected(Arc::new(outbox.clone()));
        let rings = (0..2 * offer.queue_pairs)
            .map(|_| ring::Ring::default())
            .collect();
        Self {
            conn,
            outbox,
            offer,
            protocol_offer,
            features: Features::empty(),
            protocol: ProtocolFeatures::empty(),
            status: 0,
            memory: memory::Memory::new(quota),
            rings,
            iotlb: iotlb::Iotlb::default(),
            inflight: None,
            journal,
            pending: None,
            began: Instant::now(),
            greeted: false,
            unsent_since: None,
            look_again: None,
        }
    }

    /// The descriptor to watch for input, unless [`Session::is_paused`].
    pub(super) fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.conn.as_fd()
    }
    /// Whether no message is to be read now.
    pub(super) fn is_paused(&self) -> bool {
        self.pending.is_some() || self.conn.has_unsent()
    }
    /// Whether a front end has shown itself: it sent a message.
    pub(super) fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// Reads and handles the messages that wait, bounded.
    pub(super) fn readable(&mut self, device: &mut dyn Device) -> Result<(), CloseReason> {
        let began = Instant::now();
        for _ in 0..TURN {
            if self.is_paused() || began.elapsed() > TURN_TIME {
                break;
            }
            match self.conn.recv()? {
                Received::Nothing => break,
                Received::Closed => return Err(CloseReason::Closed),
                Received::Frame(frame) => self.message(frame, device)?,
            }
        }
        Ok(())
    }

    /// Does the work that is due by time or by the device's reports; returns the latest time of the next
    /// call.
    pub(super) fn tick(&mut self, device: &mut dyn Device) -> Result<Option<Instant>, CloseReason> {
        let now = Instant::now();
        self.serve_iotlb(device);
        self.look_at_rings(now, device).map_err(CloseReason::Refused)?;
        self.finish_pending(now, device)?;
        if self.conn.flush()? {
            self.unsent_since = None;
        } else if now.duration_since(*self.unsent_since.get_or_insert(now)) > UNSENT_WAIT {
            return Err(SocketError::Unread.into());
        }
        if self.is_cut() {
            return Err(CloseReason::refused(
                "the front end cut the file of the guest's memory",
            ));
        }
        if self.outbox.is_stuck() {
            return Err(CloseReason::refused(
                "a descriptor for notifications made the switch wait",
            ));
        }
        let over = |since: Instant, wait| now.duration_since(since) > wait;
        if !self.greeted && over(self.began, HELLO_WAIT) {
            return Err(CloseReason::Silent);
        }
        if self.conn.partial_since().is_some_and(|s| over(s, PARTIAL_WAIT)) {
            return Err(CloseReason::refused("a message was never finished"));
        }
        let soon = self.is_paused().then_some(now + Duration::from_millis(2));
        let hello = (!self.greeted).then_some(self.began + HELLO_WAIT);
        let partial = self.conn.partial_since().map(|s| s + PARTIAL_WAIT);
        let grain = Duration::from_millis(5);
        let again = self.iotlb_deadline().filter(|_| self.has_iommu());
        Ok([
            soon,
            again,
            self.look_again,
            hello.map(|t| t + grain),
            partial.map(|t| t + grain),
        ]
        .into_iter()
        .flatten()
        .min())
    }

    /// Stops all rings and notifies the device. `why` is for people.
    pub(super) fn close(mut self, why: &str, device: &mut dyn Device) {
        self.stop_all(device);
        device.disconnected(why);
    }

    /// Whether a front end that requests an acknowledgement gets one.
    #[cfg(test)]
    pub(super) fn acknowledges(&self) -> bool {
        self.protocol.contains(ProtocolFeatures::REPLY_ACK)
    }
    #[cfg(test)]
    pub(super) fn outbox(&self) -> &Outbox {
        &self.outbox
    }
    /// The queues' memory table.
    #[cfg(test)]
    pub(super) fn table(&self) -> Arc<GuestMemory> {
        self.memory.shared.get()
    }

    fn message(&mut self, mut frame: Frame, device: &mut dyn Device) -> Result<(), CloseReason> {
        self.greeted = true;
        let code = frame.header.request;
        let wants_ack = frame.header.needs_reply() && self.protocol.contains(ProtocolFeatures::REPLY_ACK);
        let request = match Request::decode(code, &frame.payload) {
            Ok(request) => request,
            // Perhaps a later extension: a front end that requests an acknowledgement learns that this back
            // end does not know it.
            Err(e @ MessageError::Unknown(_)) if wants_ack => {
                device.trouble(&e.to_string());
                return Ok(self.conn.send_reply(code, &Reply::U64(1), &[])?);
            }
            Err(e) => return Err(SocketError::from(e).into()),
        };
        if frame.header.is_reply() {
            return Err(CloseReason::refused(format!(
                "{} came with the reply flag",
                request.name()
            )));
        }
        if !request.fds().allows(frame.fds.len()) {
            let fds = frame.fds.len();
            return Err(SocketError::from(MessageError::Fds { request: code, fds }).into());
        }
        let fds: Vec<Foreign> = frame.fds.drain(..).collect();
        match self.handle(&request, fds, device) {
            Ok(outcome) => self.finish_request(&request, wants_ack, outcome, device),
            Err(why) => {
                let text = format!("{}: {why}", request.name());
                match (&request, request.reply()) {
                    (Request::GetConfig(_), _) => {
                        device.trouble(&text);
                        Ok(self.conn.send_reply(code, &Reply::NoConfig, &[])?)
                    }
                    (_, ReplyKind::Ack) if wants_ack => {
                        device.trouble(&text);
                        Ok(self.conn.send_reply(code, &Reply::U64(1), &[])?)
                    }
                    (Request::Iotlb(_), _) => {
                        device.trouble(&text);
                        Ok(self.conn.send_reply(code, &Reply::U64(1), &[])?)
                    }
                    _ => Err(CloseReason::Refused(Refusal { text, ..why })),
                }
            }
        }
    }

    fn finish_request(
        &mut self,
        request: &Request,
        wants_ack: bool,
        outcome: Outcome,
        device: &mut dyn Device,
    ) -> Result<(), CloseReason> {
        let ack = (wants_ack && request.reply() == ReplyKind::Ack).then_some(Reply::U64(0));
        let code = request.code();
        match outcome {
            Outcome::Done => match ack {
                Some(reply) => Ok(self.conn.send_reply(code, &reply, &[])?),
                None => Ok(()),
            },
            Outcome::Reply(reply, fd) => {
                let fd = fd.as_ref().map(AsFd::as_fd);
                Ok(self.conn.send_reply(code, &reply, fd.as_slice())?)
            }
            Outcome::Await(old, reply) => {
                let now = Instant::now();
                self.pending = Some(Pending {
                    old,
                    request: code,
                    reply: reply.or(ack),
                    deadline: now + MEMORY_WAIT,
                });
                while self.pending.is_some() && now.elapsed() < AT_ONCE {
                    self.finish_pending(now, device)?;
                    std::thread::yield_now();
                }
                Ok(())
            }
        }
    }

    /// Replies to the request that waits for workers, if they are done.
    fn finish_pending(&mut self, now: Instant, device: &mut dyn Device) -> Result<(), CloseReason> {
        let Some(pending) = &self.pending else {
            return Ok(());
        };
        device.refresh_memory();
        let free = Arc::strong_count(&pending.old) == 1;
        if !free && now < pending.deadline {
            return Ok(());
        }
        let Some(pending) = self.pending.take() else {
            return Ok(());
        };
        if !free {
            // The mapping lives as long as it is used, but the front end's request was not done.
            return Err(CloseReason::refused(
                "workers did not let go of the guest's memory",
            ));
        }
        match pending.reply {
            Some(reply) => Ok(self.conn.send_reply(pending.request, &reply, &[])?),
            None => Ok(()),
        }
    }

    fn handle(&mut self, request: &Request, fds: Vec<Foreign>, device: &mut dyn Device) -> Handled {
        self.check_negotiated(request)?;
        let mut fds = fds;
        let mut fd = || fds.pop();
        match request {
            Request::GetFeatures => Ok(number(self.offer.features.bits())),
            Request::SetFeatures(bits) => self.set_features(*bits, device),
            Request::GetProtocolFeatures => Ok(number(self.protocol_offer.bits())),
            Request::SetProtocolFeatures(bits) => self.set_protocol_features(*bits),
            Request::SetOwner => Ok(Outcome::Done),
            Request::ResetOwner => self.disable_all(device),
            Request::GetQueueNum => Ok(number(self.offer.queue_pairs.into())),
            Request::GetMaxMemSlots => Ok(number(self.offer.mem_slots as u64)),
            Request::SetMemTable(regions) => self.set_mem_table(regions, &fds, device),
            Request::AddMemReg(region) => self.add_mem_reg(region, fd(), device),
            Request::RemMemReg(region) => self.rem_mem_reg(region, device),
            Request::SetLogBase(area) => self.set_log_base(*area, fd(), device),
            // The descriptor would be raised after writes to the log, which front ends look at anyway:
            // closed.
            Request::SetLogFd => Ok(Outcome::Done),
            Request::SetVringNum(v) => self.set_vring_num(*v, device),
            Request::SetVringAddr(v) => self.set_vring_addr(*v, device),
            Request::SetVringBase(v) => self.set_vring_base(*v),
            Request::GetVringBase(v) => self.get_vring_base(*v, device),
            Request::SetVringKick(v) => self.set_vring_kick(*v, fd(), device),
            Request::SetVringCall(v) => self.set_vring_call(*v, fd(), device),
            Request::SetVringErr(v) => self.set_vring_err(*v, fd(), device),
            Request::SetVringEnable(v) => self.set_vring_enable(*v, device),
            Request::NetSetMtu(mtu) => self.set_mtu(*mtu, device),
            Request::SendRarp(mac) => {
                device.send_rarp(*mac);
                Ok(Outcome::Done)
            }
            Request::SetBackendReqFd => self.set_backend_req_fd(fd()),
            Request::Iotlb(msg) => self.iotlb_message(*msg, device),
            Request::GetConfig(space) => self.get_config(space, device),
            Request::SetConfig(space) => self.set_config(space, device),
            Request::GetInflightFd(shape) => self.get_inflight_fd(*shape),
            Request::SetInflightFd(shape) => self.set_inflight_fd(*shape, fd()),
            Request::ResetDevice => self.reset_device(device),
            Request::SetStatus(status) => self.set_status(*status, device),
            Request::GetStatus => Ok(number(self.status.into())),
            Request::PostcopyAdvise | Request::PostcopyListen | Request::PostcopyEnd => {
                refuse!("postcopy migration was not offered")
            }
            Request::SetVringEndian(_) => refuse!("cross-endian rings were not offered"),
            Request::VringKick(_) => refuse!("in-band notifications were not offered"),
        }
    }

    /// Whether addresses go through an IOMMU.
    fn has_iommu(&self) -> bool {
        self.features.contains(Features::ACCESS_PLATFORM)
    }
}

/// An offer that this session can keep.
fn bounded(offer: Offer) -> Offer {
    Offer {
        features: offer.features | Features::PROTOCOL_FEATURES | Features::LOG_ALL,
        queue_pairs: offer.queue_pairs.clamp(1, MAX_QUEUE_PAIRS),
        mem_slots: offer.mem_slots.clamp(1, MAX_REGIONS),
    }
}

fn number(v: u64) -> Outcome {
    Outcome::Reply(Reply::U64(v), None)
}

/// Flags of a request of ours.
const PLAIN: HeaderFlags = HeaderFlags::empty();

/// A table for the queues of a session that has none yet.
fn no_memory() -> Arc<SharedMemory> {
    Arc::new(SharedMemory::new(GuestMemory::default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_virtio::device::StartError;

    /// The cause decides, also below another error; a text that looks like one does not.
    #[test]
    fn a_lack_of_descriptors_is_known_by_its_cause() {
        let full = || std::io::Error::from(Errno::MFILE);
        let ring = StartError::no_descriptor(3, &full());
        for (refusal, is_starved) in [
            (Refusal::from(full()), true),
            (Refusal::from(Errno::NFILE), true),
            (Refusal::from(ring), true),
            (Refusal::from(Errno::INVAL), false),
            (Refusal::from(StartError::Refused(full().to_string())), false),
            (Refusal::new(full().to_string()), false),
        ] {
            let text = refusal.to_string();
            let reason = CloseReason::Refused(refusal);
            assert_eq!(
                (reason.is_starved(), reason.is_fault()),
                (is_starved, !is_starved),
                "{text}"
            );
        }
    }
}
