//! Automatic load balancing (`pmd-auto-lb*`): its condition, and its action.
//!
//! Every [`AutoLb::interval_ms`] it checks the last twelve intervals of five seconds: was some worker at
//! least [`AutoLb::load`] percent busy in each? If so, and if a dry run ([`crate::control::assign`]) promises
//! enough, all queues are assigned anew. All times are those of the datapath's clock.

use super::Control;
use crate::control::assign::{self, Balance, Plan};
use crate::counters::{INTERVAL_MS, WINDOW_MS};
use heddle_sys::Tsc;

/// Settings of automatic load balancing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoLb {
    /// `pmd-auto-lb`.
    pub enabled: bool,
    /// `pmd-auto-lb-rebal-interval`, in milliseconds.
    pub interval_ms: u64,
    /// `pmd-auto-lb-improvement-threshold`: percent by which the variance of the load must fall.
    pub improvement: u64,
    /// `pmd-auto-lb-load-threshold`: percent from which a worker counts as overloaded.
    pub load: u64,
}

impl Default for AutoLb {
    fn default() -> Self {
        Self {
            enabled: false,
            interval_ms: 60_000,
            improvement: 25,
            load: 95,
        }
    }
}

/// State between two checks.
#[derive(Debug, Default)]
pub(super) struct AutoState {
    settings: AutoLb,
    /// The last check; 0: none yet.
    checked_ms: u64,
    /// Whether a dry run makes sense with this assignment; `None`: not looked at yet.
    sensible: Option<bool>,
}

impl AutoState {
    /// Queues were assigned anew.
    pub(super) fn changed(&mut self) {
        self.sensible = None;
    }
}

impl Control {
    pub(crate) fn set_auto_lb(&mut self, settings: AutoLb) {
        if !settings.enabled {
            self.auto.checked_ms = 0;
        }
        self.auto.settings = settings;
    }

    /// Does what is due now.
    pub(crate) fn balance(&mut self) {
        let AutoLb {
            enabled, interval_ms, ..
        } = self.auto.settings;
        let now_ms = self.shared.clock.now_ms();
        if !enabled {
            return;
        }
        if self.auto.checked_ms == 0 {
            self.auto.checked_ms = now_ms;
        }
        if now_ms <= self.auto.checked_ms + interval_ms {
            return;
        }
        self.auto.checked_ms = now_ms;
        if !self.overloaded(now_ms) || !self.promising() {
            return;
        }
        log::info!(target: "dpif_netdev", "PMD auto load balance dry run. Requesting datapath reconfigure.");
        if let Err(e) = self.assign_again() {
            log::warn!(target: "dpif_netdev", "queues could not be moved: {e}");
        }
    }

    /// Whether some worker was busy all of the last minute.
    fn overloaded(&self, now_ms: u64) -> bool {
        let interval = Tsc::from_us(INTERVAL_MS * 1000).max(1);
        let free = self.workers.iter().filter(|w| !w.isolated);
        free.filter(|w| now_ms.saturating_sub(w.started_ms) >= WINDOW_MS + INTERVAL_MS)
            .any(|w| {
                let each = w.counters.usage.each(now_ms);
                each.iter()
                    .all(|busy| busy.saturating_mul(100) / interval >= self.auto.settings.load)
            })
    }

    fn promising(&mut self) -> bool {
        if self.auto.sensible == Some(false) {
            log::debug!(target: "dpif_netdev",
                "PMD auto load balance nothing to do, no configuration changes since last check.");
            return false;
        }
        let (names, queues) = self.describe();
        let at = |(no, queue): &(u32, usize)| {
            let rx = self.ports.get(no)?.rx.iter().find(|r| r.queue == *queue)?;
            let id = rx.worker?;
            self.workers.iter().position(|w| w.id == id)
        };
        let now = Plan {
            place: names.iter().map(at).collect(),
            isolated: self.workers.iter().map(|w| w.isolated).collect(),
            notes: Vec::new(),
        };
        let balance = Balance {
            improvement: self.auto.settings.improvement,
            spread: self.spread,
        };
        let run = assign::dry_run(
            balance,
            &self.cores(),
            &queues,
            &now,
            Tsc::from_us(WINDOW_MS * 1000),
        );
        for line in &run.lines {
            log::debug!(target: "dpif_netdev", "{line}");
        }
        self.auto.sensible = Some(run.sensible);
        run.go
    }
}
