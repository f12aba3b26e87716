//! Flow monitors: a controller is told of every change of flows that match (Nicira's extension before 1.3,
//! ONF's in 1.3, `OFPMP_FLOW_MONITOR` since 1.4).

use super::FlowRemovedReason;
use crate::action::{InstructionSet, Port};
use heddle_flow::Match;

bitflags::bitflags! {
    /// `OFPFMF_*` of 1.4. The extensions lack [`MonitorFlags::ONLY_OWN`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct MonitorFlags: u16 {
        /// Flows that are there when the monitor is made.
        const INITIAL = 1 << 0;
        /// Flows that are added.
        const ADD = 1 << 1;
        /// Flows that go.
        const REMOVED = 1 << 2;
        /// Flows that change.
        const MODIFY = 1 << 3;
        /// With their instructions.
        const INSTRUCTIONS = 1 << 4;
        /// The connection's own changes in full, too.
        const NO_ABBREV = 1 << 5;
        /// Sent by `ovs-ofctl` in 1.4 and later where it means [`MonitorFlags::NO_ABBREV`]; taken as that.
        const ONLY_OWN = 1 << 6;
    }
}

/// `OFPFMC_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum MonitorCommand {
    /// A new monitor (the extensions know only this one).
    Add = 0,
    /// Replaces one.
    Modify = 1,
    /// Ends one.
    Delete = 2,
}

/// One monitor as a controller asks for it.
#[derive(Clone, PartialEq, Debug)]
pub struct FlowMonitorRequest {
    /// The monitor, as its connection numbers them.
    pub id: u32,
    /// What to do.
    pub command: MonitorCommand,
    /// What to tell.
    pub flags: MonitorFlags,
    /// Only flows that output here (`Port::NONE`: any).
    pub out_port: Port,
    /// Only flows that use this group (0xffffffff: any).
    pub out_group: u32,
    /// Which table; 0xff: all.
    pub table_id: u8,
    /// Only flows that this match covers.
    pub match_: Match,
}

/// What became of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowEvent {
    /// It was there when the monitor was made (before 1.4 written as `Added`).
    Initial,
    /// It was added.
    Added,
    /// It went.
    Removed(FlowRemovedReason),
    /// It changed.
    Modified,
}

/// One flow and what became of it.
#[derive(Clone, PartialEq, Debug)]
pub struct FlowChange {
    /// What became of it.
    pub event: FlowEvent,
    /// Its table.
    pub table_id: u8,
    /// Its priority.
    pub priority: u16,
    /// Its idle timeout.
    pub idle_timeout: u16,
    /// Its hard timeout.
    pub hard_timeout: u16,
    /// Its cookie.
    pub cookie: u64,
    /// Its match.
    pub match_: Match,
    /// What it does; empty where no monitor asked for it.
    pub instructions: InstructionSet,
}

/// One entry of an answer or notification.
#[derive(Clone, PartialEq, Debug)]
pub enum FlowUpdate {
    /// A change in full.
    Full(Box<FlowChange>),
    /// The changes that the connection's own message with this transaction id made.
    Abbrev(u32),
    /// Too much waits to be read: additions and changes are held back (1.4 and later; before, a message of
    /// its own).
    Paused,
    /// Everything that was held back has been told.
    Resumed,
}
