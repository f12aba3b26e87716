//! A worker's own stock of packets: last in, first out, so that the packet most likely in the cache is used
//! next.
//!
//! There are two stacks: packets with the small area only, and packets with a big buffer. A packet returns to
//! the stack that it belongs to by then. If one stack is empty, the pool takes a packet from the other. So it
//! allocates nothing once it has enough big buffers for the traffic. The pool always keeps the packets of a
//! few bursts without big buffer: these are close together in memory.

use crate::seg::Loans;
use crate::shelf::Shelf;
use crate::{BUF_SIZE, BURST, HEAD_SPACE, Packet};

/// The number of packets without big buffer that a large pool keeps.
const KEEP_SMALL: usize = 4 * BURST;

/// Free packets of one worker. Taking and returning packets never allocates while the stock lasts. An empty
/// pool allocates one more packet and counts that in [`Pool::grown`].
#[derive(Debug, Default)]
pub struct Pool {
    small: Vec<Packet>,
    big: Vec<Packet>,
    cap: usize,
    grown: u64,
    /// Buffers that packets share.
    shelf: Shelf,
}

impl Pool {
    /// A pool that keeps up to `cap` packets, about 800 bytes each. Packets get big buffers only when they
    /// need them, and the buffers' pages are touched only when first written.
    pub fn new(cap: usize) -> Self {
        Self {
            small: (0..cap).map(|_| Packet::new()).collect(),
            big: Vec::with_capacity(cap),
            cap,
            grown: 0,
            shelf: Shelf::default(),
        }
    }
    /// An empty packet with room for at least [`HEAD_SPACE`] bytes.
    #[inline]
    pub fn get(&mut self) -> Packet {
        self.get_head(0)
    }
    /// A packet with a head of `n` bytes (at most [`HEAD_SPACE`]) that the caller fills:
    /// [`Packet::head_space`].
    #[inline]
    pub fn get_head(&mut self, n: usize) -> Packet {
        let mut p = match self.small.pop() {
            Some(p) => p,
            None => self.big.pop().unwrap_or_else(|| self.grow()),
        };
        p.begin(n);
        p
    }
    /// An empty packet with room for `n` bytes (cut to a big buffer's size).
    #[inline]
    pub fn get_for(&mut self, n: usize) -> Packet {
        if n <= HEAD_SPACE {
            self.get()
        } else {
            self.get_big()
        }
    }
    /// An empty packet with a big buffer, for receiving a packet of any length.
    pub fn get_big(&mut self) -> Packet {
        let mut p = self.big.pop().unwrap_or_else(|| self.get());
        p.begin(0);
        if !p.is_big()
            && let Some(big) = self.shelf.take()
        {
            p.set_big(big);
        }
        p.reserve(BUF_SIZE);
        p
    }
    /// Prepares a long packet for copies. It keeps its headers, and the rest moves to a buffer that copies
    /// share ([`Packet::share_into`]). The packet's bytes stay the same. If there is no room for the buffer,
    /// nothing changes.
    #[cold]
    pub fn share(&mut self, p: &mut Packet) {
        self.shelf.share(p);
    }
    #[cold]
    fn grow(&mut self) -> Packet {
        self.grown += 1;
        Packet::new()
    }
    /// Takes a packet back.
    #[inline]
    pub fn put(&mut self, mut p: Packet) {
        drop(p.end_tail());
        self.keep(p);
    }
    /// Takes packets back. Loans of one lender in a row are returned with one addition.
    #[inline]
    pub fn put_all(&mut self, packets: impl IntoIterator<Item = Packet>) {
        let mut loans = Loans::default();
        for mut p in packets {
            if let Some(loan) = p.end_tail() {
                loans.add(loan);
            }
            self.keep(p);
        }
    }
    /// Keeps a packet without a tail, if there is room.
    #[inline(always)]
    fn keep(&mut self, p: Packet) {
        if self.small.len() + self.big.len() >= self.cap {
            return;
        }
        if p.is_big() {
            return self.keep_big(p);
        }
        self.small.push(p);
    }
    #[inline(never)]
    fn keep_big(&mut self, mut p: Packet) {
        if self.big.len() + KEEP_SMALL < self.cap {
            return self.big.push(p);
        }
        p.shrink();
        self.small.push(p);
    }
    /// The number of packets that the pool had to allocate.
    pub fn grown(&self) -> u64 {
        self.grown
    }
}
