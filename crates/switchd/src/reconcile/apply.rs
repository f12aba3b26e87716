//! Applies the configuration to the switch: only differences are changed.
//!
//! The order is Open vSwitch's. First, unwanted things are removed from all bridges, since new ones may need
//! their names and numbers. Then bridges and ports are added. Then each bridge is configured as a whole and
//! shown to controllers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use heddle_datapath::DatapathError;
use heddle_datapath_api::PortNo;
use heddle_ofproto::bridge::Bridge;
use heddle_ofproto::conn::{Controllers, Manager};
use heddle_ofproto::features::Features;
use heddle_openflow::Port as OfPort;
use heddle_ovsdb::Db;

use super::desired::{self, BridgeRow, Desired};
use super::kinds;
use super::numbers::Numbers;
use super::state::{Body, BridgeState, Iface, Inventory};
use super::{Reconciler, mac};

/// The number of a datapath's own port.
pub(crate) const OWN_PORT: PortNo = PortNo(0);

impl Reconciler {
    /// Applies the database's configuration to the switch.
    pub(super) fn reconfigure(&mut self, db: &Db) {
        heddle_daemon::coverage::coverage!("bridge_reconfigure");
        let desired = Desired::read(db);
        let globals = self.globals.renewed(&desired.other_config);
        globals.apply(&self.globals, &self.switch.datapath);
        self.switch.ofproto.pipeline().set_restoring(globals.restore_wait);
        self.globals = globals;
        {
            let mut known = self.switch.without_effect.lock();
            desired::tell(&known, &desired.without_effect);
            known.clone_from(&desired.without_effect);
        }
        if let Some(metrics) = self.switch.metrics.get() {
            metrics.configure(desired.other_config.get("heddle-metrics").unwrap_or_default());
        }
        self.decide_offload();
        let keys = desired.ssl.unwrap_or_else(|| self.switch.options.ssl.settings());
        self.switch.tls.configure(keys);

        self.remove_bridges(&desired.bridges);
        for (name, row) in &desired.bridges {
            if let Some(state) = self.bridges.get_mut(name) {
                state.row = row.clone();
                state.failures.clear();
            }
        }
        for name in self.names() {
            self.remove_ports(&name);
        }
        for row in desired.bridges.into_values() {
            if !self.bridges.contains_key(&row.name) {
                self.add_bridge(row);
            }
        }
        self.own_port();
        self.find_taps();
        self.prepare_filters();
        self.prepare_receivers();
        for name in self.names() {
            self.add_ports(&name);
        }
        self.receivers.clear();
        self.taps.settle();
        self.release_devices();
        self.apply_zones(&desired.datapaths);
        for name in self.names() {
            self.finish(&name);
        }
        self.assign_queues();
        self.find_left_devices();
        self.vduse.settled();
        self.confirm_offload();
        if !self.bridges.is_empty() {
            self.globals
                .tell_sleep(&mut self.told_sleep, &self.switch.datapath);
        }
        self.applied = desired.next_cfg;
        self.update_inventory();
    }

    /// Assigns receive queues to workers, now that all ports are there.
    pub(super) fn assign_queues(&self) {
        if let Err(error) = self.switch.datapath.assign_queues() {
            log::error!(target: "dpif_netdev", "receive queues could not be assigned: {error}");
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.bridges.keys().cloned().collect()
    }

    /// Takes all bridges down: another process has taken over, and has their devices from now on.
    pub(super) fn clear(&mut self) {
        for name in self.names() {
            let Some(mut state) = self.bridges.remove(&name) else {
                continue;
            };
            for iface in std::mem::take(&mut state.ifaces).into_values() {
                self.take_down(&mut state, iface);
            }
            self.switch.ofproto.remove_bridge(&name);
        }
        self.taps.let_go();
        self.update_inventory();
    }

    fn remove_bridges(&mut self, wanted: &BTreeMap<String, BridgeRow>) {
        for name in self.names() {
            let same = |state: &BridgeState| {
                wanted
                    .get(&name)
                    .is_some_and(|row| row.datapath_type == state.row.datapath_type)
            };
            if self.bridges.get(&name).is_some_and(same) {
                continue;
            }
            let Some(mut state) = self.bridges.remove(&name) else {
                continue;
            };
            for iface in std::mem::take(&mut state.ifaces).into_values() {
                self.remove_iface(&mut state, iface);
            }
            self.switch.ofproto.remove_bridge(&name);
        }
    }

    /// Removes an interface from the datapath for good; its number and its name are free then.
    pub(super) fn remove_iface(&self, state: &mut BridgeState, iface: Iface) {
        if let Some((device, _)) = iface.device() {
            device.forget();
        }
        self.take_down(state, iface);
    }

    fn take_down(&self, state: &mut BridgeState, iface: Iface) {
        // The device ends with its last handle, and commands may hold one.
        self.switch.inventory.write().interfaces.remove(&iface.name);
        self.switch.ofproto.monitor().remove(&iface.name);
        let underlay = self.switch.ofproto.pipeline().underlay();
        underlay.routes.remove_addresses(&iface.name);
        if let Some((_, no)) = iface.device()
            && let Err(error) = self.switch.datapath.del_port(no)
        {
            log::warn!(target: "bridge", "bridge {}: interface {}: {error}", state.row.name, iface.name);
        }
        if let Body::Tunnel(_) = iface.body {
            self.remove_tunnel(&iface.name);
        }
        state.numbers.give_back(iface.no, self.switch.clock.now_ms());
        log::info!(
            target: "bridge",
            "bridge {}: deleted interface {} on port {}", state.row.name, iface.name, port_text(iface.no)
        );
    }

    fn add_bridge(&mut self, row: BridgeRow) {
        let name = row.name.clone();
        if !kinds::datapath_types(&self.switch.options).contains(&row.datapath_type.as_str()) {
            let kind = &row.datapath_type;
            log::warn!(target: "dpif", "could not create datapath {name} of unknown type {kind}");
            log::error!(target: "bridge", "failed to create bridge {name}: unknown datapath type {kind}");
            return;
        }
        let mac = row.default_mac();
        let config = row.config(
            mac::datapath_id(&row, mac),
            self.globals.vlan_limit,
            self.globals.bundle_idle_s,
        );
        let bridge: Arc<Bridge> = self.switch.ofproto.add_bridge(&name, config);
        bridge.use_features(self.features_of(&row.datapath_type));
        let state = BridgeState {
            controllers: Controllers::new(Manager::new(bridge.clone(), self.switch.tls.clone())),
            bridge,
            row,
            ifaces: BTreeMap::new(),
            parked: BTreeMap::new(),
            failures: BTreeMap::new(),
            numbers: Numbers::default(),
            mac,
            datapath_id: None,
            min_mtu: None,
            configured: None,
            pushed: None,
            mirrored: 0,
            listeners: BTreeMap::new(),
        };
        self.bridges.insert(name, state);
    }

    /// The features of a datapath of this type, as its first bridge found them and logged them.
    fn features_of(&self, datapath_type: &str) -> Features {
        if let Some(first) = self
            .bridges
            .values()
            .find(|b| b.row.datapath_type == datapath_type)
        {
            return first.bridge.used_features().at_boot();
        }
        let features = Features::probed(self.globals.vlan_limit);
        let name = kinds::datapath_name(datapath_type);
        for line in features.log_lines() {
            log::info!(target: "ofproto_dpif", "{name}: {line}");
        }
        features
    }

    /// A pretended datapath has a port 0 of its own, as Open vSwitch's has: tests look for it.
    fn own_port(&self) {
        let datapath = &self.switch.datapath;
        let wanted = self.bridges.values().any(|b| b.row.datapath_type == "dummy");
        if !wanted || datapath.port(OWN_PORT).is_some() {
            return;
        }
        let made = heddle_port::open("dummy-internal", "ovs-dummy", &BTreeMap::new())
            .map_err(DatapathError::from)
            .and_then(|device| datapath.add_port(device, Some(OWN_PORT)));
        if let Err(error) = made {
            log::warn!(target: "dpif_netdev", "ovs-dummy: {error}");
        }
    }

    /// Configures a bridge whose ports exist.
    fn finish(&mut self, name: &str) {
        let Some(mut state) = self.bridges.remove(name) else {
            return;
        };
        self.set_addresses(&mut state);
        self.follow_mtu(&mut state);
        self.limit_rates(&mut state);
        let id = mac::datapath_id(&state.row, state.mac);
        let another = state.datapath_id.is_some_and(|old| old != id);
        if state.datapath_id != Some(id) {
            log::info!(target: "bridge", "bridge {name}: using datapath ID {id:016x}");
            state.datapath_id = Some(id);
        }
        let mut config = state
            .row
            .config(id, self.globals.vlan_limit, self.globals.bundle_idle_s);
        config.has_controllers &= !self.globals.restore_wait;
        state.configure(config);
        if another {
            // OpenFlow has no message for it: each controller has to read it again.
            state.bridge.reconnect_controllers();
        }
        state.push_ports(&self.switch.ofproto);
        self.set_remotes(&mut state);
        self.bridges.insert(name.to_owned(), state);
    }

    fn update_inventory(&self) {
        let mut inventory = Inventory {
            shared: self.tunnels.items(),
            zone_limits: self.zones.has_limits(),
            ..Inventory::default()
        };
        for (name, state) in &self.bridges {
            inventory
                .bridges
                .insert(name.clone(), state.row.datapath_type.clone());
            let items = state.ifaces.values().map(|i| (i.name.clone(), i.item(name)));
            inventory.interfaces.extend(items);
        }
        *self.switch.inventory.write() = inventory;
        // The counter follows the change: the lock above makes the change visible to a reader of the counter.
        self.switch.inventory_changes.fetch_add(1, Relaxed);
    }
}

/// A port number as people know it: 16 bits, as in OpenFlow 1.0.
pub(crate) fn port_text(no: OfPort) -> u32 {
    no.0 & 0xffff
}
