//! Named drop counters of one queue.

/// Counts by reason. A reason takes a place when it first happens; the few that exist fit without growing.
#[derive(Debug)]
pub(crate) struct Drops(Vec<(&'static str, u64)>);

impl Drops {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(16))
    }
    pub(crate) fn count(&mut self, reason: &'static str) {
        self.add(reason, 1);
    }
    pub(crate) fn add(&mut self, reason: &'static str, n: u64) {
        match self.0.iter_mut().find(|(r, _)| *r == reason) {
            Some((_, sum)) => *sum += n,
            None if n > 0 => self.0.push((reason, n)),
            None => {}
        }
    }
    pub(crate) fn all(&self) -> &[(&'static str, u64)] {
        &self.0
    }
}
