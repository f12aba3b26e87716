//! The way of tunnels' packets: routes and neighbours of the host, tied to the generations that cached
//! translations depend on.
//!
//! Who asks within a translation reads the generation first, as of all that changes:
//! `read(Underlay::slot(routes.thing(&q)))`, then `routes.lookup(&q)`.

use crate::model::BridgeView;
use heddle_datapath_api::Generations;
use heddle_openflow::Port as OfPort;
use heddle_sync::Wakeup;
use heddle_tunnel::neigh::{Asked, Question};
use heddle_tunnel::outer::SOURCE_PORTS;
use heddle_tunnel::{Neighbours, Routes};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// See the module's text.
#[derive(Debug)]
pub struct Underlay {
    /// By which device, from which address and to whom packets go.
    pub routes: Routes,
    /// Ethernet addresses of those to whom they go.
    pub neighbours: Neighbours,
    /// The control thread that sends requests and does other work for the workers.
    pub(crate) settler: Wakeup,
    /// UDP source ports of outer packets: the least in the upper half, the greatest in the lower.
    source_ports: AtomicU32,
}

impl Underlay {
    /// Knows nothing yet. What changes later moves slots of `generations`.
    pub fn new(generations: &Arc<Generations>) -> Self {
        let hook = || {
            let generations = generations.clone();
            Box::new(move |thing| generations.bump(Self::slot(thing)))
        };
        Self {
            routes: Routes::new(hook()),
            neighbours: Neighbours::new(hook()),
            settler: Wakeup::default(),
            source_ports: both(SOURCE_PORTS).into(),
        }
    }

    /// Has a control thread ask who `target` is: from a port of a bridge, in the name of `source`. `false`:
    /// nobody was asked, the next packet has to ask, so the translation must not be cached. Otherwise the
    /// slot of the neighbour moves as soon as it is known, and also in a second or two if it is not, so that
    /// the next packet asks again. Never waits.
    pub fn ask(
        &self,
        bridge: &BridgeView,
        port: OfPort,
        source: IpAddr,
        target: IpAddr,
        now_ms: u64,
    ) -> bool {
        let question = Question {
            bridge: bridge.id,
            port: port.0,
            source,
            target,
        };
        let asked = self.neighbours.ask(&bridge.name, &question, now_ms);
        if asked == Asked::New {
            self.settler.ring();
        }
        asked != Asked::Busy
    }

    /// UDP source ports that outer packets have, both ends included.
    pub fn source_ports(&self) -> (u16, u16) {
        let both = self.source_ports.load(Relaxed);
        #[allow(clippy::cast_possible_truncation)] // halves
        ((both >> 16) as u16, both as u16)
    }

    /// Sets them. Whoever does empties the caches.
    pub fn set_source_ports(&self, min: u16, max: u16) {
        self.source_ports.store(both((min, max)), Relaxed);
    }

    /// The slot of a thing of [`Routes`] or [`Neighbours`]. Packets make neighbours.
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
