//! Connections to controllers and to `ovs-ofctl`.
//!
//! **Problem.** Any number of peers speak OpenFlow to a bridge at once, each in its own version and with its
//! own role and wishes; some are called by us (`Controller` rows), some call us (`RUNDIR/BRIDGE.mgmt`).
//!
//! **Shape.** [`session`] is one peer without any socket: bytes of a message in, messages out ([`handle`],
//! [`tell`]). [`stream`] moves bytes between a session and a socket. [`listen`] accepts, [`dial`] calls with
//! back-off, and [`Manager`] is what the sessions of one bridge share: who is primary, which generation id
//! was last, who gets which event.
//!
//! **Invariants.** A malformed message is answered with its error and the connection lives; only broken
//! framing (a length below 8) and a failed negotiation end it. A peer that does not read its answers is not
//! read either; one that does not read events loses packet-ins first, and is disconnected when those that
//! wait pass a bound. No peer delays another: each has its own task, and what takes [`long`] is done in
//! pieces, or aside.

mod bundles;
mod controllers;
mod dial;
mod handle;
mod listen;
mod long;
mod manager;
mod monitors;
mod multipart;
mod outbox;
mod seal;
mod session;
mod stream;
mod tally;
mod tell;
mod wishes;

#[cfg(test)]
mod tests;

pub use bundles::bundled_bytes;
pub use controllers::Controllers;
pub use dial::{ControllerConfig, ControllerStatus, Dialer};
pub use listen::Listener;
pub use manager::Manager;
