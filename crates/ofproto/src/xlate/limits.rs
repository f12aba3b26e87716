//! How far a translation goes before it gives up, and what it then says.

use heddle_datapath_api::DropReason;

/// Resubmits to the same or an earlier table, and outputs to patch ports, within each other. Resubmits to
/// later tables end by themselves.
pub const MAX_DEPTH: u32 = 64;
/// Resubmits of one translation, nested or not.
pub const MAX_RESUBMITS: u32 = MAX_DEPTH * MAX_DEPTH;
/// Lists of actions within each other, of any kind (a guard of the machine's stack: no sensible table comes
/// near).
pub const MAX_NESTING: u32 = MAX_RESUBMITS + 256;
/// Bytes on the OpenFlow stack, as Open vSwitch counts them.
pub const MAX_STACK_BYTES: usize = 65536;
/// Bytes of datapath actions, as a kernel datapath would be sent them.
pub const MAX_ACTION_BYTES: usize = 65535;

/// Steps of one translation: actions that run, tables and buckets that are looked at, ports that are sent to.
/// Within the other limits they could double with every bucket and every `check_pkt_larger`.
pub const MAX_STEPS: u32 = 1 << 18;

/// Why a translation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XlateError {
    /// More than [`MAX_DEPTH`].
    RecursionTooDeep,
    /// More than [`MAX_RESUBMITS`].
    TooManyResubmits,
    /// More than [`MAX_STEPS`].
    TooManySteps,
    /// More than [`MAX_STACK_BYTES`].
    StackTooDeep,
    /// More label stack entries than a key holds.
    TooManyMplsLabels,
    /// The key has a recirculation id that nobody gave out.
    NoRecirculationContext,
    /// The bridge that froze a pipeline is gone.
    BridgeNotFound,
    /// A header was to be pushed or popped on a packet that is not of the right kind.
    UnsupportedPacketType,
}

impl XlateError {
    /// As a trace prints it.
    pub fn text(self) -> &'static str {
        match self {
            Self::RecursionTooDeep => "Recursion too deep",
            Self::TooManyResubmits => "Too many resubmits",
            Self::TooManySteps => "Too many steps",
            Self::StackTooDeep => "Stack too deep",
            Self::TooManyMplsLabels => "Too many MPLS labels",
            Self::NoRecirculationContext => "No recirculation context",
            Self::BridgeNotFound => "Bridge not found",
            Self::UnsupportedPacketType => "Unsupported packet type",
        }
    }
    /// As the datapath counts the packets that it costs.
    pub fn drop_reason(self) -> DropReason {
        match self {
            Self::RecursionTooDeep => DropReason::RecursionTooDeep,
            Self::TooManyResubmits => DropReason::TooManyResubmits,
            Self::TooManySteps => DropReason::TooManySteps,
            Self::StackTooDeep => DropReason::StackTooDeep,
            Self::TooManyMplsLabels => DropReason::TooManyMplsLabels,
            Self::UnsupportedPacketType => DropReason::UnsupportedPacketType,
            Self::NoRecirculationContext => DropReason::NoRecirculation,
            Self::BridgeNotFound => DropReason::NoPort,
        }
    }
}
