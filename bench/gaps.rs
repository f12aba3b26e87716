//! Counts the gaps of a thread that does nothing but read the clock. A worker beside it on the same machine
//! cannot have fewer.
//!
//! `gaps CORE WALLS` reads the clock on that core, under SCHED_FIFO where that is allowed, until its standard
//! input ends. WALLS are rising numbers of nanoseconds, separated by commas. It prints, for each of them, the
//! number of gaps between two readings that were at least as long, and the longest gap. Standard library
//! only, so that plain `rustc -O` builds it.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

unsafe extern "C" {
    /// sched_setaffinity(2) and sched_setscheduler(2) of the C library that the standard library links.
    fn sched_setaffinity(pid: i32, size: usize, mask: *const u64) -> i32;
    fn sched_setscheduler(pid: i32, policy: i32, param: *const i32) -> i32;
}

const SCHED_FIFO: i32 = 1;

fn alone_on(core: u32) {
    let (mask, priority) = (1_u64 << core, 1);
    // SAFETY: the length is that of the mask; 0 is the calling thread.
    let done = unsafe { sched_setaffinity(0, size_of_val(&mask), &mask) };
    assert_eq!(done, 0, "core {core}: {}", std::io::Error::last_os_error());
    // SAFETY: the parameter is one integer. Where it is not allowed, the usual policy is left.
    unsafe { sched_setscheduler(0, SCHED_FIFO, &priority) };
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [core, walls] = &args[..] else {
        return Err("usage: gaps CORE WALLS".into());
    };
    let core = core.parse()?;
    let walls: Vec<u64> = walls.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let over = Arc::new(AtomicBool::new(false));
    let reader = {
        let (over, walls) = (over.clone(), walls.clone());
        std::thread::spawn(move || {
            alone_on(core);
            let (mut counts, mut longest) = (vec![0_u64; walls.len()], 0);
            let mut last = Instant::now();
            while !over.load(Relaxed) {
                let now = Instant::now();
                let gap = (now - last).as_nanos() as u64;
                last = now;
                if gap >= walls[0] {
                    walls.iter().zip(&mut counts).for_each(|(wall, n)| *n += u64::from(gap >= *wall));
                }
                longest = longest.max(gap);
            }
            (counts, longest)
        })
    };
    std::io::stdin().read_to_end(&mut Vec::new())?;
    over.store(true, Relaxed);
    let (counts, longest) = reader.join().map_err(|_| "the reader failed")?;
    counts.iter().for_each(|n| print!("{n} "));
    println!("{longest}");
    Ok(())
}
