//! The XDP program of one device.
//!
//! The kernel detaches it when the process ends, in whichever way: the link is a descriptor.

use aya::maps::{MapData, XskMap};
use aya::programs::{Xdp, XdpMode};
use rustix::io::Errno;
use std::error::Error;
use std::os::fd::{AsFd, AsRawFd};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/xsk.bpf.o"));

/// The number of queues of a device that can have a socket.
pub const MAX_QUEUES: u32 = 64;

/// The program at a device.
pub struct Program {
    sockets: XskMap<MapData>,
    /// Attached as long as this lives.
    _program: aya::Ebpf,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").finish_non_exhaustive()
    }
}

impl Program {
    /// Attaches the program to a device. `native`: in its driver; otherwise in the host's stack, for every
    /// driver.
    ///
    /// # Errors
    /// One sentence: no right, another program has the place, the driver has no XDP, or this switch was built
    /// without clang.
    pub fn attach(ifindex: u32, native: bool) -> Result<Self, String> {
        if OBJECT.is_empty() {
            return Err("this switch was built without clang, which compiles the kernel's part".into());
        }
        let mut ebpf = aya::EbpfLoader::new().load(OBJECT).map_err(|e| why(&e))?;
        let sockets = ebpf.take_map("hd_sockets").ok_or("the map is missing")?;
        let sockets = XskMap::try_from(sockets).map_err(|e| why(&e))?;
        let program = ebpf.program_mut("hd_xsk").ok_or("the program is missing")?;
        let program: &mut Xdp = program
            .try_into()
            .map_err(|e: aya::programs::ProgramError| why(&e))?;
        program.load().map_err(|e| why(&e))?;
        let mode = if native { XdpMode::Driver } else { XdpMode::Skb };
        program.attach_to_if_index(ifindex, mode).map_err(|e| why(&e))?;
        Ok(Self {
            sockets,
            _program: ebpf,
        })
    }

    /// Leads the packets of a queue to its socket.
    ///
    /// # Errors
    /// See [`Program::attach`]; or the device has more than [`MAX_QUEUES`] queues.
    pub fn lead(&mut self, queue: u32, to: &crate::Queue) -> Result<(), String> {
        let fd = to.as_fd().as_raw_fd();
        self.sockets.set(queue, fd, 0).map_err(|e| why(&e))
    }
}

fn is(code: i32, errors: &[Errno]) -> bool {
    errors.iter().any(|e| e.raw_os_error() == code)
}

/// The innermost cause of an error.
fn why(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    if let Some(e) = cause.downcast_ref::<std::io::Error>() {
        return match e.raw_os_error() {
            Some(code) if is(code, &[Errno::BUSY, Errno::EXIST]) => {
                "another program has an XDP program at the device".into()
            }
            Some(code) if is(code, &[Errno::PERM, Errno::ACCESS]) => {
                "no right to load or attach an XDP program".into()
            }
            Some(code) if is(code, &[Errno::OPNOTSUPP]) => "the driver has no XDP in this mode".into(),
            _ => heddle_sys::errno_text(e),
        };
    }
    cause.to_string()
}
