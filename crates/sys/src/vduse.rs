//! vDPA devices in userspace: the ioctls of `/dev/vduse/control` and `/dev/vduse/NAME` (linux/vduse.h).
//!
//! Each call is one ioctl(2) or read(2); the caller interprets the messages (`heddle-vduse`). The structures'
//! layouts are the kernel's (UAPI, version 0). A size that is not right is refused with `ENOTTY`: it is part
//! of a request's number.
//!
//! No call here waits for a driver. Adding a device to the vDPA bus does ([`crate::vdpa`]).

#![allow(unsafe_code)] // ioctls

use crate::cvt;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

/// The directory of all devices.
pub const DIRECTORY: &str = "/dev/vduse";
/// Longest name, without the zero behind it.
pub const NAME_MAX: usize = 255;
/// Bytes of a message of either direction.
pub const MESSAGE_LEN: usize = 152;

/// The only version of the interface so far.
const API_VERSION: u64 = 0;
/// Virtio's number of a network device (virtio 1.2 §5).
const NETWORK: u32 = 1;
/// Alignment of rings, bytes: a page.
const ALIGN: u32 = 4096;

const READ: u32 = 2;
const WRITE: u32 = 1;

/// The number of a request (`_IOC` of asm-generic/ioctl.h).
const fn request(direction: u32, number: u32, len: usize) -> libc::Ioctl {
    (direction << 30 | (len as u32) << 16 | 0x81 << 8 | number) as libc::Ioctl
}

/// The settings of a new device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDevice<'a> {
    /// Name: the file in [`DIRECTORY`], and the device's name on the vDPA bus.
    pub name: &'a str,
    /// Offered features.
    pub features: u64,
    /// Virtqueues.
    pub queues: u32,
    /// The configuration space.
    pub config: &'a [u8],
}

/// `/dev/vduse/control`.
#[derive(Debug)]
pub struct Control {
    fd: OwnedFd,
}

/// A name as the kernel takes it.
fn name_field(name: &str) -> io::Result<[u8; NAME_MAX + 1]> {
    let mut field = [0; NAME_MAX + 1];
    if name.is_empty() || name.len() > NAME_MAX || name.contains(['\0', '/']) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    field[..name.len()].copy_from_slice(name.as_bytes());
    Ok(field)
}

impl Control {
    /// Opens the control device.
    ///
    /// # Errors
    /// `NotFound` without the kernel's module, `PermissionDenied`; `EINVAL` where the kernel speaks another
    /// version of the interface.
    pub fn open() -> io::Result<Self> {
        let path = Path::new(DIRECTORY).join("control");
        let fd = openat(CWD, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let mut version = API_VERSION;
        // SAFETY: the request reads one u64.
        cvt(unsafe { libc::ioctl(fd.as_raw_fd(), request(WRITE, 1, 8), &raw mut version) })?;
        Ok(Self { fd })
    }

    /// Makes a network device.
    ///
    /// # Errors
    /// `AlreadyExists`; `EINVAL` for features that the kernel does not allow; `InvalidInput` for a bad name.
    pub fn create(&self, new: &NewDevice<'_>) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(CREATE_LEN + new.config.len());
        bytes.extend(name_field(new.name)?);
        bytes.extend(0_u32.to_ne_bytes()); // vendor
        bytes.extend(NETWORK.to_ne_bytes());
        bytes.extend(new.features.to_ne_bytes());
        bytes.extend(new.queues.to_ne_bytes());
        bytes.extend(ALIGN.to_ne_bytes());
        bytes.extend([0; 13 * 4]); // reserved
        bytes.extend((new.config.len() as u32).to_ne_bytes());
        bytes.extend(new.config);
        // SAFETY: the request reads a `vduse_dev_config` and the bytes behind it, whose number is in its last
        // field.
        cvt(unsafe { libc::ioctl(self.fd.as_raw_fd(), request(WRITE, 2, CREATE_LEN), bytes.as_ptr()) })?;
        Ok(())
    }

    /// Destroys a device that no process has opened and that is not on the bus.
    ///
    /// # Errors
    /// `EBUSY` where it is in use, `EINVAL` where there is none.
    pub fn destroy(&self, name: &str) -> io::Result<()> {
        let field = name_field(name)?;
        // SAFETY: the request reads a name's field.
        cvt(unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                request(WRITE, 3, NAME_MAX + 1),
                field.as_ptr(),
            )
        })?;
        Ok(())
    }
}

/// `sizeof(struct vduse_dev_config)`.
const CREATE_LEN: usize = 336;

#[repr(C)]
#[derive(Default)]
struct RawEntry {
    offset: u64,
    start: u64,
    last: u64,
    perm: u8,
    pad: [u8; 7],
}

#[repr(C)]
#[derive(Default)]
struct RawQueueConfig {
    index: u32,
    max_size: u16,
    reserved: [u16; 13],
}

#[repr(C)]
#[derive(Default)]
struct RawQueueInfo {
    index: u32,
    num: u32,
    desc: u64,
    driver: u64,
    device: u64,
    state: [u16; 4],
    ready: u8,
    pad: [u8; 7],
}

/// A region of I/O virtual addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Offset of the region in its file.
    pub offset: u64,
    /// First address.
    pub start: u64,
    /// Last address.
    pub last: u64,
    /// The device may read it.
    pub readable: bool,
    /// The device may write it.
    pub writable: bool,
}

/// A virtqueue as the driver set it up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueInfo {
    /// Entries.
    pub size: u32,
    /// Address of the descriptor area.
    pub desc: u64,
    /// Address of the driver area.
    pub driver: u64,
    /// Address of the device area.
    pub device: u64,
    /// For a packed ring: the available wrap counter and index, then the used ones. For a split ring the
    /// first is the available index.
    pub state: [u16; 4],
    /// The driver uses it.
    pub ready: bool,
}

/// An open `/dev/vduse/NAME`. The kernel lets one process open it at a time.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
}

impl Device {
    /// Opens the device; reads from it do not wait.
    ///
    /// # Errors
    /// `EBUSY` when it is open already, `NotFound`.
    pub fn open(name: &str) -> io::Result<Self> {
        name_field(name)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = openat(CWD, Path::new(DIRECTORY).join(name), flags, Mode::empty())?;
        Ok(Self { fd })
    }

    fn call<T>(&self, code: libc::Ioctl, argument: &mut T) -> io::Result<libc::c_int> {
        // SAFETY: each caller gives the structure that its request reads or writes, of the size that is part
        // of the request's number.
        cvt(unsafe { libc::ioctl(self.fd.as_raw_fd(), code, core::ptr::from_mut(argument)) })
    }

    /// The features that the driver chose; none after a reset.
    ///
    /// # Errors
    /// `EPERM`, here and in all other calls: the kernel has given the device up.
    pub fn features(&self) -> io::Result<u64> {
        let mut features = 0_u64;
        self.call(request(READ, 0x11, 8), &mut features)?;
        Ok(features)
    }
    /// Sets a queue's largest size. All queues need one before the device comes to the bus.
    ///
    /// # Errors
    /// `EINVAL` without such a queue.
    pub fn set_up_queue(&self, index: u16, max_size: u16) -> io::Result<()> {
        let mut config = RawQueueConfig {
            index: index.into(),
            max_size,
            ..RawQueueConfig::default()
        };
        self.call(request(WRITE, 0x14, size_of::<RawQueueConfig>()), &mut config)?;
        Ok(())
    }
    /// The driver's settings of a queue.
    ///
    /// # Errors
    /// `EINVAL` without such a queue.
    pub fn queue(&self, index: u16) -> io::Result<QueueInfo> {
        let mut raw = RawQueueInfo {
            index: index.into(),
            ..RawQueueInfo::default()
        };
        self.call(request(READ | WRITE, 0x15, size_of::<RawQueueInfo>()), &mut raw)?;
        Ok(QueueInfo {
            size: raw.num,
            desc: raw.desc,
            driver: raw.driver,
            device: raw.device,
            state: raw.state,
            ready: raw.ready != 0,
        })
    }
    /// The eventfd of a queue's kicks. An earlier kick is repeated.
    ///
    /// # Errors
    /// `EINVAL` without such a queue.
    pub fn set_kick(&self, index: u16, kick: BorrowedFd<'_>) -> io::Result<()> {
        let mut raw = [u32::from(index), kick.as_raw_fd() as u32];
        self.call(request(WRITE, 0x16, 8), &mut raw)?;
        Ok(())
    }
    /// Interrupts the driver of a queue.
    ///
    /// # Errors
    /// `EINVAL` while the driver is not ready.
    pub fn interrupt(&self, index: u16) -> io::Result<()> {
        let mut raw = u32::from(index);
        self.call(request(WRITE, 0x17, 4), &mut raw)?;
        Ok(())
    }
    /// The first region that has an address from `first` to `last`, and its file. `None`: there is none now.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn region(&self, first: u64, last: u64) -> io::Result<Option<(Entry, OwnedFd)>> {
        let mut raw = RawEntry {
            start: first,
            last,
            ..RawEntry::default()
        };
        let fd = match self.call(request(READ | WRITE, 0x10, size_of::<RawEntry>()), &mut raw) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return Ok(None),
            fd => fd?,
        };
        // SAFETY: the kernel has just made this descriptor for the caller.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let entry = Entry {
            offset: raw.offset,
            start: raw.start,
            last: raw.last,
            readable: raw.perm & 1 != 0,
            writable: raw.perm & 2 != 0,
        };
        Ok(Some((entry, fd)))
    }
    /// Writes the configuration space from `offset` on.
    ///
    /// # Errors
    /// `EINVAL` beyond its end.
    pub fn set_config(&self, offset: u32, bytes: &[u8]) -> io::Result<()> {
        let mut raw = Vec::with_capacity(8 + bytes.len());
        raw.extend(offset.to_ne_bytes());
        raw.extend((bytes.len() as u32).to_ne_bytes());
        raw.extend(bytes);
        // SAFETY: the request reads a `vduse_config_data` and the bytes behind it, whose number is in its
        // length field.
        cvt(unsafe { libc::ioctl(self.fd.as_raw_fd(), request(WRITE, 0x12, 8), raw.as_ptr()) })?;
        Ok(())
    }
    /// Notifies the driver that the configuration space has changed.
    ///
    /// # Errors
    /// `EINVAL` while the driver is not ready.
    pub fn config_interrupt(&self) -> io::Result<()> {
        // SAFETY: the request takes no argument.
        cvt(unsafe { libc::ioctl(self.fd.as_raw_fd(), request(0, 0x13, 0)) })?;
        Ok(())
    }
    /// The next message. `None`: there is none now.
    ///
    /// # Errors
    /// The error of read(2).
    pub fn receive(&self) -> io::Result<Option<[u8; MESSAGE_LEN]>> {
        let mut message = [0; MESSAGE_LEN];
        match rustix::io::read(&self.fd, &mut message) {
            Ok(MESSAGE_LEN) => Ok(Some(message)),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
    /// Replies to a message.
    ///
    /// # Errors
    /// `NotFound` when the kernel no longer waits for the reply.
    pub fn answer(&self, message: &[u8; MESSAGE_LEN]) -> io::Result<()> {
        rustix::io::write(&self.fd, message)?;
        Ok(())
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers as linux/vduse.h makes them (`_IOW(0x81, 0x02, struct vduse_dev_config)` and its like).
    #[test]
    fn requests_have_the_numbers_of_the_kernel() {
        assert_eq!(request(WRITE, 2, CREATE_LEN) as u32, 0x4150_8102);
        assert_eq!(
            request(READ | WRITE, 0x10, size_of::<RawEntry>()) as u32,
            0xc020_8110
        );
        assert_eq!(
            request(WRITE, 0x14, size_of::<RawQueueConfig>()) as u32,
            0x4020_8114
        );
        assert_eq!(
            request(READ | WRITE, 0x15, size_of::<RawQueueInfo>()) as u32,
            0xc030_8115
        );
        assert_eq!(request(0, 0x13, 0) as u32, 0x8113);
    }

    #[test]
    fn names_are_those_of_files() {
        for bad in ["", "a/b", "a\0b", &"x".repeat(256)] {
            assert!(name_field(bad).is_err(), "{bad:?}");
        }
        assert!(name_field(&"x".repeat(255)).is_ok());
        assert_eq!(
            Device::open("../null").unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }
}
