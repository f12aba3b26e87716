//! Parameters of the datapath's tunnel actions, in the form that translation, execution and formatting share.

use crate::options::OptionTable;
use crate::template::Plan;
use heddle_wire::ip::proto;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// An encapsulation.
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
    /// GTP-U.
    Gtpu,
    /// Segment routing over IPv6.
    Srv6,
    /// STT.
    Stt,
}

impl TunnelKind {
    /// The protocol behind the outer IP header.
    pub fn ip_proto(self) -> u8 {
        match self {
            Self::Geneve | Self::Vxlan | Self::Gtpu => proto::UDP,
            Self::Gre | Self::Erspan => proto::GRE,
            Self::Srv6 => proto::ROUTING,
            Self::Stt => proto::TCP,
        }
    }
}

/// The action `tnl_push`: headers to be written before a packet. [`crate::Outer::build`] makes it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TunnelPush {
    /// Encapsulation.
    pub kind: TunnelKind,
    /// All outer headers from Ethernet on. Fields that depend on the packet are zero: lengths, checksums of
    /// UDP, TCP and GRE, source port, IP identification, sequence numbers. An IPv4 header's checksum covers
    /// the header with these zeros.
    pub header: Vec<u8>,
    /// Outer packets get a UDP or GRE checksum.
    pub csum: bool,
    /// The configuration has `csum=false`, but packets over IPv6 get a checksum all the same. They may lack
    /// it where none can be computed. [`crate::Outer::build`] clears it; the caller sets it.
    pub csum_optional: bool,
    /// The datapath port of the tunnel (all tunnels of one kind and UDP port share one).
    pub tunnel_port: u32,
    /// The datapath port by which the outer packet leaves: the internal port of its bridge, as Open vSwitch
    /// prints it. The actions of the outer packet there are translated in place and follow this one.
    pub out_port: u32,
    /// Longest outer IP packet that the path carries, bytes; 0: not known. A TCP GSO packet gets smaller
    /// segments, to fit. Other packets that are too long are left for the port to drop.
    pub mtu: u32,
    pub(crate) numbers: Numbers,
    pub(crate) plan: Plan,
}

/// The action `tnl_pop`: headers to be removed from a packet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TunnelPop {
    /// Encapsulation.
    pub kind: TunnelKind,
    /// The tunnel's datapath port, which becomes the input port of the inner packet.
    pub port: u32,
    /// Geneve options that are match fields.
    pub options: OptionTable,
}

/// Numbers that a tunnel gives to its packets (sequence, IP identification, STT frame), shared by all its
/// templates. Not part of an action's identity: all values are equal.
#[derive(Clone, Debug, Default)]
pub struct Numbers(Arc<AtomicU32>);

impl Numbers {
    /// Numbers from `first` on.
    pub fn beginning_with(first: u32) -> Self {
        Self(Arc::new(AtomicU32::new(first)))
    }
    /// Takes the next number.
    pub(crate) fn next(&self) -> u32 {
        self.take(1)
    }
    /// Takes `n` numbers. Returns the first.
    pub(crate) fn take(&self, n: u32) -> u32 {
        // Relaxed: uniqueness of the numbers is the only requirement.
        self.0.fetch_add(n, Relaxed)
    }
}

impl PartialEq for Numbers {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for Numbers {}
impl Hash for Numbers {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
