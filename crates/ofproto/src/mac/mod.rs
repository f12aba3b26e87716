//! MAC learning: which port an Ethernet address was last seen on, per bridge.
//!
//! **Problem.** Every worker looks addresses up while it translates and most of them learn. Lookups must not
//! wait for learners, and a worker must never wait at all.
//!
//! **Shape.** Readers walk an array of buckets that are replaced as a whole ([`index`]). A thread that
//! changes the table holds one mutex, which guards the order of use ([`lru`]). A worker only *tries* to take
//! it. If it is taken, [`MacTable::learn`] returns [`Learned::Busy`]; the translation is not cached, so that
//! the next packet learns.
//!
//! **Generations.** An address has two slots. [`MacTable::slot`] moves when the result of a lookup changes:
//! an entry appears, moves to another port or goes. [`MacTable::source_slot`] moves only when an entry goes,
//! and not to make room for another. A translation that looked up a destination depends on the first, one
//! that learned a source on the second. So packets of a source learn again after a flush. But two ports that
//! fight for an address do not make every packet of both a miss. The entry then moves when cached packets are
//! credited, to the port of the latest of them.
//!
//! **Limits.** A table has at most [`MacConfig::max_entries`]. A full table evicts the least recently used
//! entry of the port with the most entries. So a port that makes addresses up evicts its own ones. Static
//! entries are not aged and not flushed.

mod age;
mod config;
mod credit;
mod index;
mod learn;
mod lru;
#[cfg(test)]
mod tests;

pub use age::MacEntry;
pub use config::{MacConfig, MacStats};
pub use credit::MacCredit;
pub use learn::{Learn, Learned};

use heddle_datapath_api::Generations;
use heddle_openflow::Port;
use parking_lot::Mutex;
use std::sync::Arc;

/// An address in a VLAN.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MacKey {
    /// The address.
    pub mac: [u8; 6],
    /// The VLAN, 0 to 4095.
    pub vlan: u16,
}

impl MacKey {
    /// Address and VLAN as one number.
    fn bits(self) -> u64 {
        self.mac
            .iter()
            .fold(u64::from(self.vlan & 0xfff), |h, b| h << 8 | u64::from(*b))
    }
    /// Whether it is a group address: never learned, never looked up.
    pub fn is_multicast(self) -> bool {
        self.mac[0] & 1 != 0
    }
}

/// The learned addresses of one bridge.
pub struct MacTable {
    bridge: u64,
    generations: Arc<Generations>,
    index: index::Index,
    inner: Mutex<lru::Inner>,
}

impl MacTable {
    /// Keeps the table taken, as a control thread does.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Drop + use<'_> {
        self.inner.lock()
    }
    /// An empty table for bridge `bridge` (its number, so that slots differ from bridge to bridge).
    pub fn new(bridge: u64, generations: Arc<Generations>) -> Self {
        let config = MacConfig::default();
        Self {
            bridge,
            generations,
            index: index::Index::new(config.max_entries),
            inner: Mutex::new(lru::Inner::new(config)),
        }
    }

    /// The port that `key` was learned on. Never waits.
    pub fn lookup(&self, key: MacKey) -> Option<Port> {
        if key.is_multicast() {
            return None;
        }
        self.index.port_of(key)
    }

    /// The slot that moves when the result of [`MacTable::lookup`] changes.
    pub fn slot(&self, key: MacKey) -> u16 {
        Generations::learned_slot_of(self.bridge.rotate_left(20) ^ key.bits() ^ 1 << 62)
    }

    /// The slot that moves when an entry for `key` goes, unless it makes room for another.
    pub fn source_slot(&self, key: MacKey) -> u16 {
        Generations::learned_slot_of(self.bridge.rotate_left(20) ^ key.bits() ^ 1 << 63)
    }
}
