//! The twelve bytes in front of each message.

use super::{MAX_PAYLOAD, MessageError};

/// Bytes of a header.
pub const HEADER_LEN: usize = 12;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;

bitflags::bitflags! {
    /// Flags of a header besides its version.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct HeaderFlags: u32 {
        /// The message is a reply.
        const REPLY = 1 << 2;
        /// The sender waits for a reply (with [`super::ProtocolFeatures::REPLY_ACK`]).
        const NEED_REPLY = 1 << 3;
    }
}

/// A message's header. Flags that the specification does not name are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The request's number; a reply has the number of its request.
    pub request: u32,
    /// Flags.
    pub flags: HeaderFlags,
    /// Bytes of payload that follow, at most [`MAX_PAYLOAD`].
    pub size: u32,
}

impl Header {
    /// The header of a payload of `len` bytes.
    ///
    /// # Panics
    /// When `len` is above [`MAX_PAYLOAD`]: a message of this crate is never that long.
    pub fn new(request: u32, flags: HeaderFlags, len: usize) -> Self {
        assert!(len <= MAX_PAYLOAD, "messages are built within the bound");
        #[allow(clippy::cast_possible_truncation)] // at most MAX_PAYLOAD
        let size = len as u32;
        Self { request, flags, size }
    }
    /// The header's bytes.
    pub fn encode(self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        let flags = self.flags.bits() | VERSION;
        #[expect(clippy::indexing_slicing, reason = "three words are the header's bytes")]
        for (at, v) in [(0, self.request), (4, flags), (8, self.size)] {
            out[at..at + 4].copy_from_slice(&v.to_ne_bytes());
        }
        out
    }
    /// Reads it.
    ///
    /// # Errors
    /// [`MessageError::Version`], [`MessageError::TooLong`].
    pub fn decode(bytes: [u8; HEADER_LEN]) -> Result<Self, MessageError> {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        let request = u32::from_ne_bytes([a, b, c, d]);
        let flags = u32::from_ne_bytes([e, f, g, h]);
        let size = u32::from_ne_bytes([i, j, k, l]);
        if flags & VERSION_MASK != VERSION {
            return Err(MessageError::Version(flags & VERSION_MASK));
        }
        if size as usize > MAX_PAYLOAD {
            return Err(MessageError::TooLong { request, size });
        }
        Ok(Self {
            request,
            flags: HeaderFlags::from_bits_truncate(flags),
            size,
        })
    }
    /// Whether the message is a reply.
    pub fn is_reply(self) -> bool {
        self.flags.contains(HeaderFlags::REPLY)
    }
    /// Whether the sender waits for a reply.
    pub fn needs_reply(self) -> bool {
        self.flags.contains(HeaderFlags::NEED_REPLY)
    }
}
