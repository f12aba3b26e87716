//! The settings of a new device: features, sizes, the configuration space.

use heddle_virtio::ring::Features;

/// Bounds of a ring's size; it is a power of two.
pub const MIN_SIZE: u16 = 64;
/// See [`MIN_SIZE`].
pub const MAX_SIZE: u16 = 4096;

/// A device to be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The device's name, of 1 to 255 bytes.
    pub name: String,
    /// Maximum number of entries of a ring.
    pub size: u16,
    /// Whether packed rings are offered. Linux takes them if they are.
    pub packed: bool,
    /// Bytes of the region that packets are copied to and from; the kernel's choice (64 MiB) if not given.
    pub bounce_bytes: Option<u64>,
    /// Processors that interrupts go to, as a mask in the kernel's form.
    pub irq_mask: Option<String>,
    /// A file that keeps positions of packed rings across processes.
    pub journal: Option<std::path::PathBuf>,
    /// The values that the driver reads.
    pub wanted: Wanted,
}

/// The part of the configuration space that can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The address of the driver's network device, as it begins.
    pub mac: [u8; 6],
    /// The device's MTU, and the largest that it can be given.
    pub mtu: u16,
    /// Whether its link is up.
    pub link_up: bool,
}

impl Wanted {
    /// The configuration space (virtio 1.2 §5.1.4): `mac`, `status`, `max_virtqueue_pairs`, `mtu`.
    pub(crate) fn config(&self) -> [u8; 12] {
        let mut c = [0; 12];
        c[..6].copy_from_slice(&self.mac);
        c[6..8].copy_from_slice(&u16::from(self.link_up).to_le_bytes());
        c[8..10].copy_from_slice(&1_u16.to_le_bytes());
        c[10..].copy_from_slice(&self.mtu.to_le_bytes());
        c
    }
}

/// Features that the kernel refuses, or that no driver can use with one queue pair and no control queue.
const NOT_HERE: Features = Features::CTRL_VQ
    .union(Features::MQ)
    .union(Features::GUEST_ANNOUNCE)
    .union(Features::NOTIFY_ON_EMPTY)
    .union(Features::ANY_LAYOUT)
    .union(Features::LOG_ALL)
    .union(Features::PROTOCOL_FEATURES);

/// Features of the port that a session can serve.
pub(crate) fn servable(port: Features) -> Features {
    // The kernel demands the first two.
    let own =
        Features::VERSION_1 | Features::ACCESS_PLATFORM | Features::MAC | Features::STATUS | Features::MTU;
    (port | own) - NOT_HERE
}

impl Spec {
    /// The features that a new device offers.
    pub(crate) fn offered(&self, port: Features) -> Features {
        let all = servable(port);
        if self.packed {
            all
        } else {
            all - Features::RING_PACKED
        }
    }
}
