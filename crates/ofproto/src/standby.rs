//! Two devices of one guest behind one OpenFlow port: the representor of a VF and a virtio port, for example.
//!
//! **Problem.** A guest with a failover pair sends by either device, and does not notify the switch when it
//! changes the device. Rules, learned addresses and connections must not depend on the device.
//!
//! **Shape.** Packets from both devices have the port's number. Packets to the port leave by the active
//! device. A device becomes active when a frame with the guest's source address comes from it. Packets from
//! the other device are forwarded, too.
//!
//! **Costs.** Packets of cached flows are not checked. Each translation of a packet from or to the port
//! depends on `Part::Standby`, whose generation is incremented at each change. So after a change, all cached
//! flows of both devices are translated again before their next use. A later frame from the other device is
//! translated, too, and makes that device active again.

use heddle_datapath_api::PortNo;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The pair of devices of one OpenFlow port; clones share it.
#[derive(Clone)]
pub struct Standby(Arc<Shared>);

struct Shared {
    /// Number of the pair, never reused.
    id: u64,
    primary: PortNo,
    standby: PortNo,
    /// The guest's address; `None`: any source address is the guest's.
    mac: Option<[u8; 6]>,
    /// The standby is active.
    by_standby: AtomicBool,
    changes: AtomicU64,
}

impl Standby {
    /// A pair of datapath ports, with the primary active. `mac`: the guest's address; `None`: any source
    /// address is the guest's.
    pub fn new(primary: PortNo, standby: PortNo, mac: Option<[u8; 6]>) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(Arc::new(Shared {
            id: LAST.fetch_add(1, Relaxed) + 1,
            primary,
            standby,
            mac,
            by_standby: AtomicBool::new(false),
            changes: AtomicU64::new(0),
        }))
    }
    /// Whether the pair has these ports and this address.
    pub fn is_of(&self, primary: PortNo, standby: PortNo, mac: Option<[u8; 6]>) -> bool {
        (self.0.primary, self.0.standby, self.0.mac) == (primary, standby, mac)
    }
    /// The datapath port of the active device: packets to the guest leave by it.
    pub fn active(&self) -> PortNo {
        match self.0.by_standby.load(Relaxed) {
            true => self.0.standby,
            false => self.0.primary,
        }
    }
    /// Number of times that the other device became active.
    pub fn changes(&self) -> u64 {
        self.0.changes.load(Relaxed)
    }
    /// The datapath port of the standby.
    pub(crate) fn standby_port(&self) -> PortNo {
        self.0.standby
    }
    /// Number of the pair, never reused.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }
    /// Whether a frame from a datapath port, with this source, shows that the guest uses that port now.
    pub(crate) fn is_taken_by(&self, port: PortNo, source: [u8; 6]) -> bool {
        let own = port == self.0.primary || port == self.0.standby;
        let unicast = source[0] & 1 == 0 && source != [0; 6];
        let guest = self.0.mac.map_or(unicast, |mac| mac == source);
        own && guest && port != self.active()
    }
    /// Makes a device active. `true`: it was not active; then the caller increments the generation.
    pub(crate) fn change_to(&self, port: PortNo) -> bool {
        let standby = port == self.0.standby;
        let changed = self.0.by_standby.swap(standby, Relaxed) != standby;
        if changed {
            self.0.changes.fetch_add(1, Relaxed);
        }
        changed
    }
    /// The device that should become active: the other one, if it has a link and the active one has none.
    pub(crate) fn with_link(&self, primary_up: bool, standby_up: bool) -> Option<PortNo> {
        let (active, other, to) = match self.active() == self.0.standby {
            true => (standby_up, primary_up, self.0.primary),
            false => (primary_up, standby_up, self.0.standby),
        };
        (!active && other).then_some(to)
    }
}

impl PartialEq for Standby {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Standby {}

impl fmt::Debug for Standby {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Standby")
            .field(&self.0.primary)
            .field(&self.0.standby)
            .finish()
    }
}
