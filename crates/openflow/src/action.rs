//! Actions and instructions in their version-independent form.
//!
//! The datapath never sees these: translation turns them into datapath actions. Fields that only one version
//! of the protocol has are optional here, so that an action prints and encodes as it was given.

mod ct;
mod hash;
mod learn;
mod misc;

pub use ct::{Ct, CtZone, Nat, NatAddresses, NatDirection};
pub use hash::{Bundle, BundleAlgorithm, HashFields, Multipath, MultipathAlgorithm};
pub use learn::{Learn, LearnDst, LearnSpec, LearnSrc};
pub use misc::{
    CheckPktLarger, Conjunction, Encap, EncapProperty, MAX_OBSERVATION_BITS, ObservationId, Sample,
    SampleDirection, SetTunMetadata, packet_type,
};

/// An OpenFlow port number in its 32-bit form (1.0 and NXM numbers are widened: 0xfff8 is 0xfffffff8).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Port(pub u32);

impl Port {
    /// Largest number of an ordinary port.
    pub const MAX: Port = Port(0xff00 - 1);
    /// Not set (1.5 action set output).
    pub const UNSET: Port = Port(0xffff_fff7);
    /// Back to the input port.
    pub const IN_PORT: Port = Port(0xffff_fff8);
    /// Through the tables (packet-out only).
    pub const TABLE: Port = Port(0xffff_fff9);
    /// Like a learning switch.
    pub const NORMAL: Port = Port(0xffff_fffa);
    /// All ports that flood, but the input port.
    pub const FLOOD: Port = Port(0xffff_fffb);
    /// All ports but the input port.
    pub const ALL: Port = Port(0xffff_fffc);
    /// To the controllers.
    pub const CONTROLLER: Port = Port(0xffff_fffd);
    /// The bridge's own port.
    pub const LOCAL: Port = Port(0xffff_fffe);
    /// No port, any port.
    pub const NONE: Port = Port(0xffff_ffff);

    /// Whether the number is one of the reserved ones.
    pub fn is_reserved(self) -> bool {
        self.0 >= 0xffff_ff00
    }
}

pub use heddle_flow::field::{FieldId, FieldValue, Subfield};

/// One action.
#[derive(Clone, PartialEq, Hash, Debug)]
pub enum Action {
    /// Output to a port; `max_len` is for CONTROLLER only.
    Output {
        /// Output port.
        port: Port,
        /// Bytes to send to the controller (0xffff: all).
        max_len: u16,
    },
    /// Nicira: output of the packet's first bytes.
    OutputTrunc {
        /// Output port: an ordinary port, or a reserved one that stands for one.
        port: Port,
        /// Bytes to send, 14 at least.
        max_len: u32,
    },
    /// Nicira: output to the port named by a subfield.
    OutputReg {
        /// Subfield that has the port number.
        src: Subfield,
        /// Bytes to send to the controller (0xffff: all).
        max_len: u16,
    },
    /// Nicira controller action with its options (`controller(reason=...,id=...)`).
    Controller(ControllerAction),
    /// Output into a queue (1.0).
    Enqueue {
        /// Output port.
        port: Port,
        /// Queue id.
        queue: u32,
    },
    /// Queue for later outputs.
    SetQueue(u32),
    /// Back to the queue the packet came with.
    PopQueue,
    /// 1.0 and 1.1 VLAN id: pushes a tag where there is none if `push_if_missing`.
    SetVlanVid {
        /// 12 bits.
        vid: u16,
        /// Push a tag where there is none.
        push_if_missing: bool,
    },
    /// 1.0 and 1.1 VLAN priority.
    SetVlanPcp {
        /// 3 bits.
        pcp: u8,
        /// Push a tag where there is none.
        push_if_missing: bool,
    },
    /// Pops the outermost tag (1.1 and later; prints as `pop_vlan`).
    PopVlan,
    /// Pops the outermost tag in 1.0; prints as `strip_vlan`.
    StripVlan,
    /// Pushes a tag with this EtherType.
    PushVlan(u16),
    /// 1.0 and 1.1 forms of set_field on L2 to L4 headers.
    SetEthSrc([u8; 6]),
    /// See `SetEthSrc`.
    SetEthDst([u8; 6]),
    /// See `SetEthSrc`.
    SetIpv4Src(u32),
    /// See `SetEthSrc`.
    SetIpv4Dst(u32),
    /// DSCP in the upper six bits.
    SetIpDscp(u8),
    /// ECN, two bits.
    SetIpEcn(u8),
    /// Time to live.
    SetIpTtl(u8),
    /// TCP, UDP or SCTP source port.
    SetL4Src(u16),
    /// TCP, UDP or SCTP destination port.
    SetL4Dst(u16),
    /// set_field (OXM) or load (`NXAST_REG_LOAD2`), masked.
    SetField {
        /// Field to write.
        field: FieldId,
        /// New value.
        value: FieldValue,
        /// Bits of the field that are written.
        mask: FieldValue,
    },
    /// set_field of an option of a tunnel that has more bits than a [`FieldValue`].
    SetTunMetadata(Box<SetTunMetadata>),
    /// Nicira load of an immediate into a subfield; prints as `load:`.
    Load {
        /// Destination.
        dst: Subfield,
        /// Value, right-aligned.
        value: u64,
    },
    /// Copies a subfield (`NXAST_REG_MOVE`, copy_field).
    Move {
        /// Source.
        src: Subfield,
        /// Destination, of the same width.
        dst: Subfield,
    },
    /// Pushes a subfield on the stack.
    StackPush(Subfield),
    /// Pops from the stack into a subfield.
    StackPop(Subfield),
    /// Decrements the TTL; a packet with an invalid TTL goes to these controllers (`[0]` by default).
    DecTtl(Vec<u16>),
    /// MPLS and TTL copies.
    SetMplsLabel(u32),
    /// See `SetMplsLabel`.
    SetMplsTc(u8),
    /// See `SetMplsLabel`.
    SetMplsTtl(u8),
    /// See `SetMplsLabel`.
    DecMplsTtl,
    /// EtherType of the new label.
    PushMpls(u16),
    /// EtherType behind the popped label.
    PopMpls(u16),
    /// Tunnel id.
    SetTunnel(u64),
    /// Looks the packet up again, in another table or with another input port.
    Resubmit {
        /// `IN_PORT`: unchanged.
        port: Port,
        /// `None`: the current table.
        table: Option<u8>,
        /// With the original direction's connection tuple.
        with_ct_orig: bool,
    },
    /// Runs a group.
    Group(u32),
    /// Meter instruction in its 1.5 action form.
    Meter(u32),
    /// Runs actions on a copy.
    Clone(Vec<Action>),
    /// A comment of bytes, without effect.
    Note(Vec<u8>),
    /// Stops processing (`exit`).
    Exit,
    /// Adds flows.
    Learn(Box<Learn>),
    /// Part of a conjunctive match: never runs.
    Conjunction(Conjunction),
    /// Writes the number of one of several links.
    Multipath(Box<Multipath>),
    /// Outputs to one of several ports, or writes its number.
    Bundle(Box<Bundle>),
    /// Shortens the flow's timeouts once a FIN or RST was seen.
    FinTimeout {
        /// Idle timeout from then on; 0: no change.
        idle: u16,
        /// Hard timeout from then on; 0: no change.
        hard: u16,
    },
    /// Samples packets.
    Sample(Box<Sample>),
    /// Writes whether the packet is longer than some length.
    CheckPktLarger(Box<CheckPktLarger>),
    /// Takes a tunnel option away.
    DeleteField(FieldId),
    /// Pushes a header.
    Encap(Box<Encap>),
    /// Pops a header; the packet is then of this type, see [`packet_type`].
    Decap(u32),
    /// Decrements the TTL of a network service header.
    DecNshTtl,
    /// Connection tracking.
    Ct(Box<Ct>),
    /// Forgets the packet's connection.
    CtClear,
    /// Address translation, inside of `Ct` only.
    Nat(Box<Nat>),
    /// Tests: recirculates the packet.
    DebugRecirc,
    /// Tests: the translation is not cached.
    DebugSlow,
}

impl Action {
    /// Sets a subfield to the value of another one that is as wide. `None`: the subfield has no bits.
    pub fn copied(src: Subfield, dst: Subfield, key: &heddle_flow::FlowKey) -> Option<Self> {
        let pieces = src.pieces().map(|s| s.get(key)).zip(dst.pieces());
        let mut set: Option<Action> = None;
        for (value, piece) in pieces {
            match (&mut set, Self::set(piece, value)) {
                (Some(Action::SetTunMetadata(all)), Action::SetTunMetadata(more)) => {
                    let or = |to: &mut [u8], from: &[u8]| to.iter_mut().zip(from).for_each(|(a, b)| *a |= b);
                    or(&mut all.value, &more.value);
                    or(&mut all.mask, &more.mask);
                }
                (_, one) => set = Some(one),
            }
        }
        set
    }

    /// Sets a subfield of at most 128 bits.
    pub fn set(dst: Subfield, value: FieldValue) -> Self {
        match dst.field {
            FieldId::TunMetadata(field) if field.is_wide() => {
                Action::SetTunMetadata(Box::new(SetTunMetadata {
                    field,
                    value: dst.bytes(value),
                    mask: dst.bytes(FieldValue::ONES),
                }))
            }
            field => Action::SetField {
                field,
                value: dst.place(value),
                mask: dst.mask(),
            },
        }
    }
}

/// `controller(...)`, see `ovs-actions(7)`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct ControllerAction {
    /// Bytes to send.
    pub max_len: u16,
    /// Id of the controllers; 0 is all primary ones.
    pub controller_id: u16,
    /// Packet-in reason.
    pub reason: u8,
    /// Opaque bytes handed back with the packet.
    pub userdata: Vec<u8>,
    /// Freeze the pipeline until the controller resumes.
    pub pause: bool,
    /// Meter for the packet-ins.
    pub meter_id: Option<u32>,
}

/// One instruction (1.1 and later).
#[derive(Clone, PartialEq, Hash, Debug)]
pub enum Instruction {
    /// Meter the packet first.
    Meter(u32),
    /// Run these actions now.
    Apply(Vec<Action>),
    /// Empty the action set.
    Clear,
    /// Merge these actions into the action set.
    Write(Vec<Action>),
    /// `metadata = metadata & !mask | value`.
    WriteMetadata {
        /// Value.
        value: u64,
        /// Mask.
        mask: u64,
    },
    /// Continue in a later table.
    Goto(u8),
}

/// A rule's instructions in the order that they run. 1.0 rules have one `Apply`.
#[derive(Clone, PartialEq, Hash, Debug, Default)]
pub struct InstructionSet(pub Vec<Instruction>);

impl InstructionSet {
    /// Drops: nothing to do.
    pub fn is_drop(&self) -> bool {
        self.0
            .iter()
            .all(|i| matches!(i, Instruction::Apply(a) if a.is_empty()))
    }
    /// The table that goto names.
    pub fn goto(&self) -> Option<u8> {
        self.0.iter().find_map(|i| {
            if let Instruction::Goto(t) = i {
                Some(*t)
            } else {
                None
            }
        })
    }
}
