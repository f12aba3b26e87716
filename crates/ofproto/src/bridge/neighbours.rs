//! Requests for neighbours on the routes of tunnels' packets.

use super::Bridge;
use crate::xlate::key_port;
use heddle_flow::Match;
use heddle_openflow::message::PacketOut;
use heddle_openflow::{Action, Port as OfPort, Version};
use heddle_tunnel::Routes;
use heddle_tunnel::neigh::{NeighRequest, Origin, request_frame};

impl Bridge {
    /// Sends a request as if it had come in by the port that needs the neighbour: it goes through the
    /// bridge's tables.
    pub(crate) fn request_neighbour(&self, request: &NeighRequest, routes: &Routes) {
        let port = OfPort(request.port);
        let known = {
            let state = self.state.lock();
            let config = state.ports.get(&port).map(|p| &p.config);
            config.map(|c| (c.name.clone(), c.mac))
        };
        let Some((name, mac)) = known else {
            return;
        };
        let near = routes.source_near(&name, request.target);
        let source = near.unwrap_or(request.source);
        let Some(data) = request_frame(mac, source, request.target) else {
            return;
        };
        let mut metadata = Match::any();
        metadata.key.in_port = key_port(port);
        metadata.mask.0.in_port = u32::MAX;
        let out = PacketOut {
            metadata,
            buffer_id: None,
            actions: vec![Action::Output {
                port: OfPort::TABLE,
                max_len: 0,
            }],
            data,
        };
        if let Err(error) = self.packet_out(Version::V13, &out) {
            log::debug!(target: "tunnel", "{}: no request for {}: {error:?}", self.name, request.target);
        }
    }

    /// Forgets neighbours that were set by hand on devices of these names.
    pub(crate) fn forget_neighbours_on(&self, devices: &[String]) {
        if let Some(of) = self.of.upgrade() {
            let neighbours = &of.pipeline().underlay().neighbours;
            devices.iter().for_each(|name| neighbours.flush(Some(name)));
        }
    }

    /// The names of its ports.
    pub(crate) fn port_names(&self) -> Vec<String> {
        let state = self.state.lock();
        state.ports.values().map(|p| p.config.name.clone()).collect()
    }

    /// Forgets neighbours that were learned from packets that came in by a port.
    pub(super) fn forget_neighbours(&self, port: OfPort) {
        if let Some(of) = self.of.upgrade() {
            of.pipeline().underlay().neighbours.forget(Origin::Port {
                bridge: self.id,
                port: port.0,
            });
        }
    }
}
