//! The open socket, which the receiving and the sending half share.

use crate::arena::Part;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Properties of a bound socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Features {
    /// The device reads and writes the frames itself.
    pub(crate) zero_copy: bool,
    /// A packet may take several frames.
    pub(crate) many_frames: bool,
    /// The region has room for metadata in front of packets to be sent.
    pub(crate) metadata: bool,
    /// The kernel reports when it has to be called.
    pub(crate) need_wakeup: bool,
}

/// The open socket.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: Arc<OwnedFd>,
    features: Features,
    /// Packets are in the transmit ring that the kernel did not take when it was called.
    put_off: AtomicBool,
    /// Packets that were sent from the frames that received them. Written by the sending half.
    without_copy: AtomicU64,
    /// The socket's frames, until it is closed: `fd` is dropped before. `None` in tests without an arena.
    part: Option<Part>,
}

impl Socket {
    pub(crate) fn new(fd: OwnedFd, features: Features, part: Option<Part>) -> Self {
        Self {
            fd: Arc::new(fd),
            features,
            put_off: AtomicBool::new(false),
            without_copy: AtomicU64::new(0),
            part,
        }
    }
    /// Packets refer to its frames, and will do so for ever.
    #[cold]
    pub(crate) fn lose_frames(&self) {
        if let Some(part) = &self.part {
            part.lose();
        }
    }
    /// Has the kernel take frames from the fill ring.
    #[cold]
    pub(crate) fn wake_rx(&self) {
        let _ = recv(&self.fd, &mut [0; 0], RecvFlags::DONTWAIT);
    }
    /// Whether the kernel still knows the socket's device. A device that is down is known.
    pub(crate) fn is_bound(&self) -> bool {
        is_bound(&self.fd)
    }
    pub(crate) fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }
    pub(crate) fn wake_tx(&self) -> io::Result<()> {
        send(&self.fd, &[], SendFlags::DONTWAIT)?;
        Ok(())
    }
    pub(crate) fn without_copy(&self) -> u64 {
        self.without_copy.load(Ordering::Relaxed)
    }
    /// There is one sending half, so that no count is lost.
    #[inline]
    pub(crate) fn count_without_copy(&self, n: u64) {
        let all = self.without_copy.load(Ordering::Relaxed) + n;
        self.without_copy.store(all, Ordering::Relaxed);
    }
    pub(crate) fn put_off(&self) {
        self.put_off.store(true, Ordering::Relaxed);
    }
    pub(crate) fn is_put_off(&self) -> bool {
        self.put_off.load(Ordering::Relaxed)
    }
    /// Has the kernel send packets that it has put off.
    pub(crate) fn push_sends(&self) {
        if self.put_off.load(Ordering::Relaxed) {
            let left = self.wake_tx().is_err();
            self.put_off.store(left, Ordering::Relaxed);
        }
    }
    pub(crate) fn features(&self) -> Features {
        self.features
    }
    /// Whether the kernel reads metadata. With zero copy, a driver that cannot fill checksums in ignores it.
    pub(crate) fn reads_metadata(&self) -> bool {
        self.features.metadata && !self.features.zero_copy
    }
}

/// Whether the kernel still knows the device of a socket.
pub(crate) fn is_bound(fd: &OwnedFd) -> bool {
    let done = recv(fd, &mut [0; 0], RecvFlags::DONTWAIT);
    !done.is_err_and(|e| e == rustix::io::Errno::NXIO)
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
