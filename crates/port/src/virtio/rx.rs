//! Receive queue: packets that a guest transmits by one ring. Exits: no ring, empty, burst full, stopped by
//! name, dropped by name.

use super::lease::{FromGuest, Handed, Lease};
use super::rarp;
use crate::drops::Drops;
use crate::{RxQueue, WakeFd};
use heddle_packet::{Burst, Pool};
use heddle_virtio::RingError;
use heddle_virtio::ring::RxDrops;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// The port's notice that its state changed.
pub(crate) type Changed = Arc<dyn Fn() + Send + Sync>;

/// One receive queue, over whichever ring the session has started in its place.
pub(super) struct VirtioRx {
    lease: Arc<Lease>,
    name: Arc<str>,
    index: usize,
    changed: Changed,
    /// The last turn that was handled; 0: none.
    seen: u32,
    mine: Option<FromGuest>,
    /// The failure that was reported.
    reported: Option<RingError>,
    /// The ring's drops that are in `drops` already.
    counted: RxDrops,
    drops: Drops,
}

impl VirtioRx {
    pub(super) fn new(lease: Arc<Lease>, name: Arc<str>, index: usize, changed: Changed) -> Self {
        Self {
            lease,
            name,
            index,
            changed,
            seen: 0,
            mine: None,
            reported: None,
            counted: RxDrops::default(),
            drops: Drops::new(),
        }
    }

    /// The session wants something: hands the ring back and takes the present one.
    #[cold]
    fn attend(&mut self, pool: &mut Pool, burst: &mut Burst) {
        self.count_drops();
        let Some((turn, Handed { ring, announce })) = self.lease.exchange(&mut self.mine) else {
            return;
        };
        self.seen = turn;
        self.mine = ring;
        if let Some(mine) = &mut self.mine {
            self.counted = mine.ring.drops();
            self.reported = mine.ring.error();
            mine.ring.disarm();
        }
        if let Some(mac) = announce
            && !burst.is_full()
        {
            let mut packet = pool.get();
            packet.set_bytes(&rarp::request(mac));
            burst.push(packet);
        }
    }

    /// A poll found no packet: the time to check for rare events.
    fn look_around(&mut self) {
        let Some(mine) = &mut self.mine else { return };
        if mine.ring.take_call() {
            call(mine, &self.lease);
        }
        if mine.ring.error() != self.reported {
            self.report_failure();
        } else if let Some(link) = &mine.link {
            while let Some(miss) = mine.ring.take_miss() {
                link.miss(miss);
            }
        }
        self.count_drops();
    }

    #[cold]
    fn report_failure(&mut self) {
        let Some(mine) = &self.mine else { return };
        let failure = mine.ring.error();
        if !self.lease.try_set_failure(failure) {
            return;
        }
        self.reported = failure;
        if let Some(error) = self.reported {
            self.lease.counts.broken.add(1);
            if let Some(err) = &mine.err {
                err.raise();
            }
            log::warn!(target: "netdev_dpdk", per_min = 10, burst = 10;
                "{}: queue {} from the guest is stopped: {error}", self.name, self.index);
        }
        (self.changed)();
    }

    /// Adds the ring's drops since the last time.
    fn count_drops(&mut self) {
        let Some(mine) = &self.mine else { return };
        let now = mine.ring.drops();
        if now == self.counted {
            return;
        }
        let before = std::mem::replace(&mut self.counted, now);
        self.drops.add("runt", now.runt - before.runt);
        self.drops.add("too-long", now.too_long - before.too_long);
        let header = now
            .last_header
            .map_or("vnet-hdr", heddle_virtio::NetHdrError::name);
        self.drops.add(header, now.header - before.header);
    }

    /// A ring that is started and not enabled: its packets go nowhere.
    #[cold]
    fn discard(&mut self, pool: &mut Pool, burst: &mut Burst, from: usize) {
        let n = burst.len() - from;
        pool.put_all(burst.drain(from..));
        self.drops.add("ring-disabled", n as u64);
        self.complete();
    }
}

/// Notifies the guest.
fn call(mine: &FromGuest, lease: &Lease) {
    if let Some(call) = &mine.call {
        call.raise();
        lease.counts.calls.add(1);
    }
}

impl RxQueue for VirtioRx {
    fn rx(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let before = burst.len();
        if self.lease.turn() != self.seen {
            self.attend(pool, burst);
        }
        let Some(mine) = &mut self.mine else {
            return burst.len() - before;
        };
        let own = burst.len();
        if mine.ring.rx(pool, burst) == 0 {
            self.look_around();
        } else if mine.enabled {
            let bytes = burst.iter().skip(own).map(|p| p.len() as u64).sum();
            self.lease.counts.packets.add((burst.len() - own) as u64);
            self.lease.counts.bytes.add(bytes);
        } else {
            self.discard(pool, burst, own);
        }
        burst.len() - before
    }
    fn complete(&mut self) {
        if let Some(mine) = &mut self.mine
            && mine.ring.complete()
        {
            call(mine, &self.lease);
        }
    }
    fn wake_fd(&self) -> Option<WakeFd> {
        Some(WakeFd(self.lease.wake.as_raw_fd()))
    }
    fn woken(&mut self) {
        self.lease.wake.clear();
    }
    fn arm(&mut self) -> bool {
        let waiting = self.mine.as_mut().is_some_and(|m| m.ring.arm());
        waiting || self.lease.turn() != self.seen
    }
    fn disarm(&mut self) {
        if let Some(mine) = &mut self.mine {
            mine.ring.disarm();
        }
    }
    fn dropped(&self) -> &[(&'static str, u64)] {
        self.drops.all()
    }
}

impl Drop for VirtioRx {
    fn drop(&mut self) {
        if let Some(mine) = self.mine.take() {
            self.lease.give_back(mine);
        }
    }
}
