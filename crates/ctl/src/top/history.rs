//! The last frames, as lines of bars: the busy time of each worker, the packets of each port.

use super::rates::Frame;
use ratatui::symbols::bar;
use std::collections::{BTreeMap, VecDeque};

/// Number of frames in a line of bars.
pub(super) const FRAMES: usize = 20;
/// Maximum number of ports with bars, which bounds memory.
const MAX_PORTS: usize = 4096;

/// The last frames. Workers are known by their numbers, ports by their names.
#[derive(Debug, Default)]
pub(super) struct History {
    workers: BTreeMap<u64, VecDeque<f64>>,
    ports: BTreeMap<String, VecDeque<f64>>,
}

/// Appends a value to those of `key`, which `old` may hold.
fn carry<K: Ord>(
    old: &mut BTreeMap<K, VecDeque<f64>>,
    new: &mut BTreeMap<K, VecDeque<f64>>,
    key: K,
    value: f64,
) {
    let mut values = old.remove(&key).unwrap_or_default();
    values.push_back(value);
    if values.len() > FRAMES {
        values.pop_front();
    }
    new.insert(key, values);
}

impl History {
    /// Adds a frame. Workers and ports that are gone are removed.
    pub(super) fn add(&mut self, frame: &Frame) {
        let mut old = std::mem::take(self);
        for w in &frame.workers {
            carry(&mut old.workers, &mut self.workers, w.id, w.busy_percent);
        }
        for p in frame.ports.iter().take(MAX_PORTS) {
            let (name, value) = (p.port.clone(), p.packets_per_second());
            carry(&mut old.ports, &mut self.ports, name, value);
        }
    }
    /// Bars of a worker. The highest bar means busy all the time.
    pub(super) fn of_worker(&self, id: u64) -> String {
        self.workers.get(&id).map_or_else(String::new, |v| bars(v, 100.0))
    }
    /// Bars of a port. The highest bar is its highest number of packets in these frames.
    pub(super) fn of_port(&self, name: &str) -> String {
        let of = |values: &VecDeque<f64>| bars(values, values.iter().copied().fold(1.0, f64::max));
        self.ports.get(name).map_or_else(String::new, of)
    }
}

/// One character for each value; zero is a blank, and any other value has a bar, however small.
fn bars(values: &VecDeque<f64>, most: f64) -> String {
    const BARS: [&str; 8] = [
        bar::ONE_EIGHTH,
        bar::ONE_QUARTER,
        bar::THREE_EIGHTHS,
        bar::HALF,
        bar::FIVE_EIGHTHS,
        bar::THREE_QUARTERS,
        bar::SEVEN_EIGHTHS,
        bar::FULL,
    ];
    let of = |value: &f64| {
        if value.is_nan() || *value <= 0.0 {
            return " ";
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to 7, after the bounds"
        )]
        let at = (8.0 * value / most).ceil().clamp(1.0, 8.0) as usize;
        BARS.get(at - 1).copied().unwrap_or(" ")
    };
    values.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_high_as_values() {
        let of = |values: &[f64]| bars(&values.iter().copied().collect(), 100.0);
        assert_eq!(of(&[0.0, 0.1, 50.0, 51.0, 100.0, 1e300]), " ▁▄▅██");
        assert_eq!(of(&[f64::NAN, -1.0]), "  ");
    }
}
