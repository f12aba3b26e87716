//! Datapath actions: what is left of OpenFlow after translation.
//!
//! They work on headers and port numbers of the datapath only. The text form (`ovs-dpctl`'s) is in `format`.

use crate::balance::LbOutput;
use crate::meter::Meter;
use heddle_conntrack::CtAction;
use heddle_flow::{FlowKey, Nsh};
use heddle_tunnel::{TunnelPop, TunnelPush};
use std::sync::Arc;

/// A datapath port number. [`PortNo::NONE`] is no port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PortNo(pub u32);

impl PortNo {
    /// No port.
    pub const NONE: PortNo = PortNo(u32::MAX);
}

/// A value and which of its bits are written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Masked<T> {
    /// New bits; zero outside the mask.
    pub value: T,
    /// Bits that are written.
    pub mask: T,
}

/// One action. A list runs in order on one packet; what no output took is dropped.
#[derive(Clone, PartialEq, Hash, Debug)]
pub enum Action {
    /// Send on a port (as it is now).
    Output(PortNo),
    /// Hand to the control plane: packet-in, or a slow-path reason.
    Userspace(Arc<Upcall>),
    /// Rewrite Ethernet addresses.
    SetEth {
        /// Source.
        src: Masked<[u8; 6]>,
        /// Destination.
        dst: Masked<[u8; 6]>,
    },
    /// Rewrite the IPv4 header (its checksum and the L4 checksum follow).
    SetIpv4 {
        /// Source.
        src: Masked<u32>,
        /// Destination.
        dst: Masked<u32>,
        /// DSCP and ECN.
        tos: Masked<u8>,
        /// Time to live.
        ttl: Masked<u8>,
    },
    /// Rewrite the IPv6 header.
    SetIpv6 {
        /// Source.
        src: Masked<[u8; 16]>,
        /// Destination.
        dst: Masked<[u8; 16]>,
        /// Flow label.
        label: Masked<u32>,
        /// Traffic class.
        tclass: Masked<u8>,
        /// Hop limit.
        hlimit: Masked<u8>,
    },
    /// Rewrite L4 ports.
    SetL4 {
        /// Protocol (6, 17 or 132).
        proto: u8,
        /// Source port.
        src: Masked<u16>,
        /// Destination port.
        dst: Masked<u16>,
    },
    /// Rewrite the ICMP or ICMPv6 type and code.
    SetIcmp {
        /// ICMPv6.
        v6: bool,
        /// Type.
        ty: Masked<u8>,
        /// Code.
        code: Masked<u8>,
    },
    /// Rewrite ARP.
    SetArp {
        /// Sender protocol address.
        sip: Masked<u32>,
        /// Target protocol address.
        tip: Masked<u32>,
        /// Opcode.
        op: Masked<u16>,
        /// Sender hardware address.
        sha: Masked<[u8; 6]>,
        /// Target hardware address.
        tha: Masked<[u8; 6]>,
    },
    /// Rewrite neighbour discovery (the ICMPv6 checksum follows).
    SetNd {
        /// Target.
        target: Masked<[u8; 16]>,
        /// Source link-layer address.
        sll: Masked<[u8; 6]>,
        /// Target link-layer address.
        tll: Masked<[u8; 6]>,
    },
    /// Rewrite the other fields of neighbour discovery (the ICMPv6 checksum is updated).
    SetNdExt {
        /// The four bytes before the target: flags of advertisements.
        reserved: Masked<u32>,
        /// Type of the first option.
        option: Masked<u8>,
    },
    /// Priority (queue) carried with the packet.
    SetPriority(Masked<u32>),
    /// Mark carried with the packet.
    SetMark(Masked<u32>),
    /// Push a VLAN tag; `tci` includes the present bit.
    PushVlan {
        /// EtherType of the tag.
        tpid: u16,
        /// Tag control information with the present bit.
        tci: u16,
    },
    /// Pop the outermost VLAN tag.
    PopVlan,
    /// Push an MPLS label.
    PushMpls {
        /// Label stack entry.
        lse: u32,
        /// EtherType.
        ethertype: u16,
    },
    /// Pop an MPLS label.
    PopMpls {
        /// EtherType of what is behind it.
        ethertype: u16,
    },
    /// Rewrite the outermost label stack entry.
    SetMpls(Masked<u32>),
    /// Put a label stack entry in front of the whole packet, which has no Ethernet header then.
    AddMpls {
        /// Label stack entry.
        lse: u32,
        /// EtherType.
        ethertype: u16,
    },
    /// Push an Ethernet header onto a packet without one.
    PushEth {
        /// Source.
        src: [u8; 6],
        /// Destination.
        dst: [u8; 6],
    },
    /// Pop the Ethernet header with its tags.
    PopEth,
    /// Push a network service header in front of the whole packet.
    PushNsh(NshHeader),
    /// Pop a network service header. The header behind it is known when the packet is parsed again.
    PopNsh,
    /// Rewrite the network service header.
    SetNsh(Masked<Nsh>),
    /// Cut the next output to this many bytes.
    Trunc(u32),
    /// Run a list on a copy.
    Clone(Vec<Action>),
    /// Run a list on a copy of some packets.
    Sample {
        /// Sampling probability, as a fraction of 2³²−1.
        probability: u32,
        /// Actions to run.
        actions: Vec<Action>,
    },
    /// Let through what a meter admits; the packet is dropped otherwise.
    Meter(Arc<Meter>),
    /// Compute a hash of the packet for the next lookup.
    Hash {
        /// Algorithm.
        alg: HashAlg,
        /// Seed.
        basis: u32,
    },
    /// Send by the port of the bucket that a hash of the packet selects.
    LbOutput(Arc<LbOutput>),
    /// Parse the packet as it is now and look it up again, under this recirculation id.
    Recirc(u32),
    /// Run one of two lists, by the packet's length.
    CheckPktLen {
        /// Bytes.
        len: u16,
        /// For packets that are longer.
        greater: Vec<Action>,
        /// For the others.
        less_equal: Vec<Action>,
    },
    /// Track the packet's connection; what is looked up next knows its state.
    Ct(Arc<CtAction>),
    /// Forget the packet's connection.
    CtClear,
    /// Put the packet into a tunnel: write the outer headers before it.
    TunnelPush(Arc<TunnelPush>),
    /// The packet comes out of a tunnel: take the outer headers off, and look it up again as one that came by
    /// the tunnel's port.
    TunnelPop(Arc<TunnelPop>),
    /// Remember which tunnel the packet is to go into, for an output to a tunnel's port.
    SetTunnel(Arc<TunnelKey>),
    /// Keep a copy of the packet as it is now until the generation of a slot changes, then look it up again.
    Wait(Wait),
    /// Replace the packet by the ICMP error "too big" for its sender. A packet that gets no error is dropped.
    TooBig {
        /// Longest frame that the path carries, bytes.
        frame_len: u16,
    },
    /// Drop the packet.
    Drop(DropReason),
}

impl Action {
    /// Whether it only changes the packet or its metadata. At the end of a list such an action has no effect.
    pub fn only_rewrites(&self) -> bool {
        matches!(
            self,
            Self::SetEth { .. }
                | Self::SetIpv4 { .. }
                | Self::SetIpv6 { .. }
                | Self::SetL4 { .. }
                | Self::SetIcmp { .. }
                | Self::SetArp { .. }
                | Self::SetNd { .. }
                | Self::SetNdExt { .. }
                | Self::SetPriority(_)
                | Self::SetMark(_)
                | Self::PushVlan { .. }
                | Self::PopVlan
                | Self::PushMpls { .. }
                | Self::PopMpls { .. }
                | Self::SetMpls(_)
                | Self::AddMpls { .. }
                | Self::PushEth { .. }
                | Self::PopEth
                | Self::PushNsh(_)
                | Self::PopNsh
                | Self::SetNsh(_)
                | Self::Trunc(_)
                | Self::CtClear
                | Self::SetTunnel(_)
        )
    }
}

/// A change that a packet waits for: the generation of a slot moves ([`crate::Generations`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Wait {
    /// Index of the slot.
    pub slot: u16,
    /// The slot's generation before the change.
    pub generation: u64,
    /// Then the packet is looked up under this recirculation id.
    pub recirc: u32,
}

/// The tunnel that a packet is to go into.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct TunnelKey {
    /// The tunnel's fields; all else is zero, and its options too.
    pub key: FlowKey,
    /// Outer destination port, 0 for types without.
    pub tp_dst: u16,
    /// Options of Geneve, as they are sent.
    pub options: Vec<u8>,
}

/// A network service header to be pushed.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct NshHeader {
    /// Fields of the header.
    pub fields: Nsh,
    /// Metadata of type 2: options, a multiple of four bytes and at most [`heddle_wire::nsh::MAX_METADATA`].
    pub options: Vec<u8>,
}

/// Hashes that the datapath computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum HashAlg {
    /// Addresses, protocol and ports.
    L4,
    /// The same, both directions alike.
    SymL4,
}

/// Why a translation drops.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum DropReason {
    /// No rule, or a rule with no actions.
    Policy,
    /// Too many resubmits, or too deep.
    RecursionTooDeep,
    /// Too many resubmits.
    TooManyResubmits,
    /// More actions, tables and buckets than one packet may cost.
    TooManySteps,
    /// The OpenFlow stack grew too large.
    StackTooDeep,
    /// A header was to be pushed onto or popped off a packet of another kind.
    UnsupportedPacketType,
    /// More label stack entries than a key holds.
    TooManyMplsLabels,
    /// The bridge or port is gone.
    NoPort,
    /// Reserved multicast, spanning tree or another bridging rule.
    Bridging,
    /// A packet from a tunnel met congestion outside and cannot show it inside (RFC 6040).
    TunnelEcn,
    /// No tunnel port takes a packet from a tunnel.
    NoTunnel,
    /// A packet is to go into a tunnel to nowhere, or back to where it came from.
    TunnelAddress,
    /// There is no route to a tunnel's other end, or it leads by a device that no bridge has.
    TunnelRoute,
    /// The next host on the way to a tunnel's other end is not known yet.
    TunnelNeighbour,
    /// A recirculation id that was not given out, or is not valid any more.
    NoRecirculation,
    /// No member of a bond takes the packet: none is enabled, or LACP has found no partner.
    NoBondMember,
    /// The port sends more messages of IGMP and MLD than multicast snooping reads.
    ReportLimit,
    /// Rules are restored after a restart (`flow-restore-wait`): until all are there, none decides.
    Restoring,
    /// The pipeline itself failed, by a mistake of its own.
    Fault,
}

/// A packet for the control plane, with what translation knows about it.
#[derive(Clone, PartialEq, Debug)]
pub struct Upcall {
    /// Kind of the receiver.
    pub kind: UpcallKind,
    /// Bytes of the packet to copy (0xffff: all; of a sample, the headers).
    pub max_len: u16,
    /// Opaque to the datapath: what `ofproto` needs to make the packet-in (an index or an `Arc` of its own).
    pub cookie: UpcallCookie,
}

impl std::hash::Hash for Upcall {
    /// Equal upcalls have equal lengths, and their cookies have no hash.
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.max_len.hash(state);
    }
}

/// Kinds of upcall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UpcallKind {
    /// Packet-in to a controller.
    Controller,
    /// The packet needs the control plane's own handling (named).
    SlowPath(&'static str),
    /// A sample for exporters of flows. Samples are lost first when there are too many upcalls.
    Sample,
}

/// Data that the issuer of an upcall attached to it, with its text (`userspace(pid=..,controller(...))`).
#[derive(Clone)]
pub struct UpcallCookie(pub Arc<dyn UpcallData>);

/// The issuer's part of an upcall.
pub trait UpcallData: Send + Sync {
    /// The text that `dpctl/dump-flows` prints inside `userspace(...)`.
    fn text(&self) -> String;
    /// Distinguishes upcalls of the same text that are for different receivers: translations with equal
    /// actions share them.
    fn receiver(&self) -> u64 {
        0
    }
    /// Whether one packet more is wanted now, this one, of which `_head` has the first bytes. Called by
    /// workers: it does not wait.
    fn admit(&self, _head: &[u8]) -> bool {
        true
    }
    /// To get the issuer's type back.
    fn as_any(&self) -> &dyn std::any::Any;
}

impl PartialEq for UpcallCookie {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || self.0.receiver() == other.0.receiver() && self.0.text() == other.0.text()
    }
}

impl std::fmt::Debug for UpcallCookie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.text())
    }
}
