//! Established connections go to a back end, and come back.
//!
//! **Choice.** A connection goes to the back end if offloaded flows track in its zone, it is established, and
//! it was used within the last seconds. So a connection of one request seldom goes there. A pass over all
//! connections is spread over rounds; one round goes through [`LOOKS`] records and installs [`INSTALLS`] at
//! most.
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

/// The connections that a back end has.
pub(crate) struct Conns {
    tracker: Arc<Conntrack>,
    /// With the time of their last use.
    installed: HashMap<ConnId, u64>,
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
        for (id, used_ms) in &mut self.installed {
            let seen = backend.conn_use(*id);
            if seen == ConnUse::Used {
                *used_ms = now_ms;
            }
            let stays = seen != ConnUse::Ended
                && now_ms < *used_ms + REST_MS
                && self.tracker.still_offloaded(now_ms, *id, seen == ConnUse::Used);
            if !stays {
                out.push(*id);
            }
        }
        self.take_out(backend, now_ms, &out);
        if zones.is_empty() {
            return;
        }
        let room = backend.conn_capacity().saturating_sub(self.installed.len());
        let room = room.min(INSTALLS);
        let mut found = Vec::new();
        let next = self.tracker.offloadable(now_ms, self.at, LOOKS, |id, zone| {
            if found.len() < room && zones.contains(&zone) {
                found.push(id);
            }
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
            self.installed.insert(id, now_ms);
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
