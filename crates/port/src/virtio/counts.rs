//! Counters of a port beside the datapath's own. Each counter has one writer at a time: the worker that has
//! the ring.

use heddle_sync::Counter;

/// Counters of a guest's transmit ring.
#[derive(Debug, Default)]
pub(super) struct RxCounts {
    pub(super) packets: Counter,
    pub(super) bytes: Counter,
    /// Times that the guest was notified.
    pub(super) calls: Counter,
    /// Times that the ring broke the protocol.
    pub(super) broken: Counter,
}

/// Counters of a guest's receive ring.
#[derive(Debug, Default)]
pub(super) struct TxCounts {
    pub(super) packets: Counter,
    pub(super) bytes: Counter,
    pub(super) calls: Counter,
    pub(super) broken: Counter,
    /// Times that a call looked again for buffers.
    pub(super) retries: Counter,
    /// Packets dropped: no buffers.
    pub(super) full: Counter,
    /// Packets dropped: longer than the guest's buffers.
    pub(super) too_long: Counter,
    /// Packets dropped: could not be segmented or finished.
    pub(super) invalid: Counter,
    /// Packets that were segmented or whose checksum was filled in, in software.
    pub(super) finished: Counter,
}
