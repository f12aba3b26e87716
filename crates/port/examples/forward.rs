//! Forwards between two ports, to measure them without a switch in between.
//!
//! `forward [--cpu N] [--spin-us N] [--secs N] [--no-steer] KIND:NAME KIND:NAME`, for example `forward --cpu
//! 1 --spin-us 50 --secs 30 internal:tap0 system:veth1`. After `--spin-us` microseconds without traffic it
//! sleeps in epoll; a very large value polls for ever. Counters are printed at the end.

use heddle_packet::{BURST, Burst, Packet, Pool};
use heddle_port::{Port, RxQueue, TxCounts, TxQueue};
use heddle_sys::{Epoll, Tsc};
use std::collections::BTreeMap;
use std::sync::Arc;

struct Side {
    port: Arc<dyn Port>,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    counts: TxCounts,
    bursts: u64,
    packets: u64,
}

fn open(spec: &str) -> Result<Side, String> {
    let (kind, name) = spec.split_once(':').ok_or("a port is KIND:NAME")?;
    let port = heddle_port::open(kind, name, &BTreeMap::new()).map_err(|e| e.to_string())?;
    let rx = port.open_rx(1).map_err(|e| e.to_string())?.remove(0);
    let tx = port.open_tx(0, 1).map_err(|e| e.to_string())?;
    port.set_admin(true).map_err(|e| e.to_string())?;
    Ok(Side {
        port,
        rx,
        tx,
        counts: TxCounts::default(),
        bursts: 0,
        packets: 0,
    })
}

/// One burst from `from` to `to`; returns whether there was one.
fn step(pool: &mut Pool, burst: &mut Burst, from: &mut Side, to: &mut Side) -> bool {
    if from.rx.rx(pool, burst) == 0 {
        return false;
    }
    from.bursts += 1;
    from.packets += burst.len() as u64;
    let out: arrayvec::ArrayVec<&Packet, BURST> = burst.iter().collect();
    let c = to.tx.tx(pool, &out);
    drop(out);
    to.counts.sent += c.sent;
    to.counts.full += c.full;
    to.counts.too_long += c.too_long;
    to.counts.down += c.down;
    to.counts.error += c.error;
    for p in burst.drain(..) {
        pool.put(p);
    }
    from.rx.complete();
    true
}

fn main() -> Result<(), String> {
    let (mut cpu, mut spin_us, mut secs, mut specs, mut steer) = (None, 50, 10, Vec::new(), true);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || {
            args.next()
                .and_then(|n| n.parse::<u64>().ok())
                .ok_or(format!("{arg} needs a number"))
        };
        match arg.as_str() {
            "--cpu" => cpu = Some(number()?),
            "--spin-us" => spin_us = number()?,
            "--secs" => secs = number()?,
            "--no-steer" => steer = false,
            _ => specs.push(arg),
        }
    }
    let [a, b] = specs.as_slice() else {
        return Err("two ports, please".into());
    };
    let (mut a, mut b) = (open(a)?, open(b)?);
    let others: Vec<usize> = heddle_sys::cpu::allowed()
        .map_err(|e| e.to_string())?
        .into_iter()
        .filter(|c| Some(*c as u64) != cpu)
        .collect();
    if steer {
        a.port.steer(&others);
        b.port.steer(&others);
    }
    if let Some(cpu) = cpu {
        heddle_sys::cpu::pin(&[usize::try_from(cpu).map_err(|e| e.to_string())?])
            .map_err(|e| e.to_string())?;
    }
    let mut pool = Pool::new(4 * BURST);
    let mut burst = Burst::new();
    let mut epoll = Epoll::new(4).map_err(|e| e.to_string())?;
    for fd in [&a, &b].into_iter().filter_map(|s| s.rx.wake_fd()) {
        epoll.add(fd.0, 0).map_err(|e| e.to_string())?;
    }
    println!("ready");
    let end = Tsc::now() + secs * Tsc::hz();
    let spin = Tsc::from_us(spin_us);
    let mut last = Tsc::now();
    let mut sleeps = 0_u64;
    loop {
        let now = Tsc::now();
        if now > end {
            break;
        }
        let busy = step(&mut pool, &mut burst, &mut a, &mut b) | step(&mut pool, &mut burst, &mut b, &mut a);
        if busy {
            last = now;
        } else if now.saturating_sub(last) > spin {
            if a.rx.arm() | b.rx.arm() {
                continue;
            }
            sleeps += 1;
            epoll.wait(200).map_err(|e| e.to_string())?.for_each(drop);
            last = Tsc::now();
        }
    }
    for s in [&a, &b] {
        let per_burst = s.packets as f64 / s.bursts.max(1) as f64;
        println!(
            "{}: received {} ({per_burst:.1} a burst), {:?}, drops {:?}, kernel drops {}",
            s.port.name(),
            s.packets,
            s.counts,
            s.rx.dropped(),
            s.port.status().rx_dropped
        );
    }
    println!("slept {sleeps} times, {} buffers beyond the pool", pool.grown());
    Ok(())
}
