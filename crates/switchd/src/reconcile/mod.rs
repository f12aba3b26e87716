//! The reconciler: applies the database's configuration to the switch, and writes the result back.
//!
//! One task ([`driver`]) owns the client of the database and decides what is due. The work itself may take
//! milliseconds per device, so a thread for blocking work does it, one piece at a time. A transaction in
//! progress delays no work: later changes are written with the next one.
//!
//! Only the process that holds the lock `ovs_vswitchd` of the database configures anything. While the server
//! is away, the switch keeps its configuration.
//!
//! [`reconciler`] has the order of all steps. The steps are taken by one [`BridgeReconciler`] per bridge, and
//! by subsystems, one file each. Each of them owns its state, and is handed what it may read and change.
//!
//! | table of the database | read in | takes effect in | status written in |
//! | --- | --- | --- | --- |
//! | `Open_vSwitch` | `desired/mod.rs` | `globals.rs`, `pmd.rs` (workers), `offload.rs` | `writeback/mod.rs` |
//! | `Bridge`, and what becomes its `BridgeConfig` | `desired/bridge.rs`, `mirror.rs`, `ipfix.rs` | `bridge/mod.rs` (`configure`) | `writeback/bridge.rs` |
//! | `Port` | `desired/port.rs` | `bridge/mod.rs` (`push_ports`), `bridge/qos.rs` | – |
//! | `Interface` | `desired/port.rs` | `bridge/make.rs` (new ones), `bridge/ports.rs` (changed ones) | `writeback/interface.rs` |
//! | `Interface`: address, MTU, policing | `desired/port.rs` | `bridge/address.rs`, `mtu.rs`, `qos.rs` | `writeback/interface.rs` |
//! | `Interface`: `bfd`, `ofport_request` | `desired/port.rs` | `bridge/mod.rs` (`push_ports`), `bridge/numbers.rs` | `writeback/interface.rs` |
//! | `QoS`, `Queue` | `desired/port.rs` | as `Port` | – |
//! | `Interface` of a tunnel | `desired/port.rs` | `tunnels.rs`, `underlay_ports.rs` | `bridge/egress.rs` |
//! | `Controller` | `desired/controller.rs` | `bridge/remotes.rs` | `writeback/bridge.rs` |
//! | `Datapath`, `CT_Zone`, `CT_Timeout_Policy` | `desired/datapath.rs` | `zones.rs` | `writeback/datapath.rs` |
//! | `SSL` | `desired/ssl.rs` | `reconciler.rs` (`configure_switch`) | – |
//! | settings without effect | `desired/without_effect.rs` | – | – |
//! | values that make no sense, of bonds and snooping | `desired/bad_values.rs` | – | – |
//!
//! A column that the switch itself writes is in the list of its table that `writeback/mod.rs` has
//! (`NOT_CONFIG`). Otherwise each write would count as a change of the configuration.

mod bridge;
mod claims;
mod desired;
mod driver;
mod environment;
mod globals;
mod guests;
mod host_stack;
mod kinds;
mod links;
mod mac;
mod offload;
mod offload_choice;
mod pmd;
mod reconciler;
mod refused;
mod taps;
mod tunnels;
mod underlay_ports;
mod warnings;
mod writeback;
mod zones;

pub(crate) use driver::run;
pub(crate) use mac::{mac_text, parse_mac};
pub(crate) use pmd::log_processors;

use std::collections::BTreeMap;

use bridge::BridgeReconciler;

/// Bridges by name.
type Bridges = BTreeMap<String, BridgeReconciler>;
