//! Requests to the kernel and notices from it over rtnetlink(7). The crate `netlink-packet-route` knows the
//! messages; here are the sockets.

use crate::netns;
use netlink_packet_core::{
    NLM_F_REQUEST, NetlinkBuffer, NetlinkDeserializable, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A message of either direction.
pub(crate) type Message = NetlinkMessage<RouteNetlinkMessage>;

/// Room for one datagram, bytes: the kernel fills at most 32 KiB of it in a dump.
const BUFFER_BYTES: usize = 64 * 1024;
/// Timeout of the kernel's reply. It replies before the request returns: the wait is that long only if the
/// reply is lost.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A message that its decoder refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotUnderstood;

/// A socket of the calling thread's network namespace.
pub(crate) fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    Ok(socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?)
}

/// The messages of a datagram; `Err` for one that is not understood. Ends at the first that is cut.
pub fn messages<M: NetlinkDeserializable>(
    mut data: &[u8],
) -> impl Iterator<Item = Result<NetlinkMessage<M>, NotUnderstood>> {
    std::iter::from_fn(move || {
        let len = NetlinkBuffer::new_checked(data).ok()?.length() as usize;
        let message = NetlinkMessage::deserialize(data.get(..len)?);
        data = data.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message.map_err(|error| {
            log::debug!("a netlink message is not understood: {error}");
            NotUnderstood
        }))
    })
}

/// A socket that gets notices of changes in its network namespace.
#[derive(Debug)]
pub(crate) struct Notices {
    pub(crate) fd: OwnedFd,
    buf: Vec<u8>,
}

impl Notices {
    /// Subscribes to `groups` (`RTMGRP_*`). The descriptor is non-blocking.
    pub(crate) fn new(groups: u32) -> io::Result<Self> {
        let fd = socket(SocketFlags::NONBLOCK)?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self {
            fd,
            buf: vec![0; BUFFER_BYTES],
        })
    }
    /// The datagram that waits, if one does. Fails with `ENOBUFS` when notices were lost.
    pub(crate) fn read(&mut self) -> io::Result<&[u8]> {
        match recv(&self.fd, &mut self.buf[..], RecvFlags::TRUNC) {
            Ok((_, len)) => self
                .buf
                .get(..len)
                .ok_or_else(|| rustix::io::Errno::NOBUFS.into()),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(&[]),
            Err(e) => Err(e.into()),
        }
    }
}

/// A socket for requests in one network namespace.
#[derive(Debug)]
pub(crate) struct Requests {
    /// Locked during a request and its reply, because threads share the socket.
    fd: Mutex<OwnedFd>,
}

impl Requests {
    /// About the caller's namespace, or about `ns`.
    pub(crate) fn new(ns: Option<&OwnedFd>) -> io::Result<Self> {
        let make = || socket(SocketFlags::empty());
        let fd = match ns {
            None => make()?,
            Some(ns) => netns::inside(ns, make)?,
        };
        set_socket_timeout(&fd, Timeout::Recv, Some(ANSWER_LIMIT))?;
        Ok(Self { fd: Mutex::new(fd) })
    }
    /// Sends a request with `flags` (`NLM_F_*`) and gives each message of the reply to `each`. A dump or an
    /// acknowledgement has to be among the flags: they end the reply. `each` must not make a request: it
    /// would wait for itself.
    pub(crate) fn ask(
        &self,
        request: RouteNetlinkMessage,
        flags: u16,
        mut each: impl FnMut(RouteNetlinkMessage),
    ) -> io::Result<()> {
        let mut message = Message::from(request);
        message.header.flags = NLM_F_REQUEST | flags;
        message.finalize();
        let mut buf = vec![0; BUFFER_BYTES];
        let len = message.buffer_len();
        if len > buf.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        message.serialize(&mut buf[..len]);
        let fd = self.fd.lock().unwrap_or_else(PoisonError::into_inner);
        send(&*fd, &buf[..len], SendFlags::empty())?;
        loop {
            let len = match recv(&*fd, &mut buf[..], RecvFlags::TRUNC) {
                Err(rustix::io::Errno::INTR) => continue,
                got => got?.1,
            };
            let data = buf.get(..len).ok_or(rustix::io::Errno::MSGSIZE)?;
            for message in messages::<RouteNetlinkMessage>(data).flatten() {
                match message.payload {
                    NetlinkPayload::Done(_) => return Ok(()),
                    // Without a code it acknowledges.
                    NetlinkPayload::Error(e) => {
                        return if e.code.is_none() { Ok(()) } else { Err(e.to_io()) };
                    }
                    NetlinkPayload::InnerMessage(inner) => each(inner),
                    _ => {}
                }
            }
        }
    }
}
