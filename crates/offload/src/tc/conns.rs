//! Established connections as entries of the kernel's table, where the action `ct` finds them.
//!
//! **Zones.** Each zone of rules has two zones of the kernel ([`TC_ZONES`]), which no other program and no
//! other part of the switch writes. The first one has the connections. The second one has an entry for each
//! translated connection, which translates its packets back ([`super::plan`]).
//!
//! **End.** A worker that ends a connection sets a bit and wakes the thread `tc-ct`. The thread removes the
//! kernel's entry, mostly within a millisecond. Until then the kernel still forwards packets of the
//! connection. A packet may have been translated before its entry is removed. So the entry that translates
//! back goes after a grace period.
//!
//! **Use.** The kernel sets the remaining life of an entry with each packet. The thread lists the entries
//! every few seconds. An entry was used if its remaining life is not the last one minus the time between.

use super::conn_table::{ConnEntry, NO_TABLE, Shared, index_of, run};
use super::entries::{KernelZones, LIFE_S, back_of, forth_of, remove_entries};
use crate::{ConnUse, Why, miss};
use heddle_conntrack::offloaded::{ConnId, EndOffload, Offloadable};
use heddle_kernel_conntrack::{EntryKey, EstablishedTable, TC_ZONES};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const UDP: u8 = 17;
const TCP: u8 = 6;
/// Time after a failure before the next attempt.
const RETRY: Duration = Duration::from_secs(10);

const NO_REPLY: Why = Why::Action("ct of a connection without a reply (through tc)");
const NO_ZONES: Why = Why::Action("ct (through tc: another switch on this machine uses it)");
/// Pairs of zones are not freed. This reason is none that a later round may pass.
const NO_ZONE_LEFT: Why = Why::Action("ct (through tc: more than 2048 zones since the start)");

/// The connections of the tc back end.
pub(super) struct TcConns {
    shared: Arc<Shared>,
    zones: HashMap<u16, KernelZones>,
    next_zone: u16,
    /// Zones of the kernel that filters and entries of an earlier process use.
    pub(super) left_zones: HashSet<u16>,
    /// Keeps other switches away from the zones.
    claim: Option<UnixDatagram>,
    claim_timeout: Duration,
    failed: Option<(Instant, Why)>,
}

impl Default for TcConns {
    fn default() -> Self {
        Self {
            shared: Arc::new(Shared::new()),
            zones: HashMap::new(),
            next_zone: *TC_ZONES.start(),
            left_zones: HashSet::new(),
            claim: None,
            claim_timeout: miss::CLAIM_TIMEOUT,
            failed: None,
        }
    }
}

impl Drop for TcConns {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
    }
}

impl TcConns {
    /// Number of connections.
    pub(super) fn len(&self) -> usize {
        self.shared.state.lock().installed.len()
    }
    /// Ends connections.
    pub(super) fn ender(&self) -> Arc<dyn EndOffload> {
        Arc::clone(&self.shared) as Arc<dyn EndOffload>
    }
    /// The zones of the kernel for a zone of rules.
    ///
    /// # Errors
    /// The kernel's table cannot be written, or no zone is left.
    pub(super) fn zones_of(&mut self, zone: u16) -> Result<KernelZones, Why> {
        if let Some(zones) = self.zones.get(&zone) {
            return Ok(*zones);
        }
        self.open()?;
        while self.next_zone < *TC_ZONES.end() {
            let zones = KernelZones {
                forth: self.next_zone,
                back: self.next_zone + 1,
            };
            self.next_zone += 2;
            if ![zones.forth, zones.back]
                .iter()
                .any(|z| self.left_zones.contains(z))
            {
                self.zones.insert(zone, zones);
                return Ok(zones);
            }
        }
        Err(NO_ZONE_LEFT)
    }
    /// Opens the kernel's table, and starts the thread.
    fn open(&mut self) -> Result<(), Why> {
        if self.claim.is_some() {
            return Ok(());
        }
        if let Some((_, why)) = self.failed.filter(|(at, _)| at.elapsed() < RETRY) {
            return Err(why);
        }
        let done = self.try_open();
        if let Err((why, error)) = done {
            if self.failed.is_none() {
                let text = heddle_sys::errno_text(&error);
                log::warn!(
                    target: "netdev_offload",
                    "tc: connections stay with workers: {text} (they need nf_conntrack_netlink and CAP_NET_ADMIN)"
                );
            }
            self.failed = Some((Instant::now(), why));
            return Err(why);
        }
        Ok(())
    }
    fn try_open(&mut self) -> Result<(), (Why, io::Error)> {
        let claim = miss::claim_name("heddle-ct-zones", &mut self.claim_timeout);
        let claim = claim.map_err(|error| (NO_ZONES, error))?;
        let no_table = |error| (NO_TABLE, error);
        let mut table = EstablishedTable::new().map_err(no_table)?;
        table.probe().map_err(no_table)?;
        // Filters of an earlier process may lead to some of the entries that it left.
        let listed = table.list().map_err(no_table)?;
        let unused = listed.iter().map(|l| l.key);
        let unused: Vec<EntryKey> = unused.filter(|k| !self.left_zones.contains(&k.zone)).collect();
        table.remove(&unused).map_err(no_table)?;
        let mut list_table = EstablishedTable::new().map_err(no_table)?;
        self.shared.state.lock().table = Some(Box::new(table));
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("tc-ct".to_owned());
        let handle = thread
            .spawn(move || run(&shared, &mut list_table))
            .map_err(no_table)?;
        let _ = self.shared.thread.set(handle.thread().clone());
        self.claim = Some(claim);
        Ok(())
    }
    /// Removes the entries that an earlier process left. No filter leads to them any more.
    pub(super) fn drop_adopted(&mut self) {
        let left = std::mem::take(&mut self.left_zones);
        if !left.is_empty() {
            remove_entries(&left);
        }
    }

    /// Adds the entries of a connection. `for_cards`: cards may take it.
    pub(super) fn install(&mut self, c: &Offloadable, for_cards: bool) -> Result<(), Why> {
        if !c.replied || !matches!(c.orig.proto, TCP | UDP) {
            return Err(NO_REPLY);
        }
        let zones = self.zones_of(c.zone)?;
        let index = index_of(c.id.number);
        let shared = Arc::clone(&self.shared);
        let state = &mut *shared.state.lock();
        if state.installed.contains_key(&index) {
            return Err(Why::Full);
        }
        if !state.has_room() {
            return Err(Why::Full);
        }
        // A bit of an earlier connection with the same index.
        shared.clear(index);
        let back = back_of(c, zones);
        let forth = forth_of(c, zones, for_cards);
        if let Err(why) = state.add_pair(&forth, back.as_ref()) {
            shared.wake();
            return Err(why);
        }
        if state.installed.is_empty() {
            shared.wake();
        }
        state.number += 1;
        let entry = ConnEntry {
            id: c.id,
            forth: forth.key(),
            back: back.map(|back| back.key()),
            number: state.number,
            life_s: LIFE_S.into(),
            read: Instant::now(),
            used: None,
            ended: false,
        };
        state.installed.insert(index, entry);
        Ok(())
    }
    /// Removes the entries of connections.
    pub(super) fn remove(&mut self, ids: &[ConnId]) {
        let state = &mut *self.shared.state.lock();
        let has = |id: &&ConnId| {
            let entry = state.installed.get(&index_of(id.number));
            entry.is_some_and(|e| e.id == **id)
        };
        let indices: Vec<usize> = ids.iter().filter(has).map(|id| index_of(id.number)).collect();
        state.end(&indices);
        indices.iter().for_each(|index| _ = state.installed.remove(index));
        if state.has_work() {
            self.shared.wake();
        }
    }
    /// Use of a connection, as the lists since the last call have shown it.
    pub(super) fn used(&mut self, id: ConnId) -> ConnUse {
        let state = &mut *self.shared.state.lock();
        let entry = state.installed.get_mut(&index_of(id.number));
        let Some(entry) = entry.filter(|e| e.id == id && !e.ended) else {
            return ConnUse::Ended;
        };
        match entry.used.take() {
            None => ConnUse::Unknown,
            Some(true) => ConnUse::Used,
            Some(false) => ConnUse::Rests,
        }
    }
}

#[cfg(test)]
mod tests;
