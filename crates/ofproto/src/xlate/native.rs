//! Tunnels whose headers this switch writes and removes itself.
//!
//! **Output.** The route to the tunnel's remote address leads to a device, which may be the internal port of
//! some bridge. From there the packet, with its outer headers, goes through that bridge's pipeline in the
//! same translation. The translation emits the template of the headers, then the actions of that pipeline.
//! That pipeline matches the outer headers. If the device is no port of a bridge ([`UnderlayPort`]), the
//! packet leaves by it as it is.
//!
//! **Input.** A packet that is output to a port of this host ends a tunnel if it is for the port's address,
//! with the tunnel's protocol. It is looked up again, as received on the tunnel's port. So is a packet that
//! comes in by a device that is no port of a bridge ([`super::Pipeline::receive_outer`]).
//!
//! **Dependencies.** A translation depends on the route, the neighbour, the addresses of this host, and the
//! tunnels that end here ([`crate::parts::Part::TunnelEndpoints`]).

mod headers;
mod input;
mod mtu;
mod next_hop;
mod output;

use crate::model::{BridgeView, PortView};
use crate::underlay_port::UnderlayPort;
use heddle_datapath_api::PortNo;
use heddle_tunnel::routes::Route;
use std::net::IpAddr;

/// The port that a route leads to.
#[derive(Clone, Copy)]
enum Egress<'w> {
    /// A port of a bridge, and its datapath port.
    Bridge(&'w BridgeView, &'w PortView, PortNo),
    /// A device that is no port of a bridge.
    Device(&'w UnderlayPort),
}

/// The route to a tunnel's remote address, and the port that it leads to.
struct NextHop<'w> {
    egress: Egress<'w>,
    route: Route,
    /// Address of the next hop.
    next: IpAddr,
}

impl<'w> NextHop<'w> {
    /// The bridge or device by whose name the neighbour is known.
    fn link(&self) -> &'w str {
        match self.egress {
            Egress::Bridge(bridge, ..) => &bridge.name,
            Egress::Device(port) => &port.device,
        }
    }
    fn mac(&self) -> [u8; 6] {
        match self.egress {
            Egress::Bridge(_, port, _) => port.mac,
            Egress::Device(port) => port.mac,
        }
    }
    fn dp(&self) -> PortNo {
        match self.egress {
            Egress::Bridge(.., dp) => dp,
            Egress::Device(port) => port.no,
        }
    }
}
