//! Tunnels: encapsulation and decapsulation; routes and neighbours as data.

pub mod action;
pub mod config;
mod kind;
pub mod neigh;
pub mod routes;

pub use action::{TunnelKind, TunnelPush};
pub use config::TunnelConfig;
pub use kind::{TunnelType, proto};
pub use neigh::Neighbours;
pub use routes::Routes;
