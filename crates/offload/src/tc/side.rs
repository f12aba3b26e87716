//! The part that a flow of tc has in a tunnel.

use super::tunnel_devices::TunnelId;
use heddle_datapath_api::PortNo;
use std::fmt;

/// An end of tunnels at this host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct LocalEnd {
    /// The tunnels' port.
    pub(super) port: PortNo,
    /// Outer destination; of IPv4 in the first four bytes.
    pub(super) dst: [u8; 16],
}

/// The part that a flow has in a tunnel.
#[derive(Clone, Copy, Debug)]
pub(super) enum TcSide {
    /// No part.
    Plain,
    /// The flow leads into one of these tunnels, with these properties of outer headers.
    Into {
        tunnel: TunnelId,
        csum: bool,
        dont_fragment: bool,
        tos: u8,
        ttl: u8,
    },
    /// The flow is of outer packets, and ends these tunnels.
    Outer {
        tunnel: TunnelId,
        end: LocalEnd,
        origin: u32,
    },
    /// The flow comes out of one of these tunnels.
    Inner {
        tunnel: TunnelId,
        /// `None`: to any address.
        end: Option<LocalEnd>,
        /// Length of the outer headers, bytes.
        outer_len: u64,
    },
}

impl TcSide {
    /// The tunnels whose device it needs.
    pub(super) fn tunnel(self) -> Option<TunnelId> {
        match self {
            Self::Into { tunnel, .. } | Self::Inner { tunnel, .. } => Some(tunnel),
            Self::Plain | Self::Outer { .. } => None,
        }
    }
}

/// A text about the tunnel of a flow, for people.
impl fmt::Display for TcSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |(kind, port): TunnelId| kind.device_name(port);
        match *self {
            Self::Plain => Ok(()),
            Self::Into {
                tunnel,
                csum,
                dont_fragment,
                tos,
                ttl,
            } => write!(
                f,
                "into {}, whose UDP port network cards know: outer checksum {}, don't-fragment bit {}, type of \
                 service {tos}, time to live {ttl}",
                name(tunnel),
                if csum { "yes" } else { "no" },
                if dont_fragment { "yes" } else { "no" },
            ),
            Self::Outer { tunnel, .. } => {
                write!(f, "through the host's stack to {}", name(tunnel))
            }
            Self::Inner { tunnel, .. } => write!(f, "out of {}", name(tunnel)),
        }
    }
}
