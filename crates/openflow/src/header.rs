//! The header that starts every message, and the framing that it gives a stream.
//!
//! Eight bytes: version, type, length of the whole message (so 8 to 65535), transaction id
//! (OpenFlow 1.0 §5.1, unchanged since).

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;

/// A message's header. The version is kept as it came: a hello may name one that is not known here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Version byte.
    pub version: u8,
    /// Message type; its meaning depends on the version.
    pub msg_type: u8,
    /// Length of the message, header included.
    pub length: u16,
    /// Transaction id: a reply carries its request's.
    pub xid: u32,
}

/// A length below eight: the stream cannot be followed any further and must be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("message length {0} is less than the header's 8 bytes")]
pub struct FramingError(pub u16);

impl Header {
    /// Reads a header; `None` where there are fewer than eight bytes.
    pub fn parse(bytes: &[u8]) -> Option<Header> {
        let [version, msg_type, l0, l1, x0, x1, x2, x3] = *bytes.first_chunk::<8>()?;
        Some(Header {
            version,
            msg_type,
            length: u16::from_be_bytes([l0, l1]),
            xid: u32::from_be_bytes([x0, x1, x2, x3]),
        })
    }

    /// The eight bytes.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let (l, x) = (self.length.to_be_bytes(), self.xid.to_be_bytes());
        [self.version, self.msg_type, l[0], l[1], x[0], x[1], x[2], x[3]]
    }
}

/// Length of the message at the start of a receive buffer: `Ok(None)` until its header is complete. The
/// message itself may still be incomplete.
pub fn frame_len(buffer: &[u8]) -> Result<Option<usize>, FramingError> {
    match Header::parse(buffer) {
        None => Ok(None),
        Some(h) if usize::from(h.length) < HEADER_LEN => Err(FramingError(h.length)),
        Some(h) => Ok(Some(h.length.into())),
    }
}
