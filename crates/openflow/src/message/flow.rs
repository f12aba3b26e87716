//! Flow mods and flow-removed messages.

use crate::action::{InstructionSet, Port};
use heddle_flow::Match;

/// `OFPFC_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FlowModCommand {
    /// New flow; replaces one with the same match and priority.
    Add = 0,
    /// Changes flows that the match covers; before 1.2, adds one if there are none.
    Modify = 1,
    /// Changes the flow with just this match and priority.
    ModifyStrict = 2,
    /// Deletes flows that the match covers.
    Delete = 3,
    /// Deletes the flow with just this match and priority.
    DeleteStrict = 4,
}

bitflags::bitflags! {
    /// `OFPFF_*` with 1.3's bits.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct FlowModFlags: u16 {
        /// Send a message when the flow is removed.
        const SEND_FLOW_REM = 1 << 0;
        /// Refuse a flow that overlaps one of the same priority.
        const CHECK_OVERLAP = 1 << 1;
        /// Zero the counters (1.2 and later; implied by 1.0 and 1.1).
        const RESET_COUNTS = 1 << 2;
        /// No packet counter (1.3 and later).
        const NO_PKT_COUNTS = 1 << 3;
        /// No byte counter (1.3 and later).
        const NO_BYT_COUNTS = 1 << 4;
    }
}

/// Adds, changes or deletes flows.
#[derive(Clone, PartialEq, Debug)]
pub struct FlowMod {
    /// Command.
    pub command: FlowModCommand,
    /// Table id; 0xff: the switch chooses (add), or all (modify and delete).
    pub table_id: u8,
    /// Match.
    pub match_: Match,
    /// Priority (0 in a non-strict command of a version that ignores it).
    pub priority: u16,
    /// Cookie that the flow gets.
    pub new_cookie: u64,
    /// Whether a modification changes the cookie.
    pub modify_cookie: bool,
    /// Modify and delete only flows whose cookie is this under `cookie_mask`.
    pub cookie: u64,
    /// Bits of `cookie` that count.
    pub cookie_mask: u64,
    /// Seconds without a packet until the flow expires; 0: never.
    pub idle_timeout: u16,
    /// Seconds until the flow expires; 0: never.
    pub hard_timeout: u16,
    /// Id of a buffered packet to which the flow is applied.
    pub buffer_id: Option<u32>,
    /// Delete only flows that output here (`Port::NONE`: any).
    pub out_port: Port,
    /// Delete only flows that use this group (0xffffffff: any).
    pub out_group: u32,
    /// Flags.
    pub flags: FlowModFlags,
    /// Importance: eviction removes flows of lower importance first (1.4 and later).
    pub importance: u16,
    /// Instructions. Empty for deletions.
    pub instructions: InstructionSet,
    /// 1.0 only: carried by `NXT_FLOW_MOD`.
    pub nxm: bool,
}

/// `OFPG_ANY`: no group in particular.
pub const GROUP_ANY: u32 = 0xffff_ffff;

impl FlowMod {
    /// A flow mod of table 0 with this match and instructions, and neutral values elsewhere.
    pub fn new(
        command: FlowModCommand,
        match_: Match,
        priority: u16,
        instructions: InstructionSet,
    ) -> FlowMod {
        FlowMod {
            command,
            table_id: 0,
            match_,
            priority,
            new_cookie: 0,
            modify_cookie: false,
            cookie: 0,
            cookie_mask: 0,
            idle_timeout: 0,
            hard_timeout: 0,
            buffer_id: None,
            out_port: Port::NONE,
            out_group: GROUP_ANY,
            flags: FlowModFlags::empty(),
            importance: 0,
            instructions,
            nxm: false,
        }
    }
}

/// `OFPRR_*`: reason of a flow's removal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FlowRemovedReason {
    /// Idle timeout.
    IdleTimeout = 0,
    /// Hard timeout.
    HardTimeout = 1,
    /// A flow mod deleted it.
    Delete = 2,
    /// The flow's group was deleted (1.3 and later).
    GroupDelete = 3,
    /// The flow's meter was deleted (1.4 and later).
    MeterDelete = 4,
    /// Evicted (1.4 and later; written as `Delete` before).
    Eviction = 5,
}

/// A flow was removed.
#[derive(Clone, PartialEq, Debug)]
pub struct FlowRemoved {
    /// Match.
    pub match_: Match,
    /// Priority.
    pub priority: u16,
    /// Cookie.
    pub cookie: u64,
    /// Reason of the removal.
    pub reason: FlowRemovedReason,
    /// Table id (`None` if a message of 1.0 has none).
    pub table_id: Option<u8>,
    /// Lifetime: seconds.
    pub duration_sec: u32,
    /// ... and nanoseconds.
    pub duration_nsec: u32,
    /// Idle timeout, seconds.
    pub idle_timeout: u16,
    /// Hard timeout, seconds.
    pub hard_timeout: u16,
    /// Packets; all ones: unknown.
    pub packet_count: u64,
    /// Bytes; all ones: unknown.
    pub byte_count: u64,
    /// 1.0 only: carried by `NXT_FLOW_REMOVED`.
    pub nxm: bool,
}
