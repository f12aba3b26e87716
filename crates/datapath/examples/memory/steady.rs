//! Packets of known flows: a worker's cost of each, by stage, and which cache had a hit.

use crate::memory::{Memory, Traffic};
use heddle_datapath::{Config, Datapath, PerfWanted};
use heddle_datapath_api::{PortNo, Translate};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Length of the measurement.
#[derive(Clone, Copy)]
pub(crate) enum Length {
    Seconds(f64),
    /// This number of packets, those of new flows included, for instruction counts.
    Packets(u64),
}

impl Length {
    /// `20000p` or seconds.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text.strip_suffix('p') {
            Some(packets) => packets.parse().ok().map(Self::Packets),
            None => text.parse().ok().map(Self::Seconds),
        }
    }
}

/// One worker forwards the traffic of port 1 to port 2; prints its costs. The measurement begins once there
/// are `entries`.
pub(crate) fn steady(
    name: &str,
    pipeline: Arc<dyn Translate>,
    traffic: Traffic,
    entries: u64,
    length: Length,
) {
    let cpu = heddle_sys::cpu::allowed()
        .ok()
        .and_then(|c| c.last().copied())
        .unwrap_or(0);
    let config = Config {
        cpus: Some(vec![cpu]),
        flow_limit: 2_000_000,
        ..Config::default()
    };
    let dp = Datapath::new(config, pipeline).expect("the system grants a thread");
    let on = Arc::new(AtomicBool::new(false));
    for (no, flows) in [(1, traffic.flows), (2, 0)] {
        let port = Memory {
            traffic: Traffic { flows, ..traffic },
            on: Arc::clone(&on),
        };
        dp.add_port(Arc::new(port), Some(PortNo(no)))
            .expect("a port of memory opens");
    }
    on.store(true, Relaxed);
    let started = Instant::now();
    let seconds = match length {
        Length::Seconds(s) => s,
        Length::Packets(n) => {
            while dp.totals().packets < n {
                std::thread::sleep(Duration::from_millis(1));
            }
            on.store(false, Relaxed);
            std::thread::sleep(Duration::from_millis(50));
            let all = dp.totals();
            println!("{name}: {} packets, {} missed", all.packets, all.misses);
            return;
        }
    };
    // Until nearly all flows are cached, a bounded time.
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let t = started.elapsed().as_secs_f64();
        if t > seconds * 10.0 || t > seconds / 4.0 && dp.totals().flows >= entries {
            break;
        }
    }
    let new = dp.totals().misses as f64 / started.elapsed().as_secs_f64();
    dp.pmd_stats_clear(None);
    let before = dp.totals();
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let after = dp.totals();
    let text = dp.pmd_perf_show(None, "", PerfWanted::default());
    let packets = after.packets - before.packets;
    let pct = |a: u64, b: u64| 100.0 * (a - b) as f64 / packets.max(1) as f64;
    println!(
        "{name}: {:.2} Mpps, {} flows cached, {new:.0} misses/s at first; L0 {:.1} %, L1 {:.1} %, L2 {:.1} %, miss {:.2} %",
        packets as f64 / seconds / 1e6,
        after.flows,
        pct(after.l0_hits, before.l0_hits),
        pct(after.l1_hits, before.l1_hits),
        pct(after.l2_hits, before.l2_hits),
        pct(after.misses, before.misses)
    );
    let stages: Vec<String> = text
        .lines()
        .filter_map(|l| l.trim_start().strip_prefix("- "))
        .filter_map(|l| l.split_once(':'))
        .filter(|(n, _)| ["rx", "parse", "lookup", "translate", "execute", "tx"].contains(n))
        .map(|(n, v)| format!("{n} {}", v.trim()))
        .collect();
    let total = text
        .split("Kpps, ")
        .nth(1)
        .and_then(|t| t.split(' ').next())
        .unwrap_or("?");
    println!("  {total} cycles/packet: {}", stages.join(", "));
}
