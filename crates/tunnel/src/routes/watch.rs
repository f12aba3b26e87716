//! Finds the cached lookups whose results a change of routes affects.
//!
//! A caller that caches a result registers the query first, and gets a number. The result is valid until the
//! hook gets that number. After each change all registered queries are looked up again. The hook gets the
//! numbers of those with another result, so a change affects only cached results that depend on it.
//!
//! Registering never waits. If another thread holds the list, or it is full, the caller gets the number of
//! any change.

use super::{Address, Query, Table};
use parking_lot::Mutex;
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;

/// Maximum number of queries. There is about one per remote address of a tunnel.
const MAX_QUERIES: usize = 16 * 1024;

pub(super) struct Watch {
    queries: Mutex<HashMap<Query, u64>>,
    seed: RandomState,
    any: u64,
    addresses: u64,
}

impl Default for Watch {
    fn default() -> Self {
        let seed = RandomState::new();
        Self {
            queries: Mutex::default(),
            any: seed.hash_one("any route"),
            addresses: seed.hash_one("addresses"),
            seed,
        }
    }
}

impl Watch {
    /// The number that every change of a route has.
    #[cfg(test)]
    pub(super) fn any(&self) -> u64 {
        self.any
    }
    /// The number of changes of this host's addresses.
    pub(super) fn addresses(&self) -> u64 {
        self.addresses
    }
    /// The number of changes of a device's addresses.
    pub(super) fn device(&self, device: &str) -> u64 {
        self.seed.hash_one(("addresses", device))
    }
    pub(super) fn register(&self, q: &Query) -> u64 {
        let Some(mut queries) = self.queries.try_lock() else {
            return self.any;
        };
        if let Some(number) = queries.get(q) {
            return *number;
        }
        if queries.len() >= MAX_QUERIES {
            return self.any;
        }
        let number = self.seed.hash_one(q);
        queries.insert(*q, number);
        number
    }
    /// The registered queries with this destination.
    pub(super) fn queries_to(&self, dst: IpAddr) -> Vec<Query> {
        let queries = self.queries.lock();
        queries.keys().filter(|q| q.dst == dst).copied().collect()
    }
    /// Notifies the hook. To be called after the change has been published.
    pub(super) fn changed(&self, before: &Table, now: &Table, notify: &dyn Fn(u64)) {
        let all = before.reads_marks != now.reads_marks;
        let differs = |q: &Query| all || before.route(q) != now.route(q);
        self.queries.lock().retain(|q, number| {
            let same = !differs(q);
            if !same {
                notify(*number);
            }
            same
        });
        notify(self.any);
        if before.addresses().ne(now.addresses()) {
            notify(self.addresses);
            let devices = |table: &Table| {
                let mut all: HashMap<Arc<str>, Vec<Address>> = HashMap::new();
                for a in table.addresses() {
                    all.entry(a.device.clone()).or_default().push(a.clone());
                }
                all
            };
            let (before, now) = (devices(before), devices(now));
            let all: HashSet<&Arc<str>> = before.keys().chain(now.keys()).collect();
            for device in all {
                if before.get(device) != now.get(device) {
                    notify(self.device(device));
                }
            }
        }
    }
}
