//! Wake-up latency of a thread from another core: the least that a packet waits for a switch that sleeps.
//!
//! `wake FROM TO RATE SECONDS` wakes a thread on core TO from core FROM by a datagram, RATE times a second.
//! The program prints the median and the 99th percentile of the times until the thread has the datagram, in
//! microseconds. Standard library only, so that plain `rustc -O` builds it.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

unsafe extern "C" {
    /// sched_setaffinity(2) of the C library that the standard library links.
    fn sched_setaffinity(pid: i32, size: usize, mask: *const u64) -> i32;
}

fn pin(core: u32) {
    let mask = 1_u64 << core;
    // SAFETY: the length is that of the mask; 0 is the calling thread.
    let done = unsafe { sched_setaffinity(0, size_of_val(&mask), &mask) };
    assert_eq!(done, 0, "core {core}: {}", std::io::Error::last_os_error());
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<f64> = std::env::args().skip(1).map(|a| a.parse()).collect::<Result<_, _>>()?;
    let &[from, to, rate, seconds] = args.as_slice() else {
        return Err("usage: wake FROM TO RATE SECONDS".into());
    };
    let (ours, theirs) = UnixDatagram::pair()?;
    let start = Instant::now();
    let sleeper = std::thread::spawn(move || {
        pin(to as u32);
        let mut times = Vec::new();
        let mut sent = [0; 16];
        while let Ok(16) = theirs.recv(&mut sent) {
            let now = start.elapsed().as_nanos();
            times.push(now.saturating_sub(u128::from_ne_bytes(sent)));
        }
        times
    });
    pin(from as u32);
    let gap = Duration::from_secs_f64(1.0 / rate);
    let mut next = Instant::now() + gap;
    while start.elapsed().as_secs_f64() < seconds {
        while Instant::now() < next {
            std::hint::spin_loop();
        }
        next += gap;
        ours.send(&start.elapsed().as_nanos().to_ne_bytes())?;
    }
    ours.send(&[])?;
    let mut times = sleeper.join().map_err(|_| "the sleeper failed")?;
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    println!("{:.1} {:.1}", at(0.5), at(0.99));
    Ok(())
}
