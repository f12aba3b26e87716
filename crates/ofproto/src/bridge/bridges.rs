//! All bridges of the switch, and the parts that they share: the [`Dataplane`], BFD sessions, exporters.
//!
//! **Order of locks.** `publishing`, then one bridge's state. `bridges` is held for moments only, and no
//! other lock is taken meanwhile. A bridge holds no lock when it calls [`Ofproto::publish`].

use super::{Bridge, BridgeConfig, Event};
use crate::blocking::SlowMutex;
use crate::bond::Bonds;
use crate::dataplane::Dataplane;
use crate::mac::MacTable;
use crate::model::{CtTimeouts, Snapshot};
use crate::monitor::Monitor;
use crate::sampling::{IpfixConfig, Sampling};
use crate::standby::FailoverPair;
use crate::underlay_port::UnderlayPorts;
use heddle_openflow::Port as OfPort;
use heddle_sync::Clock;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// The control half of the switch, with the [`Dataplane`] that it controls and dereferences to. Shared by all
/// control threads.
pub struct Ofproto {
    dataplane: Arc<Dataplane>,
    bridges: Mutex<BTreeMap<String, Arc<Bridge>>>,
    publishing: SlowMutex<()>,
    next_id: AtomicU64,
    meter_numbers: Mutex<MeterNumbers>,
    expired_ms: AtomicU64,
    bonds: Arc<Bonds>,
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

impl Deref for Ofproto {
    type Target = Dataplane;
    fn deref(&self) -> &Dataplane {
        &self.dataplane
    }
}

impl Ofproto {
    /// A switch without bridges. Make the datapath with its pipeline, then attach it.
    pub fn new(clock: Arc<Clock>) -> Arc<Self> {
        let dataplane = Arc::new(Dataplane::new(clock));
        let bonds = Arc::new(Bonds::new(dataplane.clone()));
        Arc::new(Self {
            monitor: Monitor::new(dataplane.clone(), bonds.clone()),
            bonds,
            dataplane,
            bridges: Mutex::default(),
            publishing: SlowMutex::default(),
            next_id: AtomicU64::new(1),
            meter_numbers: Mutex::default(),
            expired_ms: AtomicU64::new(0),
            sampling: Sampling::default(),
        })
    }

    /// BFD sessions that monitor ports.
    pub fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// Bonds and their LACP.
    pub fn bonds(&self) -> &Bonds {
        &self.bonds
    }

    /// Exporters of samples.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
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
        let mac = MacTable::new(id, self.pipeline().shared_generations());
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
        bridges.values().for_each(|b| b.add_patches(&mut ends));
        let views = bridges
            .values()
            .map(|b| (b.id, Arc::new(b.view(&ends))))
            .collect();
        self.pipeline()
            .publish(self.pipeline().snapshot().followed_by(views));
    }

    /// Replaces the timeout policies of connection tracking zones, by the names that the datapath knows them
    /// under.
    pub fn set_ct_timeouts(&self, timeouts: CtTimeouts) {
        let _publishing = self.publishing.lock();
        let snapshot = self.pipeline().snapshot();
        if snapshot.ct_timeouts != timeouts {
            self.pipeline().publish(Snapshot {
                ct_timeouts: timeouts,
                ..Snapshot::clone(&snapshot)
            });
        }
    }

    /// Replaces the datapath ports of tunnels' outer packets that belong to no bridge.
    pub fn set_underlay_ports(&self, ports: UnderlayPorts) {
        let _publishing = self.publishing.lock();
        let snapshot = self.pipeline().snapshot();
        if *snapshot.underlay != ports {
            self.pipeline().publish(Snapshot {
                underlay: Arc::new(ports),
                ..Snapshot::clone(&snapshot)
            });
        }
    }

    /// Time passes: expires rules and addresses of all bridges.
    pub fn tick(&self) {
        let now_ms = self.now_ms();
        if now_ms.saturating_sub(self.expired_ms.load(Ordering::Relaxed)) >= EXPIRE_MS {
            self.expired_ms.store(now_ms, Ordering::Relaxed);
            self.pipeline().expire();
            self.pipeline().underlay().neighbours.expire(now_ms);
        }
        self.monitor.count();
        self.pipeline().refill_pairs();
        for b in self.bridges() {
            b.tick();
        }
    }

    /// Makes the other device of a pair active if the active one has lost its link and the other one has it.
    pub fn follow_links_of_pair(&self, pair: &FailoverPair, primary_up: bool, standby_up: bool) {
        if let Some(port) = pair.with_link(primary_up, standby_up) {
            self.pipeline().change_device(pair, port);
        }
    }

    /// Does the work that workers have left to control threads, on all bridges. The thread that calls it
    /// first is unparked when there is more.
    pub fn do_deferred_work(&self) {
        self.pipeline().underlay().deferred_work.register();
        self.bridges().iter().for_each(|b| b.do_deferred_work());
        self.send_neighbour_requests();
        let moved = self.pipeline().take_guests_moved();
        if (self.bonds.take_stale() || moved)
            && let Some(dp) = self.engine()
        {
            // Flows that the kernel forwards leave a member that has failed, or a device that the guest left.
            dp.observe_now();
        }
        self.report_links();
        self.send_learning_packets();
    }

    /// Notifies controllers of ports that began or ceased to forward because of their BFD sessions
    /// or of LACP.
    pub fn report_links(&self) {
        let moved = self.monitor.take_moved().into_iter();
        for (bridge, port) in moved.chain(self.bonds.take_moved()) {
            if let Some(bridge) = self.bridge_by_id(bridge) {
                bridge.report_link(port);
            }
        }
    }

    /// Sends requests for the neighbours that workers miss.
    fn send_neighbour_requests(&self) {
        let underlay = self.pipeline().underlay();
        for request in underlay.neighbours.take_requests() {
            if let Some(bridge) = self.bridge_by_id(request.bridge) {
                bridge.request_neighbour(&request, &underlay.routes);
            }
        }
    }

    /// Hands waiting packets of the datapath to the bridges' controllers, up to `max`; returns how many.
    pub fn deliver_upcalls(&self, max: usize) -> usize {
        let Some(dp) = self.engine() else { return 0 };
        dp.take_upcalls(max, &mut |upcall| {
            if let Some((bridge, event)) = crate::packet_in::packet_in(upcall)
                && let Some(b) = self.bridge_by_id(bridge)
            {
                b.emit(&[Event::PacketIn(Arc::new(event))]);
            }
        })
    }
}
