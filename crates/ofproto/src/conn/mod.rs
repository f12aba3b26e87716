//! Connections to controllers and to `ovs-ofctl`.
//!
//! **Problem.** Any number of peers speak OpenFlow to a bridge at once, each with a version, a role and
//! settings of its own. The switch calls some of them (`Controller` rows), and others call the switch
//! (`RUNDIR/BRIDGE.mgmt`).
//!
//! **Shape.** [`session`] is one peer without any socket: bytes of a message in, messages out ([`handle`],
//! [`events`]). [`stream`] moves bytes between a session and a socket. [`listen`] accepts, [`dial`] calls
//! with back-off. The sessions of one bridge share a [`Manager`], which knows them all, hands events to them,
//! and has the last generation id.
//!
//! **Invariants.** A malformed message gets an error and the connection lives; only broken framing (a length
//! below 8) and a failed negotiation end it. While a peer does not read its replies, its requests are not
//! read either. A peer that does not read events loses packet-ins first, and is disconnected when waiting
//! events pass a bound. No peer delays another: each has its own task, and what takes [`long`] is done in
//! pieces, or aside.

mod bundles;
mod continuation_signature;
mod controllers;
mod dial;
mod events;
mod flow_dump;
mod flow_mod_counts;
mod handle;
mod listen;
mod manager;
mod monitors;
mod multipart;
mod outbox;
mod session;
mod settings;
mod stream;

#[cfg(test)]
mod tests;

pub use bundles::bundled_bytes;
pub use controllers::Controllers;
pub use dial::{ControllerConfig, ControllerStatus, Dialer};
pub use listen::Listener;
pub use manager::Manager;
