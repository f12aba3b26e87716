//! The memory of this process, and its NUMA nodes.

#![allow(unsafe_code)] // malloc_trim, get_mempolicy

use std::io;
use std::ptr::NonNull;

/// Gives memory that was freed back to the system. The allocator keeps the memory of a flood of flows, piece
/// by piece. Call this after a collapse, from a thread that may wait some milliseconds.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes the allocator's own locks, has no precondition.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The NUMA node of the page at `ptr`, which is read into memory if it is not there (get_mempolicy(2)).
/// `None`: nothing is mapped there, or the kernel does not report it.
pub fn node_of(ptr: NonNull<u8>) -> Option<u32> {
    const MPOL_F_NODE: libc::c_ulong = 1;
    const MPOL_F_ADDR: libc::c_ulong = 2;
    let mut node: libc::c_int = -1;
    // SAFETY: `node` is writable; the mask's pointer is null; the kernel looks the address up and does not
    // trust it.
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
    /// Maximum that was ever resident.
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

/// Resident memory of this process by kind, kB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// All of it.
    pub resident: u64,
    /// The program and its libraries.
    pub program: u64,
    /// Rings of packet sockets.
    pub rings: u64,
    /// Files in memory: guests' memory that this process has read or written, records of connections.
    pub shared: u64,
    /// All other memory: the allocator's and tables of pages of their own.
    pub private: u64,
    /// Memory that the allocator has given out.
    pub heap_used: u64,
    /// Memory that was freed to the allocator. Some of it may not be resident.
    pub heap_free: u64,
}

/// Reads the numbers. The kernel goes through all pages for it: call it from commands, not in a loop.
///
/// # Errors
/// When `/proc` is not mounted.
pub fn kinds() -> io::Result<Kinds> {
    let mut kinds = of_smaps(&std::fs::read_to_string("/proc/self/smaps")?);
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: takes the allocator's own locks, has no precondition.
        let info = unsafe { libc::mallinfo2() };
        kinds.heap_used = (info.uordblks as u64 + info.hblkhd as u64) / 1024;
        kinds.heap_free = info.fordblks as u64 / 1024;
    }
    Ok(kinds)
}

fn of_smaps(text: &str) -> Kinds {
    let mut kinds = Kinds::default();
    let mut name = "";
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        if !first.ends_with(':') {
            // Addresses, rights, offset, device, inode, name.
            name = words.nth(4).unwrap_or_default();
            continue;
        }
        let Some(kb) = words
            .next()
            .and_then(|n| n.parse::<u64>().ok())
            .filter(|_| first == "Rss:")
        else {
            continue;
        };
        kinds.resident += kb;
        *match name {
            n if n.starts_with("socket:") => &mut kinds.rings,
            n if n.starts_with("/memfd:")
                || n.starts_with("/dev/shm/")
                || n.starts_with("/dev/hugepages") =>
            {
                &mut kinds.shared
            }
            n if n.starts_with('/') => &mut kinds.program,
            _ => &mut kinds.private,
        } += kb;
    }
    kinds
}

#[cfg(test)]
mod tests {
    #[test]
    fn memory_is_told_by_kind() {
        let text = "00400000-00452000 r-xp 00000000 08:02 173521 /usr/bin/heddled\nRss: 100 kB\nPss: 9 kB\n\
            7f00-7f01 rw-s 00000000 00:08 1 socket:[77]\nRss: 20 kB\n\
            7f01-7f02 rw-s 00000000 00:01 2 /memfd:connections (deleted)\nRss: 30 kB\n\
            7f02-7f03 rw-p 00000000 00:00 0 \nRss: 40 kB\n7f03-7f04 rw-p 00000000 00:00 0 [heap]\nRss: 5 kB\n";
        let kinds = super::of_smaps(text);
        let told = (
            kinds.program,
            kinds.rings,
            kinds.shared,
            kinds.private,
            kinds.resident,
        );
        assert_eq!(told, (100, 20, 30, 45, 195));
        let now = super::kinds().unwrap();
        assert!(
            now.resident > 1000 && now.program > 0 && now.private > 0,
            "{now:?}"
        );
        assert_eq!(now.resident, now.program + now.rings + now.shared + now.private);
    }

    #[test]
    fn a_page_has_a_node_and_a_hole_has_none() {
        let byte = Box::new(7_u8);
        let node = super::node_of(core::ptr::NonNull::from(&*byte));
        // A kernel without NUMA reports no node.
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
