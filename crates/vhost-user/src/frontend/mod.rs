//! The front end: a virtual machine monitor's side of vhost-user, for load generators and tests.
//!
//! * [`Frontend`]: one connection; sends requests, waits (bounded) for replies, negotiates.
//! * [`Listener`]: where back ends connect to us (a back end in client mode).
//! * [`Ram`]: memory that both sides map.
//! * [`Nic`]: a network device of a pretended guest, with memory, rings and their descriptors. It outlives
//!   connections: after a back end's death the next one gets it, with the rings at their positions.
//!
//! The front end works against any back end; Debian's OVS-DPDK is the reference that it is tested with.
//!
//! Thread-safety: plain values, used by one thread at a time. No call waits longer than the time that the
//! connection was given.

mod listener;
mod nic;
mod ram;
mod session;
#[cfg(test)]
mod tests;

pub use listener::Listener;
pub use nic::{Nic, NicConfig, NicQueue};
pub use ram::{HugePages, Ram};
pub use session::{Frontend, Offered};

use crate::message::{MessageError, SocketError};
use core::time::Duration;
use heddle_virtio::Features;
use heddle_virtio::mem::MemError;
use heddle_virtio::ring::RingError;

/// Why this connection of the front end is of no further use.
#[derive(Debug, thiserror::Error)]
pub enum FrontendError {
    /// The connection is broken, or the back end's bytes are no message.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The back end's reply does not fit the request.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The back end closed the connection.
    #[error("the back end closed the connection")]
    Closed,
    /// The back end closed the connection before its first reply.
    #[error(
        "the switch closed the connection before its first answer: it serves another front end at this socket, or has this one wait \
         after a fault (its log and Interface.status say which)"
    )]
    TurnedAway,
    /// No reply in time.
    #[error("no reply to {what} within {after:?}")]
    Timeout {
        /// The request, or the event that was waited for.
        what: &'static str,
        /// The timeout.
        after: Duration,
    },
    /// The back end refuses the request.
    #[error("the back end refuses {what}: {code}")]
    Refused {
        /// The request.
        what: &'static str,
        /// The back end's error number; each back end has its own.
        code: u64,
    },
    /// A reply to another request.
    #[error("reply {got} to {what}")]
    Unexpected {
        /// The request.
        what: &'static str,
        /// The number of the request in the reply.
        got: u32,
    },
    /// The back end lacks a needed feature.
    #[error("the back end does not offer {0:?}")]
    Lacks(Features),
    /// Fewer queues than are needed.
    #[error("the back end has {0} queue pairs")]
    Queues(u64),
    /// Memory cannot be had or mapped.
    #[error("memory: {0}")]
    Memory(#[source] std::io::Error),
    /// The memory is laid out wrongly.
    #[error("memory: {0}")]
    Layout(#[from] MemError),
    /// A ring cannot be set up.
    #[error("ring: {0}")]
    Ring(#[from] RingError),
    /// The socket's path.
    #[error("{path}: {error}")]
    Path {
        /// The path.
        path: String,
        /// The system's error.
        #[source]
        error: std::io::Error,
    },
}

/// Shorthand.
pub type Result<T> = core::result::Result<T, FrontendError>;
