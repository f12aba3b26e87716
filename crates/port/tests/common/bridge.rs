//! A thread that forwards between two ports and checks the packets that pass.

#![allow(dead_code, unreachable_pub)] // each test file uses a part of this module

use heddle_packet::{Burst, Csum, Packet, Pool};
use heddle_port::{Port, TxCounts};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Counts of the packets that have passed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Packets.
    pub packets: u64,
    /// GSO packets.
    pub gso_packets: u64,
    /// Packets with an unfinished checksum.
    pub partial: u64,
    /// Packets with a VLAN tag.
    pub tagged: u64,
    /// Longest packet.
    pub longest: usize,
    /// Packets that were not sent.
    pub lost: u64,
    /// Packets dropped by a receive queue.
    pub dropped: u64,
}

/// A running forwarder.
pub struct Bridge {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Seen>>,
}

impl Bridge {
    /// Forwards between `a` and `b`, one queue each.
    pub fn start(a: Arc<dyn Port>, b: Arc<dyn Port>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || run(&a, &b, &flag));
        Self {
            stop,
            thread: Some(thread),
        }
    }
    /// Ends it.
    pub fn finish(mut self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("runs").join().expect("forwarder")
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn run(a: &Arc<dyn Port>, b: &Arc<dyn Port>, stop: &AtomicBool) -> Seen {
    let mut rx = [
        a.open_rx(1).expect("rx").remove(0),
        b.open_rx(1).expect("rx").remove(0),
    ];
    let mut tx = [b.open_tx(0, 1).expect("tx"), a.open_tx(0, 1).expect("tx")];
    let (mut pool, mut burst, mut seen) = (Pool::new(64), Burst::new(), Seen::default());
    while !stop.load(Ordering::Relaxed) {
        let mut idle = true;
        for (rx, tx) in rx.iter_mut().zip(&mut tx) {
            if rx.rx(&mut pool, &mut burst) == 0 {
                continue;
            }
            idle = false;
            let out: Vec<&Packet> = burst.iter().collect();
            for p in &out {
                seen.packets += 1;
                seen.gso_packets += u64::from(p.offload.gso.is_some());
                seen.partial += u64::from(matches!(p.offload.csum, Csum::Partial { .. }));
                seen.tagged += u64::from(p.head()[12..14] == [0x81, 0]);
                seen.longest = seen.longest.max(p.len());
            }
            let c: TxCounts = tx.tx(&mut pool, &out);
            seen.lost += out.len() as u64 - c.sent;
            burst.drain(..).for_each(|p| pool.put(p));
            rx.complete();
        }
        if idle {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }
    seen.dropped = rx.iter().flat_map(|q| q.dropped()).map(|(_, n)| n).sum();
    seen
}
