//! Payloads of messages (specification, "Payload").

use super::wire::{Reader, Writer};

/// A ring and a number: its size, its base, or whether it is enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VringState {
    /// The ring's index.
    pub index: u32,
    /// The number.
    pub num: u32,
}

/// The addresses of a ring's areas. They are the front end's own ("user addresses"), or I/O virtual addresses
/// when ACCESS_PLATFORM was negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VringAddr {
    /// The ring's index.
    pub index: u32,
    /// Whether writes to the used ring are logged (`VHOST_VRING_F_LOG`).
    pub log_used: bool,
    /// Descriptor table, or packed ring.
    pub desc: u64,
    /// Used ring, or device event area.
    pub used: u64,
    /// Available ring, or driver event area.
    pub avail: u64,
    /// Guest address at which writes to the used ring are logged.
    pub log: u64,
}

/// A region of the guest's memory; a descriptor comes beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemRegion {
    /// Guest physical address.
    pub guest: u64,
    /// Bytes.
    pub size: u64,
    /// The front end's address.
    pub user: u64,
    /// Offset of its start in the descriptor's file.
    pub offset: u64,
}

/// The dirty log's place in its descriptor's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogArea {
    /// Bytes.
    pub size: u64,
    /// Offset of its start.
    pub offset: u64,
}

bitflags::bitflags! {
    /// Permissions at an I/O virtual address.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u8 {
        /// The device reads.
        const READ = 1;
        /// The device writes.
        const WRITE = 2;
    }
}

/// The meaning of an IOTLB message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IotlbKind {
    /// The back end requests an entry.
    Miss,
    /// An entry.
    Update,
    /// Entries that are gone.
    Invalidate,
    /// The back end was not allowed.
    AccessFail,
}

/// An IOTLB message (`struct vhost_iotlb_msg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IotlbMsg {
    /// I/O virtual address.
    pub iova: u64,
    /// Bytes; 0 in a miss.
    pub size: u64,
    /// The front end's address of the same bytes.
    pub user: u64,
    /// The allowed or requested access.
    pub access: Access,
    /// The meaning of the message.
    pub kind: IotlbKind,
}

/// A ring and how it is notified; at most one descriptor comes beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VringFd {
    /// The ring's index.
    pub index: u8,
    /// Whether a descriptor comes with it; else the ring is polled.
    pub has_fd: bool,
}

/// A ring's notification area in a descriptor's file (back end to front end).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VringArea {
    /// Ring index and flags.
    pub ring: u64,
    /// Bytes.
    pub size: u64,
    /// Offset of its start.
    pub offset: u64,
}

/// The location of the record of chains in flight in its descriptor's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inflight {
    /// Bytes.
    pub mmap_size: u64,
    /// Offset of its start.
    pub mmap_offset: u64,
    /// Rings.
    pub num_queues: u16,
    /// Entries of a ring.
    pub queue_size: u16,
}

bitflags::bitflags! {
    /// Why the configuration space is accessed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ConfigFlags: u32 {
        /// For live migration: also fields that the driver cannot write.
        const MIGRATION = 1;
    }
}

/// Maximum number of bytes of a configuration space.
pub const MAX_CONFIG: usize = 256;

/// A part of the device's configuration space. In a reply, no bytes mean an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigSpace {
    /// First byte.
    pub offset: u32,
    /// Why.
    pub flags: ConfigFlags,
    /// The bytes; in a request to read, as many as are wanted. At most [`MAX_CONFIG`].
    pub bytes: Vec<u8>,
}

/// Reading and writing a payload. `None`: too short, or a value that the field does not know.
pub(super) trait Payload: Sized {
    fn read(r: &mut Reader<'_>) -> Option<Self>;
    fn write(&self, out: &mut Vec<u8>);
}

impl Payload for u64 {
    fn read(r: &mut Reader<'_>) -> Option<Self> {
        r.u64()
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(*self);
    }
}

impl Payload for VringState {
    fn read(r: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            index: r.u32()?,
            num: r.u32()?,
        })
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(self.index);
        out.put_u32(self.num);
    }
}

impl Payload for VringAddr {
    fn read(r: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            index: r.u32()?,
            log_used: r.u32()? & 1 != 0,
            desc: r.u64()?,
            used: r.u64()?,
            avail: r.u64()?,
            log: r.u64()?,
        })
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(self.index);
        out.put_u32(u32::from(self.log_used));
        for v in [self.desc, self.used, self.avail, self.log] {
            out.put_u64(v);
        }
    }
}

impl Payload for MemRegion {
    fn read(r: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            guest: r.u64()?,
            size: r.u64()?,
            user: r.u64()?,
            offset: r.u64()?,
        })
    }
    fn write(&self, out: &mut Vec<u8>) {
        for v in [self.guest, self.size, self.user, self.offset] {
            out.put_u64(v);
        }
    }
}

impl Payload for LogArea {
    fn read(r: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            size: r.u64()?,
            offset: r.u64()?,
        })
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.size);
        out.put_u64(self.offset);
    }
}

impl Payload for IotlbMsg {
    fn read(r: &mut Reader<'_>) -> Option<Self> {
        let (iova, size, user) = (r.u64()?, r.u64()?, r.u64()?);
        let access = Access::from_bits(r.u8()?)?;
        let kind = match r.u8()? {
            1 => IotlbKind::Miss,
            2 => IotlbKind::Update,
            3 => IotlbKind::Invalidate,
            4 => IotlbKind::AccessFail,
            _ => return None,
        };
        // The C structure ends in six bytes of padding; some front ends leave them out.
        match r.rest().len() {
            0 | 6 => Some(Self {
                iova,
                size,
                user,
                access,
                kind,
            }),
            _ => None,
        }
    }
    fn write(&self, out: &mut Vec<u8>) {
        for v in [self.iova, self.size, self.user] {
            out.put_u64(v);
        }
        out.push(self.access.bits());
        out.push(match self.kind {
            IotlbKind::Miss => 1,
            IotlbKind::Update => 2,
            IotlbKind::Invalidate => 3,
            IotlbKind::AccessFail => 4,
        });
        out.extend([0; 6]);
    }
}

/// Set when no descriptor comes beside the message.
const NO_FD: u64 = 1 << 8;

impl Payload for VringFd {
    fn read(r: &mut Reader<'_>) -> Option<Self> {
        let v = r.u64()?;
        Some(Self {
            index: v.to_le_bytes()[0],
            has_fd: v & NO_FD == 0,
        })
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(u64::from(self.index) | if self.has_fd { 0 } else { NO_FD });
    }
}

impl Payload for VringArea {
    fn read(r: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            ring: r.u64()?,
            size: r.u64()?,
            offset: r.u64()?,
        })
    }
    fn write(&self, out: &mut Vec<u8>) {
        for v in [self.ring, self.size, self.offset] {
            out.put_u64(v);
        }
    }
}

impl Payload for Inflight {
    fn read(r: &mut Reader<'_>) -> Option<Self> {
        let x = Self {
            mmap_size: r.u64()?,
            mmap_offset: r.u64()?,
            num_queues: r.u16()?,
            queue_size: r.u16()?,
        };
        // The C structure ends in four bytes of padding, which QEMU sends and insists on; some leave them
        // out.
        matches!(r.rest().len(), 0 | 4).then_some(x)
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.mmap_size);
        out.put_u64(self.mmap_offset);
        out.put_u16(self.num_queues);
        out.put_u16(self.queue_size);
        out.put_u32(0);
    }
}

impl Payload for ConfigSpace {
    fn read(r: &mut Reader<'_>) -> Option<Self> {
        let (offset, size) = (r.u32()?, r.u32()?);
        let flags = ConfigFlags::from_bits(r.u32()?)?;
        let bytes = r.rest();
        (bytes.len() == size as usize && bytes.len() <= MAX_CONFIG).then(|| Self {
            offset,
            flags,
            bytes: bytes.to_vec(),
        })
    }
    fn write(&self, out: &mut Vec<u8>) {
        debug_assert!(self.bytes.len() <= MAX_CONFIG, "parts of a small space");
        out.put_u32(self.offset);
        #[allow(clippy::cast_possible_truncation)] // at most MAX_CONFIG
        out.put_u32(self.bytes.len() as u32);
        out.put_u32(self.flags.bits());
        out.extend_from_slice(&self.bytes);
    }
}
