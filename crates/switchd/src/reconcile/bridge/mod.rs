//! One bridge: its ports, their interfaces, its address, its controllers.
//!
//! A bridge's reconciler owns all of that. The [`Environment`] is handed to it for reading; the tunnels of
//! all bridges are handed to it for changes. After a change of the database these steps are taken, each for
//! all bridges before the next: [`BridgeReconciler::remove_ports`], [`BridgeReconciler::add_ports`],
//! [`BridgeReconciler::configure`]. [`BridgeReconciler::refresh`] reads the devices about once a second.

mod address;
mod bonds;
mod egress;
mod iface;
mod make;
mod mtu;
mod numbers;
mod ports;
mod qos;
mod refresh;
mod remotes;
mod standby;

pub(super) use iface::{Body, Failure, Iface, InterfaceError};
pub(super) use refresh::Changes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heddle_ofproto::Ofproto;
use heddle_ofproto::bridge::{Bridge, BridgeConfig, PortBundleConfig, PortConfig, TableConfig};
use heddle_ofproto::conn::{Controllers, Listener, Manager};
use heddle_ofproto::snooping::PortSnooping;
use heddle_openflow::Port as OfPort;
use heddle_stream::Passive;

use super::desired::{BridgeRow, InterfaceRow, Smap};
use super::environment::Environment;
use super::tunnels::Tunnels;
use bonds::ConfiguredBond;
use numbers::Numbers;

/// One bridge that exists.
pub(super) struct BridgeReconciler {
    pub(super) row: Arc<BridgeRow>,
    pub(super) bridge: Arc<Bridge>,
    /// Interfaces by name.
    pub(super) ifaces: BTreeMap<String, Iface>,
    /// Interfaces that wait for another number.
    parked: BTreeMap<String, Iface>,
    /// Failures by interface name.
    pub(super) failures: BTreeMap<String, Failure>,
    numbers: Numbers,
    mac: [u8; 6],
    pub(super) datapath_id: Option<u64>,
    /// The MTU that internal ports follow.
    min_mtu: Option<u32>,
    /// The last configuration of the bridge and its tables.
    configured: Option<(BridgeConfig, BTreeMap<u8, TableConfig>)>,
    /// The bundles and ports that OpenFlow last received.
    pushed: Option<(Vec<PortBundleConfig>, Vec<PortConfig>)>,
    /// Pairs of interfaces that are one port, by primary.
    standbys: BTreeMap<String, standby::Pair>,
    /// Primaries of standbys, whether or not their devices exist.
    primaries: BTreeMap<String, String>,
    /// Bonds by port.
    bonds: BTreeMap<String, ConfiguredBond>,
    /// Packets that its mirrors had copied when that was last written.
    mirrored: u64,
    pub(super) controllers: Controllers,
    /// Sockets at which `ovs-ofctl` and others call.
    listeners: BTreeMap<Passive, Listener>,
}

impl BridgeReconciler {
    /// Makes a bridge without ports.
    pub(super) fn new(row: BridgeRow, env: &Environment) -> BridgeReconciler {
        let mac = row.default_mac();
        let id = address::datapath_id(&row, mac);
        let config = row.config(id, env.globals.vlan_limit, env.globals.bundle_idle_s);
        let bridge: Arc<Bridge> = env.switch.ofproto.add_bridge(&row.name, config);
        BridgeReconciler {
            controllers: Controllers::new(Manager::new(bridge.clone(), env.switch.tls.clone())),
            bridge,
            row: Arc::new(row),
            ifaces: BTreeMap::new(),
            parked: BTreeMap::new(),
            failures: BTreeMap::new(),
            numbers: Numbers::default(),
            mac,
            datapath_id: None,
            min_mtu: None,
            configured: None,
            pushed: None,
            standbys: BTreeMap::new(),
            primaries: BTreeMap::new(),
            bonds: BTreeMap::new(),
            mirrored: 0,
            listeners: BTreeMap::new(),
        }
    }

    /// Takes the bridge's changed row; the steps that follow apply it.
    pub(super) fn set_row(&mut self, row: BridgeRow) {
        self.row = Arc::new(row);
        self.failures.clear();
    }

    /// Whether an interface of this name exists.
    pub(super) fn has_interface(&self, name: &str) -> bool {
        self.ifaces.contains_key(name) || self.parked.contains_key(name)
    }

    /// The row of an interface that exists.
    pub(super) fn row_of(&self, name: &str) -> Option<&InterfaceRow> {
        self.row.interface(name).map(|(_, i)| i)
    }

    /// Removes all interfaces for good.
    pub(super) fn remove(&mut self, env: &Environment, tunnels: &mut Tunnels) {
        self.forget_bonds(&env.switch.ofproto, &BTreeMap::new());
        for iface in std::mem::take(&mut self.ifaces).into_values() {
            self.remove_iface(iface, env, tunnels);
        }
    }

    /// Lets go of all interfaces, whose devices another process has from now on.
    pub(super) fn take_down(&mut self, env: &Environment, tunnels: &mut Tunnels) {
        self.forget_bonds(&env.switch.ofproto, &BTreeMap::new());
        for iface in std::mem::take(&mut self.ifaces).into_values() {
            self.take_iface_down(&iface, env, tunnels);
        }
    }

    /// Configures the bridge, whose ports exist, and shows it to controllers.
    pub(super) fn configure(&mut self, env: &Environment) {
        let globals = &env.globals;
        self.set_addresses();
        self.follow_mtu(&env.switch.datapath);
        self.choose_pairs();
        self.limit_rates(&env.switch.datapath);
        let id = address::datapath_id(&self.row, self.mac);
        let another = self.datapath_id.is_some_and(|old| old != id);
        if self.datapath_id != Some(id) {
            log::info!(target: "bridge", "bridge {}: using datapath ID {id:016x}", self.row.name);
            self.datapath_id = Some(id);
        }
        let mut config = self.row.config(id, globals.vlan_limit, globals.bundle_idle_s);
        config.has_controllers &= !globals.restore_wait;
        self.set_config(config);
        if another {
            // OpenFlow has no message for it: each controller has to read it again.
            self.bridge.reconnect_controllers();
        }
        self.push_ports(&env.switch.ofproto);
        self.set_remotes(env);
    }

    /// Configures the bridge and its tables. An unchanged bridge is not called: a client that changes a
    /// million of its rules would delay all other changes of the database.
    fn set_config(&mut self, config: BridgeConfig) {
        let now = (config, self.row.tables.clone());
        if self.configured.as_ref() == Some(&now) {
            return;
        }
        let (config, tables) = now.clone();
        if self.bridge.config() != config {
            self.bridge.configure(config);
        }
        self.bridge.configure_tables(tables);
        self.configured = Some(now);
    }

    /// Passes ports and bundles to OpenFlow, if they have changed: each cached flow is then checked again.
    fn push_ports(&mut self, of: &Ofproto) {
        for iface in self.ifaces.values_mut() {
            let settings = self.row.interface(&iface.name).map(|(_, row)| &row.bfd);
            iface.follow_session(settings.unwrap_or(&Smap::default()), of, self.bridge.id);
        }
        let bonds = self.follow_bonds(of);
        self.follow_standbys(of);
        let shown = || self.ifaces.values().filter(|i| !self.is_standby(&i.name));
        let with_members: BTreeSet<&str> = shown().map(|i| i.port.as_str()).collect();
        let bundles: Vec<PortBundleConfig> = self
            .row
            .ports
            .values()
            .filter(|p| with_members.contains(p.name.as_str()))
            .map(|p| PortBundleConfig {
                bond: bonds.get(&p.name).cloned(),
                ..p.bundle.clone()
            })
            .collect();
        let ports: Vec<PortConfig> = shown()
            .map(|i| {
                let mut config = i.config(bonds.get(&i.port));
                self.pair_up(&mut config);
                config
            })
            .collect();
        let now = Some((bundles.clone(), ports.clone()));
        let differs = self.pushed != now;
        if differs {
            self.bridge.set_ports(bundles, ports);
        }
        // A bond without members is in no bundle.
        self.forget_bonds(of, &bonds);
        if !differs {
            return;
        }
        // Addresses learned in VLANs that a port has left would misforward packets.
        let before = std::mem::replace(&mut self.pushed, now);
        let before = before.iter().flat_map(|(bundles, _)| bundles);
        // A bond is of no account: its members carry the same VLANs. Nor are settings of multicast snooping.
        let bare = |b: &PortBundleConfig| PortBundleConfig {
            bond: None,
            snooping: PortSnooping::default(),
            ..b.clone()
        };
        let changed = before.filter(|old| {
            let row = self.row.ports.get(&old.name);
            row.is_some_and(|p| bare(&p.bundle) != bare(old))
        });
        for old in changed {
            for iface in self.ifaces.values().filter(|i| i.port == old.name) {
                self.bridge.mac.flush_port(iface.no);
            }
            self.bridge.flush_snooped(&old.name);
        }
    }

    /// The interface with that number.
    fn by_number(&self, no: OfPort) -> Option<&Iface> {
        self.ifaces.values().find(|i| i.no == no)
    }
}
