//! The port as its session sees it: rings come and go, descriptors change, the front end connects and leaves.

use super::Shared;
use super::lease::FromGuest;
use super::takes::Takes;
use super::txset::ToGuest;
use heddle_virtio::device::{Call, Device, Link, MAX_QUEUE_PAIRS, Offer, Queue, RingSetup, StartError};
use heddle_virtio::mem::MAX_REGIONS;
use heddle_virtio::ring::{Features, Position};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Features that every port offers. There is no control queue behind it: front ends serve that one
/// themselves, and want the bit to be offered with MQ.
const OFFERED: Features = Features::RING
    .union(Features::NOTIFY_ON_EMPTY)
    .union(Features::CSUM)
    .union(Features::HOST_TSO4)
    .union(Features::HOST_TSO6)
    .union(Features::HOST_ECN)
    .union(Features::HOST_USO)
    .union(Features::GUEST_CSUM)
    .union(Features::GUEST_TSO4)
    .union(Features::GUEST_TSO6)
    .union(Features::GUEST_ECN)
    .union(Features::GUEST_USO4)
    .union(Features::GUEST_USO6)
    .union(Features::MTU)
    .union(Features::MQ)
    .union(Features::CTRL_VQ)
    .union(Features::GUEST_ANNOUNCE);

/// Smallest MTU of IPv4 (virtio 1.2 §5.1.4.1).
pub(crate) const MIN_MTU: u16 = 68;

/// The device that a session drives. It belongs to the session's thread.
pub(crate) struct PortDevice {
    shared: Arc<Shared>,
    iommu: bool,
    link: Option<Arc<dyn Link>>,
    /// Started rings: their kick descriptors (of rings from the guest) and where they started.
    rings: BTreeMap<u16, (Option<OwnedFd>, Position)>,
}

impl PortDevice {
    /// The device of `shared`. `iommu`: addresses may go through one.
    pub(crate) fn new(shared: Arc<Shared>, iommu: bool) -> Self {
        Self {
            shared,
            iommu,
            link: None,
            rings: BTreeMap::new(),
        }
    }

    fn start_from_guest(&self, setup: RingSetup) -> Result<Option<OwnedFd>, StartError> {
        let Queue::FromGuest(ring) = setup.queue else {
            return Err(StartError::Refused(
                "a queue to the guest under an odd index".into(),
            ));
        };
        let no_descriptor = |e: std::io::Error| StartError::no_descriptor(setup.index, &e);
        let lease = self.shared.lease(pair(setup.index)).map_err(no_descriptor)?;
        watch(&lease.wake, setup.kick.as_ref());
        lease.start(FromGuest {
            ring: Box::new(ring),
            call: setup.call,
            err: setup.err,
            enabled: setup.enabled,
            link: self.link.clone(),
            generation: 0,
        });
        Ok(setup.kick)
    }

    fn start_to_guest(&self, setup: RingSetup) -> Result<(), StartError> {
        let Queue::ToGuest(ring) = setup.queue else {
            return Err(StartError::Refused(
                "a queue from the guest under an even index".into(),
            ));
        };
        let to = ToGuest {
            ring: Box::new(ring),
            call: setup.call,
            err: setup.err,
            takes: Takes::of(setup.config.features),
            link: self.link.clone(),
            reported: None,
        };
        self.shared.tx.start(pair(setup.index), to, setup.enabled);
        Ok(())
    }
}

/// Queue pair of a ring.
fn pair(index: u16) -> usize {
    usize::from(index / 2)
}

/// Whether a ring is one of the guest's transmit rings.
fn is_from_guest(index: u16) -> bool {
    index % 2 == 1
}

/// Waits for a ring's kicks; a ring without a descriptor, or with one that cannot be waited for, is polled.
fn watch(wake: &heddle_sys::WakeSet, kick: Option<&OwnedFd>) {
    let watched = kick.is_some_and(|fd| wake.add(fd.as_fd()).is_ok());
    wake.poll(!watched);
}

impl Device for PortDevice {
    fn offer(&mut self) -> Offer {
        let iommu = if self.iommu {
            Features::ACCESS_PLATFORM
        } else {
            Features::empty()
        };
        Offer {
            features: OFFERED | iommu,
            queue_pairs: MAX_QUEUE_PAIRS,
            mem_slots: MAX_REGIONS,
        }
    }

    fn connected(&mut self, link: Arc<dyn Link>) {
        self.link = Some(link);
        self.shared.update(|s| s.connected());
        log::info!(target: "netdev_dpdk", per_min = 60, burst = 60; "{}: a front end is connected", self.shared.name);
    }

    fn disconnected(&mut self, reason: &str) {
        self.link = None;
        self.shared.update(|s| s.disconnected(reason));
        log::info!(target: "netdev_dpdk", per_min = 60, burst = 60; "{}: the front end is gone: {reason}", self.shared.name);
    }

    fn trouble(&mut self, text: &str) {
        let name = &self.shared.name;
        // A client's socket without a listener is usual: no warning.
        let waiting = self.link.is_none() && self.shared.backing.calls;
        let level = if waiting {
            log::Level::Info
        } else {
            log::Level::Warn
        };
        log::log!(target: "netdev_dpdk", level, per_min = 4, burst = 4; "{name}: {text}");
        self.shared.update(|s| s.trouble = Some(text.to_owned()));
    }

    fn unavailable(&mut self, text: &str) {
        self.trouble(text);
        self.shared.update(|s| s.listening = false);
    }

    fn show(&mut self, key: &'static str, value: &str) {
        self.shared.update(|s| {
            s.session.reported.insert(key, value.to_owned());
        });
    }

    fn note(&mut self, text: &str) {
        let name = &self.shared.name;
        log::warn!(target: "netdev_dpdk", per_min = 4, burst = 4; "{name}: {text}");
    }

    fn starved(&mut self) {
        let name = &self.shared.name;
        log::warn!(target: "netdev_dpdk", per_min = 4, burst = 4;
            "{name}: this process has no file descriptors left (RLIMIT_NOFILE)");
        self.shared.update(|s| s.starved = true);
    }

    fn listening(&mut self) {
        self.shared.update(|s| {
            s.listening = true;
            s.trouble = None;
        });
    }

    fn negotiated(&mut self, features: Features) {
        self.shared.update(|s| s.session.features = features);
    }

    fn start(&mut self, ring: RingSetup) -> Result<(), StartError> {
        let (index, enabled, config) = (ring.index, ring.enabled, ring.config);
        let numa = ring.memory.get().numa_node(config.desc);
        let kick = if is_from_guest(index) {
            self.start_from_guest(ring)?
        } else {
            self.start_to_guest(ring)?;
            None
        };
        self.rings.insert(index, (kick, config.start));
        self.shared.update(|s| {
            s.session.start(index, config.size, enabled);
            s.starved = false;
            s.session.numa = numa;
        });
        Ok(())
    }

    fn stop(&mut self, index: u16) -> Position {
        let (kick, start) = self.rings.remove(&index).unwrap_or_default();
        let place = pair(index);
        let position = if is_from_guest(index) {
            self.shared.known_lease(place).and_then(|lease| {
                if let Some(fd) = &kick {
                    lease.wake.remove(fd.as_fd());
                }
                lease.wake.poll(false);
                lease.stop().map(|r| r.ring.stop())
            })
        } else {
            self.shared.tx.stop(place).map(|r| r.ring.stop())
        };
        self.shared.update(|s| s.session.stop(index));
        // Without the ring (its worker is lost, which is in the log) this is the last place that is known.
        position.unwrap_or(start)
    }

    fn enable(&mut self, index: u16, on: bool) {
        if is_from_guest(index) {
            if let Some(lease) = self.shared.known_lease(pair(index)) {
                lease.with(|r| r.enabled = on);
            }
        } else {
            self.shared.tx.enable(pair(index), on);
        }
        self.shared.update(|s| s.session.enable(index, on));
        log::info!(
            target: "netdev_dpdk", per_min = 600, burst = 600;
            "State of queue {index} ( {}_qid {} ) of vhost device '{}' changed to '{}'",
            if is_from_guest(index) { "rx" } else { "tx" },
            pair(index),
            self.shared.backing.at.lock(),
            if on { "enabled" } else { "disabled" }
        );
    }

    fn set_kick(&mut self, index: u16, kick: Option<OwnedFd>) {
        let Some((before, _)) = self.rings.get_mut(&index) else {
            return;
        };
        let Some(lease) = self
            .shared
            .known_lease(pair(index))
            .filter(|_| is_from_guest(index))
        else {
            return;
        };
        if let Some(old) = before.take() {
            lease.wake.remove(old.as_fd());
        }
        watch(&lease.wake, kick.as_ref());
        // A kick may just have gone to the old one.
        lease.wake.ring();
        *before = kick;
    }

    fn set_call(&mut self, index: u16, call: Option<Call>) {
        if let Some(call) = &call {
            // A notification may just have gone to the old one.
            call.raise();
        }
        self.notifications(index, |own, _| *own = call);
    }

    fn set_err(&mut self, index: u16, err: Option<Call>) {
        self.notifications(index, |_, own| *own = err);
    }

    fn refresh_memory(&mut self) {
        for lease in self.shared.leases() {
            lease.refresh();
        }
        for cell in self.shared.tx.cells() {
            self.shared.tx.with(&cell, |r| r.ring.refresh());
        }
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), String> {
        if mtu < MIN_MTU {
            return Err(format!("an MTU of {mtu} is below {MIN_MTU}"));
        }
        self.shared.update(|s| s.session.mtu = Some(mtu));
        Ok(())
    }

    fn send_rarp(&mut self, mac: [u8; 6]) {
        if let Ok(lease) = self.shared.lease(0) {
            lease.announce(mac);
        }
    }
}

impl PortDevice {
    /// Calls `change` on a started ring's notifications: of the guest, and of its errors.
    fn notifications(&self, index: u16, change: impl FnOnce(&mut Option<Call>, &mut Option<Call>)) {
        let place = pair(index);
        if is_from_guest(index) {
            if let Some(lease) = self.shared.known_lease(place) {
                lease.with(|r| change(&mut r.call, &mut r.err));
            }
        } else {
            let cell = self.shared.tx.cell(place);
            self.shared.tx.with(&cell, |r| change(&mut r.call, &mut r.err));
        }
    }
}
