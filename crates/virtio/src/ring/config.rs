//! The configuration of a queue: features, addresses, start position.

use super::limits::MAX_QUEUE;
use super::{Record, Resubmit, RingError};
use crate::mem::{GuestMemory, HostRange};

bitflags::bitflags! {
    /// Feature bits that rings and the network device know (virtio 1.2 §5.1.3, §6; vhost-user's own).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Features: u64 {
        /// The device takes packets with a partial checksum.
        const CSUM = 1;
        /// The driver takes packets with a partial checksum.
        const GUEST_CSUM = 1 << 1;
        /// The device states its MTU.
        const MTU = 1 << 3;
        /// The device has an address.
        const MAC = 1 << 5;
        /// The driver takes TCP GSO packets over IPv4.
        const GUEST_TSO4 = 1 << 7;
        /// The driver takes TCP GSO packets over IPv6.
        const GUEST_TSO6 = 1 << 8;
        /// The driver takes GSO packets with ECN.
        const GUEST_ECN = 1 << 9;
        /// The device takes TCP GSO packets over IPv4.
        const HOST_TSO4 = 1 << 11;
        /// The device takes TCP GSO packets over IPv6.
        const HOST_TSO6 = 1 << 12;
        /// The device takes GSO packets with ECN.
        const HOST_ECN = 1 << 13;
        /// One packet may fill several receive buffers.
        const MRG_RXBUF = 1 << 15;
        /// The device reports its link.
        const STATUS = 1 << 16;
        /// There is a control queue.
        const CTRL_VQ = 1 << 17;
        /// The driver can announce itself.
        const GUEST_ANNOUNCE = 1 << 21;
        /// Several queue pairs.
        const MQ = 1 << 22;
        /// Legacy: notify when the ring runs empty, whatever is suppressed.
        const NOTIFY_ON_EMPTY = 1 << 24;
        /// vhost: log written pages.
        const LOG_ALL = 1 << 26;
        /// No assumption about where the header ends.
        const ANY_LAYOUT = 1 << 27;
        /// Tables of descriptors.
        const INDIRECT_DESC = 1 << 28;
        /// Notification thresholds.
        const EVENT_IDX = 1 << 29;
        /// vhost-user: protocol features.
        const PROTOCOL_FEATURES = 1 << 30;
        /// Not a legacy device.
        const VERSION_1 = 1 << 32;
        /// Addresses go through an IOMMU.
        const ACCESS_PLATFORM = 1 << 33;
        /// Packed rings.
        const RING_PACKED = 1 << 34;
        /// Buffers are used in order.
        const IN_ORDER = 1 << 35;
        /// Real devices' memory ordering.
        const ORDER_PLATFORM = 1 << 36;
        /// The driver takes UDP GSO packets over IPv4.
        const GUEST_USO4 = 1 << 54;
        /// The driver takes UDP GSO packets over IPv6.
        const GUEST_USO6 = 1 << 55;
        /// The device takes UDP GSO packets.
        const HOST_USO = 1 << 56;
    }
}

impl Features {
    /// Features that the rings of this crate implement.
    pub const RING: Self = Self::INDIRECT_DESC
        .union(Self::EVENT_IDX)
        .union(Self::VERSION_1)
        .union(Self::RING_PACKED)
        .union(Self::IN_ORDER)
        .union(Self::ORDER_PLATFORM)
        .union(Self::ANY_LAYOUT)
        .union(Self::MRG_RXBUF);

    /// Bytes of the header in front of each packet (virtio 1.2 §5.1.6.1).
    pub fn header_len(self) -> usize {
        if self.intersects(Self::VERSION_1 | Self::MRG_RXBUF) {
            crate::net_hdr::LEN
        } else {
            crate::net_hdr::LEN_LEGACY
        }
    }
}

/// The position of a queue: the next chain to use. A stopped queue has no others between taken and used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Split: chains so far, modulo 2^16. Packed: slot.
    pub index: u16,
    /// Packed: wrap counter, true at the start.
    pub wrap: bool,
}

impl Default for Position {
    fn default() -> Self {
        Self { index: 0, wrap: true }
    }
}

impl Position {
    /// The number of vhost-user's SET_VRING_BASE and GET_VRING_BASE: for packed rings index and wrap counter,
    /// twice.
    pub fn to_base(self, packed: bool) -> u32 {
        if !packed {
            return u32::from(self.index);
        }
        let half = u32::from(self.index & 0x7fff) | u32::from(self.wrap) << 15;
        half | half << 16
    }
    /// The reverse of [`Position::to_base`]. A packed ring's number has two halves, and the used one (the
    /// upper) counts: chains that were taken but not used are taken again. Front ends that know one half only
    /// (DPDK's) leave the upper one zero.
    pub fn from_base(base: u32, packed: bool) -> Self {
        if !packed {
            return Self {
                index: base as u16,
                wrap: true,
            };
        }
        let half = match (base >> 16) as u16 {
            0 => base as u16,
            used => used,
        };
        Self {
            index: half & 0x7fff,
            wrap: half >> 15 != 0,
        }
    }
}

/// Everything that a queue is set up with. Addresses are the driver's (guest physical, or I/O virtual).
#[derive(Clone, Copy, Debug)]
pub struct QueueConfig {
    /// Negotiated features; RING_PACKED decides the layout.
    pub features: Features,
    /// Entries.
    pub size: u16,
    /// Descriptor table, or packed ring.
    pub desc: u64,
    /// Available ring, or driver event area.
    pub driver: u64,
    /// Used ring, or device event area.
    pub device: u64,
    /// The start position.
    pub start: Position,
    /// Whether a buffer outside the memory table is a miss to be resolved (IOTLB) instead of an error.
    pub wait_for_miss: bool,
}

/// State of a queue that is kept outside of it.
#[derive(Clone, Debug, Default)]
pub struct Tracking {
    /// Guest address at which dirty logging places the first byte of the device area (vhost's
    /// `log_guest_addr`). It is set where it differs from the address in the memory table.
    pub log_device: Option<u64>,
    /// The record of a packed ring's position, begun at the queue's start or recovered to it.
    pub record: Option<Record>,
    /// For a split ring: chains that a back end before this one had taken out of order.
    pub resubmit: Option<Resubmit>,
}

/// The three areas of a ring, checked.
#[derive(Debug)]
pub(crate) struct Areas {
    pub(crate) desc: HostRange,
    pub(crate) driver: HostRange,
    pub(crate) device: HostRange,
}

impl QueueConfig {
    /// Whether the ring is packed.
    pub fn packed(&self) -> bool {
        self.features.contains(Features::RING_PACKED)
    }
    /// Lengths of the three areas in bytes (virtio 1.2 §2.7, §2.8.10.1).
    pub fn area_len(&self) -> [u64; 3] {
        let n = u64::from(self.size);
        if self.packed() {
            [16 * n, 4, 4]
        } else {
            [16 * n, 6 + 2 * n, 6 + 8 * n]
        }
    }
    /// Finds the three areas.
    pub(crate) fn areas(&self, mem: &GuestMemory) -> Result<Areas, RingError> {
        if self.size == 0 || self.size > MAX_QUEUE || (!self.packed() && !self.size.is_power_of_two()) {
            return Err(RingError::Size(self.size));
        }
        let [desc, driver, device] = self.area_len();
        let area = |addr, len, align| mem.range(addr, len, align).map_err(RingError::Area);
        let packed = self.packed();
        Ok(Areas {
            desc: area(self.desc, desc, 16)?,
            driver: area(self.driver, driver, if packed { 4 } else { 2 })?,
            device: area(self.device, device, 4)?,
        })
    }
    /// Reads the used index of a split ring: the position at which to continue after this process, but not
    /// the driver, was restarted. (A packed ring does not hold its position; it must come from elsewhere.)
    ///
    /// # Errors
    /// The errors of setting the queue up.
    pub fn used_index(&self, mem: &GuestMemory) -> Result<u16, RingError> {
        let areas = self.areas(mem)?;
        // Relaxed: the writer was another incarnation of the device, which has ended.
        Ok(areas.device.load16(2, core::sync::atomic::Ordering::Relaxed))
    }
}
