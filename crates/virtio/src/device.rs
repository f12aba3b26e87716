//! The seam between a session and a port: the session drives a [`Device`].
//!
//! **Problem.** Several protocols hand over a driver's memory and rings: vhost-user by messages on a socket,
//! VDUSE by a character device. A port uses the rings in the same way for all of them.
//!
//! **How.** A session turns its protocol into calls of a [`Device`]; the port implements that once. In the
//! other direction the session implements two small traits. By [`Interrupt`] a worker notifies the driver (an
//! eventfd, or an ioctl). By [`Link`] a worker reports an address that it misses. The session then requests
//! the entry from its front end, or the mapping from the kernel, and publishes another table.
//!
//! **Memory** may appear at any time. The session replaces the table in [`SharedMemory`] and calls
//! [`Device::refresh_memory`]. Queues that wait for an address ([`QueueConfig::wait_for_miss`]) continue by
//! themselves. A reset stops all rings; the session starts them again with all settings sent anew.

use crate::mem::SharedMemory;
use crate::ring::{Features, Miss, Position, QueueConfig};
use crate::{DeviceRx, DeviceTx};
use core::fmt::Debug;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Features and limits that a device offers to a driver. A session reads them at its start, and leaves out
/// those that it cannot keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Features of rings and device. The session adds those of its own protocol.
    pub features: Features,
    /// Maximum number of queue pairs, 1 to [`MAX_QUEUE_PAIRS`].
    pub queue_pairs: u16,
    /// Maximum number of regions of memory that may be added one by one, up to [`crate::mem::MAX_REGIONS`].
    pub mem_slots: usize,
}

/// Maximum number of queue pairs: a ring's index is a byte in vhost-user's messages that carry descriptors.
pub const MAX_QUEUE_PAIRS: u16 = 128;

/// Notifies the driver of one ring; also reports a broken ring to the front end.
pub trait Interrupt: Send + Debug {
    /// Notifies. Called by the worker that has the ring, so it must not wait.
    fn raise(&self);
}

/// The notification of one ring.
pub type Call = Box<dyn Interrupt>;

/// Reports of a device to its session, from any thread and without waiting. Calls after the session's end do
/// nothing.
pub trait Link: Send + Sync + Debug {
    /// A queue waits for an address that is not in its memory table ([`DeviceRx::take_miss`]). The session
    /// may forget the report: a queue that still waits repeats it.
    fn miss(&self, miss: Miss);
}

/// A ring's queue, ready for a worker.
#[derive(Debug)]
pub enum Queue {
    /// Odd index: packets that the guest transmits.
    FromGuest(DeviceRx),
    /// Even index: packets that the guest receives.
    ToGuest(DeviceTx),
}

/// A ring that starts.
#[derive(Debug)]
pub struct RingSetup {
    /// The ring of queue pair `index / 2`: even ones go to the guest, odd ones come from the guest.
    pub index: u16,
    /// The queue's configuration; for status and for the choice of memory.
    pub config: QueueConfig,
    /// The queue. The worker that owns it follows the memory table by itself.
    pub queue: Queue,
    /// The guest's memory, which the queue uses; for the choice of a NUMA node.
    pub memory: Arc<SharedMemory>,
    /// Readable when the guest made buffers available. `None`: the ring has to be polled.
    pub kick: Option<OwnedFd>,
    /// Raised when the guest has to be notified. `None`: the guest polls.
    pub call: Option<Call>,
    /// Raised when the ring breaks ([`crate::RingError`]).
    pub err: Option<Call>,
    /// Whether the ring may have side effects. If not, packets that the guest transmits are taken and
    /// dropped, and nothing is sent to the guest (vhost-user specification, "Ring states").
    pub enabled: bool,
}

/// Why a device does not start a ring. The session sends this text to the front end, or disconnects it with
/// this text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The device cannot serve such a ring.
    #[error("{0}")]
    Refused(String),
    /// The system gave no descriptor for the ring.
    #[error("no descriptor for ring {ring}: {error}")]
    NoDescriptor {
        /// The ring.
        ring: u16,
        /// The system's error.
        #[source]
        error: Errno,
    },
}

impl StartError {
    /// The system gave no descriptor for a ring.
    pub fn no_descriptor(ring: u16, error: &std::io::Error) -> Self {
        let error = Errno::from_io_error(error).unwrap_or(Errno::MFILE);
        Self::NoDescriptor { ring, error }
    }
}

/// The device that a session drives: a port.
///
/// All functions are called by the session's thread, one at a time. A function may wait for a worker that is
/// in the middle of a burst. It must not wait for a guest or a front end: one thread may serve many sessions.
///
/// Order of calls: [`Device::connected`], then any others, then [`Device::disconnected`]. Rings that are
/// started are stopped before `disconnected`; a started ring is stopped before it is started again.
pub trait Device: Send {
    /// The offer to the next front end.
    fn offer(&mut self) -> Offer;

    /// A front end is there. `link` takes the device's reports to the session.
    fn connected(&mut self, link: Arc<dyn Link>);

    /// The front end is gone, or was disconnected; `reason` is for people.
    fn disconnected(&mut self, reason: &str);

    /// A fault for `Interface.status` and the log: the socket cannot be bound, the peer does not reply, a
    /// request of this session was refused. It holds until the next front end is there
    /// ([`Device::connected`]).
    fn trouble(&mut self, text: &str);

    /// Like [`Device::trouble`]; in addition no front end can connect until [`Device::listening`] is called.
    fn unavailable(&mut self, text: &str) {
        self.trouble(text);
    }

    /// A value for `Interface.status`, for as long as the front end is there.
    fn show(&mut self, key: &'static str, value: &str) {
        let _ = (key, value);
    }

    /// An event for the log alone: connected front ends continue.
    fn note(&mut self, text: &str) {
        let _ = text;
    }

    /// This process has no descriptors left, which is why the connection just ended, or was not made. It is
    /// tried again.
    fn starved(&mut self) {}

    /// The socket of a server is there: front ends may connect. Also after [`Device::trouble`] with it.
    fn listening(&mut self) {}

    /// The driver's choice of features. May come again, with LOG_ALL added or taken away, while rings run.
    fn negotiated(&mut self, features: Features);

    /// A ring starts: hand the queue to a worker.
    ///
    /// # Errors
    /// [`StartError`]; the ring stays stopped.
    fn start(&mut self, ring: RingSetup) -> Result<(), StartError>;

    /// Takes a started ring back from its worker, ends its queue ([`DeviceRx::stop`], [`DeviceTx::stop`]) and
    /// returns where it was. Returns only when no worker uses the queue any more.
    fn stop(&mut self, index: u16) -> Position;

    /// A started ring is enabled or disabled.
    fn enable(&mut self, index: u16, on: bool);

    /// The descriptor of a started ring's kicks is replaced; `None`: polling.
    fn set_kick(&mut self, index: u16, kick: Option<OwnedFd>);

    /// The notification of a started ring is replaced; `None`: the guest polls. A new one should be raised
    /// once, since a notification may have gone to the old one.
    fn set_call(&mut self, index: u16, call: Option<Call>);

    /// Replaces the call that reports a started ring's errors.
    fn set_err(&mut self, index: u16, err: Option<Call>);

    /// The memory table of the started rings was replaced: make their queues take the new one
    /// ([`DeviceRx::refresh`], [`DeviceTx::refresh`]), waking or waiting for workers as needed. Called again
    /// every few milliseconds until no worker uses the old table; so it may also return at once.
    fn refresh_memory(&mut self);

    /// The MTU that the front end gives the guest (vhost-user's NET_SET_MTU).
    ///
    /// # Errors
    /// A text, when the MTU is not possible.
    fn set_mtu(&mut self, mtu: u16) -> Result<(), String>;

    /// A migrated guest cannot announce itself: broadcast a RARP request with its address.
    fn send_rarp(&mut self, mac: [u8; 6]);

    /// The device status field (virtio 1.2 §2.1) changed. For information: rings are started and stopped by
    /// the other calls.
    fn set_status(&mut self, status: u8) {
        let _ = status;
    }

    /// Reads the configuration space (virtio 1.2 §5.1.4). Empty: this device leaves it to the front end.
    fn config(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Writes to the configuration space; `migration`: the front end does, after a migration, and not the
    /// driver.
    ///
    /// # Errors
    /// A text, when these bytes are not to be written.
    fn set_config(&mut self, offset: u32, bytes: &[u8], migration: bool) -> Result<(), String> {
        let _ = (offset, bytes, migration);
        Err("the configuration space is read-only".into())
    }
}
