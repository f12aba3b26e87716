//! Connections that are over leave the tables here, on a thread that no packet waits for.
//!
//! Nothing is linked by time, and there is no wheel to turn: the sweeper goes through a column of times, four
//! bytes for each record ([`crate::slots`]), and reads the records of which the time has come. A connection
//! that packets keep alive is read once in its timeout, not in each round. A packet that is late finds a
//! connection expired by itself, so that it does not matter when the sweeper comes by; what waits for it is
//! the count of connections and memory.
//!
//! The same thread makes memory ready for connections to come ([`Conntrack::prepare`]): a worker that is the
//! first to write to a page waits for the kernel.

use crate::conntrack::Conntrack;
use crate::index::Entry;
use crate::record::{DEAD, DNAT, Record, SNAT, USED};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

/// Times that are read for a record that may be read.
const TIMES: u32 = 16;
/// Records ahead of those in use, at least, whose memory is made ready: 16 MiB.
const AHEAD: u32 = 87_000;
/// Pages made ready at a time, at most.
const PAGES: usize = 64;
/// After so many refusals the kernel is not asked any more.
const REFUSALS: u32 = 16;

/// What [`Conntrack::prepare`] remembers.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    /// All records below are, or were in use too early.
    pub(crate) to: u32,
    /// Records that were in use last time.
    used: u32,
    /// How often the kernel did not want to.
    pub(crate) refused: u32,
}

impl Conntrack {
    /// Goes on from where the last call ended: looks at no more than `budget` records whose time has come,
    /// and frees those that are over. `true`: it has come round.
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
    /// Looks at no more than `budget` records of these numbers whose time has come, and frees those that are
    /// over. Where it ended.
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
                // Its maker is about to use it; or it was ended by somebody when it was freed here already.
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
    /// Makes memory ready for records, in huge pages if the system has them: some that are always ahead, and
    /// twice as many as have come into use since the last call. Call it some times a second. Pages that are
    /// in use stay as they are, since whoever touches one would wait while it is joined.
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
    /// Takes a dead record out of the index and frees it. `false`: a lock could not be had; later.
    fn unlink(&self, number: u32, r: &Record) -> bool {
        let entry = Entry {
            number,
            generation: r.generation(),
        };
        let zone = r.zone();
        if !self.index.remove(entry, self.hash(&r.orig(), zone)) {
            return false;
        }
        // Taking out what is not there does no harm, if only one of the two succeeds.
        if r.flags() & (SNAT | DNAT) != 0 && !self.index.remove(entry, self.hash(&r.reply(), zone)) {
            return false;
        }
        self.zones.leave(zone, r.admission());
        self.slots.look_never(number);
        r.free();
        true
    }
}
