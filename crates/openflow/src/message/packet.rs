//! Packets to and from the controller.

use crate::action::{Action, Instruction, Port};
use heddle_flow::Match;

/// Form of packet-ins on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PacketInFormat {
    /// The version's own message.
    #[default]
    Standard,
    /// `NXT_PACKET_IN`: pipeline fields as NXM.
    Nxt,
    /// `NXT_PACKET_IN2`: a list of properties, with user data and continuation.
    Nxt2,
}

/// `OFPR_*`: reason of a packet-in. Versions before 1.4 know the first three; later reasons are written there
/// as the nearest that they have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PacketInReason {
    /// No flow matched (table miss by configuration).
    NoMatch = 0,
    /// An output action to the controller.
    Action = 1,
    /// TTL ran out.
    InvalidTtl = 2,
    /// Output by the action set (1.4 and later).
    ActionSet = 3,
    /// Output by a group bucket (1.4 and later).
    Group = 4,
    /// Output by a packet-out (1.4 and later).
    PacketOut = 5,
    /// A table-miss flow sent it; on the wire `NoMatch`, and `Action` before 1.3.
    ExplicitMiss = 6,
    /// No flow matched, not even a table-miss flow; on the wire `NoMatch`.
    ImplicitMiss = 7,
}

/// A packet for the controller.
#[derive(Clone, PartialEq, Debug)]
pub struct PacketIn {
    /// Form of the message that carries it.
    pub format: PacketInFormat,
    /// The packet, perhaps cut short.
    pub data: Vec<u8>,
    /// The packet's length before it was cut.
    pub total_len: u32,
    /// Id of the buffer in which the switch keeps the whole packet, if it does.
    pub buffer_id: Option<u32>,
    /// Reason of the packet-in.
    pub reason: PacketInReason,
    /// Table of the flow.
    pub table_id: u8,
    /// Cookie of the flow; all ones if there was none.
    pub cookie: u64,
    /// Pipeline fields: `in_port`, registers, metadata, tunnel, connection state ...
    pub metadata: Match,
    /// Bytes of the `controller(userdata=...)` action; `NXT_PACKET_IN2` only.
    pub userdata: Vec<u8>,
    /// Opaque state to resume from, `NXT_PACKET_IN2` only.
    pub continuation: Vec<u8>,
}

/// A packet from the controller.
#[derive(Clone, PartialEq, Debug)]
pub struct PacketOut {
    /// The input port, and in 1.5 other pipeline fields, as the controller sets them. `key.in_port` is always
    /// set (in the key's form; [`PacketOut::in_port`] has it as a port).
    pub metadata: Match,
    /// A buffered packet to take instead of `data`.
    pub buffer_id: Option<u32>,
    /// Actions to execute.
    pub actions: Vec<Action>,
    /// The packet; empty with a buffer id.
    pub data: Vec<u8>,
}

impl PacketOut {
    /// The input port that the controller sets.
    pub fn in_port(&self) -> Port {
        Port(heddle_flow::field::port_to_32(self.metadata.key.in_port))
    }
}

/// A paused pipeline, as a controller keeps it; see [`crate::encode_continuation`].
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Continuation {
    /// Id of the bridge, chosen by the switch; not all zeros.
    pub bridge: [u8; 16],
    /// Values, the bottom first.
    pub stack: Vec<super::StackValue>,
    /// Remaining steps, in order.
    pub steps: Vec<ContinuationStep>,
    /// The action set.
    pub action_set: Vec<Action>,
    /// Mirrors that have had the packet, a bit each.
    pub mirrors: u32,
    /// The packet has been tracked: its connection state is valid.
    pub conntracked: bool,
    /// The datapath's number of the input port, 0: none.
    pub odp_port: u32,
}

/// One remaining step of a pipeline.
#[derive(Clone, PartialEq, Debug)]
pub enum ContinuationStep {
    /// Actions of a table and a rule.
    Actions {
        /// The table.
        table: u8,
        /// The rule's cookie.
        cookie: u64,
        /// The actions.
        actions: Vec<Action>,
    },
    /// An instruction that has no form as an action.
    Instruction(Instruction),
}
