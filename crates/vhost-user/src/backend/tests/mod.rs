//! Sessions, sockets and restarts, with a front end in the same process.

mod fuzz;
mod hostile;
mod iommu;
mod messages;
mod restart;
mod rings;
mod sockets;

use super::session::{CloseReason, Session};
use super::*;
use crate::message::*;
use heddle_packet::{Burst, Packet, Pool};
use heddle_sys::EventFd;
use heddle_sys::mmap::{Mapping, Pages, memfd};
use heddle_virtio::device::{Call, Device, Link, Offer, Queue, RingSetup, StartError};
use heddle_virtio::driver::{Arena, Buf, ChainLocation, Done, Driver};
use heddle_virtio::journal::Journal;
use heddle_virtio::mem::{GuestMemory, Region};
use heddle_virtio::ring::{Features, Position, QueueConfig};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The notification of a ring that was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notify {
    Kick,
    Call,
    Err,
}

/// One call that a device got.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Connected,
    Gone(String),
    Trouble(String),
    Note(String),
    Features(Features),
    Start(u16, bool),
    Stop(u16),
    Enable(u16, bool),
    Notify(u16, Notify, bool),
    Mtu(u16),
    Rarp([u8; 6]),
    Status(u8),
    Config(u32, Vec<u8>),
}

/// The part of a device that the test sees.
#[derive(Default)]
struct Seen {
    events: Vec<Event>,
    rings: BTreeMap<u16, RingSetup>,
    link: Option<Arc<dyn Link>>,
}

type Shared = Arc<Mutex<Seen>>;

/// A device without workers: tests move the queues.
#[derive(Clone)]
struct Dummy {
    seen: Shared,
    offer: Offer,
}

impl Dummy {
    fn new() -> Self {
        Self {
            seen: Shared::default(),
            offer: Offer {
                features: Features::RING | Features::MTU | Features::MQ | Features::ACCESS_PLATFORM,
                queue_pairs: 2,
                mem_slots: 4,
            },
        }
    }
    fn record(&self, event: Event) {
        self.seen.lock().events.push(event);
    }
    fn replaced(&self, index: u16, which: Notify, some: bool) {
        assert!(self.seen.lock().rings.contains_key(&index));
        self.record(Event::Notify(index, which, some));
    }
}

impl Device for Dummy {
    fn offer(&mut self) -> Offer {
        self.offer
    }
    fn connected(&mut self, link: Arc<dyn Link>) {
        self.seen.lock().link = Some(link);
        self.record(Event::Connected);
    }
    fn disconnected(&mut self, reason: &str) {
        assert!(
            self.seen.lock().rings.is_empty(),
            "rings are stopped before the end"
        );
        self.record(Event::Gone(reason.into()));
    }
    fn trouble(&mut self, text: &str) {
        self.record(Event::Trouble(text.into()));
    }
    fn note(&mut self, text: &str) {
        self.record(Event::Note(text.into()));
    }
    fn negotiated(&mut self, features: Features) {
        self.record(Event::Features(features));
    }
    fn start(&mut self, ring: RingSetup) -> Result<(), StartError> {
        self.record(Event::Start(ring.index, ring.enabled));
        let before = self.seen.lock().rings.insert(ring.index, ring);
        assert!(
            before.is_none(),
            "a started ring is stopped before it is started again"
        );
        Ok(())
    }
    fn stop(&mut self, index: u16) -> Position {
        self.record(Event::Stop(index));
        let ring = self.seen.lock().rings.remove(&index);
        match ring.expect("only started rings are stopped").queue {
            Queue::FromGuest(q) => q.stop(),
            Queue::ToGuest(q) => q.stop(),
        }
    }
    fn enable(&mut self, index: u16, on: bool) {
        assert!(self.seen.lock().rings.contains_key(&index));
        self.record(Event::Enable(index, on));
    }
    fn set_kick(&mut self, index: u16, kick: Option<OwnedFd>) {
        self.replaced(index, Notify::Kick, kick.is_some());
    }
    fn set_call(&mut self, index: u16, call: Option<Call>) {
        self.replaced(index, Notify::Call, call.is_some());
    }
    fn set_err(&mut self, index: u16, err: Option<Call>) {
        self.replaced(index, Notify::Err, err.is_some());
    }
    fn refresh_memory(&mut self) {
        for ring in self.seen.lock().rings.values_mut() {
            match &mut ring.queue {
                Queue::FromGuest(q) => q.refresh(),
                Queue::ToGuest(q) => q.refresh(),
            }
        }
    }
    fn set_mtu(&mut self, mtu: u16) -> Result<(), String> {
        self.record(Event::Mtu(mtu));
        if mtu > 9000 {
            Err("too large".into())
        } else {
            Ok(())
        }
    }
    fn send_rarp(&mut self, mac: [u8; 6]) {
        self.record(Event::Rarp(mac));
    }
    fn set_status(&mut self, status: u8) {
        self.record(Event::Status(status));
    }
    fn config(&mut self) -> Vec<u8> {
        vec![1, 2, 3, 4, 5, 6, 7, 8]
    }
    fn set_config(&mut self, offset: u32, bytes: &[u8], migration: bool) -> Result<(), String> {
        self.record(Event::Config(offset, bytes.to_vec()));
        if migration {
            Ok(())
        } else {
            Err("read-only".into())
        }
    }
}

/// Guest physical address, and the front end's address, of the guest's memory; and its length.
const BASE: u64 = 0x10_0000;
const USER: u64 = 0x7f00_0000_0000;
const LEN: u64 = 2 << 20;

/// A session and the front end that talks to it, without a thread.
struct Rig {
    device: Dummy,
    session: Option<Session>,
    front: Connection,
    file: OwnedFd,
    /// The front end's own view.
    mem: GuestMemory,
    arena: Arena,
    ended: Option<String>,
}

impl Rig {
    fn new() -> Self {
        Self::with(Dummy::new(), None)
    }
    fn with(device: Dummy, journal: Option<Journal>) -> Self {
        let file = memfd("guest", LEN, Pages::Normal).unwrap();
        let map = Arc::new(Mapping::of_fd(file.as_fd(), 0, LEN).unwrap());
        let mut rig = Self {
            device,
            session: None,
            front: Connection::new(UnixStream::pair().unwrap().0),
            file,
            mem: GuestMemory::new(vec![Region::new(BASE, USER, map).unwrap()]).unwrap(),
            arena: Arena::new(BASE, LEN),
            ended: None,
        };
        rig.connect(journal);
        rig
    }
    /// The same guest and front end, connected anew.
    fn connect(&mut self, journal: Option<Journal>) {
        assert!(self.session.is_none());
        let (a, b) = UnixStream::pair().unwrap();
        let wake = Arc::new(EventFd::new().unwrap());
        self.session = Some(Session::new(
            Connection::new(a),
            &mut self.device,
            wake,
            journal,
            Arc::default(),
        ));
        self.front = Connection::new(b);
        self.ended = None;
    }
    fn hang_up(&mut self) {
        self.front = Connection::new(UnixStream::pair().unwrap().0);
        self.run();
        assert!(self.session.is_none());
    }

    /// Lets the session handle the messages sent, once.
    fn run(&mut self) {
        let Some(session) = &mut self.session else { return };
        let did = session
            .readable(&mut self.device)
            .and_then(|()| session.tick(&mut self.device).map(|_| ()));
        if let Err(end) = did {
            self.end(&end);
        }
    }
    fn end(&mut self, end: &CloseReason) {
        if let Some(session) = self.session.take() {
            session.close(&end.to_string(), &mut self.device);
            self.ended = Some(end.to_string());
        }
    }
    /// Ends the session from this side, as a process that stops.
    fn shut_down(&mut self) {
        self.end(&CloseReason::Removed("the port was removed"));
    }

    fn send(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) {
        let _ = self.front.send_request(request, HeaderFlags::empty(), fds); // the session may have ended
        self.run();
    }
    /// Sends a request with NEED_REPLY; returns the number in the reply.
    fn ack(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> u64 {
        self.front
            .send_request(request, HeaderFlags::NEED_REPLY, fds)
            .unwrap();
        self.run();
        match self.reply_to(request) {
            Some(Reply::U64(n)) => n,
            other => panic!("{request:?} was answered by {other:?}, {:?}", self.ended),
        }
    }
    fn request_reply(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Reply {
        self.send(request, fds);
        self.reply_to(request)
            .unwrap_or_else(|| panic!("{request:?}: {:?}", self.ended))
    }
    fn reply_to(&mut self, request: &Request) -> Option<Reply> {
        self.reply_with_fds(request).map(|(r, _)| r)
    }
    fn reply_with_fds(&mut self, request: &Request) -> Option<(Reply, Vec<OwnedFd>)> {
        match self.front.recv() {
            Ok(Received::Frame(f)) => {
                assert!(f.header.is_reply());
                assert_eq!(f.header.request, request.code());
                Some((
                    Reply::decode(request, &f.payload).unwrap(),
                    f.fds.into_iter().map(heddle_sys::Foreign::into_fd).collect(),
                ))
            }
            Ok(Received::Nothing | Received::Closed) => None,
            Err(e) => panic!("{e}"),
        }
    }

    fn region(&self) -> MemRegion {
        MemRegion {
            guest: BASE,
            size: LEN,
            user: USER,
            offset: 0,
        }
    }
    /// Sends QEMU's messages before any ring: features, owner, memory.
    fn negotiate(&mut self, features: Features) {
        self.request_reply(&Request::GetFeatures, &[]);
        self.request_reply(&Request::GetProtocolFeatures, &[]);
        let protocol = PROTOCOL.bits();
        self.send(&Request::SetProtocolFeatures(protocol), &[]);
        self.send(&Request::SetOwner, &[]);
        self.send(
            &Request::SetFeatures((features | Features::PROTOCOL_FEATURES).bits()),
            &[],
        );
        let file = self.file.try_clone().unwrap();
        let table = Request::SetMemTable(vec![self.region()]);
        assert_eq!(self.ack(&table, &[file.as_fd()]), 0);
    }
    /// A ring of the guest's, as a front end names it.
    fn ring(&mut self, features: Features, size: u16) -> QueueConfig {
        self.arena.queue(features, size).unwrap()
    }
    fn addr_of(index: u32, cfg: &QueueConfig) -> VringAddr {
        VringAddr {
            index,
            log_used: false,
            desc: cfg.desc - BASE + USER,
            used: cfg.device - BASE + USER,
            avail: cfg.driver - BASE + USER,
            log: 0,
        }
    }
    /// Sends QEMU's messages that start a ring.
    fn start(&mut self, index: u32, cfg: &QueueConfig, base: Option<u32>) {
        let num = |num| VringState { index, num };
        self.send(&Request::SetVringNum(num(cfg.size.into())), &[]);
        if let Some(base) = base {
            self.send(&Request::SetVringBase(num(base)), &[]);
        }
        self.send(&Request::SetVringAddr(Self::addr_of(index, cfg)), &[]);
        let ev = EventFd::new().unwrap();
        let index = u8::try_from(index).unwrap();
        let fd = VringFd { index, has_fd: true };
        self.send(&Request::SetVringCall(fd), &[ev.as_fd()]);
        self.send(&Request::SetVringKick(fd), &[ev.as_fd()]);
        self.send(&Request::SetVringEnable(num(1)), &[]);
        assert_eq!(self.ended, None);
    }
    fn events(&self) -> Vec<Event> {
        core::mem::take(&mut self.device.seen.lock().events)
    }
    fn is_running(&self, index: u16) -> bool {
        self.device.seen.lock().rings.contains_key(&index)
    }
}

/// A number and a ring.
fn state(index: u32, num: u32) -> VringState {
    VringState { index, num }
}

/// One frame through ring 1 (from the guest): how many the switch got.
fn receive(rig: &Rig) -> usize {
    let mut seen = rig.device.seen.lock();
    let Some(Queue::FromGuest(q)) = seen.rings.get_mut(&1).map(|r| &mut r.queue) else {
        panic!("ring 1 does not run");
    };
    let (mut pool, mut burst) = (Pool::new(0), Burst::new());
    let n = q.rx(&mut pool, &mut burst);
    let frames: Vec<usize> = burst.iter().map(Packet::len).collect();
    assert!(frames.iter().all(|&l| l == 60), "{frames:?}");
    drop(burst);
    q.complete();
    n
}
fn guest_sends(rig: &mut Rig, driver: &mut Driver, n: usize) {
    guest_sends_at(rig, driver, n, 0);
}
/// `n` frames in buffers whose addresses are `shift` above the physical ones.
fn guest_sends_at(rig: &mut Rig, driver: &mut Driver, n: usize, shift: u64) {
    for token in 0..n {
        let addr = rig.arena.take(72, 2).unwrap() + shift;
        let buf = Buf { addr, len: 72 };
        driver
            .add(
                &rig.mem,
                &[buf],
                &[],
                ChainLocation::Direct,
                u32::try_from(token).unwrap(),
            )
            .unwrap();
    }
    driver.publish();
}
fn done(driver: &mut Driver) -> Vec<Done> {
    std::iter::from_fn(|| driver.pop().unwrap()).collect()
}
fn layouts() -> [Features; 2] {
    [Features::VERSION_1, Features::VERSION_1 | Features::RING_PACKED]
}
