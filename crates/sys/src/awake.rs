//! Keeps the machine's idle processors from halting.
//!
//! A thread that sleeps on a processor that has halted is woken late: by microseconds on bare metal, by 50
//! and more in a virtual machine, where the host has to run the processor again. Linux takes wishes in
//! `/dev/cpu_dma_latency`: with 0 us its idle loop looks for work instead of halting. The wish holds as long
//! as the descriptor is open, so nothing is left behind by a process that was killed. It is about all
//! processors; there is none for one processor that ends by itself.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};

/// As long as this lives, idle processors do not halt.
#[derive(Debug)]
pub struct Awake(#[expect(dead_code, reason = "open as long as the wish holds")] File);

impl Awake {
    /// # Errors
    /// The system has no such device, or does not let this process open it (a container).
    pub fn hold() -> io::Result<Self> {
        let mut file = OpenOptions::new().write(true).open("/dev/cpu_dma_latency")?;
        file.write_all(&0_i32.to_ne_bytes())?;
        Ok(Self(file))
    }
}
