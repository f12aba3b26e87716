//! Measures the cost of a translation: each packet is a flow of its own, through one bridge.
//!
//! `cargo run --release -p heddle-ofproto --example miss [SECONDS [CASE]]` prints nanoseconds per
//! translation, without the datapath's work on the result. With a number of packets and a case (`miss 20000p
//! each`) it translates just those, for `valgrind --tool=callgrind --toggle-collect='*translate_all*'`. `miss
//! 20000p each whole` has a worker forward them from one port of memory to another. That is the whole cost of
//! a new flow without its rings (`--toggle-collect='heddle_datapath::worker::burst::*burst'`).

mod bridge;
#[path = "../../datapath/examples/memory/mod.rs"]
mod memory;

use bridge::switch;
use heddle_datapath::{Config, Datapath};
use heddle_datapath_api::{PortNo, Purpose, Request, Translate, Translation};
use heddle_flow::FlowKey;
use heddle_ofproto::Ofproto;
use memory::{Memory, Traffic};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

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

/// Has a worker forward this number of packets, each a flow of its own. Prints the rate and the cost of its
/// stages.
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
            connections: None,
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
        let (of, mut answer) = (switch(case, 0), Translation::default());
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
