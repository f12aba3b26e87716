//! Small helpers for socket options.

use crate::cvt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A close-on-exec socket.
pub(crate) fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain system call; the result is checked before it is owned.
    let fd = cvt(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an option whose value is the plain structure `T`.
pub(crate) fn set<T: Copy>(fd: BorrowedFd<'_>, level: i32, name: i32, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is readable for `len` bytes.
    cvt(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            core::ptr::from_ref(value).cast(),
            len,
        )
    })?;
    Ok(())
}

/// Binds to the address structure `T`.
pub(crate) fn bind<T: Copy>(fd: BorrowedFd<'_>, addr: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `addr` is readable for `len` bytes.
    cvt(unsafe { libc::bind(fd.as_raw_fd(), core::ptr::from_ref(addr).cast(), len) })?;
    Ok(())
}
