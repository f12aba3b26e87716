//! Ageing, flushing and listing, by control threads.

use super::{MacKey, MacTable};
use crate::coverage::MAC_EXPIRED;
use heddle_openflow::Port;
use std::collections::HashSet;

/// One entry, as `fdb/show` lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MacEntry {
    /// Address and VLAN.
    pub key: MacKey,
    /// The port that it was last seen on.
    pub port: Port,
    /// Whole seconds since it was last seen; `None` for a static entry.
    pub age_s: Option<u64>,
}

impl MacTable {
    /// Drops entries that were idle for too long, and entries above the limit. To be called about once a
    /// second.
    pub fn age(&self, now_ms: u64) {
        let mut inner = self.inner.lock();
        let limit_ms = inner.config.idle_s * 1000;
        if now_ms >= limit_ms {
            for key in inner.older_than(now_ms - limit_ms) {
                inner.stats.expired += 1;
                MAC_EXPIRED.count();
                self.drop_entry(&mut inner, key);
            }
        }
        while inner.len() > inner.config.max_entries {
            let Some(victim) = inner.victim() else { break };
            inner.stats.expired += 1;
            MAC_EXPIRED.count();
            self.drop_entry(&mut inner, victim);
        }
        self.index.resize(inner.config.max_entries.max(inner.len()));
    }

    /// Drops all but static entries (`fdb/flush`).
    pub fn flush(&self) {
        self.flush_if(|_, _| true);
    }

    /// Drops the dynamic entries of a port (it has gone, or its VLANs have changed); returns their keys.
    pub fn flush_port(&self, port: Port) -> Vec<MacKey> {
        let gone = std::cell::RefCell::default();
        self.flush_if(|key, p| {
            let its = p == port;
            if its {
                Vec::push(&mut gone.borrow_mut(), key);
            }
            its
        });
        gone.into_inner()
    }

    /// Drops the dynamic entries that `gone` names.
    pub fn flush_if(&self, gone: impl Fn(MacKey, Port) -> bool) {
        let mut inner = self.inner.lock();
        for (e, is_static) in inner.in_order() {
            if !is_static && gone(e.key, e.port()) {
                self.drop_entry(&mut inner, e.key);
            }
        }
    }

    /// Drops the dynamic entries of these addresses.
    pub fn flush_keys(&self, keys: &HashSet<MacKey>) {
        self.flush_if(|key, _| keys.contains(&key));
    }

    /// All entries, least recently used first.
    pub fn entries(&self, now_ms: u64) -> Vec<MacEntry> {
        let all = self.inner.lock().in_order();
        let age = |used_ms: u64| (now_ms / 1000).saturating_sub(used_ms / 1000);
        all.into_iter()
            .map(|(e, is_static)| MacEntry {
                key: e.key,
                port: e.port(),
                age_s: (!is_static).then(|| age(e.used_ms())),
            })
            .collect()
    }
}
