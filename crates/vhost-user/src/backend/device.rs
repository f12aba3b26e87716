//! What a session drives: the device behind one socket.

use super::Link;
use crate::message::{ConfigFlags, ProtocolFeatures};
use heddle_virtio::mem::SharedMemory;
use heddle_virtio::ring::{Features, Position, QueueConfig};
use heddle_virtio::{DeviceRx, DeviceTx};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What a device offers to a front end. Read at the start of each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Features of rings and device. The session adds PROTOCOL_FEATURES and LOG_ALL itself.
    pub features: Features,
    /// Protocol features; those that the session does not implement ([`super::PROTOCOL`]) are left out.
    pub protocol: ProtocolFeatures,
    /// Most queue pairs, 1 to [`MAX_QUEUE_PAIRS`].
    pub queue_pairs: u16,
    /// Most regions of memory that the front end may add one by one, up to [`heddle_virtio::mem::MAX_REGIONS`].
    pub mem_slots: usize,
}

/// Most queue pairs: a ring's index is a byte in the messages that carry descriptors.
pub const MAX_QUEUE_PAIRS: u16 = 128;

/// A ring's queue, ready for a worker.
#[derive(Debug)]
pub enum Queue {
    /// Odd index: what the guest transmits.
    FromGuest(DeviceRx),
    /// Even index: what the guest receives.
    ToGuest(DeviceTx),
}

/// A ring that starts.
#[derive(Debug)]
pub struct RingSetup {
    /// The ring: queue pair `index / 2`; even: to the guest, odd: from the guest.
    pub index: u16,
    /// What the queue was set up with; for status and for the choice of memory.
    pub config: QueueConfig,
    /// The queue. The worker that owns it follows the memory table by itself.
    pub queue: Queue,
    /// The guest's memory, which the queue uses; for the choice of a NUMA node.
    pub memory: Arc<SharedMemory>,
    /// Readable when the guest made buffers available. `None`: the ring has to be polled.
    pub kick: Option<OwnedFd>,
    /// Written (eight bytes) when the guest shall be notified. `None`: the guest polls. Non-blocking.
    pub call: Option<OwnedFd>,
    /// Written when the ring breaks ([`heddle_virtio::RingError`]). Non-blocking.
    pub err: Option<OwnedFd>,
    /// Whether the ring may have side effects. If not, what the guest transmits is taken and dropped, and nothing is sent to the guest
    /// (specification, "Ring states").
    pub enabled: bool,
}

/// Why a device does not start a ring. The front end is told, or disconnected, with this text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StartError(pub String);

/// Which descriptor of a ring is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The guest's kicks.
    Kick,
    /// Notifications of the guest.
    Call,
    /// The ring's errors.
    Err,
}

/// The device behind a socket: a port.
///
/// All functions are called by the control thread, one at a time. A function may wait for a worker that is in the middle of a burst, but
/// not for anything that a guest or a front end does: the control thread serves all sockets.
///
/// Order of calls: [`Device::connected`], then any others, then [`Device::disconnected`]. Rings that are started are stopped
/// before `disconnected`; a started ring is stopped before it is started again.
pub trait Device: Send {
    /// What is offered to the next front end.
    fn offer(&mut self) -> Offer;

    /// A front end is there. `link` is for what the device has to tell it.
    fn connected(&mut self, link: Link);

    /// The front end is gone, or was disconnected; `reason` is for people.
    fn disconnected(&mut self, reason: &str);

    /// Something for `Interface.status` and the log: the socket cannot be bound, nobody answers, a request of this session was refused.
    /// It holds until the next front end is there ([`Device::connected`]).
    fn trouble(&mut self, text: &str);

    /// Something for the log alone: what is connected goes on.
    fn note(&mut self, text: &str) {
        let _ = text;
    }

    /// This process has no descriptors left, which is why the connection just ended, or was not made. It is tried again.
    fn starved(&mut self) {}

    /// The socket of a server is there: front ends may connect. Also after [`Device::trouble`] with it.
    fn listening(&mut self) {}

    /// The driver's choice of features (SET_FEATURES). May come again, with LOG_ALL added or taken away, while rings run.
    fn negotiated(&mut self, features: Features);

    /// A ring starts: hand the queue to a worker.
    ///
    /// # Errors
    /// [`StartError`]; the ring stays stopped.
    fn start(&mut self, ring: RingSetup) -> Result<(), StartError>;

    /// Takes a started ring back from its worker, ends its queue ([`DeviceRx::stop`], [`DeviceTx::stop`]) and returns where it
    /// was. Returns only when no worker uses the queue any more.
    fn stop(&mut self, index: u16) -> Position;

    /// A started ring is enabled or disabled.
    fn enable(&mut self, index: u16, on: bool);

    /// A descriptor of a started ring is replaced; `None`: polling. A new call descriptor should be notified once, since
    /// a notification may have gone to the old one.
    fn set_notify(&mut self, index: u16, which: Notify, fd: Option<OwnedFd>);

    /// The memory table of the started rings was replaced: make their queues take the new one ([`DeviceRx::refresh`],
    /// [`DeviceTx::refresh`]), waking or waiting for workers as needed. Called again every few milliseconds until nobody uses the
    /// old table; so it may also return at once.
    fn refresh_memory(&mut self);

    /// The front end tells the MTU that the guest is told (NET_SET_MTU).
    ///
    /// # Errors
    /// A text, when the MTU is not possible.
    fn set_mtu(&mut self, mtu: u16) -> Result<(), String>;

    /// A migrated guest cannot announce itself: broadcast a RARP request with its address.
    fn send_rarp(&mut self, mac: [u8; 6]);

    /// The device status field (virtio 1.2 §2.1) changed. For information: rings are started and stopped by the other calls.
    fn set_status(&mut self, status: u8) {
        let _ = status;
    }

    /// Reads the configuration space (virtio 1.2 §5.1.4). Only called when [`ProtocolFeatures::CONFIG`] was offered.
    fn config(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Writes to the configuration space.
    ///
    /// # Errors
    /// A text, when these bytes are not to be written.
    fn set_config(&mut self, offset: u32, bytes: &[u8], flags: ConfigFlags) -> Result<(), String> {
        let _ = (offset, bytes, flags);
        Err("the configuration space is read-only".into())
    }
}
