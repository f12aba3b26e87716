//! The traits that every port type implements.

use crate::gro::GsoKinds;
use arrayvec::ArrayVec;
use heddle_packet::{BURST, Burst, Packet, Pool};
use heddle_sys::{DeviceCounters, QueueCounts, device_counters, errno_text};
use std::os::fd::RawFd;

/// Why a port cannot be opened or changed; the text goes to `Interface.error`.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The system refused; the attempted operation, and the system's error.
    #[error("{what} ({})", errno_text(source))]
    Sys {
        /// The attempted operation, for example `could not open network device eth7`.
        what: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The options make no sense; the text names the option and the reason.
    #[error("{0}")]
    Config(String),
    /// Another program uses the device; the text has the reason. The kernel does not report the end of that,
    /// so the caller has to try again.
    #[error("{0}")]
    Busy(String),
    /// This port type cannot do that.
    #[error("{0} not supported")]
    Unsupported(&'static str),
}

impl PortError {
    /// The system's refusal of the operation `what`.
    pub fn sys(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Sys {
            what: what.into(),
            source,
        }
    }
    /// A port without the wanted type of QoS; it has `types`.
    pub(crate) fn no_qos_type(name: &str, types: &[&str]) -> Self {
        let why = match types {
            [] => "this port has no rates".to_owned(),
            types => format!("this port has only {}", types.join(", ")),
        };
        Self::Config(format!("could not set QoS of {name}: {why}"))
    }
    /// The system's refusal to open device `name`, in the words that OVS's tools and tests expect.
    pub fn open(name: &str, source: std::io::Error) -> Self {
        Self::sys(format!("could not open network device {name}"), source)
    }
}

/// The present status of a port's device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortStatus {
    /// Hardware address.
    pub mac: [u8; 6],
    /// Largest IP packet, bytes (0: the type has none).
    pub mtu: u32,
    /// Administratively up.
    pub admin_up: bool,
    /// Carrier.
    pub link_up: bool,
    /// Times that the link changed.
    pub link_resets: u64,
    /// Bits per second, 0 if unknown.
    pub speed_bps: u64,
    /// Full duplex, where known.
    pub full_duplex: Option<bool>,
    /// Kernel interface index, 0 without one.
    pub ifindex: u32,
    /// Packets that the device lost before a receive queue saw them.
    pub rx_dropped: u64,
    /// Receive queues that the device has now, where it decides that and not the user (a guest's queue
    /// pairs).
    pub n_rxq: Option<usize>,
    /// NUMA node of the memory that holds its packets, if that is known.
    pub numa: Option<u32>,
    /// The fault of a port that exists, for `Interface.error`.
    pub error: Option<String>,
    /// Further key-value pairs for `Interface.status` (`driver_name`, ...).
    pub extra: Vec<(String, String)>,
}

/// A descriptor that becomes readable when a receive queue has work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeFd(pub RawFd);

/// The control plane's handle of a port. Calls may take milliseconds; no worker makes them.
pub trait Port: Send + Sync {
    /// Interface name.
    fn name(&self) -> &str;
    /// The `Interface.type` that it implements (`system`, `internal`, `dummy`, ...).
    fn kind(&self) -> &'static str;
    /// The type of tunnel that it stands for, if it does: see [`crate::TunnelPort`].
    fn tunnel(&self) -> Option<heddle_tunnel::TunnelType> {
        None
    }
    /// Opens `n` receive queues (fewer if the type has fewer). The port's earlier queues have been dropped.
    fn open_rx(&self, n: usize) -> Result<Vec<Box<dyn RxQueue>>, PortError>;
    /// Opens a transmit queue for worker `worker` of `n`.
    fn open_tx(&self, worker: usize, n: usize) -> Result<Box<dyn TxQueue>, PortError>;
    /// Reads the device's state.
    fn status(&self) -> PortStatus;
    /// Whether its device, if it has one, is in the switch's own network namespace.
    fn is_here(&self) -> bool {
        true
    }
    /// Sets the MTU.
    fn set_mtu(&self, mtu: u32) -> Result<(), PortError>;
    /// The MTU of a port without a configured one. `None`: the device's earlier MTU.
    fn default_mtu(&self) -> Option<u32> {
        None
    }
    /// Sets the hardware address.
    fn set_mac(&self, mac: [u8; 6]) -> Result<(), PortError>;
    /// Sets the admin state.
    fn set_admin(&self, up: bool) -> Result<(), PortError>;
    /// Takes over changed options; those that this type does not know are ignored.
    ///
    /// # Errors
    /// [`PortError::Config`] for a value that makes no sense.
    fn set_options(&self, _options: &std::collections::BTreeMap<String, String>) -> Result<(), PortError> {
        Ok(())
    }
    /// Whether losses and errors of the device are known; if not, OpenFlow reports them as unknown instead of
    /// zero.
    fn counts_losses(&self) -> bool {
        true
    }
    /// Whether the device has a queue 0 for outputs without any QoS configured.
    fn has_default_queue(&self) -> bool {
        false
    }
    /// Types of QoS that it has.
    fn qos_types(&self) -> &'static [&'static str] {
        &[]
    }
    /// Sets its queues up as configured; `None`: it has none.
    ///
    /// # Errors
    /// [`PortError::Sys`] where the system refuses, or the type is none of [`Port::qos_types`].
    fn set_qos(&self, qos: Option<&crate::QosConfig>) -> Result<(), PortError> {
        match qos.filter(|q| !q.kind.is_empty() && q.kind != crate::qos::NOOP) {
            None => Ok(()),
            Some(_) => Err(PortError::no_qos_type(self.name(), self.qos_types())),
        }
    }
    /// The queues in force, with their actual rates.
    fn qos(&self) -> Option<crate::QosConfig> {
        None
    }
    /// The counters of its queues.
    fn queue_counts(&self) -> Vec<QueueCounts> {
        Vec::new()
    }
    /// Counters of this type alone, for `Interface.statistics`; and its counters that workers do not keep.
    fn statistics(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
    /// Counters that the driver of its network device keeps. `None` without a device in the switch's own
    /// network namespace.
    fn device_counters(&self) -> Option<DeviceCounters> {
        match self.status().ifindex {
            ifindex if ifindex != 0 && self.is_here() => device_counters(ifindex),
            _ => None,
        }
    }
    /// Whether the device wants receive queue `queue` to be polled (shown by `dpif-netdev/pmd-rxq-show`).
    fn rxq_enabled(&self, _queue: usize) -> bool {
        true
    }
    /// Whether receive queues may be opened while those that were opened before are still there. Nothing
    /// comes into the old ones from then on; the packets in them can be taken, and must be taken first. The
    /// others' old queues have to go before.
    fn takes_over(&self) -> bool {
        false
    }
    /// The queues no longer lead to the device and cannot be mended in place: open them again. (Whatever can
    /// be mended, [`Port::status`] mends.)
    fn stale(&self) -> bool {
        false
    }
    /// Passes the processors that no worker of the switch uses (all of them, if workers use all). In a type
    /// whose packets can overtake each other at ingress (a veth pair), the port steers them by flow to these.
    /// The default needs nothing.
    fn steer(&self, _cpus: &[usize]) {}
    /// The port leaves the configuration for good. Parts of it that would outlive the process (a device, a
    /// file) go too, with the port's last handle at the latest.
    fn forget(&self) {}
    /// Whether a packet's flow, instead of the worker that sends it, chooses among the device's transmit
    /// queues (`tx-steering=hash`). For types whose device has several.
    fn set_tx_steering(&self, _by_flow: bool) {}
    /// The packets of its device that the host's stack gets (`other_config:heddle-xdp-pass`); `None`: none.
    /// [`PortStatus::error`] has the reason why a list is not in force. For types whose device the host can
    /// share.
    fn set_xdp_pass(&self, _items: Option<&str>) {}
    /// For type-specific commands (`netdev-dummy/receive`).
    fn as_any(&self) -> &dyn std::any::Any;
}

/// One receive queue, owned by one worker.
pub trait RxQueue: Send {
    /// Appends received packets to `burst` (until it is full or the queue is empty), taking buffers from
    /// `pool`. Returns how many. A packet that cannot be taken (truncated by the kernel, runt, a bad
    /// virtio-net header) is dropped here and counted in [`RxQueue::dropped`].
    fn rx(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize;
    /// The burst's packets are gone: foreign memory they referred to can be reused. While another owner keeps
    /// a packet that refers to it, the queue keeps it, too ([`heddle_packet::Lender`]).
    fn complete(&mut self) {}
    /// Whether each look is a system call, also one that finds nothing: a worker that has other work looks
    /// less often then.
    fn polls_kernel(&self) -> bool {
        false
    }
    /// Readable when the queue has work. `None`: the queue can only be polled.
    fn wake_fd(&self) -> Option<WakeFd>;
    /// Called after sleeping, and before the next [`RxQueue::arm`], on the queue whose descriptor was
    /// readable. It consumes the event, so that the descriptor is readable again only at a new event. A queue
    /// whose descriptor is the device's needs nothing: reading the device makes it unreadable.
    fn woken(&mut self) {}
    /// Called before sleeping: arm notifications, then look again. Returns whether there is work already.
    fn arm(&mut self) -> bool {
        false
    }
    /// Called after sleeping.
    fn disarm(&mut self) {}
    /// Packets lost in this queue since it was opened, as (reason, count).
    fn dropped(&self) -> &[(&'static str, u64)] {
        &[]
    }
}

/// The outcomes of the packets of one transmit call.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct TxCounts {
    /// Packets accepted.
    pub sent: u64,
    /// Their bytes on the wire (a GSO packet counts as one packet).
    pub bytes: u64,
    /// Dropped: the queue or device stayed full.
    pub full: u64,
    /// Dropped: longer than the device takes.
    pub too_long: u64,
    /// Dropped: the device is down.
    pub down: u64,
    /// Dropped: there is no device.
    pub nowhere: u64,
    /// Dropped: the system refused, or the packet could not be segmented.
    pub error: u64,
    /// Other packets wait in the queue: [`TxQueue::release`] has to be called.
    pub waits: bool,
}

/// The outcome of [`TxQueue::release`].
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Released {
    /// Waiting packets that were sent or dropped.
    pub counts: TxCounts,
    /// When the same worker has to call again, by [`heddle_sys::Tsc`]; `None`: it need not.
    pub next: Option<u64>,
}

impl std::ops::AddAssign for TxCounts {
    fn add_assign(&mut self, other: Self) {
        let Self {
            sent,
            bytes,
            full,
            too_long,
            down,
            nowhere,
            error,
            waits,
        } = other;
        self.waits |= waits;
        self.nowhere += nowhere;
        self.sent += sent;
        self.bytes += bytes;
        self.full += full;
        self.too_long += too_long;
        self.down += down;
        self.error += error;
    }
}

/// One transmit queue, owned by one worker.
pub trait TxQueue: Send {
    /// Sends packets in order, without waiting for the device: packets that it does not take after a bounded
    /// number of tries are dropped and counted. `pool` serves software segmentation where the device needs
    /// it.
    fn tx(&mut self, pool: &mut Pool, packets: &[&Packet]) -> TxCounts;
    /// Sends packets that [`TxQueue::tx`] has left waiting, as far as they may leave now.
    fn release(&mut self, _pool: &mut Pool) -> Released {
        Released::default()
    }
    /// The port goes: drops packets that wait for this worker, and returns their number.
    fn abandon(&mut self) -> u64 {
        0
    }
    /// Whether the queue keeps packets beyond the call (a device that reads them later): it is given packets
    /// by [`TxQueue::tx_owned`] then. Always the same for a queue.
    fn wants_ownership(&self) -> bool {
        false
    }
    /// The kinds of GSO packets that its device takes: only for these is it worth to join packets.
    fn gso_support(&self) -> GsoKinds {
        GsoKinds::default()
    }
    /// Like [`TxQueue::tx`], with packets that the queue may keep: all of their bytes are private. Packets
    /// that it kept go back to the `pool` of a later call; packets that it leaves in the list go back at
    /// once.
    fn tx_owned(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> TxCounts {
        let mut counts = TxCounts::default();
        for some in packets.chunks(BURST) {
            let lent: ArrayVec<&Packet, BURST> = some.iter().collect();
            counts += self.tx(pool, &lent);
        }
        counts
    }
}
