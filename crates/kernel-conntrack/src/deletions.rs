//! Entries that other programs have deleted from the kernel's table.
//!
//! The kernel sends an event for each entry that goes, with the address of the socket that has requested it.
//! That address is zero if the entry has expired, or was dropped because the table was full. A filter of the
//! socket takes only events of other programs' requests.

use crate::entry::EntryKey;
use crate::message;
use heddle_sys::NetfilterSocket;
use heddle_sys::netlink::messages;
use netlink_packet_core::NetlinkPayload;
use netlink_packet_netfilter::NetfilterMessage;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// The kernel's group of events about entries that go (`NFNLGRP_CONNTRACK_DESTROY`).
const DESTROY_GROUP: u32 = 3;
/// Room for events that wait: some thousands.
const BUFFER_BYTES: usize = 4 << 20;
/// Larger than any event.
const DATAGRAM_BYTES: usize = 16 * 1024;

/// A deletion, or a sign of lost ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deletion {
    /// Another program has deleted this entry.
    Of(EntryKey),
    /// Some deletions were lost: compare the tables.
    Lost,
}

/// A subscription to deletions in this thread's network namespace.
#[derive(Debug)]
pub struct Deletions {
    socket: NetfilterSocket,
    buf: Vec<u8>,
}

impl Deletions {
    /// Subscribes. Requests of the socket with the address `own` are left out.
    ///
    /// # Errors
    /// The kernel has no nfnetlink, or the caller has no `CAP_NET_ADMIN`.
    pub fn new(own: u32) -> io::Result<Self> {
        let socket = NetfilterSocket::new(BUFFER_BYTES)?;
        socket.only_from_others(own)?;
        socket.join(DESTROY_GROUP)?;
        Ok(Self {
            socket,
            buf: vec![0; DATAGRAM_BYTES],
        })
    }
    /// Passes the deletions that wait, from at most `max` datagrams, to `each`. `true`: more may wait.
    ///
    /// # Errors
    /// The error of recv(2) but `ENOBUFS`, which is [`Deletion::Lost`].
    pub fn read(&mut self, max: usize, mut each: impl FnMut(Deletion)) -> io::Result<bool> {
        for _ in 0..max {
            match self.socket.receive(&mut self.buf, false) {
                Ok(None) => return Ok(false),
                Ok(Some(data)) => decode(data, &mut each),
                Err(e) => match Errno::from_io_error(&e) {
                    Some(Errno::NOBUFS | Errno::MSGSIZE) => each(Deletion::Lost),
                    _ => return Err(e),
                },
            }
        }
        Ok(true)
    }
}

impl AsRawFd for Deletions {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

pub(crate) fn decode(data: &[u8], each: &mut impl FnMut(Deletion)) {
    for message in messages::<NetfilterMessage>(data) {
        match message.map(|m| m.payload) {
            Ok(NetlinkPayload::InnerMessage(m)) => {
                if let Some(received) = message::entry(&m) {
                    each(Deletion::Of(received.entry.key));
                }
            }
            Ok(_) => {}
            Err(_) => each(Deletion::Lost),
        }
    }
}
