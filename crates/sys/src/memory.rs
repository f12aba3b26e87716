//! How much memory this process has.

use std::io;
use std::ptr::NonNull;

/// Gives memory that was freed back to the system. The allocator keeps what a flood of flows took, piece by
/// piece; call this after a collapse, from a thread that may wait some milliseconds.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes the allocator's own locks, has no precondition.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The NUMA node of the page at `ptr`, which is read into memory if it is not there (get_mempolicy(2)).
/// `None`: nothing is mapped there, or the kernel does not say.
pub fn node_of(ptr: NonNull<u8>) -> Option<u32> {
    const MPOL_F_NODE: libc::c_ulong = 1;
    const MPOL_F_ADDR: libc::c_ulong = 2;
    let mut node: libc::c_int = -1;
    // SAFETY: `node` is writable; no mask is asked for; the kernel looks the address up and does not trust
    // it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut node,
            core::ptr::null_mut::<libc::c_ulong>(),
            0 as libc::c_ulong,
            ptr.as_ptr(),
            MPOL_F_NODE | MPOL_F_ADDR,
        )
    };
    if done < 0 {
        return None;
    }
    u32::try_from(node).ok()
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
    fn a_page_has_a_node_and_a_hole_has_none() {
        let byte = Box::new(7_u8);
        let node = super::node_of(core::ptr::NonNull::from(&*byte));
        // A kernel without NUMA says nothing.
        if std::path::Path::new("/sys/devices/system/node/node0").exists() {
            assert!(node.is_some());
        }
        assert_eq!(
            super::node_of(core::ptr::NonNull::without_provenance(
                core::num::NonZero::new(4096).unwrap()
            )),
            None
        );
    }

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
