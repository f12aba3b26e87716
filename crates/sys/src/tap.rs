//! Tap devices: a network device of the kernel whose other end is a descriptor (tuntap(7) in kernel
//! documentation).
//!
//! Invariants: every queue carries a virtio-net header, of [`VNET_HDR_LEN`] bytes unless another length was
//! requested; all queues of a device have the same. The device exists as long as one of its queues, or until
//! it is deleted if it is persistent. Its owner may rename it or move it to another network namespace. The
//! queues continue to work, and [`TapQueue::ifname`] and [`TapQueue::namespace`] follow it.
//!
//! Facts about joining a device that exists (Linux, `drivers/net/tun.c`):
//! * The device's maker decided whether it can have several queues. A request for the other kind is `EINVAL`;
//!   so is a request for a device that is no tap.
//! * A device with one queue that is held already is `EBUSY`. A device with several queues gets one more,
//!   whichever process holds the others.
//! * The first queue decides whether there is a virtio-net header. Its length and the offloads stay as they
//!   were set last, also when no process holds the device.

#![allow(unsafe_code)] // ioctls, writev

use crate::{Iov, cvt, cvt_len, netns};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Length of the virtio-net header that tap queues use here: up to the fields of GSO packets in tunnels.
/// Kernels without such packets (before 6.17) skip these fields.
pub const VNET_HDR_LEN: usize = 24;
/// Header length of a device before the first call that sets it.
const NEW_VNET_HDR_LEN: usize = 10;
/// Longest interface name, bytes.
pub const NAME_MAX: usize = 15;
/// Maximum number of queues of one device.
pub const MAX_QUEUES: usize = 256;

const TUNGETDEVNETNS: libc::Ioctl = 0x54e3;
const TUN_F_USO4: u32 = 0x20;
const TUN_F_USO6: u32 = 0x40;
const TUN_F_UDP_TUNNEL_GSO: u32 = 0x80;
const TUN_F_UDP_TUNNEL_GSO_CSUM: u32 = 0x100;

/// Work that the device may leave to the reader of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapOffloads {
    /// Checksums left to the reader.
    pub csum: bool,
    /// GSO packets of TCP.
    pub tso: bool,
    /// GSO packets of UDP.
    pub uso: bool,
    /// GSO packets in a tunnel of UDP, with and without an outer checksum.
    pub tunnels: bool,
}

/// One queue of a tap device.
#[derive(Debug)]
pub struct TapQueue {
    fd: OwnedFd,
    /// Length of the virtio-net header, bytes.
    vnet_hdr_len: usize,
    /// The device takes and gives GSO packets in tunnels.
    tunnels: AtomicBool,
}

/// Options for opening a queue.
#[derive(Clone, Copy, Debug)]
pub struct TapOpen<'a> {
    name: &'a str,
    namespace: Option<&'a OwnedFd>,
    multi_queue: bool,
    new: bool,
    vnet_hdr_len: usize,
}

impl<'a> TapOpen<'a> {
    /// The only queue of device `name` in the caller's network namespace, which is made unless it exists.
    pub fn new(name: &'a str) -> Self {
        Self {
            name,
            namespace: None,
            multi_queue: false,
            new: false,
            vnet_hdr_len: VNET_HDR_LEN,
        }
    }
    /// In that namespace, if one is given.
    #[must_use]
    pub fn namespace(self, namespace: Option<&'a OwnedFd>) -> Self {
        Self { namespace, ..self }
    }
    /// A device for several queues, or not.
    #[must_use]
    pub fn multi_queue(self, multi_queue: bool) -> Self {
        Self { multi_queue, ..self }
    }
    /// Whether a device that exists is refused (`EBUSY`).
    #[must_use]
    pub fn new_only(self, new: bool) -> Self {
        Self { new, ..self }
    }
    /// Sets the length of the virtio-net header, in bytes: for a caller that hands the header on to a ring as
    /// it is.
    #[must_use]
    pub fn vnet_hdr_len(self, vnet_hdr_len: usize) -> Self {
        Self { vnet_hdr_len, ..self }
    }
    /// Opens the queue.
    ///
    /// # Errors
    /// `EINVAL` for a name that is empty, too long, or not a legal interface name, or when the device is no
    /// tap. Also `EINVAL` when it was made for one queue and several are wanted, or the other way round.
    /// `EBUSY` when it is held, or exists; `NotFound` without `/dev/net/tun`; `PermissionDenied`.
    pub fn open(self) -> io::Result<TapQueue> {
        if !valid_name(self.name) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // The namespace that counts is the one in which this file is opened.
        let queue = TapQueue {
            fd: match self.namespace {
                None => clone_device()?,
                Some(ns) => netns::inside(ns, clone_device)?,
            },
            vnet_hdr_len: self.vnet_hdr_len,
            tunnels: false.into(),
        };
        let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        if self.multi_queue {
            flags |= libc::IFF_MULTI_QUEUE;
        }
        if self.new {
            flags |= libc::IFF_TUN_EXCL;
        }
        let mut req = ifreq(self.name);
        req.ifr_ifru.ifru_flags = flags as libc::c_short;
        queue.ioctl(libc::TUNSETIFF, (&raw mut req).cast())?;
        queue.set_vnet_hdr_len(self.vnet_hdr_len)?;
        Ok(queue)
    }
}

/// The only queue of a new device, which goes when it is closed. The kernel puts the first free number in the
/// place of `%d` in its name.
pub(crate) fn numbered(pattern: &str) -> io::Result<TapQueue> {
    let queue = TapQueue {
        fd: clone_device()?,
        vnet_hdr_len: NEW_VNET_HDR_LEN,
        tunnels: false.into(),
    };
    let mut req = ifreq(pattern);
    req.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    queue.ioctl(libc::TUNSETIFF, (&raw mut req).cast())?;
    Ok(queue)
}

/// A queue without a device.
fn clone_device() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(rustix::fs::open(c"/dev/net/tun", flags, Mode::empty())?)
}

impl TapQueue {
    /// Turns on all offloads that the kernel knows, and returns them.
    pub fn enable_offloads(&self) -> TapOffloads {
        let tso = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        let tunnels = TUN_F_UDP_TUNNEL_GSO | TUN_F_UDP_TUNNEL_GSO_CSUM;
        let levels = [
            (
                tso | TUN_F_USO4 | TUN_F_USO6 | tunnels,
                TapOffloads {
                    csum: true,
                    tso: true,
                    uso: true,
                    tunnels: true,
                },
            ),
            (
                tso | TUN_F_USO4 | TUN_F_USO6,
                TapOffloads {
                    csum: true,
                    tso: true,
                    uso: true,
                    tunnels: false,
                },
            ),
            (
                tso,
                TapOffloads {
                    csum: true,
                    tso: true,
                    uso: false,
                    tunnels: false,
                },
            ),
            (
                libc::TUN_F_CSUM,
                TapOffloads {
                    csum: true,
                    tso: false,
                    uso: false,
                    tunnels: false,
                },
            ),
        ];
        let has_room = |what: &TapOffloads| !what.tunnels || self.vnet_hdr_len >= VNET_HDR_LEN;
        for (flags, what) in levels.into_iter().filter(|(_, what)| has_room(what)) {
            if self
                .ioctl_value(libc::TUNSETOFFLOAD, libc::c_ulong::from(flags))
                .is_ok()
            {
                // Relaxed: nothing else is read on its account.
                self.tunnels.store(what.tunnels, Ordering::Relaxed);
                return what;
            }
        }
        TapOffloads {
            csum: false,
            tso: false,
            uso: false,
            tunnels: false,
        }
    }

    /// Whether the device takes GSO packets in tunnels, as [`Self::enable_offloads`] has found.
    #[inline]
    pub fn takes_tunnels(&self) -> bool {
        self.tunnels.load(Ordering::Relaxed)
    }

    /// Gives the device the settings of a new one, no offloads and the short virtio-net header: the next
    /// owner may not know others. No queue can be used any more.
    ///
    /// # Errors
    /// `EBADFD` for a detached queue or a deleted device.
    pub fn give_back(&self) -> io::Result<()> {
        self.ioctl_value(libc::TUNSETOFFLOAD, 0)?;
        self.set_vnet_hdr_len(NEW_VNET_HDR_LEN)
    }

    /// The device keeps the length, also when no process holds it.
    fn set_vnet_hdr_len(&self, len: usize) -> io::Result<()> {
        let len = libc::c_int::try_from(len);
        let mut len = len.map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        self.ioctl(libc::TUNSETVNETHDRSZ, (&raw mut len).cast())
    }

    /// Sets whether the device stays when no process holds it.
    ///
    /// # Errors
    /// `EBADFD` for a detached queue or a deleted device.
    pub fn set_persistent(&self, persistent: bool) -> io::Result<()> {
        self.ioctl_value(libc::TUNSETPERSIST, libc::c_ulong::from(persistent))
    }

    /// Attaches this queue to its device again, or takes it off: a detached queue gets no packets and takes
    /// none.
    ///
    /// # Errors
    /// `EINVAL` when it is in that state already.
    pub fn set_attached(&self, attached: bool) -> io::Result<()> {
        let mut req = ifreq("");
        let flag = if attached {
            libc::IFF_ATTACH_QUEUE
        } else {
            libc::IFF_DETACH_QUEUE
        };
        req.ifr_ifru.ifru_flags = flag as libc::c_short;
        self.ioctl(libc::TUNSETQUEUE, (&raw mut req).cast())
    }

    /// The device's present name.
    ///
    /// # Errors
    /// `EBADFD` for a detached queue or a deleted device.
    pub fn ifname(&self) -> io::Result<String> {
        let mut req = ifreq("");
        self.ioctl(libc::TUNGETIFF, (&raw mut req).cast())?;
        let bytes: Vec<u8> = req
            .ifr_name
            .iter()
            .map(|&c| c as u8)
            .take_while(|&b| b != 0)
            .collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The network namespace that the device is in now.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_NET_ADMIN` there; `EINVAL` on kernels before 5.7.
    pub fn namespace(&self) -> io::Result<OwnedFd> {
        // SAFETY: this request takes no argument and returns a descriptor.
        let fd = cvt(unsafe { libc::ioctl(self.fd.as_raw_fd(), TUNGETDEVNETNS, 0) })?;
        // SAFETY: a fresh descriptor without another owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// The device's hardware address, wherever the device is.
    ///
    /// # Errors
    /// `EBADFD` for a detached queue or a deleted device.
    pub fn mac(&self) -> io::Result<[u8; 6]> {
        let mut req = ifreq("");
        self.ioctl(libc::SIOCGIFHWADDR, (&raw mut req).cast())?;
        // SAFETY: the call has written the address form of the union.
        Ok(mac_of(unsafe { &req.ifr_ifru.ifru_hwaddr }))
    }

    /// Sets the device's hardware address, wherever the device is.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` for a multicast or zero address.
    pub fn set_mac(&self, mac: [u8; 6]) -> io::Result<()> {
        let mut req = ifreq("");
        req.ifr_ifru.ifru_hwaddr = hwaddr(mac);
        self.ioctl(libc::SIOCSIFHWADDR, (&raw mut req).cast())
    }

    /// Maximum number of bytes that may wait for the reader beyond the device's queue, and for the kernel.
    pub fn set_sndbuf(&self, bytes: i32) {
        let mut n = bytes;
        let _ = self.ioctl(libc::TUNSETSNDBUF, (&raw mut n).cast());
    }

    /// Reads one packet, header first. `Ok(0)`: none is there.
    ///
    /// # Errors
    /// `EBADFD` for a detached queue; errors of read(2).
    pub fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match rustix::io::read(&self.fd, buf) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            got => Ok(got?),
        }
    }

    /// Writes one packet, header first.
    ///
    /// # Errors
    /// `EAGAIN` or `ENOBUFS` (full), `EIO` (device down), `EINVAL` (header refused), `EBADFD` (detached).
    pub fn write(&self, pieces: &[Iov<'_>]) -> io::Result<usize> {
        // SAFETY: `Iov` has the layout of `iovec`, and its bytes are readable for its lifetime.
        cvt_len(unsafe { libc::writev(self.fd.as_raw_fd(), pieces.as_ptr().cast(), pieces.len() as _) })
    }

    fn ioctl_value(&self, request: libc::Ioctl, value: libc::c_ulong) -> io::Result<()> {
        // SAFETY: the requests given to this take their argument by value.
        cvt(unsafe { libc::ioctl(self.fd.as_raw_fd(), request, value) })?;
        Ok(())
    }

    fn ioctl(&self, request: libc::Ioctl, arg: *mut libc::c_void) -> io::Result<()> {
        // SAFETY: each caller passes the structure that its request reads or writes.
        cvt(unsafe { libc::ioctl(self.fd.as_raw_fd(), request, arg) })?;
        Ok(())
    }
}

impl AsFd for TapQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
impl AsRawFd for TapQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Whether `name` can be an interface name, as the kernel's `dev_valid_name` judges.
pub fn valid_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= NAME_MAX
        && name != "."
        && name != ".."
        && !bytes
            .iter()
            .any(|&b| b == 0 || b == b'/' || b == b':' || b == b'%' || b.is_ascii_whitespace() || b == 0x0b)
}

/// An empty request for interface `name` (cut to the size of its field).
pub(crate) fn ifreq(name: &str) -> libc::ifreq {
    // SAFETY: a C structure for which all zeroes are a value.
    let mut req: libc::ifreq = unsafe { core::mem::zeroed() };
    for (dst, src) in req.ifr_name.iter_mut().take(NAME_MAX).zip(name.bytes()) {
        *dst = src as libc::c_char;
    }
    req
}

pub(crate) fn mac_of(addr: &libc::sockaddr) -> [u8; 6] {
    core::array::from_fn(|i| addr.sa_data[i] as u8)
}

pub(crate) fn hwaddr(mac: [u8; 6]) -> libc::sockaddr {
    // SAFETY: a C structure for which all zeroes are a value.
    let mut addr: libc::sockaddr = unsafe { core::mem::zeroed() };
    addr.sa_family = libc::ARPHRD_ETHER;
    for (dst, src) in addr.sa_data.iter_mut().zip(mac) {
        *dst = src as libc::c_char;
    }
    addr
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "eth0", "br-int", "fifteen-letters"] {
            assert!(valid_name(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "a b",
            "a:b",
            "sixteen-letters!",
            "tap%d",
            "a\0",
        ] {
            assert!(!valid_name(bad), "{bad:?}");
            assert!(TapOpen::new(bad).open().is_err(), "{bad:?}");
        }
    }
}
