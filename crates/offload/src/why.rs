//! Reasons why a flow stays with the workers, as texts for people.

use rustix::io::Errno;
use std::fmt;

/// Why a flow is not offloaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Why {
    /// The flow matches on fields of connections that a back end does not know in this stage.
    Connection,
    /// The flow is of packets that no established connection has.
    NotEstablished,
    /// The flow matches on fields that a back end does not see, like the packet's mark.
    Match,
    /// The flow is not of TCP, UDP or ICMP in IPv4 or IPv6.
    Protocol,
    /// The flow matches on TCP flags. A back end looks at SYN, FIN and RST only, to send those packets up.
    TcpFlags,
    /// The flow has tags of another kind than 802.1Q.
    Vlan,
    /// The flow is of fragments, and the back end does not see these or does not rewrite them.
    Fragments,
    /// An action that only workers have; its name.
    Action(&'static str),
    /// A field is rewritten in part, and the rest of it is not matched.
    Partly,
    /// The back end does not support the tunnel: its property or action.
    Tunnel(&'static str),
    /// The kernel's device of the tunnel cannot be made; the error number.
    TunnelDevice(i32),
    /// More actions than a back end runs.
    TooManyActions,
    /// More masks than a back end looks at for packets of one port.
    TooManyMasks,
    /// The port that it comes in by is none of the back end's.
    InPort,
    /// The device of its input port is left to workers.
    LeftPort,
    /// The port that it comes in by, or one that it goes out by, is a network card by AF_XDP.
    Afxdp,
    /// A port that it goes out by is none of the back end's.
    OutPort,
    /// Packets from internal ports, and to them, are forwarded by the eBPF back end alone.
    InternalPort,
    /// The network card refused it, and the kernel alone is slower than another back end.
    NotInCard,
    /// The network card counted no packet while it had the flow, and packets came again afterwards.
    NotCounted,
    /// An output has a smaller MTU than the input port, and the back end does not compare lengths.
    Mtu,
    /// A capture is under way, and sees packets of workers only.
    Paused,
    /// The back end is full, and its other flows are heavier.
    Full,
    /// The back end refused; the error number.
    Refused(i32),
}

impl Why {
    /// Whether the back end may accept the same flow later.
    pub(crate) fn may_pass(self) -> bool {
        let no_reply = Why::Refused(Errno::TIMEDOUT.raw_os_error());
        self == Why::Full || self == no_reply
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::Connection => "it matches on fields of connections that are not offloaded there",
            Why::NotEstablished => "it is not of established connections, and tc has no others",
            Why::Match => "it matches on fields that are not offloaded, like marks or rare headers",
            Why::Protocol => "it is not TCP, UDP or ICMP over IPv4 or IPv6",
            Why::TcpFlags => "it matches on TCP flags",
            Why::Vlan => "it has VLAN tags of a kind that is not 802.1Q, or several",
            Why::Fragments => "it is of fragments",
            Why::Action(name) => return write!(f, "its action {name} is done by workers only"),
            Why::Partly => "it rewrites part of a field and does not match the rest",
            Why::Tunnel(what) => return write!(f, "its tunnel {what}"),
            Why::TunnelDevice(errno) => {
                let error = std::io::Error::from_raw_os_error(*errno);
                return write!(f, "its tunnel has no device of the kernel: {error}");
            }
            Why::TooManyActions => "it has too many actions",
            Why::TooManyMasks => "its input port has too many masks",
            Why::InPort => "its input port is not offloaded",
            Why::LeftPort => {
                "its input port is left to workers (the first lines of heddle offload have the reason)"
            }
            Why::Afxdp => {
                "its input or output is an AF_XDP port: packets come and go past the kernel's program"
            }
            Why::OutPort => "an output port is not offloaded",
            Why::InternalPort => "its input or output is an internal port, which tc does not serve",
            Why::NotInCard => "the network card did not take it",
            Why::NotCounted => "the network card counted none of its packets, and may have dropped them",
            Why::Mtu => "an output has a smaller MTU than its input port",
            Why::Paused => "a capture is under way, which sees packets of workers",
            Why::Full => "the back end is full of heavier flows",
            Why::Refused(errno) => {
                let error = std::io::Error::from_raw_os_error(*errno);
                return write!(f, "the back end refused it: {error}");
            }
        })
    }
}
