//! A worker's own stock of packet buffers: last in, first out, so that the warmest buffer is used next.

use crate::Packet;

/// Free packets of one worker. Taking and giving back never allocates while the stock lasts; a pool that runs
/// dry allocates one more packet and says so in [`Pool::grown`].
#[derive(Debug, Default)]
pub struct Pool {
    free: Vec<Packet>,
    cap: usize,
    grown: u64,
}

impl Pool {
    /// A pool that keeps up to `cap` packets. Their pages are touched only when first written.
    pub fn new(cap: usize) -> Self {
        Self {
            free: (0..cap).map(|_| Packet::new()).collect(),
            cap,
            grown: 0,
        }
    }
    /// An empty packet.
    pub fn get(&mut self) -> Packet {
        self.free.pop().unwrap_or_else(|| {
            self.grown += 1;
            Packet::new()
        })
    }
    /// Takes a packet back.
    pub fn put(&mut self, mut p: Packet) {
        if self.free.len() < self.cap {
            p.reset();
            self.free.push(p);
        }
    }
    /// How often it had to allocate.
    pub fn grown(&self) -> u64 {
        self.grown
    }
}
