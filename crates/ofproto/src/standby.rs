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
//! depends on `Part::FailoverPair`, whose generation is incremented at each change. So after a change, all
//! cached flows of both devices are translated again before their next use. A later frame from the other
//! device is translated, too, and makes that device active again.
//!
//! **Limit.** A guest that sends by both devices in turns would have each packet translated. So a pair has
//! credits, [`CREDITS_PER_TICK`] each [`crate::Ofproto::tick`], at most [`MAX_CREDITS`]. A change by a frame
//! costs one. Without a credit, the frame is forwarded and the active device stays. With the next credit, the
//! flows are translated again, so that the device that the guest uses by then becomes active.

use heddle_datapath_api::PortNo;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Maximum number of changes by frames without a pause.
pub const MAX_CREDITS: u32 = 20;
/// Number of changes by frames that each tick (100 ms) allows.
pub const CREDITS_PER_TICK: u32 = 2;

/// The pair of devices of one OpenFlow port; clones share it.
#[derive(Clone)]
pub struct FailoverPair(Arc<Shared>);

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
    credits: AtomicU32,
    /// A frame has found no credit since the last tick.
    waiting: AtomicBool,
    /// Ticks before which a frame has found no credit.
    limited: AtomicU64,
}

/// Outcome of a frame from the device that is not active.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// The device is active now; the caller increments the generation.
    Done,
    /// The device is active already.
    Unchanged,
    /// No credit is left.
    Limited,
}

impl FailoverPair {
    /// A pair of datapath ports. `mac`: the guest's address; `None`: any source address is the guest's.
    /// `by_standby`: the standby is active at first, else the primary.
    pub fn new(primary: PortNo, standby: PortNo, mac: Option<[u8; 6]>, by_standby: bool) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(Arc::new(Shared {
            id: LAST.fetch_add(1, Relaxed) + 1,
            primary,
            standby,
            mac,
            by_standby: AtomicBool::new(by_standby),
            changes: AtomicU64::new(0),
            credits: AtomicU32::new(MAX_CREDITS),
            waiting: AtomicBool::new(false),
            limited: AtomicU64::new(0),
        }))
    }
    /// Whether the pair has these ports and this address.
    pub fn is_of(&self, primary: PortNo, standby: PortNo, mac: Option<[u8; 6]>) -> bool {
        (self.0.primary, self.0.standby, self.0.mac) == (primary, standby, mac)
    }
    /// The datapath port of the active device: packets to the guest leave by it.
    pub fn active(&self) -> PortNo {
        match self.is_by_standby() {
            true => self.0.standby,
            false => self.0.primary,
        }
    }
    /// Whether a datapath port is one of the two devices.
    pub(crate) fn has(&self, port: PortNo) -> bool {
        port == self.0.primary || port == self.0.standby
    }
    /// Whether the standby is active.
    pub fn is_by_standby(&self) -> bool {
        self.0.by_standby.load(Relaxed)
    }
    /// Number of ticks (100 ms) in which the guest changed its device more often than the limit.
    pub fn limited(&self) -> u64 {
        self.0.limited.load(Relaxed)
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
        let unicast = source[0] & 1 == 0 && source != [0; 6];
        let guest = self.0.mac.map_or(unicast, |mac| mac == source);
        self.has(port) && guest && port != self.active()
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
    /// Makes a device active, if a credit is left.
    pub(crate) fn change_by_frame(&self, port: PortNo) -> Change {
        if port == self.active() {
            return Change::Unchanged;
        }
        let take = |credits: u32| credits.checked_sub(1);
        if self.0.credits.fetch_update(Relaxed, Relaxed, take).is_err() {
            self.0.waiting.store(true, Relaxed);
            return Change::Limited;
        }
        match self.change_to(port) {
            true => Change::Done,
            false => Change::Unchanged,
        }
    }
    /// Adds the credits of one tick. Returns whether more are due at the next tick, and whether a frame waits
    /// for a credit: then the caller increments the generation.
    pub(crate) fn refill(&self) -> (bool, bool) {
        let add = |credits: u32| Some((credits + CREDITS_PER_TICK).min(MAX_CREDITS));
        let before = self
            .0
            .credits
            .fetch_update(Relaxed, Relaxed, add)
            .unwrap_or_default();
        let waiting = self.0.waiting.swap(false, Relaxed);
        if waiting {
            self.0.limited.fetch_add(1, Relaxed);
        }
        (before + CREDITS_PER_TICK < MAX_CREDITS, waiting)
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

impl PartialEq for FailoverPair {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for FailoverPair {}

impl fmt::Debug for FailoverPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FailoverPair")
            .field(&self.0.primary)
            .field(&self.0.standby)
            .finish()
    }
}
