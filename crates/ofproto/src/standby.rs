//! Two devices of one guest behind one OpenFlow port: the representor of a VF and a virtio port, for example.
//!
//! **Problem.** A guest with a failover pair sends by either device, and changes over without a word to the
//! switch. Rules, learned addresses and connections must not see that.
//!
//! **Shape.** Packets from both devices have the port's number. Packets to the port leave by the active
//! device. The device from which a frame with the guest's source address comes becomes the active one. Packets
//! from the other device are forwarded all the same.
//!
//! **Learning costs nothing on the way of cached packets.** Each translation of a packet from or to the port
//! depends on [`Part::Standby`], whose generation is counted up at each change. So after a change all cached
//! flows of both devices are translated again before their next use. The next frame from the device that the
//! guest has left reaches the translation, too, and makes that device active again.

use crate::Ofproto;
use crate::parts::Part;
use heddle_datapath_api::{Generations, PortNo};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The pair of devices of one OpenFlow port.
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
    /// Whether it is the pair of these ports, with this address.
    pub fn is_of(&self, primary: PortNo, standby: PortNo, mac: Option<[u8; 6]>) -> bool {
        (self.0.primary, self.0.standby, self.0.mac) == (primary, standby, mac)
    }
    /// The datapath port that packets leave by.
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
    /// The generation slot of translations that depend on the active device.
    pub(crate) fn slot(&self) -> u16 {
        Part::Standby(self.0.id).slot()
    }
    /// Whether a frame from a datapath port, with this source, shows that the guest uses that port now.
    pub(crate) fn is_taken_by(&self, port: PortNo, source: [u8; 6]) -> bool {
        let own = port == self.0.primary || port == self.0.standby;
        let unicast = source[0] & 1 == 0 && source != [0; 6];
        let guest = self.0.mac.map_or(unicast, |mac| mac == source);
        own && guest && port != self.active()
    }
    /// Makes a device active.
    pub(crate) fn change_to(&self, port: PortNo, generations: &Generations) {
        let standby = port == self.0.standby;
        if self.0.by_standby.swap(standby, Relaxed) != standby {
            self.0.changes.fetch_add(1, Relaxed);
            // After the state: a translation that has read the old state has an older generation.
            generations.bump(self.slot());
        }
    }
    /// Makes the other device active if the active one has lost its link and the other one has it.
    pub fn follow_links(&self, of: &Ofproto, primary_up: bool, standby_up: bool) {
        let (active, other, to) = match self.active() == self.0.standby {
            true => (standby_up, primary_up, self.0.primary),
            false => (primary_up, standby_up, self.0.standby),
        };
        if !active && other {
            self.change_to(to, &of.pipeline().shared_generations());
            of.pipeline().report_moved_guest();
        }
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
