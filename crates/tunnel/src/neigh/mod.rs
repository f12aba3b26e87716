//! Neighbours: the Ethernet addresses of next hops of tunnels' packets.
//!
//! **Problem.** Workers look neighbours up within a translation and learn them from packets there. Lookups
//! must not wait for learners, and a worker must never wait at all.
//!
//! **Shape.** Readers walk buckets that are replaced as a whole ([`index`]). Writers hold one lock. A worker
//! only *tries* to take it: if another thread holds it, [`Neighbours::learn`] returns [`Learned::Busy`]. The
//! translation must not be cached then, so that the next packet learns.
//!
//! **Changes.** [`Neighbours::thing`] is a number for each address on each bridge, known or not. The hook
//! gets it when the result of a lookup changes: the neighbour appears, gets another address or is removed. A
//! neighbour that is merely seen or used again makes no cached translation stale.
//!
//! **Limits.** At most [`MAX_ENTRIES`] entries. Beyond that, the origin with the most entries loses its least
//! recently used one, so a peer that makes neighbours up evicts its own. An entry expires after
//! [`Neighbours::aging_s`] in which it was neither learned nor used.

mod frame;
mod index;
mod order;
mod requests;
mod snoop;
#[cfg(test)]
mod tests;

pub use frame::{request_frame, solicited_node};
pub use requests::{KernelRequest, MAX_OPEN, NeighRequest, OPEN_MS, RequestOutcome};
pub use snoop::{Mac, advertised};

use heddle_sync::Published;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Maximum number of entries.
pub const MAX_ENTRIES: usize = 8192;
/// Default time for which an unused entry is kept, seconds.
const DEFAULT_AGING_S: u32 = 15 * 60;
/// Maximum of that time, seconds.
const MAX_AGING_S: u32 = 3600;

/// The source of an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Origin {
    /// A packet that came in by this port.
    Port {
        /// Number of the bridge, unique among all bridges.
        bridge: u64,
        /// OpenFlow port number.
        port: u32,
    },
    /// An operator (`tnl/neigh/set`).
    Hand,
}

/// An IP address on a bridge, or on a device of the host that is no port of a bridge.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NeighKey {
    /// The name of the bridge or device.
    pub bridge: Arc<str>,
    /// The address.
    pub ip: IpAddr,
}

/// A neighbour that a packet or an operator has set.
#[derive(Debug)]
pub struct NeighEntry {
    /// Bridge and IP address.
    pub key: NeighKey,
    /// Ethernet address.
    pub mac: Mac,
    origin: Origin,
    /// Hash of the key, see [`Neighbours::thing`].
    thing: u64,
    used_ms: AtomicU64,
}

impl NeighEntry {
    /// Refreshes the time of use, which keeps the entry from expiring.
    pub fn used(&self, now_ms: u64) {
        self.used_ms.fetch_max(now_ms, Relaxed);
    }
    fn used_ms(&self) -> u64 {
        self.used_ms.load(Relaxed)
    }
}

/// The result of learning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Learned {
    /// The entry was there; its time of use is refreshed.
    Same,
    /// The entry is new, or has got another Ethernet address.
    New,
    /// Another thread holds the table: learn from the next packet.
    Busy,
}

/// An entry as commands show it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// Bridge and IP address.
    pub key: NeighKey,
    /// Ethernet address.
    pub mac: Mac,
    /// Expired; the next [`Neighbours::expire`] removes it.
    pub stale: bool,
}

/// A neighbour of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SystemNeighbour {
    /// Ethernet address.
    pub mac: Mac,
    /// The kernel has no recent confirmation, and requests none, since the host itself sends the neighbour
    /// nothing. The neighbour may have moved: a worker that uses it requests it.
    pub in_doubt: bool,
}

/// The kernel's neighbours.
pub type SystemNeighbours = HashMap<NeighKey, SystemNeighbour>;

/// The neighbours on all bridges. See the module's text.
pub struct Neighbours {
    index: index::Index,
    inner: Mutex<order::Order>,
    /// The kernel's neighbours, by the name of the device.
    system: Published<SystemNeighbours>,
    requests: requests::Requests,
    aging_s: AtomicU32,
    seed: RandomState,
    notify: Box<dyn Fn(u64) + Send + Sync>,
}

impl std::fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Neighbours").finish_non_exhaustive()
    }
}

impl Neighbours {
    /// An empty table. `notify` gets the [`Neighbours::thing`] of each lookup whose result changes, after the
    /// change.
    pub fn new(notify: Box<dyn Fn(u64) + Send + Sync>) -> Self {
        Self {
            index: index::Index::default(),
            inner: Mutex::default(),
            system: Published::default(),
            requests: requests::Requests::default(),
            aging_s: DEFAULT_AGING_S.into(),
            seed: RandomState::new(),
            notify,
        }
    }

    /// The number of a lookup's dependency: the hook gets it when the result of [`Neighbours::lookup`]
    /// changes.
    pub fn thing(&self, bridge: &str, ip: IpAddr) -> u64 {
        self.seed.hash_one((bridge, ip))
    }

    /// The Ethernet address of `ip` on `bridge`. Refreshes its time of use. Never waits.
    pub fn lookup(&self, bridge: &str, ip: IpAddr, now_ms: u64) -> Option<Mac> {
        match self.find(bridge, ip, now_ms) {
            Some(entry) => Some(entry.mac),
            None => self.system(bridge, ip).map(|known| known.mac),
        }
    }

    /// The entry of [`Neighbours::lookup`], for callers that use it again later ([`NeighEntry::used`]).
    /// `None` also if only the kernel knows the neighbour: the kernel expires that by itself.
    pub fn find(&self, bridge: &str, ip: IpAddr, now_ms: u64) -> Option<Arc<NeighEntry>> {
        let entry = self.index.find(self.thing(bridge, ip), bridge, ip)?;
        if self.over(&entry, now_ms) {
            return None;
        }
        entry.used(now_ms);
        Some(entry)
    }

    /// The kernel's neighbour.
    pub fn system(&self, bridge: &str, ip: IpAddr) -> Option<SystemNeighbour> {
        let known = self.system.load();
        if known.is_empty() {
            return None;
        }
        let key = NeighKey {
            bridge: bridge.into(),
            ip,
        };
        known.get(&key).copied()
    }

    fn over(&self, entry: &NeighEntry, now_ms: u64) -> bool {
        entry.used_ms() + u64::from(self.aging_s()) * 1000 <= now_ms
    }

    /// Learns a neighbour from a packet, see [`advertised`]. Never waits.
    pub fn learn(&self, bridge: &str, (ip, mac): (IpAddr, Mac), origin: Origin, now_ms: u64) -> Learned {
        let thing = self.thing(bridge, ip);
        let known = self.index.find(thing, bridge, ip);
        if let Some(entry) = known.filter(|e| e.mac == mac && !self.over(e, now_ms)) {
            entry.used(now_ms);
            return Learned::Same;
        }
        let Some(mut inner) = self.inner.try_lock() else {
            return Learned::Busy;
        };
        self.put(&mut inner, bridge, (ip, mac), origin, now_ms);
        Learned::New
    }

    /// Sets an entry by hand, in place of an earlier one.
    pub fn set(&self, bridge: &str, ip: IpAddr, mac: Mac, now_ms: u64) {
        self.put(&mut self.inner.lock(), bridge, (ip, mac), Origin::Hand, now_ms);
    }

    fn put(
        &self,
        inner: &mut order::Order,
        bridge: &str,
        (ip, mac): (IpAddr, Mac),
        origin: Origin,
        now_ms: u64,
    ) {
        let key = NeighKey {
            bridge: bridge.into(),
            ip,
        };
        let before = inner.get(&key);
        // A packet that confirms an entry set by hand does not make it the port's.
        let same = before.filter(|e| e.mac == mac && (e.origin == origin || origin != Origin::Hand));
        if let Some(entry) = same.filter(|e| !self.over(e, now_ms)) {
            entry.used(now_ms);
            return;
        }
        let differs = before.is_none_or(|e| e.mac != mac || self.over(e, now_ms));
        if before.is_none()
            && inner.len() >= MAX_ENTRIES
            && let Some(victim) = inner.victim()
        {
            self.drop_entry(inner, &victim);
        }
        let entry = Arc::new(NeighEntry {
            thing: self.thing(bridge, ip),
            key,
            mac,
            origin,
            used_ms: now_ms.into(),
        });
        inner.put(entry.clone());
        let thing = entry.thing;
        self.index.put(entry);
        if differs {
            (self.notify)(thing);
        }
    }

    fn drop_entry(&self, inner: &mut order::Order, key: &NeighKey) {
        if let Some(entry) = inner.remove(key) {
            self.index.remove(entry.thing, key);
            (self.notify)(entry.thing);
        }
    }

    fn drop_if(&self, wanted: impl Fn(&NeighEntry) -> bool) {
        let mut inner = self.inner.lock();
        let keys: Vec<NeighKey> = inner
            .entries()
            .filter(|e| wanted(e))
            .map(|e| e.key.clone())
            .collect();
        keys.iter().for_each(|key| self.drop_entry(&mut inner, key));
    }

    /// Drops entries that were not used for long, and ends open requests. To be called once a second.
    pub fn expire(&self, now_ms: u64) {
        self.drop_if(|e| self.over(e, now_ms));
        self.end_requests(now_ms);
    }

    /// Drops the entries learned from packets of a port.
    pub fn forget(&self, origin: Origin) {
        self.drop_if(|e| e.origin == origin);
    }

    /// Drops all entries, or those of a bridge, and forgets open requests. The kernel's neighbours stay.
    pub fn flush(&self, bridge: Option<&str>) {
        self.forget_requests(bridge);
        self.drop_if(|e| bridge.is_none_or(|b| *e.key.bridge == *b));
    }

    /// Time for which an unused entry is kept, seconds.
    pub fn aging_s(&self) -> u32 {
        self.aging_s.load(Relaxed)
    }

    /// Sets the time for which an unused entry is kept. `false`: the time is out of range, and not set.
    pub fn set_aging_s(&self, aging_s: u32) -> bool {
        let fine = (1..=MAX_AGING_S).contains(&aging_s);
        if fine {
            self.aging_s.store(aging_s, Relaxed);
        }
        fine
    }

    /// All entries, sorted by bridge and address.
    pub fn entries(&self, now_ms: u64) -> Vec<Shown> {
        let inner = self.inner.lock();
        let mut all: Vec<Shown> = inner
            .entries()
            .map(|e| Shown {
                key: e.key.clone(),
                mac: e.mac,
                stale: self.over(e, now_ms),
            })
            .collect();
        drop(inner);
        all.sort_by(|a, b| (&a.key.bridge, a.key.ip).cmp(&(&b.key.bridge, b.key.ip)));
        all
    }

    /// Replaces the kernel's neighbours.
    pub fn set_system(&self, known: SystemNeighbours) {
        let _alone = self.inner.lock();
        let before = self.system.get();
        let differs = |a: &SystemNeighbours, b: &SystemNeighbours| -> Vec<u64> {
            a.iter()
                .filter(|(key, at)| b.get(*key).map(|b| b.mac) != Some(at.mac))
                .map(|(key, _)| self.thing(&key.bridge, key.ip))
                .collect()
        };
        // Neighbours with the same Ethernet address that are in doubt now. They are to be requested, unless
        // there is an entry.
        let doubts = known.iter().filter(|(key, now)| {
            let was = before.get(*key);
            now.in_doubt && was.is_some_and(|was| was.mac == now.mac && !was.in_doubt)
        });
        let doubts = doubts.map(|(key, _)| (self.thing(&key.bridge, key.ip), key));
        let doubts = doubts.filter(|(thing, key)| self.index.find(*thing, &key.bridge, key.ip).is_none());
        let doubts = doubts.map(|(thing, _)| thing).collect();
        let changed = [differs(&before, &known), differs(&known, &before), doubts].concat();
        self.system.store(known);
        changed.into_iter().for_each(|thing| (self.notify)(thing));
    }
}
