//! The connections that are entries of the kernel's table, and the thread that ends them
//! ([`super::conns`]).

use super::entries::BACK_LIFE_S;
use crate::Why;
use heddle_conntrack::offloaded::{ConnId, EndOffload};
use heddle_kernel_conntrack::established::Listed;
use heddle_kernel_conntrack::{EntryKey, Established, EstablishedTable};
use heddle_sys::shared_words;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Maximum number of connections.
pub(super) const MAX_CONNS: usize = 1 << 16;
/// The size of the kernel's table is read once in this number of installations, and after this time.
pub(super) const ROOM_CHECK: usize = 64;
const ROOM_INTERVAL: Duration = Duration::from_secs(1);
/// Time until entries that could not be removed get another try.
const REMOVE_AGAIN: Duration = Duration::from_secs(1);
const WORD_BITS: usize = u64::BITS as usize;
/// Shortest and longest time between two lists of the entries. In between, it is this number of times the
/// duration of a list.
const MIN_LIST_INTERVAL: Duration = Duration::from_secs(3);
const MAX_LIST_INTERVAL: Duration = Duration::from_secs(10);
const LIST_SHARE: u32 = 20;
/// An entry was used if its remaining life differs by more seconds from the expected one.
const USED_S: f64 = 1.5;

pub(super) const NO_TABLE: Why = Why::Action("ct (through tc: the kernel's connections cannot be written)");

/// Requests about entries of the kernel's table ([`EstablishedTable`]).
pub(super) trait EntryTable: Send {
    fn add(&mut self, e: &Established) -> io::Result<()>;
    fn remove(&mut self, keys: &[EntryKey]) -> io::Result<()>;
    fn prolong(&mut self, keys: &[EntryKey], timeout_s: u32) -> io::Result<()>;
    fn list(&mut self) -> io::Result<Vec<Listed>>;
    fn has_room(&self) -> bool;
}

impl EntryTable for EstablishedTable {
    fn add(&mut self, e: &Established) -> io::Result<()> {
        self.add(e)
    }
    fn remove(&mut self, keys: &[EntryKey]) -> io::Result<()> {
        self.remove(keys)
    }
    fn prolong(&mut self, keys: &[EntryKey], timeout_s: u32) -> io::Result<()> {
        self.prolong(keys, timeout_s)
    }
    fn list(&mut self) -> io::Result<Vec<Listed>> {
        self.list()
    }
    fn has_room(&self) -> bool {
        self.has_room()
    }
}

/// Entry of a connection.
pub(super) struct ConnEntry {
    pub(super) id: ConnId,
    pub(super) forth: EntryKey,
    pub(super) back: Option<EntryKey>,
    /// Number of its installation.
    pub(super) number: u64,
    pub(super) life_s: f64,
    pub(super) read: Instant,
    /// Whether lists since the last report have shown packets; `None`: no list since then.
    pub(super) used: Option<bool>,
    pub(super) ended: bool,
}

#[derive(Default)]
pub(super) struct ConnTable {
    pub(super) table: Option<Box<dyn EntryTable>>,
    /// Keys are the indices of their bits.
    pub(super) installed: HashMap<usize, ConnEntry>,
    pub(super) backs: HashSet<EntryKey>,
    /// Entries that translate back, and that a packet may still need.
    pub(super) old_backs: Vec<EntryKey>,
    pub(super) number: u64,
    /// Entries that could not be removed. The thread tries again.
    unremoved: HashSet<EntryKey>,
    /// The table had room when its size was read.
    had_room: bool,
    room_read: Option<Instant>,
    /// Installations since then.
    attempts: usize,
}

/// Connections, and the bits of those that ended.
pub(super) struct Shared {
    ended: Box<[AtomicU64]>,
    pub(super) stop: AtomicBool,
    pub(super) thread: OnceLock<Thread>,
    pub(super) state: Mutex<ConnTable>,
}

pub(super) fn index_of(number: u32) -> usize {
    number as usize % MAX_CONNS
}

impl Shared {
    pub(super) fn new() -> Self {
        let words = (0..MAX_CONNS / WORD_BITS).map(|_| AtomicU64::new(0));
        Self {
            ended: words.collect(),
            stop: AtomicBool::new(false),
            thread: OnceLock::new(),
            state: Mutex::new(ConnTable::default()),
        }
    }
    pub(super) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
    pub(super) fn clear(&self, index: usize) {
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
        if let Some(table) = self.table.as_mut().filter(|_| !keys.is_empty())
            && table.remove(keys).is_err()
        {
            self.unremoved.extend(keys);
        }
    }
    /// Removes entries that could not be removed before.
    pub(super) fn remove_again(&mut self) {
        let keys: Vec<EntryKey> = self.unremoved.drain().collect();
        self.remove(&keys);
    }
    /// Whether the thread has entries to remove.
    pub(super) fn has_work(&self) -> bool {
        !self.old_backs.is_empty() || !self.unremoved.is_empty()
    }
    /// Whether the kernel's table has room for a connection. Its size is read now and then. There is none
    /// while too many entries cannot be removed.
    pub(super) fn has_room(&mut self) -> bool {
        self.attempts += 1;
        let is_old = |at: Instant| at.elapsed() >= ROOM_INTERVAL;
        if self.attempts >= ROOM_CHECK || self.room_read.is_none_or(is_old) {
            self.had_room = self.table.as_ref().is_some_and(|table| table.has_room());
            (self.room_read, self.attempts) = (Some(Instant::now()), 0);
        }
        self.had_room && self.unremoved.len() < MAX_CONNS
    }
    /// The entries that translate back are not needed by new packets any more.
    pub(super) fn retire(&mut self, backs: Vec<EntryKey>) {
        backs.iter().for_each(|key| _ = self.backs.remove(key));
        self.old_backs.extend(backs);
    }
    pub(super) fn end(&mut self, indices: &[usize]) {
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
    /// Adds an entry, in the place of one with the same tuple that is left from before. After an error it is
    /// removed: no connection would end it.
    fn add(&mut self, e: &Established) -> Result<(), Why> {
        let table = self.table.as_mut().ok_or(NO_TABLE)?;
        let done = table.add(e).or_else(|error| match Errno::from_io_error(&error) {
            Some(Errno::EXIST) => {
                table.remove(&[e.key()])?;
                table.add(e)
            }
            _ => Err(error),
        });
        match done {
            Ok(()) => _ = self.unremoved.remove(&e.key()),
            Err(_) => self.remove(&[e.key()]),
        }
        done.map_err(|error| super::why(&error))
    }
    /// Adds the entries of a connection: one, and the one that translates back.
    pub(super) fn add_pair(&mut self, forth: &Established, back: Option<&Established>) -> Result<(), Why> {
        if let Some(back) = back {
            self.add(back)?;
            self.backs.insert(back.key());
        }
        self.add(forth)
            .inspect_err(|_| self.retire(back.iter().map(|back| back.key()).collect()))
    }
}

/// Time until the next list, after one that took this time.
fn list_interval(took: Duration) -> Duration {
    took.saturating_mul(LIST_SHARE)
        .clamp(MIN_LIST_INTERVAL, MAX_LIST_INTERVAL)
}

/// The thread that ends connections, and reads their use.
pub(super) fn run(shared: &Shared, table: &mut dyn EntryTable) {
    let mut interval = MIN_LIST_INTERVAL;
    let mut due = Instant::now() + interval;
    loop {
        let ended = shared.take_ended();
        let (old, has_conns, again) = {
            let state = &mut *shared.state.lock();
            state.remove_again();
            state.end(&ended);
            let old = std::mem::take(&mut state.old_backs);
            (old, !state.installed.is_empty(), !state.unremoved.is_empty())
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
            match again {
                true => std::thread::park_timeout(REMOVE_AGAIN),
                false => std::thread::park(),
            }
            due = Instant::now() + interval;
            continue;
        }
        let now = Instant::now();
        if now >= due {
            read_use(shared, table);
            interval = list_interval(now.elapsed());
            due = Instant::now() + interval;
        }
        let wait = due.saturating_duration_since(Instant::now());
        std::thread::park_timeout(if again { wait.min(REMOVE_AGAIN) } else { wait });
    }
}

/// Lists the entries, and notes which connections were used or have no entry any more.
pub(super) fn read_use(shared: &Shared, table: &mut dyn EntryTable) {
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
        let was_used = life.is_none_or(|life| (f64::from(life) - expected).abs() > USED_S);
        entry.used = Some(entry.used.unwrap_or(false) | was_used);
        entry.life_s = life.map_or(0.0, f64::from);
        entry.read = now;
    }
    state.end(&ended);
    let _ = table.prolong(&renew, BACK_LIFE_S);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_at_least_every_ten_seconds() {
        let after = |ms| list_interval(Duration::from_millis(ms)).as_millis();
        assert_eq!([0, 200, 400, 60_000].map(after), [3000, 4000, 8000, 10_000]);
    }

    #[test]
    fn ended_connections_are_found_by_their_bits() {
        let shared = Shared::new();
        for number in [0, 63, 64, 65_535, 65_536 + 7] {
            shared.end(number);
        }
        shared.clear(63);
        assert_eq!(shared.take_ended(), [0, 7, 64, 65_535]);
        assert_eq!(shared.take_ended(), [0_usize; 0]);
    }
}
