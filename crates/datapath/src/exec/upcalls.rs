//! Packets for the control plane: bounded rings, three per worker, each kind with one eventfd for all.
//!
//! There are separate rings for packets to controllers, frames of protocols that the switch itself speaks,
//! and samples. So no storm of one kind delays another.
//!
//! The worker never waits: a full ring is a named drop. The eventfd is written once per burst at most, and
//! only for the first packet since the control side last read the rings.
//!
//! **Order.** A reply may be forwarded by another worker than its request, and controllers must see the
//! request first. Before a worker queues a packet and sends it on, it takes a number from a counter that all
//! workers share. The control side reads the counter, then the rings. It takes packets with lower numbers
//! only, in their order. All packets that were queued before such a packet was sent are visible by then.

use heddle_datapath_api::{UpcallKind, UpcallPacket};
use heddle_sync::ring::{Consumer, Producer, ring};
use heddle_sys::EventFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};

/// The bell that workers ring.
#[derive(Debug)]
pub(crate) struct Bell {
    pub(crate) fd: EventFd,
    rung: AtomicBool,
    /// The number of the next packet.
    next: AtomicU64,
}

impl Bell {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            fd: EventFd::new()?,
            rung: AtomicBool::new(false),
            next: AtomicU64::new(0),
        })
    }
    /// Makes the descriptor readable. The swap orders the ring's content before the flag. A control side that
    /// cleared the flag (Release) before it read the rings is notified again.
    pub(crate) fn ring(&self) {
        // Between the ring's tail and the flag; pairs with the fence in `silence`, so that not both sides
        // miss the other.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if !self.rung.swap(true, AcqRel) {
            self.fd.notify();
        }
    }
    /// To be called before looking at the rings.
    pub(crate) fn silence(&self) {
        self.fd.drain();
        self.rung.store(false, Release);
        // A packet pushed before this line is seen by the look that follows; one pushed after it rings again.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
}

/// A packet with its number in the order of all workers.
pub(crate) struct Numbered {
    number: u64,
    packet: UpcallPacket,
}

/// The worker's end of one ring.
pub(crate) struct Lane {
    ring: Producer<Numbered>,
    bell: Arc<Bell>,
    pushed: bool,
}

/// A worker's ends of its rings.
pub(crate) type UpcallTx = Lanes<Lane>;

/// One value for each kind of packet.
#[derive(Default)]
pub(crate) struct Lanes<T> {
    /// Packets for controllers.
    pub(crate) packets: T,
    /// Frames of the switch's own protocols.
    pub(crate) control: T,
    /// Samples.
    pub(crate) samples: T,
}

impl<T> Lanes<T> {
    pub(crate) fn each(&self) -> [&T; 3] {
        [&self.packets, &self.control, &self.samples]
    }
}

/// Rings for one worker.
pub(crate) fn upcall_ring(
    capacity: usize,
    bells: &Lanes<Arc<Bell>>,
) -> (UpcallTx, Lanes<Consumer<Numbered>>) {
    let lane = |bell: &Arc<Bell>| {
        let (ring, rx) = ring(capacity);
        let bell = Arc::clone(bell);
        let tx = Lane {
            ring,
            bell,
            pushed: false,
        };
        (tx, rx)
    };
    let (packets, packets_rx) = lane(&bells.packets);
    let (control, control_rx) = lane(&bells.control);
    let (samples, samples_rx) = lane(&bells.samples);
    let tx = Lanes {
        packets,
        control,
        samples,
    };
    let rx = Lanes {
        packets: packets_rx,
        control: control_rx,
        samples: samples_rx,
    };
    (tx, rx)
}

impl UpcallTx {
    fn lane(&mut self, kind: UpcallKind) -> &mut Lane {
        match kind {
            UpcallKind::Controller => &mut self.packets,
            UpcallKind::SlowPath(_) => &mut self.control,
            UpcallKind::Sample => &mut self.samples,
        }
    }
    /// Whether a packet of this kind would be taken.
    pub(crate) fn has_room(&mut self, kind: UpcallKind) -> bool {
        self.lane(kind).ring.free() > 0
    }
    /// Queues a packet, if there is room.
    pub(crate) fn push(&mut self, p: UpcallPacket) {
        let lane = self.lane(p.upcall.kind);
        // Pairs with the load in `UpcallInbox::take`.
        let number = lane.bell.next.fetch_add(1, AcqRel);
        lane.pushed |= lane.ring.push(Numbered { number, packet: p }).is_ok();
    }
    /// At the end of a burst: notifies the control side.
    pub(crate) fn announce(&mut self) {
        for lane in [&mut self.packets, &mut self.control, &mut self.samples] {
            if std::mem::take(&mut lane.pushed) {
                lane.bell.ring();
            }
        }
    }
}

/// One worker's ring as the control side reads it.
struct Reader {
    ring: Consumer<Numbered>,
    /// The oldest packet, once the control side has looked.
    head: Option<Numbered>,
}

impl Reader {
    /// The number of the oldest packet, if one waits.
    fn head(&mut self) -> Option<u64> {
        if self.head.is_none() {
            self.head = self.ring.pop();
        }
        self.head.as_ref().map(|n| n.number)
    }
}

/// The control side's ends of all workers' rings of one kind; those of ended workers until they are empty.
#[derive(Default)]
pub(crate) struct UpcallInbox {
    rings: Vec<Reader>,
}

impl UpcallInbox {
    /// One more worker.
    pub(crate) fn add(&mut self, ring: Consumer<Numbered>) {
        self.rings.push(Reader { ring, head: None });
    }
    /// Forgets the empty rings of ended workers.
    pub(crate) fn tidy(&mut self) {
        self.rings
            .retain_mut(|r| r.head().is_some() || !r.ring.is_abandoned());
    }
    /// Takes up to `max` packets in the order of their numbers. Rings `bell` again if more are waiting.
    pub(crate) fn take(&mut self, bell: &Bell, max: usize) -> Vec<UpcallPacket> {
        bell.silence();
        // Before the rings. Pairs with `UpcallTx::push`.
        let end = bell.next.load(Acquire);
        let mut got = Vec::new();
        while got.len() < max {
            let heads = self.rings.iter_mut().filter_map(|r| Some((r.head()?, r)));
            let oldest = heads.min_by_key(|(number, _)| *number);
            match oldest.filter(|(number, _)| *number < end) {
                Some((_, r)) => got.extend(r.head.take().map(|n| n.packet)),
                None => break,
            }
        }
        if self.rings.iter_mut().any(|r| r.head().is_some()) {
            bell.ring();
        }
        got
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_datapath_api::PortNo;
    use heddle_datapath_api::{Upcall, UpcallCookie, UpcallData};
    use heddle_flow::FlowKey;

    struct Nothing;
    impl UpcallData for Nothing {
        fn text(&self) -> String {
            String::new()
        }
        fn as_any(&self) -> &dyn std::any::Any {
            self
        }
    }

    fn packet(total_len: usize) -> UpcallPacket {
        UpcallPacket {
            upcall: Arc::new(Upcall {
                kind: UpcallKind::Controller,
                max_len: u16::MAX,
                cookie: UpcallCookie(Arc::new(Nothing)),
            }),
            bytes: Vec::new(),
            packet_type: 0,
            total_len,
            segments: 1,
            wire_bytes: 0,
            in_port: PortNo(1),
            key: FlowKey::default(),
            packet: None,
        }
    }

    /// Two workers and the reader of their rings.
    fn workers() -> (UpcallTx, UpcallTx, UpcallInbox, Arc<Bell>) {
        let bell = || Arc::new(Bell::new().unwrap());
        let bells = Lanes {
            packets: bell(),
            control: bell(),
            samples: bell(),
        };
        let mut inbox = UpcallInbox::default();
        let (first, rx) = upcall_ring(512, &bells);
        inbox.add(rx.packets);
        let (second, rx) = upcall_ring(512, &bells);
        inbox.add(rx.packets);
        (first, second, inbox, bells.packets)
    }

    #[test]
    fn packets_of_all_workers_come_in_their_order() {
        let (mut first, mut second, mut inbox, bell) = workers();
        for n in 0..6 {
            // The ring that is read first has the newer packets.
            let to = if matches!(n, 1 | 3 | 4) {
                &mut first
            } else {
                &mut second
            };
            to.push(packet(n));
        }
        let lens = |got: Vec<UpcallPacket>| got.iter().map(|p| p.total_len).collect::<Vec<_>>();
        assert_eq!(lens(inbox.take(&bell, 4)), [0, 1, 2, 3]);
        assert_eq!(lens(inbox.take(&bell, 4)), [4, 5]);
        first.push(packet(6));
        drop((first, second));
        inbox.tidy();
        assert_eq!(inbox.rings.len(), 1, "what an ended worker has left is kept");
        assert_eq!(lens(inbox.take(&bell, 4)), [6]);
        inbox.tidy();
        assert!(inbox.rings.is_empty());
    }

    /// One worker queues a request and sends it on; another worker queues the reply when it has arrived. The
    /// reader reads at any moment, the second worker's ring last or first.
    #[test]
    fn no_reply_comes_before_its_request() {
        const PAIRS: usize = 20_000;
        for swapped in [false, true] {
            let (mut first, mut second, mut inbox, bell) = workers();
            if swapped {
                inbox.rings.swap(0, 1);
            }
            let sent = AtomicU64::new(0);
            let read = AtomicU64::new(0);
            std::thread::scope(|s| {
                s.spawn(|| {
                    for n in 0..PAIRS {
                        while first.lane(UpcallKind::Controller).ring.free() == 0 {
                            std::thread::yield_now();
                        }
                        first.push(packet(2 * n));
                        sent.store(n as u64 + 1, Release);
                        // The writers stay within the rings' size.
                        while 2 * n as u64 > read.load(Acquire) + 100 {
                            std::thread::yield_now();
                        }
                    }
                });
                s.spawn(|| {
                    for n in 0..PAIRS {
                        while sent.load(Acquire) <= n as u64 {
                            std::hint::spin_loop();
                        }
                        second.push(packet(2 * n + 1));
                    }
                });
                let mut seen = vec![false; 2 * PAIRS];
                let mut left = 2 * PAIRS;
                while left > 0 {
                    for p in inbox.take(&bell, 64) {
                        assert!(
                            p.total_len % 2 == 0 || seen[p.total_len - 1],
                            "a reply comes first"
                        );
                        seen[p.total_len] = true;
                        left -= 1;
                        read.fetch_add(1, AcqRel);
                    }
                }
            });
        }
    }
}
