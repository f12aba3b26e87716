//! The back end: the switch's side of vhost-user.
//!
//! [`Control`] serves sockets, each with a [`Device`](heddle_virtio::device::Device), which a port
//! implements. A front end that connects gets a session. The session turns messages into calls of the device:
//! start or stop a ring, change the memory, reset or migrate the guest.
//!
//! * **Sockets.** A server ([`Role::Server`]) replaces a stale socket file and leaves a live one alone. A
//!   client tries to connect about once a second, for ever. An endpoint serves one front end at a time.
//! * **Restarts.** A split ring contains its position. A packed ring's position is kept in the front end's
//!   inflight area or in a journal (a file, so that it survives a killed process). In both cases, the switch
//!   takes the chains in flight again.
//! * **Not implemented:** postcopy migration (its feature is not offered; its messages are refused),
//!   cross-endian rings, in-band notifications.

mod control;
mod endpoint;
mod link;
mod listen;
mod pace;
mod quota;
mod session;

#[cfg(test)]
mod tests;

pub use control::{Control, MAX_SOCKETS, SocketId};

use crate::message::ProtocolFeatures;
use std::path::PathBuf;

/// The side that makes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The front end connects to a socket of ours (OVS's `dpdkvhostuser`).
    Server,
    /// We connect to a socket of the front end's (OVS's `dpdkvhostuserclient`).
    Client,
}

/// A socket to be served.
#[derive(Clone, Debug)]
pub struct Socket {
    /// The path of the socket's file.
    pub path: PathBuf,
    /// The side that connects.
    pub role: Role,
    /// A file that keeps the positions of packed rings across processes; made, with its directory, when such
    /// a ring starts. `None`: across connections only.
    pub journal: Option<PathBuf>,
}

/// The protocol features that sessions implement. CONFIG is offered where the device has a configuration
/// space.
pub const PROTOCOL: ProtocolFeatures = ProtocolFeatures::MQ
    .union(ProtocolFeatures::LOG_SHMFD)
    .union(ProtocolFeatures::RARP)
    .union(ProtocolFeatures::REPLY_ACK)
    .union(ProtocolFeatures::MTU)
    .union(ProtocolFeatures::BACKEND_REQ)
    .union(ProtocolFeatures::CONFIG)
    .union(ProtocolFeatures::INFLIGHT_SHMFD)
    .union(ProtocolFeatures::RESET_DEVICE)
    .union(ProtocolFeatures::CONFIGURE_MEM_SLOTS)
    .union(ProtocolFeatures::STATUS);
