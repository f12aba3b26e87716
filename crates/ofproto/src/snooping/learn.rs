//! Learning from reports and queries.

use super::owners::Owners;
use super::{Group, GroupKey, Listener, SnoopingConfig, SnoopingTable};
use crate::coverage;
use heddle_wire::membership::Protocol;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Maximum number of reports of a bridge that wait for a thread with the mutex.
const MAX_QUEUED_REPORTS: usize = 1024;
/// Queued reports that a message may learn for other ports, beside as many as it has records of its own. A
/// message pays for the time of its own records, not for those of a storm.
const MAX_FOREIGN_REPORTS: usize = 16;
/// Maximum number of groups that are counted for another of their ports before one is forgotten.
const MAX_HANDOVERS: usize = 16;

/// Time of a report: ms, then a running number that tells reports at the same time apart.
pub(super) type Used = (u64, u64);

/// The change that a message makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MembershipChange {
    /// A listener reports the group.
    Join(Protocol),
    /// A listener leaves the group.
    Leave,
    /// A router queries for listeners.
    Query,
}

/// One change, and the port that the message came in by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MembershipReport {
    pub(crate) key: GroupKey,
    pub(crate) from: Listener,
    pub(crate) change: MembershipChange,
    /// Coarse clock, ms.
    pub(crate) now_ms: u64,
}

/// Result of learning from a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Snooped {
    /// Number of new groups, of listeners that left a group, and of new routers.
    Changed(usize),
    /// Another thread will learn them.
    Later,
}

/// A listener of a group, or a router.
pub(super) struct KnownListener {
    pub(super) listener: Listener,
    pub(super) used: Used,
}

/// A group, or the routers of a VLAN.
pub(super) struct GroupState {
    /// The protocol of the last report; `None` for routers.
    pub(super) protocol: Option<Protocol>,
    /// Last report of any listener.
    pub(super) used: Used,
    /// The port that the group counts for.
    owner: u32,
    /// Never empty.
    pub(super) known: Vec<KnownListener>,
}

/// The writers' side, behind the table's mutex.
pub(super) struct Inner {
    pub(super) config: SnoopingConfig,
    pub(super) states: HashMap<GroupKey, GroupState>,
    /// Listeners by their last report, and routers.
    pub(super) ages: [BTreeMap<Used, (GroupKey, u32)>; 2],
    owners: Owners,
    /// Number of groups, without routers.
    pub(super) n_groups: usize,
    serial: u64,
    queue: Receiver<MembershipReport>,
}

impl Inner {
    pub(super) fn new() -> (SyncSender<MembershipReport>, Self) {
        let (sender, queue) = sync_channel(MAX_QUEUED_REPORTS);
        let inner = Self {
            config: SnoopingConfig::default(),
            states: HashMap::new(),
            ages: Default::default(),
            owners: Owners::default(),
            n_groups: 0,
            serial: 0,
            queue,
        };
        (sender, inner)
    }

    pub(super) fn ages_of(&mut self, key: GroupKey) -> &mut BTreeMap<Used, (GroupKey, u32)> {
        let [listeners, routers] = &mut self.ages;
        if key.is_of_routers() { routers } else { listeners }
    }

    fn next_use(&mut self, now_ms: u64) -> Used {
        self.serial += 1;
        (now_ms, self.serial)
    }
}

impl SnoopingTable {
    /// Learns the changes that one message announces. Never waits.
    pub(crate) fn learn(&self, reports: impl Iterator<Item = MembershipReport> + Clone) -> Snooped {
        let Some(mut inner) = self.inner.try_lock() else {
            return self.queue(reports);
        };
        // Earlier reports first: a port may leave a group and join it again.
        let most = reports.clone().count() + MAX_FOREIGN_REPORTS;
        if self.learn_queued(&mut inner, most) == most {
            // The last ones wait, and so do these.
            return self.queue(reports);
        }
        Snooped::Changed(reports.filter(|r| self.learn_one(&mut inner, r)).count())
    }

    /// Leaves reports for a later message, or for [`SnoopingTable::age`].
    fn queue(&self, reports: impl Iterator<Item = MembershipReport>) -> Snooped {
        for report in reports {
            if self.queue.try_send(report).is_err() {
                coverage::MCAST_QUEUE_FULL.count();
            }
        }
        Snooped::Later
    }

    /// Learns at most `most` of the reports that were left in the queue. Returns their number.
    pub(super) fn learn_queued(&self, inner: &mut Inner, most: usize) -> usize {
        for n in 0..most {
            let Ok(report) = inner.queue.try_recv() else {
                return n;
            };
            self.learn_one(inner, &report);
        }
        most
    }

    fn learn_one(&self, inner: &mut Inner, report: &MembershipReport) -> bool {
        let MembershipReport {
            key,
            from,
            change,
            now_ms,
        } = *report;
        match change {
            MembershipChange::Join(protocol) => self.join(inner, key, from, protocol, now_ms),
            MembershipChange::Leave => self.remove_listener(inner, key, from.bundle),
            MembershipChange::Query => self.add_listener(inner, key, from, None, now_ms),
        }
    }

    /// Whether the group is new.
    fn join(
        &self,
        inner: &mut Inner,
        key: GroupKey,
        from: Listener,
        protocol: Protocol,
        now_ms: u64,
    ) -> bool {
        // Routers get all groups.
        let routers = inner.states.get(&GroupKey::routers(key.vlan));
        if routers.is_some_and(|r| r.known.iter().any(|k| k.listener.bundle == from.bundle)) {
            return false;
        }
        let is_new = !inner.states.contains_key(&key);
        if is_new && inner.n_groups >= inner.config.max_groups {
            self.make_room(inner);
        }
        self.add_listener(inner, key, from, Some(protocol), now_ms);
        is_new
    }

    /// Adds a listener, or refreshes it. Whether it is new.
    fn add_listener(
        &self,
        inner: &mut Inner,
        key: GroupKey,
        from: Listener,
        protocol: Option<Protocol>,
        now_ms: u64,
    ) -> bool {
        let used = inner.next_use(now_ms);
        inner.ages_of(key).insert(used, (key, from.bundle));
        let is_group = !key.is_of_routers();
        let Some(state) = inner.states.get_mut(&key) else {
            let state = GroupState {
                protocol,
                used,
                owner: from.bundle,
                known: vec![KnownListener { listener: from, used }],
            };
            inner.states.insert(key, state);
            if is_group {
                inner.n_groups += 1;
                inner.owners.insert(from.bundle, used, key);
            }
            coverage::MCAST_LEARNED.count();
            self.publish(inner, key);
            return true;
        };
        let before = std::mem::replace(&mut state.used, used);
        state.protocol = protocol;
        if is_group {
            inner.owners.remove(state.owner, before);
            inner.owners.insert(state.owner, used, key);
        }
        let mut known = state.known.iter_mut();
        if let Some(known) = known.find(|k| k.listener.bundle == from.bundle) {
            let before = std::mem::replace(&mut known.used, used);
            let moved = std::mem::replace(&mut known.listener, from) != from;
            inner.ages_of(key).remove(&before);
            if moved {
                self.publish(inner, key);
            }
            return false;
        }
        state.known.push(KnownListener { listener: from, used });
        if !is_group {
            coverage::MCAST_LEARNED.count();
        }
        self.publish(inner, key);
        true
    }

    /// Removes a listener, and the group if it was the last one. Whether it was there.
    pub(super) fn remove_listener(&self, inner: &mut Inner, key: GroupKey, bundle: u32) -> bool {
        let Some(state) = inner.states.get_mut(&key) else {
            return false;
        };
        let Some(at) = state.known.iter().position(|k| k.listener.bundle == bundle) else {
            return false;
        };
        let gone = state.known.remove(at);
        let (owner, used) = (state.owner, state.used);
        let heir = state.known.first().map(|k| k.listener.bundle);
        inner.ages_of(key).remove(&gone.used);
        match heir {
            None => self.drop_state(inner, key),
            Some(heir) => {
                if owner == bundle {
                    Self::hand_over(inner, key, (owner, used), heir);
                }
                self.publish(inner, key);
            }
        }
        true
    }

    /// Counts a group for another of its ports.
    fn hand_over(inner: &mut Inner, key: GroupKey, (owner, used): (u32, Used), heir: u32) {
        if key.is_of_routers() {
            return;
        }
        if let Some(state) = inner.states.get_mut(&key) {
            state.owner = heir;
        }
        inner.owners.remove(owner, used);
        inner.owners.insert(heir, used, key);
    }

    /// Forgets a group, if there is one. Groups that other ports listen to, too, are counted for these first,
    /// as far as [`MAX_HANDOVERS`] allow.
    pub(super) fn make_room(&self, inner: &mut Inner) {
        for left in (0..MAX_HANDOVERS).rev() {
            let Some(key) = inner.owners.victim() else { return };
            let Some(state) = inner.states.get(&key) else {
                return;
            };
            let (owner, used) = (state.owner, state.used);
            let mut bundles = state.known.iter().map(|k| k.listener.bundle);
            match bundles.find(|b| *b != owner).filter(|_| left > 0) {
                Some(heir) => Self::hand_over(inner, key, (owner, used), heir),
                None => return self.drop_state(inner, key),
            }
        }
    }

    /// Removes a group with all listeners.
    pub(super) fn drop_state(&self, inner: &mut Inner, key: GroupKey) {
        let Some(state) = inner.states.remove(&key) else {
            return;
        };
        for known in &state.known {
            inner.ages_of(key).remove(&known.used);
        }
        if !key.is_of_routers() {
            inner.n_groups -= 1;
            inner.owners.remove(state.owner, state.used);
        }
        self.publish(inner, key);
    }

    /// Shows a group's listeners to lookups, and counts the change.
    fn publish(&self, inner: &Inner, key: GroupKey) {
        let bits = self.bits(key);
        match inner.states.get(&key) {
            Some(state) => {
                let listeners = state.known.iter().map(|k| k.listener).collect();
                let group = Group { key, listeners };
                self.index.put(bits, |g| g.key == key, Arc::new(group));
            }
            None => self.index.remove(bits, |g| g.key == key),
        }
        coverage::REV_MCAST_SNOOPING.count();
        self.generations.bump(self.slot(key));
    }

    pub(super) fn resize(&self, max_groups: usize) {
        self.index.resize(max_groups, |g| self.bits(g.key));
    }
}
