//! Measures the rate of known flows while other rules change: 50,000 flows with a rule each, one worker,
//! ports of memory.
//!
//! `cargo run --release -p heddle-ofproto --example changes [SECONDS [CHANGES [CASE]]]`: `CHANGES` is the
//! number of changes a second. Half of them add rules, half remove rules. The changed rules match another
//! destination port than the flows have (`beside`), or another register value (`register`). Or they are in a
//! table that the flows do not pass (`elsewhere`). Packets are looked up once, or are recirculated first
//! (`recirculated`).

mod bridge;
#[path = "../../datapath/examples/memory/mod.rs"]
mod memory;

use heddle_datapath::{Config, Datapath};
use heddle_datapath_api::PortNo;
use heddle_ofproto::Ofproto;
use memory::{Memory, Traffic};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

const FLOWS: u32 = 50_000;
/// Rules that change together.
const BATCH: u32 = 10;

/// Changes rules at this rate for some time; returns how many did.
fn change(of: &Ofproto, kind: &str, table: u8, rate: u32, time: Duration) -> u32 {
    let began = Instant::now();
    let mut done = 0;
    while began.elapsed() < time {
        if f64::from(done) < began.elapsed().as_secs_f64() * f64::from(rate) {
            for n in done..done + BATCH {
                // A rule goes a hundred changes after it came.
                let (n, delete) = (n / 2, n % 2 == 1);
                if delete && n < 50 {
                    continue;
                }
                let n = if delete { n - 50 } else { n };
                let (port, address) = (
                    6000 + n % 50_000,
                    std::net::Ipv4Addr::from(0x0a00_0000 + n % FLOWS),
                );
                let (table, matches) = match kind {
                    "register" => (table, format!("reg0={}", 1 + n)),
                    "elsewhere" => (table + 1, format!("udp,nw_src={address}")),
                    _ => (
                        table,
                        format!("in_port=1,udp,nw_src={address},nw_dst=10.1.0.1,tp_src=7,tp_dst={port}"),
                    ),
                };
                bridge::change(of, &(table, 1, matches, "output:2".into()), delete);
            }
            done += BATCH;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    done
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |or: f64| arguments.next().and_then(|s| s.parse().ok()).unwrap_or(or);
    let time = Duration::from_secs_f64(number(2.0));
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a rate
    let rate = number(1000.0) as u32;
    let only = arguments.next().unwrap_or_default();
    for (way, rules, table) in [("plain", "exact", 0), ("recirculated", "again", 1)] {
        let of = bridge::switch(rules, FLOWS);
        let cpu = heddle_sys::cpu::allowed().ok().and_then(|c| c.last().copied());
        let config = Config {
            cpus: Some(vec![cpu.unwrap_or(0)]),
            flow_limit: 2_000_000,
            ..Config::default()
        };
        let dp = Datapath::new(config, of.pipeline().clone()).expect("the system grants a thread");
        let on = Arc::new(AtomicBool::new(true));
        for (no, flows) in [(1, FLOWS), (2, 0)] {
            let (on, traffic) = (
                on.clone(),
                Traffic {
                    flows,
                    run: 1,
                    masks: 1,
                    once: false,
                    connections: None,
                },
            );
            dp.add_port(Arc::new(Memory { traffic, on }), Some(PortNo(no)))
                .expect("a port of memory opens");
        }
        let began = Instant::now();
        while dp.totals().flows < u64::from(FLOWS) * 99 / 100 && began.elapsed() < 5 * time {
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut still = 0.0;
        for kind in ["none", "beside", "register", "elsewhere"] {
            let name = format!("{way} {kind}");
            if kind != "none" && !name.contains(&only) {
                continue;
            }
            let before = dp.totals();
            dp.pmd_stats_clear(None);
            let began = Instant::now();
            let n = change(&of, kind, table, if kind == "none" { 0 } else { rate }, time);
            let (after, seconds) = (dp.totals(), began.elapsed().as_secs_f64());
            let text = dp.pmd_perf_show(None, "", heddle_datapath::PerfWanted::default());
            let cycles = text
                .split("Kpps, ")
                .nth(1)
                .and_then(|t| t.split(' ').next())
                .unwrap_or("?");
            let mpps = (after.packets - before.packets) as f64 / seconds / 1e6;
            if kind == "none" {
                still = mpps;
            }
            println!(
                "{name:24} {mpps:.2} Mpps, {:.0} %, {cycles} cycles/packet, {:.0} changes/s",
                100.0 * mpps / still,
                f64::from(n) / seconds,
            );
        }
    }
}
