//! Protocol errors: their meanings, their numbers in each version, and the messages that carry them.
//!
//! The numbers of one error differ between versions, and some errors exist in some versions only; Nicira's
//! and ONF's extensions fill gaps. [`ErrorKind`] is the meaning, `error/table.rs` the numbers. An error
//! without a number in a version is sent as Nicira's "unencodable error".

mod table;

use crate::header::Header;
use crate::version::Version;
pub use table::ErrorKind;

/// Experimenter id of Nicira's extensions.
pub const NX_VENDOR: u32 = 0x0000_2320;
/// Experimenter id of the Open Networking Foundation's extensions.
pub const ONF_VENDOR: u32 = 0x4f4e_4600;

/// Error type of a "Nicira extended error" in 1.0 and 1.1.
const NXET_VENDOR: u16 = 0xb0c2;
/// Experimenter error type of 1.2 and later.
const OFPET12_EXPERIMENTER: u16 = 0xffff;
/// Longest part of the offending message that an error carries. All of it is sent, as in Open vSwitch, if the
/// error fits into a message. The specification requires at least 64 bytes.
const MAX_DATA: usize = u16::MAX as usize - 32;

/// Numbers of an error in a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Numbers {
    /// Standard: type and code.
    Of(u16, u16),
    /// Nicira's in 1.0 and 1.1: type and code within the vendor's data.
    NxPair(u16, u16),
    /// Nicira's in 1.2 and later: experimenter type.
    Nx(u16),
    /// ONF's: experimenter type.
    Onf(u16),
}

impl Numbers {
    /// Experimenter (0: standard), type, code.
    fn raw(self) -> (u32, u16, u16) {
        match self {
            Numbers::Of(t, c) => (0, t, c),
            Numbers::NxPair(t, c) => (NX_VENDOR, t, c),
            Numbers::Nx(t) => (NX_VENDOR, t, 0),
            Numbers::Onf(t) => (ONF_VENDOR, t, 0),
        }
    }
}

/// A protocol error with the start of the message that it is about.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", kind.name())]
pub struct OfError {
    /// Meaning of the error.
    pub kind: ErrorKind,
    /// First bytes of the offending message (or the text of a failed hello).
    pub data: Vec<u8>,
}

impl OfError {
    /// An error about `message`, of which as much is kept as an error can carry.
    pub fn new(kind: ErrorKind, message: &[u8]) -> OfError {
        OfError {
            kind,
            data: message.iter().copied().take(MAX_DATA).collect(),
        }
    }

    /// The whole error message in `version`.
    pub fn encode(&self, version: Version, xid: u32) -> Vec<u8> {
        let numbers = self
            .kind
            .numbers(version)
            .or_else(|| ErrorKind::BadRequestUnencodableError.numbers(version))
            .expect("the fallback has numbers in every version");
        let mut body = Vec::with_capacity(12 + self.data.len());
        let mut put = |bytes: &[u8]| body.extend_from_slice(bytes);
        let (vendor, ty, code) = numbers.raw();
        match numbers {
            Numbers::Of(..) => {
                put(&ty.to_be_bytes());
                put(&code.to_be_bytes());
            }
            Numbers::NxPair(..) => {
                put(&NXET_VENDOR.to_be_bytes());
                put(&[0, 0]);
                put(&vendor.to_be_bytes());
                put(&ty.to_be_bytes());
                put(&code.to_be_bytes());
            }
            Numbers::Nx(..) | Numbers::Onf(..) => {
                put(&OFPET12_EXPERIMENTER.to_be_bytes());
                put(&ty.to_be_bytes());
                put(&vendor.to_be_bytes());
            }
        }
        let room = usize::from(u16::MAX) - 8 - body.len();
        body.extend(self.data.iter().take(room));
        let length = u16::try_from(8 + body.len()).expect("cut to fit above");
        let mut out = Header {
            version: version.wire(),
            msg_type: 1,
            length,
            xid,
        }
        .to_bytes()
        .to_vec();
        out.append(&mut body);
        out
    }
}

impl ErrorKind {
    fn numbers(self, version: Version) -> Option<Numbers> {
        let v = version.wire();
        self.ranges()
            .iter()
            .find(|(lo, hi, _)| (*lo..=*hi).contains(&v))
            .map(|r| r.2)
    }

    /// Experimenter (0 for a standard error), type and code in `version`; `None`: the version has no number
    /// for the error.
    pub fn code(self, version: Version) -> Option<(u32, u16, u16)> {
        self.numbers(version).map(Numbers::raw)
    }

    /// The error that these numbers mean in `version`.
    pub fn from_code(version: Version, raw: (u32, u16, u16)) -> Option<ErrorKind> {
        Self::ALL.iter().copied().find(|k| k.code(version) == Some(raw))
    }

    /// The error about `message`.
    pub fn about(self, message: &[u8]) -> OfError {
        OfError::new(self, message)
    }
}

/// Experimenter (0: standard), type, code.
pub(crate) type RawCode = (u32, u16, u16);

/// Splits an error message's body into its raw numbers and the data that follows them.
pub(crate) fn parse_body(version: u8, body: &[u8]) -> Option<(RawCode, &[u8])> {
    let (head, rest) = body.split_first_chunk::<4>()?;
    let (t, c) = (
        u16::from_be_bytes([head[0], head[1]]),
        u16::from_be_bytes([head[2], head[3]]),
    );
    if t == NXET_VENDOR && c == 0 && version <= Version::V11.wire() {
        let (v, rest) = rest.split_first_chunk::<4>()?;
        let (n, rest) = rest.split_first_chunk::<4>()?;
        let pair = (u16::from_be_bytes([n[0], n[1]]), u16::from_be_bytes([n[2], n[3]]));
        return Some(((u32::from_be_bytes(*v), pair.0, pair.1), rest));
    }
    if t == OFPET12_EXPERIMENTER && version >= Version::V12.wire() {
        let (v, rest) = rest.split_first_chunk::<4>()?;
        return Some(((u32::from_be_bytes(*v), c, 0), rest));
    }
    Some(((0, t, c), rest))
}

/// A message that cannot be decoded: the error to reply with, and the header to reply to.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot decode message of type {}: {error}", header.msg_type)]
pub struct DecodeError {
    /// The message's header.
    pub header: Header,
    /// The error to reply with.
    pub error: OfError,
}

/// A message that a version cannot carry.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    /// The version has no such message, field or value.
    #[error("{what} cannot be encoded in {}", version.name())]
    NotInVersion {
        /// The message, field or value.
        what: &'static str,
        /// The version.
        version: Version,
    },
    /// The encoded message is longer than 65535 bytes and cannot be split.
    #[error("{0} is longer than a message can be")]
    TooLong(&'static str),
}
