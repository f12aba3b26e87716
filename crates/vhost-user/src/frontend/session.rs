//! One connection to a back end.

use super::listener::PAUSE;
use super::{FrontendError, Ram, Result};
use crate::message::{
    Connection, Frame, HeaderFlags, ProtocolFeatures, Received, Reply, ReplyKind, Request, VringAddr,
    VringFd, VringState,
};
use core::time::Duration;
use heddle_sys::Foreign;
use heddle_virtio::ring::{Features, Position, QueueConfig};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

/// The offer of a back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Features of rings and device.
    pub features: Features,
    /// Protocol features; none where the back end does not negotiate any.
    pub protocol: ProtocolFeatures,
    /// Queue pairs (1 without the protocol feature MQ).
    pub queue_pairs: u64,
    /// Regions of memory that can be added one by one (0 without CONFIGURE_MEM_SLOTS).
    pub mem_slots: u64,
}

/// A connection to a back end, and the features agreed on it.
#[derive(Debug)]
pub struct Frontend {
    connection: Connection,
    /// The channel on which the back end may send requests. This front end reads none, and keeps it open.
    _backend_channel: Option<UnixStream>,
    protocol: ProtocolFeatures,
    timeout: Duration,
}

impl Frontend {
    /// Takes over a connected socket; `timeout` is the timeout of each reply.
    pub fn new(stream: UnixStream, timeout: Duration) -> Self {
        Self {
            connection: Connection::new(stream),
            _backend_channel: None,
            protocol: ProtocolFeatures::empty(),
            timeout,
        }
    }
    /// Connects to the back end that listens at `path`; tries again until `wait` is over.
    ///
    /// # Errors
    /// [`FrontendError::Path`].
    pub fn connect(path: &Path, wait: Duration, timeout: Duration) -> Result<Self> {
        let end = Instant::now() + wait;
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => return Ok(Self::new(stream, timeout)),
                Err(error) if Instant::now() >= end => {
                    return Err(FrontendError::Path {
                        path: path.display().to_string(),
                        error,
                    });
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Sends a request with its descriptors and returns the reply, if it has one of its own. With REPLY_ACK
    /// any other request is confirmed too.
    ///
    /// # Errors
    /// [`FrontendError`]; the connection is of no further use, except after [`FrontendError::Refused`].
    pub fn request(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Option<(Reply, Vec<OwnedFd>)>> {
        let own = request.reply() == ReplyKind::Own;
        let ack = !own && self.protocol.contains(ProtocolFeatures::REPLY_ACK);
        let flags = if ack {
            HeaderFlags::NEED_REPLY
        } else {
            HeaderFlags::empty()
        };
        self.connection.send_request(request, flags, fds)?;
        if !own && !ack {
            return Ok(None);
        }
        let what = request.name();
        let frame = self.receive(what)?;
        if !frame.header.is_reply() || frame.header.request != request.code() {
            return Err(FrontendError::Unexpected {
                what,
                got: frame.header.request,
            });
        }
        let reply = Reply::decode(request, &frame.payload)?;
        match reply {
            Reply::U64(code) if ack && code != 0 => Err(FrontendError::Refused { what, code }),
            _ if ack => Ok(None),
            reply => Ok(Some((
                reply,
                frame.fds.into_iter().map(Foreign::into_fd).collect(),
            ))),
        }
    }

    fn receive(&mut self, what: &'static str) -> Result<Frame> {
        let end = Instant::now() + self.timeout;
        loop {
            match self.connection.recv()? {
                Received::Frame(frame) => return Ok(frame),
                Received::Closed => return Err(FrontendError::Closed),
                Received::Nothing => {}
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(FrontendError::Timeout {
                    what,
                    after: self.timeout,
                });
            }
            self.connection.flush()?;
            self.connection
                .wait_readable(left)
                .map_err(crate::message::SocketError::Io)?;
        }
    }

    fn number(&mut self, request: &Request) -> Result<u64> {
        match self.request(request, &[])? {
            Some((Reply::U64(v), _)) => Ok(v),
            _ => Err(FrontendError::Unexpected {
                what: request.name(),
                got: request.code(),
            }),
        }
    }

    /// Queries the back end's offer, agrees on its protocol features that are in `want`, and owns the
    /// session. With BACKEND_REQ the back end gets a channel of its own.
    ///
    /// # Errors
    /// [`FrontendError`]; [`FrontendError::TurnedAway`] by a back end that serves no front end now.
    pub fn open(&mut self, want: ProtocolFeatures) -> Result<Offered> {
        let first = self.number(&Request::GetFeatures);
        let features = Features::from_bits_retain(first.map_err(turned_away)?);
        let mut offered = Offered {
            features,
            protocol: ProtocolFeatures::empty(),
            queue_pairs: 1,
            mem_slots: 0,
        };
        if features.contains(Features::PROTOCOL_FEATURES) {
            offered.protocol =
                ProtocolFeatures::from_bits_retain(self.number(&Request::GetProtocolFeatures)?);
            let agreed = offered.protocol & want;
            self.request(&Request::SetProtocolFeatures(agreed.bits()), &[])?;
            self.protocol = agreed;
            if agreed.contains(ProtocolFeatures::MQ) {
                offered.queue_pairs = self.number(&Request::GetQueueNum)?;
            }
            if agreed.contains(ProtocolFeatures::CONFIGURE_MEM_SLOTS) {
                offered.mem_slots = self.number(&Request::GetMaxMemSlots)?;
            }
            if agreed.contains(ProtocolFeatures::BACKEND_REQ) {
                let io = |e| FrontendError::Socket(crate::message::SocketError::Io(e));
                let (ours, theirs) = UnixStream::pair().map_err(io)?;
                self.request(&Request::SetBackendReqFd, &[theirs.as_fd()])?;
                self._backend_channel = Some(ours);
            }
        }
        self.request(&Request::SetOwner, &[])?;
        Ok(offered)
    }
    /// The protocol features that both sides have agreed on.
    pub fn protocol(&self) -> ProtocolFeatures {
        self.protocol
    }
    /// Sends the driver's choice of features.
    ///
    /// # Errors
    /// [`FrontendError`].
    pub fn set_features(&mut self, features: Features) -> Result<()> {
        let mut features = features;
        features.set(Features::PROTOCOL_FEATURES, !self.protocol.is_empty());
        self.request(&Request::SetFeatures(features.bits()), &[])
            .map(drop)
    }
    /// Hands memory over: region by region where that was agreed, else as a table.
    ///
    /// # Errors
    /// [`FrontendError`].
    pub fn set_memory(&mut self, ram: &[&Ram]) -> Result<()> {
        if self.protocol.contains(ProtocolFeatures::CONFIGURE_MEM_SLOTS) {
            for r in ram {
                self.request(&Request::AddMemReg(r.region()), &[r.as_fd()])?;
            }
            return Ok(());
        }
        let fds: Vec<BorrowedFd<'_>> = ram.iter().map(|r| r.as_fd()).collect();
        let regions = ram.iter().map(|r| r.region()).collect();
        self.request(&Request::SetMemTable(regions), &fds).map(drop)
    }
    /// Starts ring `index` at `at`. A ring without descriptors is polled by that side.
    ///
    /// # Errors
    /// [`FrontendError`].
    pub fn start_ring(
        &mut self,
        index: u8,
        cfg: &QueueConfig,
        at: Position,
        ram: &Ram,
        kick: Option<BorrowedFd<'_>>,
        call: Option<BorrowedFd<'_>>,
    ) -> Result<()> {
        let state = |num| VringState {
            index: index.into(),
            num,
        };
        self.request(&Request::SetVringNum(state(cfg.size.into())), &[])?;
        self.request(&Request::SetVringBase(state(at.to_base(cfg.packed()))), &[])?;
        let addr = VringAddr {
            index: index.into(),
            log_used: false,
            desc: ram.user_addr(cfg.desc),
            used: ram.user_addr(cfg.device),
            avail: ram.user_addr(cfg.driver),
            log: 0,
        };
        self.request(&Request::SetVringAddr(addr), &[])?;
        let fd = |fd: Option<BorrowedFd<'_>>| VringFd {
            index,
            has_fd: fd.is_some(),
        };
        // QEMU's order: the kick's descriptor starts the ring.
        self.request(&Request::SetVringCall(fd(call)), call.as_slice())?;
        self.request(&Request::SetVringKick(fd(kick)), kick.as_slice())?;
        Ok(())
    }
    /// Enables or disables ring `index`; without protocol features rings are always enabled.
    ///
    /// # Errors
    /// [`FrontendError`].
    pub fn enable_ring(&mut self, index: u8, on: bool) -> Result<()> {
        if self.protocol.is_empty() {
            return Ok(());
        }
        let state = VringState {
            index: index.into(),
            num: on.into(),
        };
        self.request(&Request::SetVringEnable(state), &[]).map(drop)
    }
    /// Stops ring `index`; returns where the back end has come to.
    ///
    /// # Errors
    /// [`FrontendError`].
    pub fn stop_ring(&mut self, index: u8, packed: bool) -> Result<Position> {
        let request = Request::GetVringBase(VringState {
            index: index.into(),
            num: 0,
        });
        match self.request(&request, &[])? {
            Some((Reply::Vring(state), _)) => Ok(Position::from_base(state.num, packed)),
            _ => Err(FrontendError::Unexpected {
                what: request.name(),
                got: request.code(),
            }),
        }
    }
    /// Sends the device status field, if that was negotiated.
    ///
    /// # Errors
    /// [`FrontendError`].
    pub fn set_status(&mut self, status: u8) -> Result<()> {
        if self.protocol.contains(ProtocolFeatures::STATUS) {
            self.request(&Request::SetStatus(status.into()), &[])?;
        }
        Ok(())
    }
    /// Checks that the back end is still connected. A message without a request is an error.
    ///
    /// # Errors
    /// [`FrontendError`].
    pub fn check(&mut self) -> Result<()> {
        match self.connection.recv()? {
            Received::Nothing => Ok(()),
            Received::Closed => Err(FrontendError::Closed),
            Received::Frame(frame) => Err(FrontendError::Unexpected {
                what: "nothing",
                got: frame.header.request,
            }),
        }
    }
}

/// The meaning of a lost connection before the first reply.
fn turned_away(e: FrontendError) -> FrontendError {
    use crate::message::SocketError::{Cut, Io};
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
    match e {
        FrontendError::Closed | FrontendError::Socket(Cut) => FrontendError::TurnedAway,
        FrontendError::Socket(Io(io)) if matches!(io.kind(), BrokenPipe | ConnectionReset) => {
            FrontendError::TurnedAway
        }
        other => other,
    }
}
