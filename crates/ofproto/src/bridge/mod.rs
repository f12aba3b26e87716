//! One bridge, as the control plane holds it: configuration, ports, rules.
//!
//! **Problem.** Controllers, the database and the clock change a bridge; workers translate on it all the
//! while.
//!
//! **Invariants.** [`BridgeState`] is behind one mutex. A change of rules follows the order that `model`
//! prescribes: rules first, version second, generations last. Events are handed to sinks after the change is
//! visible, with the mutex released.
//!
//! **Locks of workers.** A worker waits for no lock that a control thread may hold. While it translates, and
//! while it credits what its caches have counted, it touches these and nothing else:
//! - the published [`BridgeView`](crate::model::BridgeView), rules, groups and meters, by reading;
//! - counters (`Stats`), timeouts that `fin_timeout` shortens, and the time at which a flow was learned
//!   again: atomics;
//! - frozen pipelines and their ids (`xlate::recirc`): lists and slots that are filled by compare and
//!   exchange;
//! - the MAC table: its mutex is tried once; if another thread holds it, the next packet learns the address;
//! - the table of multicast groups: its mutex is tried once; otherwise the report goes into a bounded queue;
//! - neighbours on tunnels' routes, and requests for neighbours: as the MAC table;
//! - flows to be learned ([`learn`]): `order`, `state` and `tables_in_use` are tried once each. With all
//!   three, the worker adds the flow, which takes a few tree operations. It records that in the tables' logs
//!   of changes, which takes no lock. Otherwise the flow goes into a queue of bounded length;
//! - the published state of bonds ([`crate::bond`]), by reading;
//! - log lines, rate-limited by an atomic and put into a queue that is never waited for.
//!
//! **Costs.** A strict flow mod is a hash lookup. A loose one, or an addition that must not overlap, is one
//! lookup for each mask of its tables. A loose one also looks at every rule of the masks that have more bits
//! than its own. An addition looks at every rule of the masks that have other bits.

mod addition;
mod bridges;
mod bundle;
mod change;
mod checks;
mod config;
mod ct_flush;
mod evict;
mod expire;
mod flow_mod;
mod groups;
mod handle;
mod interned;
mod learn;
mod learning_packets;
mod meters;
mod mirrors;
mod monitor;
mod neighbours;
mod packet_out;
mod port_views;
mod ports;
mod queues;
pub(crate) mod refs;
mod select;
mod snooping;
mod stats;
mod tables;
mod timeouts;
mod tlv;

#[cfg(test)]
mod tests;

/// Forgets tracked connections by zone and tuple.
pub mod connections {
    pub use super::ct_flush::flush;
}

pub use addition::Addition;
pub(crate) use addition::SharedByAdditions;
pub use bridges::Ofproto;
pub use bundle::{BundleFailed, Bundled};
pub use config::{
    BridgeConfig, FailMode, MAX_TRACKED, MirrorConfig, MirrorTarget, PortBundleConfig, PortConfig,
    PortTarget, PrefixField, TableConfig,
};
pub use flow_mod::freed_rules;
pub use monitor::Monitor;
pub(crate) use stats::FlowDump;

use crate::blocking::SlowMutex;
use crate::features::Features;
use crate::group::Group;
use crate::mac::{MacConfig, MacTable};
use crate::meter::OfMeter;
use crate::model::{N_TABLES, Rule, Table};
use crate::sampling::IpfixConfig;
use crate::versioned::Versioned;
use heddle_classifier::Entry;
use heddle_datapath_api::Changes;
use heddle_openflow::message::{FlowEvent, FlowRemoved, PortDesc, PortStatus, TableStatus};
use heddle_openflow::{Port as OfPort, Version};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A rule that is linked in a table's classifier.
pub(crate) type Linked = Arc<Entry<Arc<Rule>>>;

/// One event of a bridge that controllers may subscribe to.
#[derive(Clone, Debug)]
pub enum Event {
    /// A packet for controllers.
    PacketIn(Arc<crate::packet_in::PacketInEvent>),
    /// A flow with the flag `SEND_FLOW_REM` was removed.
    FlowRemoved(Arc<FlowRemoved>),
    /// A port came, went or changed.
    PortStatus(Arc<PortChanged>),
    /// A flow came, went or changed; emitted only while there are flow monitors.
    FlowChanged(Arc<FlowChanged>),
    /// A table has become full or empty.
    TableStatus(Arc<TableStatus>),
}

/// One change of a port.
#[derive(Clone, Debug)]
pub struct PortChanged {
    /// The reason and the port after the change.
    pub status: PortStatus,
    /// The port before, where it only changed.
    pub old: Option<PortDesc>,
    /// The connection whose message changed it.
    pub source: Option<u64>,
}

/// The message that requests a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The connection.
    pub peer: u64,
    /// The message's transaction id.
    pub xid: u32,
}

/// One change of a flow, for flow monitors.
#[derive(Clone, Debug)]
pub struct FlowChanged {
    /// The kind of change.
    pub what: FlowEvent,
    /// The flow as it is now (as it was, if it went).
    pub rule: Arc<Rule>,
    /// The flow as it was, if it is another now.
    pub old: Option<Arc<Rule>>,
    /// The message that requested it; `None`: the switch itself made the change.
    pub origin: Option<Origin>,
}

/// A receiver of a bridge's events. Called from control threads only; must neither block nor change rules.
pub trait EventSink: Send + Sync {
    /// Takes events that happened together, in order.
    fn events(&self, events: &[Event]);

    /// Time passes.
    fn tick(&self, _now_ms: u64) {}

    /// Notified when all connections are to end. The switch makes its own connections anew.
    fn reconnect(&self) {}
}

/// A bridge.
pub struct Bridge {
    /// Stable number, never reused.
    pub id: u64,
    /// Name.
    pub name: String,
    /// Coarse clock when it was made, ms.
    pub created_ms: u64,
    /// OpenFlow tables, shared with the views.
    pub tables: Arc<Vec<Table>>,
    /// Learned addresses, shared with the views.
    pub mac: Arc<MacTable>,
    /// Groups, shared with the views.
    pub(crate) groups: Arc<Versioned<Group>>,
    /// Meters, shared with the views; they are the same in every version.
    pub(crate) meters: Arc<Versioned<Arc<OfMeter>>>,
    pub(crate) version: Arc<AtomicU64>,
    /// See [`BridgeView`](crate::model::BridgeView).
    pub(crate) purged: Arc<AtomicU64>,
    pub(crate) of: Weak<Ofproto>,
    pub(crate) state: SlowMutex<BridgeState>,
    /// Held from a change of rules until its events are emitted, so that sinks get events in the order of
    /// changes. Locked before `state`.
    order: SlowMutex<()>,
    /// Number of flow monitors.
    monitors: AtomicUsize,
    sinks: Mutex<Vec<Weak<dyn EventSink>>>,
    /// The tunnel options that are match fields.
    options: tlv::Options,
    /// Read-locked by control threads that work on tables without `state`. Write-locked by a worker that adds
    /// a rule.
    tables_in_use: RwLock<()>,
    /// The workers' end of the queue of flows to be learned.
    learn_sender: learn::LearnSender,
    /// End of the last reading of caches for messages about removed flows, and the time by which readings
    /// had exceeded a tenth of all time.
    last_cache_reading: Mutex<Option<(Instant, Duration)>>,
}

/// Configuration, ports and the bookkeeping of rules, guarded by `Bridge::state`.
pub(crate) struct BridgeState {
    pub(crate) config: BridgeConfig,
    /// The part of `config.ipfix` that has exporters.
    pub(crate) ipfix: Option<Arc<IpfixConfig>>,
    /// In the order of their names.
    pub(crate) bundles: Vec<PortBundleConfig>,
    pub(crate) ports: BTreeMap<OfPort, ports::PortState>,
    /// Bundles and ports as translation sees them.
    port_views: port_views::PortViews,
    /// Rules by the groups and meters that they use.
    pub(crate) refs: refs::Refs,
    /// Rules with a timeout, to be looked at by `expire`.
    timeouts: timeouts::Timeouts,
    /// The hidden rule that acts for absent controllers (fail mode standalone).
    fail_open: Option<Linked>,
    /// Number of removed rules and groups that wait for `purge`.
    garbage: usize,
    /// One per table, at the table's number.
    tables: Vec<tables::TableState>,
    interned: interned::Interned,
    mirrored: mirrors::Counters,
    snooping: snooping::BridgeSnooping,
    /// Controllers that decide about misses by OpenFlow 1.0 to 1.2's rules are connected.
    pub(crate) miss_to_controller: bool,
    pub(crate) frag_flags: u16,
    pub(crate) features: Features,
    /// The control threads' side of `Bridge::learn_sender`.
    learn_receiver: learn::LearnReceiver,
}

impl Bridge {
    pub(crate) fn new(
        id: u64,
        name: &str,
        of: Weak<Ofproto>,
        mac: MacTable,
        config: BridgeConfig,
    ) -> Arc<Self> {
        let (learn_sender, learn_receiver) = learn::learn_queue();
        let tables = (0..=u8::MAX).take(N_TABLES).map(|t| Table::new(id, t)).collect();
        let bridge = Arc::new(Self {
            id,
            name: name.to_owned(),
            created_ms: of.upgrade().map_or(0, |of| of.clock().now_ms()),
            tables: Arc::new(tables),
            mac: Arc::new(mac),
            groups: Arc::default(),
            meters: Arc::default(),
            version: Arc::new(AtomicU64::new(1)),
            purged: Arc::default(),
            of,
            state: SlowMutex::new(BridgeState {
                config,
                ipfix: None,
                bundles: Vec::new(),
                ports: BTreeMap::new(),
                port_views: port_views::PortViews::default(),
                refs: refs::Refs::default(),
                timeouts: timeouts::Timeouts::default(),
                fail_open: None,
                garbage: 0,
                tables: (0..N_TABLES).map(|_| tables::TableState::default()).collect(),
                interned: interned::Interned::default(),
                mirrored: mirrors::Counters::default(),
                snooping: snooping::BridgeSnooping::default(),
                miss_to_controller: false,
                frag_flags: 0,
                features: Features::default(),
                learn_receiver,
            }),
            order: SlowMutex::default(),
            monitors: AtomicUsize::new(0),
            sinks: Mutex::new(Vec::new()),
            options: tlv::Options::default(),
            tables_in_use: RwLock::default(),
            learn_sender,
            last_cache_reading: Mutex::default(),
        });
        bridge.flush_flows();
        bridge
    }

    /// Registers a sink for events, until the `Arc` is dropped.
    pub fn subscribe(&self, sink: &Arc<dyn EventSink>) {
        let mut sinks = self.sinks.lock();
        sinks.retain(|s| s.strong_count() != 0);
        sinks.push(Arc::downgrade(sink));
    }

    /// Number of registered sinks: mostly OpenFlow connections.
    pub fn n_subscribers(&self) -> usize {
        self.sinks.lock().iter().filter(|s| s.strong_count() != 0).count()
    }

    /// Hands events to all registered sinks.
    pub fn emit(&self, events: &[Event]) {
        if events.is_empty() {
            return;
        }
        for sink in self.sinks() {
            sink.events(events);
        }
    }

    /// Ends all OpenFlow connections. The switch connects to configured controllers again; others may
    /// connect.
    pub fn reconnect_controllers(&self) {
        self.sinks().iter().for_each(|s| s.reconnect());
    }

    fn sinks(&self) -> Vec<Arc<dyn EventSink>> {
        self.sinks.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// A copy of the current configuration.
    pub fn config(&self) -> BridgeConfig {
        self.state.lock().config.clone()
    }

    /// Takes over a new configuration. Flows are flushed, as in Open vSwitch, when the first controller comes
    /// or the last one goes. Without controllers, a change of the fail mode flushes them too.
    pub fn configure(&self, config: BridgeConfig) {
        let ipfix = self
            .of
            .upgrade()
            .and_then(|of| of.sampling().configure(self.id, &config.ipfix));
        let flush = {
            let mut state = self.state.lock();
            let old = std::mem::replace(&mut state.config, config);
            state.ipfix = ipfix;
            state.count_mirrors();
            let new = &state.config;
            self.mac.configure(MacConfig {
                max_entries: new.mac_table_size,
                idle_s: new.mac_aging_s,
            });
            if let Some(of) = self.of.upgrade() {
                state.configure_snooping(&of.pipeline().shared_generations());
            }
            let new = &state.config;
            old.has_controllers != new.has_controllers
                || (!new.has_controllers && old.fail_mode != new.fail_mode)
        };
        if flush {
            self.flush_flows();
        }
        self.republish();
    }

    /// Sets whether misses go to a controller under the rules of OpenFlow 1.0 to 1.2.
    pub fn set_miss_to_controller(&self, yes: bool) {
        let changed = std::mem::replace(&mut self.state.lock().miss_to_controller, yes) != yes;
        if changed {
            self.republish();
        }
    }

    /// Features of the datapath that translation uses.
    pub fn used_features(&self) -> Features {
        self.state.lock().features.clone()
    }

    /// Has translation use these features. The caller must empty the caches, as for other settings that
    /// cached translations do not depend on.
    pub fn use_features(&self, features: Features) {
        self.state.lock().features = features;
        self.republish();
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

    /// Makes changes at `version` visible and reports them to the generations, by generation slot.
    pub(crate) fn commit(&self, version: u64, changes: impl IntoIterator<Item = (u16, Changes)>) {
        // Release pairs with the Acquire of each lookup, which reads the version before the rules.
        self.version.store(version, Ordering::Release);
        let Some(of) = self.of.upgrade() else { return };
        for (slot, what) in changes {
            of.generations().bump_changed(slot, what);
        }
    }

    /// Waits until the changes so far are in force for offloaded flows, too. To be called before a reply
    /// confirms a change.
    pub(crate) fn apply_to_offloaded(&self) {
        if let Some(dp) = self.of.upgrade().and_then(|of| of.engine()) {
            crate::blocking::block_in_place(|| dp.observe_now());
        }
    }
}
