//! Multicast snooping: which ports have listeners of a group, per bridge and VLAN (RFC 4541).
//!
//! **Problem.** NORMAL sends multicast to ports that want it. Reports and queries, which any guest may send
//! at any rate, change the table. Workers look groups up while they translate, and never wait.
//!
//! **Shape.** As the MAC table ([`crate::mac`]). Readers walk [`Buckets`]; a thread that changes the table
//! holds one mutex. A worker only tries to take it. If another thread has it, the report goes into a queue of
//! bounded length, and the next thread with the mutex takes it from there.
//!
//! **Ports.** A listener is a row of `Port`, so that a bond is one listener. The number of a listener
//! ([`Listener::bundle`]) is never reused within a bridge. Ports that queries come from are the listeners of
//! [`GroupKey::routers`].
//!
//! **Generations.** [`SnoopingTable::slot`] of a group moves when its listeners change, not when one of them
//! reports it again. A translation depends on the slot of its group and on that of the VLAN's routers.
//!
//! **Limits.** A table has at most [`SnoopingConfig::max_groups`]. A full table forgets the group that was
//! reported least recently among those of the port with the most groups. A group counts as that of the port
//! that reported it first. So a guest that reports groups without end loses its own ones. The number of
//! router ports is bounded by the number of ports and VLANs. The work of a port's messages is bounded by its
//! [`ReportBudget`].

mod age;
mod budget;
mod learn;
mod owners;
#[cfg(test)]
mod tests;

pub use age::SnoopedListener;
pub(crate) use budget::RECORDS_PER_SECOND;
pub use budget::ReportBudget;
pub(crate) use learn::{MembershipChange, MembershipReport, Snooped};

pub use heddle_wire::membership::Protocol;

use crate::buckets::Buckets;
use heddle_datapath_api::Generations;
use heddle_openflow::Port;
use parking_lot::Mutex;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;

/// Settings, as the row of `Bridge` has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnoopingConfig {
    /// Maximum number of groups, 10 to 1,000,000.
    pub max_groups: usize,
    /// Seconds without a report before a listener goes, 15 to 3600.
    pub idle_s: u64,
    /// Packets of groups without listeners go to all ports.
    pub flood_unregistered: bool,
}

impl Default for SnoopingConfig {
    fn default() -> Self {
        Self {
            max_groups: 2048,
            idle_s: 300,
            flood_unregistered: true,
        }
    }
}

/// Settings of one port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortSnooping {
    /// The port gets all multicast.
    pub flood: bool,
    /// The port gets all reports.
    pub flood_reports: bool,
}

/// A group in a VLAN.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupKey {
    /// Address of the group; an IPv4 one is mapped.
    pub group: Ipv6Addr,
    /// The VLAN, 0 to 4095.
    pub vlan: u16,
}

impl GroupKey {
    /// The key of the ports with routers in a VLAN: no group has the unspecified address.
    pub fn routers(vlan: u16) -> Self {
        Self {
            group: Ipv6Addr::UNSPECIFIED,
            vlan,
        }
    }
    /// The key of the ports that have used up their [`ReportBudget`]: no VLAN has this number.
    fn limited() -> Self {
        Self::routers(u16::MAX)
    }
    /// Whether it is one of [`GroupKey::routers`].
    pub fn is_of_routers(self) -> bool {
        self.group.is_unspecified()
    }
}

/// A port behind which there are listeners, or a router.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listener {
    /// Number of the bundle: [`PortBundle::id`](crate::model::PortBundle::id).
    pub bundle: u32,
    /// One of its ports, by which it is found.
    pub port: Port,
}

/// The listeners of a group, as lookups see them.
#[derive(Debug)]
pub(crate) struct Group {
    key: GroupKey,
    /// In the order in which they came.
    pub(crate) listeners: Box<[Listener]>,
}

/// The groups of one bridge, and the ports of routers.
pub struct SnoopingTable {
    generations: Arc<Generations>,
    hash: RandomState,
    index: Buckets<Group>,
    inner: Mutex<learn::Inner>,
    /// Reports of threads that found the mutex taken. Sending tries once, and never waits.
    queue: SyncSender<MembershipReport>,
    /// Translations may depend on the limit's slot.
    has_limited: AtomicBool,
}

impl SnoopingTable {
    /// An empty table.
    pub fn new(generations: Arc<Generations>, config: &SnoopingConfig) -> Self {
        let (queue, inner) = learn::Inner::new();
        let table = Self {
            generations,
            hash: RandomState::new(),
            index: Buckets::new(config.max_groups),
            inner: Mutex::new(inner),
            queue,
            has_limited: AtomicBool::new(false),
        };
        table.configure(config);
        table
    }

    fn bits(&self, key: GroupKey) -> u64 {
        self.hash.hash_one(key)
    }

    /// The slot that moves when the result of [`SnoopingTable::lookup`] changes.
    pub(crate) fn slot(&self, key: GroupKey) -> u16 {
        Generations::learned_slot_of(self.bits(key))
    }

    /// The slot that moves when ports may send reports again.
    pub(crate) fn limit_slot(&self) -> u16 {
        self.slot(GroupKey::limited())
    }
    /// Notes that a translation depends on [`SnoopingTable::limit_slot`].
    pub(crate) fn set_limited(&self) {
        self.has_limited.store(true, Relaxed);
    }

    /// The listeners of a group; `None`: it has none. Never waits.
    pub(crate) fn lookup(&self, key: GroupKey) -> Option<Arc<Group>> {
        self.index.read(self.bits(key), |g| g.key == key, Arc::clone)
    }
}

/// Multicast snooping of a bridge, as translation sees it.
#[derive(Clone)]
pub struct SnoopingView {
    /// Groups and routers.
    pub table: Arc<SnoopingTable>,
    /// See [`SnoopingConfig`].
    pub flood_unregistered: bool,
    /// Ports that get all multicast, in the order in which they were set.
    pub flood: Vec<Listener>,
    /// Ports that get all reports, in the order in which they were set.
    pub flood_reports: Vec<Listener>,
}

impl PartialEq for SnoopingView {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            table,
            flood_unregistered,
            flood,
            flood_reports,
        } = self;
        Arc::ptr_eq(table, &other.table)
            && *flood_unregistered == other.flood_unregistered
            && (flood, flood_reports) == (&other.flood, &other.flood_reports)
    }
}
