//! How much memory this process has.

use std::io;

/// Gives memory that was freed back to the system. The allocator keeps what a flood of flows took, piece by piece; call
/// this after a collapse, from a thread that may wait some milliseconds.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes the allocator's own locks, has no precondition.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Memory of this process, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Resident now.
    pub resident: u64,
    /// Most that was ever resident.
    pub peak: u64,
}

/// Reads the kernel's accounting.
///
/// # Errors
/// When `/proc` is not mounted or lacks the lines.
pub fn usage() -> io::Result<Memory> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let kib = |key: &str| {
        text.lines()
            .find_map(|l| {
                l.strip_prefix(key)?
                    .trim()
                    .strip_suffix("kB")?
                    .trim()
                    .parse::<u64>()
                    .ok()
            })
            .ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::Unsupported,
                    "/proc/self/status has no memory lines",
                )
            })
    };
    Ok(Memory {
        resident: kib("VmRSS:")? * 1024,
        peak: kib("VmHWM:")? * 1024,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn grows_with_use() {
        let before = super::usage().unwrap();
        let block = vec![1_u8; 32 << 20];
        let after = super::usage().unwrap();
        assert!(
            after.resident >= before.resident + (24 << 20),
            "{before:?} {after:?} {}",
            block[7]
        );
        assert!(after.peak >= after.resident);
    }
}
