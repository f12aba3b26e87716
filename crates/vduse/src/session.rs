//! One open device: the kernel's messages, and the rings that run.
//!
//! **Order.** The driver sets the status. With DRIVER_OK all rings that it made ready are started. With zero
//! all are stopped and their settings forgotten. The session replies when that is done. Until then the kernel
//! keeps the memory and settings that it sent, so that no worker uses memory that is gone.
//!
//! **Interrupts are refused until the kernel has taken the reply to DRIVER_OK.** Rings run before that. So
//! each driver is interrupted once after it, tried until it is accepted; that makes lost interrupts good.
//!
//! **After this process ends,** the next one that opens the device finds the negotiated features and the
//! ready rings, and continues from there. A message that was read without a reply comes again.
//!
//! **Faults of the other side** are refused with the reply "failed", or end the ring that they concern; the
//! text is for `Interface.status`.

use crate::QUEUES;
use crate::host::DeviceEnd;
use crate::link::{Irq, Outbox};
use crate::memory::{AddressState, Memory};
use crate::message::{Reply, Request, RequestKind};
use crate::spec::{Wanted, servable};
use core::time::Duration;
use heddle_sys::EventFd;
use heddle_virtio::device::{Call, Device, Link, Queue, RingSetup, StartError};
use heddle_virtio::journal::{Begun, Journal};
use heddle_virtio::mem::{Access, GuestMemory};
use heddle_virtio::ring::limits::MAX_QUEUE;
use heddle_virtio::ring::{Features, Miss, Position, QueueConfig, Record, Tracking};
use heddle_virtio::{DeviceRx, DeviceTx, RingError};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

/// `DRIVER_OK` and `FAILED` of the device status.
const DRIVER_OK: u8 = 4;
const FAILED: u8 = 128;
/// Maximum number of messages in one turn, so that no device has the thread for itself.
const TURN: usize = 16;
/// Time that workers have to drop memory that the kernel takes back.
const LET_GO: Duration = Duration::from_secs(1);
/// Maximum number of checks of a ring that contradicts its record, and the time between them: its driver may
/// just be writing to it.
const LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);
/// Time after which an unknown address is requested again.
const REQUEST_INTERVAL: Duration = Duration::from_millis(200);
/// Time until the next interrupt of a driver after a refusal, each time longer; and the maximum number of
/// tries.
const GREET_AGAIN: Duration = Duration::from_millis(1);
const GREETINGS: u32 = 50;
/// `EPERM`: the kernel's error for a device that it has given up.
const GIVEN_UP: i32 = 1;

/// The rings that are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rings {
    /// The rings by which the driver receives.
    ToDriver,
    /// All.
    All,
}

/// The device cannot be served any more.
#[derive(Debug)]
pub(crate) struct Broken(pub(crate) String);

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error(transparent)]
    Start(#[from] StartError),
}

macro_rules! refuse {
    ($($text:tt)*) => { return Err(Fault::Refused(format!($($text)*))) };
}

impl Fault {
    /// Whether the kernel has given the device up.
    fn is_final(&self) -> bool {
        matches!(self, Self::Io(e) if e.raw_os_error() == Some(GIVEN_UP))
    }
}

#[derive(Debug)]
struct Ring {
    config: QueueConfig,
    /// Kept as long as the ring runs: the kernel writes to it.
    _kick: EventFd,
}

/// The start of a ring.
enum Begin {
    At(Position, Option<Record>),
    /// The ring is checked again later.
    Later,
}

pub(crate) struct Session {
    end: Arc<dyn DeviceEnd>,
    outbox: Arc<Outbox>,
    memory: Memory,
    journal: Journal,
    features: Features,
    status: u8,
    rings: [Option<Ring>; QUEUES as usize],
    /// Rings are to be started at this time: they could not be before.
    start_again: Option<Instant>,
    looks: u32,
    /// Addresses that no region had.
    missed: Vec<Miss>,
    next_request: Option<Instant>,
    /// Drivers are to be interrupted at this time, and how often that was tried.
    greet: Option<(Instant, u32)>,
}

impl Session {
    /// A session on an open device, with nothing started.
    pub(crate) fn new(
        end: Arc<dyn DeviceEnd>,
        journal: Journal,
        wake: Arc<EventFd>,
        device: &mut dyn Device,
    ) -> Self {
        let outbox = Arc::new(Outbox::new(wake));
        device.connected(Arc::clone(&outbox) as Arc<dyn Link>);
        Self {
            end,
            outbox,
            memory: Memory::new(),
            journal,
            features: Features::empty(),
            status: 0,
            rings: Default::default(),
            start_again: None,
            looks: 0,
            missed: Vec::new(),
            next_request: None,
            greet: None,
        }
    }

    pub(crate) fn end(&self) -> &dyn DeviceEnd {
        &*self.end
    }

    /// Continues at the state of a process before this one.
    pub(crate) fn resume(&mut self, rings: Rings, device: &mut dyn Device) -> Result<(), Broken> {
        match self.start_some(rings, device) {
            Ok(()) => self.greet(),
            Err(fault) => self.complain("going on", &fault, device)?,
        }
        Ok(())
    }

    /// Ends the session; the rings stay as they are.
    pub(crate) fn close(mut self, device: &mut dyn Device, why: &str) {
        self.stop_all(device);
        device.disconnected(why);
    }

    /// Does the due work: messages, missing addresses, rings that wait.
    pub(crate) fn serve(&mut self, device: &mut dyn Device) -> Result<(), Broken> {
        for _ in 0..TURN {
            let message = match self.end.receive() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(e) if e.raw_os_error() == Some(GIVEN_UP) => return Err(Broken(GAVE_UP.into())),
                Err(e) => return Err(Broken(format!("reading a message: {e}"))),
            };
            self.message(Request::decode(&message), device)?;
        }
        self.serve_misses(device)?;
        if self.memory.shared.get().is_cut() {
            // The new pages are not the driver's.
            self.stop_all(device);
            device.trouble("the driver's memory ends before its rings: they are stopped");
            self.memory.forget(0, u64::MAX);
            self.memory.publish(device);
        }
        if self.start_again.is_some_and(|at| at <= Instant::now()) {
            self.start_again = None;
            match self.start_all(device) {
                Ok(()) => self.greet(),
                Err(fault) => self.complain("starting rings", &fault, device)?,
            }
        }
        if let Some((_, tries)) = self.greet.filter(|(at, _)| *at <= Instant::now()) {
            self.interrupt_all(tries);
        }
        Ok(())
    }

    /// When [`Session::serve`] has something to do again at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let greet = self.greet.map(|(at, _)| at);
        [self.start_again, self.next_request, greet]
            .into_iter()
            .flatten()
            .min()
    }

    /// The configuration space has changed.
    pub(crate) fn configure(&self, wanted: &Wanted, device: &mut dyn Device) {
        if let Err(e) = self.end.set_config(0, &wanted.config()) {
            device.note(&format!("the configuration space cannot be written: {e}"));
        }
        // Refused while there is no driver, which reads it all when it comes.
        let _ = self.end.config_interrupt();
    }

    fn complain(&self, what: &str, fault: &Fault, device: &mut dyn Device) -> Result<(), Broken> {
        if fault.is_final() {
            return Err(Broken(GAVE_UP.into()));
        }
        device.trouble(&format!("{what}: {fault}"));
        Ok(())
    }

    // -- messages

    fn message(&mut self, request: Request, device: &mut dyn Device) -> Result<(), Broken> {
        let reply = match self.handle(request.kind, device) {
            Ok(reply) => reply,
            Err(fault) => {
                self.complain(&format!("{:?}", request.kind), &fault, device)?;
                Reply::Failed
            }
        };
        match self.end.reply(&reply.encode(request.id)) {
            Ok(()) => {}
            // The kernel did not wait that long; if it has given the device up, reads fail.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                device.note(&format!(
                    "the kernel does not wait for the reply to {:?} any more",
                    request.kind
                ));
            }
            Err(e) => return Err(Broken(format!("cannot reply to a message: {e}"))),
        }
        if matches!(request.kind, RequestKind::Status(s) if s & DRIVER_OK != 0) {
            self.greet();
        }
        Ok(())
    }

    fn handle(&mut self, kind: RequestKind, device: &mut dyn Device) -> Result<Reply, Fault> {
        match kind {
            RequestKind::Status(status) => self.set_status(status, device),
            RequestKind::QueueState(index) => self.queue_state(index, device),
            RequestKind::Update { start, last } => self.update(start, last, device),
            RequestKind::Unknown(n) => refuse!("a message of kind {n}, which is not known"),
        }
    }

    fn set_status(&mut self, status: u8, device: &mut dyn Device) -> Result<Reply, Fault> {
        let before = core::mem::replace(&mut self.status, status);
        device.set_status(status);
        if status & DRIVER_OK == 0 || status & FAILED != 0 {
            self.stop_all(device);
            if status == 0 {
                self.reset(device);
            }
            return Ok(Reply::Done);
        }
        if before & DRIVER_OK == 0 {
            // Rings that an earlier process had are as good as any; others begin now.
            self.looks = 0;
            self.start_all(device)?;
        }
        Ok(Reply::Done)
    }

    /// Forgets the driver's settings.
    fn reset(&mut self, device: &mut dyn Device) {
        for index in 0..QUEUES {
            self.journal.end(index);
        }
        self.features = Features::empty();
        self.missed.clear();
        self.outbox.take();
        self.memory.forget(0, u64::MAX);
        self.memory.publish(device);
    }

    /// The position of a ring. The ring continues afterwards: a query is no reason to stop.
    fn queue_state(&mut self, index: u32, device: &mut dyn Device) -> Result<Reply, Fault> {
        let Some(short) = u16::try_from(index).ok().filter(|i| *i < QUEUES) else {
            refuse!("there is no ring {index}");
        };
        let packed = self.features.contains(Features::RING_PACKED);
        let running = self.rings.get_mut(usize::from(short)).and_then(Option::take);
        let Some(ring) = running else {
            let info = self.end.queue(short)?;
            let at = position_of(&info.state, packed);
            return Ok(Reply::State { index, at, packed });
        };
        let at = device.stop(short);
        let began = self.start(short, ring.config, Some(at), device);
        if let Err(fault) = began {
            device.trouble(&format!("ring {index} does not continue: {fault}"));
        }
        Ok(Reply::State { index, at, packed })
    }

    /// The mapping of a range has changed: the old one is not used any more when this returns.
    fn update(&mut self, start: u64, last: u64, device: &mut dyn Device) -> Result<Reply, Fault> {
        if start > last {
            refuse!("a range from {start:#x} to {last:#x}");
        }
        self.memory.forget(start, last);
        let running: Vec<QueueConfig> = self.rings.iter().flatten().map(|r| r.config).collect();
        for cfg in &running {
            // Areas that are gone are missed by their queues, which wait.
            self.memory.covers(&*self.end, cfg)?;
        }
        let Some(old) = self.memory.publish(device) else {
            return Ok(Reply::Done);
        };
        let until = Instant::now() + LET_GO;
        while Arc::strong_count(&old) > 1 {
            if Instant::now() > until {
                refuse!("workers did not let go of the driver's memory");
            }
            device.refresh_memory();
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(Reply::Done)
    }

    // -- rings

    /// Starts all rings that the driver has made ready and that do not run.
    fn start_all(&mut self, device: &mut dyn Device) -> Result<(), Fault> {
        self.start_some(Rings::All, device)
    }
    fn start_some(&mut self, rings: Rings, device: &mut dyn Device) -> Result<(), Fault> {
        let bits = self.end.features()?;
        if bits == 0 {
            return Ok(()); // there is no driver yet
        }
        let unknown = bits & !servable(device.offer().features).bits();
        if unknown != 0 {
            refuse!("the driver uses features that are not served ({unknown:#x}): who made the device?");
        }
        self.features = Features::from_bits_truncate(bits);
        device.negotiated(self.features);
        let mut ready = Vec::new();
        let step = if rings == Rings::All { 1 } else { 2 };
        for index in (0..QUEUES).step_by(step) {
            if self.rings.get(usize::from(index)).is_some_and(Option::is_some) {
                continue;
            }
            let info = self.end.queue(index)?;
            if !info.ready {
                continue;
            }
            let size = u16::try_from(info.size).ok();
            let Some(size) = size.filter(|s| (1..=MAX_QUEUE).contains(s)) else {
                refuse!("ring {index} has {} entries", info.size);
            };
            let cfg = QueueConfig {
                features: self.features,
                size,
                desc: info.desc,
                driver: info.driver,
                device: info.device,
                start: position_of(&info.state, self.features.contains(Features::RING_PACKED)),
                wait_for_miss: true,
            };
            match self.memory.covers(&*self.end, &cfg)? {
                AddressState::Yes => ready.push((index, cfg)),
                AddressState::Nothing => refuse!("ring {index} is where no memory is"),
                AddressState::Forbidden => {
                    refuse!("ring {index} is in memory that may not be read and written")
                }
            }
        }
        self.memory.publish(device);
        for (index, cfg) in ready {
            self.start(index, cfg, None, device)?;
        }
        Ok(())
    }

    /// Starts a ring; `known`: where it was when this session stopped it.
    fn start(
        &mut self,
        index: u16,
        cfg: QueueConfig,
        known: Option<Position>,
        device: &mut dyn Device,
    ) -> Result<(), Fault> {
        let table = self.memory.shared.get();
        let (start, record) = match self.begin(index, &cfg, known, &table)? {
            Begin::At(start, record) => (start, record),
            Begin::Later => {
                self.looks += 1;
                self.start_again = Some(Instant::now() + BETWEEN_LOOKS);
                return Ok(());
            }
        };
        drop(table);
        let config = QueueConfig { start, ..cfg };
        let tracking = Tracking {
            record,
            ..Tracking::default()
        };
        let memory = Arc::clone(&self.memory.shared);
        let queue = if index.is_multiple_of(2) {
            Queue::ToGuest(DeviceTx::tracked(config, Arc::clone(&memory), tracking)?)
        } else {
            Queue::FromGuest(DeviceRx::tracked(config, Arc::clone(&memory), tracking)?)
        };
        let kick = EventFd::new()?;
        self.end.set_kick(index, kick.as_fd())?;
        let irq: Call = Box::new(Irq {
            end: Arc::clone(&self.end),
            index,
        });
        device.start(RingSetup {
            index,
            config,
            queue,
            memory,
            kick: Some(kick.as_fd().try_clone_to_owned()?),
            call: Some(irq),
            err: None,
            enabled: true,
        })?;
        // The driver may have kicked while no process listened.
        kick.notify();
        if let Some(ring) = self.rings.get_mut(usize::from(index)) {
            *ring = Some(Ring {
                config: cfg,
                _kick: kick,
            });
        }
        Ok(())
    }

    /// The start position of a ring. A split ring contains its used index, so that chains that another
    /// process had taken and not used are taken again.
    fn begin(
        &self,
        index: u16,
        cfg: &QueueConfig,
        known: Option<Position>,
        table: &GuestMemory,
    ) -> Result<Begin, Fault> {
        if !cfg.packed() {
            let used = Position {
                index: cfg.used_index(table)?,
                ..Position::default()
            };
            return Ok(Begin::At(used, None));
        }
        let last = self.looks >= LOOKS;
        let begun = self.journal.begin(index, cfg, cfg.start, known, table, last);
        Ok(match begun {
            Some(Begun::At(at, record)) => Begin::At(at, Some(record)),
            Some(Begun::Later) => Begin::Later,
            None => Begin::At(known.unwrap_or(cfg.start), None),
        })
    }

    fn stop_all(&mut self, device: &mut dyn Device) {
        self.start_again = None;
        self.greet = None;
        for (index, ring) in (0..).zip(&mut self.rings) {
            if ring.take().is_some() {
                device.stop(index);
            }
        }
    }

    /// Starts to repeat the interrupts that the kernel refused so far.
    fn greet(&mut self) {
        self.greet = Some((Instant::now(), 0));
    }
    fn interrupt_all(&mut self, tries: u32) {
        let mut running = (0..).zip(&self.rings).filter(|(_, r)| r.is_some());
        let done = running.all(|(index, _)| self.end.interrupt(index).is_ok());
        let wait = GREET_AGAIN.saturating_mul(tries + 1);
        self.greet = (!done && tries < GREETINGS).then(|| (Instant::now() + wait, tries + 1));
    }

    // -- addresses

    fn serve_misses(&mut self, device: &mut dyn Device) -> Result<(), Broken> {
        let mut misses = self.outbox.take();
        let due = self.next_request.is_some_and(|at| at <= Instant::now());
        if due {
            self.next_request = None;
            misses.append(&mut self.missed);
        }
        let mut found = false;
        for miss in misses {
            let access = if miss.write { Access::WRITE } else { Access::READ };
            match self.memory.resolve(&*self.end, miss.addr, access) {
                Ok(AddressState::Yes) => found = true,
                Ok(AddressState::Forbidden) => {
                    let verb = if miss.write { "written" } else { "read" };
                    device.trouble(&format!("{:#x} may not be {verb}: its queue waits", miss.addr));
                }
                Ok(AddressState::Nothing) => self.request_later(miss),
                Err(e) if e.raw_os_error() == Some(GIVEN_UP) => return Err(Broken(GAVE_UP.into())),
                Err(e) => {
                    device.trouble(&format!("the memory at {:#x}: {e}", miss.addr));
                    self.request_later(miss);
                }
            }
        }
        if found && self.memory.publish(device).is_none() {
            // The region was in the table before: the queue looks again.
            device.refresh_memory();
        }
        Ok(())
    }

    fn request_later(&mut self, miss: Miss) {
        // One for each ring is enough: a queue waits for one address at a time.
        self.missed.truncate(usize::from(QUEUES) - 1);
        self.missed.push(miss);
        self.next_request.get_or_insert(Instant::now() + REQUEST_INTERVAL);
    }
}

/// Text for a device to which the kernel sends no more messages.
pub(crate) const GAVE_UP: &str = "the kernel has given the device up: it had no reply in time";

/// The kernel's start position of a ring.
fn position_of(state: &[u16; 4], packed: bool) -> Position {
    let [available, _, used_wrap, used] = *state;
    if packed {
        Position {
            index: used,
            wrap: used_wrap != 0,
        }
    } else {
        Position {
            index: available,
            ..Position::default()
        }
    }
}
