//! Tables, learning, translation, controller connections.
//!
//! Two halves meet here. The **control half** (`bridge`, `ofproto`, `conn`, `event`) changes rules and
//! configuration. The **translation half** (`xlate`, `mac`, `trace`) translates packets that miss the
//! datapath's caches, on any worker thread. They share only the types of [`model`]: an immutable
//! [`model::Snapshot`], which configuration changes replace as a whole, and concurrent tables of rules with
//! versions.

mod aside;
pub mod bridge;
pub mod conn;
pub mod coverage;
pub mod event;
pub mod features;
pub mod group;
pub mod mac;
pub mod model;
pub mod monitor;
pub mod ofproto;
mod parts;
pub mod sampling;
pub mod shared_map;
pub mod trace;
pub mod tunnels;
pub mod underlay;
mod versioned;
pub mod xlate;

pub use bridge::freed_rules;
pub use conn::bundled_bytes;
pub use ofproto::Ofproto;

/// The version of Open vSwitch whose interfaces the switch has; scripts and controllers parse it.
pub const COMPATIBLE_VERSION: &str = "3.1.0";
