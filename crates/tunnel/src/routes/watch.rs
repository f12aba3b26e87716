//! Whose answers a change of routes changes.
//!
//! Who keeps the answer to a question registers the question first, and gets a number: the answer holds until
//! that number is said. After each change all questions are asked again, and the numbers of those with
//! another answer are said. So a change of a route makes nothing stale but what goes by it.
//!
//! Registering waits for nobody. Who finds the list taken or full gets a number that is said at any change.

use super::{Address, Query, Route, Table};
use parking_lot::Mutex;
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::Arc;

/// Questions kept; there are as many as tunnels have remote hosts.
const MAX_QUESTIONS: usize = 16 * 1024;

pub(super) struct Watch {
    asked: Mutex<HashMap<Query, u64>>,
    seed: RandomState,
    any: u64,
    addresses: u64,
}

impl Default for Watch {
    fn default() -> Self {
        let seed = RandomState::new();
        Self {
            asked: Mutex::default(),
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
    /// The number of this host's addresses.
    pub(super) fn addresses(&self) -> u64 {
        self.addresses
    }
    /// The number of the addresses of a device.
    pub(super) fn device(&self, device: &str) -> u64 {
        self.seed.hash_one(("addresses", device))
    }
    pub(super) fn register(&self, q: &Query) -> u64 {
        let Some(mut asked) = self.asked.try_lock() else {
            return self.any;
        };
        if let Some(number) = asked.get(q) {
            return *number;
        }
        if asked.len() >= MAX_QUESTIONS {
            return self.any;
        }
        let number = self.seed.hash_one(q);
        asked.insert(*q, number);
        number
    }
    /// To be called after the change has been published.
    pub(super) fn changed(&self, before: &Table, now: &Table, tell: &dyn Fn(u64)) {
        let differs = |q: &Query| before.lookup(q).map(Route::new) != now.lookup(q).map(Route::new);
        self.asked.lock().retain(|q, number| {
            let same = !differs(q);
            if !same {
                tell(*number);
            }
            same
        });
        tell(self.any);
        if before.addresses().ne(now.addresses()) {
            tell(self.addresses);
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
                    tell(self.device(device));
                }
            }
        }
    }
}
