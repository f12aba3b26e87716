//! The queues of an `afxdp` port.

use crate::drops::Drops;
use crate::flow_hash;
use crate::rates::Share;
use crate::{Released, RxQueue, TxCounts, TxQueue, WakeFd, segment};
use arrayvec::ArrayVec;
use heddle_packet::{BURST, Burst, Csum, Packet, Pool};
use heddle_sys::Tsc;
use heddle_xsk::{Refused, Rx, RxFaults, Tx};
use parking_lot::Mutex;
use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes of an Ethernet header with a tag: beyond the MTU, as packet sockets allow.
const ETH_AND_TAG: usize = 18;

/// Time until packets are tried again that the kernel has put off.
const RETRY_US: u64 = 50;
/// Time until a queue that sends nothing more returns the received frames that it holds.
const RETURN_US: u64 = 10_000;

/// A receive queue.
#[derive(Debug)]
pub(super) struct AfxdpRx {
    rx: Rx,
    /// Faults that are in `drops` already.
    counted: RxFaults,
    drops: Drops,
}

impl AfxdpRx {
    pub(super) fn new(rx: Rx) -> Self {
        Self {
            rx,
            counted: RxFaults::default(),
            drops: Drops::new(),
        }
    }

    #[cold]
    fn count(&mut self, now: RxFaults) {
        let before = std::mem::replace(&mut self.counted, now);
        self.drops.add("runt", now.runt - before.runt);
        self.drops.add("too-long", now.too_long - before.too_long);
        let bad = now.bad_descriptor - before.bad_descriptor;
        self.drops.add("bad-descriptor", bad);
    }
}

impl RxQueue for AfxdpRx {
    fn rx(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let n = self.rx.rx(pool, burst);
        if self.rx.faults() != self.counted {
            self.count(self.rx.faults());
        }
        n
    }
    fn complete(&mut self) {
        self.rx.complete();
    }
    fn wake_fd(&self) -> Option<WakeFd> {
        Some(WakeFd(self.rx.as_raw_fd()))
    }
    fn arm(&mut self) -> bool {
        self.rx.has_packet()
    }
    fn dropped(&self) -> &[(&'static str, u64)] {
        self.drops.all()
    }
}

/// The sending halves of a port's queues, which its workers share.
#[derive(Debug)]
pub(super) struct Senders {
    slots: Vec<Mutex<Option<Tx>>>,
    /// The number of slots in use.
    n: AtomicUsize,
    /// A packet's flow, and not the worker, chooses the slot.
    by_flow: AtomicBool,
    /// The device is administratively up.
    up: AtomicBool,
    /// Bytes of the longest frame that the device sends.
    longest: AtomicUsize,
}

impl Default for Senders {
    fn default() -> Self {
        Self {
            slots: (0..super::AfxdpPort::MAX_RXQ).map(|_| Mutex::new(None)).collect(),
            n: AtomicUsize::new(0),
            by_flow: AtomicBool::new(false),
            up: AtomicBool::new(true),
            longest: AtomicUsize::new(usize::MAX),
        }
    }
}

impl Senders {
    /// Replaces all halves. Packets that workers send meanwhile are dropped.
    pub(super) fn set(&self, halves: Vec<Tx>) {
        // Relaxed, as all below: the slots' locks order what they protect.
        self.n.store(halves.len(), Ordering::Relaxed);
        let mut halves = halves.into_iter();
        for slot in &self.slots {
            let old = std::mem::replace(&mut *slot.lock(), halves.next());
            drop(old); // this may close a socket
        }
    }
    /// Takes over the device's state. The kernel does not check it for packets of these sockets.
    pub(super) fn set_state(&self, up: bool, mtu: u32) {
        self.up.store(up, Ordering::Relaxed);
        self.longest.store(mtu as usize + ETH_AND_TAG, Ordering::Relaxed);
    }
    pub(super) fn set_by_flow(&self, by_flow: bool) {
        self.by_flow.store(by_flow, Ordering::Relaxed);
    }
    /// The chooser of slots, as `tx-steering` names it.
    pub(super) fn steering(&self) -> &'static str {
        match self.by_flow.load(Ordering::Relaxed) {
            true => "hash",
            false => "thread",
        }
    }
    /// Index of a worker's slot. Workers share slots if there are fewer.
    fn of_worker(&self, worker: usize) -> Option<usize> {
        worker.checked_rem(self.n.load(Ordering::Relaxed))
    }
    /// Indices of the slots that a worker sends to.
    fn used_by(&self, worker: usize) -> std::ops::Range<usize> {
        match (self.by_flow.load(Ordering::Relaxed), self.of_worker(worker)) {
            (_, None) => 0..0,
            (false, Some(own)) => own..own + 1,
            (true, Some(_)) => 0..self.n.load(Ordering::Relaxed),
        }
    }
}

/// A worker's transmit queue.
#[derive(Debug)]
pub(super) struct AfxdpTx {
    senders: Arc<Senders>,
    rates: Share,
    /// A slot holds received frames, and the worker knows that it has to call again.
    returns_later: Cell<bool>,
}

impl AfxdpTx {
    pub(super) fn new(senders: Arc<Senders>, rates: Share) -> Self {
        Self {
            senders,
            rates,
            returns_later: Cell::new(false),
        }
    }

    /// Sends packets that the port's rates allow.
    fn send(&self, pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
        let mut counts = TxCounts::default();
        if !self.senders.up.load(Ordering::Relaxed) {
            // The kernel would keep the packets until the device is up, and send them then.
            counts.down += packets.len() as u64;
            return counts;
        }
        let used = self.senders.used_by(self.rates.worker());
        if used.len() <= 1 {
            counts += self.send_to(used.start, pool, packets);
            return counts;
        }
        for some in packets.chunks(BURST) {
            let slot_of = |p: &&Packet| flow_hash::hash(p.head()) as usize % used.len();
            let slots: ArrayVec<usize, BURST> = some.iter().map(slot_of).collect();
            for slot in used.clone() {
                let chosen = some.iter().zip(&slots).filter(|(_, s)| **s == slot);
                let chosen: ArrayVec<&Packet, BURST> = chosen.map(|(p, _)| *p).collect();
                if !chosen.is_empty() {
                    counts += self.send_to(slot, pool, &chosen);
                }
            }
        }
        counts
    }

    /// Sends packets by one slot, in order.
    fn send_to(&self, slot: usize, pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
        let mut counts = TxCounts::default();
        let mut slot = self.senders.slots.get(slot).map(Mutex::lock);
        let Some(tx) = slot.as_mut().and_then(|slot| slot.as_mut()) else {
            counts.nowhere += packets.len() as u64;
            return counts;
        };
        let longest = self.senders.longest.load(Ordering::Relaxed);
        for packet in packets {
            let finished = match packet.offload.csum {
                Csum::Partial { .. } => tx.fills_checksums(),
                _ => true,
            };
            let result = if finished && packet.offload.gso.is_none() {
                push(tx, packet, longest)
            } else {
                push_finished(tx, pool, packet, longest)
            };
            count(&mut counts, packet, result);
        }
        if tx.flush().is_err() {
            log::debug!(target: "netdev_afxdp", per_min = 5, burst = 5; "packets wait for the device");
        }
        // Once, so that a busy worker does not call for each burst.
        counts.waits |= tx.has_pending() || tx.holds_received() && !self.returns_later.replace(true);
        counts
    }
}

impl TxQueue for AfxdpTx {
    fn tx(&mut self, pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
        if self.rates.is_on() {
            let rates = self.rates.get();
            return rates.tx(pool, packets, &mut |pool, kept| self.send(pool, kept));
        }
        self.send(pool, packets)
    }
    fn release(&mut self, pool: &mut Pool) -> Released {
        let (rates, worker) = (self.rates.get(), self.rates.worker());
        let mut released = rates.release(worker, pool, &mut |pool, kept| self.send(pool, kept));
        let mut holds_received = false;
        for slot in self.senders.used_by(worker) {
            let mut slot = self.senders.slots.get(slot).map(Mutex::lock);
            let Some(tx) = slot.as_mut().and_then(|slot| slot.as_mut()) else {
                continue;
            };
            let is_pending = tx.send_pending();
            holds_received |= tx.holds_received();
            if is_pending || holds_received {
                let wait_us = if is_pending { RETRY_US } else { RETURN_US };
                let due = Tsc::now() + Tsc::from_us(wait_us);
                released.next = Some(released.next.map_or(due, |next| next.min(due)));
            }
        }
        self.returns_later.set(holds_received);
        released
    }
    fn abandon(&mut self) -> u64 {
        self.rates.close(self.rates.worker())
    }
}

/// Why a packet was not sent.
enum Failure {
    Refused(Refused),
    /// The packet cannot be cut.
    Malformed,
}

fn count(counts: &mut TxCounts, packet: &Packet, result: Result<(), Failure>) {
    match result {
        Ok(()) => {
            counts.sent += 1;
            counts.bytes += packet.len() as u64;
        }
        Err(Failure::Refused(Refused::Full)) => counts.full += 1,
        Err(Failure::Refused(Refused::TooLong)) => counts.too_long += 1,
        Err(Failure::Malformed) => counts.error += 1,
    }
}

/// Sends a packet; where there is no free frame, after the kernel has sent the earlier ones.
fn push(tx: &mut Tx, packet: &Packet, longest: usize) -> Result<(), Failure> {
    if packet.len() > longest {
        return Err(Failure::Refused(Refused::TooLong));
    }
    let done = tx.push(packet);
    let done = match done {
        Err(Refused::Full) if tx.flush().is_ok() => tx.push(packet),
        done => done,
    };
    done.map_err(Failure::Refused)
}

/// Cuts a packet and fills checksums in, as needed.
#[cold]
fn push_finished(tx: &mut Tx, pool: &mut Pool, packet: &Packet, longest: usize) -> Result<(), Failure> {
    let mut worst = Ok(());
    let cut = segment::finish_while(pool, packet, &mut |piece| {
        worst = push(tx, piece, longest);
        worst.is_ok()
    });
    cut.map_err(|_| Failure::Malformed)?;
    worst
}
