//! The processors that this process may use, their NUMA nodes, and binding threads to processors.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::cell::RefCell;
use std::ffi::CStr;
use std::io;
use std::sync::Arc;

/// From now on the calling thread, and those that it starts, get little of a processor that others want: nice
/// 19. A kernel that refuses leaves things as they are.
pub fn stand_back() {
    let _ = rustix::process::setpriority_process(None, 19);
}

/// The processors that this thread may run on, ascending.
///
/// # Errors
/// The error of sched_getaffinity(2).
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// The processors of the machine that are on, ascending.
///
/// # Errors
/// The error of reading the kernel's list.
pub fn online() -> io::Result<Vec<usize>> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    parse_list(text.trim()).ok_or_else(|| io::Error::other(format!("{text:?} is no list of processors")))
}

/// The kernel's list format: `0-3,8`.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= CpuSet::MAX_CPU {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Binds the calling thread to the processors `cpus`.
///
/// # Errors
/// `InvalidInput` when none of them exists or is allowed.
pub fn pin(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|&&c| c < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// The NUMA node of processor `cpu`; `None` where the kernel does not report one (then treat it as node 0).
pub fn numa_node(cpu: usize) -> Option<u32> {
    let dir = format!("/sys/devices/system/cpu/cpu{cpu}");
    std::fs::read_dir(dir)
        .ok()?
        .flatten()
        .find_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
}

/// The hardware thread siblings' core: processors with equal values share a core. `None` if unknown.
pub fn core_id(cpu: usize) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/core_id")).ok()?;
    text.trim().parse().ok()
}

thread_local! {
    static RENAMED: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// The last name that [`name_thread`] gave the calling thread, if it did.
pub fn renamed() -> Option<Arc<str>> {
    RENAMED.try_with(|name| name.borrow().clone()).ok().flatten()
}

/// Names the calling thread for ps, top and gdb; the kernel keeps 15 bytes. [`renamed`] returns the whole
/// name.
pub fn name_thread(name: &str) {
    RENAMED.with(|slot| *slot.borrow_mut() = Some(name.into()));
    let mut buf = [0_u8; 16];
    for (dst, src) in buf.iter_mut().take(15).zip(name.bytes()) {
        *dst = src;
    }
    if let Ok(name) = CStr::from_bytes_until_nul(&buf) {
        // No failure in practice: the call takes any text.
        let _ = rustix::thread::set_name(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_to_one_of_the_allowed() {
        let cpus = allowed().unwrap();
        let last = *cpus.last().unwrap();
        std::thread::spawn(move || {
            pin(&[last]).unwrap();
            assert_eq!(allowed().unwrap(), [last]);
            name_thread("a-name-longer-than-fifteen");
            let comm = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
            assert_eq!(comm.trim(), "a-name-longer-t");
            assert_eq!(renamed().as_deref(), Some("a-name-longer-than-fifteen"));
        })
        .join()
        .unwrap();
        assert_eq!(allowed().unwrap(), cpus);
        assert!(pin(&[]).is_err());
    }

    #[test]
    fn lists_of_processors() {
        assert_eq!(parse_list("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list(""), Some(vec![]));
        for bad in ["x", "1-", "0-99999999999", "3-y"] {
            assert_eq!(parse_list(bad), None, "{bad}");
        }
        let (on, ours) = (online().expect("a list"), allowed().expect("a set"));
        assert!(ours.iter().all(|c| on.contains(c)));
    }
}
