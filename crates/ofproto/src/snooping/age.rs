//! Settings, ageing, flushing and listing, by control threads.

use super::learn::Used;
use super::{GroupKey, Listener, SnoopingConfig, SnoopingTable};
use crate::coverage;
use heddle_wire::membership::Protocol;
use std::sync::atomic::Ordering::Relaxed;

/// Time without a query before a port has no router any more, ms. Open vSwitch has the same time.
const ROUTER_IDLE_MS: u64 = 180_000;

/// One line of `mdb/show`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnoopedListener {
    /// Group and VLAN, or the routers' key.
    pub key: GroupKey,
    /// The protocol of the group's last report; `None` for a router.
    pub protocol: Option<Protocol>,
    /// The listener or router.
    pub listener: Listener,
    /// Whole seconds since its last report or query.
    pub age_s: u64,
}

impl SnoopingTable {
    /// Changes the settings. Values out of range are brought into it. Too many groups go at the next
    /// [`SnoopingTable::age`].
    pub fn configure(&self, config: &SnoopingConfig) {
        let mut inner = self.inner.lock();
        inner.config = SnoopingConfig {
            max_groups: config.max_groups.clamp(10, 1_000_000),
            idle_s: config.idle_s.clamp(15, 3600),
            ..*config
        };
        // Groups above the limit go first (`age`): in few buckets each change would copy many of them.
        self.resize(inner.config.max_groups.max(inner.n_groups));
    }

    /// The settings in force.
    pub fn config(&self) -> SnoopingConfig {
        self.inner.lock().config
    }

    /// Removes listeners and routers that were silent for too long, and groups above the limit. Ports that
    /// have used up their [`ReportBudget`](super::ReportBudget) are looked at again. To be called at least
    /// once a second.
    pub fn age(&self, now_ms: u64) {
        if self.has_limited.swap(false, Relaxed) {
            self.generations.bump(self.limit_slot());
        }
        let mut inner = self.inner.lock();
        self.learn_queued(&mut inner, usize::MAX);
        for (kind, idle_ms) in [inner.config.idle_s * 1000, ROUTER_IDLE_MS]
            .into_iter()
            .enumerate()
        {
            while let Some((_, (key, bundle))) = inner.ages[kind]
                .first_key_value()
                .map(|(used, at)| (*used, *at))
                .filter(|((used_ms, _), _)| now_ms >= used_ms + idle_ms)
            {
                coverage::MCAST_EXPIRED.count();
                if !self.remove_listener(&mut inner, key, bundle) {
                    debug_assert!(false, "a listener of the list is in the table");
                    inner.ages[kind].pop_first();
                }
            }
        }
        while inner.n_groups > inner.config.max_groups {
            let before = inner.n_groups;
            self.make_room(&mut inner);
            if inner.n_groups == before {
                break;
            }
        }
        self.resize(inner.config.max_groups.max(inner.n_groups));
    }

    /// Forgets all groups and routers (`mdb/flush`).
    pub fn flush(&self) {
        let mut inner = self.inner.lock();
        self.learn_queued(&mut inner, usize::MAX);
        let keys: Vec<GroupKey> = inner.states.keys().copied().collect();
        keys.into_iter().for_each(|key| self.drop_state(&mut inner, key));
    }

    /// Forgets one port (it has gone, or its VLANs have changed).
    pub fn flush_bundle(&self, bundle: u32) {
        let mut inner = self.inner.lock();
        self.learn_queued(&mut inner, usize::MAX);
        let of_bundle = inner.ages.iter().flatten().filter(|(_, (_, b))| *b == bundle);
        let keys: Vec<GroupKey> = of_bundle.map(|(_, (key, _))| *key).collect();
        for key in keys {
            self.remove_listener(&mut inner, key, bundle);
        }
    }

    /// All listeners, the group that was reported least recently first; behind them the routers.
    pub fn entries(&self, now_ms: u64) -> Vec<SnoopedListener> {
        let inner = self.inner.lock();
        let mut all: Vec<(bool, Used, Used, SnoopedListener)> = Vec::new();
        for (key, state) in &inner.states {
            let is_of_routers = key.is_of_routers();
            for known in &state.known {
                let line = SnoopedListener {
                    key: *key,
                    protocol: state.protocol,
                    listener: known.listener,
                    age_s: (now_ms / 1000).saturating_sub(known.used.0 / 1000),
                };
                let of_group = if is_of_routers { (0, 0) } else { state.used };
                all.push((is_of_routers, of_group, known.used, line));
            }
        }
        all.sort_unstable_by_key(|(is_of_routers, group, used, _)| (*is_of_routers, *group, *used));
        all.into_iter().map(|(.., line)| line).collect()
    }
}
