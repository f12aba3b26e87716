//! Small helpers for socket options.

#![allow(unsafe_code)] // setsockopt, bind

use crate::cbpf::Op;
use crate::cvt;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// A close-on-exec socket, of the family's first protocol.
pub(crate) fn socket(family: AddressFamily, kind: SocketType) -> io::Result<OwnedFd> {
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
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

/// Attaches a filter for received packets, in place of the one before.
pub(crate) fn attach_filter(fd: BorrowedFd<'_>, program: &[Op]) -> io::Result<()> {
    let op = |(code, jt, jf, k): &Op| libc::sock_filter {
        code: *code,
        jt: *jt,
        jf: *jf,
        k: *k,
    };
    let mut ops: Vec<_> = program.iter().map(op).collect();
    let program = libc::sock_fprog {
        len: u16::try_from(ops.len()).unwrap_or(u16::MAX),
        filter: ops.as_mut_ptr(),
    };
    // The kernel copies the instructions during the call.
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}
