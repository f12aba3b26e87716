//! Time: idle and hard timeouts, MAC ageing, unlinking of removed rules.

use super::{Bridge, Linked};
use crate::model::Rule;
use heddle_openflow::message::FlowRemovedReason;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Time for which a tick waits for a change of rules.
const LOCK_WAIT: Duration = Duration::from_millis(20);

/// Number of rules that time out together and are removed under one lock: other threads that need the bridge
/// wait for that long only.
const MAX_EXPIRED_AT_ONCE: usize = if cfg!(test) { 2 } else { 1024 };
/// Maximum number of such rounds in one tick: the other bridges' time passes, too.
const MAX_ROUNDS: usize = 32;

/// Time at which a rule times out if no packet comes any more, ms; `u64::MAX`: never.
pub(super) fn deadline_ms(rule: &Rule) -> u64 {
    let after = |from: u64, s: u16| {
        if s == 0 {
            u64::MAX
        } else {
            from + u64::from(s) * 1000
        }
    };
    let (idle, hard) = (rule.idle_timeout.load(Relaxed), rule.hard_timeout.load(Relaxed));
    after(rule.used_ms(), idle).min(after(rule.modified_ms.load(Relaxed), hard))
}

pub(super) fn due(rule: &Rule, now: u64) -> Option<FlowRemovedReason> {
    let over = |from: u64, s: u16| s != 0 && now > from + u64::from(s) * 1000;
    let (idle, hard) = (rule.idle_timeout.load(Relaxed), rule.hard_timeout.load(Relaxed));
    if over(rule.modified_ms.load(Relaxed), hard) {
        Some(FlowRemovedReason::HardTimeout)
    } else if over(rule.used_ms(), idle) {
        Some(FlowRemovedReason::IdleTimeout)
    } else {
        None
    }
}

impl Bridge {
    /// Expires rules and addresses; returns the number of rules. Called by a control thread a few times a
    /// second. Does nothing while another thread changes very many rules.
    pub fn tick(&self) -> usize {
        if !self.order.is_free_within(LOCK_WAIT) {
            // The other bridges' time passes, too.
            return 0;
        }
        let now = self.now_ms();
        self.do_deferred_work();
        self.purge_rules();
        self.mac.age(now);
        self.age_snooped(now);
        self.sinks().iter().for_each(|s| s.tick(now));
        let hasty = {
            let mut state = self.state.lock();
            state.timeouts.take_hasty(now, self.current_version())
        };
        let mut counted = false;
        let mut expired = self.expire(&hasty, now, &mut counted);
        for _ in 0..MAX_ROUNDS {
            let (calm, any) = {
                let mut state = self.state.lock();
                state
                    .timeouts
                    .take_calm(now, self.current_version(), MAX_EXPIRED_AT_ONCE)
            };
            expired += self.expire(&calm, now, &mut counted);
            if !any {
                break;
            }
        }
        expired
    }

    /// Removes those of these rules that are due, and returns their number. `counted`: the counters of caches
    /// have been read.
    fn expire(&self, candidates: &[Linked], now: u64, counted: &mut bool) -> usize {
        if candidates.is_empty() {
            return 0;
        }
        // Packets that only caches have counted so far may have kept an idle rule alive. (Those of a rule
        // that goes are counted when it has gone.)
        let idle = |e: &Linked| due(&e.data, now) == Some(FlowRemovedReason::IdleTimeout);
        if !*counted && candidates.iter().any(idle) {
            *counted = true;
            self.refresh();
        }
        let (mut expired, mut kept) = (Vec::new(), Vec::new());
        for e in candidates {
            match due(&e.data, now) {
                Some(reason) => expired.push((e.clone(), reason)),
                None => kept.push(e),
            }
        }
        if !kept.is_empty() {
            let mut state = self.state.lock();
            kept.iter().for_each(|e| state.timeouts.add(e));
        }
        expired
            .chunks(MAX_EXPIRED_AT_ONCE)
            .for_each(|piece| self.remove_expired(piece));
        expired.len()
    }
}
