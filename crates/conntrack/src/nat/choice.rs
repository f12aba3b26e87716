//! The choice of addresses and ports for a translated connection.
//!
//! A hash of the connection selects an address of the range, as in Open vSwitch. For protocols with ports the
//! ports are tried one after the other, from a port that the hash selects. If no range is requested, the own
//! port of the packet and a few after it come first (in Open vSwitch: all after it). So clients with the
//! same port do not try the ports of each other. A range of ports is tried up to 128 times in order, then
//! from random positions, half as often each time. So a nearly full range of 64 thousand ports costs a
//! bounded number of lookups. If all destination ports are taken, the source port is changed.
//!
//! Identifiers of ICMP are searched like ports, all 65,536 of them, as in the kernel. In Open vSwitch's
//! userspace datapath a second client with the same identifier is not translated.

use crate::action::{NatEnd, NatHow, NatRange};
use crate::table::hash;
use crate::tuple::{Tuple, bits};
use heddle_wire::ip::proto;

/// Number of ports tried after the own port of the packet.
const NEAR: u32 = 8;
/// Number of ports tried in order, in the first round.
const ATTEMPTS: u32 = 128;
/// Number of ports tried in the last round.
const LAST_ATTEMPTS: u32 = 16;
const MAX_ICMP_ID: u32 = 0xffff;

/// Chooses the reply tuple. `hashes`: of the connection, and of its client alone. `free`: whether no
/// connection has the tuple. `None`: all are taken.
pub(crate) fn reply(
    orig: &Tuple,
    range: &NatRange,
    hashes: [u32; 2],
    random: &mut u64,
    mut free: impl FnMut(&Tuple) -> bool,
) -> Option<Tuple> {
    let [conn, client] = hashes;
    let mut dice = || (hash::next(random) >> 32) as u32;
    let by_conn = if range.how == NatHow::Random { dice() } else { conn };
    let by_addr = if range.persistent { client } else { by_conn };
    let mut reply = orig.reversed();
    // Packets of the reply direction come from the translated destination and go to the translated source.
    let end = match range.end {
        NatEnd::Src => &mut reply.dst,
        NatEnd::Dst => &mut reply.src,
    };
    if let Some((min, max)) = range.addresses
        && bits(min) != 0
        && min.is_ipv6() == orig.ipv6
        && max.is_ipv6() == orig.ipv6
    {
        // Offsets of 32 bits.
        let last = bits(max).saturating_sub(bits(min)).min(0xffff_fffe);
        end.addr = bits(min) + u128::from(by_addr) % (last + 1);
    }
    if orig.is_icmp() {
        let own = orig.src.l4 >> 16;
        let somewhere = by_conn % (MAX_ICMP_ID + 1);
        let ids = Ports {
            first: own,
            further: Some(somewhere),
            min: 0,
            max: MAX_ICMP_ID,
        };
        return search(&ids, &mut dice, |id| {
            let candidate = reply.with_icmp_id(id);
            free(&candidate).then_some(candidate)
        });
    }
    if !matches!(orig.proto, proto::TCP | proto::UDP | proto::SCTP) {
        return free(&reply).then_some(reply);
    }
    let somewhere = |min: u32, max: u32| min + by_conn % (max - min + 1);
    let own = |(min, max): (u16, u16)| {
        let (min, max) = (u32::from(min), u32::from(max.max(min)));
        Ports {
            first: somewhere(min, max),
            further: None,
            min,
            max,
        }
    };
    // Many clients with the same port do not try the ports of each other.
    let kept = |first: u32, min: u32, max: u32| Ports {
        first,
        further: Some(somewhere(min, max)),
        min,
        max,
    };
    let source_ports = match (range.end, range.ports) {
        (NatEnd::Src, Some(ports)) => own(ports),
        _ => match orig.src.l4 {
            p @ 0..=511 => kept(p, 1, 511),
            p @ 512..=1023 => kept(p, 600, 1023),
            p => kept(p, 1024, 65535),
        },
    };
    if let (NatEnd::Dst, Some(ports)) = (range.end, range.ports) {
        let ports = own(ports);
        let found = search(&ports, &mut dice, |port| {
            let candidate = with_src_port(reply, port);
            free(&candidate).then_some(candidate)
        });
        if found.is_some() {
            return found;
        }
        reply = with_src_port(reply, ports.first);
    }
    search(&source_ports, &mut dice, |port| {
        let mut candidate = reply;
        candidate.dst.l4 = port;
        free(&candidate).then_some(candidate)
    })
}

fn with_src_port(mut t: Tuple, port: u32) -> Tuple {
    t.src.l4 = port;
    t
}

/// Ports, or identifiers of ICMP, that may be chosen.
struct Ports {
    /// The first choice, which may be outside of the range.
    first: u32,
    /// The start of the second choice.
    further: Option<u32>,
    min: u32,
    max: u32,
}

/// Tries the first choice, and a few ports of the range after it; then ports from `further` on.
fn search<R>(
    ports: &Ports,
    dice: &mut impl FnMut() -> u32,
    mut try_port: impl FnMut(u32) -> Option<R>,
) -> Option<R> {
    let (min, max) = (ports.min, ports.max);
    let range = max - min + 1;
    let mut port = ports.first;
    let mut run = |mut port: u32, n: u32| {
        for _ in 0..n {
            if let Some(found) = try_port(port) {
                return Some(found);
            }
            port = if (min..max).contains(&port) { port + 1 } else { min };
        }
        None
    };
    if let Some(further) = ports.further {
        let found = run(port, NEAR);
        if found.is_some() {
            return found;
        }
        port = further;
    }
    let mut attempts = ATTEMPTS.min(range);
    loop {
        let found = run(port, attempts);
        if found.is_some() || attempts >= range || attempts < LAST_ATTEMPTS {
            return found;
        }
        attempts /= 2;
        port = min + dice() % range;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuple::Endpoint;
    use std::collections::BTreeSet;

    fn orig(port: u32) -> Tuple {
        Tuple {
            src: Endpoint {
                addr: 0x0a00_0001,
                l4: port,
            },
            dst: Endpoint {
                addr: 0x0a00_0002,
                l4: 80,
            },
            proto: 6,
            ipv6: false,
        }
    }

    fn range(end: NatEnd, addrs: [&str; 2], ports: Option<(u16, u16)>) -> NatRange {
        NatRange {
            end,
            addresses: Some((addrs[0].parse().unwrap(), addrs[1].parse().unwrap())),
            ports,
            how: NatHow::Any,
            persistent: false,
        }
    }

    #[test]
    fn all_of_a_range_are_used_once_each() {
        let r = range(NatEnd::Src, ["1.1.1.1", "1.1.1.1"], Some((10, 19)));
        let mut taken = BTreeSet::new();
        for n in 0..10 {
            let t = reply(&orig(5000 + n), &r, [n * 7, 0], &mut 1, |t| {
                !taken.contains(&t.dst.l4)
            });
            let t = t.expect("one is left");
            assert_eq!((t.dst.addr, t.src.l4), (0x0101_0101, 80));
            assert!((10..20).contains(&t.dst.l4) && taken.insert(t.dst.l4));
        }
        assert_eq!(
            reply(&orig(1), &r, [3, 0], &mut 1, |t| !taken.contains(&t.dst.l4)),
            None
        );
    }

    #[test]
    fn own_port_first_and_like_with_like() {
        let r = range(NatEnd::Src, ["1.1.1.1", "1.1.1.9"], None);
        for (port, next) in [(5000, 5001), (65535, 1024), (511, 1), (1023, 600), (520, 600)] {
            let t = reply(&orig(port), &r, [5, 0], &mut 1, |_| true).unwrap();
            assert_eq!((t.dst.l4, t.dst.addr), (port, 0x0101_0106));
            let t = reply(&orig(port), &r, [5, 0], &mut 1, |t| t.dst.l4 != port).unwrap();
            assert_eq!(t.dst.l4, next);
        }
    }

    #[test]
    fn destinations_that_are_taken_change_the_source_port() {
        let r = range(NatEnd::Dst, ["2.2.2.2", "2.2.2.2"], Some((80, 81)));
        let t = reply(&orig(5000), &r, [0, 0], &mut 1, |t| t.dst.l4 != 5000).unwrap();
        assert_eq!((t.src.l4, t.dst.l4, t.src.addr), (80, 5001, 0x0202_0202));
    }

    #[test]
    fn identifiers_of_icmp_are_searched_like_ports() {
        let echo = Tuple { proto: 1, ..orig(0) }.with_icmp(500, 8, 0).unwrap();
        let r = range(NatEnd::Src, ["1.1.1.1", "1.1.1.1"], Some((1, 1)));
        let mut taken = BTreeSet::new();
        for n in 0..300_u32 {
            let t = reply(&echo, &r, [n.wrapping_mul(0x9e37_79b1), 0], &mut 1, |t| {
                !taken.contains(&t.dst.l4)
            });
            let t = t.expect("one is left");
            assert_eq!(
                (t.src.l4 >> 16, t.src.l4 & 0xffff, t.dst.l4 & 0xffff),
                (t.dst.l4 >> 16, 0, 8 << 8)
            );
            assert!(taken.insert(t.dst.l4));
        }
        assert!(taken.contains(&echo.src.l4), "its own comes first");
        assert_eq!(reply(&echo, &r, [0, 0], &mut 1, |_| false), None);
    }

    #[test]
    fn a_full_range_costs_a_bounded_search() {
        let r = range(NatEnd::Src, ["1.1.1.1", "1.1.1.1"], None);
        let mut tries = 0;
        assert_eq!(
            reply(&orig(5000), &r, [0, 0], &mut 1, |_| {
                tries += 1;
                false
            }),
            None
        );
        assert!(tries < 300, "{tries}");
        let v6 = range(NatEnd::Src, ["::1", "::1"], None);
        let t = reply(&orig(5000), &v6, [0, 0], &mut 1, |_| true).unwrap();
        assert_eq!(t, orig(5000).reversed(), "addresses of the other family are none");
    }

    /// A thousand clients with one port to one server.
    #[test]
    fn equal_ports_of_many_clients_cost_few_lookups() {
        let r = range(NatEnd::Src, ["1.1.1.1", "1.1.1.1"], None);
        let (mut taken, mut tries) = (BTreeSet::new(), 0);
        for n in 0..1000_u32 {
            let t = reply(&orig(5000), &r, [n.wrapping_mul(0x9e37_79b1), 0], &mut 1, |t| {
                tries += 1;
                !taken.contains(&t.dst.l4)
            });
            assert!(taken.insert(t.unwrap().dst.l4));
        }
        assert!(taken.contains(&5000) && tries < 10_100, "{tries}");
    }
}
