//! Applies the configuration to the switch: only differences are changed.
//!
//! The order is Open vSwitch's. First, unwanted things are removed from all bridges, since new ones may need
//! their names and numbers. Then bridges and ports are added. Then each bridge is configured as a whole and
//! shown to controllers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use heddle_daemon::vlog::Rounds;
use heddle_datapath::DatapathError;
use heddle_datapath_api::Engine;
use heddle_ofproto::features::Features;
use heddle_ovsdb::{Change, Db, Txn};
use heddle_sys::LinkCtl;

use super::bridge::{BridgeReconciler, Changes};
use super::desired::{self, BridgeRow, Desired};
use super::environment::Environment;
use super::globals::Globals;
use super::host_stack::HostStack;
use super::offload::Offloading;
use super::refused::Refused;
use super::tunnels::Tunnels;
use super::underlay_ports::UnderlayPorts;
use super::writeback::Report;
use super::zones::Zones;
use super::{Bridges, kinds};
use crate::inventory::{Inventory, OWN_PORT, datapath_name};
use crate::metrics::EndPoints;
use crate::switch::Switch;

/// The state that was made of the configuration so far.
pub(super) struct Reconciler {
    env: Environment,
    metrics: Arc<EndPoints>,
    bridges: Bridges,
    tunnels: Tunnels,
    underlay: UnderlayPorts,
    /// Names of all interfaces that are network devices of the host.
    system_ports: BTreeSet<String>,
    zones: Zones,
    offloading: Offloading,
    host_stack: HostStack,
    refused: Refused,
    /// The sleep setting that was last logged.
    logged_sleep: Option<heddle_datapath::MaxSleep>,
    /// Warnings about the configuration.
    warnings: Rounds,
    /// Lines about values that make no sense, which were logged.
    bad_values: Vec<String>,
    /// `next_cfg` of the configuration that is in force.
    applied: Option<i64>,
    /// Version of the database's schema.
    schema_version: Option<(u32, u32)>,
    /// The earliest time of the next attempt to make interfaces that no event reports as possible.
    next_retry_ms: u64,
}

/// The time between such attempts, milliseconds: each one applies the whole configuration.
const RETRY_MS: u64 = 2000;

/// The work that is due.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Due {
    pub(super) reconfigure: bool,
    pub(super) refresh: bool,
    /// Routes, addresses or rules of the kernel changed.
    pub(super) routes: bool,
    /// A device changed, or a missing one may have come.
    pub(super) links: bool,
    /// Changes are to be written.
    pub(super) write: bool,
    /// Counters are to be written.
    pub(super) counters: bool,
}

impl Reconciler {
    pub(super) fn new(switch: Arc<Switch>, metrics: Arc<EndPoints>) -> Reconciler {
        Reconciler {
            env: Environment::new(switch),
            metrics,
            bridges: Bridges::new(),
            tunnels: Tunnels::default(),
            underlay: UnderlayPorts::default(),
            system_ports: BTreeSet::new(),
            zones: Zones::default(),
            offloading: Offloading::default(),
            host_stack: HostStack::default(),
            refused: Refused::default(),
            logged_sleep: None,
            warnings: Rounds::default(),
            bad_values: Vec::new(),
            applied: None,
            schema_version: None,
            next_retry_ms: 0,
        }
    }

    pub(super) fn is_configured(&self) -> bool {
        self.env.globals != Globals::new()
    }

    /// Whether a change concerns the ids of an interface's guest ([`super::desired::GuestIds`]). Other ids
    /// are not configuration, and `ovn-controller` writes them often.
    pub(super) fn concerns_guest_ids(&self, db: &Db, change: &Change) -> bool {
        let ids = change.columns.iter().any(|column| &**column == "external_ids");
        let row = (ids && &*change.table == "Interface").then(|| db.row("Interface", change.uuid));
        row.flatten()
            .is_some_and(|row| self.bridges.values().any(|b| b.guest_ids_differ(row)))
    }

    /// Milliseconds between updates of counters in the database.
    pub(super) fn stats_interval_ms(&self) -> u64 {
        self.env.globals.stats_interval_ms
    }

    /// The transaction to write. `counters`: also the counters of all interfaces, not just of new ones.
    pub(super) fn describe(&self, db: &Db, counters: bool) -> Txn {
        let report = Report {
            db,
            switch: &self.env.switch,
            globals: &self.env.globals,
            diverter: self.env.diverter.as_ref(),
            bridges: &self.bridges,
            applied: self.applied,
        };
        report.transaction(counters)
    }

    /// Does the work that is due, but for writing.
    pub(super) fn work(&mut self, db: &Db, due: Due) -> Changes {
        let mut changes = Changes::default();
        if due.links
            && let Some(filters) = self.env.switch.ingress.get()
        {
            // The device that came, went or changed may be a VLAN device.
            filters.read_vlans();
        }
        if due.refresh {
            changes = self.refresh();
        }
        if due.routes && !due.reconfigure {
            self.follow_routes();
        }
        let waited_for = due.links && self.is_waiting() || due.refresh && self.has_to_retry();
        if due.reconfigure || changes.reconfigure || waited_for {
            let mut warnings = std::mem::take(&mut self.warnings);
            warnings.round(|| self.reconfigure(db));
            self.warnings = warnings;
            changes = Changes {
                write: true,
                reconfigure: false,
            };
        }
        changes
    }

    /// Whether an interface waits for its device.
    fn is_waiting(&self) -> bool {
        self.bridges.values().any(|b| !b.failures.is_empty())
    }

    /// Whether an interface could not be made for a reason whose end no event reports. Descriptors were
    /// missing, or another program used its device. True at most once in [`RETRY_MS`].
    fn has_to_retry(&mut self) -> bool {
        let mut failures = self.bridges.values().flat_map(|b| b.failures.values());
        let now_ms = heddle_sys::monotonic_ms();
        let is_due = now_ms >= self.next_retry_ms && failures.any(|f| f.error.has_to_be_retried());
        if is_due {
            self.next_retry_ms = now_ms + RETRY_MS;
        }
        is_due
    }

    /// Reads the state of all devices and passes changes on to OpenFlow.
    pub(super) fn refresh(&mut self) -> Changes {
        let mut changes = Changes::default();
        for bridge in self.bridges.values_mut() {
            bridge.refresh(&self.env, &mut changes);
        }
        if self.underlay.refresh(&self.env) {
            self.update_inventory();
        }
        self.assign_queues();
        self.offloading
            .set_ports(&self.bridges, &self.underlay, &self.env.globals);
        let datapath = &self.env.switch.datapath;
        self.zones.forget_unused(datapath.conntrack(), self.env.now_ms());
        self.refused.log_new(&datapath.coverage());
        changes
    }

    /// Applies the database's configuration to the switch.
    fn reconfigure(&mut self, db: &Db) {
        heddle_daemon::coverage::coverage!("bridge_reconfigure");
        self.schema_version = db.schema().and_then(|s| s.major_minor());
        let desired = Desired::read(db);
        self.configure_switch(&desired);
        let Desired {
            bridges,
            datapaths,
            next_cfg,
            ..
        } = desired;

        self.remove_bridges(&bridges);
        let mut new = Vec::new();
        for row in bridges.into_values() {
            match self.bridges.get_mut(&row.name) {
                Some(bridge) => bridge.set_row(row),
                None => new.push(row),
            }
        }
        for bridge in self.bridges.values_mut() {
            bridge.remove_ports(&self.env, &mut self.tunnels);
        }
        for row in new {
            self.add_bridge(row);
        }
        self.add_own_port();
        self.env.taps.find(&self.wanted_ports(|kind| kind.open.persists));
        let system_ports = self.wanted_ports(|kind| kind.open.name == "system");
        self.underlay.give_up(&system_ports, &self.env);
        self.host_stack.prepare(&self.env.switch, &system_ports);
        self.system_ports = system_ports;
        self.prepare_receivers();
        self.add_ports();
        self.env.receivers.clear();
        self.env.taps.settle();
        self.open_underlay();
        self.zones.apply(&datapaths, &self.env.switch);
        for bridge in self.bridges.values_mut() {
            bridge.configure(&self.env);
        }
        self.assign_queues();
        self.env.taps.find_left_devices(&self.bridges);
        self.env.guests.settled();
        let datapath = &self.env.switch.datapath;
        self.offloading
            .confirm(&self.bridges, &self.underlay, &self.env.globals, datapath);
        if !self.bridges.is_empty() {
            self.env.globals.log_sleep(&mut self.logged_sleep, datapath);
        }
        self.applied = next_cfg;
        self.update_inventory();
    }

    /// Opens the devices by which tunnels' packets leave, and removes filters of devices that are no ports.
    /// Returns whether ports were opened or closed.
    fn open_underlay(&mut self) -> bool {
        let switch = Arc::clone(&self.env.switch);
        // Routes that are read later are followed then.
        let settled = switch.kernel_read.load(Relaxed);
        self.underlay
            .look(&self.tunnels, &self.bridges, &self.system_ports, &self.env);
        if !self.underlay.wanted().is_empty() {
            self.host_stack.prepare(&switch, self.underlay.wanted());
        }
        let changed = self.underlay.apply(&self.env);
        let mut ports = self.system_ports.clone();
        ports.extend(self.underlay.names().cloned());
        self.host_stack.release_devices(&switch, ports, settled);
        changed
    }

    /// Does the work that changed routes cause.
    fn follow_routes(&mut self) {
        if self.open_underlay() {
            self.assign_queues();
            self.update_inventory();
        }
    }

    /// Applies the settings that concern no bridge.
    fn configure_switch(&mut self, desired: &Desired) {
        let switch = Arc::clone(&self.env.switch);
        let globals = self.env.globals.renewed(&desired.other_config);
        globals.apply(&self.env.globals, &switch);
        switch.ofproto.pipeline().set_restoring(globals.restore_wait);
        self.env.globals = globals;
        {
            let mut known = switch.without_effect.lock();
            desired::log_without_effect(&known, &desired.without_effect);
            known.clone_from(&desired.without_effect);
        }
        desired::log_bad_values(&self.bad_values, &desired.bad_values);
        self.bad_values.clone_from(&desired.bad_values);
        let metrics = desired.other_config.get("heddle-metrics");
        self.metrics.configure(metrics.unwrap_or_default());
        let has_bridges = !self.bridges.is_empty();
        self.offloading
            .decide(self.env.globals.offload, &desired.bridges, has_bridges, &switch);
        self.env.diverter = self.offloading.diverter();
        let keys = desired.ssl.clone();
        switch
            .tls
            .configure(keys.unwrap_or_else(|| switch.options.ssl.settings()));
    }

    /// Assigns receive queues to workers, now that all ports are there.
    fn assign_queues(&self) {
        if let Err(error) = self.env.switch.datapath.assign_queues() {
            log::error!(target: "dpif_netdev", "receive queues could not be assigned: {error}");
        }
    }

    /// Takes all bridges down: another process has taken over, and has their devices from now on.
    pub(super) fn clear(&mut self) {
        for (name, mut bridge) in std::mem::take(&mut self.bridges) {
            bridge.take_down(&self.env, &mut self.tunnels);
            self.env.switch.ofproto.remove_bridge(&name);
        }
        self.underlay.clear(&self.env);
        self.env.taps.let_go();
        self.update_inventory();
    }

    /// Removes the bridges that are not wanted, or have another type of datapath.
    fn remove_bridges(&mut self, wanted: &BTreeMap<String, BridgeRow>) {
        let stays = |name: &String, bridge: &BridgeReconciler| {
            let row = wanted.get(name);
            row.is_some_and(|row| row.datapath_type == bridge.row.datapath_type)
        };
        let unwanted = self.bridges.iter().filter(|(name, bridge)| !stays(name, bridge));
        let unwanted: Vec<String> = unwanted.map(|(name, _)| name.clone()).collect();
        for name in unwanted {
            if let Some(mut bridge) = self.bridges.remove(&name) {
                bridge.remove(&self.env, &mut self.tunnels);
                self.env.switch.ofproto.remove_bridge(&name);
            }
        }
    }

    fn add_bridge(&mut self, row: BridgeRow) {
        let name = row.name.clone();
        if !kinds::datapath_types(&self.env.switch.options).contains(&row.datapath_type.as_str()) {
            let kind = &row.datapath_type;
            log::warn!(target: "dpif", "could not create datapath {name} of unknown type {kind}");
            log::error!(target: "bridge", "failed to create bridge {name}: unknown datapath type {kind}");
            return;
        }
        let bridge = BridgeReconciler::new(row, &self.env);
        bridge
            .bridge
            .use_features(self.features_of(&bridge.row.datapath_type));
        self.bridges.insert(name, bridge);
    }

    /// The features of a datapath of this type, as its first bridge found them and logged them.
    fn features_of(&self, datapath_type: &str) -> Features {
        let mut of_type = self
            .bridges
            .values()
            .filter(|b| b.row.datapath_type == datapath_type);
        if let Some(first) = of_type.next() {
            return first.bridge.used_features().at_boot();
        }
        let features = Features::probed(self.env.globals.vlan_limit);
        let name = datapath_name(datapath_type);
        for line in features.log_lines() {
            log::info!(target: "ofproto_dpif", "{name}: {line}");
        }
        features
    }

    /// A pretended datapath has a port 0 of its own, as Open vSwitch's has: tests look for it.
    fn add_own_port(&self) {
        let datapath = &self.env.switch.datapath;
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

    /// Names of the interfaces of a kind that the database has.
    fn wanted_ports(&self, is_wanted: impl Fn(&kinds::Kind) -> bool) -> BTreeSet<String> {
        let options = &self.env.switch.options;
        let of_bridge = |bridge: &BridgeReconciler| {
            let rows = bridge.row.interfaces().map(|(_, row)| row);
            let wanted = rows.filter(|row| {
                bridge
                    .row
                    .kind_of(row, options)
                    .is_ok_and(|kind| is_wanted(&kind))
            });
            wanted.map(|row| row.name.clone()).collect::<Vec<_>>()
        };
        self.bridges.values().flat_map(of_bridge).collect()
    }

    /// Makes the receiving sockets of all devices that will become ports at once: one by one they would take
    /// the kernel long.
    fn prepare_receivers(&self) {
        let options = &self.env.switch.options;
        let mut missing = Vec::new();
        let diverted = |b: &&BridgeReconciler| self.env.is_offloaded(&b.row.datapath_type);
        for bridge in self.bridges.values().filter(|b| !diverted(b)) {
            let is_device = |row| {
                let kind = bridge.row.kind_of(row, options);
                kind.is_ok_and(|kind| kind.open.kernel && !kind.open.persists)
            };
            let rows = bridge.row.interfaces().map(|(_, row)| row);
            let rows = rows.filter(|row| !bridge.has_interface(&row.name) && is_device(row));
            missing.extend(rows.map(|row| row.name.as_str()));
        }
        if missing.len() < 2 {
            return;
        }
        let Ok(links) = LinkCtl::new() else { return };
        let n = missing.iter().filter(|name| links.ifindex(name).is_ok()).count();
        if n > 1 {
            self.env.receivers.prepare(n);
        }
    }

    fn add_ports(&mut self) {
        let names: Vec<String> = self.bridges.keys().cloned().collect();
        for name in names {
            let taken = self.taken_by_others(&name);
            if let Some(bridge) = self.bridges.get_mut(&name) {
                bridge.add_ports(&taken, &self.env, &mut self.tunnels);
            }
        }
    }

    /// Interfaces of a bridge's row that another bridge has.
    fn taken_by_others(&self, bridge: &str) -> BTreeSet<String> {
        let Some(own) = self.bridges.get(bridge) else {
            return BTreeSet::new();
        };
        let others = || self.bridges.iter().filter(|(name, _)| *name != bridge);
        let names = own.row.interfaces().map(|(_, row)| &row.name);
        let missing = names.filter(|name| !own.has_interface(name));
        let taken = missing.filter(|name| others().any(|(_, other)| other.has_interface(name)));
        taken.cloned().collect()
    }

    fn update_inventory(&self) {
        let mut inventory = Inventory {
            shared: self.tunnels.items(),
            underlay: self.underlay.states(),
            schema_version: self.schema_version,
            zone_limits: self.zones.has_limits(),
            ..Inventory::default()
        };
        let bridge = self.tunnels.configs().next().map(|(bridge, _)| bridge);
        inventory.shared.extend(self.underlay.items(bridge));
        for (name, bridge) in &self.bridges {
            inventory
                .bridges
                .insert(name.clone(), bridge.row.datapath_type.clone());
            let items = bridge.ifaces.values().map(|i| (i.name.clone(), i.item(name)));
            inventory.interfaces.extend(items);
        }
        *self.env.switch.inventory.write() = inventory;
        // The counter follows the change: the lock above makes the change visible to a reader of the counter.
        self.env.switch.inventory_changes.fetch_add(1, Relaxed);
    }
}
