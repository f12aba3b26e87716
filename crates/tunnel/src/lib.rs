//! Tunnels: encapsulation and decapsulation; routes and neighbours as data.
//!
//! [`Outer`] describes the headers before a packet and builds a [`TunnelPush`]. Its template is copied before
//! each packet, and a few fields are filled in ([`push`]). [`TunnelPop`] removes the headers and writes their
//! fields into a key ([`pop`]; faster after a packet of the same peer: [`outer_cache`]). STT has frames and
//! segments of its own ([`stt`]). All of this touches only a packet's private bytes.

pub mod action;
pub mod config;
pub mod join;
mod kind;
pub mod neigh;
pub mod options;
pub mod outer;
pub mod outer_cache;
pub mod pop;
mod pop_error;
pub mod push;
pub mod routes;
pub mod stt;
mod template;
#[cfg(test)]
mod tests;
pub mod too_big;

pub use action::{TunnelKind, TunnelPop, TunnelPush};
pub use config::TunnelConfig;
pub use kind::{TunnelType, proto};
pub use neigh::Neighbours;
pub use options::OptionTable;
pub use outer::{Encap, Gbp, Outer, OuterError};
pub use pop::Popped;
pub use pop_error::PopError;
pub use push::{Inner, PushError};
pub use routes::Routes;
pub use too_big::TooBig;
