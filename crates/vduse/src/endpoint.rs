//! One device from its making to its end.
//!
//! ```text
//!            create, open                        added to the bus
//!   Waiting ─────────────> Open (session serves) ────────────────> joined
//!      ^                     │ removed for good, or given up by the kernel
//!      │ once more           v
//!      └──────────────── Leaving: taken off the bus, closed, destroyed ──> gone
//! ```
//!
//! If a device exists already, is on the bus, and the kernel has not given it up, it is opened and served as
//! it is. Otherwise no driver can use it any more, and it is made anew.
//!
//! The endpoint reports each fault to the port, and tries again every second. A module may be loaded later,
//! or a process that had the device open may end.

use crate::QUEUES;
use crate::bus::{Bus, Done, Errand};
use crate::host::Host;
use crate::session::{Broken, GAVE_UP, Rings, Session};
use crate::spec::{Spec, Wanted};
use core::time::Duration;
use heddle_sys::EventFd;
use heddle_sys::errno_text;
use heddle_sys::vduse::NewDevice;
use heddle_virtio::device::Device;
use heddle_virtio::journal::Journal;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

/// When something is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// Time after which a device is tried again that another process is just closing.
const SOON: Duration = Duration::from_millis(20);
/// Maximum number of tries to destroy a device that another process still has open.
const DESTROY_TRIES: u32 = 50;
/// `EPERM`: the kernel's error for a device that it has given up.
const GIVEN_UP: i32 = 1;
/// Time that rings of an earlier process wait for the other ports of the configuration.
const SETTLE: Duration = Duration::from_secs(2);
/// Most looks for the network device of a driver, one each [`AGAIN`].
const NETDEV_LOOKS: u32 = 5;

enum Stage {
    /// To be made at this time.
    Waiting(Instant),
    Open {
        session: Session,
        joined: Joined,
        watched: bool,
    },
    /// The device is being taken off the bus; the session replies to the messages that this causes.
    Leaving {
        session: Option<Session>,
        watched: bool,
    },
    /// Off the bus and closed; to be destroyed at this time, and how often that was tried.
    Destroying {
        at: Instant,
        tries: u32,
    },
    Gone,
}

/// The state of a device on its way to the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joined {
    Requested,
    /// To be requested again at this time.
    Refused(Instant),
    /// On the bus; the driver's network device is looked for at this time, and this number of times more.
    Yes(Option<(Instant, u32)>),
}

/// The state that the control thread shares with endpoints.
pub(crate) struct Shared<'a> {
    /// All ports of the first configuration are there.
    pub(crate) settled: bool,
    pub(crate) host: &'a dyn Host,
    pub(crate) bus: &'a Bus,
    pub(crate) epoll: &'a heddle_sys::Epoll,
    pub(crate) wake: &'a Arc<EventFd>,
}

pub(crate) struct Endpoint {
    id: u64,
    spec: Spec,
    device: Box<dyn Device>,
    journal: Journal,
    stage: Stage,
    /// The device is not made again.
    ends: bool,
    /// Rings that an earlier process had are started at this time at the latest.
    held: Option<Instant>,
}

impl Endpoint {
    pub(crate) fn new(id: u64, spec: Spec, device: Box<dyn Device>) -> Self {
        Self {
            id,
            journal: Journal::new(spec.journal.as_deref(), QUEUES),
            spec,
            device,
            stage: Stage::Waiting(Instant::now()),
            ends: false,
            held: None,
        }
    }
    pub(crate) fn name(&self) -> &str {
        &self.spec.name
    }
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.stage, Stage::Gone)
    }

    /// Whether it is to end, once the bus and the kernel have let it go.
    pub(crate) fn is_leaving(&self) -> bool {
        self.ends && !self.is_gone()
    }

    /// Does the due work. Returns the time of the next call. `taken`: an endpoint before this one has the
    /// device; whether that one is just leaving.
    pub(crate) fn service(&mut self, taken: Option<bool>, shared: &Shared<'_>) -> Option<Instant> {
        let now = Instant::now();
        match core::mem::replace(&mut self.stage, Stage::Gone) {
            Stage::Waiting(at) if now < at => self.stage = Stage::Waiting(at),
            Stage::Waiting(_) => self.begin(taken, now, shared),
            Stage::Open {
                mut session,
                joined,
                watched,
            } => match session.serve(&mut *self.device) {
                Ok(()) => {
                    let joined = self.join(joined, now, shared);
                    self.stage = Stage::Open {
                        session,
                        joined,
                        watched,
                    };
                }
                Err(Broken(why)) => self.give_up(Some((session, watched)), &why, shared),
            },
            Stage::Leaving { session, watched } => {
                let mut rest = None;
                if let Some(mut session) = session {
                    match session.serve(&mut *self.device) {
                        Ok(()) => rest = Some(session),
                        // The bus is waited for all the same.
                        Err(Broken(why)) => self.close(session, watched, &why, shared),
                    }
                }
                let watched = watched && rest.is_some();
                self.stage = Stage::Leaving {
                    session: rest,
                    watched,
                };
            }
            Stage::Destroying { at, tries } if now < at => self.stage = Stage::Destroying { at, tries },
            Stage::Destroying { tries, .. } => self.destroy(tries, now, shared),
            Stage::Gone => {}
        }
        if self.held.is_some_and(|at| at <= Instant::now()) {
            self.resume(Rings::All, shared);
        }
        self.watch(shared);
        [self.deadline(), self.held].into_iter().flatten().min()
    }

    fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Waiting(at) | Stage::Destroying { at, .. } => Some(*at),
            Stage::Open { session, joined, .. } => {
                let join = match joined {
                    Joined::Refused(at) | Joined::Yes(Some((at, _))) => Some(*at),
                    Joined::Requested | Joined::Yes(None) => None,
                };
                [session.deadline(), join].into_iter().flatten().min()
            }
            Stage::Leaving { session, .. } => session.as_ref().and_then(Session::deadline),
            Stage::Gone => None,
        }
    }

    // -- to the bus

    fn begin(&mut self, taken: Option<bool>, now: Instant, shared: &Shared<'_>) {
        if let Some(leaving) = taken {
            if !leaving {
                self.device.unavailable("another port has this device");
            }
            return self.wait(now + if leaving { SOON } else { AGAIN });
        }
        match self.open(shared) {
            Ok(()) => {}
            Err(text) => {
                self.device.unavailable(&text);
                self.wait(now + AGAIN);
            }
        }
    }

    fn wait(&mut self, at: Instant) {
        self.stage = Stage::Waiting(at);
    }

    /// Makes or finds the device, and opens it.
    fn open(&mut self, shared: &Shared<'_>) -> Result<(), String> {
        let (host, name) = (shared.host, &self.spec.name);
        let port = self.device.offer().features;
        let config = self.spec.wanted.config();
        let new = NewDevice {
            name,
            features: self.spec.offered(port).bits(),
            queues: QUEUES.into(),
            config: &config,
        };
        let is_new = match host.create(&new) {
            Ok(()) => true,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => false,
            Err(e) => return Err(cannot_create(name, &e)),
        };
        let end = host.open(name).map_err(|e| match e.kind() {
            io::ErrorKind::ResourceBusy => format!("another process serves /dev/vduse/{name}"),
            _ => format!("/dev/vduse/{name} cannot be opened: {}", errno_text(&e)),
        })?;
        if !is_new {
            let given_up = end.features().is_err_and(|e| e.raw_os_error() == Some(GIVEN_UP));
            if given_up || !host.is_present(name) {
                drop(end);
                let why = if given_up {
                    GAVE_UP
                } else {
                    "it was not on the vDPA bus"
                };
                self.give_up(None, why, shared);
                return Ok(());
            }
        }
        let journal = self.journal.clone();
        let session = Session::new(end, journal, Arc::clone(shared.wake), &mut *self.device);
        let joined = if is_new {
            self.set_up(&session, shared)?;
            shared.bus.queue(self.id, Errand::Add, &self.spec.name);
            Joined::Requested
        } else {
            session.configure(&self.spec.wanted, &mut *self.device);
            let wait = if shared.settled { Duration::ZERO } else { SETTLE };
            self.held = Some(Instant::now() + wait);
            self.device.listening();
            Joined::Yes(Some((Instant::now(), NETDEV_LOOKS)))
        };
        self.stage = Stage::Open {
            session,
            joined,
            watched: false,
        };
        Ok(())
    }

    /// Sets up a new device before it comes to the bus.
    fn set_up(&mut self, session: &Session, shared: &Shared<'_>) -> Result<(), String> {
        for index in 0..QUEUES {
            let done = session.end().set_up_queue(index, self.spec.size);
            done.map_err(|e| format!("queue {index} cannot be set up: {}", errno_text(&e)))?;
        }
        let mut attributes = Vec::new();
        if let Some(bytes) = self.spec.bounce_bytes {
            attributes.push(("bounce_size".to_owned(), bytes.to_string()));
        }
        if let Some(mask) = &self.spec.irq_mask {
            attributes.extend((0..QUEUES).map(|i| (format!("vq{i}/irq_cb_affinity"), mask.clone())));
        }
        for (attribute, value) in attributes {
            if let Err(e) = shared.host.set_attribute(&self.spec.name, &attribute, &value) {
                let why = errno_text(&e);
                self.device.note(&format!(
                    "{attribute} cannot be {value} ({why}): it stays as it is"
                ));
            }
        }
        Ok(())
    }

    /// Starts rings that an earlier process had.
    pub(crate) fn resume(&mut self, rings: Rings, shared: &Shared<'_>) {
        if self.held.is_none() {
            return;
        }
        if rings == Rings::All {
            self.held = None;
        }
        let Stage::Open { session, .. } = &mut self.stage else {
            return;
        };
        if let Err(Broken(why)) = session.resume(rings, &mut *self.device)
            && let Stage::Open { session, watched, .. } = core::mem::replace(&mut self.stage, Stage::Gone)
        {
            self.give_up(Some((session, watched)), &why, shared);
        }
    }

    /// Repeats a request that the bus refused; looks for the driver's network device.
    fn join(&mut self, joined: Joined, now: Instant, shared: &Shared<'_>) -> Joined {
        match joined {
            Joined::Refused(at) if at <= now => {
                shared.bus.queue(self.id, Errand::Add, &self.spec.name);
                Joined::Requested
            }
            Joined::Yes(Some((at, left))) if at <= now => {
                let name = &self.spec.name;
                if let Some(netdev) = shared.host.netdev(name) {
                    self.device.show("netdev", &netdev);
                    return Joined::Yes(None);
                }
                if !shared.host.has_driver(name) {
                    self.device
                        .trouble("no driver has taken the device (is the module virtio_vdpa loaded?)");
                }
                Joined::Yes((left > 1).then(|| (now + AGAIN, left - 1)))
            }
            other => other,
        }
    }

    /// The bus has finished an errand of this endpoint.
    pub(crate) fn done(&mut self, done: Done, shared: &Shared<'_>) {
        let now = Instant::now();
        match (&mut self.stage, done.errand) {
            (Stage::Open { joined, .. }, Errand::Add) => match done.result {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    let name = &self.spec.name;
                    self.device.unavailable(&format!(
                        "{name} cannot be added to the vDPA bus: {}",
                        errno_text(&e)
                    ));
                    *joined = Joined::Refused(now + AGAIN);
                }
                _ => {
                    *joined = Joined::Yes(Some((now, NETDEV_LOOKS)));
                    self.device.listening();
                }
            },
            (Stage::Leaving { .. }, Errand::Remove) => {
                if let Stage::Leaving { session, watched } = core::mem::replace(&mut self.stage, Stage::Gone)
                    && let Some(session) = session
                {
                    let why = if self.ends {
                        "the port was removed"
                    } else {
                        GAVE_UP
                    };
                    self.close(session, watched, why, shared);
                }
                self.stage = Stage::Destroying { at: now, tries: 0 };
            }
            // A reply that has been overtaken.
            _ => {}
        }
    }

    // -- away from it

    /// The device is of no use any more: it goes, and another one takes its place.
    fn give_up(&mut self, session: Option<(Session, bool)>, why: &str, shared: &Shared<'_>) {
        let name = &self.spec.name;
        self.device
            .unavailable(&format!("{name} is destroyed and made anew: {why}"));
        if let Some((session, watched)) = session {
            self.close(session, watched, why, shared);
        }
        self.leave(None, false, shared);
    }

    fn leave(&mut self, session: Option<Session>, watched: bool, shared: &Shared<'_>) {
        self.held = None;
        shared.bus.queue(self.id, Errand::Remove, &self.spec.name);
        self.stage = Stage::Leaving { session, watched };
    }

    fn close(&mut self, session: Session, watched: bool, why: &str, shared: &Shared<'_>) {
        if watched {
            let _ = shared.epoll.remove(session.end().as_fd().as_raw_fd());
        }
        session.close(&mut *self.device, why);
    }

    fn destroy(&mut self, tries: u32, now: Instant, shared: &Shared<'_>) {
        let name = &self.spec.name;
        match shared.host.destroy(name) {
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy && tries < DESTROY_TRIES => {
                let at = now + SOON;
                self.stage = Stage::Destroying { at, tries: tries + 1 };
                return;
            }
            Err(e) => {
                self.device.note(&format!(
                    "/dev/vduse/{name} cannot be destroyed: {}",
                    errno_text(&e)
                ));
                self.stage = Stage::Waiting(now + AGAIN);
            }
            Ok(()) => self.stage = Stage::Waiting(now),
        }
        if self.ends {
            self.stage = Stage::Gone;
        }
    }

    /// Ends the service. `for_good`: the device goes, too, once the bus has let it go.
    pub(crate) fn end(&mut self, for_good: bool, why: &str, shared: &Shared<'_>) {
        self.ends = true;
        match core::mem::replace(&mut self.stage, Stage::Gone) {
            Stage::Open { session, watched, .. } if for_good => self.leave(Some(session), watched, shared),
            Stage::Open { session, watched, .. } => self.close(session, watched, why, shared),
            leaving @ (Stage::Leaving { .. } | Stage::Destroying { .. }) => self.stage = leaving,
            // A device of another process, or left by an earlier one: this port must not destroy it.
            Stage::Waiting(_) | Stage::Gone => {}
        }
    }

    /// Ends the service at once, whatever the bus does.
    pub(crate) fn drop_all(&mut self, why: &str, shared: &Shared<'_>) {
        match core::mem::replace(&mut self.stage, Stage::Gone) {
            Stage::Open { session, watched, .. }
            | Stage::Leaving {
                session: Some(session),
                watched,
            } => self.close(session, watched, why, shared),
            _ => {}
        }
    }

    /// Changes the settings that the driver reads.
    pub(crate) fn configure(&mut self, wanted: Wanted) {
        self.spec.wanted = wanted;
        if let Stage::Open { session, .. } = &self.stage {
            session.configure(&wanted, &mut *self.device);
        }
    }

    // -- waiting for messages

    fn watch(&mut self, shared: &Shared<'_>) {
        let (session, watched) = match &mut self.stage {
            Stage::Open { session, watched, .. }
            | Stage::Leaving {
                session: Some(session),
                watched,
            } => (session, watched),
            _ => return,
        };
        if !*watched {
            *watched = shared.epoll.add(fd(session), self.id).is_ok();
        }
    }
    /// The descriptor is in an error state: the kernel has given the device up.
    pub(crate) fn failed(&mut self, shared: &Shared<'_>) {
        match core::mem::replace(&mut self.stage, Stage::Gone) {
            Stage::Open { session, watched, .. } => self.give_up(Some((session, watched)), GAVE_UP, shared),
            Stage::Leaving {
                session: Some(session),
                watched,
            } => {
                self.close(session, watched, GAVE_UP, shared);
                self.stage = Stage::Leaving {
                    session: None,
                    watched: false,
                };
            }
            other => self.stage = other,
        }
    }
}

fn fd(session: &Session) -> RawFd {
    session.end().as_fd().as_raw_fd()
}

fn cannot_create(name: &str, e: &io::Error) -> String {
    let text = errno_text(e);
    match e.kind() {
        io::ErrorKind::NotFound => {
            "/dev/vduse/control is not there: the kernel's module vduse is not loaded (modprobe vduse)".into()
        }
        io::ErrorKind::PermissionDenied => {
            format!("/dev/vduse/{name} cannot be made: {text} (it takes CAP_SYS_ADMIN and CAP_NET_ADMIN)")
        }
        _ => format!("/dev/vduse/{name} cannot be made: {text}"),
    }
}
