//! Cost of a packet, by stage: one worker, ports made of memory, 64-byte packets.
//!
//! `cargo run --release -p heddle-datapath --example cost [SECONDS [CASE]]`. The receive queue copies
//! prepared frames into pool buffers and the transmit queue drops them. So the numbers are the datapath's own
//! plus one copy of 64 bytes. With real rules: `hit` of `heddle-ofproto`. `cost 1000000p CASE` forwards about
//! this number of packets, for `valgrind --tool=callgrind
//! --toggle-collect='heddle_datapath::worker::burst::*burst'`.

mod memory;
#[path = "memory/steady.rs"]
mod steady;

use heddle_conntrack::{CtAction, CtNat, NatEnd, NatHow, NatRange};
use heddle_datapath_api::{Action, Generations, LbOutput, Masked, PortNo, Request, Translate, Translation};
use heddle_packet::Csum;
use heddle_tunnel::action::Numbers;
use heddle_tunnel::outer::SOURCE_PORTS;
use heddle_tunnel::{Encap, OptionTable, Outer, TunnelKind, TunnelPop};
use memory::{Connections, Traffic};
use std::net::Ipv4Addr;
use std::sync::Arc;
use steady::{Length, steady};

/// Kinds of rules.
#[derive(Clone, Copy)]
enum Rules {
    /// Match on the whole 5-tuple.
    Exact,
    /// Match on the input port only.
    Any,
    /// Each kind of packet has a mask of its own, without the bits that distinguish flows.
    Masks,
    /// Behind a tracker: new connections are kept, and all packets are forwarded.
    Tracked {
        /// The translated end of new connections.
        nat: Option<NatEnd>,
    },
    /// OVN's actions for packets between two logical switches with a router between them.
    Routed {
        /// The servers' switch has a stateful access list.
        tracked: bool,
    },
    /// The packets go into a tunnel, or come out of one.
    Tunnel {
        /// With an outer checksum.
        csum: bool,
        /// The packets also come out of the tunnel again.
        pop: bool,
        /// Behind a router, with an option, and sent back by rewriting the outer addresses.
        routed: bool,
    },
}

/// The datapath port of tunnels.
const TUNNEL: u32 = 77;

fn push(csum: bool, options: Vec<u8>) -> Action {
    let outer = Outer {
        eth_src: [2, 0, 0, 0, 0, 1],
        eth_dst: [2, 0, 0, 0, 0, 2],
        src: Ipv4Addr::new(10, 9, 0, 1).into(),
        dst: Ipv4Addr::new(10, 9, 0, 2).into(),
        tos: 0,
        ttl: 64,
        df: true,
        label: 0,
        csum,
        source_ports: SOURCE_PORTS,
        encap: Encap::Geneve {
            port: 6081,
            vni: 5,
            oam: false,
            critical: false,
            options,
        },
        tunnel_port: TUNNEL,
        out_port: 1,
        mtu: 0,
        numbers: Numbers::default(),
    };
    Action::TunnelPush(Arc::new(outer.build().expect("headers of one family")))
}

/// Bit of [`heddle_flow::FlowKey::ct_state`].
const NEW: u32 = heddle_conntrack::state::NEW as u32;

/// The rewrites of a router.
fn route() -> [Action; 2] {
    let whole = |value| Masked {
        value,
        mask: [255; 6],
    };
    [
        Action::SetEth {
            src: whole([2, 0, 0, 0, 0, 7]),
            dst: whole([2, 0, 0, 0, 0, 8]),
        },
        Action::SetIpv4 {
            src: Masked::default(),
            dst: Masked::default(),
            tos: Masked::default(),
            ttl: Masked { value: 63, mask: 255 },
        },
    ]
}

struct Pipeline {
    generations: Generations,
    rules: Rules,
    /// Number of recirculations before these rules apply.
    recirculated: u32,
    actions: Vec<Action>,
}

impl Translate for Pipeline {
    fn translate(&self, request: &Request<'_>, out: &mut Translation) {
        let m = &mut out.mask.0;
        (m.in_port, m.dl_type, m.nw_frag) = (u32::MAX, u16::MAX, 3);
        if let Rules::Tunnel { csum, pop, routed } = self.rules {
            if request.key.in_port == TUNNEL {
                (m.tun_id, m.tun_src) = (u64::MAX, u32::MAX);
                out.actions.extend_from_slice(&self.actions);
                return;
            }
            if routed {
                out.actions.extend(route());
                out.actions.push(push(csum, vec![1, 2, 0, 1, 0, 2, 0, 3]));
                let whole = |value| Masked {
                    value,
                    mask: u32::MAX,
                };
                out.actions.push(Action::SetIpv4 {
                    src: whole(0x0a09_0002),
                    dst: whole(0x0a09_0001),
                    tos: Masked::default(),
                    ttl: Masked::default(),
                });
            } else {
                out.actions.push(push(csum, Vec::new()));
            }
            if pop {
                out.actions.push(Action::TunnelPop(Arc::new(TunnelPop {
                    kind: TunnelKind::Geneve,
                    port: TUNNEL,
                    options: OptionTable::default(),
                })));
            } else {
                out.actions.extend_from_slice(&self.actions);
            }
            return;
        }
        if let Rules::Routed { tracked } = self.rules {
            let asks = request.key.nw_dst == u32::from_be_bytes([10, 1, 0, 1]);
            if request.key.recirc_id == 0 {
                (m.dl_src, m.dl_dst) = ([255; 6], [255; 6]);
                (m.nw_src, m.nw_proto, m.nw_ttl) = (0xffc0_0000, 0xff, 0xff);
                // The mask covers only the clients' common prefix.
                m.nw_dst = if asks { u32::MAX } else { 0xff00_0000 };
            } else {
                m.ct_state = NEW | u32::from(heddle_conntrack::state::EST);
            }
            let ct = |commit| {
                Action::Ct(Arc::new(CtAction {
                    zone: 1,
                    commit,
                    ..CtAction::default()
                }))
            };
            // Requests are tracked behind the router, replies before it.
            if asks == (request.key.recirc_id == 0) || !tracked {
                out.actions.extend((!asks).then_some(Action::CtClear));
                out.actions.extend(route());
            }
            if tracked && request.key.recirc_id == 0 {
                return out
                    .actions
                    .extend([ct(false), Action::Recirc(1 + u32::from(asks))]);
            }
            if request.key.ct_state & NEW != 0 {
                out.actions.push(ct(true));
            }
            out.actions.extend_from_slice(&self.actions);
            return;
        }
        if let Rules::Tracked { nat } = self.rules {
            let nat = |new: bool| {
                let (low, high) = match nat? {
                    NatEnd::Src => ([10, 255, 0, 1], [10, 255, 0, 250]),
                    NatEnd::Dst => (memory::SERVER, memory::SERVER),
                };
                let range = NatRange {
                    end: nat?,
                    addresses: Some((low.into(), high.into())),
                    ports: None,
                    how: NatHow::Any,
                    persistent: false,
                };
                Some(CtNat {
                    new: new.then_some(range),
                })
            };
            let ct = |commit: bool| {
                Action::Ct(Arc::new(CtAction {
                    commit,
                    nat: nat(commit),
                    ..CtAction::default()
                }))
            };
            if request.key.recirc_id == 0 {
                out.actions.extend([ct(false), Action::Recirc(1)]);
                return;
            }
            m.ct_state = NEW | u32::from(heddle_conntrack::state::EST);
            if request.key.ct_state & NEW != 0 {
                out.actions.push(ct(true));
            }
            out.actions.extend_from_slice(&self.actions);
            return;
        }
        if request.key.recirc_id < self.recirculated {
            out.actions.push(Action::Recirc(request.key.recirc_id + 1));
            return;
        }
        match self.rules {
            Rules::Any | Rules::Tracked { .. } | Rules::Routed { .. } | Rules::Tunnel { .. } => {}
            Rules::Exact => {
                (m.nw_src, m.nw_dst, m.nw_proto) = (u32::MAX, u32::MAX, 0xff);
                (m.tp_src, m.tp_dst) = (0xffff, 0xffff);
            }
            Rules::Masks => {
                let kind = request.key.tp_dst;
                (m.tp_dst, m.nw_dst) = (0xffff, 0xffff_0000 | u32::from(kind.wrapping_mul(0x9e37)));
            }
        }
        out.actions.clone_from(&self.actions);
    }
    fn generations(&self) -> &Generations {
        &self.generations
    }
}

fn main() {
    let length = std::env::args()
        .nth(1)
        .and_then(|s| Length::parse(&s))
        .unwrap_or(Length::Seconds(1.0));
    let only = std::env::args().nth(2).unwrap_or_default();
    let out = || vec![Action::Output(PortNo(1))];
    let ttl = || {
        vec![
            Action::SetIpv4 {
                src: Masked::default(),
                dst: Masked::default(),
                tos: Masked::default(),
                ttl: Masked { value: 63, mask: 255 },
            },
            Action::Output(PortNo(1)),
        ]
    };
    // A bond with this number of members.
    let balanced = |members: u8| {
        let table = LbOutput::new(1);
        (0..=u8::MAX).for_each(|bucket| table.set_port(bucket, Some(u32::from(1 + bucket % members))));
        vec![Action::LbOutput(table)]
    };
    println!("counter: {:.2} GHz", heddle_sys::Tsc::hz() as f64 / 1e9);
    let cases = [
        ("1 flow", 1, 1, Rules::Exact, 1, out()),
        ("1 flow, dec_ttl", 1, 1, Rules::Exact, 1, ttl()),
        ("8 flows, runs of 4", 8, 4, Rules::Exact, 1, out()),
        ("1k flows", 1000, 1, Rules::Exact, 1, out()),
        ("10k flows", 10_000, 1, Rules::Exact, 1, out()),
        ("10k flows, one wildcarded entry", 10_000, 1, Rules::Any, 1, out()),
        (
            "10k flows, balance-tcp, one member",
            10_000,
            1,
            Rules::Any,
            1,
            balanced(1),
        ),
        ("10k flows, balance-tcp", 10_000, 1, Rules::Any, 1, balanced(2)),
        ("100k flows", 100_000, 1, Rules::Exact, 1, out()),
        ("1M flows", 1_000_000, 1, Rules::Exact, 1, out()),
        ("16M flows, 16 masks", 16_000_000, 1, Rules::Masks, 16, out()),
        ("16M flows, 128 masks", 16_000_000, 1, Rules::Masks, 128, out()),
    ];
    let plain = cases.map(|(name, flows, run, rules, masks, actions)| {
        (name.to_owned(), flows, run, rules, masks, actions, 0)
    });
    // The same behind recirculations.
    let mut all = plain.to_vec();
    for (times, text) in [(1, "recirculated"), (3, "recirculated 3 times")] {
        let behind = plain.iter().filter(|(_, flows, ..)| *flows <= 100_000).cloned();
        all.extend(behind.map(|c| (format!("{}, {text}", c.0), c.1, c.2, c.3, c.4, c.5, times)));
        let masks = (
            format!("10k flows, 16 masks, {text}"),
            10_000,
            1,
            Rules::Masks,
            16,
            out(),
            times,
        );
        all.push(masks);
    }
    let mut all: Vec<_> = all.into_iter().map(|c| (c, None)).collect();
    // Connections, without a tracker and with one.
    let (any, tracked) = (Rules::Any, Rules::Tracked { nat: None });
    let of = |tcp, csum| Connections {
        tcp,
        csum,
        dnat: false,
    };
    let (udp, tcp) = (of(false, Csum::Valid), of(true, Csum::Valid));
    for (name, n, rules, connections) in [
        ("1 connection", 1, any, udp),
        ("1 connection, ct", 1, tracked, udp),
        ("1k connections", 1000, any, udp),
        ("1k connections, ct", 1000, tracked, udp),
        (
            "1k connections, ct, unknown checksums",
            1000,
            tracked,
            of(false, Csum::Unknown),
        ),
        ("1k connections, ct, TCP", 1000, tracked, tcp),
        (
            "1k connections, routed",
            1000,
            Rules::Routed { tracked: false },
            udp,
        ),
        (
            "1k connections, routed, ct",
            1000,
            Rules::Routed { tracked: true },
            udp,
        ),
        (
            "1k connections, ct, DNAT",
            1000,
            Rules::Tracked {
                nat: Some(NatEnd::Dst),
            },
            Connections { dnat: true, ..udp },
        ),
        ("100k connections", 100_000, any, udp),
        ("100k connections, ct", 100_000, tracked, udp),
        ("100k connections, ct, TCP", 100_000, tracked, tcp),
        ("new connections", 16_000_000, tracked, udp),
        (
            "new connections, SNAT",
            16_000_000,
            Rules::Tracked {
                nat: Some(NatEnd::Src),
            },
            udp,
        ),
    ] {
        all.push(((name.to_owned(), n, 1, rules, 1, out(), 0), Some(connections)));
    }
    let udp = of(false, Csum::Unknown);
    for (name, csum, pop, routed) in [
        ("into a tunnel", false, false, false),
        ("into a tunnel, checksum", true, false, false),
        ("into a tunnel and out", false, true, false),
        ("into a tunnel and out, checksum", true, true, false),
        ("over a router and a node", true, true, true),
    ] {
        for flows in [1, 10_000] {
            let rules = Rules::Tunnel { csum, pop, routed };
            all.push((
                (format!("{flows} flows {name}"), flows, 1, rules, 1, out(), 0),
                Some(udp),
            ));
        }
    }
    let exact = all.iter().any(|(c, _)| c.0 == only);
    for ((name, flows, run_len, rules, masks, actions, recirculated), connections) in all {
        if name == only || !exact && name.contains(&only) {
            let name = name.as_str();
            let traffic = Traffic {
                flows,
                run: run_len,
                masks,
                once: false,
                connections,
            };
            let pipeline = Arc::new(Pipeline {
                generations: Generations::default(),
                rules,
                recirculated,
                actions,
            });
            let entries = u64::from(recirculated)
                + match rules {
                    Rules::Exact => u64::from(flows) * 99 / 100,
                    Rules::Any => 1,
                    Rules::Tracked { .. } => 2,
                    Rules::Routed { tracked } => 2 + 2 * u64::from(tracked),
                    Rules::Tunnel { pop, .. } => 1 + u64::from(pop),
                    Rules::Masks => masks.into(),
                };
            steady(name, pipeline, traffic, entries, length);
        }
    }
}
