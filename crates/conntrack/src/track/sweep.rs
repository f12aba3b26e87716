//! The connection expiry thread: it takes ended connections out of the tables. No packet waits for it.
//!
//! There are no lists by time and no timer wheel. The thread scans a column of times, four bytes for each
//! record ([`crate::table::slots`]), and reads the records whose time has come. It reads a connection that
//! packets keep alive once in each timeout, not in each round. A lookup ignores an expired connection, so the
//! thread may be late. Only the number of connections and memory depend on it.
//!
//! The same thread allocates memory for future connections ([`Conntrack::prepare`]). Otherwise the worker
//! that first writes to a page would wait for the kernel.

use crate::table::index::RecordRef;
use crate::table::record::{DEAD, DNAT, Record, SNAT, USED};
use crate::track::Conntrack;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

/// Times that are read for each record of the budget.
const TIMES: u32 = 16;
/// Records whose memory is allocated ahead of those in use, at least: 16 MiB.
const AHEAD: u32 = 87_000;
/// Maximum number of pages that one call allocates.
const PAGES: usize = 64;
/// After this number of refusals the kernel is not called again.
const REFUSALS: u32 = 16;

/// Progress of [`Conntrack::prepare`].
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    /// Records below have their memory, or were used before it was prepared.
    pub(crate) to: u32,
    /// Number of records in use at the last call.
    used: u32,
    /// Refusals of the kernel.
    pub(crate) refused: u32,
}

impl Conntrack {
    /// Continues where the last call ended. Reads at most `budget` records whose time has come, and frees
    /// those of ended connections. `true`: the round is complete.
    pub fn sweep(&self, now_ms: u64, budget: u32) -> bool {
        let used = self.slots.used();
        let from = self.sweep_at.load(Relaxed);
        let from = if from >= used { 0 } else { from };
        if from == 0 {
            self.expectations.sweep(now_ms);
        }
        let to = from.saturating_add(budget.saturating_mul(TIMES));
        let to = self.sweep_from(now_ms, (from, to), budget);
        let round = to >= used;
        self.sweep_at.store(if round { 0 } else { to }, Relaxed);
        round
    }
    /// Reads at most `budget` records of these numbers whose time has come, and frees those of ended
    /// connections. Returns the number where it ended.
    pub(crate) fn sweep_from(&self, now_ms: u64, (mut from, to): (u32, u32), budget: u32) -> u32 {
        // One thread at a time.
        let _sweeping = self.sweeping.lock().unwrap_or_else(PoisonError::into_inner);
        let to = to.min(self.slots.used());
        let mut freed = Vec::new();
        for _ in 0..budget {
            let Some((number, seen)) = self.slots.next_due(now_ms, from, to) else {
                from = to;
                break;
            };
            from = number + 1;
            let Some(r) = self.slots.get(number) else { break };
            let state = r.state();
            if state & USED == 0 {
                // The maker is about to use the record; or the record was freed before another thread ended
                // it.
                self.slots.was_free(number);
                continue;
            }
            let expires_ms = r.expires_ms();
            if state & DEAD == 0 && now_ms < expires_ms {
                self.slots.look_later(number, seen, expires_ms);
                continue;
            }
            self.kill(number, r);
            if self.unlink(number, r) {
                freed.push(number);
            }
        }
        self.slots.put_aside(freed);
        self.slots.tidy();
        from
    }
    /// Allocates memory for records, in huge pages if the system has them. The number is a fixed reserve, and
    /// twice the records that have come into use since the last call. Call it some times a second. Pages in
    /// use are left alone: a worker that touches a page waits while the kernel joins it.
    pub fn prepare(&self) {
        let mut p = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let used = self.slots.used();
        let grown = used - p.used.min(used);
        p.used = used;
        if used == 0 {
            return;
        }
        let to = used.saturating_add(AHEAD.max(grown.saturating_mul(2)));
        p.to = p.to.max(self.slots.next_page(used));
        for _ in 0..PAGES {
            if p.to >= to || p.refused >= REFUSALS {
                return;
            }
            match self.slots.prepare(p.to) {
                Ok(next) => p.to = next,
                Err(_) => p.refused += 1,
            }
        }
    }
    /// Starts to give memory of ended connections back to the system, step by step:
    /// [`Conntrack::give_back`].
    pub fn begin_giving_back(&self) {
        self.slots.begin_giving_back();
    }
    /// Does one step, some tens of microseconds of work and system calls. `true`: there is more to do.
    pub fn give_back(&self) -> bool {
        self.slots.give_back()
    }
    /// Takes a dead record out of the index and frees it. `false`: a lock was busy, try again later.
    fn unlink(&self, number: u32, r: &Record) -> bool {
        let entry = RecordRef {
            number,
            generation: r.generation(),
        };
        let zone = r.zone();
        if !self.index.remove(entry, self.hash(&r.orig(), zone)) {
            return false;
        }
        // A removal of an absent entry does no harm, if only one of the two succeeds.
        if r.flags() & (SNAT | DNAT) != 0 && !self.index.remove(entry, self.hash(&r.reply(), zone)) {
            return false;
        }
        self.zones.leave(zone, r.admission());
        self.slots.look_never(number);
        r.free();
        true
    }
}
