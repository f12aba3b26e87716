//! The cost of the rings: driver → device → one copy → device → driver in one thread, cycles per packet.
//!
//! One thread means that no line travels between cores: this is the floor of the code, not of a machine.
//! `device` is a switch worker's part (receive, copy, send, complete); `driver` is the generator's part.
//! Medians over rounds.
//!
//! `cargo run --release -p heddle-virtio --example ring_cost [ROUNDS [CASE]]`, CASE a part of a line's name
//! as `packed 64`; counts of instructions come from `valgrind --tool=callgrind
//! --toggle-collect='*DeviceRx::rx' ...`.

use heddle_packet::{Burst, Packet, Pool};
use heddle_sys::Tsc;
use heddle_virtio::driver::{Arena, Buf, ChainLocation, Driver};
use heddle_virtio::{DeviceRx, DeviceTx, Features, SharedMemory};
use std::sync::Arc;

const SIZE: u16 = 256;
const BURST: usize = 32;
type Error = Box<dyn std::error::Error>;

struct Guest {
    shared: Arc<SharedMemory>,
    driver: Driver,
    bufs: Vec<Buf>,
    cfg: heddle_virtio::QueueConfig,
}

fn guest(features: Features, len: u32) -> Result<Guest, Error> {
    let (mem, mut arena) = Arena::private(1 << 30, 16 << 20)?;
    let cfg = arena.queue(features | Features::VERSION_1, SIZE)?;
    let driver = Driver::new(&cfg, &mem)?;
    let bufs = (0..SIZE)
        .map(|_| {
            Ok(Buf {
                addr: arena.take(u64::from(len), 2048 + 128)?,
                len,
            })
        })
        .collect::<Result<_, Error>>()?;
    Ok(Guest {
        shared: Arc::new(SharedMemory::new(mem)),
        driver,
        bufs,
        cfg,
    })
}

/// One case; cycles per packet of (receive, send, complete, driver).
fn case(features: Features, frame: usize, rounds: usize) -> Result<[u64; 4], Error> {
    let mut a = guest(features, u32::try_from(frame)? + 12)?;
    let mut b = guest(
        features,
        if features.contains(Features::MRG_RXBUF) {
            1536
        } else {
            9216
        },
    )?;
    let mut rx = DeviceRx::new(a.cfg, Arc::clone(&a.shared))?;
    let mut tx = DeviceTx::new(b.cfg, Arc::clone(&b.shared))?;
    rx.disarm();
    tx.disarm();
    a.driver.disarm();
    b.driver.disarm();
    let (amem, bmem) = (a.shared.get(), b.shared.get());
    let (mut pool, mut burst) = (Pool::new(64), Burst::new());
    let mut samples: [Vec<u64>; 4] = Default::default();
    let (mut next_a, mut next_b) = (0_usize, 0_usize);
    for _ in 0..rounds {
        let t0 = Tsc::now();
        for _ in 0..BURST {
            let buf = a.bufs[next_a % a.bufs.len()];
            a.driver.add(&amem, &[buf], &[], ChainLocation::Direct, 0)?;
            next_a += 1;
        }
        a.driver.publish();
        while b.driver.free() > 0 {
            let buf = b.bufs[next_b % b.bufs.len()];
            b.driver.add(&bmem, &[], &[buf], ChainLocation::Direct, 0)?;
            next_b += 1;
        }
        b.driver.publish();
        let t1 = Tsc::now();
        let n = rx.rx(&mut pool, &mut burst);
        let t2 = Tsc::now();
        let refs: arrayvec::ArrayVec<&Packet, BURST> = burst.iter().collect();
        let out = tx.tx(&refs);
        let t3 = Tsc::now();
        drop(refs);
        pool.put_all(burst.drain(..));
        rx.complete();
        let t4 = Tsc::now();
        while a.driver.pop()?.is_some() {}
        while b.driver.pop()?.is_some() {}
        let t5 = Tsc::now();
        if n != BURST || out.sent != BURST as u64 {
            return Err(format!("{n} received, {out:?}, {:?} {:?}", rx.error(), tx.error()).into());
        }
        for (s, cycles) in samples
            .iter_mut()
            .zip([t2 - t1, t3 - t2, t4 - t3, t1 - t0 + t5 - t4])
        {
            s.push(cycles / BURST as u64);
        }
    }
    Ok(samples.map(|mut s| {
        s.sort_unstable();
        s[s.len() / 2]
    }))
}

fn main() -> Result<(), Error> {
    let rounds = std::env::args().nth(1).map_or(Ok(20_000), |s| s.parse())?;
    let only = std::env::args().nth(2).unwrap_or_default();
    println!(
        "TSC {} MHz, bursts of {BURST}, {rounds} rounds",
        Tsc::hz() / 1_000_000
    );
    println!(
        "{:<24} {:>6} {:>8} {:>8} {:>9} {:>8} {:>8}",
        "ring", "bytes", "receive", "send", "complete", "device", "driver"
    );
    for (name, features) in [
        ("split", Features::empty()),
        ("split mergeable", Features::MRG_RXBUF),
        ("split in-order", Features::IN_ORDER),
        ("packed", Features::RING_PACKED),
        ("packed mergeable", Features::RING_PACKED | Features::MRG_RXBUF),
        ("packed in-order", Features::RING_PACKED | Features::IN_ORDER),
    ] {
        for frame in [64, 512, 1518, 9000] {
            if !format!("{name} {frame}").contains(&only) {
                continue;
            }
            let [r, s, c, d] = case(features, frame, rounds)?;
            println!(
                "{name:<24} {frame:>6} {r:>8} {s:>8} {c:>9} {:>8} {d:>8}",
                r + s + c
            );
        }
    }
    Ok(())
}
