//! Uses of the daemon's memory: `memory/show` and the log lines about growth.
//!
//! Each part that holds much memory registers a function that reports how many things of a kind it holds.
//! Counts under the same name add up. [`watch`] logs the peak resident size shortly after the start, and
//! again whenever it has grown by half, each time with the counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Counts by kind.
pub type Usage = BTreeMap<String, u64>;

type Reporter = Box<dyn Fn(&mut Usage) + Send + Sync>;

/// The functions that report. Cloning gives another handle to the same set.
#[derive(Clone, Default)]
pub struct Reporters {
    all: Arc<Mutex<Vec<Reporter>>>,
}

impl std::fmt::Debug for Reporters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reporters({})", self.all.lock().len())
    }
}

/// Adds `count` to what `usage` holds under `name`.
pub fn add(usage: &mut Usage, name: &str, count: u64) {
    *usage.entry(name.to_owned()).or_insert(0) += count;
}

impl Reporters {
    /// Adds a function that calls [`add`] for each kind of thing that it knows.
    pub fn register(&self, reporter: impl Fn(&mut Usage) + Send + Sync + 'static) {
        self.all.lock().push(Box::new(reporter));
    }

    /// All counts as `memory/show` prints them: `name:count` sorted by name, with a blank between.
    #[must_use]
    pub fn text(&self) -> String {
        let mut usage = Usage::new();
        for reporter in self.all.lock().iter() {
            reporter(&mut usage);
        }
        let words: Vec<String> = usage
            .iter()
            .map(|(name, count)| format!("{name}:{count}"))
            .collect();
        words.join(" ")
    }
}

const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Logs growth for ever; run it as a task of its own.
#[expect(clippy::cast_precision_loss, reason = "percentages are for people")]
pub async fn watch(reporters: Reporters) {
    let start = Instant::now();
    let mut reported: Option<(u64, Instant)> = None;
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let Ok(usage) = heddle_sys::memory::usage() else {
            return;
        };
        let (now, peak) = (Instant::now(), usage.peak / 1024);
        match reported {
            None => {
                let secs = now.duration_since(start).as_secs_f64();
                log::info!(target: "memory", "{peak} kB peak resident set size after {secs:.1} seconds");
            }
            Some((last, when)) if peak as f64 >= last as f64 * 1.5 => {
                let percent = (peak as f64 / last as f64 - 1.0) * 100.0;
                let secs = now.duration_since(when).as_secs_f64();
                log::info!(
                    target: "memory",
                    "peak resident set size grew {percent:.0}% in last {secs:.1} seconds, from {last} kB to {peak} kB"
                );
            }
            Some(_) => continue,
        }
        reported = Some((peak, now));
        let text = reporters.text();
        if !text.is_empty() {
            log::info!(target: "memory", "{text}");
        }
    }
}

/// Locks memory that came into use, once a second. Never returns: a task of its own under `--mlockall`.
pub async fn keep_locked() {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        // The task fails only if it panics, which has been logged.
        let _ = tokio::task::spawn_blocking(heddle_sys::locked::follow).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_sorted_and_summed() {
        let reporters = Reporters::default();
        assert_eq!(reporters.text(), "");
        reporters.register(|usage| add(usage, "rules", 3));
        reporters.register(|usage| {
            add(usage, "handlers", 1);
            add(usage, "rules", 4);
        });
        assert_eq!(reporters.text(), "handlers:1 rules:7");
    }
}
