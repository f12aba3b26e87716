//! The messages (specification, "Message Specification"): pure bytes here, descriptors beside them.
//!
//! **Problem.** Each side reads values that another process wrote: a length, a number of regions, an index, a
//! wrong number of descriptors. None of this may make the reader panic or hold unbounded memory.
//!
//! **Invariants.** A request from [`Request::decode`] is well formed in itself: the payload has exactly the
//! size that its request has, counts match, indices fit their fields. The session checks whether the request
//! is valid in its state. `decode(encode(x)) == x`.
//!
//! **Costs.** Control plane: allocation where a message has lists. Numbers are in the machine's byte order.

mod features;
mod header;
mod payload;
mod reply;
mod request;
mod socket;
mod wire;

#[cfg(test)]
pub(crate) mod tests;

pub use features::ProtocolFeatures;
pub use header::{HEADER_LEN, Header, HeaderFlags};
pub use payload::{
    Access, ConfigFlags, ConfigSpace, Inflight, IotlbKind, IotlbMsg, LogArea, MAX_CONFIG, MemRegion,
    VringAddr, VringArea, VringFd, VringState,
};
pub use reply::Reply;
pub use request::{BackendRequest, FdRule, ReplyKind, Request};
pub use socket::{Connection, Frame, MAX_UNSENT, Received, SocketError};

/// Maximum number of bytes of a payload. The longest message is a memory table of [`MAX_FDS`] regions.
pub const MAX_PAYLOAD: usize = 4096;
/// Maximum number of descriptors beside one message.
pub const MAX_FDS: usize = 32;

/// Why a message is refused. The sender cannot be trusted to have meant anything by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The header's version is not 1.
    #[error("message header of version {0}")]
    Version(u32),
    /// The header announces more than [`MAX_PAYLOAD`].
    #[error("message {request} announces {size} bytes of payload")]
    TooLong {
        /// The request's number.
        request: u32,
        /// Bytes announced.
        size: u32,
    },
    /// No such request.
    #[error("unknown request {0}")]
    Unknown(u32),
    /// The payload's size is not the request's.
    #[error("request {request} has {size} bytes of payload")]
    Size {
        /// The request's number.
        request: u32,
        /// Bytes that came.
        size: usize,
    },
    /// A field has a value that the request does not know.
    #[error("request {request} has {value:#x} as its {field}")]
    Field {
        /// The request's number.
        request: u32,
        /// The field's name.
        field: &'static str,
        /// The field's value.
        value: u64,
    },
    /// The number of descriptors is not the request's.
    #[error("request {request} came with {fds} descriptors")]
    Fds {
        /// The request's number.
        request: u32,
        /// Descriptors that came.
        fds: usize,
    },
}
