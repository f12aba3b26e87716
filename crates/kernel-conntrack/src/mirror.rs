//! The mirror: connections of the tracker as entries of the kernel's table.
//!
//! **Rounds.** The tracker reports no new, changed or ended connections, so that packets cost nothing. A
//! round passes over its records, of which most need one look at a cache line. It writes entries of new and
//! changed connections, refreshes old entries, and removes those of ended connections.
//!
//! **Deletions.** The connection of an entry that another program deletes ends. Until the next packet the
//! connection does not exist, as in the kernel's own datapath. A deletion counts only for the connection that
//! the entry was written for.
//!
//! **Comparison.** If deletions were lost, an entry that is missing was deleted: its connection ends. There
//! is one exception. If the kernel's table was nearly full, the kernel may have dropped the entry, and the
//! connection stays.
//!
//! **The host comes first.** The mirror writes new entries up to seven eighths of the kernel's table. If the
//! host fills it beyond fifteen sixteenths, the mirror removes entries down to seven eighths. Its entries are
//! not `ASSURED`, so a full table drops them before entries of the host's established connections.

use crate::choice::Choice;
use crate::entry::{EntryKey, KernelEntry};
use crate::table::{Room, TIMEOUT_S, Table, Write};
use heddle_conntrack::Conntrack;
use heddle_conntrack::offloaded::ConnId;
use heddle_conntrack::scan::Seen;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

/// Records of one step. Their reader holds up the reuse of ended records only for that long.
const STEP_RECORDS: u32 = 4096;
/// Age at which an entry is refreshed: half of its life.
const REFRESH_MS: u64 = TIMEOUT_S as u64 * 1000 / 2;
/// Refreshes are spread over this time.
const REFRESH_SPREAD_S: u32 = 128;
/// The time after which a refused entry is tried again.
const RETRY_MS: u64 = 30_000;
/// The time after which an entry that was not there is made again. The event of its deletion comes before.
const MISSING_MS: u64 = 1000;
/// Shortest time between two log lines about one fault.
const LOG_INTERVAL_MS: u64 = 60_000;

/// The target of the log.
const LOG: &str = "kernel_conntrack";

/// Numbers of the mirror.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Entries now.
    pub entries: usize,
    /// Connections now whose entries the kernel refused.
    pub refused: usize,
    /// Connections of the last round without an entry, because of [`Choice::limit`].
    pub over_limit: usize,
    /// Connections of the last round without an entry, because the kernel's table is nearly full.
    pub no_room: usize,
    /// Entries written.
    pub written: u64,
    /// Entries refreshed or changed.
    pub changed: u64,
    /// Entries removed because their connections ended.
    pub removed: u64,
    /// Connections that ended because another program had deleted their entries.
    pub deletions: u64,
    /// Comparisons of the tables after events were lost.
    pub comparisons: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EntryState {
    /// The kernel has the entry.
    Written,
    /// The kernel did not have the entry when it was to be changed.
    Missing,
    /// The kernel refused the entry.
    Refused,
}

/// A connection with an entry.
#[derive(Debug)]
struct Mirrored {
    generation: u32,
    /// [`Seen::version`] when the entry was written.
    version: u64,
    key: EntryKey,
    labelled: bool,
    state: EntryState,
    /// Time to refresh the entry, or to try again.
    due_ms: u64,
    /// The last round that saw the connection.
    round: u64,
}

/// An entry to be written.
#[derive(Clone, Copy, Debug)]
struct Due {
    id: ConnId,
    version: u64,
    entry: KernelEntry,
}

impl Due {
    fn of(c: &Seen<'_>) -> Self {
        // The version comes first: a change after it is seen in the next round.
        let version = c.version();
        Self {
            id: c.id(),
            version,
            entry: KernelEntry::of(c),
        }
    }
}

/// The work that a step of a round has found.
#[derive(Default)]
struct Plan {
    new: Vec<Due>,
    change: Vec<Due>,
    replace: Vec<Due>,
    /// Keys of entries whose records have other connections now.
    gone: Vec<EntryKey>,
}

/// Limits the log to one line a minute.
#[derive(Debug, Default)]
struct Logged(Option<u64>);

impl Logged {
    fn is_due(&mut self, at_ms: u64) -> bool {
        let due = self.0.is_none_or(|last| at_ms >= last + LOG_INTERVAL_MS);
        if due {
            self.0 = Some(at_ms);
        }
        due
    }
}

/// The mirror of a tracker in a table.
#[derive(Debug)]
pub struct Mirror<T> {
    table: T,
    tracker: Arc<Conntrack>,
    choice: Choice,
    /// Keys are the numbers of the connections.
    entries: HashMap<u32, Mirrored>,
    round: u64,
    /// The table had no room since the last comparison.
    pressed: bool,
    labels_checked: bool,
    counts: Counts,
    limit_logged: Logged,
    room_logged: Logged,
}

impl<T: Table> Mirror<T> {
    /// Begins. Entries that an earlier process has left are removed.
    ///
    /// # Errors
    /// The table cannot be read or written.
    pub fn new(mut table: T, tracker: Arc<Conntrack>, choice: Choice) -> io::Result<Self> {
        let left = table.own()?;
        table.remove(&left)?;
        if !left.is_empty() {
            log::info!(target: LOG, "{} connections of an earlier process were removed from the kernel's table", left.len());
        }
        Ok(Self {
            table,
            tracker,
            choice,
            entries: HashMap::new(),
            round: 0,
            pressed: false,
            labels_checked: false,
            counts: Counts::default(),
            limit_logged: Logged::default(),
            room_logged: Logged::default(),
        })
    }
    /// Changes the settings; the next round applies them.
    pub fn choose(&mut self, choice: Choice) {
        self.choice = choice;
    }
    /// The numbers now.
    pub fn counts(&self) -> Counts {
        let refused = self
            .entries
            .values()
            .filter(|m| m.state == EntryState::Refused)
            .count();
        Counts {
            entries: self.entries.len() - refused,
            refused,
            ..self.counts
        }
    }
    /// One round. `now_ms` is the tracker's time, `at_ms` a time that never jumps.
    ///
    /// # Errors
    /// The table cannot be written any more.
    pub fn round(&mut self, now_ms: u64, at_ms: u64) -> io::Result<()> {
        self.round += 1;
        let mut room = self.make_room()?;
        (self.counts.over_limit, self.counts.no_room) = (0, 0);
        let tracker = Arc::clone(&self.tracker);
        let (mut at, mut again) = (Some(0), Vec::new());
        while let Some(from) = at {
            let mut plan = Plan::default();
            at = tracker.scan(now_ms, from, STEP_RECORDS, |c| self.look(c, at_ms, &mut plan));
            self.counts.removed += plan.gone.len() as u64;
            self.table.remove(&plan.gone)?;
            self.change(&plan.change, &mut plan.replace, at_ms)?;
            let keys: Vec<_> = plan.replace.iter().map(|d| d.entry.key).collect();
            self.table.remove(&keys)?;
            again.extend(self.write(&plan.replace, &mut room, at_ms)?);
            again.extend(self.write(&plan.new, &mut room, at_ms)?);
        }
        self.remove_ended()?;
        // Entries of ended connections may have been in the way.
        for refused in self.write(&again, &mut room, at_ms)? {
            self.keep(&refused, EntryState::Refused, at_ms);
        }
        self.pressed |= room == 0;
        self.log(at_ms);
        Ok(())
    }
    /// The number of entries that may be added. If the table is nearly full, some of ours go.
    fn make_room(&mut self) -> io::Result<usize> {
        let Room { count, max } = self.table.room();
        if max == 0 {
            return Ok(usize::MAX);
        }
        let usable = max - max / 8;
        if count <= max - max / 16 {
            return Ok(usable.saturating_sub(count));
        }
        let ours = self
            .entries
            .iter()
            .filter(|(_, m)| m.state == EntryState::Written);
        let (numbers, keys): (Vec<_>, Vec<_>) = ours.take(count - usable).map(|(n, m)| (*n, m.key)).unzip();
        numbers.iter().for_each(|n| _ = self.entries.remove(n));
        self.table.remove(&keys)?;
        Ok(0)
    }
    /// Plans the work for one connection.
    fn look(&mut self, c: &Seen<'_>, at_ms: u64, plan: &mut Plan) {
        if !self.choice.has(c) {
            return;
        }
        let id = c.id();
        if let Some(m) = self.entries.get_mut(&id.number) {
            if m.generation == id.generation {
                m.round = self.round;
                match m.state {
                    EntryState::Written if at_ms < m.due_ms && c.version() == m.version => {}
                    EntryState::Written => {
                        let due = Due::of(c);
                        // A change cannot take a label away.
                        let list = match m.labelled && due.entry.label == 0 {
                            true => &mut plan.replace,
                            false => &mut plan.change,
                        };
                        list.push(due);
                    }
                    EntryState::Missing | EntryState::Refused if at_ms >= m.due_ms => {
                        plan.new.push(Due::of(c))
                    }
                    EntryState::Missing | EntryState::Refused => {}
                }
                return;
            }
            if m.state != EntryState::Refused {
                plan.gone.push(m.key);
            }
            self.entries.remove(&id.number);
        }
        if self.entries.len() + plan.new.len() >= self.choice.limit {
            self.counts.over_limit += 1;
        } else {
            plan.new.push(Due::of(c));
        }
    }
    /// Changes and refreshes entries. Those that the kernel does not change are added to `replace`.
    fn change(&mut self, all: &[Due], replace: &mut Vec<Due>, at_ms: u64) -> io::Result<()> {
        let entries: Vec<_> = all.iter().map(|d| d.entry).collect();
        let refused = self.table.write(&entries, Write::Change)?;
        let reasons: HashMap<_, _> = refused.iter().map(|r| (r.index, r.reason)).collect();
        for (index, due) in all.iter().enumerate() {
            match reasons.get(&index) {
                None => {
                    self.counts.changed += 1;
                    self.keep(due, EntryState::Written, at_ms);
                }
                Some(&Errno::NOENT) => self.keep(due, EntryState::Missing, at_ms),
                Some(_) => replace.push(*due),
            }
        }
        Ok(())
    }
    /// Writes new entries into the room that is left. Returns those that other entries were in the way of.
    fn write(&mut self, all: &[Due], room: &mut usize, at_ms: u64) -> io::Result<Vec<Due>> {
        let (fits, rest) = all.split_at(all.len().min(*room));
        self.counts.no_room += rest.len();
        for due in rest {
            // The entry was removed, to be written anew.
            if let Some(m) = self
                .entries
                .get_mut(&due.id.number)
                .filter(|m| m.state == EntryState::Written)
            {
                m.state = EntryState::Missing;
            }
        }
        let entries: Vec<_> = fits.iter().map(|d| d.entry).collect();
        let refused = self.table.write(&entries, Write::New)?;
        let reasons: HashMap<_, _> = refused.iter().map(|r| (r.index, r.reason)).collect();
        let (mut again, mut labelled) = (Vec::new(), Vec::new());
        for (index, due) in fits.iter().enumerate() {
            match reasons.get(&index) {
                None => {
                    *room -= 1;
                    self.counts.written += 1;
                    self.keep(due, EntryState::Written, at_ms);
                    if due.entry.label != 0 {
                        labelled.push(due.entry);
                    }
                }
                Some(&Errno::EXIST) => again.push(*due),
                Some(&Errno::NOMEM) => {
                    self.counts.no_room += 1;
                    *room = 0;
                    self.entries.remove(&due.id.number);
                }
                Some(reason) => {
                    log::debug!(target: LOG, "the kernel refuses {:?}: {reason}", due.entry);
                    self.keep(due, EntryState::Refused, at_ms);
                }
            }
        }
        self.check_labels(&labelled)?;
        Ok(again)
    }
    /// Reads back the first label that was written. If the kernel has none, labels are enabled.
    fn check_labels(&mut self, written: &[KernelEntry]) -> io::Result<()> {
        let Some(first) = written.first().filter(|_| !self.labels_checked) else {
            return Ok(());
        };
        let Some(found) = self.table.read(&first.key)? else {
            return Ok(());
        };
        self.labels_checked = true;
        if found.label == first.label {
            return Ok(());
        }
        match self.table.enable_labels() {
            Ok(()) => {
                log::info!(target: LOG, "an unused rule of nf_tables was added: the kernel has labels only while a rule uses them");
                let keys: Vec<_> = written.iter().map(|e| e.key).collect();
                self.table.remove(&keys)?;
                self.table.write(written, Write::New)?;
            }
            Err(error) => {
                let why = heddle_sys::errno_text(&error);
                log::warn!(target: LOG, "the kernel's table shows no labels, and cannot be made to: nf_tables: {why}");
            }
        }
        Ok(())
    }
    fn keep(&mut self, due: &Due, state: EntryState, at_ms: u64) {
        let after_ms = match state {
            // Entries that were written together are refreshed one after the other.
            EntryState::Written => REFRESH_MS - u64::from(due.id.number % REFRESH_SPREAD_S) * 1000,
            EntryState::Missing => MISSING_MS,
            EntryState::Refused => RETRY_MS,
        };
        let m = Mirrored {
            generation: due.id.generation,
            version: due.version,
            key: due.entry.key,
            labelled: due.entry.label != 0,
            state,
            due_ms: at_ms + after_ms,
            round: self.round,
        };
        self.entries.insert(due.id.number, m);
    }
    /// Removes the entries of connections that the round has not seen.
    fn remove_ended(&mut self) -> io::Result<()> {
        let ended = self.entries.extract_if(|_, m| m.round != self.round);
        let keys: Vec<_> = ended
            .filter(|(_, m)| m.state != EntryState::Refused)
            .map(|(_, m)| m.key)
            .collect();
        self.counts.removed += keys.len() as u64;
        self.table.remove(&keys)
    }
    /// Ends the connections of entries that another program has deleted.
    ///
    /// # Errors
    /// The table cannot be written any more.
    pub fn deleted(&mut self, now_ms: u64, keys: &[EntryKey]) -> io::Result<()> {
        let mut ended = Vec::new();
        for key in keys.iter().filter(|key| key.zone != 0) {
            let Some(id) = self.tracker.find(now_ms, &key.orig, key.zone) else {
                continue;
            };
            let is_its = |m: &&Mirrored| m.generation == id.generation && m.state != EntryState::Refused;
            if self.entries.get(&id.number).filter(is_its).is_some() {
                self.end_connection(now_ms, id);
                ended.push(*key);
            }
        }
        // A refresh may have come between the deletion and its event.
        self.table.remove(&ended)
    }
    fn end_connection(&mut self, now_ms: u64, id: ConnId) {
        self.entries.remove(&id.number);
        self.tracker.end(now_ms, id);
        self.counts.deletions += 1;
    }
    /// Compares the tables after deletions were lost. Connections whose entries are missing end. Entries
    /// without a connection are removed.
    ///
    /// # Errors
    /// The table cannot be read or written any more.
    pub fn compare(&mut self, now_ms: u64) -> io::Result<()> {
        self.counts.comparisons += 1;
        let there: HashSet<_> = self.table.own()?.into_iter().collect();
        let known: HashSet<_> = self.entries.values().map(|m| m.key).collect();
        let strays: Vec<_> = there.difference(&known).copied().collect();
        self.table.remove(&strays)?;
        let absent = |m: &Mirrored| m.state != EntryState::Refused && !there.contains(&m.key);
        let absent: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, m)| absent(m))
            .map(|(number, m)| {
                (
                    ConnId {
                        number: *number,
                        generation: m.generation,
                    },
                    m.key,
                )
            })
            .collect();
        for (id, key) in absent {
            // The list may lack entries if the kernel resized its table meanwhile.
            if self.table.read(&key)?.is_some() {
                continue;
            }
            if self.pressed {
                self.entries.remove(&id.number);
            } else {
                self.end_connection(now_ms, id);
            }
        }
        self.pressed = false;
        Ok(())
    }
    /// Removes all entries.
    ///
    /// # Errors
    /// The table cannot be written any more.
    pub fn end(mut self) -> io::Result<()> {
        let written = self.entries.values().filter(|m| m.state != EntryState::Refused);
        let keys: Vec<_> = written.map(|m| m.key).collect();
        self.table.remove(&keys)
    }
    fn log(&mut self, at_ms: u64) {
        let Counts {
            over_limit, no_room, ..
        } = self.counts;
        if over_limit > 0 && self.limit_logged.is_due(at_ms) {
            log::warn!(
                target: LOG,
                "{over_limit} connections are not in the kernel's table: \
                 other_config:heddle-kernel-conntrack-limit={} is reached",
                self.choice.limit
            );
        }
        if no_room > 0 && self.room_logged.is_due(at_ms) {
            log::warn!(
                target: LOG,
                "{no_room} connections are not in the kernel's table: it is nearly full \
                 (net.netfilter.nf_conntrack_max={})",
                self.table.room().max
            );
        }
    }
}
