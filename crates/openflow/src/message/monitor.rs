//! Flow monitors: a controller is notified of every change of flows that match (Nicira's extension before
//! 1.3, ONF's in 1.3, `OFPMP_FLOW_MONITOR` since 1.4).

use super::FlowRemovedReason;
use crate::action::{InstructionSet, Port};
use heddle_flow::Match;

bitflags::bitflags! {
    /// `OFPFMF_*` of 1.4. The extensions lack [`MonitorFlags::ONLY_OWN`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct MonitorFlags: u16 {
        /// Flows that exist when the monitor is made.
        const INITIAL = 1 << 0;
        /// Flows that are added.
        const ADD = 1 << 1;
        /// Flows that are removed.
        const REMOVED = 1 << 2;
        /// Flows that change.
        const MODIFY = 1 << 3;
        /// With their instructions.
        const INSTRUCTIONS = 1 << 4;
        /// The connection's own changes in full, too.
        const NO_ABBREV = 1 << 5;
        /// Sent by `ovs-ofctl` in 1.4 and later in the meaning of [`MonitorFlags::NO_ABBREV`]; taken as that.
        const ONLY_OWN = 1 << 6;
    }
}

/// `OFPFMC_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum MonitorCommand {
    /// A new monitor (the extensions know only this one).
    Add = 0,
    /// Replaces a monitor.
    Modify = 1,
    /// Ends a monitor.
    Delete = 2,
}

/// One monitor as a controller requests it.
#[derive(Clone, PartialEq, Debug)]
pub struct FlowMonitorRequest {
    /// The monitor, as its connection numbers them.
    pub id: u32,
    /// Command: add, change or delete the monitor.
    pub command: MonitorCommand,
    /// Events to report, and their form.
    pub flags: MonitorFlags,
    /// Only flows that output here (`Port::NONE`: any).
    pub out_port: Port,
    /// Only flows that use this group (0xffffffff: any).
    pub out_group: u32,
    /// Table to monitor; 0xff: all.
    pub table_id: u8,
    /// Only flows that this match covers.
    pub match_: Match,
}

/// Event of a monitored flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowEvent {
    /// The flow was there when the monitor was made (before 1.4 written as `Added`).
    Initial,
    /// The flow was added.
    Added,
    /// The flow was removed, for this reason.
    Removed(FlowRemovedReason),
    /// The flow was changed.
    Modified,
}

/// An event of one flow, with the flow's contents.
#[derive(Clone, PartialEq, Debug)]
pub struct FlowChange {
    /// Event.
    pub event: FlowEvent,
    /// Table id.
    pub table_id: u8,
    /// Priority.
    pub priority: u16,
    /// Idle timeout, seconds.
    pub idle_timeout: u16,
    /// Hard timeout, seconds.
    pub hard_timeout: u16,
    /// Cookie.
    pub cookie: u64,
    /// Match.
    pub match_: Match,
    /// Instructions; empty if no monitor requested them.
    pub instructions: InstructionSet,
}

/// One entry of a reply or notification.
#[derive(Clone, PartialEq, Debug)]
pub enum FlowUpdate {
    /// A change in full.
    Full(Box<FlowChange>),
    /// The changes that the connection's own message with this transaction id made.
    Abbrev(u32),
    /// The peer reads too slowly: additions and changes are held back (1.4 and later; before, a message of
    /// its own).
    Paused,
    /// All updates that were held back have been sent.
    Resumed,
}
