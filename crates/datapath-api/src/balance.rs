//! Buckets of a bond: the datapath hashes each packet, and sends it by the port of the bucket.
//!
//! **Problem.** A bond that balances by addresses and ports would need a cached flow per connection, if the
//! translation chose the member. The bond's flows would all be stale whenever a bucket moves. So the choice
//! is made by a worker for each packet ([`Action::LbOutput`](crate::Action::LbOutput), Open vSwitch's
//! `lb_output`), in a table that a control thread changes in place.
//!
//! **Threads.** Workers read ports and count bytes, a control thread writes ports and reads bytes. A bucket
//! that moves takes the packets that a worker looks up from then on.
//!
//! **Order.** A worker queues packets for several ports and sends them at the end of a burst, port by port.
//! If a bucket moves within a burst, earlier packets of a flow must be sent before later ones are queued on
//! the new port. So each bucket has the number of its last move ([`BucketChoice::moved`]). A worker that
//! reads a number above all that it has seen sends its queued packets first.

use heddle_sync::{CachePadded, Counter};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// The number in place of a port's where a bucket has none.
const NO_PORT: u32 = u32::MAX;
/// Number of the last move of a bucket of any bond. Bonds are changed by one thread at a time.
static MOVES: AtomicU32 = AtomicU32::new(0);
/// Number of sets of counters. Workers beyond it share sets, and lose counts sometimes.
const SHARDS: usize = 16;

/// The buckets of one bond.
#[derive(Debug)]
pub struct LbOutput {
    /// Number of the table.
    pub id: u32,
    basis: AtomicU32,
    /// The port in the low half, the number of the move in the high half.
    buckets: [AtomicU64; LbOutput::BUCKETS],
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
            buckets: std::array::from_fn(|_| AtomicU64::new(NO_PORT.into())),
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
    /// The port of a bucket, for a worker that sends.
    #[inline]
    pub fn choice(&self, bucket: u8) -> BucketChoice {
        // Pairs with the Release in `set_port`: a worker that has seen a move sees all earlier ones.
        BucketChoice(self.buckets[usize::from(bucket)].load(Acquire))
    }
    /// Number of the port of a bucket; `None`: its packets are dropped.
    pub fn port(&self, bucket: u8) -> Option<u32> {
        self.choice(bucket).port()
    }
    /// Changes the port of a bucket. Only one thread at a time may change buckets of any bond.
    pub fn set_port(&self, bucket: u8, port: Option<u32>) {
        if self.port(bucket) != port {
            let moved = MOVES.fetch_add(1, Relaxed).wrapping_add(1);
            let word = u64::from(moved) << 32 | u64::from(port.unwrap_or(NO_PORT));
            self.buckets[usize::from(bucket)].store(word, Release);
        }
    }
    /// Bytes that worker `worker` has sent in each bucket.
    #[inline]
    pub fn counters(&self, worker: usize) -> &[Counter; Self::BUCKETS] {
        &self.bytes[worker % SHARDS]
    }
    /// Bytes sent so far in a bucket. Wraps.
    pub fn bytes(&self, bucket: u8) -> u64 {
        let shards = self.bytes.iter().map(|s| s[usize::from(bucket)].get());
        shards.fold(0, u64::wrapping_add)
    }
}

/// The port of a bucket, in the low half, and the number of the bucket's last move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BucketChoice(u64);

#[allow(clippy::cast_possible_truncation)] // the halves of a word
impl BucketChoice {
    /// The number of the port; `None`: packets are dropped.
    #[inline]
    pub fn port(self) -> Option<u32> {
        let port = self.0 as u32;
        (port != NO_PORT).then_some(port)
    }
    /// Whether both lead to the same port, or to none.
    #[inline]
    pub fn has_port_of(self, other: Self) -> bool {
        self.0 as u32 == other.0 as u32
    }
    /// Number of the bucket's last move. Numbers count up over all bonds, and wrap.
    #[inline]
    pub fn moved(self) -> u32 {
        (self.0 >> 32) as u32
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
        let before = table.choice(3).moved();
        table.set_port(3, Some(9));
        assert_eq!(table.choice(3).moved(), before, "that is no move");
        table.set_port(3, None);
        assert!(table.choice(3).moved().wrapping_sub(before).cast_signed() > 0);
        for worker in 0..40 {
            table.counters(worker)[3].add(10);
        }
        assert_eq!((table.bytes(3), table.bytes(2)), (400, 0));
    }
}
