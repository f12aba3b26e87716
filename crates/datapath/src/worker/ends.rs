//! Other ends of tunnels that packets came from lately.
//!
//! **Problem.** What comes by an uplink came from many other ends in turns: outer headers are rarely those of
//! the packet before, and yet nearly always those of one not long ago.
//!
//! **Shape.** For each end the outer headers of its last packet that was read in full, and what they told
//! ([`Seen`]); a packet is compared with those that the hash of its own headers leads to. A set has two, the
//! one that was used last in front; a new one takes the place of the other.
//!
//! **Bounds.** [`SETS`] sets, each end made when it is first needed: less than half a MiB for a worker,
//! whatever senders make up. Who makes ends up has those of others read in full again, which is right, too.

use heddle_flow::FlowKey;
use heddle_packet::Packet;
use heddle_tunnel::seen::{Seen, View};
use heddle_tunnel::{Popped, TunnelPop};
use std::sync::Arc;

/// A power of two.
const SETS: usize = 256;

/// What is known of an end.
#[derive(Debug)]
pub(super) struct End {
    seen: Seen,
    /// What took the headers off.
    pop: Arc<TunnelPop>,
    /// What they told; members of the tunnel.
    pub(super) tunnel: FlowKey,
    /// A stage and the place where that stands in it.
    at: Option<(u64, u8)>,
}

/// The ends that one worker knows.
#[derive(Debug, Default)]
pub(super) struct Ends(Vec<[Option<Box<End>>; 2]>);

fn set_of(view: &View) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "the rest of a division by SETS")]
    let set = (view.hash() % SETS as u64) as usize;
    set
}

impl Ends {
    /// Takes a packet out of a tunnel, its IP header at `l3`, if its headers are those of an end that is
    /// known. `None`: it is as it was.
    #[inline]
    pub(super) fn apply(
        &mut self,
        pop: &Arc<TunnelPop>,
        p: &mut Packet,
        view: &View,
        l3: u16,
    ) -> Option<&mut End> {
        let set = self.0.get_mut(set_of(view))?;
        let is = |end: &Option<Box<End>>| {
            let end = end.as_deref();
            end.is_some_and(|e| Arc::ptr_eq(&e.pop, pop) && e.seen.is_like(view, l3))
        };
        if !is(&set[0]) {
            if !is(&set[1]) {
                return None;
            }
            set.swap(0, 1);
        }
        let end = set[0].as_deref_mut()?;
        end.seen.apply(pop, p).then_some(end)
    }
    /// A packet that began so was taken out of a tunnel in full, and told this. `at`: where that stands now.
    pub(super) fn learn(
        &mut self,
        pop: &Arc<TunnelPop>,
        view: View,
        l3: u16,
        (popped, tunnel): (&Popped, &FlowKey),
        at: Option<(u64, u8)>,
    ) {
        let Some(seen) = Seen::new(pop, view, l3, popped) else {
            return;
        };
        self.0.resize_with(SETS, Default::default);
        let Some(set) = self.0.get_mut(set_of(&view)) else {
            return;
        };
        set.swap(0, 1);
        match &mut set[0] {
            Some(end) => {
                end.seen = seen;
                if !Arc::ptr_eq(&end.pop, pop) {
                    end.pop = Arc::clone(pop);
                }
                end.tunnel.clear_carried();
                end.tunnel.copy_tunnel(tunnel);
                end.at = at;
            }
            free => {
                let (pop, tunnel) = (Arc::clone(pop), *tunnel);
                *free = Some(Box::new(End {
                    seen,
                    pop,
                    tunnel,
                    at,
                }));
            }
        }
    }
}

impl End {
    /// Where in a stage stands what the headers told.
    #[inline]
    pub(super) fn place(&self, stage: u64) -> Option<u8> {
        self.at.filter(|(of, _)| *of == stage).map(|(_, at)| at)
    }
    /// It stands there now, if anywhere.
    #[inline]
    pub(super) fn stands(&mut self, stage: u64, place: Option<u8>) {
        self.at = place.map(|place| (stage, place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_tunnel::outer::SOURCE_PORTS;
    use heddle_tunnel::{Encap, Inner, OptionTable, Outer, TunnelKind};
    use std::net::{Ipv4Addr, Ipv6Addr};

    const L3: u16 = 14;

    /// A packet of one of many ends and networks.
    fn packet(end: u32, vni: u32) -> Packet {
        let encap = Encap::Geneve {
            port: 6081,
            vni,
            oam: false,
            critical: false,
            options: Vec::new(),
        };
        let low = Ipv4Addr::from_bits(0x0a00_0000 + end);
        let v6 = end.is_multiple_of(3);
        let ip = |v4: Ipv4Addr| match v6 {
            true => Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(v4.to_bits())).into(),
            false => v4.into(),
        };
        let outer = Outer {
            eth_src: [2; 6],
            eth_dst: [4; 6],
            src: ip(low),
            dst: ip(Ipv4Addr::new(172, 31, 0, 1)),
            tos: 0,
            ttl: 64,
            df: true,
            label: 0,
            csum: v6,
            source_ports: SOURCE_PORTS,
            encap,
            tunnel_port: 5,
            out_port: 1,
            mtu: 0,
            numbers: Default::default(),
        };
        let len = usize::try_from(60 + end % 7).unwrap();
        let mut p = Packet::from_bytes(&vec![0x55; len]);
        let inner = Inner {
            l3: u16::MAX,
            l4: u16::MAX,
            proto: 0,
        };
        outer.build().unwrap().apply(&mut p, inner, 0).unwrap();
        p
    }

    /// Packets of ends in turns, of more of them than there is room for: each comes out as if it were read in
    /// full, and those of ends that come often are not.
    #[test]
    fn ends_in_turns_are_known_again() {
        let pops = [5, 6].map(|port| {
            Arc::new(TunnelPop {
                kind: TunnelKind::Geneve,
                port,
                options: OptionTable::default(),
            })
        });
        let mut ends = Ends::default();
        let mut quick = |of: u32, vni: u32, stage: u64| {
            let pop = &pops[usize::try_from(vni % 2).unwrap()];
            let (mut p, mut full) = (packet(of, vni), packet(of, vni));
            let view = View::of(&p, L3).unwrap();
            let mut key = FlowKey::default();
            let popped = pop.apply(&mut full, L3, &mut key).unwrap();
            let Some(end) = ends.apply(pop, &mut p, &view, L3) else {
                assert_eq!(p.to_vec(), packet(of, vni).to_vec(), "left as it was");
                ends.learn(pop, view, L3, (&popped, &key), Some((stage, 7)));
                return false;
            };
            assert!(p.to_vec() == full.to_vec() && end.tunnel.has_same_tunnel(&key));
            let stood = end.place(stage);
            assert!(stood.is_none_or(|at| at == 7) && end.place(stage + 1).is_none());
            end.stands(stage, Some(7));
            true
        };
        let known = |quick: &mut dyn FnMut(u32, u32, u64) -> bool, ends: u32, stage| {
            (0..ends).filter(|end| quick(*end, end % 5, stage)).count()
        };
        assert_eq!(known(&mut quick, 100, 1), 0);
        assert!(known(&mut quick, 100, 1) >= 80);
        assert!(known(&mut quick, 100, 2) >= 80);
        known(&mut quick, 3000, 3);
        assert!(known(&mut quick, 100, 4) < 80, "others took their places");
        assert!(known(&mut quick, 100, 5) >= 80);
        // Another network of the same end is another one.
        assert!(!quick(1, 77, 6) && quick(1, 77, 6));
    }
}
