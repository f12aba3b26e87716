//! `heddle-priority`: packets need not wait for programs that keep processors busy.
//!
//! The threads that packets wait for request short slices. Slices change no thread's share of the time, and
//! the kernel grants an early turn only within that share. So the switch also raises its share, where it may:
//!
//! 1. The *autogroup* of its session weighs the whole switch against the groups of other programs. The switch
//!    changes the group's nice value only if the session is its own: it must not raise other programs.
//! 2. If the autogroup does not count, the threads get a nice value. It is a moderate one, as it also
//!    weighs them against the switch's own control threads.
//!
//! In a control group with the controller `cpu` neither of them weighs the switch against other programs. The
//! group's `cpu.weight` does, which belongs to its owner (systemd, a kubelet). A worker that never sleeps
//! would leave other programs nothing, so then the switch requests slices only.
//!
//! The log has one line with the parts that apply, and the reasons of those that do not.

use std::fmt::Write as _;
use std::io;

use heddle_daemon::vlog::errno_text;
use heddle_datapath::Datapath;
use heddle_sys::cpu_group::{self, CpuGroup, CpuLimit};
use heddle_sys::priority::{Refused, Scheduling, ThreadId};
use parking_lot::Mutex;

/// Length of slices: the shortest that the kernel grants.
const SLICE_NS: u64 = 100_000;
/// Nice value of the session's autogroup. With the largest weight, the switch has used less than its share
/// whenever a packet comes, also beside programs with negative values of their own.
const AUTOGROUP_NICE: i32 = -20;
/// Nice value of threads. A thread with 0 beside them keeps a tenth of the processor.
const THREAD_NICE: i32 = -10;

/// The scheduling that the settings request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Like other programs.
    Nothing,
    /// Short slices, and the share of other programs.
    Slices,
    /// Short slices and a large share.
    All,
}

/// The scheduling of the threads that packets wait for: workers, and the control threads that joined.
#[derive(Default)]
pub(crate) struct Priority {
    state: Mutex<PriorityState>,
}

#[derive(Default)]
struct PriorityState {
    /// Control threads.
    threads: Vec<ThreadId>,
    scheduling: Option<Scheduling>,
    /// Nice values before the first change, of the process and of its autogroup.
    nice_before: i32,
    autogroup_before: Option<i32>,
    /// The last line of the log.
    logged: String,
    limit_logged: bool,
}

impl Priority {
    /// Has the calling thread scheduled as one that packets wait for.
    pub(crate) fn join(&self) {
        let thread = ThreadId::current();
        let mut state = self.state.lock();
        state.threads.push(thread);
        if let Some(scheduling) = state.scheduling {
            // The kernel refuses what it refused to others, and the log has that.
            let _ = scheduling.apply(thread);
        }
    }

    /// Requests the scheduling from the kernel, and logs the result unless the last one was the same.
    pub(crate) fn apply(&self, request: Request, datapath: &Datapath) {
        let mut state = self.state.lock();
        let surroundings = Surroundings::read();
        if let Some((path, limit)) = surroundings.limit().filter(|_| !state.limit_logged) {
            log::warn!(target: "dpif_netdev", "{}", limit_text(path, limit));
            state.limit_logged = true;
        }
        if state.scheduling.is_none() {
            // The calling thread was not changed.
            state.nice_before = ThreadId::current().nice().unwrap_or(0);
        }
        let mut report = Report::default();
        let autogroup = state.apply_autogroup(request, &surroundings, &mut report);
        let scheduling = Scheduling {
            slice_ns: (request != Request::Nothing).then_some(SLICE_NS),
            nice: match request {
                Request::All if !autogroup => state.nice_before.min(THREAD_NICE),
                _ => state.nice_before,
            },
        };
        state.scheduling = Some(scheduling);
        let control = state.threads.iter().map(|t| scheduling.apply(*t));
        let refused = control.fold(datapath.set_scheduling(scheduling), Refused::or);
        report.add_threads(scheduling, state.nice_before, refused);
        let line = report.line(request);
        if line != state.logged {
            log::info!(target: "dpif_netdev", "{line}");
            state.logged = line;
        }
    }
}

impl PriorityState {
    /// Sets the nice value of the autogroup, or sets it back. Returns whether it weighs the switch.
    fn apply_autogroup(&mut self, request: Request, now: &Surroundings, report: &mut Report) -> bool {
        if request != Request::All {
            if let Some(before) = self.autogroup_before.take()
                && let Err(e) = cpu_group::set_autogroup_nice(before)
            {
                report.refuse(format!("autogroup nice {before}"), errno_text(&e));
            }
            if request == Request::Slices {
                let why = "pmd-sleep-max has workers that never sleep";
                report.refuse("more of the processors".to_owned(), why.to_owned());
            }
            return false;
        }
        let part = format!("autogroup nice {AUTOGROUP_NICE}");
        let done = match now.autogroup() {
            Err(why) => Err(why),
            Ok(before) => cpu_group::set_autogroup_nice(AUTOGROUP_NICE)
                .map(|()| before)
                .map_err(|e| errno_text(&e)),
        };
        match done {
            Ok(before) => {
                // A daemon that a monitor started again finds the value that the one before it has set.
                let before = if before == AUTOGROUP_NICE { 0 } else { before };
                self.autogroup_before.get_or_insert(before);
                report.applied.push(part);
                true
            }
            Err(why) => {
                report.refuse(part, why);
                false
            }
        }
    }
}

/// The groups that this process is in.
struct Surroundings {
    group: Option<CpuGroup>,
    autogroup_nice: Option<i32>,
    own_session: bool,
}

impl Surroundings {
    fn read() -> Self {
        Self {
            group: cpu_group::own(),
            autogroup_nice: cpu_group::autogroup_nice(),
            own_session: cpu_group::has_own_session(),
        }
    }

    /// The control group's path and its limit, if it has one.
    fn limit(&self) -> Option<(&str, CpuLimit)> {
        let group = self.group.as_ref()?;
        Some((&group.path, group.limit?))
    }

    /// The autogroup's nice value; `Err`: the reason why it must not or need not be changed.
    fn autogroup(&self) -> Result<i32, String> {
        if let Some(group) = &self.group {
            return Err(format!(
                "control group {}: its cpu.weight counts instead",
                group.path
            ));
        }
        let Some(nice) = self.autogroup_nice else {
            return Err("the kernel has none, or they are off".into());
        };
        if !self.own_session {
            return Err("the session has other programs".into());
        }
        Ok(nice)
    }
}

fn limit_text(path: &str, limit: CpuLimit) -> String {
    let CpuLimit { quota_us, period_us } = limit;
    format!(
        "control group {path} may use {quota_us} us of the processors in {period_us} us (cpu.max): when these \
         are used up, packets wait for the next period, whatever the scheduling"
    )
}

/// The parts of a request: those that apply, and the others with the reasons.
#[derive(Default)]
struct Report {
    applied: Vec<String>,
    refused: Vec<String>,
}

impl Report {
    fn refuse(&mut self, part: String, why: String) {
        self.refused.push(format!("{part} ({why})"));
    }

    fn add(&mut self, part: String, error: Option<io::Error>) {
        match error {
            None => self.applied.push(part),
            Some(e) => self.refuse(part, errno_text(&e)),
        }
    }

    fn add_threads(&mut self, scheduling: Scheduling, nice_before: i32, refused: Refused) {
        if scheduling.nice != nice_before || refused.nice.is_some() {
            self.add(format!("nice {}", scheduling.nice), refused.nice);
        }
        match (scheduling.slice_ns, refused.slice) {
            (Some(ns), error) => self.add(format!("slices of {} us", ns / 1000), error),
            (None, Some(e)) => self.refuse("default slices".to_owned(), errno_text(&e)),
            (None, None) => {}
        }
    }

    fn line(mut self, request: Request) -> String {
        let mut line = "heddle-priority: PMD threads have ".to_owned();
        // Slices first.
        self.applied.reverse();
        let _ = match (request, &self.applied[..]) {
            (Request::Nothing, _) => write!(line, "the scheduling of other programs"),
            (_, []) => write!(line, "no priority"),
            (_, parts) => write!(line, "{}", parts.join(" and ")),
        };
        if !self.refused.is_empty() {
            let _ = write!(line, "; not {}", self.refused.join(", not "));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Scheduling = Scheduling {
        slice_ns: Some(SLICE_NS),
        nice: 0,
    };

    fn denied() -> Option<io::Error> {
        Some(io::Error::from_raw_os_error(1))
    }

    #[test]
    fn the_autogroup_counts_only_outside_of_control_groups_and_in_a_session_of_our_own() {
        let of = |path: Option<&str>, autogroup_nice, own_session| {
            let group = path.map(|path| CpuGroup {
                path: path.to_owned(),
                limit: None,
            });
            Surroundings {
                group,
                autogroup_nice,
                own_session,
            }
            .autogroup()
        };
        assert_eq!(of(None, Some(5), true), Ok(5));
        let why = of(Some("/kubepods/pod1"), Some(0), true).expect_err("a control group");
        assert_eq!(why, "control group /kubepods/pod1: its cpu.weight counts instead");
        let why = of(None, None, true).expect_err("no autogroups");
        assert_eq!(why, "the kernel has none, or they are off");
        let why = of(None, Some(0), false).expect_err("another session");
        assert_eq!(why, "the session has other programs");
    }

    #[test]
    fn one_line_has_all_parts() {
        let mut report = Report::default();
        report.applied.push("autogroup nice -20".into());
        report.add_threads(ALL, 0, Refused::default());
        assert_eq!(
            report.line(Request::All),
            "heddle-priority: PMD threads have slices of 100 us and autogroup nice -20"
        );
        let mut report = Report::default();
        report.refuse("autogroup nice -20".into(), "why".into());
        let refused = Refused {
            slice: Some(io::Error::other("too old")),
            nice: denied(),
        };
        report.add_threads(
            Scheduling {
                nice: THREAD_NICE,
                ..ALL
            },
            0,
            refused,
        );
        assert_eq!(
            report.line(Request::All),
            "heddle-priority: PMD threads have no priority; not autogroup nice -20 (why), not nice -10 \
             (Operation not permitted), not slices of 100 us (too old)"
        );
        let mut report = Report::default();
        let ordinary = Scheduling {
            slice_ns: None,
            nice: 0,
        };
        report.add_threads(ordinary, 0, Refused::default());
        assert_eq!(
            report.line(Request::Nothing),
            "heddle-priority: PMD threads have the scheduling of other programs"
        );
    }

    #[test]
    fn a_limit_is_logged_with_its_numbers() {
        let limit = CpuLimit {
            quota_us: 50_000,
            period_us: 100_000,
        };
        let text = limit_text("/pod", limit);
        assert!(
            text.starts_with("control group /pod may use 50000 us of the processors in 100000 us (cpu.max)"),
            "{text}"
        );
    }

    #[test]
    fn a_thread_that_joins_later_is_scheduled_as_the_others() {
        let priority = Priority::default();
        priority.state.lock().scheduling = Some(ALL);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                priority.join();
                let own = ThreadId::current();
                let slice = own.slice_ns().expect("no filter in tests");
                assert!(slice == SLICE_NS || slice == 0, "{slice}: 0 before Linux 6.12");
            });
        });
        assert_eq!(priority.state.lock().threads.len(), 1);
    }
}
