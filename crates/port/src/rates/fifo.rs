//! Packets that wait in a queue, as bytes: a packet's buffer is far longer than most packets, and thousands
//! wait.

use heddle_packet::{Offload, Packet, Pool};
use std::collections::VecDeque;

/// An empty queue keeps memory for one packet's entry per this number of bytes.
const BYTES_PER_PACKET: usize = 64;

/// A waiting packet without its bytes.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    len: u32,
    /// Bytes on the wire.
    charge: u32,
    mark: u32,
    offload: Offload,
    since: u64,
}

/// The first packet of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct First {
    /// Bytes on the wire.
    pub(super) charge: u64,
    /// When it came.
    pub(super) since: u64,
}

/// Packets in order.
#[derive(Debug)]
pub(super) struct Fifo {
    /// Bytes of memory that it keeps when it is empty.
    keep: usize,
    packets: VecDeque<Waiting>,
    bytes: VecDeque<u8>,
}

impl Fifo {
    /// An empty queue, which keeps up to `keep` bytes of memory when it is empty again.
    pub(super) fn new(keep: usize) -> Self {
        Self {
            keep,
            packets: VecDeque::new(),
            bytes: VecDeque::new(),
        }
    }
    /// Drops all packets, and the memory.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.keep);
    }
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }
    /// Bytes of all packets.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }
    /// Appends a copy of a packet.
    pub(super) fn push(&mut self, packet: &Packet, charge: u64, now: u64) {
        packet.pieces(0, &mut |piece| self.bytes.extend(piece));
        self.packets.push_back(Waiting {
            len: u32::try_from(packet.len()).unwrap_or(0),
            charge: u32::try_from(charge).unwrap_or(u32::MAX),
            mark: packet.mark(),
            offload: packet.offload,
            since: now,
        });
    }
    pub(super) fn first(&self) -> Option<First> {
        self.packets.front().map(|p| First {
            charge: p.charge.into(),
            since: p.since,
        })
    }
    /// Takes the first packet.
    pub(super) fn pop(&mut self, pool: &mut Pool) -> Option<Packet> {
        let waiting = self.packets.pop_front()?;
        let len = waiting.len as usize;
        let mut packet = pool.get_for(len);
        let (a, b) = self.bytes.as_slices();
        let (a, b) = match a.split_at_checked(len) {
            Some((a, _)) => (a, &[][..]),
            None => (a, b.get(..len - a.len()).unwrap_or_default()),
        };
        packet.reserve(len);
        if let Some(space) = packet.space_mut().get_mut(..len) {
            space[..a.len()].copy_from_slice(a);
            space[a.len()..].copy_from_slice(b);
        }
        packet.set_head_len(len);
        packet.offload = waiting.offload;
        packet.set_mark(waiting.mark);
        self.drain(len);
        Some(packet)
    }
    /// Drops the first packet.
    pub(super) fn drop_first(&mut self) {
        if let Some(waiting) = self.packets.pop_front() {
            self.drain(waiting.len as usize);
        }
    }
    fn drain(&mut self, len: usize) {
        self.bytes.drain(..len);
        if self.bytes.is_empty() && self.bytes.capacity() > self.keep {
            self.bytes.shrink_to(self.keep);
            self.packets.shrink_to(self.keep / BYTES_PER_PACKET);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_out_as_they_went_in() {
        let (mut fifo, mut pool) = (Fifo::new(64 << 10), Pool::new(4));
        let mut packets = Vec::new();
        // Different lengths, so that a packet's bytes come to lie around the end of the memory.
        for i in 0..200_u32 {
            let len = 60 + (i as usize * 7919) % 3000;
            let mut packet = Packet::from_bytes(&vec![i.to_le_bytes()[0]; len]);
            packet.set_mark(i % 3);
            fifo.push(&packet, u64::from(i), 5);
            packets.push(packet);
            if i % 3 != 0 {
                let packet = packets.remove(0);
                let charge = fifo.first().unwrap().charge;
                let out = fifo.pop(&mut pool).unwrap();
                assert_eq!((out.to_vec(), out.mark()), (packet.to_vec(), packet.mark()));
                assert_eq!(charge % 256, packet.head()[0].into());
                pool.put(out);
            }
        }
        assert_eq!(fifo.len(), packets.len());
        let first = packets.remove(0).len();
        let bytes = fifo.bytes();
        fifo.drop_first();
        assert_eq!(fifo.bytes(), bytes - first);
        for packet in packets {
            assert_eq!(fifo.pop(&mut pool).unwrap().to_vec(), packet.to_vec());
        }
        assert!(fifo.is_empty() && fifo.bytes() == 0 && fifo.pop(&mut pool).is_none());
    }

    #[test]
    fn an_empty_queue_keeps_little_memory() {
        let (mut fifo, mut pool) = (Fifo::new(4096), Pool::new(4));
        let packet = Packet::from_bytes(&[0; 1000]);
        for _ in 0..100 {
            fifo.push(&packet, 1000, 5);
        }
        while let Some(out) = fifo.pop(&mut pool) {
            pool.put(out);
        }
        assert!(fifo.bytes.capacity() <= 4096 && fifo.packets.capacity() <= 64);
    }
}
