//! Processor time of the mirror's thread, with N connections in the tracker and the kernel's table.
//!
//! `unshare -n target/release/examples/cost [N]` (root; default 10000), after
//! `cargo build --release -p heddle-kernel-conntrack --example mirror_cost`

use heddle_conntrack::offloaded::{ConnId, Offloadable};
use heddle_conntrack::{Config, Conntrack, Endpoint, Tuple};
use heddle_kernel_conntrack::{Choice, KernelTable, Mirror};
use std::sync::Arc;
use std::time::Duration;

const UDP: u8 = 17;
const NOW_MS: u64 = 1000;
/// Later than the first refresh of any entry.
const REFRESH_MS: u64 = 300_000;

fn conn(number: u32) -> Offloadable {
    let end = |addr: u32, port: u32| Endpoint {
        addr: addr.into(),
        l4: port,
    };
    let orig = Tuple {
        src: end(0x0a00_0000 + number, 4000),
        dst: end(0x0a60_0001, 53),
        proto: UDP,
        ipv6: false,
    };
    let mut reply = orig.reversed();
    reply.src = end(0x0a00_ffff, 5353);
    Offloadable {
        id: ConnId {
            number: 0,
            generation: 0,
        },
        zone: 7,
        replied: true,
        orig,
        reply,
        snat: false,
        dnat: true,
        mark: 0,
        label: 0,
    }
}

/// Processor time of this thread, which has the kernel's work for its requests.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn timed(what: &str, n: u32, work: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<()> {
    let began = thread_time();
    work()?;
    let took = thread_time() - began;
    println!(
        "{what}: {took:.1?}, {:.0} ns each",
        took.as_nanos() as f64 / f64::from(n)
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let n = match std::env::args().nth(1) {
        Some(text) => text.parse()?,
        None => 10_000,
    };
    let tracker = Arc::new(Conntrack::new(Config::default())?);
    for number in 0..n {
        assert!(tracker.adopt(NOW_MS, &conn(number)), "the tracker is full");
    }
    let choice = |limit| Choice {
        limit,
        ..Choice::default()
    };
    let mut mirror = Mirror::new(KernelTable::new()?, tracker.clone(), choice(0))?;
    timed("a round that mirrors nothing", n, || mirror.round(NOW_MS, 0))?;
    mirror.choose(choice(n as usize));
    timed("all are written", n, || mirror.round(NOW_MS, 0))?;
    assert_eq!(
        mirror.counts().entries,
        n as usize,
        "net.netfilter.nf_conntrack_max is too small"
    );
    timed("a round without changes", n, || mirror.round(NOW_MS, 1))?;
    timed("all are refreshed", n, || mirror.round(NOW_MS, REFRESH_MS))?;
    timed("the tables are compared", n, || mirror.compare(NOW_MS))?;
    timed("all are removed", n, || mirror.end())?;
    Ok(())
}
