//! One bridge, as the control plane holds it: configuration, ports, rules.
//!
//! **Problem.** Controllers, the database and the clock change a bridge; workers translate on it all the
//! while.
//!
//! **Invariants.** [`State`] is behind one mutex. A change of rules follows the order that `model`
//! prescribes: rules first, version second, generations last. Events are handed to sinks after the change is
//! visible, with the mutex released.
//!
//! **What a worker may touch.** A worker waits for no lock that a control thread may hold. While it
//! translates, and while it credits what its caches have counted, it touches these and nothing else:
//! - the published [`BridgeView`](crate::model::BridgeView), rules, groups and meters, by reading;
//! - counters (`Stats`), timeouts that `fin_timeout` shortens, and the time at which a flow was learned
//!   again: atomics;
//! - frozen pipelines and their ids (`xlate::recirc`): lists and places that are filled by compare and
//!   exchange;
//! - the MAC table: its mutex is tried once, and where somebody has it the next packet learns;
//! - neighbours on tunnels' ways, and those that are asked for: as the MAC table;
//! - flows to be learned ([`learn`]): `order`, `state` and `tending` are tried once each. Who has all three
//!   adds the flow, which takes a few tree operations, and says so in the tables' logs of changes, which
//!   takes no lock; otherwise a queue of bounded length takes it;
//! - log lines, rate-limited by an atomic and put into a queue that is never waited for.
//!
//! **Costs.** A strict flow mod is a hash lookup. A loose one, or an addition that must not overlap, is one
//! for each mask of its tables; only of masks that ask for more than it does every rule is looked at (or, for
//! overlaps, of those that ask for something else).

mod addition;
mod ask;
mod built;
mod bundle;
mod change;
mod config;
mod ct_flush;
mod evict;
mod expire;
mod flow_mod;
mod groups;
mod handle;
mod interned;
pub(crate) mod learn;
pub(crate) mod meters;
mod mirrors;
mod monitor;
mod packet_out;
mod ports;
mod queues;
pub(crate) mod refs;
mod select;
mod stats;
mod tables;
mod timed;
mod tlv;

#[cfg(test)]
mod last_counts;
#[cfg(test)]
mod learned;
#[cfg(test)]
mod many;
#[cfg(test)]
mod refused;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod under_way;

/// Which tracked connections are meant.
pub mod connections {
    pub use super::ct_flush::flush;
}

pub use addition::Addition;
pub(crate) use addition::Shared;
pub use bundle::{BundleFailed, Bundled};
pub use config::{
    BridgeConfig, BundleConfig, FailMode, MAX_TRACKED, MirrorConfig, MirrorTarget, PortConfig, PortTarget,
    PrefixField, TableConfig,
};
pub use expire::Ticked;
pub use flow_mod::freed_rules;
pub(crate) use learn::Learned;
pub use monitor::Monitor;
pub(crate) use stats::FlowDump;

use crate::aside::SlowMutex;
use crate::features::Features;
use crate::group::Group;
use crate::mac::{MacConfig, MacTable};
use crate::model::{N_TABLES, Rule, Table};
use crate::ofproto::Ofproto;
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
    PortStatus(Arc<PortChanged>),
    /// A flow came, went or changed; told only while there are flow monitors.
    FlowChanged(Arc<FlowChanged>),
    /// A table has become full or empty.
    TableStatus(Arc<TableStatus>),
}

/// What became of a port.
#[derive(Clone, Debug)]
pub struct PortChanged {
    /// What happened.
    pub status: PortStatus,
    /// The port before, where it only changed.
    pub old: Option<PortDesc>,
    /// The connection whose message changed it.
    pub source: Option<u64>,
}

/// Whose message asks for a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The connection.
    pub peer: u64,
    /// The message's transaction id.
    pub xid: u32,
}

/// What became of a flow, for flow monitors.
#[derive(Clone, Debug)]
pub struct FlowChanged {
    /// What became of it.
    pub what: FlowEvent,
    /// The flow as it is now (as it was, if it went).
    pub rule: Arc<Rule>,
    /// The flow as it was, if it is another now.
    pub old: Option<Arc<Rule>>,
    /// Who asked for it.
    pub origin: Option<Origin>,
}

/// Somebody who is told of a bridge's events. Called from control threads only; must neither block nor change
/// rules.
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
    pub(crate) meters: Arc<Versioned<Arc<meters::OfMeter>>>,
    pub(crate) version: Arc<AtomicU64>,
    /// See [`BridgeView`](crate::model::BridgeView).
    pub(crate) purged: Arc<AtomicU64>,
    pub(crate) of: Weak<Ofproto>,
    pub(crate) state: SlowMutex<State>,
    /// Held from a change of rules until its events are told, so that they are told in order. Before `state`.
    order: SlowMutex<()>,
    /// How many flow monitors there are.
    monitors: AtomicUsize,
    sinks: Mutex<Vec<Weak<dyn EventSink>>>,
    /// Which tunnel options are fields.
    options: tlv::Options,
    /// Held, by any number of control threads, while tables are worked on without `state`. A worker that adds
    /// a rule keeps them out for so long.
    tending: RwLock<()>,
    /// What workers leave to control threads.
    handed: learn::Handed,
    /// When caches were last asked for what they have counted, for messages about removed flows, and how much
    /// more time that had taken by then than its share.
    counted: Mutex<Option<(Instant, Duration)>>,
}

/// What the mutex guards.
pub(crate) struct State {
    pub(crate) config: BridgeConfig,
    /// What of `config.ipfix` there are exporters for.
    pub(crate) ipfix: Option<Arc<IpfixConfig>>,
    /// In the order of their names.
    pub(crate) bundles: Vec<BundleConfig>,
    pub(crate) ports: BTreeMap<OfPort, ports::PortState>,
    /// Both as translation sees them.
    built: built::Built,
    /// Who uses which group and meter.
    pub(crate) refs: refs::Refs,
    /// Rules with a timeout, to be looked at by `expire`.
    timed: timed::Timed,
    /// The hidden rule that stands in for absent controllers.
    fail_open: Option<Linked>,
    /// So many removed rules and groups wait for `purge`.
    garbage: usize,
    /// By table.
    tables: Vec<tables::TableState>,
    interned: interned::Interned,
    mirrored: mirrors::Counters,
    /// Controllers that decide about misses by OpenFlow 1.0 to 1.2's rules are connected.
    pub(crate) miss_to_controller: bool,
    pub(crate) frag_flags: u16,
    pub(crate) features: Features,
    /// What workers have left.
    taken: learn::Taken,
}

impl Bridge {
    pub(crate) fn new(
        id: u64,
        name: &str,
        of: Weak<Ofproto>,
        mac: MacTable,
        config: BridgeConfig,
    ) -> Arc<Self> {
        let (handed, taken) = learn::handing();
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
            state: SlowMutex::new(State {
                config,
                ipfix: None,
                bundles: Vec::new(),
                ports: BTreeMap::new(),
                built: built::Built::default(),
                refs: refs::Refs::default(),
                timed: timed::Timed::default(),
                fail_open: None,
                garbage: 0,
                tables: (0..N_TABLES).map(|_| tables::TableState::default()).collect(),
                interned: interned::Interned::default(),
                mirrored: mirrors::Counters::default(),
                miss_to_controller: false,
                frag_flags: 0,
                features: Features::default(),
                taken,
            }),
            order: SlowMutex::default(),
            monitors: AtomicUsize::new(0),
            sinks: Mutex::new(Vec::new()),
            options: tlv::Options::default(),
            tending: RwLock::default(),
            handed,
            counted: Mutex::default(),
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

    /// How many are told of events: OpenFlow connections, mostly.
    pub fn n_subscribers(&self) -> usize {
        self.sinks.lock().iter().filter(|s| s.strong_count() != 0).count()
    }

    /// Tells everybody who subscribed.
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

    /// The configuration as it stands.
    pub fn config(&self) -> BridgeConfig {
        self.state.lock().config.clone()
    }

    /// Takes over a new configuration. As in Open vSwitch, flows are flushed when the fail mode changes while
    /// there are no controllers, and when the first controller comes or the last one goes.
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
            old.has_controllers != new.has_controllers
                || (!new.has_controllers && old.fail_mode != new.fail_mode)
        };
        if flush {
            self.flush_flows();
        }
        self.republish();
    }

    /// Says whether misses go to a controller under the rules of OpenFlow 1.0 to 1.2.
    pub fn set_miss_to_controller(&self, yes: bool) {
        let changed = std::mem::replace(&mut self.state.lock().miss_to_controller, yes) != yes;
        if changed {
            self.republish();
        }
    }

    /// What of the datapath's features translation makes use of.
    pub fn used_features(&self) -> Features {
        self.state.lock().features.clone()
    }

    /// Has translation make use of these features. Whoever does that empties the caches, as for other things
    /// that no packet decides.
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

    /// Makes what was added and removed at `version` visible and says what changed, by generation slot.
    pub(crate) fn commit(&self, version: u64, changes: impl IntoIterator<Item = (u16, Changes)>) {
        // Release pairs with the Acquire of whoever reads the version to look rules up.
        self.version.store(version, Ordering::Release);
        let Some(of) = self.of.upgrade() else { return };
        for (slot, what) in changes {
            of.generations().bump_changed(slot, what);
        }
    }
}
