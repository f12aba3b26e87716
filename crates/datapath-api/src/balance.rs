//! Buckets of a bond: the datapath hashes each packet, and sends it by the port of the bucket.
//!
//! **Problem.** A bond that balances by addresses and ports would need a cached flow per connection, if the
//! translation chose the member. The bond's flows would all be stale whenever a bucket moves. So the choice
//! is made by a worker for each packet ([`Action::LbOutput`](crate::Action::LbOutput), Open vSwitch's
//! `lb_output`), in a table that a control thread changes in place.
//!
//! **Threads.** Workers read ports and count bytes, a control thread writes ports and reads bytes. All
//! accesses are relaxed: a bucket that moves takes the packets that a worker looks up from then on.

use heddle_sync::{CachePadded, Counter};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The number in place of a port's where a bucket has none.
const NO_PORT: u32 = u32::MAX;
/// Number of sets of counters. Workers beyond it share sets, and lose counts sometimes.
const SHARDS: usize = 16;

/// The buckets of one bond.
#[derive(Debug)]
pub struct LbOutput {
    /// Number of the table.
    pub id: u32,
    basis: AtomicU32,
    ports: [AtomicU32; LbOutput::BUCKETS],
    bytes: Box<[CachePadded<[Counter; LbOutput::BUCKETS]>]>,
}

impl LbOutput {
    /// Number of buckets.
    pub const BUCKETS: usize = 256;

    /// Buckets without ports.
    pub fn new(id: u32) -> Arc<Self> {
        let counters = || CachePadded::new(std::array::from_fn(|_| Counter::default()));
        Arc::new(Self {
            id,
            basis: AtomicU32::new(0),
            ports: std::array::from_fn(|_| AtomicU32::new(NO_PORT)),
            bytes: (0..SHARDS).map(|_| counters()).collect(),
        })
    }
    /// Seed of the packets' hashes.
    pub fn basis(&self) -> u32 {
        self.basis.load(Relaxed)
    }
    /// Changes the seed.
    pub fn set_basis(&self, basis: u32) {
        self.basis.store(basis, Relaxed);
    }
    /// Number of the port of a bucket; `None`: its packets are dropped.
    #[inline]
    pub fn port(&self, bucket: u8) -> Option<u32> {
        let port = self.ports[usize::from(bucket)].load(Relaxed);
        (port != NO_PORT).then_some(port)
    }
    /// Changes the port of a bucket.
    pub fn set_port(&self, bucket: u8, port: Option<u32>) {
        self.ports[usize::from(bucket)].store(port.unwrap_or(NO_PORT), Relaxed);
    }
    /// Counts bytes that worker `worker` sends in a bucket.
    #[inline]
    pub fn count(&self, worker: usize, bucket: u8, bytes: u64) {
        self.bytes[worker % SHARDS][usize::from(bucket)].add(bytes);
    }
    /// Bytes sent so far in a bucket. Wraps.
    pub fn bytes(&self, bucket: u8) -> u64 {
        let shards = self.bytes.iter().map(|s| s[usize::from(bucket)].get());
        shards.fold(0, u64::wrapping_add)
    }
}

/// The same table.
impl std::hash::Hash for LbOutput {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl PartialEq for LbOutput {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_ports_and_counts_of_their_own() {
        let table = LbOutput::new(7);
        assert_eq!(table.port(3), None);
        table.set_port(3, Some(9));
        assert_eq!((table.port(3), table.port(4)), (Some(9), None));
        for worker in 0..40 {
            table.count(worker, 3, 10);
        }
        assert_eq!((table.bytes(3), table.bytes(2)), (400, 0));
    }
}
