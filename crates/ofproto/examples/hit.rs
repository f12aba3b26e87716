//! Measures the cost of a packet of a known flow, by stage, with real rules: one worker, ports of memory,
//! 64-byte packets in random order.
//!
//! `cargo run --release -p heddle-ofproto --example hit [SECONDS [CASE]]`: the cases of `bench/switch`
//! without rings and guests, so the cases differ in nothing but the work of the switch. `hit 1000000p CASE`
//! forwards about 1,000,000 packets, for `valgrind --tool=callgrind
//! --toggle-collect='heddle_datapath::worker::burst::*burst'`. The same without rules: `cost` of
//! `heddle-datapath`.

mod bridge;
#[path = "../../datapath/examples/memory/mod.rs"]
mod memory;
#[path = "../../datapath/examples/memory/steady.rs"]
mod steady;

use memory::Traffic;
use steady::{Length, steady};

/// Rules, how many, flows, kinds of packets, and entries that there will be.
const CASES: [(&str, u32, u32, u16, u64); 14] = [
    ("tuple", 1, 1, 1, 1),
    ("tuple", 1, 1_000, 1, 1),
    ("tuple", 1, 100_000, 1, 1),
    ("normal", 1, 1, 1, 1),
    ("normal", 1, 100_000, 1, 1),
    ("pipeline", 30, 1, 1, 1),
    ("pipeline", 30, 1_000, 1, 1),
    ("masks", 16, 1_000, 16, 16),
    ("masks", 16, 100_000, 16, 16),
    ("masks", 16, 1_000_000, 16, 16),
    ("exact", 1_000, 1_000, 1, 1_000),
    ("exact", 10_000, 10_000, 1, 10_000),
    ("exact", 100_000, 100_000, 1, 100_000),
    ("each", 1, 100_000, 1, 100_000),
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let length = arguments
        .next()
        .and_then(|s| Length::parse(&s))
        .unwrap_or(Length::Seconds(1.0));
    let only = arguments.next().unwrap_or_default();
    for (rules, count, flows, masks, entries) in CASES {
        let name = format!("{rules}{count}-{flows}flows");
        if !name.contains(&only) {
            continue;
        }
        let of = bridge::switch(rules, count);
        let traffic = Traffic {
            flows,
            run: 1,
            masks,
            once: false,
            connections: None,
        };
        steady(&name, of.pipeline().clone(), traffic, entries * 99 / 100, length);
    }
}
