//! The route and the neighbour of outer packets.

use super::super::ctx::Ctx;
use super::super::report::Kind;
use super::{Egress, NextHop};
use crate::model::Binding;
use crate::parts::Part;
use crate::tunnels::address;
use crate::underlay::Underlay;
use heddle_datapath_api::{Credit, DropReason};
use heddle_openflow::Port;
use heddle_tunnel::neigh::NeighEntry;
use heddle_tunnel::routes::{Query, Route};
use std::sync::Arc;

/// Credit that keeps a neighbour's entry while there are packets for it.
struct Used(Arc<NeighEntry>);

impl Credit for Used {
    fn credit(&self, _packets: u64, _bytes: u64, used_ms: u64, _tcp_flags: u16) {
        self.0.used(used_ms);
    }
}

impl<'w> Ctx<'w> {
    /// The route to the tunnel's remote address, if there is one.
    pub(super) fn next_hop(&mut self) -> Option<NextHop<'w>> {
        let dst = address(self.flow.tun_dst, self.flow.tun_ipv6_dst);
        let src = address(self.flow.tun_src, self.flow.tun_ipv6_src);
        let q = Query {
            mark: self.flow.pkt_mark,
            dst,
            src: (!src.is_unspecified()).then_some(src),
        };
        let routes = &self.input.pipeline.underlay.routes;
        self.out.depend(Underlay::slot(routes.thing(&q)));
        if routes.reads_marks() {
            self.out.extra().0.pkt_mark = u32::MAX;
        }
        let hop = routes.lookup(&q).and_then(|route| {
            let egress = self.egress_of(&route)?;
            let next = route.gateway.unwrap_or(dst);
            Some(NextHop { egress, route, next })
        });
        let Some(hop) = hop else {
            self.trace.warn("native tunnel routing failed");
            self.out.drop_hint.get_or_insert(DropReason::TunnelRoute);
            return None;
        };
        self.trace.report(Kind::Detail, || {
            format!("tunneling to {} via {}", hop.next, hop.route.device)
        });
        Some(hop)
    }

    /// The port of a route's device: a bridge's internal port, or any other port of the datapath.
    fn egress_of(&mut self, route: &Route) -> Option<Egress<'w>> {
        let (name, snapshot) = (&*route.device, self.input.snapshot);
        self.out.depend_on(Part::Underlay);
        if let Some(port) = snapshot.underlay.of_device(name) {
            // A packet to this host's own address leaves by no device.
            return (!route.local).then_some(Egress::Device(port));
        }
        let own = snapshot.bridges.values().find(|b| b.name == name);
        if let Some(bridge) = own {
            self.other_bridge(bridge.id);
            let port = self.port_of(bridge, Port::LOCAL)?;
            if let Binding::Datapath(no) = port.binding {
                return Some(Egress::Bridge(bridge, port, no));
            }
        }
        // A change of any port of any bridge may give the device another port.
        self.out.depend(crate::model::Snapshot::CONFIG_SLOT);
        snapshot.bridges.values().find_map(|bridge| {
            let port = bridge.ports.values().find(|p| p.name == name)?;
            match port.binding {
                Binding::Datapath(no) => Some(Egress::Bridge(bridge, port, no)),
                _ => None,
            }
        })
    }

    /// The Ethernet address of the next hop, or whether it was requested.
    pub(super) fn next_mac(&mut self, hop: &NextHop<'_>) -> Result<[u8; 6], bool> {
        let (link, next) = (hop.link(), hop.next);
        let neighbours = &self.input.pipeline.underlay.neighbours;
        self.out.depend(Underlay::slot(neighbours.thing(link, next)));
        if let Some(entry) = neighbours.find(link, next, self.input.now_ms) {
            let mac = entry.mac;
            self.out.credits.push(Arc::new(Used(entry)));
            return Ok(mac);
        }
        if let Some(known) = neighbours.system(link, next) {
            if known.in_doubt {
                self.request_neighbour(hop);
            }
            return Ok(known.mac);
        }
        self.trace.report(Kind::Detail, || {
            let request = if next.is_ipv4() { "ARP" } else { "ND" };
            format!("neighbor cache miss for {next} on bridge {link}, sending {request} request")
        });
        self.out.drop_hint.get_or_insert(DropReason::TunnelNeighbour);
        Err(self.request_neighbour(hop))
    }

    /// Requests the address of the next hop. Returns whether the request was made.
    fn request_neighbour(&mut self, hop: &NextHop<'_>) -> bool {
        // A translation without a packet, for a cached entry, makes the request too. The route may have
        // appeared just now, and the next packet should not be lost. A trace without a packet makes none.
        // Without a request, the translation is not cached, so that the next packet makes it.
        let requested = (self.input.learn || !self.trace.is_on()) && {
            let (underlay, now_ms) = (&self.input.pipeline.underlay, self.input.now_ms);
            match hop.egress {
                Egress::Bridge(bridge, port, _) => {
                    underlay.request(bridge, port.no, hop.route.source, hop.next, now_ms)
                }
                Egress::Device(port) => underlay.request_from_kernel(&port.device, hop.next, now_ms),
            }
        };
        self.out.uncacheable |= !requested;
        requested
    }
}
