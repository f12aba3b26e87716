//! Memory of another process whose file gets shorter (SIGBUS).
//!
//! **Problem.** A process maps a file that another process owns. When the owner cuts the file, the first
//! process dies by SIGBUS at its next access to a missing page. In a switch, one virtual machine monitor
//! could so end the connections of all others.
//!
//! **How.** A signal handler acts on mappings that were registered here. It puts empty private memory in the
//! place of the missing page and of all that follows in the mapping. It marks the mapping as cut and raises a
//! descriptor, so that its owner can drop it. Any other SIGBUS goes to the handler that was installed before.
//!
//! **Why all that follows.** The kernel bounds the mappings of a process (`vm.max_map_count`), and the
//! process that cut the file chooses which pages are touched. With one mapping a page it could use them up,
//! and the next signal would be the last. This way a guarded mapping never becomes more than two, so that all
//! slots together stay well below the bound. The bytes behind the cut mean nothing any more.
//!
//! **Invariants.** A slot's base is written last when it is taken and first when it is given back. The
//! handler reads it before and after the rest: so it acts on values of one mapping. The handler calls only
//! functions that a handler may call (mmap(2), write(2)).
//!
//! Costs: none until the signal comes; taking a slot searches the table.

#![allow(unsafe_code)] // a signal handler

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};

/// Maximum number of registered mappings.
const SLOTS: usize = 16_384;

struct Slot {
    /// 0 is free, 1 is being written; any other value is the mapping's address.
    base: AtomicUsize,
    len: AtomicUsize,
    page: AtomicUsize,
    cut: AtomicBool,
}

/// The number of signals after which memory was replaced.
static CUTS: AtomicU32 = AtomicU32::new(0);

/// Changes when a guarded mapping was found cut. Callers may read it often: it costs one load of a line that
/// is hardly ever written.
#[inline]
pub fn cuts() -> u32 {
    CUTS.load(Ordering::Relaxed) // a late reader sees it at the next burst
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        cut: AtomicBool::new(false),
    }
}; SLOTS];

/// The descriptor to raise; -1: none.
static RAISE: AtomicI32 = AtomicI32::new(-1);
/// The handler that was installed before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A registered range; given back when dropped.
#[derive(Debug)]
pub(crate) struct Guard(usize);

impl Guard {
    /// Registers `len` bytes at `base`, both multiples of `page`. `None`: the table is full.
    pub(crate) fn new(base: usize, len: usize, page: usize) -> io::Result<Option<Self>> {
        install()?;
        for (i, slot) in TABLE.iter().enumerate() {
            let free = slot
                .base
                .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
            if free.is_ok() {
                slot.len.store(len, Ordering::Relaxed);
                slot.page.store(page, Ordering::Relaxed);
                slot.cut.store(false, Ordering::Relaxed);
                // Release pairs with the Acquire in the handler: a handler that sees the base sees the rest.
                slot.base.store(base, Ordering::Release);
                return Ok(Some(Self(i)));
            }
        }
        Ok(None)
    }
    /// Whether pages were missing.
    pub(crate) fn was_cut(&self) -> bool {
        TABLE[self.0].cut.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        TABLE[self.0].base.store(0, Ordering::Release);
    }
}

/// From now on `fd` (an eventfd) is raised when a guarded mapping is found cut. It has to stay open until
/// [`quiet`].
pub fn raise(fd: BorrowedFd<'_>) {
    RAISE.store(fd.as_raw_fd(), Ordering::Relaxed);
}
/// Stops raising `fd`, if it is the descriptor that is raised.
pub fn quiet(fd: BorrowedFd<'_>) {
    let _ = RAISE.compare_exchange(fd.as_raw_fd(), -1, Ordering::Relaxed, Ordering::Relaxed);
}

fn install() -> io::Result<()> {
    static DONE: OnceLock<Result<(), i32>> = OnceLock::new();
    let done = DONE.get_or_init(|| {
        // SAFETY: all-zero is a valid sigaction.
        let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
        new.sa_sigaction = handler as libc::sighandler_t;
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: all-zero is a valid sigaction.
        let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: both structures are valid; the query changes nothing.
        if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut old) } != 0 {
            return Err(errno());
        }
        // Before the handler is there, so that it finds it.
        let _ = BEFORE.set(old);
        // SAFETY: the handler does only things that are safe in one.
        if unsafe { libc::sigaction(libc::SIGBUS, &raw const new, std::ptr::null_mut()) } != 0 {
            return Err(errno());
        }
        Ok(())
    });
    done.map_err(io::Error::from_raw_os_error)
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid structure, and errno is this thread's own.
    let (code, addr, errno) = unsafe {
        (
            (*info).si_code,
            (*info).si_addr() as usize,
            libc::__errno_location(),
        )
    };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    let mended = code == BUS_ADRERR && mend(addr);
    // SAFETY: as above.
    unsafe { *errno = saved };
    if !mended {
        pass_on(signal, info, context);
    }
}

/// `si_code` of a page beyond the file's end.
const BUS_ADRERR: libc::c_int = 2;

/// Puts empty memory from the page of `addr` on if it is in a registered mapping.
fn mend(addr: usize) -> bool {
    for slot in &TABLE {
        let base = slot.base.load(Ordering::Acquire); // pairs with the Release in `Guard::new`
        let (len, page) = (
            slot.len.load(Ordering::Relaxed),
            slot.page.load(Ordering::Relaxed),
        );
        let same = slot.base.load(Ordering::Acquire) == base;
        if base <= 1 || !same || addr.wrapping_sub(base) >= len || !page.is_power_of_two() {
            continue;
        }
        let at = addr & !(page - 1);
        // First choice: one mapping for the rest. If the bound of mappings is reached, one replaces the
        // whole, which takes none away. If the system does not promise that much memory
        // (`vm.overcommit_memory`), the page alone.
        let end = base + len;
        let done = [(at, end - at), (base, len), (at, page)]
            .into_iter()
            .any(|(from, bytes)| replace(from, bytes));
        if !done {
            return false;
        }
        slot.cut.store(true, Ordering::Relaxed);
        CUTS.fetch_add(1, Ordering::Relaxed);
        let fd = RAISE.load(Ordering::Relaxed);
        if fd >= 0 {
            let one = 1_u64;
            // SAFETY: eight readable bytes; a descriptor that was closed meanwhile is an error that changes
            // nothing.
            let _ = unsafe { libc::write(fd, (&raw const one).cast(), 8) };
        }
        return true;
    }
    false
}

/// Puts empty private memory in the place of `len` bytes from `from` on, which are in a registered mapping.
fn replace(from: usize, len: usize) -> bool {
    // SAFETY: the range is in a mapping that its owner keeps while this thread accesses it. Only that
    // mapping's content changes, which its owner never relies on.
    let p = unsafe {
        libc::mmap(
            from as *mut libc::c_void,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    p != libc::MAP_FAILED
}

/// A signal that is not ours.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get();
    let handler = before.map_or(libc::SIG_DFL, |b| b.sa_sigaction);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: all-zero is the default action; the access that faulted is made again and ends the process.
        unsafe {
            let default: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, &raw const default, std::ptr::null_mut());
        }
        return;
    }
    if before.is_some_and(|b| b.sa_flags & libc::SA_SIGINFO != 0) {
        // SAFETY: installed with SA_SIGINFO, so it has this signature.
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: installed without SA_SIGINFO, so it has this signature.
        let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
        handler(signal);
    }
}
