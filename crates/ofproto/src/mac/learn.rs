//! Learning from packets.

use super::index::LearnedMac;
use super::lru::Inner;
use super::{MacKey, MacTable};
use crate::coverage;
use heddle_openflow::Port;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// For how long a gratuitous ARP keeps later ones from moving an address over a bond, ms.
const GRAT_ARP_LOCK_MS: u64 = 5000;

/// One packet's source, as far as learning needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Learn {
    /// The sender.
    pub key: MacKey,
    /// Input port.
    pub port: Port,
    /// That port is part of a bond.
    pub bond: bool,
    /// The packet is a gratuitous ARP: its sender has moved.
    pub gratuitous_arp: bool,
    /// Coarse clock, ms.
    pub now_ms: u64,
}

/// Result of learning from a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Learned {
    /// The entry is the same as before (its time of use is noted).
    Same,
    /// A new entry.
    New,
    /// The entry was on another port.
    Moved,
    /// Not learned and not to be: a group address, a static entry, or a locked one.
    Refused,
    /// Another thread holds the table: try with the next packet.
    Busy,
}

impl MacTable {
    /// Learns from a packet. Never waits.
    pub fn learn(&self, l: Learn) -> Learned {
        if l.key.is_multicast() {
            return Learned::Refused;
        }
        if let Some(mut inner) = self.inner.try_lock() {
            return self.learn_locked(&mut inner, l);
        }
        match self.index.find(l.key) {
            Some(e) if e.port() == l.port && !l.gratuitous_arp => {
                e.used_ms.fetch_max(l.now_ms, Relaxed);
                Learned::Same
            }
            _ => Learned::Busy,
        }
    }

    /// Learns again from packets that a cached translation forwarded, some time after that. `generation`: of
    /// the source's slot, when the translation was made. Never waits.
    ///
    /// Such packets may be older than the table's contents. So they do not bring back an entry that was
    /// dropped meanwhile, unless it was evicted. The sender of a dropped entry learns it again by its next
    /// packet, which finds no valid translation. And they move an address only if no later packet from it has
    /// been seen.
    pub fn learn_again(&self, l: Learn, generation: u64) {
        let known = self.index.find(l.key);
        if let Some(e) = known.as_ref().filter(|e| e.port() == l.port) {
            e.used_ms.fetch_max(l.now_ms, Relaxed);
            return;
        }
        // Busy is harmless: packets that keep coming are credited again within seconds.
        if let Some(mut inner) = self.inner.try_lock()
            && self.generations.read(self.source_slot(l.key)).generation == generation
            && known.is_none_or(|e| e.used_ms() < l.now_ms)
        {
            self.learn_locked(&mut inner, l);
        }
    }

    /// Whether a gratuitous ARP from this address may be one that the switch itself has sent over a bond
    /// shortly before. Never waits; in doubt it may be.
    pub(crate) fn is_gratuitous_arp_locked(&self, key: MacKey, now_ms: u64) -> bool {
        let Some(mut inner) = self.inner.try_lock() else {
            return true;
        };
        inner
            .get_mut(key)
            .is_some_and(|node| now_ms < node.grat_arp_lock_ms)
    }

    fn learn_locked(&self, inner: &mut Inner, l: Learn) -> Learned {
        let Some(node) = inner.get_mut(l.key) else {
            if inner.len() >= inner.config.max_entries && !self.make_room(inner) {
                // All entries are static.
                return Learned::Refused;
            }
            inner.stats.learned += 1;
            coverage::MAC_LEARNED.count();
            self.add_entry(inner, l.key, l.port, false, l.now_ms);
            self.note_gratuitous_arp(inner, l);
            return Learned::New;
        };
        if node.is_static {
            if node.entry.port() != l.port {
                coverage::MAC_STATIC_NONE_MOVE.count();
            }
            return Learned::Refused;
        }
        let (locked, old) = (l.now_ms < node.grat_arp_lock_ms, node.entry.port());
        let refused = l.gratuitous_arp && l.bond && locked;
        inner.touch(l.key, if refused { old } else { l.port }, l.now_ms);
        self.note_gratuitous_arp(inner, l);
        if refused {
            return Learned::Refused;
        }
        if old == l.port {
            return Learned::Same;
        }
        inner.stats.moved += 1;
        coverage::MAC_MOVED.count();
        self.generations.bump(self.slot(l.key));
        Learned::Moved
    }

    /// A gratuitous ARP that came over a single link may come back over the members of a bond. For a while,
    /// such ARPs do not move the address.
    fn note_gratuitous_arp(&self, inner: &mut Inner, l: Learn) {
        if l.gratuitous_arp
            && !l.bond
            && let Some(node) = inner.get_mut(l.key)
        {
            node.grat_arp_lock_ms = l.now_ms + GRAT_ARP_LOCK_MS;
        }
    }

    pub(super) fn add_entry(&self, inner: &mut Inner, key: MacKey, port: Port, is_static: bool, now_ms: u64) {
        let entry = Arc::new(LearnedMac::new(key, port, now_ms));
        inner.insert(entry.clone(), is_static);
        self.index.insert(entry);
        self.generations.bump(self.slot(key));
    }

    pub(super) fn drop_entry(&self, inner: &mut Inner, key: MacKey) {
        if inner.remove(key).is_some() {
            self.index.remove(key);
            self.generations.bump(self.slot(key));
            self.generations.bump(self.source_slot(key));
        }
    }

    /// Evicts the entry that is next to go; `false`: no entry may go.
    ///
    /// Cached translations of its packets stay valid, and bring the address back when they are credited.
    /// Otherwise each of its packets would learn it again. Then more senders than the table has room for
    /// would evict each other, and all their packets would be translated.
    fn make_room(&self, inner: &mut Inner) -> bool {
        let Some(victim) = inner.victim() else {
            return false;
        };
        inner.stats.evicted += 1;
        coverage::MAC_EVICTED.count();
        if inner.remove(victim).is_some() {
            self.index.remove(victim);
            self.generations.bump(self.slot(victim));
        }
        true
    }

    /// Makes an entry that stays (`fdb/add`), in place of what was there.
    pub fn add_static(&self, key: MacKey, port: Port, now_ms: u64) {
        let mut inner = self.inner.lock();
        self.drop_entry(&mut inner, key);
        if inner.len() >= inner.config.max_entries {
            self.make_room(&mut inner);
        }
        self.add_entry(&mut inner, key, port, true, now_ms);
    }

    /// Takes a static entry away (`fdb/del`). Whether there was one.
    pub fn del_static(&self, key: MacKey) -> bool {
        let mut inner = self.inner.lock();
        let found = inner.get(key).is_some_and(|n| n.is_static);
        if found {
            self.drop_entry(&mut inner, key);
        }
        found
    }
}
