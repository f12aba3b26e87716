//! Tunnels: encapsulation and decapsulation; routes and neighbours as data.
//!
//! [`Outer`] says what goes before a packet and becomes a [`TunnelPush`], whose template is written before
//! each packet with a few fields filled in ([`push`]). [`TunnelPop`] takes the headers off and says what
//! they told ([`pop`]; quicker after a packet of the same end: [`seen`]). STT has frames and segments of its
//! own ([`stt`]). All work on a packet's private bytes alone.

pub mod action;
pub mod config;
pub mod join;
mod kind;
pub mod neigh;
pub mod options;
pub mod outer;
pub mod pop;
pub mod push;
pub mod routes;
pub mod seen;
pub mod stt;
#[cfg(test)]
mod tests;

pub use action::{TunnelKind, TunnelPop, TunnelPush};
pub use config::TunnelConfig;
pub use kind::{TunnelType, proto};
pub use neigh::Neighbours;
pub use options::OptionTable;
pub use outer::{Encap, Gbp, Outer, OuterError};
pub use pop::{PopError, Popped};
pub use push::{Inner, PushError};
pub use routes::Routes;
