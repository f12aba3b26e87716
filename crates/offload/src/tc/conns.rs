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
use heddle_kernel_conntrack::{EntryKey, Established, EstablishedTable, TC_ZONES};
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
        Err(Why::Full)
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
mod tests {
    use super::super::conn_table::{EntryTable, ROOM_CHECK, read_use};
    use super::*;
    use heddle_conntrack::{Endpoint, Tuple};
    use heddle_kernel_conntrack::established::Listed;
    use parking_lot::Mutex;
    use rustix::io::Errno;

    /// The kernel's table as these tests have it.
    #[derive(Default)]
    struct Content {
        entries: HashSet<EntryKey>,
        /// Tuples whose addition fails after it was done.
        fails: HashSet<Tuple>,
        /// Removals fail.
        stuck: bool,
        /// Remaining life of all entries, seconds.
        life_s: u32,
        full: bool,
    }

    #[derive(Clone, Default)]
    struct Fake(Arc<Mutex<Content>>);

    impl EntryTable for Fake {
        fn add(&mut self, e: &Established) -> io::Result<()> {
            let content = &mut *self.0.lock();
            if !content.entries.insert(e.key()) {
                return Err(Errno::EXIST.into());
            }
            match content.fails.contains(&e.orig) {
                true => Err(Errno::NOBUFS.into()),
                false => Ok(()),
            }
        }
        fn remove(&mut self, keys: &[EntryKey]) -> io::Result<()> {
            let content = &mut *self.0.lock();
            if content.stuck {
                return Err(Errno::NOBUFS.into());
            }
            keys.iter().for_each(|k| _ = content.entries.remove(k));
            Ok(())
        }
        fn prolong(&mut self, _: &[EntryKey], _: u32) -> io::Result<()> {
            Ok(())
        }
        fn list(&mut self) -> io::Result<Vec<Listed>> {
            let content = &*self.0.lock();
            let listed = |key: &EntryKey| Listed {
                key: *key,
                reply: key.orig.reversed(),
                timeout_s: Some(content.life_s),
            };
            Ok(content.entries.iter().map(listed).collect())
        }
        fn has_room(&self) -> bool {
            !self.0.lock().full
        }
    }

    /// Connections with such a table, in zone 5.
    fn conns(kernel: &Fake) -> TcConns {
        let mut all = TcConns::default();
        let zones = KernelZones {
            forth: 40_960,
            back: 40_961,
        };
        all.zones.insert(5, zones);
        all.shared.state.lock().table = Some(Box::new(kernel.clone()));
        all
    }

    fn conn(number: u32) -> Offloadable {
        let end = |addr, l4| Endpoint { addr, l4 };
        let orig = Tuple {
            src: end(1, 10 + number),
            dst: end(2, 20),
            proto: UDP,
            ipv6: false,
        };
        Offloadable {
            id: ConnId {
                number,
                generation: 1,
            },
            zone: 5,
            replied: true,
            orig,
            reply: orig.reversed(),
            snat: false,
            dnat: false,
            mark: 3,
            label: 4,
        }
    }

    #[test]
    fn connections_without_a_reply_stay_with_workers() {
        let c = Offloadable {
            replied: false,
            ..conn(1)
        };
        assert_eq!(TcConns::default().install(&c, false), Err(NO_REPLY));
    }

    #[test]
    fn a_table_that_was_full_is_looked_at_again() {
        let kernel = Fake::default();
        let mut all = conns(&kernel);
        let n = ROOM_CHECK as u32;
        let accepted = |all: &mut TcConns, numbers: std::ops::Range<u32>| {
            let attempts = numbers.map(|number| all.install(&conn(number), false).is_ok());
            attempts.filter(|ok| *ok).count()
        };
        assert_eq!(accepted(&mut all, 0..n), ROOM_CHECK);
        kernel.0.lock().full = true;
        accepted(&mut all, n..2 * n);
        assert_eq!(accepted(&mut all, 2 * n..3 * n), 0);
        all.remove(&[conn(0).id]);
        assert_eq!(accepted(&mut all, 3 * n..4 * n), 0);
        kernel.0.lock().full = false;
        assert!(accepted(&mut all, 4 * n..6 * n) >= ROOM_CHECK);
    }

    #[test]
    fn use_is_known_after_a_list() {
        let mut kernel = Fake::default();
        let mut all = conns(&kernel);
        let id = conn(1).id;
        all.install(&conn(1), false).unwrap();
        assert_eq!(all.used(id), ConnUse::Unknown);
        kernel.0.lock().life_s = LIFE_S / 2;
        read_use(&all.shared, &mut kernel);
        assert_eq!((all.used(id), all.used(id)), (ConnUse::Used, ConnUse::Unknown));
        // Between the two steps a busy machine may need more than a second, which looks like a packet.
        let rests = (0..10).any(|_| {
            let now = |e: &mut ConnEntry| (e.life_s, e.read) = (f64::from(LIFE_S / 2), Instant::now());
            all.shared.state.lock().installed.values_mut().for_each(now);
            read_use(&all.shared, &mut kernel);
            all.used(id) == ConnUse::Rests
        });
        assert!(rests);
        assert_eq!(all.used(id), ConnUse::Unknown);
        kernel.0.lock().entries.clear();
        read_use(&all.shared, &mut kernel);
        assert_eq!(all.used(id), ConnUse::Ended);
    }

    /// A connection whose original direction is translated, so it has two entries.
    fn translated(number: u32) -> Offloadable {
        let mut c = conn(number);
        c.reply.dst.addr = 9;
        c.snat = true;
        c
    }

    #[test]
    fn entries_without_a_connection_are_removed() {
        let kernel = Fake::default();
        let mut all = conns(&kernel);
        let c = translated(1);
        // The second entry fails, then the first one.
        for failing in [c.orig, c.reply.reversed()] {
            kernel.0.lock().fails = HashSet::from([failing]);
            assert!(all.install(&c, false).is_err());
            let state = &mut *all.shared.state.lock();
            let old = std::mem::take(&mut state.old_backs);
            let left = kernel.0.lock().entries.clone();
            assert_eq!(left, old.into_iter().collect(), "those that the thread removes");
            kernel.0.lock().entries.clear();
        }
    }

    #[test]
    fn entries_that_could_not_be_removed_get_another_try() {
        let kernel = Fake::default();
        let mut all = conns(&kernel);
        (1..=2).for_each(|n| all.install(&conn(n), false).unwrap());
        kernel.0.lock().stuck = true;
        all.remove(&[conn(1).id, conn(2).id]);
        assert_eq!((all.len(), kernel.0.lock().entries.len()), (0, 2));
        assert!(all.shared.state.lock().has_work());
        // An entry of a new connection is none of those that are to be removed.
        kernel.0.lock().stuck = false;
        all.install(&conn(2), false).unwrap();
        all.shared.state.lock().remove_again();
        let left: Vec<Tuple> = kernel.0.lock().entries.iter().map(|key| key.orig).collect();
        assert_eq!(left, [conn(2).orig]);
        assert!(!all.shared.state.lock().has_work());
    }
}
