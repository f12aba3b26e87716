//! Senders and receivers, which the loop runs.

mod receiver;
mod sender;

pub use receiver::{Received, Receiver};
pub use sender::{Frames, Pace, Sender, Sent};

/// Bytes of a packet's head, with its virtio-net header: the part that Linux's driver copies out of a receive
/// buffer.
pub const HEAD: usize = 128;

/// The part of each packet that a guest touches. Lines that one side writes and the other reads travel
/// between their cores. They are most of the cost of a small packet, for any switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Touch {
    /// Senders write the bytes that differ from the buffer's packet before, receivers read the bytes that
    /// [`Checks`] needs. The lines of packets stay in the switch's cache.
    Changes,
    /// Senders write and receivers read each packet's first [`HEAD`] bytes, as a guest's network stack does
    /// at least.
    #[default]
    Heads,
    /// All of each packet is written and read.
    Packets,
}

impl Touch {
    /// Bytes of a packet of `len` bytes that are touched.
    fn of(self, len: usize) -> usize {
        match self {
            Self::Changes => 0,
            Self::Heads => len.min(HEAD),
            Self::Packets => len,
        }
    }
}

/// The packets that a receiver reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// No packet: lengths only. No latency is known then.
    Lengths,
    /// One of this number of packets (a power of two, at most the ring's size): the probes.
    Probes(u16),
    /// Every packet: stamp, length and payload.
    Content,
}

impl Checks {
    /// Number of packets of which one carries a stamp; 0: no packet does.
    pub fn every(self) -> u16 {
        match self {
            Self::Lengths => 0,
            Self::Probes(n) => n,
            Self::Content => 1,
        }
    }
}
