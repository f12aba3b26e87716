//! Batches of requests over rtnetlink(7), for a sender that sends many.
//!
//! One datagram carries several requests; the kernel serves them in order, and acknowledges each. Replies
//! come back unparsed: a caller that reads 100,000 filters twice a second reads a few attributes of each.
//!
//! **Loss.** When a reply is lost (`ENOBUFS`) or does not come in time, the state of the requests is unknown.
//! The batch fails as a whole, and the next one has a new socket.

use crate::netlink;
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NetlinkMessage};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, SocketFlags, recv, send};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Room for one datagram of replies, bytes: the kernel fills at most 32 KiB of it in a dump.
const BUFFER_BYTES: usize = 64 * 1024;
/// Maximum number of requests in one datagram, so that the acknowledgements fit into the receive buffer.
const MAX_REQUESTS: usize = 32;
/// Message types of the kernel's own (linux/netlink.h).
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// A request with its flags (`NLM_F_*`), without those that every request has.
#[derive(Debug)]
pub struct RouteRequest {
    /// The message.
    pub message: RouteNetlinkMessage,
    /// Flags.
    pub flags: u16,
}

/// A message that the kernel sent in reply to a request.
#[derive(Clone, Copy, Debug)]
pub struct RouteReply<'a> {
    /// Index of the request in its batch.
    pub request: usize,
    /// Type of the message (`RTM_*`).
    pub kind: u16,
    /// The message behind its netlink header.
    pub payload: &'a [u8],
}

/// A socket of the network namespace in which it was made.
#[derive(Debug)]
pub struct RouteBatch {
    fd: OwnedFd,
    timeout: Duration,
    sequence: u32,
    /// Requests, then replies.
    out: Vec<u8>,
    buf: Vec<u8>,
}

impl RouteBatch {
    /// A socket of the calling thread's network namespace. `timeout`: the longest wait for a reply.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new(timeout: Duration) -> io::Result<Self> {
        Ok(Self {
            fd: open(timeout)?,
            timeout,
            sequence: 0,
            out: Vec::new(),
            buf: vec![0; BUFFER_BYTES],
        })
    }

    /// Sends requests, and returns the kernel's result for each. Gives `each` the messages that are replies.
    ///
    /// # Errors
    /// The socket's error; which requests were served is unknown then.
    pub fn send(
        &mut self,
        requests: Vec<RouteRequest>,
        each: &mut dyn FnMut(RouteReply<'_>),
    ) -> io::Result<Vec<io::Result<()>>> {
        let mut results = Vec::with_capacity(requests.len());
        let mut left = requests.into_iter().peekable();
        while left.peek().is_some() {
            let some: Vec<RouteRequest> = left.by_ref().take(MAX_REQUESTS).collect();
            let first = results.len();
            let done = self.send_some(some, NLM_F_ACK, &mut |mut reply| {
                reply.request += first;
                each(reply);
            });
            match done {
                Ok(some) => results.extend(some),
                Err(error) => {
                    self.renew();
                    return Err(error);
                }
            }
        }
        Ok(results)
    }

    /// Sends a request for a dump. Gives `each` its messages.
    ///
    /// # Errors
    /// The kernel's error; `ENOBUFS` if messages were lost.
    pub fn dump(
        &mut self,
        message: RouteNetlinkMessage,
        each: &mut dyn FnMut(RouteReply<'_>),
    ) -> io::Result<()> {
        let request = RouteRequest { message, flags: 0 };
        let done = self.send_some(vec![request], NLM_F_DUMP, each);
        match done {
            Ok(mut results) => results.pop().unwrap_or(Ok(())),
            Err(error) => {
                self.renew();
                Err(error)
            }
        }
    }

    /// Replaces the socket, in which late replies may come.
    fn renew(&mut self) {
        if let Ok(fd) = open(self.timeout) {
            self.fd = fd;
        }
    }

    fn send_some(
        &mut self,
        requests: Vec<RouteRequest>,
        end: u16,
        each: &mut dyn FnMut(RouteReply<'_>),
    ) -> io::Result<Vec<io::Result<()>>> {
        let first = self.sequence.wrapping_add(1);
        self.out.clear();
        let n = requests.len();
        for RouteRequest { message, flags } in requests {
            self.sequence = self.sequence.wrapping_add(1);
            let mut message = NetlinkMessage::from(message);
            message.header.flags = NLM_F_REQUEST | end | flags;
            message.header.sequence_number = self.sequence;
            message.finalize();
            let at = self.out.len();
            self.out.resize(at + message.buffer_len().next_multiple_of(4), 0);
            let len = message.buffer_len();
            message.serialize(&mut self.out[at..at + len]);
        }
        send(&self.fd, &self.out, SendFlags::empty())?;
        let mut results: Vec<Option<io::Result<()>>> = (0..n).map(|_| None).collect();
        let mut missing = n;
        while missing > 0 {
            let len = match recv(&self.fd, &mut self.buf[..], RecvFlags::TRUNC) {
                Err(rustix::io::Errno::INTR) => continue,
                // The time is over.
                Err(rustix::io::Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                got => got?.1,
            };
            let mut data = self.buf.get(..len).ok_or(rustix::io::Errno::MSGSIZE)?;
            while let Ok(message) = NetlinkBuffer::new_checked(data) {
                let (kind, payload) = (message.message_type(), message.payload());
                let request = message.sequence_number().wrapping_sub(first) as usize;
                let code = || payload.first_chunk::<4>().map_or(0, |b| i32::from_ne_bytes(*b));
                let ended = match kind {
                    NLMSG_ERROR | NLMSG_DONE if code() < 0 => {
                        Some(Err(io::Error::from_raw_os_error(code().wrapping_neg())))
                    }
                    NLMSG_ERROR | NLMSG_DONE => Some(Ok(())),
                    _ => {
                        if request < n {
                            each(RouteReply {
                                request,
                                kind,
                                payload,
                            });
                        }
                        None
                    }
                };
                if let Some(result) = ended
                    && let Some(slot) = results.get_mut(request)
                    && slot.is_none()
                {
                    *slot = Some(result);
                    missing -= 1;
                }
                let next = (message.length() as usize).next_multiple_of(4);
                data = data.get(next..).unwrap_or_default();
            }
        }
        Ok(results.into_iter().map(|r| r.unwrap_or(Ok(()))).collect())
    }
}

fn open(timeout: Duration) -> io::Result<OwnedFd> {
    let fd = netlink::socket(SocketFlags::empty())?;
    set_socket_timeout(&fd, Timeout::Recv, Some(timeout))?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_route::RouteNetlinkMessage::GetLink;
    use netlink_packet_route::link::LinkMessage;

    #[test]
    fn each_request_has_its_own_replies_and_its_own_result() {
        let mut batch = RouteBatch::new(Duration::from_secs(1)).unwrap();
        let link = |index| {
            let mut message = LinkMessage::default();
            message.header.index = index;
            RouteRequest {
                message: GetLink(message),
                flags: 0,
            }
        };
        // More than one datagram takes; all but the 35th are about the loopback device.
        let requests = (0..40).map(|n| link(if n == 35 { 0x7fff_fff0 } else { 1 }));
        let mut replies = Vec::new();
        let results = batch
            .send(requests.collect(), &mut |r| {
                replies.push((r.request, r.kind, r.payload.len() > 16));
            })
            .unwrap();
        let expected = (0..40).filter(|n| *n != 35).map(|n| (n, 16, true));
        assert_eq!(replies, expected.collect::<Vec<_>>());
        let failed: Vec<usize> = (0..40).filter(|n| results[*n].is_err()).collect();
        assert_eq!(failed, [35]);
        assert_eq!(
            results[35].as_ref().unwrap_err().raw_os_error(),
            Some(19),
            "ENODEV"
        );
        // A dump on the same socket.
        let mut links = 0;
        batch
            .dump(GetLink(LinkMessage::default()), &mut |_| links += 1)
            .unwrap();
        assert!(links >= 1);
    }
}
