//! Senders and receivers: what runs in the loop.

mod receiver;
mod sender;

pub use receiver::{Received, Receiver};
pub use sender::{Frames, Pace, Sender, Sent};

/// Which packets a receiver reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// None: lengths only. No latency is known then.
    Lengths,
    /// One of so many (a power of two, at most the ring's size): the probes.
    Probes(u16),
    /// Every packet: stamp, length, and that the payload is what was sent.
    Content,
}

impl Checks {
    /// One of how many packets carries a stamp; 0: none.
    pub fn every(self) -> u16 {
        match self {
            Self::Lengths => 0,
            Self::Probes(n) => n,
            Self::Content => 1,
        }
    }
}
