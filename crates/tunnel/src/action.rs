//! What the actions that concern tunnels ask of the datapath: the form that translation, execution and texts
//! share.

use crate::options::OptionTable;
use crate::push::Plan;
use heddle_wire::ip::proto;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

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
    /// Which encapsulation.
    pub kind: TunnelKind,
    /// All outer headers from Ethernet on, with zero in what depends on the packet (lengths, checksums
    /// of UDP, TCP and GRE, source port, IP identification, sequence numbers). An IPv4 header's checksum is
    /// that of the header as it stands here.
    pub header: Vec<u8>,
    /// An outer UDP or GRE checksum is wanted.
    pub csum: bool,
    /// Who configured the tunnel wants none (`csum=false`), though IPv6 has packets get one: they may go
    /// without where it cannot be made. [`crate::Outer::build`] leaves that to be set.
    pub csum_optional: bool,
    /// The datapath port of the tunnel (all tunnels of one kind and UDP port share one).
    pub tunnel_port: u32,
    /// The datapath port by which the outer packet leaves: the internal port of its bridge, as Open vSwitch
    /// prints it. What happens there is translated in place and follows as actions of its own.
    pub out_port: u32,
    /// Longest outer IP packet that the way takes, bytes; 0: not known. Segments of TCP trains are made
    /// smaller to fit; what is longer in other ways is left for the port to drop.
    pub mtu: u32,
    pub(crate) numbers: Numbers,
    pub(crate) plan: Plan,
}

/// The action `tnl_pop`: headers to be taken off a packet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TunnelPop {
    /// Which encapsulation.
    pub kind: TunnelKind,
    /// The datapath port of the tunnel, by which the inner packet comes in.
    pub port: u32,
    /// Which options of Geneve are fields.
    pub options: OptionTable,
}

/// Numbers that packets are given one by one: the sequence of a tunnel, shared by all templates of it. No
/// part of what an action is.
#[derive(Clone, Debug, Default)]
pub struct Numbers(Arc<AtomicU32>);

impl Numbers {
    /// Beginning with this one.
    pub fn beginning_with(first: u32) -> Self {
        Self(Arc::new(AtomicU32::new(first)))
    }
    /// The next one.
    pub(crate) fn next(&self) -> u32 {
        self.take(1)
    }
    /// The first of the next `n`.
    pub(crate) fn take(&self, n: u32) -> u32 {
        // Relaxed: only that no two are equal counts.
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
