//! From bytes to the acts of a hostile front end.

#![allow(clippy::cast_possible_truncation)] // any number will do

use super::super::*;
use heddle_fuzz::Bytes;

/// Kinds of descriptors beside messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fd {
    Guest,
    Short,
    Event,
    /// An eventfd whose counter is at its maximum.
    FullEvent,
    PipeIn,
    PipeOut,
    FullPipe,
    Socket,
    Null,
    Directory,
    Epoll,
    Path,
}

/// One act of a front end.
#[derive(Clone, Debug)]
pub(super) enum Act {
    /// A well-formed request, sent this number of times, with descriptors of these kinds (`None`: the right
    /// ones).
    Send(Request, Option<Vec<Fd>>, bool, u8),
    /// Like `Send`, but only written: the session reads it together with the next message.
    Queue(Request, Option<Vec<Fd>>, bool),
    /// A header that announces `size`, and these bytes.
    Frame(u32, u32, u32, Vec<u8>, Vec<Fd>),
    /// A request in two pieces, with time between.
    Pieces(Request, u8),
    /// A request, cut after this number of bytes, then the end.
    Cut(Request, u8),
    Poke(u64, Vec<u8>),
    /// Frames in ring 1, made by a driver.
    Traffic(u8),
    Work,
    Ring(u8, u8),
    Again(u64),
    /// The guest's file gets shorter.
    Truncate(u8),
    /// The front end reads none of the replies.
    Deaf(bool),
}

/// A script of a front end's acts.
pub(super) struct Script<'a>(Bytes<'a>);

impl<'a> Script<'a> {
    pub(super) fn new(script: &'a [u8], most: usize) -> Self {
        Self(Bytes::new(script, most))
    }
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// A number near one that means something.
    fn edge(&mut self) -> u64 {
        let (kind, by) = (self.0.u8(), u64::from(self.0.u8()));
        match kind % 12 {
            0 => u64::MAX - by,
            1 => 1 << (by % 64),
            2 => (1_u64 << (by % 64)).wrapping_sub(1),
            3 => self.0.u64(),
            4 => LEN + by,
            5 => LEN - by,
            6 => by * 4096,
            7 => 65_536 + by,
            _ => by,
        }
    }
    fn index(&mut self) -> u32 {
        match self.0.u8() {
            n @ 0..240 => u32::from(n % 4),
            n @ 240..250 => u32::from(n),
            _ => self.edge() as u32,
        }
    }
    /// An address: the front end's, the guest's, or any.
    fn addr(&mut self) -> u64 {
        let kind = self.0.u8();
        let at = u64::from(self.0.u8()) * 4096 + u64::from(kind >> 5) * 16;
        match kind % 16 {
            0..10 => USER + at,
            10 | 11 => BASE + at,
            12 => USER + LEN - u64::from(kind >> 4),
            _ => self.edge(),
        }
    }
    fn state(&mut self) -> VringState {
        let index = self.index();
        let kind = self.0.u8();
        let num = match kind % 8 {
            0 => self.edge() as u32,
            1 => u32::from(self.0.u16()) << 16 | u32::from(self.0.u16()),
            2 | 3 => 64,
            4 => 0,
            _ => 1,
        };
        VringState { index, num }
    }
    fn ring_fd(&mut self) -> VringFd {
        let index = self.index() as u8;
        VringFd {
            index,
            has_fd: !self.0.u8().is_multiple_of(8),
        }
    }
    fn region(&mut self) -> MemRegion {
        let quarter = |n: u8| u64::from(n % 4) * (LEN / 4);
        let mut r = MemRegion {
            guest: BASE + quarter(self.0.u8()),
            size: LEN / 4,
            user: USER + quarter(self.0.u8()),
            offset: quarter(self.0.u8()),
        };
        match self.0.u8() % 12 {
            0 => r.size = self.edge(),
            1 => r.guest = self.edge(),
            2 => r.user = self.edge(),
            3 => r.offset = self.edge(),
            4 => {
                r = MemRegion {
                    guest: BASE,
                    size: LEN,
                    user: USER,
                    offset: 0,
                }
            }
            5 => r.guest = u64::MAX - r.size + 1,
            6 => r.user = u64::MAX - r.size + 1,
            7 => r.offset += 7,
            _ => {}
        }
        r
    }
    fn inflight(&mut self) -> Inflight {
        Inflight {
            mmap_size: self.edge(),
            mmap_offset: if self.0.u8().is_multiple_of(4) {
                self.edge()
            } else {
                0
            },
            num_queues: u16::from(self.0.u8() % 6),
            queue_size: [64, 128, 0, 16, 256, u16::MAX][usize::from(self.0.u8() % 6)],
        }
    }
    fn iotlb(&mut self) -> IotlbMsg {
        let kind = match self.0.u8() % 8 {
            0 => IotlbKind::Miss,
            1 => IotlbKind::AccessFail,
            2 | 3 => IotlbKind::Invalidate,
            _ => IotlbKind::Update,
        };
        IotlbMsg {
            iova: self.addr(),
            size: match self.0.u8() % 4 {
                0 => self.edge(),
                1 => LEN,
                _ => 4096,
            },
            user: self.addr(),
            access: Access::from_bits_truncate(self.0.u8()),
            kind,
        }
    }
    fn config(&mut self) -> ConfigSpace {
        ConfigSpace {
            offset: self.edge() as u32,
            flags: ConfigFlags::from_bits_truncate(self.0.u8().into()),
            bytes: vec![self.0.u8(); usize::from(self.0.u8() % 20)],
        }
    }
    /// Features: some of the offered ones, and now and then another.
    pub(super) fn features(&mut self) -> u64 {
        let mine = Dummy::new().offer.features | Features::PROTOCOL_FEATURES | Features::LOG_ALL;
        let bits = self.0.u64() & mine.bits();
        match self.0.u8() % 16 {
            0 => bits | 1 << (self.0.u8() % 64),
            _ => bits,
        }
    }
    fn request(&mut self) -> Request {
        match self.0.u8() % 44 {
            0 => Request::GetFeatures,
            1 | 2 => Request::SetFeatures(self.features()),
            3 => Request::SetOwner,
            4 => Request::ResetOwner,
            5 | 6 => {
                let n = match self.0.u8() {
                    n @ 0..250 => n % 5,
                    _ => 32,
                };
                Request::SetMemTable((0..n).map(|_| self.region()).collect())
            }
            7 => Request::SetLogBase(Some(LogArea {
                size: self.edge(),
                offset: if self.0.u8().is_multiple_of(4) {
                    self.edge()
                } else {
                    0
                },
            })),
            8 => Request::SetLogFd,
            9 => Request::SetVringNum(self.state()),
            10 | 11 => Request::SetVringAddr(VringAddr {
                index: self.index(),
                log_used: self.0.u8().is_multiple_of(2),
                desc: self.addr(),
                used: self.addr(),
                avail: self.addr(),
                log: self.edge(),
            }),
            12 => Request::SetVringBase(self.state()),
            13 => Request::GetVringBase(self.state()),
            14 | 15 => Request::SetVringKick(self.ring_fd()),
            16 | 17 => Request::SetVringCall(self.ring_fd()),
            18 => Request::SetVringErr(self.ring_fd()),
            19 => Request::GetProtocolFeatures,
            20 => Request::SetProtocolFeatures(self.0.u64() & PROTOCOL.bits()),
            21 => Request::GetQueueNum,
            22 | 23 => Request::SetVringEnable(self.state()),
            24 => Request::SendRarp([self.0.u8(); 6]),
            25 => Request::NetSetMtu(self.edge()),
            26 => Request::SetBackendReqFd,
            27..30 => Request::Iotlb(self.iotlb()),
            30 => Request::SetVringEndian(self.state()),
            31 => Request::GetConfig(self.config()),
            32 => Request::SetConfig(self.config()),
            33 => [
                Request::PostcopyAdvise,
                Request::PostcopyListen,
                Request::PostcopyEnd,
            ][usize::from(self.0.u8() % 3)]
            .clone(),
            34 => Request::GetInflightFd(self.inflight()),
            35 => Request::SetInflightFd(self.inflight()),
            36 => Request::ResetDevice,
            37 => Request::VringKick(self.state()),
            38 => Request::GetMaxMemSlots,
            39 => Request::AddMemReg(self.region()),
            40 => Request::RemMemReg(self.region()),
            41 => Request::SetStatus(self.edge()),
            42 => Request::GetStatus,
            _ => Request::SetLogBase(None),
        }
    }
    fn fd(&mut self) -> Fd {
        match self.0.u8() % 12 {
            0 => Fd::Guest,
            1 => Fd::Short,
            2 => Fd::Event,
            3 => Fd::FullEvent,
            4 => Fd::PipeIn,
            5 => Fd::PipeOut,
            6 => Fd::FullPipe,
            7 => Fd::Socket,
            8 => Fd::Null,
            9 => Fd::Directory,
            10 => Fd::Epoll,
            _ => Fd::Path,
        }
    }
    /// Mostly the descriptors that the request should have.
    fn fds(&mut self) -> Option<Vec<Fd>> {
        match self.0.u8() {
            n @ 0..70 => Some((0..n % 4).map(|_| self.fd()).collect()),
            70 => Some(vec![self.fd(); 33]),
            _ => None,
        }
    }
    pub(super) fn act(&mut self) -> Act {
        match self.0.u8() % 32 {
            0..10 => Act::Send(self.request(), self.fds(), !self.0.u8().is_multiple_of(8), 1),
            10 => Act::Send(self.request(), self.fds(), true, 2 + self.0.u8() % 3),
            11..14 => Act::Queue(self.request(), self.fds(), self.0.u8().is_multiple_of(2)),
            14 => {
                let (code, flags) = (u32::from(self.0.u8() % 50), u32::from(self.0.u8()));
                let (len, told) = (u32::from(self.0.u8()), self.0.u8());
                let told = if told.is_multiple_of(4) {
                    self.edge() as u32
                } else {
                    len
                };
                let payload = (0..len).map(|_| self.0.u8()).collect();
                Act::Frame(code, flags, told, payload, self.fds().unwrap_or_default())
            }
            15 => Act::Pieces(self.request(), self.0.u8()),
            16 => Act::Cut(self.request(), self.0.u8()),
            17 | 18 => {
                let at = BASE + u64::from(self.0.u16()) * 32;
                let n = 1 + self.0.u8() % 16;
                Act::Poke(at, (0..n).map(|_| self.0.u8()).collect())
            }
            19 | 20 => Act::Traffic(1 + self.0.u8() % 8),
            21..24 => Act::Work,
            24..28 => Act::Ring(self.0.u8() % 4, self.0.u8()),
            28 => Act::Again(self.features()),
            29 if self.0.u8().is_multiple_of(4) => Act::Truncate(self.0.u8()),
            30 => Act::Deaf(self.0.u8().is_multiple_of(2)),
            _ => Act::Work,
        }
    }
}
