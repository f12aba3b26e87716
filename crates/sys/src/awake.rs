//! Keeps the machine's idle processors from halting.
//!
//! A thread that sleeps on a halted processor is woken late: by microseconds on bare metal. In a virtual
//! machine it is 50 and more, since the host has to run the processor again. Linux takes latency limits in
//! `/dev/cpu_dma_latency`: with 0 us its idle loop looks for work instead of halting. The limit holds as long
//! as the descriptor is open, so a killed process leaves nothing behind. It is for all processors; Linux has
//! no such limit for one processor that ends by itself.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};

/// A limit that keeps idle processors from halting as long as this value lives.
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
