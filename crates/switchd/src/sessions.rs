//! The thread for protocols that watch ports ([`heddle_ofproto::monitor`]): it wakes when a timer is due, to
//! the millisecond, and when messages wait.
//!
//! The thread does no other work, and waits for no other thread. It needs little processor time, so it may
//! have priority over the programs that keep processors busy. A peer that hears nothing for some tens of
//! milliseconds assumes that the path is broken.

use std::time::{Duration, Instant};

use heddle_sys::priority;
use heddle_sys::{Epoll, clock};

use crate::switch::Switch;
use heddle_daemon::vlog::errno_text;

/// The longest sleep; then the thread checks whether to end.
const MAX_WAIT_MS: u64 = 100;
/// The sleep while `time/warp` moves the clock and does this thread's work.
const WARP_SLEEP: Duration = Duration::from_millis(1);
/// The shortest time between two reports to the database, so that a peer that flaps does not keep it busy.
const MIN_REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// The thread's real-time priority: before workers that have one.
const REALTIME_PRIORITY: u8 = heddle_datapath::REALTIME + 1;
/// The longest delay of a sleep's end.
const TIMER_SLACK_NS: u64 = 50_000;

impl Switch {
    /// Runs sessions until the switch ends.
    pub(crate) fn run_sessions(&self) {
        // The slack only makes sleeps more precise.
        let _ = clock::set_timer_slack_ns(TIMER_SLACK_NS);
        if let Err(error) = priority::set_realtime(REALTIME_PRIORITY) {
            let why = errno_text(&error);
            log::info!(target: "bfd", "no real-time priority, messages may be late where processors are busy ({why})");
        }
        let mut bell = match Epoll::new(1).and_then(|e| e.add(self.datapath.control_fd(), 0).map(|()| e)) {
            Ok(bell) => Some(bell),
            Err(error) => {
                let why = errno_text(&error);
                log::error!(target: "bfd", "cannot wait for messages, looking for them instead ({why})");
                None
            }
        };
        let monitor = self.ofproto.monitor();
        let mut reported = Instant::now();
        while !self.is_ending() {
            if self.is_warping() {
                std::thread::park_timeout(WARP_SLEEP);
                continue;
            }
            let stopped = self.clock.is_stopped();
            let next_ms = monitor.run(stopped);
            let mut wait_ms = next_ms.map_or(MAX_WAIT_MS, |at| at.saturating_sub(self.clock.now_ms()));
            if monitor.has_status_changed() {
                if reported.elapsed() >= MIN_REPORT_INTERVAL {
                    reported = Instant::now();
                    self.sessions_changed.notify_one();
                }
                wait_ms = wait_ms.max(1);
            }
            wait_ms = wait_ms.min(MAX_WAIT_MS);
            match &mut bell {
                Some(bell) => {
                    let _ = bell.wait(i32::try_from(wait_ms).unwrap_or(0));
                }
                None => std::thread::park_timeout(Duration::from_millis(wait_ms.clamp(1, 2))),
            }
        }
    }
}
