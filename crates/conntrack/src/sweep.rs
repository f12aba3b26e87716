//! Connections that are over leave the tables here, on a thread that no packet waits for.
//!
//! Nothing is linked by time: the sweeper goes through the records in the order of memory, a slice at a time,
//! and reads one line of each. A packet that is late finds a connection expired by itself, so that it does
//! not matter when the sweeper comes by; what waits for it is the count of connections and memory.

use crate::conntrack::Conntrack;
use crate::index::Entry;
use crate::record::{DEAD, DNAT, Record, SNAT, USED};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

impl Conntrack {
    /// Looks at `budget` records from where the last call ended, and frees those that are over. `true`: it
    /// has come round.
    pub fn sweep(&self, now_ms: u64, budget: u32) -> bool {
        let used = self.slots.used();
        let from = self.sweep_at.load(Relaxed);
        let from = if from >= used { 0 } else { from };
        if from == 0 {
            self.expectations.sweep(now_ms);
        }
        let to = self.sweep_from(now_ms, from, budget);
        let round = to >= used;
        self.sweep_at.store(if round { 0 } else { to }, Relaxed);
        round
    }
    /// Looks at `budget` records from this one on, and frees those that are over. Where it ended.
    pub(crate) fn sweep_from(&self, now_ms: u64, from: u32, budget: u32) -> u32 {
        // One thread at a time.
        let _sweeping = self.sweeping.lock().unwrap_or_else(PoisonError::into_inner);
        let to = from.saturating_add(budget).min(self.slots.used());
        let mut freed = Vec::new();
        for number in from..to {
            let Some(r) = self.slots.get(number) else { break };
            let state = r.state();
            if state & USED == 0 {
                continue;
            }
            let over = state & DEAD != 0 || now_ms >= r.expires_ms();
            if over {
                self.kill(number, r);
                if self.unlink(number, r) {
                    freed.push(number);
                }
            }
        }
        self.slots.put_aside(freed);
        self.slots.tidy();
        to
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
        r.free();
        true
    }
}
