//! The way of tunnels' packets: routes and neighbours of the host, tied to the generations that cached
//! translations depend on.
//!
//! Who asks within a translation reads the generation first, as of all that changes:
//! `read(Underlay::slot(routes.thing(&q)))`, then `routes.lookup(&q)`.

use heddle_datapath::Generations;
use heddle_tunnel::{Neighbours, Routes};
use std::sync::Arc;

/// See the module's text.
#[derive(Debug)]
pub struct Underlay {
    /// By which device, from which address and to whom packets go.
    pub routes: Routes,
    /// Ethernet addresses of those to whom they go.
    pub neighbours: Neighbours,
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
        }
    }

    /// The slot of a thing of [`Routes`] or [`Neighbours`]. Packets make neighbours.
    pub fn slot(thing: u64) -> u16 {
        Generations::learned_slot_of(thing)
    }
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
