//! The order of use, behind the table's mutex.
//!
//! Every dynamic entry is in its port's list, ordered by last use; the ports are ordered by how many entries
//! they have. A worker that found the mutex taken only wrote the time into the entry. So the head of a list
//! may have been used since: [`Inner::victim`] puts such an entry where it belongs and looks again.

use super::MacKey;
use super::config::{MacConfig, MacStats};
use super::index::LearnedMac;
use heddle_openflow::Port;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// When an entry was last used: time, then a running number that tells uses at the same time apart.
type Used = (u64, u64);

pub(super) struct Node {
    pub(super) entry: Arc<LearnedMac>,
    used: Used,
    /// Not aged, not evicted.
    pub(super) is_static: bool,
    /// Until when gratuitous ARP over a bond does not move it, ms.
    pub(super) grat_arp_lock_ms: u64,
}

pub(super) struct Inner {
    pub(super) config: MacConfig,
    pub(super) stats: MacStats,
    nodes: HashMap<MacKey, Node>,
    /// Dynamic entries of each port, least recently used first.
    ports: HashMap<Port, BTreeMap<Used, MacKey>>,
    /// Ports by number of dynamic entries.
    crowds: BTreeSet<(usize, Port)>,
    uses: u64,
}

impl Inner {
    pub(super) fn new(config: MacConfig) -> Self {
        Self {
            config,
            stats: MacStats::default(),
            nodes: HashMap::new(),
            ports: HashMap::new(),
            crowds: BTreeSet::new(),
            uses: 0,
        }
    }
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }
    pub(super) fn n_statics(&self) -> usize {
        self.nodes.values().filter(|n| n.is_static).count()
    }
    pub(super) fn get(&self, key: MacKey) -> Option<&Node> {
        self.nodes.get(&key)
    }
    pub(super) fn get_mut(&mut self, key: MacKey) -> Option<&mut Node> {
        self.nodes.get_mut(&key)
    }

    fn unlink(&mut self, port: Port, used: Used) {
        if let Some(list) = self.ports.get_mut(&port) {
            self.crowds.remove(&(list.len(), port));
            list.remove(&used);
            if list.is_empty() {
                self.ports.remove(&port);
            } else {
                self.crowds.insert((list.len(), port));
            }
        }
    }
    fn link(&mut self, port: Port, used: Used, key: MacKey) {
        let list = self.ports.entry(port).or_default();
        self.crowds.remove(&(list.len(), port));
        list.insert(used, key);
        self.crowds.insert((list.len(), port));
    }

    /// Adds an entry that is in no list yet.
    pub(super) fn insert(&mut self, entry: Arc<LearnedMac>, is_static: bool) {
        self.uses += 1;
        let (key, port) = (entry.key, entry.port());
        let used = (entry.used_ms(), self.uses);
        if !is_static {
            self.link(port, used, key);
        }
        self.nodes.insert(
            key,
            Node {
                entry,
                used,
                is_static,
                grat_arp_lock_ms: 0,
            },
        );
    }
    /// Takes an entry out.
    pub(super) fn remove(&mut self, key: MacKey) -> Option<Node> {
        let node = self.nodes.remove(&key)?;
        if !node.is_static {
            self.unlink(node.entry.port(), node.used);
        }
        Some(node)
    }
    /// Notes a use of an entry, which is then on `port`.
    pub(super) fn touch(&mut self, key: MacKey, port: Port, now_ms: u64) {
        let Some(mut node) = self.remove(key) else { return };
        self.uses += 1;
        let now_ms = now_ms.max(node.entry.used_ms());
        node.used = (now_ms, self.uses);
        node.entry.set_port(port);
        node.entry
            .used_ms
            .store(now_ms, std::sync::atomic::Ordering::Relaxed);
        if !node.is_static {
            self.link(port, node.used, key);
        }
        self.nodes.insert(key, node);
    }

    /// The least recently used entry of `port`, after putting late uses in order.
    fn oldest_of(&mut self, port: Port) -> Option<MacKey> {
        loop {
            let (used, key) = self.ports.get(&port)?.first_key_value().map(|(u, k)| (*u, *k))?;
            let seen = self.nodes.get(&key).map_or(0, |n| n.entry.used_ms());
            if seen <= used.0 {
                return Some(key);
            }
            self.touch(key, port, seen);
        }
    }
    /// The entry to evict: the least recently used one of the port with the most entries.
    pub(super) fn victim(&mut self) -> Option<MacKey> {
        let port = self.crowds.last()?.1;
        self.oldest_of(port)
    }
    /// Dynamic entries last used at or before `limit_ms`.
    pub(super) fn older_than(&mut self, limit_ms: u64) -> Vec<MacKey> {
        let mut old = Vec::new();
        for list in self.ports.values() {
            for ((at, _), key) in list {
                if *at > limit_ms {
                    break;
                }
                if self.nodes.get(key).is_some_and(|n| n.entry.used_ms() <= limit_ms) {
                    old.push(*key);
                }
            }
        }
        old
    }
    /// All entries, least recently used first, with whether they are static.
    pub(super) fn in_order(&self) -> Vec<(Arc<LearnedMac>, bool)> {
        let mut all: Vec<&Node> = self.nodes.values().collect();
        all.sort_by_key(|n| (n.used.0.max(n.entry.used_ms()), n.used.1));
        all.into_iter().map(|n| (n.entry.clone(), n.is_static)).collect()
    }
}
