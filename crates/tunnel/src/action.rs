//! What the actions that concern tunnels ask of the datapath: the form that translation, execution and texts
//! share.

/// Which encapsulation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TunnelKind {
    /// RFC 8926.
    Geneve,
    /// RFC 7348, also with a group policy.
    Vxlan,
    /// RFC 2784 and 2890, around Ethernet frames or layer 3 packets.
    Gre,
    /// ERSPAN, version 1 and 2.
    Erspan,
    /// Stateless transport tunnelling: a header that devices take for TCP's.
    Stt,
    /// GTP-U.
    Gtpu,
    /// Segment routing over IPv6.
    Srv6,
}

/// The action `tnl_push`: headers to be written before a packet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TunnelPush {
    /// Which encapsulation.
    pub kind: TunnelKind,
    /// All outer headers from Ethernet on, with zero in the fields that depend on the packet (lengths,
    /// checksums, UDP source port, IP identification, sequence numbers).
    pub header: Vec<u8>,
    /// An outer UDP or GRE checksum is wanted.
    pub csum: bool,
    /// The datapath port of the tunnel (all tunnels of one kind and UDP port share one).
    pub tunnel_port: u32,
    /// The datapath port by which the outer packet leaves: the internal port of its bridge, as Open vSwitch
    /// prints it. What happens there is translated in place and follows as actions of its own.
    pub out_port: u32,
}
