//! Messages over a Unix stream socket, with their descriptors.
//!
//! **Problem.** Bytes come in pieces of the sender's choice, and descriptors beside one of them. The reader
//! must not block, hold more than one message, or lose or mix up descriptors.
//!
//! **Invariants.** At most one unfinished message is held: its header, at most [`MAX_PAYLOAD`] bytes, at most
//! [`MAX_FDS`] descriptors. No call blocks. The connection reads exactly the header and then exactly the
//! payload from the kernel. So descriptors of the next message cannot be taken for this one's. Unsent bytes
//! are bounded ([`MAX_UNSENT`]).

use super::{HEADER_LEN, Header, HeaderFlags, MAX_FDS, MAX_PAYLOAD, MessageError, Reply, Request};
use arrayvec::ArrayVec;
use core::mem::MaybeUninit;
use core::time::Duration;
use heddle_sys::Foreign;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, sendmsg, shutdown,
};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// Maximum number of bytes that wait to be sent.
pub const MAX_UNSENT: usize = 64 * 1024;

/// Maximum number of descriptors that the kernel delivers beside one message (`SCM_MAX_FD`).
const MAX_SENT: usize = 253;

/// Why a connection is at its end.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The bytes of the other side are no message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The other side closed its end in the middle of a message.
    #[error("connection closed in the middle of a message")]
    Cut,
    /// The peer does not read its replies.
    #[error("the peer does not read its replies")]
    Unread,
    /// More descriptors than [`MAX_FDS`] beside one message.
    #[error("more than {MAX_FDS} descriptors beside one message")]
    TooManyFds,
    /// Descriptors came that this process has no room for.
    #[error("this process has no file descriptors left (RLIMIT_NOFILE)")]
    NoDescriptors,
    /// The system's word.
    #[error(transparent)]
    Io(std::io::Error),
}

impl From<Errno> for SocketError {
    fn from(e: Errno) -> Self {
        Self::Io(e.into())
    }
}

/// A whole message.
#[derive(Debug)]
pub struct Frame {
    /// The frame's header.
    pub header: Header,
    /// The frame's payload.
    pub payload: Vec<u8>,
    /// The descriptors that came beside it.
    pub fds: ArrayVec<Foreign, MAX_FDS>,
}

/// Result of [`Connection::recv`].
#[derive(Debug)]
pub enum Received {
    /// A message.
    Frame(Frame),
    /// No message, or only a part of one, yet.
    Nothing,
    /// The other side closed its end.
    Closed,
}

/// One end of a connection. Not shared: one thread at a time.
#[derive(Debug)]
pub struct Connection {
    /// Descriptors in its queue go with it: [`Foreign`] closes it on a thread that may wait.
    stream: Foreign,
    head: [u8; HEADER_LEN],
    /// The header, once it is complete.
    header: Option<Header>,
    /// Bytes of the header, or then of the payload, that have come.
    have: usize,
    payload: Vec<u8>,
    fds: ArrayVec<Foreign, MAX_FDS>,
    /// When the unfinished message began.
    since: Option<Instant>,
    unsent: Vec<u8>,
}

impl Connection {
    /// Takes over a connected socket. Its mode does not matter: no call waits.
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream: Foreign::new(stream.into()),
            head: [0; HEADER_LEN],
            header: None,
            have: 0,
            payload: Vec::new(),
            fds: ArrayVec::new(),
            since: None,
            unsent: Vec::new(),
        }
    }

    /// The next message, if all of it is there.
    ///
    /// # Errors
    /// [`SocketError`]: the connection is of no further use.
    pub fn recv(&mut self) -> Result<Received, SocketError> {
        loop {
            let Some(header) = self.header else {
                match self.fill_header()? {
                    Fill::Done => continue,
                    Fill::Wait => return Ok(Received::Nothing),
                    Fill::End if self.have == 0 && self.fds.is_empty() => return Ok(Received::Closed),
                    Fill::End => return Err(SocketError::Cut),
                }
            };
            if self.have < self.payload.len() {
                match self.fill_payload()? {
                    Fill::Done => continue,
                    Fill::Wait => return Ok(Received::Nothing),
                    Fill::End => return Err(SocketError::Cut),
                }
            }
            self.header = None;
            self.have = 0;
            self.since = None;
            return Ok(Received::Frame(Frame {
                header,
                payload: core::mem::take(&mut self.payload),
                fds: core::mem::take(&mut self.fds),
            }));
        }
    }

    fn fill_header(&mut self) -> Result<Fill, SocketError> {
        let mut head = self.head;
        let Some(n) = self.read(&mut head, self.have)? else {
            return Ok(Fill::Wait);
        };
        if n == 0 {
            return Ok(Fill::End);
        }
        self.head = head;
        self.have += n;
        if self.have == HEADER_LEN {
            let header = Header::decode(self.head)?;
            self.payload = vec![0; header.size as usize];
            self.header = Some(header);
            self.have = 0;
        }
        Ok(Fill::Done)
    }

    fn fill_payload(&mut self) -> Result<Fill, SocketError> {
        let mut payload = core::mem::take(&mut self.payload);
        let n = self.read(&mut payload, self.have);
        self.payload = payload;
        match n? {
            None => Ok(Fill::Wait),
            Some(0) => Ok(Fill::End),
            Some(n) => {
                self.have += n;
                Ok(Fill::Done)
            }
        }
    }

    /// Reads into `buf` from `at` on; `None`: nothing is there.
    ///
    /// Peeks first. If the process has no room for a descriptor, the kernel closes it in the thread that
    /// takes its bytes. That may take as long as the descriptor's maker likes. Descriptors left in the queue
    /// go with the socket, which another thread closes ([`Foreign`]). The peek makes second copies: while
    /// they exist, taking the bytes closes nothing.
    #[expect(clippy::indexing_slicing, reason = "`at` bytes of `buf` are there already")]
    fn read(&mut self, buf: &mut [u8], at: usize) -> Result<Option<usize>, SocketError> {
        // For all that the kernel delivers.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SENT))];
        let mut copies = RecvAncillaryBuffer::new(&mut space);
        let Some(looked) = self.receive(&mut buf[at..], &mut copies, RecvFlags::PEEK)? else {
            return Ok(None);
        };
        if looked.flags.contains(ReturnFlags::CTRUNC) {
            return Err(self.truncated());
        }
        if looked.bytes == 0 {
            return Ok(Some(0));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SENT))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let Some(got) = self.receive(&mut buf[at..], &mut control, RecvFlags::empty())? else {
            return Ok(None);
        };
        if got.flags.contains(ReturnFlags::CTRUNC) {
            // The copies may be the last ones.
            descriptors(&mut copies).map(Foreign::new).for_each(drop);
            descriptors(&mut control).map(Foreign::new).for_each(drop);
            return Err(self.truncated());
        }
        drop(copies);
        let mut too_many = false;
        // The first that is too many does not end this: those behind it are to be dropped with care, too.
        for fd in descriptors(&mut control).map(Foreign::new) {
            too_many |= self.fds.try_push(fd).is_err();
        }
        if too_many {
            return Err(SocketError::TooManyFds);
        }
        if got.bytes > 0 {
            self.since.get_or_insert_with(Instant::now);
        }
        Ok(Some(got.bytes))
    }

    /// Descriptors came that are not here.
    fn truncated(&self) -> SocketError {
        // The space is too small, or the process has no room for a descriptor: the second is not the peer's
        // fault.
        match rustix::io::dup(&self.stream) {
            Err(Errno::MFILE | Errno::NFILE) => SocketError::NoDescriptors,
            _ => SocketError::TooManyFds,
        }
    }

    /// Whether the peer has closed its end already, whatever it sent before.
    pub fn is_over(&self) -> bool {
        let mut fds = [PollFd::new(&self.stream, PollFlags::empty())];
        let now = Timespec::default();
        poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }

    /// recvmsg(2); `None`: nothing is there.
    fn receive(
        &self,
        buf: &mut [u8],
        control: &mut RecvAncillaryBuffer<'_>,
        flags: RecvFlags,
    ) -> Result<Option<RecvMsg>, SocketError> {
        let flags = flags | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        loop {
            return match recvmsg(&self.stream, &mut [IoSliceMut::new(buf)], control, flags) {
                Ok(got) => Ok(Some(RecvMsg {
                    bytes: got.bytes,
                    flags: got.flags,
                })),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Ok(None),
                // The other side went away with our bytes unread: an end, like any other.
                Err(Errno::CONNRESET) => Ok(Some(RecvMsg {
                    bytes: 0,
                    flags: ReturnFlags::empty(),
                })),
                Err(e) => Err(e.into()),
            };
        }
    }

    /// When the message began that is not complete yet.
    pub fn partial_since(&self) -> Option<Instant> {
        self.since
    }

    /// Sends a message, or keeps the bytes that the socket does not take now for [`Connection::flush`].
    ///
    /// # Errors
    /// [`SocketError`]: the connection is of no further use.
    pub fn send(
        &mut self,
        request: u32,
        flags: HeaderFlags,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), SocketError> {
        let header = Header::new(request, flags, payload.len()).encode();
        let sent = if self.unsent.is_empty() {
            self.write(&[IoSlice::new(&header), IoSlice::new(payload)], fds)?
        } else {
            0
        };
        if sent == 0 && !fds.is_empty() {
            // Descriptors travel with a message's first byte and are not kept.
            return Err(SocketError::Unread);
        }
        if self.unsent.len() + HEADER_LEN + payload.len() - sent > MAX_UNSENT {
            return Err(SocketError::Unread);
        }
        self.unsent.extend(header.iter().chain(payload).skip(sent));
        Ok(())
    }

    /// The errors of [`Connection::send`].
    pub fn send_request(
        &mut self,
        request: &Request,
        flags: HeaderFlags,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), SocketError> {
        let mut payload = Vec::with_capacity(MAX_PAYLOAD / 8);
        request.encode(&mut payload);
        self.send(request.code(), flags, &payload, fds)
    }

    /// Sends the reply to the request with number `request`.
    ///
    /// # Errors
    /// The errors of [`Connection::send`].
    pub fn send_reply(
        &mut self,
        request: u32,
        reply: &Reply,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), SocketError> {
        let mut payload = Vec::with_capacity(32);
        reply.encode(&mut payload);
        self.send(request, HeaderFlags::REPLY, &payload, fds)
    }

    /// Sends more of the kept bytes; returns whether all of them are gone.
    pub fn flush(&mut self) -> Result<bool, SocketError> {
        if !self.unsent.is_empty() {
            let sent = self.write(&[IoSlice::new(&self.unsent)], &[])?;
            self.unsent.drain(..sent);
        }
        Ok(self.unsent.is_empty())
    }

    /// Whether something waits to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    fn write(&self, iov: &[IoSlice<'_>], fds: &[BorrowedFd<'_>]) -> Result<usize, SocketError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(SocketError::TooManyFds);
        }
        loop {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(&self.stream, iov, &mut control, flags) {
                Ok(n) => return Ok(n),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(0),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Waits until something can be received, the peer has closed, or the time is over; returns false in the
    /// last case. For front ends, which send a request and wait; the back end's thread never calls it.
    ///
    /// # Errors
    /// The error of poll(2).
    pub fn wait_readable(&self, timeout: Duration) -> std::io::Result<bool> {
        let timeout = Timespec::try_from(timeout).ok();
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(n) => Ok(n > 0),
            Err(Errno::INTR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

impl Drop for Connection {
    /// The other side learns of the end at once, wherever the socket is closed.
    fn drop(&mut self) {
        let _ = shutdown(&self.stream, Shutdown::Both); // the connection may have ended already
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The descriptors that came.
fn descriptors(control: &mut RecvAncillaryBuffer<'_>) -> impl Iterator<Item = OwnedFd> {
    control
        .drain()
        .flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
}

/// Results of recvmsg(2).
struct RecvMsg {
    bytes: usize,
    flags: ReturnFlags,
}

/// Result of a read.
enum Fill {
    /// Some bytes.
    Done,
    /// No bytes for now.
    Wait,
    /// No bytes any more.
    End,
}
