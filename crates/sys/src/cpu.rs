//! Which processors this process may use, where they are, and how threads are bound to them.

use crate::cvt;
use std::cell::RefCell;
use std::io;
use std::sync::Arc;

/// The processors that this thread may run on, ascending.
///
/// # Errors
/// What sched_getaffinity(2) says.
pub fn allowed() -> io::Result<Vec<usize>> {
    // SAFETY: `set` is plain data that the call fills.
    let set = unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        cvt(libc::sched_getaffinity(
            0,
            size_of::<libc::cpu_set_t>(),
            &raw mut set,
        ))?;
        set
    };
    let max = libc::CPU_SETSIZE as usize;
    // SAFETY: the index is below CPU_SETSIZE.
    Ok((0..max)
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
        .collect())
}

/// The processors of the machine that are on, ascending.
///
/// # Errors
/// What reading the kernel's list says.
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
        if last >= libc::CPU_SETSIZE as usize {
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
    // SAFETY: `set` is plain data; each index is checked against CPU_SETSIZE.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        for &cpu in cpus.iter().filter(|&&c| c < libc::CPU_SETSIZE as usize) {
            libc::CPU_SET(cpu, &mut set);
        }
        cvt(libc::sched_setaffinity(
            0,
            size_of::<libc::cpu_set_t>(),
            &raw const set,
        ))?;
    }
    Ok(())
}

/// The NUMA node of processor `cpu`; `None` where the kernel does not say (then treat it as node 0).
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

/// What the calling thread was named last by [`name_thread`], if it was.
pub fn renamed() -> Option<Arc<str>> {
    RENAMED.try_with(|name| name.borrow().clone()).ok().flatten()
}

/// Names the calling thread for ps, top and gdb; the kernel keeps 15 bytes. Whoever asks [`renamed`] is told all of it.
pub fn name_thread(name: &str) {
    RENAMED.with(|slot| *slot.borrow_mut() = Some(name.into()));
    let mut buf = [0_u8; 16];
    for (dst, src) in buf.iter_mut().take(15).zip(name.bytes()) {
        *dst = src;
    }
    // SAFETY: sixteen bytes that end with a zero.
    unsafe { libc::prctl(libc::PR_SET_NAME, buf.as_ptr()) };
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
