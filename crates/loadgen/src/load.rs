//! A measurement: devices, traffic, checks, durations.

use crate::error::RunError;
use crate::flows::{Order, Spread};
use crate::frame::{HDR, Shape};
use core::time::Duration;
use heddle_vhost_user::frontend::{HugePages, NicConfig};
use heddle_virtio::Features;

/// Devices and rings of the ports.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Packed rings instead of split ones.
    pub packed: bool,
    /// Mergeable receive buffers.
    pub mergeable: bool,
    /// Feature IN_ORDER.
    pub in_order: bool,
    /// Feature EVENT_IDX.
    pub event_idx: bool,
    /// Entries of each ring.
    pub ring: u16,
    /// Queue pairs of each port.
    pub pairs: u16,
    /// Bytes of a receive buffer; `None`: 2 KiB with mergeable buffers, else the size of the longest frame.
    pub rx_buffer: Option<u32>,
    /// Use of huge pages for memory.
    pub huge: HugePages,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            packed: false,
            mergeable: true,
            in_order: false,
            event_idx: false,
            ring: 256,
            pairs: 1,
            rx_buffer: None,
            huge: HugePages::Try,
        }
    }
}

/// Bytes of a receive buffer that is one of several for a long packet.
const MERGEABLE_BUFFER: u32 = 2048;

impl Setup {
    /// The device of a port that carries frames of `shape`.
    pub fn nic(&self, shape: Shape) -> NicConfig {
        let mut features = Features::VERSION_1 | Features::ANY_LAYOUT | Features::STATUS;
        features.set(Features::RING_PACKED, self.packed);
        features.set(Features::MRG_RXBUF, self.mergeable);
        features.set(Features::IN_ORDER, self.in_order);
        features.set(Features::EVENT_IDX, self.event_idx);
        features.set(Features::MQ | Features::CTRL_VQ, self.pairs > 1);
        if matches!(shape, Shape::Tso { .. }) {
            features |= Features::CSUM
                | Features::GUEST_CSUM
                | Features::HOST_TSO4
                | Features::GUEST_TSO4
                | Features::HOST_TSO6
                | Features::GUEST_TSO6;
        }
        let longest = u32::try_from(HDR + shape.size()).unwrap_or(u32::MAX);
        let rx_len = self.rx_buffer.unwrap_or(if self.mergeable {
            MERGEABLE_BUFFER
        } else {
            longest.max(MERGEABLE_BUFFER)
        });
        NicConfig {
            features,
            protocol: NicConfig::PROTOCOL,
            pairs: self.pairs,
            queue_size: self.ring,
            tx_len: longest,
            rx_len,
            huge: self.huge,
        }
    }
}

/// The traffic of one pair of ports, or of all pairs.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The frames.
    pub shape: Shape,
    /// Whether each port sends, or only the first of each pair.
    pub both_ways: bool,
    /// Flows of each sending port.
    pub flows: u32,
    /// Order of the flows.
    pub order: Order,
    /// Tuples of the flows.
    pub spread: Spread,
    /// Packets per second of all senders of this load together; `None`: the maximum that the switch takes.
    pub rate: Option<f64>,
    /// The receivers' checks.
    pub checks: Checks,
    /// The part of each packet that guests touch.
    pub touch: Touch,
    /// Maximum number of packets of one post.
    pub burst: usize,
    /// The packets' destination.
    pub aim: Aim,
}

/// The packets' destination, if it is not the partner itself. Receivers recognize the packets anyway: devices
/// on the path may change their headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aim {
    /// The Ethernet address of a router that all ports send to.
    pub gateway: Option<[u8; 6]>,
    /// The IPv4 addresses that the first and the second ports of pairs send to: a balancer's, a translated
    /// source's. `None`: that of the flow.
    pub address: [Option<u32>; 2],
}

impl Default for Load {
    fn default() -> Self {
        Self {
            shape: Shape::Udp(64),
            both_ways: false,
            flows: 1,
            order: Order::RoundRobin,
            spread: Spread::Plain,
            rate: None,
            checks: Checks::Probes(64),
            touch: Touch::Heads,
            burst: 64,
            aim: Aim::default(),
        }
    }
}

impl Load {
    /// The port that port `port` of `ports` sends to; `None`: it only receives. Ports form pairs (0 and 1, 2
    /// and 3, …); a last port without a partner sends to itself.
    pub fn target(&self, port: usize, ports: usize) -> Option<usize> {
        let partner = if (port ^ 1) < ports { port ^ 1 } else { port };
        (self.both_ways || port.is_multiple_of(2)).then_some(partner)
    }
    /// Checks that the load is possible with `setup`.
    ///
    /// # Errors
    /// [`RunError::Impossible`] with the reason.
    pub fn check(&self, setup: &Setup) -> Result<(), RunError> {
        let asked = |text: String| Err(RunError::Impossible(text));
        let size = self.shape.size();
        if size < self.shape.min() || size > Shape::MAX {
            return asked(format!(
                "frames of {size} bytes: {} to {}",
                self.shape.min(),
                Shape::MAX
            ));
        }
        if matches!(self.shape, Shape::Tcp(_)) && self.checks != Checks::Lengths {
            return asked("segments of TCP have no stamps: check lengths alone".into());
        }
        if self.checks == Checks::Content && size < self.shape.min() + 2 {
            return asked(format!(
                "checking content needs frames of {} bytes",
                self.shape.min() + 2
            ));
        }
        if matches!(self.shape, Shape::Tso { .. }) && (self.flows > 1 << 14 || self.spread != Spread::Plain) {
            return asked("GSO frames have at most 16384 flows, which differ in a port".into());
        }
        if matches!(self.shape, Shape::Tso { .. }) && self.aim.address != [None; 2] {
            return asked("GSO frames go to the addresses of their flows".into());
        }
        match self.checks {
            Checks::Probes(n) if !n.is_power_of_two() || n > setup.ring => asked(format!(
                "one probe of {n}: a power of two, at most the ring's size"
            )),
            _ if !setup.packed && !setup.ring.is_power_of_two() => asked(format!(
                "a split ring of {}: a power of two is needed",
                setup.ring
            )),
            _ if self.rate.is_some_and(|r| !r.is_finite() || r < 1.0) => {
                asked("a rate of at least one packet per second".into())
            }
            _ => Ok(()),
        }
    }
}

/// Durations of the phases.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Duration of the phase before, which does not count.
    pub warm_up: Duration,
    /// Duration of the measured phase.
    pub measure: Duration,
    /// Maximum time for the last packets to arrive.
    pub drain: Duration,
    /// When no packet has come for this long, the missing ones are lost.
    pub quiet: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            warm_up: Duration::from_millis(300),
            measure: Duration::from_secs(2),
            drain: Duration::from_millis(500),
            quiet: Duration::from_millis(5),
        }
    }
}

/// Bytes of a packet's head, with its virtio-net header: the part that Linux's driver copies out of a receive
/// buffer.
pub const HEAD: usize = 128;

/// The part of each packet that a guest touches. Lines that one side writes and the other reads travel
/// between their cores. They are most of the cost of a small packet, for any switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Touch {
    /// Senders write the bytes that differ from the buffer's packet before, receivers read the bytes that
    /// [`Checks`] needs. The lines of packets stay in the switch's cache.
    Changes,
    /// Senders write and receivers read each packet's first [`HEAD`] bytes, as a guest's network stack does
    /// at least.
    #[default]
    Heads,
    /// All of each packet is written and read.
    Packets,
}

impl Touch {
    /// Bytes of a packet of `len` bytes that are touched.
    pub(crate) fn of(self, len: usize) -> usize {
        match self {
            Self::Changes => 0,
            Self::Heads => len.min(HEAD),
            Self::Packets => len,
        }
    }
}

/// The packets that a receiver reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// No packet: lengths only. No latency is known then.
    Lengths,
    /// One of this number of packets (a power of two, at most the ring's size): the probes.
    Probes(u16),
    /// Every packet: stamp, length and payload.
    Content,
}

impl Checks {
    /// Number of packets of which one carries a stamp; 0: no packet does.
    pub fn every(self) -> u16 {
        match self {
            Self::Lengths => 0,
            Self::Probes(n) => n,
            Self::Content => 1,
        }
    }
}
