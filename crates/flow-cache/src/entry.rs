//! A cached flow's two cache lines: the key of the packet that it was made for, and its counters.
//!
//! The entry's mask selects the bits of the key that count. The other bits are kept for display: Open vSwitch
//! shows them too.
//!
//! **Access.** The worker that owns the entry writes all fields. The revalidator reads all fields at any
//! time, and writes `evicted`. All accesses are atomic, so no reader sees a torn word. The `id` shows which
//! words belong together:
//!
//! * An entry is in use while its `id` is not zero. Ids are never used twice.
//! * The owner writes all other fields, then `id` (Release). To free or change the entry of an id, the owner
//!   writes zero to `id`, then a Release fence, and only then other fields.
//! * A reader ([`CacheEntry::read`]) loads `id` (Acquire), then fields, then after an Acquire fence `id`
//!   again. Equal ids mean that the fields are those of that id. Counters may be of any moment in between.
//! * `evicted` holds the id of an evicted entry; owner and revalidator evict. Since ids are not reused, a
//!   late store evicts no other entry.
//!
//! The key holds the entry's context in the place of the origin. The context selects the packet's bits
//! outside of the compact key that count.

use crate::atomic::{AtomicU16, AtomicU32, AtomicU64, FromZeros, fence};
use crate::compact::CompactKey;
use crate::program_table::ProgramId;
use heddle_datapath_api::FlowCounts;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A cached flow. All zeros is a free one.
#[repr(C, align(128))]
#[derive(Debug, FromZeros)]
pub struct CacheEntry {
    key: [AtomicU64; 8],
    // -- second line: what each hit reads and writes
    id: AtomicU64,
    evicted: AtomicU64,
    translation: AtomicU32,
    subtable: AtomicU32,
    packets: AtomicU64,
    bytes: AtomicU64,
    /// Milliseconds of the datapath's clock: last use, or creation while there were no packets.
    used_ms: AtomicU64,
    tcp_flags: AtomicU16,
    /// The entry's [`Membership`]. Only the owner uses it.
    group: AtomicU16,
    stamp: AtomicU32,
    /// The number of the cached translation's program. Only the owner uses it.
    program: AtomicU32,
    _rest: u32,
}

/// An entry's group, and the last change there that the entry is known to survive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Membership {
    pub(crate) group: u16,
    pub(crate) stamp: u32,
}

/// The fields of an entry to be published.
#[derive(Clone, Copy)]
pub(crate) struct NewEntry {
    pub(crate) id: u64,
    pub(crate) key: CompactKey,
    pub(crate) translation: u32,
    pub(crate) subtable: u32,
    pub(crate) program: ProgramId,
    pub(crate) now_ms: u64,
    pub(crate) membership: Membership,
}

/// A consistent copy of an entry in use.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    /// The entry's id.
    pub id: u64,
    /// The entry is evicted: lookups do not find it.
    pub evicted: bool,
    /// The number of its cached translation.
    pub translation: u32,
    /// The number of its mask.
    pub subtable: u32,
    /// The packets counted so far. Without packets, `used_ms` is the time of creation.
    pub counts: FlowCounts,
}

impl CacheEntry {
    // -- for the owner

    /// Fills a free entry.
    pub(crate) fn publish(&self, n: &NewEntry) {
        // Pairs with the reader's fence: a reader that sees one of these stores also sees the zero that
        // `free` (or the start) left in `id`.
        fence(Release);
        for (to, word) in self.key.iter().zip(n.key.words()) {
            to.store(*word, Relaxed);
        }
        self.translation.store(n.translation, Relaxed);
        self.subtable.store(n.subtable, Relaxed);
        self.packets.store(0, Relaxed);
        self.bytes.store(0, Relaxed);
        self.used_ms.store(n.now_ms, Relaxed);
        self.tcp_flags.store(0, Relaxed);
        self.program.store(n.program.0, Relaxed);
        self.set_membership(n.membership);
        self.id.store(n.id, Release);
    }
    /// Frees the entry: from now on the other fields mean nothing.
    pub(crate) fn free(&self) {
        self.id.store(0, Relaxed);
    }
    /// Gives the entry another cached translation under another id. The counters continue.
    pub(crate) fn rename(&self, id: u64, translation: u32, program: ProgramId) {
        self.id.store(0, Relaxed);
        fence(Release);
        self.translation.store(translation, Relaxed);
        self.program.store(program.0, Relaxed);
        self.id.store(id, Release);
    }
    /// Counts a run of packets.
    #[inline]
    pub fn count(&self, packets: u64, bytes: u64, now_ms: u64, tcp_flags: u16) {
        let add = |c: &AtomicU64, n: u64| c.store(c.load(Relaxed).wrapping_add(n), Relaxed);
        add(&self.packets, packets);
        add(&self.bytes, bytes);
        self.used_ms.store(now_ms, Relaxed);
        if tcp_flags != 0 {
            self.tcp_flags
                .store(self.tcp_flags.load(Relaxed) | tcp_flags, Relaxed);
        }
    }
    /// The entry's id; zero: free.
    #[inline]
    pub fn id(&self) -> u64 {
        self.id.load(Relaxed)
    }
    /// Whether it is in use and not evicted.
    #[inline]
    pub fn alive(&self) -> bool {
        let id = self.id.load(Relaxed);
        id != 0 && self.evicted.load(Relaxed) != id
    }
    /// The number of its cached translation.
    #[inline]
    pub fn translation(&self) -> u32 {
        self.translation.load(Relaxed)
    }
    /// The number of its mask.
    #[inline]
    pub fn subtable(&self) -> u32 {
        self.subtable.load(Relaxed)
    }
    /// The entry's group, and the entry's stamp there.
    #[inline]
    pub(crate) fn membership(&self) -> Membership {
        Membership {
            group: self.group.load(Relaxed),
            stamp: self.stamp.load(Relaxed),
        }
    }
    #[inline]
    pub(crate) fn set_stamp(&self, stamp: u32) {
        self.stamp.store(stamp, Relaxed);
    }
    pub(crate) fn set_membership(&self, new: Membership) {
        self.group.store(new.group, Relaxed);
        self.stamp.store(new.stamp, Relaxed);
    }
    /// The number of its program.
    #[inline]
    pub fn program(&self) -> ProgramId {
        ProgramId(self.program.load(Relaxed))
    }
    /// Word `i` of the key.
    #[inline]
    pub fn word(&self, i: usize) -> u64 {
        self.key[i].load(Relaxed)
    }
    /// A word of the second cache line, to be prefetched.
    #[inline]
    pub(crate) fn hot(&self) -> &AtomicU64 {
        &self.id
    }
    /// The key of the packet that it was made for, as long as the entry is in use.
    pub fn key(&self) -> CompactKey {
        CompactKey::from_words(std::array::from_fn(|i| self.key[i].load(Relaxed)))
    }

    // -- for the revalidator

    /// Marks the entry of this id as evicted: lookups do not find it any more.
    pub fn evict(&self, id: u64) {
        self.evicted.store(id, Relaxed);
    }
    /// Copies the entry. `None` if it is free or the owner changes it meanwhile.
    pub(crate) fn read(&self) -> Option<Snapshot> {
        let id = self.id.load(Acquire); // pairs with the Release in `publish` and `rename`
        if id == 0 {
            return None;
        }
        let s = Snapshot {
            id,
            evicted: self.evicted.load(Relaxed) == id,
            translation: self.translation.load(Relaxed),
            subtable: self.subtable.load(Relaxed),
            counts: FlowCounts {
                packets: self.packets.load(Relaxed),
                bytes: self.bytes.load(Relaxed),
                used_ms: self.used_ms.load(Relaxed),
                tcp_flags: self.tcp_flags.load(Relaxed),
            },
        };
        // Pairs with the owner's fences: a field of a later id was seen only if its zero is seen here.
        fence(Acquire);
        (self.id.load(Relaxed) == id).then_some(s)
    }
    /// Reads the key, if the entry still has this id.
    pub(crate) fn read_key(&self, id: u64) -> Option<CompactKey> {
        if self.id.load(Acquire) != id {
            return None;
        }
        let key = self.key();
        fence(Acquire);
        (self.id.load(Relaxed) == id).then_some(key)
    }
}
