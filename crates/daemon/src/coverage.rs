//! Event counters for `coverage/show` and `coverage/read-counter`.
//!
//! [`coverage!`](crate::coverage::coverage) counts at a place in the code. [`register_source`] adds
//! counters that other crates keep in their own way (per core, for example); commands and samples read them.
//! Counters of the same name add up. Counting is one relaxed atomic addition; names live for ever and are
//! bounded by the program.
//!
//! [`sampler`] takes a sample every five seconds, from which the rates over five seconds, a minute and an
//! hour are made.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

/// One event counter, made by [`coverage!`](crate::coverage::coverage).
#[derive(Debug)]
pub struct Counter {
    name: &'static str,
    value: AtomicU64,
    registered: AtomicBool,
}

impl Counter {
    /// A counter at zero that [`Counter::add`] will register.
    #[must_use]
    pub const fn new(name: &'static str) -> Counter {
        Counter {
            name,
            value: AtomicU64::new(0),
            registered: AtomicBool::new(false),
        }
    }

    /// Counts `n` events.
    pub fn add(&'static self, n: u64) {
        self.value.fetch_add(n, Relaxed);
        // The load keeps the common case free of a write; only one thread sees the swap give false.
        if !self.registered.load(Relaxed) && !self.registered.swap(true, Relaxed) {
            COUNTERS.lock().counters.push(self);
        }
    }
}

/// Counts one event (`coverage!("unixctl_received")`) or several (`coverage!("rx_dropped", n)`).
#[macro_export]
macro_rules! coverage_count {
    ($name:literal) => {
        $crate::coverage::coverage!($name, 1)
    };
    ($name:literal, $n:expr) => {{
        static COUNTER: $crate::coverage::Counter = $crate::coverage::Counter::new($name);
        COUNTER.add($n);
    }};
}
pub use crate::coverage_count as coverage;

/// A function that reports counters by calling its argument with each name and total.
type Source = Box<dyn Fn(&mut dyn FnMut(&str, u64)) + Send + Sync>;

struct Counters {
    counters: Vec<&'static Counter>,
    sources: Vec<Source>,
    history: BTreeMap<String, History>,
}

static COUNTERS: Mutex<Counters> = Mutex::new(Counters {
    counters: Vec::new(),
    sources: Vec::new(),
    history: BTreeMap::new(),
});

/// Seconds between two samples.
const INTERVAL_SECS: u64 = 5;
const SAMPLES_PER_MINUTE: usize = 12;

/// One counter's events of the last hour.
#[derive(Debug)]
struct History {
    last_total: u64,
    /// Events per sample of the last minute, as a ring.
    samples: [u64; SAMPLES_PER_MINUTE],
    /// Events per minute of the last hour, as a ring; the current minute is still growing.
    minutes: [u64; 60],
    n_samples: usize,
}

impl Default for History {
    fn default() -> History {
        History {
            last_total: 0,
            samples: [0; SAMPLES_PER_MINUTE],
            minutes: [0; 60],
            n_samples: 0,
        }
    }
}

impl History {
    fn sample(&mut self, total: u64) {
        let count = total.saturating_sub(self.last_total);
        self.last_total = total;
        let slot = self.n_samples % SAMPLES_PER_MINUTE;
        let minute = (self.n_samples / SAMPLES_PER_MINUTE) % 60;
        self.samples[slot] = count;
        self.minutes[minute] = if slot == 0 {
            count
        } else {
            self.minutes[minute] + count
        };
        self.n_samples += 1;
    }

    fn last(&self) -> u64 {
        match self.n_samples {
            0 => 0,
            n => self.samples[(n - 1) % SAMPLES_PER_MINUTE],
        }
    }
}

/// Adds a source of counters. Each sample and each command calls it. It must not block for long, and not
/// count with [`coverage!`](crate::coverage::coverage).
pub fn register_source(source: impl Fn(&mut dyn FnMut(&str, u64)) + Send + Sync + 'static) {
    COUNTERS.lock().sources.push(Box::new(source));
}

fn totals(all: &Counters) -> BTreeMap<String, u64> {
    let mut totals = BTreeMap::new();
    let mut add = |name: &str, count: u64| *totals.entry(name.to_owned()).or_insert(0) += count;
    for counter in &all.counters {
        add(counter.name, counter.value.load(Relaxed));
    }
    for source in &all.sources {
        source(&mut add);
    }
    totals
}

/// Takes one sample of all counters.
fn sample() {
    let mut all = COUNTERS.lock();
    for (name, total) in totals(&all) {
        all.history.entry(name).or_default().sample(total);
    }
}

/// Samples all counters for ever; run it as a task of its own.
pub async fn sampler() {
    let mut tick = tokio::time::interval(Duration::from_secs(INTERVAL_SECS));
    loop {
        tick.tick().await;
        sample();
    }
}

/// The total of one counter, if there is one of this name.
#[must_use]
pub fn read(name: &str) -> Option<u64> {
    totals(&COUNTERS.lock()).get(name).copied()
}

/// The text of `coverage/show`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "rates are for people")]
pub fn show() -> String {
    let all = COUNTERS.lock();
    let totals = totals(&all);
    let mut lines = String::new();
    let mut never = 0;
    let mut hash = 0x811c_9dc5_u32;
    for (name, total) in &totals {
        if *total == 0 {
            never += 1;
            continue;
        }
        // FNV-1a over the names that were hit: equal hashes mean that the same things have happened.
        hash = name.bytes().fold(hash, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        let none = History::default();
        let history = all.history.get(name).unwrap_or(&none);
        let _ = writeln!(
            lines,
            "{name:<24} {:>5.1}/sec {:>9.3}/sec {:>13.4}/sec   total: {total}",
            history.last() as f64 / INTERVAL_SECS as f64,
            history.samples.iter().sum::<u64>() as f64 / 60.0,
            history.minutes.iter().sum::<u64>() as f64 / 3600.0,
        );
    }
    format!(
        "Event coverage, avg rate over last: {INTERVAL_SECS} seconds, last minute, last hour,  hash={hash:08x}:\n\
         {lines}{never} events never hit\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_merge_and_show() {
        for _ in 0..3 {
            coverage!("coverage_test_a");
        }
        coverage!("coverage_test_a", 4);
        register_source(|add| {
            add("coverage_test_a", 10);
            add("coverage_test_zero", 0);
        });
        assert_eq!(read("coverage_test_a"), Some(17));
        assert_eq!(read("coverage_test_nothing"), None);
        let text = show();
        assert!(
            text.starts_with("Event coverage, avg rate over last: 5 seconds, last minute, last hour,  hash=")
        );
        let line = "coverage_test_a            0.0/sec     0.000/sec        0.0000/sec   total: 17\n";
        assert!(text.contains(line), "{text}");
        assert!(!text.contains("coverage_test_zero"));
    }

    #[test]
    fn rates_cover_a_minute_and_an_hour() {
        let mut history = History::default();
        let mut total = 0;
        for _ in 0..SAMPLES_PER_MINUTE * 61 {
            total += 2;
            history.sample(total);
        }
        assert_eq!(history.last(), 2);
        assert_eq!(history.samples.iter().sum::<u64>(), 24);
        assert_eq!(history.minutes.iter().sum::<u64>(), 24 * 60);
    }
}
