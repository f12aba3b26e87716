//! Runs the loop of one kind in rounds, for comparing builds.
//!
//! Arguments: `KIND [size=BYTES] [packed] [unmerged] [tso] [both] [ms=MS] [rounds=N]`. Each round prints one
//! line. It begins with the round trip of a cache line in ns, before and after. Busy cycles per packet,
//! packets received per microsecond, and the share of full rings follow.

use core::time::Duration;
use heddle_loadgen::floor::{Floor, Kind};
use heddle_loadgen::frame::Shape;
use heddle_loadgen::line::round_trip_ns;
use heddle_loadgen::load::{Load, Setup, Timing};
use heddle_sys::cpu;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |w: &str| args.iter().any(|a| a == w);
    let number = |name: &str, or: u64| {
        let found = args.iter().find_map(|a| a.strip_prefix(name)?.strip_prefix('='));
        found.and_then(|v| v.parse().ok()).unwrap_or(or)
    };
    let kind = match args.first().map(String::as_str) {
        Some("one-copy") => Kind::OneCopy,
        Some("two-copies") => Kind::TwoCopies,
        _ => Kind::Rings,
    };
    let size = usize::try_from(number("size", 64))?;
    let setup = Setup {
        packed: has("packed"),
        mergeable: !has("unmerged"),
        ..Setup::default()
    };
    let load = Load {
        shape: if has("tso") {
            Shape::Tso { size, mss: 1448 }
        } else {
            Shape::Udp(size)
        },
        both_ways: has("both"),
        ..Load::default()
    };
    let timing = Timing {
        warm_up: Duration::from_millis(60),
        measure: Duration::from_millis(number("ms", 300)),
        drain: Duration::from_millis(50),
        ..Timing::default()
    };
    for _ in 0..number("rounds", 1) {
        let before = round_trip_ns(0, 1).unwrap_or(0.0);
        cpu::pin(&[0])?;
        let (floor, mut engine) = Floor::start(kind, 2, 1, &setup, &[load])?;
        let mut work = floor.work();
        let mut done = work;
        let outcome = engine.measure_with_progress(&timing, &mut |step| match step {
            heddle_loadgen::run::Step::Measuring => work = floor.work(),
            heddle_loadgen::run::Step::Measured => done = floor.work(),
        })?;
        floor.stop()?;
        let after = round_trip_ns(0, 1).unwrap_or(0.0);
        println!(
            "{before:.0} {after:.0} {:.1} {:.3} {:.3}",
            done.since(work).cycles(),
            outcome.received_pps / 1e6,
            outcome.ring_full
        );
    }
    Ok(())
}
