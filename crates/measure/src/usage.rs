//! Processor time: of the machine by kind, and of processes.
//!
//! **Limits.** The kernel counts in hundredths of a second, and by samples unless it is built to count
//! exactly. So the error in a series of two seconds on two processors is about 0.5 %. Work in softirqs is
//! charged to the interrupted process; the machine's figures list it separately. Steal is time that a
//! hypervisor gave to others.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;

/// `USER_HZ`, which Linux gives to userspace on all architectures of ours.
const TICKS_PER_S: f64 = 100.0;
/// Processes that took a smaller share of the time are not reported.
const MIN_SHARE: f64 = 0.005;
/// Maximum number of reported processes.
const MAX_PROCESSES: usize = 12;

/// Seconds of all processors together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Processor {
    /// In programs.
    pub user_s: f64,
    /// In the kernel, for programs.
    pub system_s: f64,
    /// In hard interrupts.
    pub irq_s: f64,
    /// In soft interrupts: most of the network stack's receiving.
    pub softirq_s: f64,
    /// Given to other machines by the hypervisor.
    pub steal_s: f64,
    /// Idle time.
    pub idle_s: f64,
}

impl Processor {
    /// Busy time, seconds.
    pub fn busy_s(&self) -> f64 {
        self.user_s + self.system_s + self.irq_s + self.softirq_s
    }
    /// Sum of all kinds.
    pub fn all_s(&self) -> f64 {
        self.busy_s() + self.steal_s + self.idle_s
    }
    /// Adds the time of another machine.
    pub fn add(&mut self, other: &Self) {
        self.user_s += other.user_s;
        self.system_s += other.system_s;
        self.irq_s += other.irq_s;
        self.softirq_s += other.softirq_s;
        self.steal_s += other.steal_s;
        self.idle_s += other.idle_s;
    }
    fn since(&self, earlier: &Self) -> Self {
        Self {
            user_s: (self.user_s - earlier.user_s).max(0.0),
            system_s: (self.system_s - earlier.system_s).max(0.0),
            irq_s: (self.irq_s - earlier.irq_s).max(0.0),
            softirq_s: (self.softirq_s - earlier.softirq_s).max(0.0),
            steal_s: (self.steal_s - earlier.steal_s).max(0.0),
            idle_s: (self.idle_s - earlier.idle_s).max(0.0),
        }
    }
    /// The first line of `/proc/stat`.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|l| l.strip_prefix("cpu "))?;
        let n: Vec<f64> = line
            .split_whitespace()
            .map_while(|w| w.parse::<f64>().ok())
            .map(|t| t / TICKS_PER_S)
            .collect();
        let at = |i: usize| n.get(i).copied().unwrap_or(0.0);
        // user nice system idle iowait irq softirq steal; guests' time is in user's already.
        Some(Self {
            user_s: at(0) + at(1),
            system_s: at(2),
            irq_s: at(5),
            softirq_s: at(6),
            steal_s: at(7),
            idle_s: at(3) + at(4),
        })
    }
}

/// A process's time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// The name of its program, up to 15 characters.
    pub name: String,
    /// Seconds outside of the kernel.
    pub user_s: f64,
    /// Seconds in the kernel.
    pub system_s: f64,
}

impl Process {
    /// Parses `/proc/PID/stat`. Names may have any characters: the last parenthesis ends them.
    fn parse(text: &str) -> Option<Self> {
        let (head, rest) = text.rsplit_once(") ")?;
        let (pid, name) = head.split_once(" (")?;
        let mut fields = rest.split(' ').skip(11);
        let mut next = || Some(fields.next()?.parse::<f64>().ok()? / TICKS_PER_S);
        Some(Self {
            pid: pid.parse().ok()?,
            name: name.to_owned(),
            user_s: next()?,
            system_s: next()?,
        })
    }
}

/// The counters at one time.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    processor: Processor,
    processes: BTreeMap<u32, Process>,
}

impl Moment {
    /// Reads the present values. A process that ends meanwhile is left out.
    pub fn now() -> Self {
        let processor = Processor::parse(&fs::read_to_string("/proc/stat").unwrap_or_default());
        let mut processes = BTreeMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name();
            if name.as_encoded_bytes().first().is_some_and(u8::is_ascii_digit)
                && let Ok(text) = fs::read_to_string(entry.path().join("stat"))
                && let Some(p) = Process::parse(&text)
            {
                processes.insert(p.pid, p);
            }
        }
        Self {
            processor: processor.unwrap_or_default(),
            processes,
        }
    }

    /// Time used since `earlier`: by the machine, and by the processes that used most.
    pub fn since(&self, earlier: &Self) -> Usage {
        let processor = self.processor.since(&earlier.processor);
        let least = processor.all_s() * MIN_SHARE;
        let mut processes: Vec<Process> = self
            .processes
            .values()
            .map(|p| {
                // Threads of the kernel change their names. A process that has used less than before is
                // another one with the same number.
                let used_less = |b: &&Process| b.user_s <= p.user_s && b.system_s <= p.system_s;
                let before = earlier.processes.get(&p.pid).filter(used_less);
                Process {
                    user_s: (p.user_s - before.map_or(0.0, |b| b.user_s)).max(0.0),
                    system_s: (p.system_s - before.map_or(0.0, |b| b.system_s)).max(0.0),
                    ..p.clone()
                }
            })
            .filter(|p| p.user_s + p.system_s > least)
            .collect();
        processes.sort_by(|a, b| (b.user_s + b.system_s).total_cmp(&(a.user_s + a.system_s)));
        processes.truncate(MAX_PROCESSES);
        Usage { processor, processes }
    }
}

/// Processor time used in a period.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Time of the machine.
    pub processor: Processor,
    /// Times of processes, the busiest first.
    pub processes: Vec<Process>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel() {
        let p = Processor::parse("cpu  100 20 300 4000 50 6 70 8 9 10\ncpu0 1 2 3\n").unwrap();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(p.user_s, 1.2);
        near(p.system_s, 3.0);
        near(p.idle_s, 40.5);
        near(p.busy_s(), 1.2 + 3.0 + 0.06 + 0.7);
        near(p.all_s(), 1.2 + 3.0 + 0.06 + 0.7 + 40.5 + 0.08);
        assert_eq!(Processor::parse("intr 1"), None);
        let text = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 250 0 0";
        let p = Process::parse(text).unwrap();
        assert_eq!((p.pid, p.name.as_str()), (42, "a) b (c"));
        assert_eq!((p.user_s, p.system_s), (1.5, 2.5));
        assert_eq!(Process::parse("rubbish"), None);
    }

    #[test]
    fn work_is_seen() {
        let before = Moment::now();
        let end = std::time::Instant::now() + std::time::Duration::from_millis(400);
        while std::time::Instant::now() < end {
            std::hint::black_box(0);
        }
        let usage = Moment::now().since(&before);
        assert!(usage.processor.all_s() > 0.1, "{usage:?}");
        let own = usage.processes.iter().find(|p| p.pid == std::process::id());
        // The loop used less time if other programs had the processor.
        assert!(own.is_some_and(|p| p.user_s + p.system_s >= 0.03), "{usage:?}");
    }
}
