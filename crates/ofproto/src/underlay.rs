//! Routes and neighbours of the host, for tunnels. Their changes move the generations that cached
//! translations depend on.
//!
//! A translation reads the generation before it looks up: `read(Underlay::slot(routes.thing(&q)))`, then
//! `routes.lookup(&q)`.

use crate::model::BridgeView;
use heddle_datapath_api::Generations;
use heddle_openflow::Port as OfPort;
use heddle_sync::Wakeup;
use heddle_tunnel::neigh::{NeighRequest, RequestOutcome};
use heddle_tunnel::outer::SOURCE_PORTS;
use heddle_tunnel::{Neighbours, Routes};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// See the module's text.
#[derive(Debug)]
pub struct Underlay {
    /// Output devices, source addresses and next hops of packets.
    pub routes: Routes,
    /// Ethernet addresses of the next hops.
    pub neighbours: Neighbours,
    /// The control thread that sends requests and does other work for the workers.
    pub(crate) deferred_work: Wakeup,
    /// UDP source ports of outer packets: the lowest in the upper half, the highest in the lower half.
    source_ports: AtomicU32,
}

impl Underlay {
    /// An empty underlay, whose later changes move slots of `generations`.
    pub fn new(generations: &Arc<Generations>) -> Self {
        let hook = || {
            let generations = generations.clone();
            Box::new(move |thing| generations.bump(Self::slot(thing)))
        };
        Self {
            routes: Routes::new(hook()),
            neighbours: Neighbours::new(hook()),
            deferred_work: Wakeup::default(),
            source_ports: both(SOURCE_PORTS).into(),
        }
    }

    /// Makes a control thread request the address of `target`, from a port of a bridge, with `source` as the
    /// sender. `false`: there is no request, so the translation must not be cached and the next packet has to
    /// make it. Otherwise the slot of the neighbour moves as soon as its address is known. If it stays
    /// unknown, the slot moves after a second or two, so that the next packet makes a request again. Never
    /// waits.
    pub fn request(
        &self,
        bridge: &BridgeView,
        port: OfPort,
        source: IpAddr,
        target: IpAddr,
        now_ms: u64,
    ) -> bool {
        let request = NeighRequest {
            bridge: bridge.id,
            port: port.0,
            source,
            target,
        };
        self.requested(self.neighbours.request(&bridge.name, &request, now_ms))
    }

    /// Does the same as [`Underlay::request`] for a neighbour on a device that is no port of a bridge: the
    /// kernel sends the request.
    pub fn request_from_kernel(&self, device: &str, target: IpAddr, now_ms: u64) -> bool {
        self.requested(self.neighbours.request_from_kernel(device, target, now_ms))
    }

    fn requested(&self, outcome: RequestOutcome) -> bool {
        if outcome == RequestOutcome::New {
            self.deferred_work.ring();
        }
        outcome != RequestOutcome::Busy
    }

    /// The lowest and highest UDP source port of outer packets.
    pub fn source_ports(&self) -> (u16, u16) {
        let both = self.source_ports.load(Relaxed);
        #[allow(clippy::cast_possible_truncation)] // halves
        ((both >> 16) as u16, both as u16)
    }

    /// Sets the lowest and highest UDP source port. The caller empties the caches.
    pub fn set_source_ports(&self, min: u16, max: u16) {
        self.source_ports.store(both((min, max)), Relaxed);
    }

    /// The slot of a thing of [`Routes`] or [`Neighbours`]. It is one of those for learned state, since
    /// packets make neighbours.
    pub fn slot(thing: u64) -> u16 {
        Generations::learned_slot_of(thing)
    }
}

fn both((min, max): (u16, u16)) -> u32 {
    u32::from(min) << 16 | u32::from(max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_tunnel::routes::{Address, Query};
    use std::net::IpAddr;

    #[test]
    fn changes_move_slots() {
        let generations = Arc::new(Generations::default());
        let underlay = Underlay::new(&generations);
        let ip: IpAddr = [10, 0, 0, 2].into();
        let neighbours = &underlay.neighbours;
        let gateway = generations.read(Underlay::slot(neighbours.thing("br0", ip)));
        neighbours.set("br0", ip, [2; 6], 0);
        assert!(!generations.hold(&[gateway]));
        let gateway = generations.read(gateway.slot);
        neighbours.set("br0", ip, [2; 6], 1);
        assert!(generations.hold(&[gateway]), "it is the same");
        let way = generations.read(Underlay::slot(underlay.routes.thing(&Query::to(ip))));
        underlay
            .routes
            .add_address(Address::new("br0".into(), [10, 0, 0, 1].into(), 24));
        assert!(!generations.hold(&[way]));
    }
}
