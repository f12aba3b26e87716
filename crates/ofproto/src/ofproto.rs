//! All bridges of the switch, and the parts that they share: the pipeline, the datapath, the clock.
//!
//! **Order of locks.** `publishing`, then one bridge's state. `bridges` is held for moments only, and no
//! other lock is taken meanwhile. A bridge holds no lock when it calls [`Ofproto::publish`].

use crate::aside::SlowMutex;
use crate::bridge::{Bridge, BridgeConfig, Event};
use crate::mac::MacTable;
use crate::model::{CtTimeouts, Snapshot};
use crate::monitor::Monitor;
use crate::sampling::{IpfixConfig, Sampling};
use crate::xlate::Pipeline;
use heddle_datapath_api::{Engine, Generations};
use heddle_openflow::Port as OfPort;
use heddle_sync::Clock;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Maximum number of meters of all bridges together.
pub(crate) const MAX_METERS: u32 = 1 << 18;

/// Interval at which frozen pipelines without holders are removed, by the switch's clock. They stay while the
/// clock is stopped.
const EXPIRE_MS: u64 = 1000;

/// Numbers of meters in the datapath: the lowest free one is given out.
#[derive(Default)]
struct MeterNumbers {
    /// All numbers below it are taken or in `free`.
    next: u32,
    free: BTreeSet<u32>,
}

/// The control half of the switch. Shared by all control threads.
pub struct Ofproto {
    pipeline: Arc<Pipeline>,
    engine: OnceLock<Arc<dyn Engine>>,
    clock: Arc<Clock>,
    bridges: Mutex<BTreeMap<String, Arc<Bridge>>>,
    publishing: SlowMutex<()>,
    next_id: AtomicU64,
    meter_numbers: Mutex<MeterNumbers>,
    expired_ms: AtomicU64,
    monitor: Monitor,
    sampling: Sampling,
}

/// Patch ports by interface name.
#[derive(Default)]
pub(crate) struct PatchEnds {
    /// Interface name → (bridge, OpenFlow port, peer's name).
    ends: HashMap<String, (u64, OfPort, String)>,
}

impl PatchEnds {
    /// Adds a patch port of a bridge, and its peer's name.
    pub(crate) fn add(&mut self, name: &str, at: (u64, OfPort), peer: &str) {
        self.ends.insert(name.to_owned(), (at.0, at.1, peer.to_owned()));
    }

    /// The peer of patch port `name`, if `peer` exists and names `name` as its own peer.
    pub(crate) fn peer_of(&self, name: &str, peer: &str) -> Option<(u64, OfPort)> {
        let (bridge, port, back) = self.ends.get(peer)?;
        (back == name).then_some((*bridge, *port))
    }
}

impl Ofproto {
    /// A switch without bridges. Make the datapath with [`Ofproto::pipeline`], then [`Ofproto::attach`] it.
    pub fn new(clock: Arc<Clock>) -> Arc<Self> {
        Arc::new(Self {
            pipeline: Arc::new(Pipeline::new(Arc::default())),
            engine: OnceLock::new(),
            clock,
            bridges: Mutex::default(),
            publishing: SlowMutex::default(),
            next_id: AtomicU64::new(1),
            meter_numbers: Mutex::default(),
            expired_ms: AtomicU64::new(0),
            monitor: Monitor::default(),
            sampling: Sampling::default(),
        })
    }

    /// The translation half, for `Datapath::new`.
    pub fn pipeline(&self) -> &Arc<Pipeline> {
        &self.pipeline
    }

    /// BFD sessions that monitor ports.
    pub fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// Exporters of samples.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Names the engine that forwards for these bridges. Once.
    pub fn attach(&self, engine: Arc<dyn Engine>) {
        assert!(self.engine.set(engine).is_ok(), "an engine is attached once");
    }

    /// The attached engine.
    pub fn engine(&self) -> Option<Arc<dyn Engine>> {
        self.engine.get().cloned()
    }

    /// The clock for all times.
    pub fn clock(&self) -> &Arc<Clock> {
        &self.clock
    }

    /// Generation counters that cached translations depend on.
    pub fn generations(&self) -> &Generations {
        heddle_datapath_api::Translate::generations(&*self.pipeline)
    }

    /// A number for a meter in the datapath, if there is one left.
    pub(crate) fn take_meter_number(&self) -> Option<u32> {
        let mut numbers = self.meter_numbers.lock();
        numbers.free.pop_first().or_else(|| {
            let n = numbers.next;
            (n < MAX_METERS).then(|| {
                numbers.next += 1;
                n
            })
        })
    }

    /// Takes a number back.
    pub(crate) fn give_meter_number(&self, n: u32) {
        self.meter_numbers.lock().free.insert(n);
    }

    /// Makes a bridge, or returns the one of that name with the new configuration.
    pub fn add_bridge(self: &Arc<Self>, name: &str, config: BridgeConfig) -> Arc<Bridge> {
        if let Some(b) = self.bridge(name) {
            b.configure(config);
            return b;
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mac = MacTable::new(id, self.pipeline.shared_generations());
        let bridge = Bridge::new(id, name, Arc::downgrade(self), mac, config.clone());
        self.bridges.lock().insert(name.to_owned(), bridge.clone());
        bridge.configure(config);
        bridge
    }

    /// Forgets a bridge. Its datapath ports are the caller's to remove.
    pub fn remove_bridge(&self, name: &str) {
        let gone = self.bridges.lock().remove(name);
        if let Some(gone) = gone {
            gone.count_freed();
            self.sampling.configure(gone.id, &IpfixConfig::default());
            self.publish();
            gone.forget_neighbours_on(&[vec![name.to_owned()], gone.port_names()].concat());
        }
    }

    /// The bridge of that name.
    pub fn bridge(&self, name: &str) -> Option<Arc<Bridge>> {
        self.bridges.lock().get(name).cloned()
    }

    /// The bridge with that number.
    pub fn bridge_by_id(&self, id: u64) -> Option<Arc<Bridge>> {
        self.bridges.lock().values().find(|b| b.id == id).cloned()
    }

    /// All bridges by name.
    pub fn bridges(&self) -> Vec<Arc<Bridge>> {
        self.bridges.lock().values().cloned().collect()
    }

    /// Number of rules of all bridges; `None` while a thread changes rules.
    pub fn n_rules(&self) -> Option<u64> {
        self.bridges().iter().map(|b| b.n_rules()).sum()
    }

    /// Makes a new snapshot, which shares the unchanged parts with the one before, and hands it to the
    /// translation half.
    pub fn publish(&self) {
        // The lock is held until the snapshot is published, so that an older one never follows a newer one.
        // The lock of `bridges` is free meanwhile: a single bridge may keep this thread waiting for long.
        let _publishing = self.publishing.lock();
        let bridges = self.bridges.lock().clone();
        let mut ends = PatchEnds::default();
        bridges.values().for_each(|b| b.say_patches(&mut ends));
        let views = bridges
            .values()
            .map(|b| (b.id, Arc::new(b.view(&ends))))
            .collect();
        self.pipeline.publish(self.pipeline.snapshot().followed_by(views));
    }

    /// Replaces the timeout policies of connection tracking zones, by the names that the datapath knows them
    /// under.
    pub fn set_ct_timeouts(&self, timeouts: CtTimeouts) {
        let _publishing = self.publishing.lock();
        let snapshot = self.pipeline.snapshot();
        if snapshot.ct_timeouts != timeouts {
            self.pipeline.publish(Snapshot {
                ct_timeouts: timeouts,
                ..Snapshot::clone(&snapshot)
            });
        }
    }

    /// Time passes: expires rules and addresses of all bridges.
    pub fn tick(&self) {
        let now_ms = self.clock.now_ms();
        if now_ms.saturating_sub(self.expired_ms.load(Ordering::Relaxed)) >= EXPIRE_MS {
            self.expired_ms.store(now_ms, Ordering::Relaxed);
            self.pipeline.expire();
            self.pipeline.underlay().neighbours.expire(now_ms);
        }
        self.monitor.count(self);
        for b in self.bridges() {
            b.tick();
        }
    }

    /// Does the work that workers have left to control threads, on all bridges. The thread that calls it
    /// first is unparked when there is more.
    pub fn settle(&self) {
        self.pipeline.underlay().settler.register();
        self.bridges().iter().for_each(|b| b.settle());
        self.ask_neighbours();
        self.tell_links();
    }

    /// Notifies controllers of ports that began or ceased to forward because of their BFD sessions.
    pub fn tell_links(&self) {
        for (bridge, port) in self.monitor.take_moved() {
            if let Some(bridge) = self.bridge_by_id(bridge) {
                bridge.tell_link(port);
            }
        }
    }

    /// Sends requests for the neighbours that workers miss.
    fn ask_neighbours(&self) {
        let underlay = self.pipeline.underlay();
        for question in underlay.neighbours.take_requests() {
            if let Some(bridge) = self.bridge_by_id(question.bridge) {
                bridge.ask_neighbour(&question, &underlay.routes);
            }
        }
    }

    /// Wakes the thread that settles. Never waits.
    pub(crate) fn wake_settler(&self) {
        self.pipeline.underlay().settler.ring();
    }

    /// Sleeps until there is something to settle, or [`Ofproto::end_wait`] is called.
    pub fn wait_to_settle(&self) {
        self.pipeline.underlay().settler.wait();
    }

    /// Wakes the thread in [`Ofproto::wait_to_settle`], so that it sees that it is to end.
    pub fn end_wait(&self) {
        self.wake_settler();
    }

    /// Hands waiting packets of the datapath to the bridges' controllers, up to `max`; returns how many.
    pub fn deliver_upcalls(&self, max: usize) -> usize {
        let Some(dp) = self.engine() else { return 0 };
        dp.take_upcalls(max, &mut |upcall| {
            if let Some((bridge, event)) = crate::event::packet_in(upcall)
                && let Some(b) = self.bridge_by_id(bridge)
            {
                b.emit(&[Event::PacketIn(Arc::new(event))]);
            }
        })
    }
}
