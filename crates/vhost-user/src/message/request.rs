//! Requests of both sides.

use super::payload::{
    ConfigSpace, Inflight, IotlbMsg, LogArea, MemRegion, Payload, VringAddr, VringArea, VringFd, VringState,
};
use super::wire::{Reader, Writer};
use super::{MAX_FDS, MessageError};

/// Number of descriptors beside a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FdRule {
    /// Exactly this number.
    Exactly(usize),
    /// One or no descriptor.
    Optional,
}

impl FdRule {
    /// Whether `n` descriptors are right.
    pub fn allows(self, n: usize) -> bool {
        match self {
            Self::Exactly(want) => n == want,
            Self::Optional => n <= 1,
        }
    }
}

/// The kind of reply that a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    /// Zero or an error number if the sender set NEED_REPLY and REPLY_ACK was negotiated; otherwise no reply.
    Ack,
    /// Always a [`super::Reply`].
    Own,
}

/// A request of the front end. Descriptors come beside it ([`Request::fds`]).
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // each is the message of that name in the specification
pub enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemTable(Vec<MemRegion>),
    /// With LOG_SHMFD the area in the descriptor's file; `None`: a bare address, which means nothing in
    /// another process.
    SetLogBase(Option<LogArea>),
    SetLogFd,
    SetVringNum(VringState),
    SetVringAddr(VringAddr),
    SetVringBase(VringState),
    GetVringBase(VringState),
    SetVringKick(VringFd),
    SetVringCall(VringFd),
    SetVringErr(VringFd),
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetVringEnable(VringState),
    /// The guest's Ethernet address.
    SendRarp([u8; 6]),
    NetSetMtu(u64),
    SetBackendReqFd,
    Iotlb(IotlbMsg),
    SetVringEndian(VringState),
    GetConfig(ConfigSpace),
    SetConfig(ConfigSpace),
    PostcopyAdvise,
    PostcopyListen,
    PostcopyEnd,
    GetInflightFd(Inflight),
    SetInflightFd(Inflight),
    ResetDevice,
    VringKick(VringState),
    GetMaxMemSlots,
    AddMemReg(MemRegion),
    RemMemReg(MemRegion),
    SetStatus(u64),
    GetStatus,
}

impl Request {
    /// The request's number.
    pub fn code(&self) -> u32 {
        match self {
            Self::GetFeatures => 1,
            Self::SetFeatures(_) => 2,
            Self::SetOwner => 3,
            Self::ResetOwner => 4,
            Self::SetMemTable(_) => 5,
            Self::SetLogBase(_) => 6,
            Self::SetLogFd => 7,
            Self::SetVringNum(_) => 8,
            Self::SetVringAddr(_) => 9,
            Self::SetVringBase(_) => 10,
            Self::GetVringBase(_) => 11,
            Self::SetVringKick(_) => 12,
            Self::SetVringCall(_) => 13,
            Self::SetVringErr(_) => 14,
            Self::GetProtocolFeatures => 15,
            Self::SetProtocolFeatures(_) => 16,
            Self::GetQueueNum => 17,
            Self::SetVringEnable(_) => 18,
            Self::SendRarp(_) => 19,
            Self::NetSetMtu(_) => 20,
            Self::SetBackendReqFd => 21,
            Self::Iotlb(_) => 22,
            Self::SetVringEndian(_) => 23,
            Self::GetConfig(_) => 24,
            Self::SetConfig(_) => 25,
            Self::PostcopyAdvise => 28,
            Self::PostcopyListen => 29,
            Self::PostcopyEnd => 30,
            Self::GetInflightFd(_) => 31,
            Self::SetInflightFd(_) => 32,
            Self::ResetDevice => 34,
            Self::VringKick(_) => 35,
            Self::GetMaxMemSlots => 36,
            Self::AddMemReg(_) => 37,
            Self::RemMemReg(_) => 38,
            Self::SetStatus(_) => 39,
            Self::GetStatus => 40,
        }
    }

    /// The request's name, for logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::GetFeatures => "GET_FEATURES",
            Self::SetFeatures(_) => "SET_FEATURES",
            Self::SetOwner => "SET_OWNER",
            Self::ResetOwner => "RESET_OWNER",
            Self::SetMemTable(_) => "SET_MEM_TABLE",
            Self::SetLogBase(_) => "SET_LOG_BASE",
            Self::SetLogFd => "SET_LOG_FD",
            Self::SetVringNum(_) => "SET_VRING_NUM",
            Self::SetVringAddr(_) => "SET_VRING_ADDR",
            Self::SetVringBase(_) => "SET_VRING_BASE",
            Self::GetVringBase(_) => "GET_VRING_BASE",
            Self::SetVringKick(_) => "SET_VRING_KICK",
            Self::SetVringCall(_) => "SET_VRING_CALL",
            Self::SetVringErr(_) => "SET_VRING_ERR",
            Self::GetProtocolFeatures => "GET_PROTOCOL_FEATURES",
            Self::SetProtocolFeatures(_) => "SET_PROTOCOL_FEATURES",
            Self::GetQueueNum => "GET_QUEUE_NUM",
            Self::SetVringEnable(_) => "SET_VRING_ENABLE",
            Self::SendRarp(_) => "SEND_RARP",
            Self::NetSetMtu(_) => "NET_SET_MTU",
            Self::SetBackendReqFd => "SET_BACKEND_REQ_FD",
            Self::Iotlb(_) => "IOTLB_MSG",
            Self::SetVringEndian(_) => "SET_VRING_ENDIAN",
            Self::GetConfig(_) => "GET_CONFIG",
            Self::SetConfig(_) => "SET_CONFIG",
            Self::PostcopyAdvise => "POSTCOPY_ADVISE",
            Self::PostcopyListen => "POSTCOPY_LISTEN",
            Self::PostcopyEnd => "POSTCOPY_END",
            Self::GetInflightFd(_) => "GET_INFLIGHT_FD",
            Self::SetInflightFd(_) => "SET_INFLIGHT_FD",
            Self::ResetDevice => "RESET_DEVICE",
            Self::VringKick(_) => "VRING_KICK",
            Self::GetMaxMemSlots => "GET_MAX_MEM_SLOTS",
            Self::AddMemReg(_) => "ADD_MEM_REG",
            Self::RemMemReg(_) => "REM_MEM_REG",
            Self::SetStatus(_) => "SET_STATUS",
            Self::GetStatus => "GET_STATUS",
        }
    }

    /// The number of descriptors beside it.
    pub fn fds(&self) -> FdRule {
        match self {
            Self::SetMemTable(regions) => FdRule::Exactly(regions.len()),
            Self::SetLogBase(Some(_))
            | Self::SetLogFd
            | Self::SetBackendReqFd
            | Self::SetInflightFd(_)
            | Self::AddMemReg(_) => FdRule::Exactly(1),
            Self::SetVringKick(v) | Self::SetVringCall(v) | Self::SetVringErr(v) => {
                FdRule::Exactly(usize::from(v.has_fd))
            }
            // "For compatibility with existing incorrect implementations" (specification, REM_MEM_REG).
            Self::RemMemReg(_) | Self::SetLogBase(None) => FdRule::Optional,
            _ => FdRule::Exactly(0),
        }
    }

    /// The kind of its reply. SET_LOG_BASE has its own only with a descriptor.
    pub fn reply(&self) -> ReplyKind {
        match self {
            Self::GetFeatures
            | Self::GetProtocolFeatures
            | Self::GetVringBase(_)
            | Self::SetLogBase(Some(_))
            | Self::GetQueueNum
            | Self::Iotlb(_)
            | Self::GetConfig(_)
            | Self::PostcopyAdvise
            | Self::PostcopyEnd
            | Self::GetInflightFd(_)
            | Self::GetMaxMemSlots
            | Self::GetStatus => ReplyKind::Own,
            _ => ReplyKind::Ack,
        }
    }

    /// Appends its payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::GetFeatures
            | Self::SetOwner
            | Self::ResetOwner
            | Self::SetLogFd
            | Self::GetProtocolFeatures
            | Self::GetQueueNum
            | Self::SetBackendReqFd
            | Self::PostcopyAdvise
            | Self::PostcopyListen
            | Self::PostcopyEnd
            | Self::ResetDevice
            | Self::GetMaxMemSlots
            | Self::GetStatus => {}
            Self::SetFeatures(v) | Self::SetProtocolFeatures(v) | Self::NetSetMtu(v) | Self::SetStatus(v) => {
                v.write(out)
            }
            Self::SetMemTable(regions) => {
                out.put_u32(u32::try_from(regions.len()).unwrap_or(u32::MAX));
                out.put_u32(0);
                for r in regions {
                    r.write(out);
                }
            }
            Self::SetLogBase(Some(area)) => area.write(out),
            Self::SetLogBase(None) => out.put_u64(0),
            Self::SetVringNum(v)
            | Self::SetVringBase(v)
            | Self::GetVringBase(v)
            | Self::SetVringEnable(v)
            | Self::SetVringEndian(v)
            | Self::VringKick(v) => v.write(out),
            Self::SetVringAddr(v) => v.write(out),
            Self::SetVringKick(v) | Self::SetVringCall(v) | Self::SetVringErr(v) => v.write(out),
            Self::SendRarp(mac) => {
                out.extend(mac);
                out.extend([0; 2]);
            }
            Self::Iotlb(v) => v.write(out),
            Self::GetConfig(v) | Self::SetConfig(v) => v.write(out),
            Self::GetInflightFd(v) | Self::SetInflightFd(v) => v.write(out),
            Self::AddMemReg(v) | Self::RemMemReg(v) => {
                out.put_u64(0);
                v.write(out);
            }
        }
    }

    /// Reads the payload of the request with number `code`.
    ///
    /// # Errors
    /// [`MessageError::Unknown`], [`MessageError::Size`].
    pub fn decode(code: u32, payload: &[u8]) -> Result<Self, MessageError> {
        let wrong = MessageError::Size {
            request: code,
            size: payload.len(),
        };
        let mut r = Reader::new(payload);
        let request = Self::read(code, &mut r).ok_or(MessageError::Unknown(code))?;
        request.filter(|_| r.end().is_some()).ok_or(wrong)
    }

    /// `None`: no such request. `Some(None)`: a payload that it does not have.
    fn read(code: u32, r: &mut Reader<'_>) -> Option<Option<Self>> {
        Some(match code {
            1 => Some(Self::GetFeatures),
            2 => r.u64().map(Self::SetFeatures),
            3 => Some(Self::SetOwner),
            4 => Some(Self::ResetOwner),
            5 => mem_table(r).map(Self::SetMemTable),
            6 => log_base(r).map(Self::SetLogBase),
            7 => {
                // No payload is specified; some front ends send a number.
                let rest = r.rest().len();
                matches!(rest, 0 | 8).then_some(Self::SetLogFd)
            }
            8 => VringState::read(r).map(Self::SetVringNum),
            9 => VringAddr::read(r).map(Self::SetVringAddr),
            10 => VringState::read(r).map(Self::SetVringBase),
            11 => VringState::read(r).map(Self::GetVringBase),
            12 => VringFd::read(r).map(Self::SetVringKick),
            13 => VringFd::read(r).map(Self::SetVringCall),
            14 => VringFd::read(r).map(Self::SetVringErr),
            15 => Some(Self::GetProtocolFeatures),
            16 => r.u64().map(Self::SetProtocolFeatures),
            17 => Some(Self::GetQueueNum),
            18 => VringState::read(r).map(Self::SetVringEnable),
            19 => r.u64().map(|v| {
                let [a, b, c, d, e, f, _, _] = v.to_ne_bytes();
                Self::SendRarp([a, b, c, d, e, f])
            }),
            20 => r.u64().map(Self::NetSetMtu),
            21 => Some(Self::SetBackendReqFd),
            22 => IotlbMsg::read(r).map(Self::Iotlb),
            23 => VringState::read(r).map(Self::SetVringEndian),
            24 => ConfigSpace::read(r).map(Self::GetConfig),
            25 => ConfigSpace::read(r).map(Self::SetConfig),
            28 => Some(Self::PostcopyAdvise),
            29 => Some(Self::PostcopyListen),
            30 => Some(Self::PostcopyEnd),
            31 => Inflight::read(r).map(Self::GetInflightFd),
            32 => Inflight::read(r).map(Self::SetInflightFd),
            34 => Some(Self::ResetDevice),
            35 => VringState::read(r).map(Self::VringKick),
            36 => Some(Self::GetMaxMemSlots),
            37 => mem_region(r).map(Self::AddMemReg),
            38 => mem_region(r).map(Self::RemMemReg),
            39 => r.u64().map(Self::SetStatus),
            40 => Some(Self::GetStatus),
            _ => return None,
        })
    }
}

fn mem_table(r: &mut Reader<'_>) -> Option<Vec<MemRegion>> {
    let n = r.u32()? as usize;
    let _padding = r.u32()?;
    if n > MAX_FDS {
        return None;
    }
    (0..n).map(|_| MemRegion::read(r)).collect()
}

fn mem_region(r: &mut Reader<'_>) -> Option<MemRegion> {
    let _padding = r.u64()?;
    MemRegion::read(r)
}

fn log_base(r: &mut Reader<'_>) -> Option<Option<LogArea>> {
    let size = r.u64()?;
    Some(r.u64().map(|offset| LogArea { size, offset }))
}

/// A request of the back end, on the channel that SET_BACKEND_REQ_FD opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // each is the message of that name in the specification
pub enum BackendRequest {
    Iotlb(IotlbMsg),
    ConfigChange,
    /// A descriptor may come beside it.
    VringHostNotifier(VringArea),
    VringCall(VringState),
    VringErr(VringState),
}

impl BackendRequest {
    /// The request's number.
    pub fn code(&self) -> u32 {
        match self {
            Self::Iotlb(_) => 1,
            Self::ConfigChange => 2,
            Self::VringHostNotifier(_) => 3,
            Self::VringCall(_) => 4,
            Self::VringErr(_) => 5,
        }
    }
    /// Appends its payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Iotlb(v) => v.write(out),
            Self::ConfigChange => {}
            Self::VringHostNotifier(v) => v.write(out),
            Self::VringCall(v) | Self::VringErr(v) => v.write(out),
        }
    }
    /// Reads the payload of the request with number `code`.
    ///
    /// # Errors
    /// [`MessageError::Unknown`], [`MessageError::Size`].
    pub fn decode(code: u32, payload: &[u8]) -> Result<Self, MessageError> {
        let mut r = Reader::new(payload);
        let request = match code {
            1 => IotlbMsg::read(&mut r).map(Self::Iotlb),
            2 => Some(Self::ConfigChange),
            3 => VringArea::read(&mut r).map(Self::VringHostNotifier),
            4 => VringState::read(&mut r).map(Self::VringCall),
            5 => VringState::read(&mut r).map(Self::VringErr),
            _ => return Err(MessageError::Unknown(code)),
        };
        request.filter(|_| r.end().is_some()).ok_or(MessageError::Size {
            request: code,
            size: payload.len(),
        })
    }
}
