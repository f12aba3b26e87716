//! The cost of the rings between two cores: a driver of two guests on one, receive → send → complete on the
//! other.
//!
//! Unlike `ring_cost` every line that both sides touch travels between the cores, as it does under a real
//! guest. `busy` is cycles of the device's rounds that moved packets, per packet. `line` is a round trip of
//! one line between the cores. It is measured beside each case because it swings on virtual machines. With
//! `full` the driver writes and reads whole frames, else their first 64 bytes. Cases alternate; minimum and
//! median over the rounds.
//!
//! `cargo run --release -p heddle-virtio --example ring_pair [MS_PER_CASE] [ROUNDS] [full] [idle] [only
//! SUBSTRING]`

use heddle_packet::{Burst, Packet, Pool};
use heddle_sys::{Tsc, cpu};
use heddle_virtio::driver::{Arena, Buf, ChainLocation, Driver};
use heddle_virtio::mem::GuestMemory;
use heddle_virtio::{DeviceRx, DeviceTx, Features, QueueConfig, SharedMemory};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

const SIZE: u16 = 256;
type Error = Box<dyn std::error::Error + Send + Sync>;

struct Guest {
    shared: Arc<SharedMemory>,
    mem: Arc<GuestMemory>,
    driver: Driver,
    bufs: Vec<Buf>,
    cfg: QueueConfig,
}

fn guest(features: Features, len: u32, count: usize) -> Result<Guest, Error> {
    let (mem, mut arena) = Arena::private(1 << 30, 64 << 20)?;
    let cfg = arena.queue(features | Features::VERSION_1, SIZE)?;
    let driver = Driver::new(&cfg, &mem)?;
    let bufs = (0..count)
        .map(|_| {
            Ok(Buf {
                addr: arena.take(u64::from(len), 2048 + 128)?,
                len,
            })
        })
        .collect::<Result<_, Error>>()?;
    let shared = Arc::new(SharedMemory::new(mem));
    Ok(Guest {
        mem: shared.get(),
        shared,
        driver,
        bufs,
        cfg,
    })
}

/// The driver's thread: keeps one ring full of frames and the other full of empty buffers. Returns frames
/// received.
fn drive(a: &mut Guest, b: &mut Guest, touch: usize, stop: &AtomicBool) -> Result<u64, Error> {
    let mut frame = vec![0_u8; touch + 12];
    let mut scratch = vec![0_u8; touch + 12];
    let (mut received, mut seq) = (0_u64, 0_u64);
    let mut free: Vec<u32> = (0..u32::from(SIZE)).collect();
    for (i, &buf) in b.bufs.iter().enumerate().take(usize::from(SIZE)) {
        b.driver
            .add(&b.mem, &[], &[buf], ChainLocation::Direct, u32::try_from(i)?)?;
    }
    b.driver.publish();
    a.driver.disarm();
    b.driver.disarm();
    while !stop.load(Relaxed) {
        while let Some(done) = a.driver.pop()? {
            free.push(done.token);
        }
        let mut n = 0;
        while n < 64
            && let Some(i) = free.pop()
        {
            let buf = a.bufs[i as usize];
            seq += 1;
            frame[24..32].copy_from_slice(&seq.to_le_bytes());
            a.mem.write(buf.addr, &frame)?;
            a.driver.add(&a.mem, &[buf], &[], ChainLocation::Direct, i)?;
            n += 1;
        }
        a.driver.publish();
        n = 0;
        while n < 64
            && let Some(done) = b.driver.pop()?
        {
            let buf = b.bufs[done.token as usize];
            let len = scratch.len().min(done.len as usize);
            b.mem.read(buf.addr, &mut scratch[..len])?;
            // num_buffers of the first buffer of a frame; the others hold payload.
            received += u64::from(scratch[0] == 0 && scratch[10] > 0 && scratch[10] < 128);
            b.driver
                .add(&b.mem, &[], &[buf], ChainLocation::Direct, done.token)?;
            n += 1;
        }
        b.driver.publish();
    }
    Ok(received)
}

/// The result of one case.
struct Outcome {
    packets: u64,
    busy: u64,
    /// Cycles in receive, send, complete.
    parts: [u64; 3],
    per_burst: f64,
    full: u64,
    ns: u128,
}

fn case(
    features: Features,
    frame: usize,
    whole: bool,
    span: Duration,
    cpus: [usize; 2],
) -> Result<Outcome, Error> {
    let mut a = guest(features, u32::try_from(frame)? + 12, usize::from(SIZE))?;
    let rx_len = if features.contains(Features::MRG_RXBUF) {
        1536
    } else {
        u32::try_from(frame)? + 12
    };
    let mut b = guest(features, rx_len.max(1536), usize::from(SIZE))?;
    let mut rx = DeviceRx::new(a.cfg, Arc::clone(&a.shared))?;
    let mut tx = DeviceTx::new(b.cfg, Arc::clone(&b.shared))?;
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let touch = if whole { frame } else { 64 };
    let generator = std::thread::spawn(move || {
        cpu::pin(&[cpus[0]])?;
        drive(&mut a, &mut b, touch, &flag)
    });
    cpu::pin(&[cpus[1]])?;
    rx.disarm();
    tx.disarm();
    let (mut pool, mut burst) = (Pool::new(128), Burst::new());
    let (mut packets, mut bursts, mut busy, mut full) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut parts = [0; 3];
    let warm = Instant::now() + span / 5;
    let mut begin = None;
    let mut t0 = Tsc::now();
    for round in 0_u64.. {
        if round % 1024 == 0 {
            let now = Instant::now();
            match begin {
                None if now > warm => {
                    begin = Some(now);
                    (packets, bursts, busy, full) = (0, 0, 0, 0);
                    parts = [0; 3];
                }
                Some(b) if now - b > span => break,
                _ => {}
            }
            t0 = Tsc::now();
        }
        let n = rx.rx(&mut pool, &mut burst);
        if n > 0 {
            let r = Tsc::now();
            let refs: arrayvec::ArrayVec<&Packet, { heddle_packet::BURST }> = burst.iter().collect();
            let out = tx.tx(&refs);
            drop(refs);
            let s = Tsc::now();
            pool.put_all(burst.drain(..));
            rx.complete();
            let c = Tsc::now();
            for (sum, part) in parts.iter_mut().zip([r - t0, s - r, c - s]) {
                *sum += part;
            }
            packets += out.sent;
            full += out.full;
            bursts += 1;
        }
        let t1 = Tsc::now();
        if n > 0 {
            busy += t1 - t0;
        }
        t0 = t1;
    }
    let ns = begin.map_or(1, |b| b.elapsed().as_nanos());
    stop.store(true, Relaxed);
    let received = generator.join().map_err(|_| "the driver panicked")??;
    if received == 0 || rx.error().is_some() || tx.error().is_some() {
        return Err(format!("{received} received, {:?} {:?}", rx.error(), tx.error()).into());
    }
    Ok(Outcome {
        packets,
        busy,
        parts,
        per_burst: packets as f64 / bursts.max(1) as f64,
        full,
        ns,
    })
}

/// Nanoseconds for a line to go to the other core and back.
fn line(cpus: [usize; 2]) -> Result<u64, Error> {
    const TRIPS: u64 = 20_000;
    let cell = Arc::new(AtomicU64::new(0));
    let other = Arc::clone(&cell);
    let thread = std::thread::spawn(move || {
        cpu::pin(&[cpus[0]])?;
        for i in 0..TRIPS {
            while other.load(SeqCst) != 2 * i + 1 {
                std::hint::spin_loop();
            }
            other.store(2 * i + 2, SeqCst);
        }
        Ok::<(), std::io::Error>(())
    });
    cpu::pin(&[cpus[1]])?;
    let begin = Instant::now();
    for i in 0..TRIPS {
        cell.store(2 * i + 1, SeqCst);
        while cell.load(SeqCst) != 2 * i + 2 {
            std::hint::spin_loop();
        }
    }
    let ns = begin.elapsed().as_nanos();
    thread.join().map_err(|_| "the other side panicked")??;
    Ok(u64::try_from(ns)? / TRIPS)
}

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, or: u64| args.get(i).and_then(|s| s.parse().ok()).unwrap_or(or);
    let (ms, rounds) = (number(0, 200), number(1, 3));
    let whole = args.iter().any(|a| a == "full");
    let only = args
        .iter()
        .position(|a| a == "only")
        .and_then(|i| args.get(i + 1));
    let cpus = match cpu::allowed()?.as_slice() {
        [a, .., b] => [*a, *b],
        _ => return Err("needs two processors".into()),
    };
    println!("TSC {} MHz, {ms} ms, {rounds} rounds", Tsc::hz() / 1_000_000);
    println!(
        "{:<20} {:>6} {:>8} {:>8} {:>5} {:>5} {:>5} {:>9} {:>9} {:>7} {:>8} {:>6}",
        "ring",
        "bytes",
        "busy min",
        "median",
        "rx",
        "tx",
        "done",
        "Mpps max",
        "median",
        "burst",
        "full",
        "line"
    );
    let mut cases = Vec::new();
    for (name, features) in [
        ("split", Features::empty()),
        ("split mergeable", Features::MRG_RXBUF),
        ("packed mergeable", Features::RING_PACKED | Features::MRG_RXBUF),
    ] {
        for frame in [64, 512, 1518, 65_000] {
            if frame > 9000 && !features.contains(Features::MRG_RXBUF) {
                continue;
            }
            if only.is_none_or(|o| format!("{name} {frame}").contains(o.as_str())) {
                cases.push((name, features, frame, Vec::new()));
            }
        }
    }
    for _ in 0..rounds {
        for (_, features, frame, out) in &mut cases {
            let trip = line(cpus)?;
            out.push((
                trip,
                case(*features, *frame, whole, Duration::from_millis(ms), cpus)?,
            ));
        }
    }
    for (name, _, frame, out) in cases {
        let sorted = |f: &dyn Fn(&(u64, Outcome)) -> f64| {
            let mut v: Vec<f64> = out.iter().map(f).collect();
            v.sort_by(f64::total_cmp);
            v
        };
        let busy = sorted(&|(_, o)| o.busy as f64 / o.packets.max(1) as f64);
        let rate = sorted(&|(_, o)| o.packets as f64 * 1e3 / o.ns as f64);
        let (burst, full) = (
            sorted(&|(_, o)| o.per_burst),
            sorted(&|(_, o)| o.full as f64 / (o.packets + o.full).max(1) as f64),
        );
        let part = |i: usize| sorted(&|(_, o)| o.parts[i] as f64 / o.packets.max(1) as f64)[out.len() / 2];
        let trip = sorted(&|(t, _)| *t as f64);
        let mid = out.len() / 2;
        println!(
            "{name:<20} {frame:>6} {:>8.0} {:>8.0} {:>5.0} {:>5.0} {:>5.0} {:>9.2} {:>9.2} {:>7.1} {:>7.1}% {:>6}",
            busy[0],
            busy[mid],
            part(0),
            part(1),
            part(2),
            rate[out.len() - 1],
            rate[mid],
            burst[mid],
            full[mid] * 100.0,
            trip[mid]
        );
    }
    Ok(())
}
