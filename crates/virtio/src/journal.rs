//! Packed rings' positions across sessions and processes, where the other side keeps none. QEMU keeps no
//! inflight area for network devices. After a crash of the back end it sends the base that it knew at the
//! start. The kernel knows only the start positions of a VDUSE device's rings.
//!
//! A journal is a file (or nameless memory) with a slot for each ring: the ring's settings at its start, and
//! its [`Record`]. A ring is taken to be the same one if size, addresses and the front end's base are equal.
//! Also it must not have been stopped in between, and its content must agree with the record.
//!
//! The file is made when the first such ring starts. If it cannot be made, or its file system is full,
//! positions are kept in this process's memory, and the log reports it.
//!
//! A process that can write the file can make this port's rings go wrong, nothing more; the file is readable
//! for its owner only.

use crate::mem::{GuestMemory, HostRange};
use crate::ring::limits::MAX_QUEUE;
use crate::ring::{Position, QueueConfig, Record, RecordLayout, Recovery};
use heddle_sys::Mapping;
use heddle_sys::mmap::{Pages, memfd};
use rustix::fs::{CWD, Mode, OFlags, ftruncate, openat};
use std::fs::DirBuilder;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Identity of the ring in front of its record.
const IDENTITY: u64 = 64;
/// The mark of an identity: also the layout's version.
const MAGIC: u64 = 0x4845_4444_4c45_0000;

/// The result of [`Journal::begin`].
#[derive(Debug)]
pub enum Begun {
    /// The ring's place, and its record from now on.
    At(Position, Record),
    /// The ring contradicts its record: its driver may just be writing to it.
    Later,
}

/// The slots of one port's rings. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: Option<PathBuf>,
    rings: u16,
    /// Once it was needed.
    map: OnceLock<Arc<Mapping>>,
}

/// Bytes of a slot.
fn slot_len() -> u64 {
    (IDENTITY + RecordLayout::Dense.len(MAX_QUEUE)).next_multiple_of(64)
}

impl Journal {
    /// A journal for `rings` rings in the file `path`, or in memory of this process.
    pub fn new(path: Option<&Path>, rings: u16) -> Self {
        Self(Arc::new(Inner {
            path: path.map(Path::to_owned),
            rings,
            map: OnceLock::new(),
        }))
    }

    /// The slots, which are made where there are none yet.
    fn map(&self) -> Option<&Arc<Mapping>> {
        if let Some(map) = self.0.map.get() {
            return Some(map);
        }
        let len = slot_len() * u64::from(self.0.rings);
        let path = self.0.path.as_deref();
        let map = path.map(|path| file(path, len)).and_then(|made| {
            made.inspect_err(|e| {
                let path = path.unwrap_or(Path::new("")).display();
                log::warn!("{path} cannot be opened ({e}): packed rings will not survive this process");
            })
            .ok()
        });
        let map = map.or_else(|| {
            let fd = memfd("virtio-journal", len, Pages::Normal).ok()?;
            Mapping::of_fd(fd.as_fd(), 0, len).ok()
        })?;
        Some(self.0.map.get_or_init(|| Arc::new(map)))
    }

    fn slot(&self, index: u16) -> Option<HostRange> {
        HostRange::of(
            Arc::clone(self.map()?),
            slot_len() * u64::from(index),
            IDENTITY,
            8,
        )
        .ok()
    }

    /// The real position of ring `index`, which the front end places at `told`, and the record to keep of it
    /// from now on. `known` is its position if this session stopped it itself. A ring that contradicts its
    /// record has to be checked again, unless this is the `last` check.
    pub fn begin(
        &self,
        index: u16,
        cfg: &QueueConfig,
        told: Position,
        known: Option<Position>,
        mem: &GuestMemory,
        last: bool,
    ) -> Option<Begun> {
        let slot = self.slot(index)?;
        let at = slot_len() * u64::from(index) + IDENTITY;
        let record = Record::new(self.map()?, at, cfg.size, RecordLayout::Dense).ok()?;
        let identity = identity(cfg, told);
        let same = identity.iter().enumerate().all(|(i, &v)| slot.load64(8 * i) == v);
        let found = match known {
            None if same => match record.recover(cfg, mem).ok()? {
                Recovery::At(at) => Some(at),
                Recovery::Contradicted if !last => return Some(Begun::Later),
                Recovery::Contradicted | Recovery::Nothing => None,
            },
            _ => None,
        };
        let at = known.or(found).unwrap_or(told);
        if found.is_none() && !(same && record.is_at(at)) {
            record.start(at);
        }
        for (i, v) in identity.into_iter().enumerate() {
            slot.store64(8 * i, v);
        }
        Some(Begun::At(at, record))
    }

    /// The front end knows where ring `index` is.
    pub fn end(&self, index: u16) {
        let kept = self.0.map.get().is_some() || self.0.path.as_ref().is_some_and(|p| p.exists());
        if kept && let Some(slot) = self.slot(index) {
            slot.store64(0, 0);
        }
    }
}

/// Opens or makes the file, and its directory.
fn file(path: &Path, len: u64) -> io::Result<Mapping> {
    if let Some(dir) = path.parent() {
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let fd = openat(CWD, path, flags, Mode::RUSR | Mode::WUSR)?;
    // Filled with zeros where it is new; another version's slots have another length and no identity here.
    ftruncate(&fd, len)?;
    // The file's pages come with the first write, for which the file system may have no room.
    Mapping::guarded(fd.as_fd(), 0, len)
}

fn identity(cfg: &QueueConfig, told: Position) -> [u64; 6] {
    [
        MAGIC | slot_len(),
        u64::from(cfg.size),
        cfg.desc,
        cfg.driver,
        cfg.device,
        u64::from(told.to_base(true)),
    ]
}
