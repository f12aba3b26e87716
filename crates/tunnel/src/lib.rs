//! Tunnels: encapsulation and decapsulation; routes and neighbours as data.

pub mod action;

pub use action::{TunnelKind, TunnelPush};
