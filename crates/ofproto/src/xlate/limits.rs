//! Limits of a translation, and the errors of translations that exceed them.

use heddle_datapath_api::DropReason;

/// Maximum nesting of resubmits to the same or an earlier table, and of outputs to patch ports. Resubmits to
/// later tables end by themselves.
pub const MAX_DEPTH: u32 = 64;
/// Maximum number of resubmits of one translation, nested or not.
pub const MAX_RESUBMITS: u32 = MAX_DEPTH * MAX_DEPTH;
/// Maximum nesting of lists of actions of any kind. It guards the machine's stack: no sensible table comes
/// near.
pub const MAX_NESTING: u32 = MAX_RESUBMITS + 256;
/// Maximum size of the OpenFlow stack in bytes, as Open vSwitch counts them.
pub const MAX_STACK_BYTES: usize = 65536;
/// Maximum size of the datapath actions in bytes, in the form for a kernel datapath.
pub const MAX_ACTION_BYTES: usize = 65535;

/// Maximum number of steps of one translation. Steps are actions that run, tables and buckets that are looked
/// at, and ports that are sent to. Within the other limits, they could double with every bucket and every
/// `check_pkt_larger`.
pub const MAX_STEPS: u32 = 1 << 18;

/// The share of the limits that a translation has used up.
#[derive(Default)]
pub(super) struct Budget {
    /// See [`MAX_DEPTH`].
    pub(super) depth: u32,
    /// See [`MAX_RESUBMITS`].
    pub(super) resubmits: u32,
    /// See [`MAX_NESTING`].
    pub(super) nesting: u32,
    steps: u32,
}

impl Budget {
    /// Takes one step more, if there is one left.
    #[inline]
    pub(super) fn take_step(&mut self) -> bool {
        let left = !self.is_out_of_steps();
        self.steps += u32::from(left);
        left
    }
    pub(super) fn is_out_of_steps(&self) -> bool {
        self.steps >= MAX_STEPS
    }
}

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
    /// The key has a recirculation id that is not in use.
    NoRecirculationContext,
    /// The bridge that froze a pipeline is gone.
    BridgeNotFound,
    /// The packet's type does not allow this header to be pushed or popped.
    UnsupportedPacketType,
}

impl XlateError {
    /// The text of the error in a trace.
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
    /// The drop reason that counts the packets.
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
