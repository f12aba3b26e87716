//! One bridge, as the control plane holds it: configuration, ports, rules.
//!
//! **Problem.** Controllers, the database and the clock change a bridge; workers translate on it all the while.
//!
//! **Invariants.** [`State`] is behind one mutex that no worker ever takes: workers read the published
//! [`BridgeView`](crate::model::BridgeView) and the tables. A change of rules follows the order that `model`
//! prescribes: rules first, version second, generations last. Events are handed to sinks after the change is
//! visible, with the mutex released.
//!
//! **Costs.** A strict flow mod is a hash lookup; a loose one looks at every rule of its tables.

mod config;
mod expire;
mod flow_mod;
mod handle;
mod packet_out;
mod ports;
mod select;
mod stats;

#[cfg(test)]
mod tests;

pub use config::{BridgeConfig, BundleConfig, FailMode, PortConfig, PortTarget, TableConfig};
pub use expire::Ticked;

use crate::mac::{MacConfig, MacTable};
use crate::model::{N_TABLES, Rule, Table};
use crate::ofproto::Ofproto;
use heddle_classifier::Entry;
use heddle_openflow::message::{FlowRemoved, PortStatus};
use heddle_openflow::{Port as OfPort, Version};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A rule where it is linked.
pub(crate) type Linked = Arc<Entry<Arc<Rule>>>;

/// Something that controllers may want to know.
#[derive(Clone, Debug)]
pub enum Event {
    /// A packet for controllers.
    PacketIn(Arc<crate::event::PacketInEvent>),
    /// A flow that asked for it went away.
    FlowRemoved(Arc<FlowRemoved>),
    /// A port came, went or changed.
    PortStatus(Arc<PortStatus>),
}

/// Somebody who is told of a bridge's events. Called from control threads only; must not block.
pub trait EventSink: Send + Sync {
    /// Takes one event.
    fn event(&self, event: &Event);
}

/// A bridge.
pub struct Bridge {
    /// Stable number, never reused.
    pub id: u64,
    /// Name.
    pub name: String,
    /// OpenFlow tables, shared with the views.
    pub tables: Arc<Vec<Table>>,
    /// Learned addresses, shared with the views.
    pub mac: Arc<MacTable>,
    pub(crate) version: Arc<AtomicU64>,
    pub(crate) of: Weak<Ofproto>,
    pub(crate) state: Mutex<State>,
    sinks: Mutex<Vec<Weak<dyn EventSink>>>,
}

/// What the mutex guards.
pub(crate) struct State {
    pub(crate) config: BridgeConfig,
    pub(crate) bundles: Vec<BundleConfig>,
    pub(crate) ports: BTreeMap<OfPort, ports::PortState>,
    /// Rules with a timeout, to be looked at by `expire`.
    timed: Vec<Linked>,
    /// The hidden rule that stands in for absent controllers.
    fail_open: Option<Linked>,
    /// Removed rules wait for `purge`.
    garbage: bool,
    pub(crate) tables: BTreeMap<u8, TableConfig>,
    /// Controllers that decide about misses by OpenFlow 1.0 to 1.2's rules are connected.
    pub(crate) miss_to_controller: bool,
    pub(crate) frag_flags: u16,
}

impl Bridge {
    pub(crate) fn new(
        id: u64,
        name: &str,
        of: Weak<Ofproto>,
        mac: MacTable,
        config: BridgeConfig,
    ) -> Arc<Self> {
        let tables = (0..=u8::MAX).take(N_TABLES).map(|t| Table::new(id, t)).collect();
        let bridge = Arc::new(Self {
            id,
            name: name.to_owned(),
            tables: Arc::new(tables),
            mac: Arc::new(mac),
            version: Arc::new(AtomicU64::new(1)),
            of,
            state: Mutex::new(State {
                config,
                bundles: Vec::new(),
                ports: BTreeMap::new(),
                timed: Vec::new(),
                fail_open: None,
                garbage: false,
                tables: BTreeMap::new(),
                miss_to_controller: false,
                frag_flags: 0,
            }),
            sinks: Mutex::new(Vec::new()),
        });
        bridge.flush_flows();
        bridge
    }

    /// Registers somebody to be told of events for as long as the `Arc` lives.
    pub fn subscribe(&self, sink: &Arc<dyn EventSink>) {
        let mut sinks = self.sinks.lock();
        sinks.retain(|s| s.strong_count() != 0);
        sinks.push(Arc::downgrade(sink));
    }

    /// Tells everybody who subscribed.
    pub fn emit(&self, events: &[Event]) {
        if events.is_empty() {
            return;
        }
        let sinks: Vec<_> = self.sinks.lock().iter().filter_map(Weak::upgrade).collect();
        for sink in sinks {
            events.iter().for_each(|e| sink.event(e));
        }
    }

    /// The configuration as it stands.
    pub fn config(&self) -> BridgeConfig {
        self.state.lock().config.clone()
    }

    /// Takes over a new configuration. As in Open vSwitch, flows are flushed when the fail mode changes while
    /// there are no controllers, and when the first controller comes or the last one goes.
    pub fn configure(&self, config: BridgeConfig) {
        let flush = {
            let mut state = self.state.lock();
            let old = std::mem::replace(&mut state.config, config);
            let new = &state.config;
            self.mac.configure(MacConfig {
                max_entries: new.mac_table_size,
                idle_s: new.mac_aging_s,
            });
            old.has_controllers != new.has_controllers
                || (!new.has_controllers && old.fail_mode != new.fail_mode)
        };
        if flush {
            self.flush_flows();
        }
        self.republish();
    }

    /// Per-table configuration from the database (`Flow_Table`).
    pub fn configure_tables(&self, tables: BTreeMap<u8, TableConfig>) {
        self.state.lock().tables = tables;
    }

    /// Says whether misses go to a controller under the rules of OpenFlow 1.0 to 1.2.
    pub fn set_miss_to_controller(&self, yes: bool) {
        let changed = std::mem::replace(&mut self.state.lock().miss_to_controller, yes) != yes;
        if changed {
            self.republish();
        }
    }

    /// The versions of OpenFlow that it speaks.
    pub fn versions(&self) -> Vec<Version> {
        self.state.lock().config.versions.clone()
    }

    pub(crate) fn republish(&self) {
        if let Some(of) = self.of.upgrade() {
            of.publish();
        }
    }

    /// Coarse clock, ms.
    pub(crate) fn now_ms(&self) -> u64 {
        self.of.upgrade().map_or(0, |of| of.clock().now_ms())
    }

    pub(crate) fn current_version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Makes what was added and removed at `version` visible and invalidates what depended on `tables`.
    pub(crate) fn commit(&self, version: u64, tables: impl IntoIterator<Item = u8>) {
        // Release pairs with the Acquire of whoever reads the version to look rules up.
        self.version.store(version, Ordering::Release);
        let Some(of) = self.of.upgrade() else { return };
        for t in tables {
            of.generations().bump(self.tables[usize::from(t)].slot);
        }
    }
}
