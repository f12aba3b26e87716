//! Why a ring was stopped.

use crate::mem::MemError;

/// The fault of the other side. The queue stays stopped until the driver sets it up again;
/// [`RingError::name`] is for counters and `Interface.status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// Size zero, too large, or (split) not a power of two.
    #[error("queue size {0} is not allowed: at most 32768, of split rings a power of two")]
    Size(u16),
    /// A ring area is not at the driver's address. The queue continues when a new memory table holds it.
    #[error("ring area: {0}")]
    Area(MemError),
    /// The available index is further ahead than the ring is long, or went back.
    #[error("available index {index} with {used} used jumps")]
    AvailJump {
        /// The ring's index.
        index: u16,
        /// Chains used so far (modulo 2^16).
        used: u16,
    },
    /// The available ring names a descriptor beyond the table.
    #[error("available ring names descriptor {0} beyond the table")]
    Head(u16),
    /// A descriptor's `next` is beyond the table.
    #[error("descriptor chain goes to {0} beyond the table")]
    Next(u16),
    /// A chain longer than its table: a loop.
    #[error("descriptor chain has a loop or is too long")]
    ChainTooLong,
    /// A chain of 4 GiB or more (§2.7.5.2).
    #[error("descriptor chain has 4 GiB or more")]
    ChainTooLarge,
    /// A buffer outside the guest's memory.
    #[error("buffer: {0}")]
    Buffer(MemError),
    /// An indirect table outside the guest's memory.
    #[error("indirect table: {0}")]
    Table(MemError),
    /// A device-writable buffer in a transmit chain, or a device-readable one in a receive chain (§5.1.6).
    #[error("buffer of the wrong direction")]
    Direction,
    /// An indirect table without the feature.
    #[error("indirect descriptor was not negotiated")]
    IndirectNotNegotiated,
    /// An indirect table that is empty, too long, or not a whole number of descriptors.
    #[error("indirect table of {0} bytes")]
    IndirectLength(u32),
    /// An indirect descriptor in an indirect table, or one that is chained (§2.7.5.3.1).
    #[error("indirect descriptor is nested or chained")]
    IndirectNested,
    /// A receive buffer shorter than the header (§5.1.6.3.1).
    #[error("receive buffer of {0} bytes is shorter than the header")]
    RuntBuffer(u32),
    /// The guest makes the switch read more memory that it never wrote to than a mistake explains. The switch
    /// would be charged for each of these pages.
    #[error("the guest transmits memory that it never wrote to")]
    Hole,
    /// The file of the guest's memory was cut: bytes read there mean nothing.
    #[error("the file of the guest's memory was cut")]
    Cut,
}

impl RingError {
    /// A fixed name, for counters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Size(_) => "ring-size",
            Self::Area(_) => "ring-area",
            Self::AvailJump { .. } => "ring-avail-jump",
            Self::Head(_) => "ring-head",
            Self::Next(_) => "ring-next",
            Self::ChainTooLong => "ring-chain-too-long",
            Self::ChainTooLarge => "ring-chain-too-large",
            Self::Buffer(_) => "ring-buffer",
            Self::Table(_) => "ring-table",
            Self::Direction => "ring-direction",
            Self::IndirectNotNegotiated => "ring-indirect-not-negotiated",
            Self::IndirectLength(_) => "ring-indirect-length",
            Self::IndirectNested => "ring-indirect-nested",
            Self::RuntBuffer(_) => "ring-runt-buffer",
            Self::Hole => "ring-memory-hole",
            Self::Cut => "ring-memory-cut",
        }
    }
    /// Whether a new memory table may mend it: the driver has done nothing wrong yet.
    pub fn may_recover(self) -> bool {
        matches!(
            self,
            Self::Area(MemError::Unmapped { .. } | MemError::Crosses { .. })
        )
    }
}
