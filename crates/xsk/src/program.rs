//! The XDP program of one device.
//!
//! The kernel detaches it when the process ends, in whichever way: the link is a descriptor.

use crate::pass::{KeyBytes, PassItem};
use aya::maps::{Array, HashMap, MapData, PerCpuArray, XskMap};
use aya::programs::{Xdp, XdpMode};
use rustix::io::Errno;
use std::error::Error;
use std::os::fd::{AsFd, AsRawFd};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/xsk.bpf.o"));

/// The number of queues of a device that can have a socket.
pub const MAX_QUEUES: u32 = 64;

/// The program at a device.
pub struct Program {
    id: u32,
    sockets: XskMap<MapData>,
    pass: HashMap<MapData, KeyBytes, u32>,
    /// The number of items in `pass`.
    items: Array<MapData, u32>,
    passed: PerCpuArray<MapData, u64>,
    /// Attached as long as this lives.
    _program: aya::Ebpf,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").finish_non_exhaustive()
    }
}

/// Why a program cannot be attached, or changed: one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct AttachError {
    text: String,
    /// Another program uses the device: this may end, and the kernel does not report that.
    pub is_busy: bool,
}

impl From<String> for AttachError {
    fn from(text: String) -> Self {
        Self { text, is_busy: false }
    }
}

impl From<&str> for AttachError {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// Packets of a device that the host's stack got, since the program was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Packets that an item names.
    pub by_item: u64,
    /// Packets of queues without a socket.
    pub without_socket: u64,
}

impl Program {
    /// Attaches the program to a device. `native`: in its driver; otherwise in the host's stack, for every
    /// driver. Until [`Program::lead`] is called, the host's stack gets all packets.
    ///
    /// # Errors
    /// No right, another program has the place, the driver has no XDP, or this switch was built without
    /// clang.
    pub fn attach(ifindex: u32, native: bool) -> Result<Self, AttachError> {
        if OBJECT.is_empty() {
            return Err("this switch was built without clang, which compiles the kernel's part".into());
        }
        let mut ebpf = aya::EbpfLoader::new().load(OBJECT).map_err(|e| why(&e))?;
        let mut map = |name| ebpf.take_map(name).ok_or("a map is missing");
        let sockets = XskMap::try_from(map("hd_sockets")?).map_err(|e| why(&e))?;
        let pass = HashMap::try_from(map("hd_pass")?).map_err(|e| why(&e))?;
        let items = Array::try_from(map("hd_items")?).map_err(|e| why(&e))?;
        let passed = PerCpuArray::try_from(map("hd_passed")?).map_err(|e| why(&e))?;
        let program = ebpf.program_mut("hd_xsk").ok_or("the program is missing")?;
        let program: &mut Xdp = program
            .try_into()
            .map_err(|e: aya::programs::ProgramError| why(&e))?;
        program.load().map_err(|e| why(&e))?;
        let id = program.info().map_err(|e| why(&e))?.id();
        let mode = if native { XdpMode::Driver } else { XdpMode::Skb };
        program.attach_to_if_index(ifindex, mode).map_err(|e| why(&e))?;
        Ok(Self {
            id,
            sockets,
            pass,
            items,
            passed,
            _program: ebpf,
        })
    }

    /// The kernel's identifier of the program.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Leads the packets of a queue to its socket.
    ///
    /// # Errors
    /// See [`Program::attach`]; or the device has more than [`MAX_QUEUES`] queues.
    pub fn lead(&mut self, queue: u32, to: &crate::Queue) -> Result<(), AttachError> {
        let fd = to.as_fd().as_raw_fd();
        self.sockets.set(queue, fd, 0).map_err(|e| why(&e))
    }

    /// Leaves the packets that `items` name to the host's stack, and no others. A packet that arrives
    /// meanwhile is treated by the old items or by the new ones.
    ///
    /// # Errors
    /// The kernel's error; a part of the items may be in force then.
    pub fn set_pass(&mut self, items: &[PassItem]) -> Result<(), AttachError> {
        let e = |e: aya::maps::MapError| why(&e);
        let old = self.pass.keys().collect::<Result<Vec<_>, _>>().map_err(e)?;
        let new: Vec<KeyBytes> = items.iter().map(|item| item.key()).collect();
        // Removed first: the map has room for as many items as a device may have.
        for key in old.iter().filter(|key| !new.contains(key)) {
            self.pass.remove(key).map_err(e)?;
        }
        for key in new.iter().filter(|key| !old.contains(key)) {
            self.pass.insert(key, 1, 0).map_err(e)?;
        }
        let n = u32::try_from(new.len()).unwrap_or(u32::MAX);
        self.items.set(0, n, 0).map_err(e)
    }

    /// The packets that the host's stack got.
    pub fn passed(&self) -> Passed {
        let sum = |which| {
            let all = self.passed.get(&which, 0).ok();
            all.map_or(0, |all| all.iter().sum())
        };
        Passed {
            by_item: sum(0),
            without_socket: sum(1),
        }
    }
}

fn is(code: i32, errors: &[Errno]) -> bool {
    errors.iter().any(|e| e.raw_os_error() == code)
}

/// The innermost cause of an error.
fn why(error: &(dyn Error + 'static)) -> AttachError {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    if let Some(e) = cause.downcast_ref::<std::io::Error>() {
        return match e.raw_os_error() {
            Some(code) if is(code, &[Errno::BUSY, Errno::EXIST]) => AttachError {
                text: "another program has an XDP program at the device".into(),
                is_busy: true,
            },
            Some(code) if is(code, &[Errno::PERM, Errno::ACCESS]) => {
                "no right to load or attach an XDP program".into()
            }
            Some(code) if is(code, &[Errno::OPNOTSUPP]) => "the driver has no XDP in this mode".into(),
            _ => heddle_sys::errno_text(e).into(),
        };
    }
    cause.to_string().into()
}
