//! Sockets of nfnetlink (`NETLINK_NETFILTER`): requests about connections and rules of the calling thread's
//! network namespace, and the kernel's events about connections. The caller makes and reads the messages.

use crate::sock;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, getsockname, recv, send, socket_with,
};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

/// Timeout of the kernel's reply. The kernel replies before the request returns: the wait is that long only
/// if the reply is lost.
const REPLY_LIMIT: Duration = Duration::from_secs(5);
/// Offset of the sender's port id in a message (linux/netlink.h).
const PORT_ID_OFFSET: u32 = 12;

/// A socket of nfnetlink.
#[derive(Debug)]
pub struct NetfilterSocket {
    fd: OwnedFd,
    port_id: u32,
}

impl NetfilterSocket {
    /// Opens a socket with a receive buffer of `buffer_bytes`; the buffer is smaller without `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// The error of socket(2) and bind(2): `EPROTONOSUPPORT` if the kernel has no nfnetlink.
    pub fn new(buffer_bytes: usize) -> io::Result<Self> {
        let protocol = Some(netlink::NETFILTER);
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        let port_id = SocketAddrNetlink::try_from(getsockname(&fd)?)?.pid();
        if sockopt::set_socket_recv_buffer_size_force(&fd, buffer_bytes).is_err() {
            sockopt::set_socket_recv_buffer_size(&fd, buffer_bytes)?;
        }
        sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(REPLY_LIMIT))?;
        Ok(Self { fd, port_id })
    }
    /// The socket's address. Events that its requests cause have it as sender.
    pub fn port_id(&self) -> u32 {
        self.port_id
    }
    /// Subscribes to the kernel's events of `group` (`NFNLGRP_*`).
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`.
    pub fn join(&self, group: u32) -> io::Result<()> {
        sock::set(
            self.fd.as_fd(),
            libc::SOL_NETLINK,
            libc::NETLINK_ADD_MEMBERSHIP,
            &group,
        )
    }
    /// Receives only events that a request of another program has caused: neither of the kernel itself, nor
    /// of the socket with the address `own`. The kernel drops the rest before it takes room in the buffer.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn only_from_others(&self, own: u32) -> io::Result<()> {
        let code = |code: u32| code as u16;
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let jump = code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
        let ret = code(libc::BPF_RET | libc::BPF_K);
        let mut steps = [
            step(
                code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS),
                0,
                0,
                PORT_ID_OFFSET,
            ),
            step(jump, 2, 0, 0),
            // The load takes the bytes as network order; the message has the host's.
            step(jump, 1, 0, own.to_be()),
            step(ret, 0, 0, u32::MAX),
            step(ret, 0, 0, 0),
        ];
        let program = libc::sock_fprog {
            len: steps.len() as u16,
            filter: steps.as_mut_ptr(),
        };
        sock::set(
            self.fd.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            &program,
        )
    }
    /// Sends messages. The kernel has done what they request when this returns.
    ///
    /// # Errors
    /// The error of send(2).
    pub fn send(&self, messages: &[u8]) -> io::Result<()> {
        send(&self.fd, messages, SendFlags::empty())?;
        Ok(())
    }
    /// Receives a datagram into `buf`. `None`: nothing is there, or came in time if `wait`.
    ///
    /// # Errors
    /// `ENOBUFS`: messages were lost. `EMSGSIZE`: `buf` is too small.
    pub fn receive<'a>(&self, buf: &'a mut [u8], wait: bool) -> io::Result<Option<&'a [u8]>> {
        let flags = RecvFlags::TRUNC
            | if wait {
                RecvFlags::empty()
            } else {
                RecvFlags::DONTWAIT
            };
        let len = loop {
            match recv(&self.fd, &mut *buf, flags) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                got => break got?.1,
            }
        };
        let data = buf.get(..len).ok_or(rustix::io::Errno::MSGSIZE)?;
        Ok(Some(data))
    }
}

impl AsFd for NetfilterSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
impl AsRawFd for NetfilterSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
