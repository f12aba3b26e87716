//! Established connections go to a back end, and come back.
//!
//! **Choice.** A connection goes to the back end if offloaded flows track in its zone, it is established, and
//! it was used within the last seconds. So a connection of one request seldom goes there. Streams of UDP
//! without replies go there, too. Any guest can begin them, so their share of the room is bounded
//! ([`UNREPLIED_SHARE`]). A pass over all connections is spread over rounds; one round goes through [`LOOKS`]
//! records and installs [`INSTALLS`] at most.
//!
//! **Invariants.** Each connection that the back end has is marked in the tracker. The tracker ends it there
//! at once when it is over, closes, or has another mark or label ([`heddle_conntrack::offloaded`]). A
//! connection that ended that way keeps its entries, which count nothing, until the next round. A connection
//! that the back end forwards lives as long as packets come. A connection without packets for [`REST_MS`]
//! returns to the tracker, and its age is not reset.

use crate::{Backend, ConnUse, Rule};
use heddle_conntrack::Conntrack;
use heddle_conntrack::offloaded::ConnId;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Records looked at in a round.
const LOOKS: u32 = 1 << 16;
/// Connections installed in a round.
const INSTALLS: usize = 8192;
/// Rounds come no faster than that.
const ROUND_MS: u64 = 250;
/// A connection without packets for so long has no place.
const REST_MS: u64 = 10_000;

/// Connections without a reply may have the back end's room divided by this.
const UNREPLIED_SHARE: usize = 4;

/// A connection that the back end has.
struct Installed {
    used_ms: u64,
    replied: bool,
}

/// The connections that a back end has.
pub(crate) struct Conns {
    tracker: Arc<Conntrack>,
    installed: HashMap<ConnId, Installed>,
    at: u32,
    round_ms: u64,
}

/// The zones that rules track in.
pub(crate) fn zones<'a>(rules: impl Iterator<Item = &'a Rule>) -> HashSet<u16> {
    let ops = rules.flat_map(|rule| rule.ops.iter());
    ops.filter_map(|op| match op {
        crate::Op::Ct(ct) => Some(ct.zone),
        _ => None,
    })
    .collect()
}

impl Conns {
    pub(crate) fn new(tracker: Arc<Conntrack>) -> Self {
        Self {
            tracker,
            installed: HashMap::new(),
            at: 0,
            round_ms: 0,
        }
    }
    pub(crate) fn len(&self) -> usize {
        self.installed.len()
    }
    /// Whether a round is due.
    pub(crate) fn due(&self, now_ms: u64) -> bool {
        now_ms >= self.round_ms + ROUND_MS
    }
    /// One round: takes out connections that are over, and installs new ones.
    pub(crate) fn turn(&mut self, backend: &mut dyn Backend, now_ms: u64, zones: &HashSet<u16>) {
        self.round_ms = now_ms;
        let mut out = Vec::new();
        let mut unreplied = 0;
        for (id, of) in &mut self.installed {
            let seen = backend.conn_use(*id);
            if seen == ConnUse::Used {
                of.used_ms = now_ms;
            }
            unreplied += usize::from(!of.replied);
            let rests = seen == ConnUse::Rests && now_ms >= of.used_ms + REST_MS;
            let stays = seen != ConnUse::Ended
                && !rests
                && self.tracker.still_offloaded(now_ms, *id, seen == ConnUse::Used);
            if !stays {
                out.push(*id);
            }
        }
        self.take_out(backend, now_ms, &out);
        if zones.is_empty() {
            return;
        }
        let capacity = backend.conn_capacity();
        let room = capacity.saturating_sub(self.installed.len()).min(INSTALLS);
        let mut for_unreplied = match backend.takes_unreplied() {
            true => (capacity / UNREPLIED_SHARE).saturating_sub(unreplied),
            false => 0,
        };
        let mut found = Vec::new();
        let next = self.tracker.offloadable(now_ms, self.at, LOOKS, |c| {
            if found.len() == room || !zones.contains(&c.zone) || !c.replied && for_unreplied == 0 {
                return;
            }
            for_unreplied -= usize::from(!c.replied);
            found.push(c.id);
        });
        self.at = next.unwrap_or(0);
        for id in found {
            self.install(backend, now_ms, id);
        }
    }
    fn install(&mut self, backend: &mut dyn Backend, now_ms: u64, id: ConnId) {
        let Some(conn) = self.tracker.offload(now_ms, id) else {
            return;
        };
        let done = backend.install_conn(&conn);
        // The tracker may have ended it before the back end could be notified.
        if done.is_ok() && self.tracker.still_offloaded(now_ms, id, false) {
            let replied = conn.replied;
            self.installed.insert(
                id,
                Installed {
                    used_ms: now_ms,
                    replied,
                },
            );
            return;
        }
        if done.is_ok() {
            backend.remove_conns(&[id]);
        }
        self.tracker.onload(now_ms, id);
    }
    /// All come back.
    pub(crate) fn clear(&mut self, backend: &mut dyn Backend, now_ms: u64) {
        let all: Vec<ConnId> = self.installed.keys().copied().collect();
        self.take_out(backend, now_ms, &all);
    }
    fn take_out(&mut self, backend: &mut dyn Backend, now_ms: u64, ids: &[ConnId]) {
        if ids.is_empty() {
            return;
        }
        backend.remove_conns(ids);
        for id in ids {
            self.installed.remove(id);
            // The thread that ended it has notified the tracker already, unless it rested.
            if self.tracker.still_offloaded(now_ms, *id, false) {
                self.tracker.onload(now_ms, *id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Handle, PortLink, Why};
    use heddle_conntrack::offloaded::Offloadable;
    use heddle_conntrack::{Config, Endpoint, Tuple};
    use heddle_datapath_api::{FlowCounts, PortNo};

    /// A back end with room for eight connections.
    struct Eight(Vec<Offloadable>, ConnUse);

    impl Default for Eight {
        fn default() -> Self {
            Self(Vec::new(), ConnUse::Used)
        }
    }

    impl Backend for Eight {
        fn name(&self) -> &'static str {
            "eight"
        }
        fn capacity(&self) -> usize {
            0
        }
        fn install(&mut self, _: Handle, _: &Rule) -> Result<(), Why> {
            Err(Why::Full)
        }
        fn change(&mut self, _: Handle, _: &Rule) -> (FlowCounts, Result<(), Why>) {
            (FlowCounts::default(), Err(Why::Full))
        }
        fn remove(&mut self, _: Handle) -> FlowCounts {
            FlowCounts::default()
        }
        fn counters(&mut self, _: u64, _: &mut dyn FnMut(Handle, FlowCounts)) {}
        fn set_ports(&mut self, _: &[PortLink]) -> Vec<PortNo> {
            Vec::new()
        }
        fn stats(&self) -> Vec<(String, u64)> {
            Vec::new()
        }
        fn conn_capacity(&self) -> usize {
            8
        }
        fn install_conn(&mut self, conn: &Offloadable) -> Result<(), Why> {
            self.0.push(*conn);
            Ok(())
        }
        fn remove_conns(&mut self, ids: &[ConnId]) {
            self.0.retain(|c| !ids.contains(&c.id));
        }
        fn conn_use(&mut self, _: ConnId) -> ConnUse {
            self.1
        }
    }

    fn add(tracker: &Conntrack, now_ms: u64, n: u32, replied: bool) {
        let end = |addr, l4| Endpoint { addr, l4 };
        let orig = Tuple {
            src: end(10, n),
            dst: end(20, 53),
            proto: 17,
            ipv6: false,
        };
        let c = Offloadable {
            id: ConnId {
                number: 0,
                generation: 0,
            },
            zone: 5,
            replied,
            orig,
            reply: orig.reversed(),
            snat: false,
            dnat: false,
            mark: 0,
            label: 0,
        };
        assert!(tracker.adopt(now_ms, &c));
    }

    #[test]
    fn streams_without_a_reply_leave_room_for_the_others() {
        let tracker = Arc::new(Conntrack::new(Config::default()).unwrap());
        let add = |n, replied| add(&tracker, 1000, n, replied);
        (1..=10).for_each(|n| add(n, false));
        let mut conns = Conns::new(Arc::clone(&tracker));
        let mut backend = Eight::default();
        let zones = HashSet::from([5]);
        for now in [1000, 2000] {
            conns.turn(&mut backend, now, &zones);
            assert_eq!(backend.0.len(), 2);
        }
        (11..=20).for_each(|n| add(n, true));
        for now in [3000, 3500] {
            conns.turn(&mut backend, now, &zones);
            let replied = backend.0.iter().filter(|c| c.replied).count();
            assert_eq!((backend.0.len(), replied), (8, 6));
        }
        conns.clear(&mut backend, 3500);
        assert_eq!((backend.0.len(), conns.len()), (0, 0));
    }

    #[test]
    fn a_connection_rests_only_if_the_back_end_has_looked() {
        let tracker = Arc::new(Conntrack::new(Config::default()).unwrap());
        add(&tracker, 1000, 1, true);
        let mut conns = Conns::new(tracker);
        let mut backend = Eight::default();
        let zones = HashSet::from([5]);
        conns.turn(&mut backend, 1000, &zones);
        backend.1 = ConnUse::Unknown;
        conns.turn(&mut backend, 1000 + 2 * REST_MS, &zones);
        assert_eq!(conns.len(), 1);
        backend.1 = ConnUse::Rests;
        conns.turn(&mut backend, 1500 + 2 * REST_MS, &zones);
        assert_eq!(conns.len(), 0);
    }
}
