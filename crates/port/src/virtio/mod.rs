//! The virtio-net device as a port, for any session that hands over a driver's memory and rings.
//!
//! **Problem.** A session hands rings over and takes them back whenever it likes; workers move packets by
//! these rings all the time. A session waits for a worker at most one burst long. A worker never waits, and
//! the fast path must not pay for rare changes.
//!
//! **Parts.** A session drives [`PortDevice`] ([`heddle_virtio::device::Device`]). Rings from the guest are
//! lent to the worker that polls them ([`lease`]). Rings to the guest are used for a burst at a time by the
//! worker that sends ([`txset`]). Packets that the guest does not take unfinished are segmented and summed in
//! software ([`takes`], [`tx`]). A port type holds a [`Shared`], gives its session a [`PortDevice`] on it,
//! and implements most of [`crate::Port`] by it.
//!
//! **Names.** Keys of `Interface.status` and counters are those that Open vSwitch has for vhost-user ports
//! ([`state`]).
//!
//! **A broken ring** stops by itself ([`heddle_virtio::RingError`]). It is counted, logged once
//! (rate-limited), shown in `Interface.status` and reported to the front end. Other rings continue.

mod counts;
mod device;
mod lease;
mod rarp;
mod rx;
mod state;
mod takes;
#[cfg(test)]
mod tests;
mod tx;
mod txset;

pub(crate) use device::{MIN_MTU, PortDevice};
pub(crate) use rx::Changed;
pub(crate) use state::{Backing, DEFAULT_MTU};

use crate::rates::Rates;
use crate::{PortError, RxQueue, TxQueue};
use heddle_virtio::device::MAX_QUEUE_PAIRS;
use lease::Lease;
use parking_lot::Mutex;
use rx::VirtioRx;
use state::{DeviceState, MAX_MTU};
use std::io;
use std::sync::Arc;
use tx::VirtioTx;
use txset::TxSet;

/// The state that a port, its queues and its session share.
pub(crate) struct Shared {
    pub(crate) name: Arc<str>,
    pub(crate) backing: Backing,
    changed: Changed,
    rx: Mutex<Vec<Arc<Lease>>>,
    pub(crate) tx: TxSet,
    pub(crate) rates: Arc<Rates>,
    state: Mutex<DeviceState>,
}

impl Shared {
    /// A port without a session. `tx_retries_max`: how often a burst looks again for buffers of the guest.
    pub(crate) fn new(name: &str, backing: Backing, changed: Changed, tx_retries_max: u32) -> Arc<Self> {
        let name: Arc<str> = name.into();
        Arc::new(Self {
            tx: TxSet::new(Arc::clone(&name), Arc::clone(&changed), tx_retries_max),
            name,
            backing,
            changed,
            rx: Mutex::default(),
            rates: Arc::default(),
            state: Mutex::new(DeviceState::new(state::random_mac())),
        })
    }
    /// Changes the state, and notifies the part that shows it.
    fn update(&self, change: impl FnOnce(&mut DeviceState)) {
        let at = self.backing.at.lock().clone();
        let mut state = self.state.lock();
        change(&mut state);
        state.follow_link(&at);
        drop(state);
        (self.changed)();
    }
    /// The place of receive queue `index`, made if need be.
    fn lease(&self, index: usize) -> io::Result<Arc<Lease>> {
        let mut all = self.rx.lock();
        while all.len() <= index {
            let lease = Lease::new()?;
            lease.set_down(!self.state.lock().admin_up);
            all.push(Arc::new(lease));
        }
        Ok(Arc::clone(&all[index]))
    }
    fn known_lease(&self, index: usize) -> Option<Arc<Lease>> {
        self.rx.lock().get(index).cloned()
    }
    fn leases(&self) -> Vec<Arc<Lease>> {
        self.rx.lock().clone()
    }
}

/// Functions that implement [`crate::Port`].
impl Shared {
    pub(crate) fn open_rx(&self, n: usize) -> Result<Vec<Box<dyn RxQueue>>, PortError> {
        let n = n.clamp(1, usize::from(MAX_QUEUE_PAIRS));
        let mut queues: Vec<Box<dyn RxQueue>> = Vec::with_capacity(n);
        for i in 0..n {
            let lease = self.lease(i).map_err(|e| PortError::open(&self.name, e))?;
            let (name, changed) = (Arc::clone(&self.name), Arc::clone(&self.changed));
            queues.push(Box::new(VirtioRx::new(lease, name, i, changed)));
        }
        Ok(queues)
    }
    pub(crate) fn open_tx(self: &Arc<Self>, worker: usize) -> Box<dyn TxQueue> {
        Box::new(VirtioTx::new(Arc::clone(self), worker))
    }
    pub(crate) fn rxq_enabled(&self, queue: usize) -> bool {
        self.state.lock().session.polls(queue)
    }
    pub(crate) fn set_mtu(&self, mtu: u32) -> Result<(), PortError> {
        let name = &self.name;
        let refused = !(u32::from(MIN_MTU)..=MAX_MTU).contains(&mtu);
        let before = {
            let s = self.state.lock();
            (s.mtu, s.refused_mtu)
        };
        if !refused && before != (mtu, None) {
            self.update(|s| (s.mtu, s.refused_mtu) = (mtu, None));
        }
        if refused && before.1 != Some(mtu) {
            log::warn!(target: "netdev_dpdk", "{name}: unsupported MTU {mtu}");
            self.update(|s| s.refused_mtu = Some(mtu));
        }
        if refused {
            return Err(PortError::sys(
                format!("could not set MTU of {name} to {mtu}"),
                io::Error::from_raw_os_error(state::EINVAL),
            ));
        }
        Ok(())
    }
    pub(crate) fn set_mac(&self, mac: [u8; 6]) {
        self.update(|s| s.mac = mac);
    }
    pub(crate) fn set_admin(&self, up: bool) {
        self.update(|s| s.admin_up = up);
        for lease in self.leases() {
            lease.set_down(!up);
        }
        self.tx.set_down(!up);
    }
    /// `--dummy-numa`: the node that replaces the one of the guest's memory.
    pub(crate) fn set_pretended_numa(&self, numa: Option<u32>) {
        if self.state.lock().pretended_numa != numa {
            self.update(|s| s.pretended_numa = numa);
        }
    }
}
