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
//! every few seconds. An entry whose life did not decrease was used.

use crate::{ConnUse, Why, miss};
use heddle_conntrack::Tuple;
use heddle_conntrack::offloaded::{ConnId, EndOffload, Offloadable};
use heddle_kernel_conntrack::{EntryKey, Established, EstablishedTable, TC_ZONES};
use heddle_sys::shared_words;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Maximum number of connections.
pub(super) const MAX_CONNS: usize = 1 << 16;
const WORD_BITS: usize = u64::BITS as usize;
const UDP: u8 = 17;
const TCP: u8 = 6;
/// Life of an entry before its first packet, seconds.
const LIFE_S: u32 = 600;
/// Life of an entry that translates back, seconds. It is renewed at half of that.
const BACK_LIFE_S: u32 = 10 * 24 * 3600;
/// Shortest time between two lists of the entries, and the share of it that a list may take.
const MIN_LIST_INTERVAL: Duration = Duration::from_secs(3);
const LIST_SHARE: u32 = 20;
/// Difference of remaining lives that is no rounding.
const USED_S: f64 = 1.5;
/// The size of the kernel's table is checked once in this number of installations.
const ROOM_CHECK: usize = 64;
/// Time after a failure before the next attempt.
const RETRY: Duration = Duration::from_secs(10);

const NO_REPLY: Why = Why::Action("ct of a connection without a reply (through tc)");
const NO_TABLE: Why = Why::Action("ct (through tc: the kernel's connections cannot be written)");
const NO_ZONES: Why = Why::Action("ct (through tc: another switch on this machine uses it)");

/// Zones of the kernel for a zone of rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KernelZones {
    /// The connections.
    pub(super) forth: u16,
    /// The entries that translate back.
    pub(super) back: u16,
}

/// Entry of a connection.
struct ConnEntry {
    id: ConnId,
    forth: EntryKey,
    back: Option<EntryKey>,
    /// Number of its installation.
    number: u64,
    life_s: f64,
    read: Instant,
    used: bool,
    ended: bool,
}

#[derive(Default)]
struct ConnTable {
    table: Option<EstablishedTable>,
    /// Keys are the indices of their bits.
    installed: HashMap<usize, ConnEntry>,
    backs: HashSet<EntryKey>,
    /// Entries that translate back, and that a packet may still need.
    old_backs: Vec<EntryKey>,
    number: u64,
    has_room: bool,
}

/// Connections, and the bits of those that ended.
struct Shared {
    ended: Box<[AtomicU64]>,
    stop: AtomicBool,
    thread: OnceLock<Thread>,
    state: Mutex<ConnTable>,
}

fn index_of(number: u32) -> usize {
    number as usize % MAX_CONNS
}

impl Shared {
    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
    fn clear(&self, index: usize) {
        if let Some(word) = self.ended.get(index / WORD_BITS) {
            word.fetch_and(!(1 << (index % WORD_BITS)), Ordering::AcqRel);
        }
    }
    /// The connections that ended since the last call.
    fn take_ended(&self) -> Vec<usize> {
        let mut all = Vec::new();
        for (n, word) in self.ended.iter().enumerate() {
            // Pairs with the release in `end`.
            let mut bits = match word.load(Ordering::Relaxed) {
                0 => 0,
                _ => word.swap(0, Ordering::Acquire),
            };
            while bits != 0 {
                all.push(n * WORD_BITS + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
        all
    }
}

impl EndOffload for Shared {
    fn end(&self, number: u32) {
        let index = index_of(number);
        if let Some(word) = self.ended.get(index / WORD_BITS) {
            word.fetch_or(1 << (index % WORD_BITS), Ordering::Release);
            self.wake();
        }
    }
}

impl ConnTable {
    fn remove(&mut self, keys: &[EntryKey]) {
        if let Some(table) = self.table.as_mut().filter(|_| !keys.is_empty()) {
            let _ = table.remove(keys);
        }
    }
    /// The entries that translate back are not needed by new packets any more.
    fn retire(&mut self, backs: Vec<EntryKey>) {
        backs.iter().for_each(|key| _ = self.backs.remove(key));
        self.old_backs.extend(backs);
    }
    fn end(&mut self, indices: &[usize]) {
        let (mut keys, mut backs) = (Vec::new(), Vec::new());
        for index in indices {
            if let Some(entry) = self.installed.get_mut(index).filter(|e| !e.ended) {
                entry.ended = true;
                keys.push(entry.forth);
                backs.extend(entry.back.take());
            }
        }
        self.remove(&keys);
        self.retire(backs);
    }
    /// Adds an entry, in the place of one with the same tuple that is left from before.
    fn add(&mut self, e: &Established) -> Result<(), Why> {
        let table = self.table.as_mut().ok_or(NO_TABLE)?;
        let done = table.add(e).or_else(|error| match Errno::from_io_error(&error) {
            Some(Errno::EXIST) => {
                table.remove(&[e.key()])?;
                table.add(e)
            }
            _ => Err(error),
        });
        done.map_err(|error| super::why(&error))
    }
}

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
        let words = (0..MAX_CONNS / WORD_BITS).map(|_| AtomicU64::new(0));
        Self {
            shared: Arc::new(Shared {
                ended: words.collect(),
                stop: AtomicBool::new(false),
                thread: OnceLock::new(),
                state: Mutex::new(ConnTable::default()),
            }),
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
        let list_table = EstablishedTable::new().map_err(no_table)?;
        {
            let state = &mut *self.shared.state.lock();
            (state.table, state.has_room) = (Some(table), true);
        }
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("tc-ct".to_owned());
        let handle = thread.spawn(move || run(&shared, list_table)).map_err(no_table)?;
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
        if state.installed.len().is_multiple_of(ROOM_CHECK) {
            state.has_room = state.table.as_ref().is_some_and(EstablishedTable::has_room);
        }
        if !state.has_room {
            return Err(Why::Full);
        }
        // A bit of an earlier connection with the same index.
        shared.clear(index);
        let back = back_of(c, zones);
        if let Some(back) = &back {
            state.add(back)?;
            state.backs.insert(back.key());
        }
        let forth = forth_of(c, zones, for_cards);
        if let Err(why) = state.add(&forth) {
            state.retire(back.iter().map(Established::key).collect());
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
            used: false,
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
        if !state.old_backs.is_empty() {
            self.shared.wake();
        }
    }
    /// Use of a connection since the last call.
    pub(super) fn used(&mut self, id: ConnId) -> ConnUse {
        let state = &mut *self.shared.state.lock();
        let entry = state.installed.get_mut(&index_of(id.number));
        let Some(entry) = entry.filter(|e| e.id == id && !e.ended) else {
            return ConnUse::Ended;
        };
        match std::mem::take(&mut entry.used) {
            true => ConnUse::Used,
            false => ConnUse::Rests,
        }
    }
}

/// Removes all entries of these zones of the kernel.
pub(super) fn remove_entries(zones: &HashSet<u16>) {
    let done = || -> io::Result<()> {
        let mut table = EstablishedTable::new()?;
        let listed = table.list()?;
        let keys = listed.iter().map(|l| l.key).filter(|k| zones.contains(&k.zone));
        table.remove(&keys.collect::<Vec<_>>())
    };
    if let Err(error) = done() {
        log::debug!(target: "netdev_offload", "connections of an earlier process stay in the kernel's table: {error}");
    }
}

/// The entry of a connection.
pub(super) fn forth_of(c: &Offloadable, zones: KernelZones, for_cards: bool) -> Established {
    Established {
        zone: zones.forth,
        orig: c.orig,
        reply: c.reply,
        mark: c.mark,
        label: c.label,
        timeout_s: LIFE_S,
        assured: false,
        for_cards,
    }
}

/// The entry that translates packets of a translated connection back. Translated packets have the reversed
/// tuples of the other direction.
pub(super) fn back_of(c: &Offloadable, zones: KernelZones) -> Option<Established> {
    let plain: Tuple = c.orig.reversed();
    (c.reply != plain).then(|| Established {
        zone: zones.back,
        orig: c.reply.reversed(),
        reply: plain,
        mark: 0,
        label: 0,
        timeout_s: BACK_LIFE_S,
        assured: true,
        for_cards: false,
    })
}

/// The thread that ends connections, and reads their use.
fn run(shared: &Shared, mut table: EstablishedTable) {
    let mut interval = MIN_LIST_INTERVAL;
    let mut due = Instant::now() + interval;
    loop {
        let ended = shared.take_ended();
        let (old, has_conns) = {
            let state = &mut *shared.state.lock();
            state.end(&ended);
            (std::mem::take(&mut state.old_backs), !state.installed.is_empty())
        };
        if !old.is_empty() {
            // Packets that were translated have found the entry that translates back, or a filter.
            shared_words::wait_for_programs();
            let state = &mut *shared.state.lock();
            let gone: Vec<EntryKey> = old.into_iter().filter(|k| !state.backs.contains(k)).collect();
            state.remove(&gone);
            continue;
        }
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        if !has_conns {
            std::thread::park();
            due = Instant::now() + interval;
            continue;
        }
        let now = Instant::now();
        if now >= due {
            read_use(shared, &mut table);
            interval = (now.elapsed() * LIST_SHARE).max(MIN_LIST_INTERVAL);
            due = Instant::now() + interval;
        }
        std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
    }
}

/// Lists the entries, and notes which connections were used or have no entry any more.
fn read_use(shared: &Shared, table: &mut EstablishedTable) {
    let last = shared.state.lock().number;
    let Ok(listed) = table.list() else {
        return;
    };
    let lives: HashMap<EntryKey, Option<u32>> = listed.iter().map(|l| (l.key, l.timeout_s)).collect();
    let state = &mut *shared.state.lock();
    let (now, mut ended, mut renew) = (Instant::now(), Vec::new(), Vec::new());
    for (index, entry) in &mut state.installed {
        // An entry that came after the list began may be missing in it.
        if entry.ended || entry.number > last {
            continue;
        }
        let back = entry.back.map(|key| (key, lives.get(&key).copied().flatten()));
        let (Some(life), None | Some((_, Some(_)))) = (lives.get(&entry.forth), back) else {
            ended.push(*index);
            continue;
        };
        if let Some((key, Some(left))) = back
            && left < BACK_LIFE_S / 2
        {
            renew.push(key);
        }
        let expected = entry.life_s - (now - entry.read).as_secs_f64();
        // The flow table has connections that were used lately, without their lives.
        entry.used |= life.is_none_or(|life| (f64::from(life) - expected).abs() > USED_S);
        entry.life_s = life.map_or(0.0, f64::from);
        entry.read = now;
    }
    state.end(&ended);
    let _ = table.prolong(&renew, BACK_LIFE_S);
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_conntrack::Endpoint;

    #[test]
    fn ended_connections_are_found_by_their_bits() {
        let conns = TcConns::default();
        let ender = conns.ender();
        for number in [0, 63, 64, 65_535, 65_536 + 7] {
            ender.end(number);
        }
        conns.shared.clear(63);
        assert_eq!(conns.shared.take_ended(), [0, 7, 64, 65_535]);
        assert_eq!(conns.shared.take_ended(), [0_usize; 0]);
    }

    #[test]
    fn translated_connections_have_an_entry_that_translates_back() {
        let end = |addr, l4| Endpoint { addr, l4 };
        let orig = Tuple {
            src: end(1, 10),
            dst: end(2, 20),
            proto: UDP,
            ipv6: false,
        };
        let mut c = Offloadable {
            id: ConnId {
                number: 1,
                generation: 1,
            },
            zone: 5,
            replied: true,
            orig,
            reply: orig.reversed(),
            snat: true,
            dnat: false,
            mark: 3,
            label: 4,
        };
        let zones = KernelZones {
            forth: 40_960,
            back: 40_961,
        };
        assert_eq!(back_of(&c, zones), None);
        c.reply.dst = end(9, 90);
        let (forth, back) = (forth_of(&c, zones, false), back_of(&c, zones).unwrap());
        assert_eq!((forth.zone, forth.mark, forth.label), (40_960, 3, 4));
        // A packet of the original direction is translated from 1:10 to 9:90, and back.
        assert_eq!(forth.reply.reversed(), back.orig);
        assert_eq!(back.reply.reversed(), forth.orig);
        assert_eq!(back.zone, 40_961);
        c.replied = false;
        assert_eq!(TcConns::default().install(&c, false), Err(NO_REPLY));
    }
}
