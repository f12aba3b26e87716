//! What a translation costs: packets that are each a flow of their own, through one bridge.
//!
//! `cargo run --release -p heddle-ofproto --example miss [SECONDS [CASE]]` prints nanoseconds per translation, what the datapath does with the answer
//! not included. With a number of packets and a case (`miss 20000p each`) it translates just those, for
//! `valgrind --tool=callgrind --toggle-collect='*translate_all*'`. `miss 20000p each whole` has a worker of a datapath take them in, from a port of
//! memory to another one: all that a new flow costs but its ring (`--toggle-collect='heddle_datapath::worker::burst::*burst'`).

#[path = "../../datapath/examples/memory/mod.rs"]
mod memory;

use heddle_datapath::{Config, Datapath, PortNo, Purpose, Request, Translate, Translation};
use heddle_flow::{FlowKey, Match};
use heddle_ofproto::Ofproto;
use heddle_ofproto::bridge::{BridgeConfig, BundleConfig, FailMode, PortConfig, PortTarget};
use heddle_openflow::message::{FlowMod, FlowModCommand};
use heddle_openflow::text::parse_instructions;
use heddle_openflow::{Port, Version};
use heddle_sync::Clock;
use memory::{Memory, Traffic};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A rule: table, priority, match, actions.
type Rule = (u8, u16, String, String);

fn rule(table: u8, priority: u16, matches: &str, actions: &str) -> Rule {
    (table, priority, matches.into(), actions.into())
}

/// Rules as `heddle bench rules` has them.
fn rules(case: &str) -> Vec<Rule> {
    match case {
        "tuple" => vec![rule(0, 1, "in_port=1,udp,tp_dst=5001", "output:2")],
        "normal" => vec![rule(0, 0, "", "NORMAL")],
        "each" => vec![rule(
            0,
            1,
            "in_port=1,udp",
            "move:NXM_OF_IP_SRC[]->NXM_NX_REG0[],move:NXM_OF_IP_DST[]->NXM_NX_REG1[],\
             move:NXM_OF_UDP_SRC[]->NXM_NX_REG2[0..15],move:NXM_OF_UDP_DST[]->NXM_NX_REG2[16..31],output:2",
        )],
        "acl" => ["nw_src=10.0.0.1", "nw_dst=20.0.0.1", "tp_src=12345", "tp_dst=443"]
            .iter()
            .zip((397..=400).rev())
            .map(|(field, priority)| rule(0, priority, &format!("in_port=1,udp,{field}"), "output:2"))
            .chain([rule(0, 1, "in_port=1", "output:2")])
            .collect(),
        "pipeline" => (0..30)
            .map(|table| {
                let next = table + 1;
                let go = match next {
                    30 => "output:2".into(),
                    _ => format!("load:{next}->NXM_NX_REG{}[0..7],resubmit(,{next})", table % 8),
                };
                let what = ["", ",dl_type=0x0800", ",ip,nw_src=0.0.0.0/1", ",udp,tp_dst=5001"];
                rule(
                    table,
                    100,
                    &format!("in_port=1{}", what[usize::from(table) % 4]),
                    &go,
                )
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn switch(case: &str) -> Arc<Ofproto> {
    let of = Ofproto::new(Arc::new(Clock::default()));
    let config = BridgeConfig {
        fail_mode: FailMode::Secure,
        ..BridgeConfig::default()
    };
    let bridge = of.add_bridge("br0", config);
    let name = |n: u32| format!("port{n}");
    let bundles = (1..=2).map(|n| BundleConfig {
        name: name(n),
        ..BundleConfig::default()
    });
    let ports = (1..=2).map(|n| PortConfig {
        no: Port(n),
        name: name(n),
        bundle: name(n),
        target: PortTarget::Datapath(PortNo(n)),
        mac: [2, 0, 0, 0, 0, 9],
        mtu: 1500,
        admin_up: true,
        link_up: true,
        speed_bps: 0,
    });
    bridge.set_ports(bundles.collect(), ports.collect());
    of.publish();
    for (table, priority, matches, actions) in rules(case) {
        let matches = Match::parse_text(&matches, None).expect("a match");
        let instructions = parse_instructions(&actions, None).expect("actions");
        let mut add = FlowMod::new(FlowModCommand::Add, matches, priority, instructions);
        add.table_id = table;
        bridge.flow_mod(Version::V13, &add).expect("a rule");
    }
    of
}

/// The key of packet number `n`: a UDP datagram from a port and an address of its own.
fn key(n: u32) -> FlowKey {
    let scrambled = n.wrapping_mul(0x9e37_79b1);
    let [_, _, high, low] = n.to_be_bytes();
    FlowKey {
        in_port: 1,
        dl_src: [2, 0, 0, 0, 0, 1],
        dl_dst: [2, 0, 0, 0, 0, 2],
        dl_type: 0x0800,
        nw_src: scrambled >> 1,
        nw_dst: scrambled,
        nw_proto: 17,
        nw_ttl: 64,
        tp_src: u16::from_be_bytes([high, low]),
        tp_dst: 5001,
        ..FlowKey::default()
    }
}

/// Translates packets `from..to`.
#[inline(never)]
fn translate_all(of: &Ofproto, from: u32, to: u32, answer: &mut Translation) {
    for n in from..to {
        let request = Request {
            key: &key(n),
            packet: None,
            now_ms: 1,
            purpose: Purpose::Miss,
        };
        answer.clear();
        of.pipeline().translate(&request, answer);
        black_box(&answer);
    }
}

/// Has a worker forward so many packets, each a flow of its own; prints what its stages took.
fn forward_all(of: &Ofproto, packets: u32) {
    let cpu = heddle_sys::cpu::allowed().ok().and_then(|c| c.last().copied());
    let config = Config {
        cpus: Some(vec![cpu.unwrap_or(0)]),
        flow_limit: 4_000_000,
        ..Config::default()
    };
    let dp = Datapath::new(config, of.pipeline().clone()).expect("the system grants a thread");
    let on = Arc::new(AtomicBool::new(false));
    for (no, flows) in [(1, packets), (2, 0)] {
        let on = on.clone();
        let traffic = Traffic {
            flows,
            run: 1,
            masks: 1,
            once: true,
        };
        dp.add_port(Arc::new(Memory { traffic, on }), Some(PortNo(no)))
            .expect("a port of memory opens");
    }
    let started = Instant::now();
    on.store(true, Relaxed);
    while dp.totals().packets < packets.into() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let rate = f64::from(packets) / started.elapsed().as_secs_f64();
    println!("{} entries, {rate:.0} a second", dp.totals().flows);
    println!(
        "{}",
        dp.pmd_perf_show(None, "", heddle_datapath::PerfWanted::default())
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let much = arguments.next().unwrap_or_default();
    let only = arguments.next().unwrap_or_default();
    let whole = arguments.next().is_some_and(|a| a == "whole");
    let packets = much.strip_suffix('p').and_then(|n| n.parse::<u32>().ok());
    let time = Duration::from_secs_f64(much.parse().unwrap_or(0.5));
    for case in ["tuple", "normal", "each", "acl", "pipeline"] {
        if !case.contains(&only) {
            continue;
        }
        let (of, mut answer) = (switch(case), Translation::default());
        if let Some(packets) = packets.filter(|_| whole) {
            forward_all(&of, packets);
            continue;
        }
        if let Some(packets) = packets {
            translate_all(&of, 0, packets, &mut answer);
            println!("{case}: {:?}", answer.actions);
            continue;
        }
        let (mut done, started) = (0, Instant::now());
        while started.elapsed() < time {
            translate_all(&of, done, done + 1000, &mut answer);
            done += 1000;
        }
        let ns = started.elapsed().as_secs_f64() * 1e9 / f64::from(done);
        println!("{case:10} {ns:7.0} ns, then {:?}", answer.actions);
    }
}
