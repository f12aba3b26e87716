//! Tables, learning, translation, controller connections.
//!
//! Two halves meet here. The **control half** (`bridge`, `bond`, `conn`, `monitor`, `sampling`, `trace`)
//! changes rules and configuration. The **translation half** (`xlate`, `mac`, `snooping`) translates packets
//! that miss the datapath's caches, on any worker thread. They share only the types of [`model`]: an
//! immutable [`model::Snapshot`], which configuration changes replace as a whole, and concurrent tables of
//! rules with versions.
//!
//! Imports point down: `conn` and `trace`, `bridge`, `monitor`, `bond`, `dataplane`, `xlate`, `parts`,
//! `model`, and the modules of which `model` is made.

mod action_set;
pub mod bfd_port;
mod blocking;
pub mod bond;
mod bond_port;
pub mod bridge;
mod buckets;
pub mod conn;
pub mod coverage;
pub mod dataplane;
pub mod features;
pub mod group;
pub mod mac;
mod meter;
pub mod model;
pub mod monitor;
pub mod packet_in;
mod parts;
pub mod sampling;
pub mod shared_map;
pub mod snooping;
pub mod standby;
pub mod stats;
pub mod trace;
pub mod tunnels;
pub mod underlay;
pub mod underlay_port;
mod versioned;
pub mod xlate;

pub use bridge::{Ofproto, freed_rules};
pub use conn::bundled_bytes;

/// The version of Open vSwitch whose interfaces the switch has; scripts and controllers parse it.
pub const COMPATIBLE_VERSION: &str = "3.1.0";
