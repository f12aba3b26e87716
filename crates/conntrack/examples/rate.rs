//! Cost of an established packet in the tracker, and rate of new connections: one thread, bursts of 32. Times
//! are the thread's own processor time, so that other load does not count. They include the time to make and
//! hash the packets.
//!
//! `cargo run --release -p heddle-conntrack --example rate`

use heddle_conntrack::{
    Config, Conntrack, CtAction, CtNat, CtPacket, CtState, Endpoint, NatEnd, NatHow, NatRange, ReadGuard,
    Segment, Subject, Tuple, Verdict,
};

const BURST: u32 = 32;
/// Number of parts in which a tracker is filled.
const PARTS: u32 = 20;
/// Number of sweeps that are measured.
const ROUNDS: u32 = 20;

/// Nanoseconds that this thread has run.
fn ran_ns() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux says");
    let first = text.split(' ').next().and_then(|n| n.parse().ok());
    first.expect("a number")
}

/// Memory that this process has, bytes.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("Linux says");
    let line = text.lines().find_map(|l| l.strip_prefix("Rss:"));
    let kib: Option<f64> = line.and_then(|l| l.trim().trim_end_matches(" kB").parse().ok());
    kib.expect("a number") * 1024.0
}

fn subject(n: u32, proto: u8, seq: u32) -> Subject {
    let tuple = Tuple {
        src: Endpoint {
            addr: u128::from(0x0a00_0000 + n / 50_000),
            l4: 1024 + n % 50_000,
        },
        dst: Endpoint {
            addr: 0x0b00_0001,
            l4: 80,
        },
        proto,
        ipv6: false,
    };
    let tcp = (proto == 6).then_some(Segment {
        flags: 0x10,
        seq,
        ack: 1,
        window: 0xffff,
        len: 0,
        scale: None,
    });
    Subject {
        tuple,
        related: false,
        tcp,
    }
}

/// Tracks `packets` packets of connections in a scattered order, each `n` of them, from number `at` on; ns a
/// packet.
fn run(
    ct: &Conntrack,
    (mut at, n): (u32, u32),
    packets: u32,
    action: &CtAction,
    scatter: bool,
    proto: u8,
    reply: bool,
) -> f64 {
    let start = ran_ns();
    for _ in 0..packets / BURST {
        let reading = ReadGuard::begin();
        let burst: [_; BURST as usize] = std::array::from_fn(|_| {
            at = at.wrapping_add(if scatter { 0x9e37_79b1 } else { 1 });
            let mut s = subject(at % n, proto, 1);
            if reply {
                s.tuple = s.tuple.reversed();
            }
            (s, ct.hash(&s.tuple, action.zone))
        });
        burst.iter().for_each(|(_, h)| ct.prefetch(*h));
        let guesses = burst.map(|(s, h)| (s, h, ct.guess(h)));
        for (subject, hash, guess) in guesses {
            let (mut known, mut verdict) = (CtState::default(), Verdict::default());
            let packet = CtPacket {
                now_ms: 1000,
                subject: &subject,
                hash,
                action,
                known: &mut known,
                verdict: &mut verdict,
            };
            ct.track(&reading, guess, packet);
            std::hint::black_box((known, verdict));
        }
    }
    (ran_ns() - start) / f64::from(packets)
}

fn main() {
    let look = CtAction::default();
    let commit = CtAction {
        commit: true,
        ..CtAction::default()
    };
    let addr = |a: [u8; 4]| a.into();
    let snat = CtAction {
        nat: Some(CtNat {
            new: Some(NatRange {
                end: NatEnd::Src,
                addresses: Some((addr([192, 0, 2, 1]), addr([192, 0, 2, 100]))),
                ports: None,
                how: NatHow::Any,
                persistent: false,
            }),
        }),
        ..commit.clone()
    };
    for (proto, name) in [(17, "UDP"), (6, "TCP")] {
        for n in [1u32, 1000, 100_000, 1_000_000] {
            let ct = Conntrack::new(Config::default()).expect("address space");
            let made = n.next_multiple_of(BURST);
            run(&ct, (0, n), made, &commit, false, proto, false);
            run(&ct, (0, n), made, &look, false, proto, true);
            let ns = run(&ct, (0, n), 4_000_000, &look, true, proto, false);
            println!(
                "{name}: {n} established connections ({} there): {ns:.1} ns a packet",
                ct.n_conns()
            );
        }
    }
    let many = 10_000_000;
    for (n, action, name) in [
        (1_000_000, &commit, "without NAT"),
        (1_000_000, &snat, "with SNAT"),
        (many, &commit, "without NAT"),
    ] {
        let config = Config {
            max_conns: many,
            ..Config::default()
        };
        let ct = Conntrack::new(config).expect("address space");
        let before = resident();
        let mut ns = 0.0;
        // In the switch, the connection expiry thread calls `prepare` beside the workers.
        for part in 0..PARTS {
            let (from, some) = (part * (n / PARTS), (n / PARTS).next_multiple_of(BURST));
            ns += run(&ct, (from, n), some, action, false, 17, false) / f64::from(PARTS);
            ct.prepare();
        }
        let there = ct.n_conns();
        println!(
            "new connections {name}: {:.0} thousand a second ({there} made, {:.0} bytes of memory each)",
            1e6 / ns,
            (resident() - before) / f64::from(there)
        );
        // The clock of a thread moves by ticks: many rounds.
        let start = ran_ns();
        (0..ROUNDS).for_each(|_| while !ct.sweep(2000, 4096) {});
        let ms = (ran_ns() - start) / 1e6 / f64::from(ROUNDS);
        println!("  a round of the sweeper over them, none of which is over: {ms:.2} ms");
        let start = ran_ns();
        while !ct.sweep(10_000_000, 4096) {}
        let ms = (ran_ns() - start) / 1e6;
        println!("  {} swept in {ms:.0} ms", there - ct.n_conns());
        let start = ran_ns();
        (0..ROUNDS).for_each(|_| while !ct.sweep(10_000_000, 4096) {});
        let ms = (ran_ns() - start) / 1e6 / f64::from(ROUNDS);
        println!("  a round over the places where they were: {ms:.2} ms");
    }
}
