//! Senders and receivers, which the loop runs.

mod receiver;
mod sender;

pub use receiver::{Received, Receiver};
pub use sender::{Frames, Pace, Sender, Sent};

/// Counters of a phase.
#[derive(Clone, Copy, Debug, Default)]
pub struct Phase {
    /// Cycles from start to end.
    pub cycles: u64,
    /// Cycles of turns that moved packets.
    pub busy: u64,
    /// Number of turns.
    pub turns: u64,
    /// Sent in this phase.
    pub sent: Sent,
    /// Received in this phase.
    pub received: Received,
}
