//! Accuracy and cost of the shaper on an internal port: rates, and cycles per packet with and without it.
//!
//! `unshare -n target/release/examples/shaper` (as root, with `/dev/net/tun`). The first line is the port
//! without a row. Each other line is one hierarchy whose queues have packets at all times. It has the wanted
//! and the measured rate, the highest deviation of a queue from its share, and the cycles per packet.

use heddle_packet::{BURST, Packet, Pool};
use heddle_port::{Port, QosConfig, TapPort, TxQueue};
use heddle_sys::Tsc;
use std::collections::BTreeMap;
use std::error::Error;

const LEN: usize = 1500;

/// One hierarchy: the port's rate in bits per second, and the number of queues with equal shares.
fn row(bps: u64, queues: u32) -> QosConfig {
    let details = |pairs: &[(&str, u64)]| -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs.map(|(k, n)| ((*k).to_owned(), n.to_string())).collect()
    };
    let min = bps / u64::from(queues) / 2;
    QosConfig {
        kind: "linux-htb".to_owned(),
        details: details(&[("max-rate", bps)]),
        queues: (0..queues).map(|q| (q, details(&[("min-rate", min)]))).collect(),
    }
}

/// The outcome of a run.
struct Run {
    packets: u64,
    cycles: u64,
    seconds: f64,
}

/// Offers bursts for `ms`, each to the next queue, whenever queues have room.
fn run(tx: &mut dyn TxQueue, pool: &mut Pool, queues: u32, ms: u64) -> Run {
    let hz = Tsc::hz() as f64;
    let bursts: Vec<Vec<Packet>> = (0..queues)
        .map(|queue| {
            let mut packet = Packet::from_bytes(&[0; LEN]);
            packet.set_queue(queue);
            let copy = |_| {
                let mut copy = Packet::from_bytes(&packet.to_vec());
                copy.set_queue(queue);
                copy
            };
            (0..BURST).map(copy).collect()
        })
        .collect();
    let begin = Tsc::now();
    let end = begin + Tsc::from_us(ms * 1000);
    let (mut packets, mut cycles, mut next, mut i) = (0, 0, None, 0);
    loop {
        let t0 = Tsc::now();
        if t0 >= end {
            break;
        }
        let refs: Vec<&Packet> = bursts[i % bursts.len()].iter().collect();
        i += 1;
        let t0 = Tsc::now();
        let counts = tx.tx(pool, &refs);
        packets += counts.sent;
        if counts.waits {
            next = Some(0);
        }
        if next.is_some_and(|at| Tsc::now() >= at) {
            let released = tx.release(pool);
            packets += released.counts.sent;
            next = released.next;
        }
        cycles += Tsc::now() - t0;
    }
    Run {
        packets,
        cycles,
        seconds: (Tsc::now() - begin) as f64 / hz,
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let port = TapPort::open("shaped0")?;
    port.set_admin(true)?;
    let (mut tx, mut pool) = (port.open_tx(0, 1)?, Pool::new(256));
    let plain = run(&mut *tx, &mut pool, 1, 500);
    println!(
        "without a row: {:.0} cycles per packet",
        plain.cycles as f64 / plain.packets.max(1) as f64
    );
    for queues in [1, 100, 1000] {
        for bps in [
            1_000_000,
            10_000_000,
            100_000_000,
            1_000_000_000,
            3_000_000_000,
            10_000_000_000_u64,
        ] {
            port.set_qos(None)?;
            port.set_qos(Some(&row(bps, queues)))?;
            // The first packets are bursts.
            let _ = run(&mut *tx, &mut pool, queues, 500);
            let before = port.queue_counts();
            let done = run(&mut *tx, &mut pool, queues, 2000);
            let sent: Vec<u64> = port
                .queue_counts()
                .iter()
                .zip(&before)
                .map(|(a, b)| a.bytes - b.bytes)
                .collect();
            let all = sent.iter().sum::<u64>() as f64 * 8.0 / done.seconds;
            let share = all / f64::from(queues);
            let off = |n: &u64| (*n as f64 * 8.0 / done.seconds / share - 1.0).abs();
            let most = sent.iter().map(off).fold(0.0, f64::max);
            let per_packet = done.cycles as f64 / done.packets.max(1) as f64;
            println!(
                "{queues:5} queues, {:6} Mbit/s: {:9.3} ({:+.2} %), queues within {:.1} %, {per_packet:.0} cycles per packet sent",
                bps / 1_000_000,
                all / 1e6,
                (all / bps as f64 - 1.0) * 100.0,
                most * 100.0,
            );
        }
    }
    Ok(())
}
