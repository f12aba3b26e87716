//! Neighbours: the Ethernet address of the next host on the way of a tunnel's packets.
//!
//! **Problem.** Workers look neighbours up within a translation and learn them from packets there. Lookups
//! must not wait for learners, and a worker must never wait at all.
//!
//! **Shape.** Readers walk buckets that are replaced as a whole ([`index`]). Whoever changes the table holds
//! one lock; a worker only *tries* to take it ([`Neighbours::learn`] says [`Learned::Busy`] otherwise: its
//! translation is not to be cached, so that the next packet learns).
//!
//! **Changes.** [`Neighbours::thing`] is a number for each address on each bridge, known or not. The hook
//! gets it when the answer changes: the neighbour appears, gets another address or goes. One that is merely
//! seen or used again makes nothing stale.
//!
//! **Limits.** At most [`MAX_ENTRIES`]; then the least recently used entry of the port with the most makes
//! room, so that who makes neighbours up evicts their own. An entry goes when it was neither told of nor used
//! for [`Neighbours::aging_s`].

mod index;
mod order;
mod questions;
mod request;
mod snoop;
#[cfg(test)]
mod tests;

pub use questions::{Asked, MAX_OPEN, OPEN_MS, Question};
pub use request::{request, solicited_node};
pub use snoop::{Mac, told_by};

use heddle_sync::Published;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Neighbours kept.
pub const MAX_ENTRIES: usize = 8192;
/// How long an unused entry is kept unless something else is set, seconds.
const DEFAULT_AGING_S: u32 = 15 * 60;
/// The longest time that can be set, seconds.
const MAX_AGING_S: u32 = 3600;

/// Who has told of a neighbour: an OpenFlow port's number, or by hand.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Origin {
    /// A packet that came in by this port of the bridge's number.
    Port {
        /// A number of the bridge, apart from all other bridges'.
        bridge: u64,
        /// The port.
        port: u32,
    },
    /// An operator (`tnl/neigh/set`).
    Hand,
}

/// An address on a bridge.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NeighKey {
    /// The bridge's name.
    pub bridge: Arc<str>,
    /// The address.
    pub ip: IpAddr,
}

/// A neighbour.
#[derive(Debug)]
pub struct Entry {
    /// Who it is.
    pub key: NeighKey,
    /// Where to send what is for it.
    pub mac: Mac,
    origin: Origin,
    /// Hash of the key; see [`Neighbours::thing`].
    thing: u64,
    used_ms: AtomicU64,
}

impl Entry {
    /// Notes that it has been used, which keeps it.
    pub fn used(&self, now_ms: u64) {
        self.used_ms.fetch_max(now_ms, Relaxed);
    }
    fn used_ms(&self) -> u64 {
        self.used_ms.load(Relaxed)
    }
}

/// What learning did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Learned {
    /// It was known (its time of use is noted).
    Same,
    /// It was not known, or had another address.
    New,
    /// Somebody else holds the table: try with the next packet.
    Busy,
}

/// A neighbour to be shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// Who it is.
    pub key: NeighKey,
    /// Where to send what is for it.
    pub mac: Mac,
    /// It is about to go.
    pub stale: bool,
}

/// A neighbour that the kernel knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SystemNeighbour {
    /// Where to send what is for it.
    pub mac: Mac,
    /// The kernel has not heard of it for long, and does not ask, since the host itself sends it nothing:
    /// perhaps it has moved. Who uses it is to ask.
    pub in_doubt: bool,
}

/// What the kernel knows: by device and address.
pub type SystemNeighbours = HashMap<NeighKey, SystemNeighbour>;

/// The neighbours on all bridges. See the module's text.
pub struct Neighbours {
    index: index::Index,
    inner: Mutex<order::Order>,
    /// What the kernel knows of the neighbours of devices, by the name of the device.
    system: Published<SystemNeighbours>,
    questions: questions::Questions,
    aging_s: AtomicU32,
    seed: RandomState,
    tell: Box<dyn Fn(u64) + Send + Sync>,
}

impl std::fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Neighbours").finish_non_exhaustive()
    }
}

impl Neighbours {
    /// No neighbours. `tell` gets the [`Neighbours::thing`] of each whose answer changes, after the change.
    pub fn new(tell: Box<dyn Fn(u64) + Send + Sync>) -> Self {
        Self {
            index: index::Index::default(),
            inner: Mutex::default(),
            system: Published::default(),
            questions: questions::Questions::default(),
            aging_s: DEFAULT_AGING_S.into(),
            seed: RandomState::new(),
            tell,
        }
    }

    /// What [`Neighbours::lookup`] of the same depends on: the hook gets this number when the answer changes.
    pub fn thing(&self, bridge: &str, ip: IpAddr) -> u64 {
        self.seed.hash_one((bridge, ip))
    }

    /// The neighbour with address `ip` on `bridge`. Waits for nobody. To look it up is to use it.
    pub fn lookup(&self, bridge: &str, ip: IpAddr, now_ms: u64) -> Option<Mac> {
        match self.find(bridge, ip, now_ms) {
            Some(entry) => Some(entry.mac),
            None => self.system(bridge, ip).map(|known| known.mac),
        }
    }

    /// The entry behind [`Neighbours::lookup`], for those who use it later again ([`Entry::used`]). None if
    /// only the kernel knows the neighbour, which then is the kernel's to keep.
    pub fn find(&self, bridge: &str, ip: IpAddr, now_ms: u64) -> Option<Arc<Entry>> {
        let entry = self.index.find(self.thing(bridge, ip), bridge, ip)?;
        if self.over(&entry, now_ms) {
            return None;
        }
        entry.used(now_ms);
        Some(entry)
    }

    /// What the kernel knows of it.
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

    fn over(&self, entry: &Entry, now_ms: u64) -> bool {
        entry.used_ms() + u64::from(self.aging_s()) * 1000 <= now_ms
    }

    /// Learns from a packet, see [`told_by`]. Never waits.
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

    /// Makes an entry by hand, in place of what was there.
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
        // A packet that confirms what was set by hand does not make it the port's own.
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
        let entry = Arc::new(Entry {
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
            (self.tell)(thing);
        }
    }

    fn drop_entry(&self, inner: &mut order::Order, key: &NeighKey) {
        if let Some(entry) = inner.remove(key) {
            self.index.remove(entry.thing, key);
            (self.tell)(entry.thing);
        }
    }

    fn drop_if(&self, wanted: impl Fn(&Entry) -> bool) {
        let mut inner = self.inner.lock();
        let keys: Vec<NeighKey> = inner
            .entries()
            .filter(|e| wanted(e))
            .map(|e| e.key.clone())
            .collect();
        keys.iter().for_each(|key| self.drop_entry(&mut inner, key));
    }

    /// Drops those that were not used for long, and ends questions. To be called once a second.
    pub fn expire(&self, now_ms: u64) {
        self.drop_if(|e| self.over(e, now_ms));
        self.end_questions(now_ms);
    }

    /// Drops what packets have told that came in by a port.
    pub fn forget(&self, origin: Origin) {
        self.drop_if(|e| e.origin == origin);
    }

    /// Drops all entries, or those of a bridge, and forgets that others were asked for. What the kernel knows
    /// stays known.
    pub fn flush(&self, bridge: Option<&str>) {
        self.forget_questions(bridge);
        self.drop_if(|e| bridge.is_none_or(|b| *e.key.bridge == *b));
    }

    /// How long an unused entry is kept, seconds.
    pub fn aging_s(&self) -> u32 {
        self.aging_s.load(Relaxed)
    }

    /// Sets how long an unused entry is kept. `false`: that is not a time that can be set.
    pub fn set_aging_s(&self, aging_s: u32) -> bool {
        let fine = (1..=MAX_AGING_S).contains(&aging_s);
        if fine {
            self.aging_s.store(aging_s, Relaxed);
        }
        fine
    }

    /// All entries, by bridge and address.
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

    /// Takes over what the kernel knows.
    pub fn set_system(&self, known: SystemNeighbours) {
        let _alone = self.inner.lock();
        let before = self.system.get();
        let differs = |a: &SystemNeighbours, b: &SystemNeighbours| -> Vec<u64> {
            a.iter()
                .filter(|(key, at)| b.get(*key).map(|b| b.mac) != Some(at.mac))
                .map(|(key, _)| self.thing(&key.bridge, key.ip))
                .collect()
        };
        // Whose address is the same, but in doubt now: to be asked for, unless others have told of it.
        let doubts = known.iter().filter(|(key, now)| {
            let was = before.get(*key);
            now.in_doubt && was.is_some_and(|was| was.mac == now.mac && !was.in_doubt)
        });
        let doubts = doubts.map(|(key, _)| (self.thing(&key.bridge, key.ip), key));
        let doubts = doubts.filter(|(thing, key)| self.index.find(*thing, &key.bridge, key.ip).is_none());
        let doubts = doubts.map(|(thing, _)| thing).collect();
        let changed = [differs(&before, &known), differs(&known, &before), doubts].concat();
        self.system.store(known);
        changed.into_iter().for_each(|thing| (self.tell)(thing));
    }
}
