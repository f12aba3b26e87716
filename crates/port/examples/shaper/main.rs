//! Accuracy and cost of rates: the switch's shaper on a tap, and the kernel's HTB on another device.
//!
//! `shaper DEVICE SECONDS [--reversed]`, as root in a network namespace of its own. DEVICE is a veth whose
//! other end is up; the tap is made here. `bench/protocols` calls it. Both senders send bursts of 32 packets
//! of 1,500 bytes, each burst to the next queue. Each line of the output has these words:
//!
//! * `cost SENDER QUEUES CYCLES`: cycles of a packet, with a rate that never holds one back. 0 queues: no
//!   row.
//! * `rate SENDER QUEUES WANTED SENT DEVIATION`: bits per second while queues always have packets, and the
//!   highest deviation of a queue from its share.

mod senders;

use heddle_sys::Tsc;
use senders::{Kernel, Outcome, Sender, Shaper};
use std::error::Error;
use std::time::Duration;

/// Numbers of queues.
const QUEUES: [u32; 3] = [1, 100, 1000];
/// Rates of the port, bits per second.
const RATES_BPS: [u64; 6] = [
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
    3_000_000_000,
    10_000_000_000,
];
/// A rate that no sender reaches.
const UNREACHED_BPS: u64 = 400_000_000_000;
/// A queue gets at least one packet a second from either sender, so lower rates are above the port's.
const MIN_QUEUE_BPS: u64 = 20_000;

/// Offers bursts for `time`, each to the next queue.
fn offer(sender: &mut dyn Sender, queues: u32, time: Duration) -> Outcome {
    let begin = Tsc::now();
    let end = begin + Tsc::from_us(u64::try_from(time.as_micros()).unwrap_or(0));
    let mut all = Outcome::default();
    let mut queue = 0;
    loop {
        let t0 = Tsc::now();
        if t0 >= end {
            break;
        }
        let sent = sender.burst(queue);
        all.cycles += Tsc::now() - t0;
        all.packets += sent;
        queue = (queue + 1) % queues;
    }
    all.seconds = (Tsc::now() - begin) as f64 / Tsc::hz() as f64;
    all
}

fn cost(sender: &mut dyn Sender, queues: u32, time: Duration) -> Result<(), Box<dyn Error>> {
    sender.set((queues > 0).then_some((UNREACHED_BPS, queues)))?;
    // Memory and sockets get warm.
    offer(sender, queues.max(1), time / 4);
    let done = offer(sender, queues.max(1), time);
    let per_packet = done.cycles as f64 / done.packets.max(1) as f64;
    println!("cost {} {queues} {per_packet:.1}", sender.name());
    Ok(())
}

fn rate(sender: &mut dyn Sender, bps: u64, queues: u32, time: Duration) -> Result<(), Box<dyn Error>> {
    sender.set(Some((bps, queues)))?;
    // The first packets are bursts, and fill the queues.
    offer(sender, queues, time / 2);
    let before = sender.sent_bytes();
    let done = offer(sender, queues, time);
    let after = sender.sent_bytes();
    let sent: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
    let bps_of = |bytes: u64| bytes as f64 * 8.0 / done.seconds;
    let all = bps_of(sent.iter().sum());
    let share = all / f64::from(queues);
    let deviation = sent.iter().map(|n| (bps_of(*n) / share - 1.0).abs());
    println!(
        "rate {} {queues} {bps} {all:.0} {:.4}",
        sender.name(),
        deviation.fold(0.0, f64::max)
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [device, seconds, rest @ ..] = words.as_slice() else {
        return Err("usage: shaper DEVICE SECONDS [--reversed]".into());
    };
    let time = Duration::from_secs_f64(seconds.parse()?);
    let (mut shaper, mut kernel) = (Shaper::open("shaped0")?, Kernel::open(device)?);
    let mut senders: [&mut dyn Sender; 2] = [&mut shaper, &mut kernel];
    if rest.iter().any(|word| word == "--reversed") {
        senders.reverse();
    }
    for queues in [&[0][..], &QUEUES].concat() {
        for sender in &mut senders {
            cost(&mut **sender, queues, time)?;
        }
    }
    for queues in QUEUES {
        for bps in RATES_BPS
            .into_iter()
            .filter(|b| b / u64::from(queues) >= MIN_QUEUE_BPS)
        {
            for sender in &mut senders {
                rate(&mut **sender, bps, queues, time)?;
            }
        }
    }
    for sender in &mut senders {
        sender.set(None)?;
    }
    Ok(())
}
