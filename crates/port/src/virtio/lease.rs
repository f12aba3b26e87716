//! A guest's transmit ring on its way between the session and the worker that polls it.
//!
//! **Problem.** The session starts, changes and stops a ring at any time. A worker uses it for each burst,
//! and packets point into the guest's memory from [`heddle_virtio::DeviceRx::rx`] to `complete`. Neither may
//! wait for the other for long, and the worker must not pay for changes that do not happen.
//!
//! **How.** The ring is lent: the worker keeps it, and looks before each burst at one number
//! ([`Lease::turn`]) that only changes when the session wants something. Then it takes the lock if that is
//! free, hands the ring back or takes another; if not, it looks again at its next poll. The session requests
//! the ring back, rings the doorbell and waits until it is there, which takes one burst of a worker that
//! runs.
//!
//! **Invariants.** A ring is in one place: here, or with one worker. A worker gives it back between bursts
//! only. A queue that is dropped (its worker ends, the port is reconfigured) gives it back too.
//!
//! **Costs.** One load of a line that is seldom written, per poll. Changes cost the session up to one burst.
//! The session waits at most [`LEASE_TIMEOUT`] and logs a timeout.

use super::counts::RxCounts;
use heddle_sys::WakeSet;
use heddle_virtio::device::{Call, Link};
use heddle_virtio::{DeviceRx, RingError};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time that the session waits for a worker. A worker that does not come back within seconds has ended by a
/// fault of its own.
pub(super) const LEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// A started ring and its notifications.
#[derive(Debug)]
pub(super) struct FromGuest {
    pub(super) ring: Box<DeviceRx>,
    /// Notifications of the guest.
    pub(super) call: Option<Call>,
    /// Notified when the ring breaks.
    pub(super) err: Option<Call>,
    /// Packets are forwarded; otherwise taken and dropped.
    pub(super) enabled: bool,
    /// For addresses that the memory table does not have yet.
    pub(super) link: Option<Arc<dyn Link>>,
    /// The number of the ring's start ([`Lease::start`]).
    pub(super) generation: u64,
}

#[derive(Debug, Default)]
struct Custody {
    ring: Option<FromGuest>,
    lent: bool,
    /// Starts and ends so far: a ring that is returned with another generation came too late, and is dropped.
    generation: u64,
    wanted: bool,
    /// The port is administratively down: the ring stays here.
    down: bool,
    announce: Option<[u8; 6]>,
    failure: Option<RingError>,
}

/// The place of one receive queue's ring. Lives as long as its port.
#[derive(Debug)]
pub(super) struct Lease {
    turn: AtomicU32,
    state: Mutex<Custody>,
    returned: Condvar,
    pub(super) wake: WakeSet,
    pub(super) counts: RxCounts,
}

/// Values that a worker takes from a lease.
#[derive(Debug, Default)]
pub(super) struct Handed {
    /// The ring to poll from now on.
    pub(super) ring: Option<FromGuest>,
    /// Announce this address to the network, once.
    pub(super) announce: Option<[u8; 6]>,
}

impl Lease {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            turn: AtomicU32::new(1),
            state: Mutex::default(),
            returned: Condvar::new(),
            wake: WakeSet::new()?,
            counts: RxCounts::default(),
        })
    }

    // -- the worker's side

    /// Changes when the worker is to look ([`Lease::exchange`]). Zero is never its value.
    #[inline]
    pub(super) fn turn(&self) -> u32 {
        self.turn.load(Ordering::Acquire) // pairs with the Release in `changed`
    }
    /// Gives back the worker's ring, and takes the one that it is to hold; returns also the turn of this
    /// exchange. `None`: the session holds the lock, try again later.
    pub(super) fn exchange(&self, mine: &mut Option<FromGuest>) -> Option<(u32, Handed)> {
        let mut s = self.state.try_lock()?;
        let turn = self.turn();
        let late = mine.take().and_then(|ring| self.take_back(&mut s, ring));
        let announce = s.announce.take();
        let ring = if s.wanted || s.down { None } else { s.ring.take() };
        s.lent |= ring.is_some();
        drop(s);
        drop(late); // this may unmap a guest's memory
        Some((turn, Handed { ring, announce }))
    }
    /// The worker takes no more: its queue ends.
    pub(super) fn give_back(&self, mine: FromGuest) {
        let late = self.take_back(&mut self.state.lock(), mine);
        drop(late);
    }
    /// Takes back a ring that a worker had. Returns it if it is of an earlier start, for which the session no
    /// longer waits.
    fn take_back(&self, s: &mut Custody, mine: FromGuest) -> Option<FromGuest> {
        if mine.generation != s.generation {
            return Some(mine);
        }
        s.ring = Some(mine);
        s.lent = false;
        self.returned.notify_all();
        None
    }
    /// The ring broke, or works again with a new memory table. `false`: the session is just here, come again.
    pub(super) fn try_set_failure(&self, failure: Option<RingError>) -> bool {
        self.state.try_lock().map(|mut s| s.failure = failure).is_some()
    }

    // -- the session's side

    /// Makes the worker look, also one that sleeps.
    fn changed(&self) {
        // Release pairs with the Acquire in `turn`. Zero is left out, so that a new queue always looks.
        if self.turn.fetch_add(1, Ordering::Release) == u32::MAX {
            self.turn.fetch_add(1, Ordering::Release);
        }
        self.wake.ring();
    }
    /// A ring starts.
    pub(super) fn start(&self, ring: FromGuest) {
        let mut s = self.state.lock();
        s.generation += 1;
        s.ring = Some(FromGuest {
            generation: s.generation,
            ..ring
        });
        s.lent = false;
        s.wanted = false;
        s.failure = None;
        drop(s);
        self.changed();
    }
    /// Calls `change` on the started ring while no worker has it. `None`: there is no ring.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut FromGuest) -> T) -> Option<T> {
        let mut ring = self.recall()?;
        let value = change(&mut ring);
        let mut s = self.state.lock();
        s.ring = Some(ring);
        s.wanted = false;
        drop(s);
        self.changed();
        Some(value)
    }
    /// Takes the ring away for good. `None`: there is none, or a worker does not give it back.
    pub(super) fn stop(&self) -> Option<FromGuest> {
        let ring = self.recall();
        let mut s = self.state.lock();
        if ring.is_none() {
            // The worker that holds it must not bring it back.
            s.generation += 1;
            s.lent = false;
        }
        s.wanted = false;
        s.failure = None;
        s.announce = None;
        ring
    }
    fn recall(&self) -> Option<FromGuest> {
        let mut s = self.state.lock();
        if s.lent {
            s.wanted = true;
            self.changed();
            let until = Instant::now() + LEASE_TIMEOUT;
            while s.lent {
                if self.returned.wait_until(&mut s, until).timed_out() && s.lent {
                    log::error!(target: "netdev_dpdk", "a worker does not give a ring back");
                    s.wanted = false;
                    return None;
                }
            }
        }
        s.ring.take()
    }
    /// Lets the worker look at the memory table again.
    pub(super) fn refresh(&self) {
        let s = &mut *self.state.lock();
        match &mut s.ring {
            Some(mine) => mine.ring.refresh(),
            None if s.lent => self.wake.ring(),
            None => {}
        }
    }
    /// The port went up or down.
    pub(super) fn set_down(&self, down: bool) {
        self.state.lock().down = down;
        self.changed();
    }
    /// An address is to be announced by the worker, as if the guest had sent it.
    pub(super) fn announce(&self, mac: [u8; 6]) {
        self.state.lock().announce = Some(mac);
        self.changed();
    }
    /// Why the ring is stopped, if it is.
    pub(super) fn failure(&self) -> Option<RingError> {
        self.state.lock().failure
    }
}
