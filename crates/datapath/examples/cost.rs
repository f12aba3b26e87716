//! What a packet costs, by stage: one worker, ports made of memory, 64-byte packets.
//!
//! `cargo run --release -p heddle-datapath --example cost [SECONDS [CASE]]`. The receive queue copies prepared frames into pool
//! buffers and the transmit queue drops them, so the numbers are the datapath's own plus one copy of 64 bytes.

mod memory;

use heddle_datapath::action::Masked;
use heddle_datapath::{Action, Config, Datapath, Generations, PortNo, Request, Translate, Translation};
use memory::{Memory, Traffic};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The rules that packets are for.
#[derive(Clone, Copy)]
enum Rules {
    /// Match on the whole 5-tuple.
    Exact,
    /// Match on the input port only.
    Any,
    /// Each kind of packet has a mask of its own, which does not look at what tells flows apart.
    Masks,
}

struct Pipeline {
    generations: Generations,
    rules: Rules,
    actions: Vec<Action>,
}

impl Translate for Pipeline {
    fn translate(&self, request: &Request<'_>, out: &mut Translation) {
        let m = &mut out.mask.0;
        (m.in_port, m.dl_type, m.nw_frag) = (u32::MAX, u16::MAX, 3);
        match self.rules {
            Rules::Any => {}
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

fn run(name: &str, traffic: Traffic, rules: Rules, actions: Vec<Action>, seconds: f64) {
    let pipeline = Arc::new(Pipeline {
        generations: Generations::default(),
        rules,
        actions,
    });
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
    let source = Memory {
        traffic,
        on: Arc::clone(&on),
    };
    dp.add_port(Arc::new(source), Some(PortNo(1)))
        .expect("a port of memory opens");
    on.store(true, Relaxed);
    // Until nearly all flows are cached, a bounded time.
    let started = std::time::Instant::now();
    let wanted = match rules {
        Rules::Exact => u64::from(traffic.flows) * 99 / 100,
        Rules::Any => 1,
        Rules::Masks => traffic.masks.into(),
    };
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let t = started.elapsed().as_secs_f64();
        if t > seconds * 10.0 || t > seconds / 4.0 && dp.totals().flows >= wanted {
            break;
        }
    }
    let warm = dp.totals();
    let new = warm.misses as f64 / started.elapsed().as_secs_f64();
    dp.pmd_stats_clear(None);
    let before = dp.totals();
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let after = dp.totals();
    let text = dp.pmd_perf_show(None, "", heddle_datapath::PerfWanted::default());
    let packets = after.packets - before.packets;
    let pct = |a: u64, b: u64| 100.0 * (a - b) as f64 / packets.max(1) as f64;
    println!(
        "{name}: {:.2} Mpps, {} flows cached, {:.0} misses/s at first; L0 {:.1} %, L1 {:.1} %, L2 {:.1} %, miss {:.2} %",
        packets as f64 / seconds / 1e6,
        after.flows,
        new,
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

fn main() {
    let seconds = std::env::args()
        .nth(1)
        .and_then(|s| s.parse().ok())
        .unwrap_or(1.0);
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
    println!("counter: {:.2} GHz", heddle_sys::Tsc::hz() as f64 / 1e9);
    let cases = [
        ("1 flow", 1, 1, Rules::Exact, 1, out()),
        ("1 flow, dec_ttl", 1, 1, Rules::Exact, 1, ttl()),
        ("8 flows, runs of 4", 8, 4, Rules::Exact, 1, out()),
        ("1k flows", 1000, 1, Rules::Exact, 1, out()),
        ("10k flows", 10_000, 1, Rules::Exact, 1, out()),
        ("10k flows, one wildcarded entry", 10_000, 1, Rules::Any, 1, out()),
        ("100k flows", 100_000, 1, Rules::Exact, 1, out()),
        ("1M flows", 1_000_000, 1, Rules::Exact, 1, out()),
        ("16M flows, 16 masks", 16_000_000, 1, Rules::Masks, 16, out()),
        ("16M flows, 128 masks", 16_000_000, 1, Rules::Masks, 128, out()),
    ];
    for (name, flows, run_len, rules, masks, actions) in cases {
        if name.contains(&only) {
            let traffic = Traffic {
                flows,
                run: run_len,
                masks,
                once: false,
            };
            run(name, traffic, rules, actions, seconds);
        }
    }
}
