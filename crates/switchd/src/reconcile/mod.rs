//! The reconciler: applies the database's configuration to the switch, and writes the result back.
//!
//! One task ([`driver`]) owns the client of the database and decides what is due. The work itself may take
//! milliseconds per device, so a thread for blocking work does it, one piece at a time. A transaction in
//! progress delays no work: later changes are written with the next one.
//!
//! Only the process that holds the lock `ovs_vswitchd` of the database configures anything. While the server
//! is away, the switch keeps its configuration.

mod address;
mod apply;
mod desired;
mod driver;
mod globals;
mod host_stack;
mod kinds;
mod links;
mod mac;
mod make;
mod mtu;
mod numbers;
mod offload;
mod pmd;
mod ports;
mod qos;
mod refresh;
mod refused;
mod remotes;
mod state;
mod taps;
mod tunnels;
mod vduse;
mod vhost;
mod warnings;
mod writeback;
mod zones;

pub(crate) use apply::{OWN_PORT, port_text};
pub(crate) use desired::WithoutEffect;
pub(crate) use driver::run;
pub(crate) use kinds::datapath_name;
pub(crate) use mac::{mac_text, parse_mac};
pub(crate) use pmd::tell_processors;
pub use state::{Inventory, Item};

use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_ovsdb::Db;

use crate::switch::Switch;
use globals::Globals;
use refresh::Found;
use state::BridgeState;

/// The state that the reconciler has made so far.
pub(crate) struct Reconciler {
    switch: Arc<Switch>,
    bridges: BTreeMap<String, BridgeState>,
    globals: Globals,
    /// The sleep setting that was last logged.
    told_sleep: Option<heddle_datapath::MaxSleep>,
    vduse: vduse::Vduse,
    vhost: vhost::Vhost,
    taps: taps::Taps,
    receivers: Arc<heddle_port::Receivers>,
    host_stack: host_stack::HostStack,
    offloading: offload::Offloading,
    tunnels: tunnels::Tunnels,
    zones: zones::Zones,
    refused: refused::Refused,
    /// Warnings about the configuration.
    said: heddle_daemon::vlog::Rounds,
    /// `next_cfg` of the configuration that is in force.
    applied: Option<i64>,
}

/// The work that is due.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Due {
    reconfigure: bool,
    refresh: bool,
    /// A device changed, or a missing one may have come.
    links: bool,
    /// Changes are to be written.
    write: bool,
    /// Counters are to be written.
    counters: bool,
}

impl Reconciler {
    fn is_configured(&self) -> bool {
        self.globals != Globals::new()
    }

    fn work(&mut self, db: &Db, due: Due) -> Found {
        let mut found = Found::default();
        if due.links {
            self.read_vlans();
        }
        if due.refresh {
            found = self.refresh();
        }
        let waited_for = due.links && self.is_waiting() || due.refresh && self.lacks_descriptors();
        if due.reconfigure || found.reconfigure || waited_for {
            let mut said = std::mem::take(&mut self.said);
            said.round(|| self.reconfigure(db));
            self.said = said;
            found = Found {
                changed: true,
                reconfigure: false,
            };
        }
        found
    }
}
