//! `learn`: an action that adds flows.

use super::{FieldValue, Subfield};

/// A flow to be added by the packets that meet the action; see `ovs-actions(7)`.
#[derive(Clone, PartialEq, Hash, Debug)]
pub struct Learn {
    /// Seconds without a packet until the flow goes; 0: never.
    pub idle_timeout: u16,
    /// Seconds until the flow goes; 0: never.
    pub hard_timeout: u16,
    /// The flow's priority.
    pub priority: u16,
    /// The flow's cookie.
    pub cookie: u64,
    /// Notify the controllers when the flow is removed.
    pub send_flow_rem: bool,
    /// Delete the learned flows when no flow is left that learns them.
    pub delete_learned: bool,
    /// The flow's table.
    pub table: u8,
    /// Idle timeout from the first FIN or RST on; 0: no change.
    pub fin_idle_timeout: u16,
    /// Hard timeout from the first FIN or RST on; 0: no change.
    pub fin_hard_timeout: u16,
    /// Maximum number of flows with this cookie in the table; 0: no limit.
    pub limit: u32,
    /// A bit that is set to whether the flow could be added.
    pub result_dst: Option<Subfield>,
    /// Parts of the flow's match and actions.
    pub specs: Vec<LearnSpec>,
}

impl Default for Learn {
    fn default() -> Self {
        Learn {
            idle_timeout: 0,
            hard_timeout: 0,
            priority: 0x8000,
            cookie: 0,
            send_flow_rem: false,
            delete_learned: false,
            table: 1,
            fin_idle_timeout: 0,
            fin_hard_timeout: 0,
            limit: 0,
            result_dst: None,
            specs: Vec::new(),
        }
    }
}

/// A part of the new flow's match or actions. Subfields from a peer may exceed their fields until the action
/// has been checked.
#[derive(Clone, Copy, PartialEq, Hash, Debug)]
pub struct LearnSpec {
    /// Source of the bits.
    pub src: LearnSrc,
    /// Destination of the bits.
    pub dst: LearnDst,
}

/// Source of bits.
#[derive(Clone, Copy, PartialEq, Hash, Debug)]
pub enum LearnSrc {
    /// The packet.
    Field(Subfield),
    /// The action itself; right-aligned, as many bits as the destination has.
    Value(FieldValue),
}

/// Destination of bits.
#[derive(Clone, Copy, PartialEq, Hash, Debug)]
pub enum LearnDst {
    /// The new flow matches them.
    Match(Subfield),
    /// The new flow writes them.
    Load(Subfield),
    /// The new flow outputs to the port that they name.
    Output,
}
