//! Counters of each queue of a dummy port, under the names that Open vSwitch's dummy devices use.

/// Packets and bytes, by queue.
#[derive(Debug, Default)]
pub(super) struct Queues(Vec<(u64, u64)>);

impl Queues {
    /// Sets the number of queues; existing queues keep their counts.
    pub(super) fn resize(&mut self, n: usize) {
        self.0.resize(n.max(1), (0, 0));
    }
    pub(super) fn len(&self) -> usize {
        self.0.len().max(1)
    }
    pub(super) fn add(&mut self, queue: usize, bytes: usize) {
        if let Some((packets, all)) = self.0.get_mut(queue) {
            (*packets, *all) = (*packets + 1, *all + bytes as u64);
        }
    }
    /// `rx_q0_bytes`, `rx_q0_packets`, ...
    pub(super) fn named(&self, direction: &str) -> impl Iterator<Item = (String, u64)> {
        let all = self.0.iter().enumerate();
        all.flat_map(move |(q, &(packets, bytes))| {
            [
                (format!("{direction}_q{q}_bytes"), bytes),
                (format!("{direction}_q{q}_packets"), packets),
            ]
        })
    }
}
