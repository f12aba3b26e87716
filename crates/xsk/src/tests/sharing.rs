//! Two devices that share their memory, against a model of the kernel's side. Received frames go out by the
//! other device, or by the same one, in any order. No frame is in two places, and none is lost. Until the
//! kernel has sent a packet, its bytes stay as they are.

use super::*;
use crate::arena::{self, Arena, Kind, QueueId};
use crate::loans::BLOCK;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::HashSet;

const KIND: Kind = Kind {
    node: None,
    zero_copy: true,
    many_frames: true,
    checksums: true,
    need_wakeup: true,
};

/// A packet in the kernel's hands, to be sent.
struct Sending {
    descriptors: Vec<Descriptor>,
    expected: Vec<u8>,
}

/// A device, with both sides of its rings.
struct Device {
    id: QueueId,
    holder: Holder,
    rx: Rx,
    tx: Tx,
    fill: Consumer<u64>,
    received: Producer<Descriptor>,
    transmit: Consumer<Descriptor>,
    completion: Producer<u64>,
    /// Empty frames that the kernel has.
    empty: VecDeque<u64>,
    /// The number of frames in the receive ring.
    waiting: usize,
    /// Packets that the transmit ring has.
    pushed: VecDeque<Vec<u8>>,
    sending: Vec<Sending>,
}

impl Device {
    fn open(arena: &Arc<Arena>, id: QueueId) -> Self {
        let part = arena.take(BLOCK, BLOCK, id).expect("there is room");
        let (holder, for_rx, for_tx) = (part.holder, part.received.clone(), part.sent.clone());
        let socket = socket_with(Some(part));
        arena::bound(arena, holder, id, socket.fd());
        let (ours, fill) = ring(BLOCK);
        let (received, receive) = ring(BLOCK);
        let (push, transmit) = ring(BLOCK);
        let (completion, completed) = ring(BLOCK);
        let region = || Arc::clone(&arena.region);
        Self {
            id,
            holder,
            rx: Rx::new(Arc::clone(&socket), region(), ours, receive, for_rx),
            tx: Tx::new(socket, region(), push, completed, for_tx, holder),
            fill,
            received,
            transmit,
            completion,
            empty: VecDeque::new(),
            waiting: 0,
            pushed: VecDeque::new(),
            sending: Vec::new(),
        }
    }
}

struct Model {
    arena: Arc<Arena>,
    devices: Vec<Device>,
    /// Frames that the kernel has, of both devices.
    kernels: HashSet<u64>,
    pool: Pool,
    kept: Vec<(Vec<u8>, Packet)>,
    n: usize,
    /// Packets that were sent without a copy.
    as_they_are: usize,
}

impl Model {
    fn new() -> Self {
        static IFINDEX: AtomicU32 = AtomicU32::new(1_000_000);
        let frames = 4 * 2 * BLOCK;
        let region = Arc::new(Region::new(frames, None).unwrap());
        let arena = Arena::new(KIND, region, frames, true);
        let ids = [0, 1].map(|queue| QueueId {
            ifindex: IFINDEX.fetch_add(1, Ordering::Relaxed),
            queue,
        });
        Self {
            devices: ids.map(|id| Device::open(&arena, id)).into(),
            arena,
            kernels: HashSet::new(),
            pool: Pool::new(256),
            kept: Vec::new(),
            n: 0,
            as_they_are: 0,
        }
    }
    fn bytes_at(&self, d: Descriptor) -> Vec<u8> {
        let mut bytes = vec![0; d.len as usize];
        assert!(self.arena.region.read(d.address, &mut bytes));
        bytes
    }
    fn take_empty(&mut self, at: usize) {
        let device = &mut self.devices[at];
        for _ in 0..device.fill.look() {
            let frame = device.fill.peek(0).unwrap();
            device.fill.advance(1);
            assert!(
                self.kernels.insert(frame),
                "frame {frame:#x} was given to the kernel twice"
            );
            device.empty.push_back(frame);
        }
        device.fill.release();
    }
    fn receive(&mut self, at: usize, len: usize, piece: usize) {
        self.take_empty(at);
        let device = &mut self.devices[at];
        let (pieces, bytes) = (len.div_ceil(piece), bytes(self.n, len));
        if device.empty.len() < pieces || (device.received.room(pieces as u32) as usize) < pieces {
            return;
        }
        self.n += 1;
        for (i, part) in bytes.chunks(piece).enumerate() {
            let frame = device.empty.pop_front().unwrap();
            self.kernels.remove(&frame);
            let address = frame + HEADROOM as u64;
            // SAFETY: the frame was in the fill ring: it is the kernel's.
            let write = unsafe {
                let region = &self.arena.region;
                region.write(address, part.len() as u32, |to| to.copy_from_slice(part))
            };
            write.unwrap();
            device.received.push(Descriptor {
                address,
                len: part.len() as u32,
                options: if i + 1 < pieces { CONTINUES } else { 0 },
            });
            device.waiting += 1;
        }
        device.received.publish();
    }
    /// Receives a burst from one device. `outputs` are the devices that each packet goes to, in order. The
    /// packets' heads become longer or shorter before.
    fn forward(&mut self, at: usize, outputs: &[usize], grow: i32, keep: bool) {
        let mut burst = Burst::new();
        self.devices[at].rx.rx(&mut self.pool, &mut burst);
        let frames = |p: &Packet| 1.max(p.segs().len());
        for packet in &mut burst {
            match usize::try_from(grow) {
                Ok(n) => assert!(packet.push_front(n)),
                Err(_) => assert!(packet.pull_front(grow.unsigned_abs() as usize)),
            }
            for to in outputs {
                let device = &mut self.devices[*to];
                let before = device.tx.free_frames();
                if device.tx.push(packet).is_ok() {
                    self.as_they_are += usize::from(device.tx.free_frames() == before);
                    device.pushed.push_back(packet.to_vec());
                }
            }
        }
        for device in &mut self.devices {
            device.tx.flush().unwrap();
        }
        // The receive ring's frames are now lent, or free again.
        self.devices[at].waiting = self.devices[at].rx.waiting();
        for packet in burst {
            if keep && self.kept.len() < 3 && frames(&packet) > 0 {
                self.kept.push((packet.to_vec(), packet));
            } else {
                self.pool.put(packet);
            }
        }
        self.devices[at].rx.complete();
    }
    /// The kernel takes packets out of the transmit ring.
    fn send(&mut self, at: usize, n: usize) {
        for _ in 0..n {
            let device = &mut self.devices[at];
            device.transmit.look();
            let mut descriptors = Vec::new();
            while let Some(d) = device.transmit.peek(0) {
                device.transmit.advance(1);
                let frame = d.address & !(FRAME as u64 - 1);
                assert!(
                    self.kernels.insert(frame),
                    "frame {frame:#x} is sent while the kernel has it"
                );
                descriptors.push(d);
                if d.options & CONTINUES == 0 {
                    break;
                }
            }
            device.transmit.release();
            if descriptors.is_empty() {
                return;
            }
            let expected = device.pushed.pop_front().unwrap();
            device.sending.push(Sending {
                descriptors,
                expected,
            });
        }
    }
    /// The kernel has sent a packet, which one it likes.
    fn complete(&mut self, at: usize, which: usize) {
        let device = &mut self.devices[at];
        if device.sending.is_empty() {
            return;
        }
        let n = device.sending[which % device.sending.len()].descriptors.len();
        if (device.completion.room(n as u32) as usize) < n {
            return;
        }
        let index = which % device.sending.len();
        let sent = device.sending.swap_remove(index);
        let mut bytes = Vec::new();
        for d in &sent.descriptors {
            bytes.extend(self.bytes_at(*d));
            self.kernels.remove(&(d.address & !(FRAME as u64 - 1)));
            self.devices[at].completion.push(d.address);
        }
        assert_eq!(
            bytes, sent.expected,
            "the packet was changed while the kernel had it"
        );
        self.devices[at].completion.publish();
    }
    /// The device's sockets are closed and opened again, with packets in all rings.
    fn reopen(&mut self, at: usize) {
        let device = self.devices.remove(at);
        let id = device.id;
        let beneath = device.sending.iter().flat_map(|s| &s.descriptors);
        let beneath = beneath.map(|d| d.address & !(FRAME as u64 - 1));
        for frame in device.empty.iter().copied().chain(beneath) {
            self.kernels.remove(&frame);
        }
        drop(device);
        self.devices.insert(at, Device::open(&self.arena, id));
    }
    /// All that was pushed is sent, and no packet comes any more: the frames come back all the same.
    fn quiet(&mut self) {
        for at in 0..self.devices.len() {
            while self.devices[at].waiting > 0 {
                self.forward(at, &[], 0, false);
            }
        }
        for at in 0..self.devices.len() {
            self.send(at, usize::MAX);
            while !self.devices[at].sending.is_empty() {
                self.devices[at].tx.send_pending();
                self.complete(at, 0);
            }
            self.devices[at].tx.send_pending();
            assert!(!self.devices[at].tx.holds_received());
        }
        for device in &mut self.devices {
            assert_eq!(device.rx.rx(&mut self.pool, &mut Burst::new()), 0);
        }
    }
    /// Without packets, all frames are with the kernel. An earlier socket may hold some.
    fn check_quiet(&mut self) {
        for device in &mut self.devices {
            assert_eq!(device.rx.held(), (0, 0));
        }
    }
    /// All frames of a receiving half are accounted for.
    fn check(&mut self) {
        for device in &mut self.devices {
            let (free, lent) = device.rx.held();
            let with_kernel = device.empty.len() + device.fill.look() as usize;
            let all = free + lent + with_kernel + device.waiting + device.rx.out() as usize;
            assert_eq!(all, BLOCK as usize, "a frame is missing, or is twice there");
        }
    }
    /// All packets are sent and forgotten: every frame is back.
    fn end(mut self) {
        for (before, packet) in self.kept.drain(..) {
            assert_eq!(packet.to_vec(), before, "a lent frame was written to");
        }
        for at in 0..self.devices.len() {
            while self.devices[at].waiting > 0 {
                self.forward(at, &[], 0, false);
            }
            self.send(at, usize::MAX);
            while !self.devices[at].sending.is_empty() {
                self.devices[at].tx.reclaim();
                self.complete(at, 0);
            }
            self.devices[at].tx.reclaim();
        }
        for device in &mut self.devices {
            device.rx.complete();
            assert_eq!((device.rx.held(), device.rx.out()), ((0, 0), 0));
            assert_eq!(device.tx.free_frames(), BLOCK as usize);
        }
        for at in 0..self.devices.len() {
            self.take_empty(at);
            assert_eq!(self.devices[at].empty.len(), BLOCK as usize);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Receive {
        at: usize,
        len: usize,
        piece: usize,
        n: usize,
    },
    Forward {
        at: usize,
        outputs: Vec<usize>,
        grow: i32,
        keep: bool,
    },
    Send {
        at: usize,
        n: usize,
    },
    Complete {
        at: usize,
        which: usize,
        n: usize,
    },
    DropKept,
    Quiet,
    Reopen {
        at: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0_usize..2;
    prop_oneof![
        6 => (at(), 64_usize..9000, prop_oneof![Just(3840_usize), 64_usize..1600], 1_usize..24)
            .prop_map(|(at, len, piece, n)| Step::Receive { at, len: len.min(piece * 8), piece, n }),
        8 => (at(), prop::collection::vec(at(), 0..3), -20_i32..300, prop::bool::weighted(0.1))
            .prop_map(|(at, outputs, grow, keep)| Step::Forward { at, outputs, grow, keep }),
        6 => (at(), 1_usize..40).prop_map(|(at, n)| Step::Send { at, n }),
        6 => (at(), any::<usize>(), 1_usize..40).prop_map(|(at, which, n)| Step::Complete { at, which, n }),
        1 => Just(Step::DropKept),
        1 => Just(Step::Quiet),
        1 => at().prop_map(|at| Step::Reopen { at }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn frames_go_from_device_to_device(steps in prop::collection::vec(step(), 1..120)) {
        let mut model = Model::new();
        for step in steps {
            match step {
                Step::Receive { at, len, piece, n } => (0..n).for_each(|_| model.receive(at, len, piece)),
                Step::Forward { at, outputs, grow, keep } => model.forward(at, &outputs, grow, keep),
                Step::Send { at, n } => model.send(at, n),
                Step::Complete { at, which, n } => (0..n).for_each(|_| model.complete(at, which)),
                Step::DropKept => {
                    for (before, packet) in model.kept.drain(..) {
                        prop_assert_eq!(packet.to_vec(), before, "a lent frame was written to");
                    }
                }
                Step::Quiet => {
                    model.quiet();
                    if model.kept.is_empty() {
                        model.check_quiet();
                    }
                }
                // A packet that is kept blocks the frames of its queue.
                Step::Reopen { at } => {
                    model.kept.clear();
                    model.reopen(at);
                }
            }
            model.check();
        }
        model.end();
    }
}

/// Forwards `n` packets of 1500 bytes from the first device to the second.
fn forward(model: &mut Model, n: usize) {
    (0..n).for_each(|_| model.receive(0, 1500, 3840));
    model.forward(0, &[1], 0, false);
    model.check();
}

#[test]
fn a_packet_goes_out_from_the_frame_that_received_it() {
    let mut model = Model::new();
    forward(&mut model, 10);
    assert_eq!((model.as_they_are, model.devices[0].rx.out()), (10, 10));
    model.send(1, 10);
    (0..10).for_each(|_| model.complete(1, 0));
    // The frames return when the device sends again.
    forward(&mut model, 1);
    assert_eq!(model.devices[0].rx.out(), 1);
    // Twice: one copy. An own tail in front of other bytes is not overwritten.
    (0..4).for_each(|_| model.receive(0, 1500, 3840));
    model.forward(0, &[1, 0], 40, false);
    assert_eq!(model.as_they_are, 15);
    // A head that does not fit in front is copied.
    model.receive(0, 1500, 3840);
    model.forward(0, &[1], 250, false);
    assert_eq!(model.as_they_are, 15);
    model.end();
}

#[test]
fn a_device_that_does_not_send_leaves_frames_to_receive() {
    let mut model = Model::new();
    for _ in 0..8 {
        forward(&mut model, 8);
    }
    let half = BLOCK / 2;
    assert_eq!(
        (model.as_they_are as u32, model.devices[0].rx.out()),
        (half, half)
    );
    // Packets to the first device itself continue.
    for _ in 0..8 {
        (0..8).for_each(|_| model.receive(0, 1500, 3840));
        model.forward(0, &[0], 0, false);
        model.check();
        model.send(0, 8);
        (0..8).for_each(|_| model.complete(0, 0));
    }
    assert_eq!(model.devices[0].pushed.len(), 0);
    model.end();
}

#[test]
fn one_burst_takes_at_most_half_of_a_small_queue_s_frames() {
    let mut model = Model::new();
    // Three frames each. The second device takes packets until it holds half of its ring, then the first one.
    for _ in 0..3 {
        (0..BLOCK / 3).for_each(|_| model.receive(0, 9000, 3840));
        model.forward(0, &[1, 0], 0, false);
        assert!(model.devices[0].rx.out() <= BLOCK / 2);
        model.check();
    }
    assert_eq!(model.as_they_are, 10);
    // No packet comes any more.
    model.quiet();
    assert_eq!(model.devices[0].rx.out(), 0);
    model.check_quiet();
    // The next packets go out without a copy again.
    forward(&mut model, 10);
    assert_eq!(model.as_they_are, 20);
    model.end();
}

#[test]
fn a_card_that_sends_no_more_returns_its_frames_to_others() {
    let mut model = Model::new();
    (0..4).for_each(|_| forward(&mut model, 8));
    model.send(1, 32);
    (0..32).for_each(|_| model.complete(1, 0));
    // The second device gets no packet. The first one sends to itself without a copy.
    assert!(model.devices[1].tx.holds_received());
    model.devices[1].tx.send_pending();
    assert!(!model.devices[1].tx.holds_received());
    assert_eq!(model.devices[0].rx.rx(&mut model.pool, &mut Burst::new()), 0);
    (0..8).for_each(|_| model.receive(0, 1500, 3840));
    model.forward(0, &[0], 0, false);
    assert_eq!(model.as_they_are, 40);
    model.end();
}

#[test]
fn a_closed_socket_s_frames_are_free_when_the_kernel_has_released_them() {
    let mut model = Model::new();
    forward(&mut model, 10);
    let Device { id, .. } = model.devices.remove(1);
    // The second device is gone, and may still send the first one's frames.
    arena::tidy_up();
    (0..4).for_each(|_| model.receive(0, 60, 3840));
    model.forward(0, &[], 0, false);
    assert_eq!(model.devices[0].rx.out(), 10);
    // Another device gets other frames; a socket of the same queue proves that the old one is released.
    let other = QueueId { queue: 7, ..id };
    let parts: Vec<_> = (0..4)
        .map_while(|_| model.arena.take(BLOCK, BLOCK, other))
        .collect();
    assert_eq!(parts.len(), 2, "of four parts, one is open and one may be in use");
    drop(parts);
    model.devices.insert(1, Device::open(&model.arena, id));
    model.receive(0, 60, 3840);
    model.forward(0, &[], 0, false);
    assert_eq!(model.devices[0].rx.out(), 0);
    // The receiver is gone: its frames come back to its successor.
    forward(&mut model, 10);
    let sending = model.devices.remove(0);
    let id = sending.id;
    model.kernels.retain(|frame| !sending.empty.contains(frame));
    drop(sending);
    model.devices.insert(0, Device::open(&model.arena, id));
    assert_eq!(model.devices[0].rx.out(), 10);
    model.check();
    model.end();
}

#[test]
fn frames_return_from_another_thread() {
    let model = Model::new();
    let region = Arc::clone(&model.arena.region);
    let loans = &region.loans;
    let (holder, other) = (Holder::new(40), Holder::new(41));
    let frames = model.devices[0].rx.own();
    // One thread lends and settles, two hold and return.
    std::thread::scope(|scope| {
        let (to_senders, from_home) = std::sync::mpsc::channel::<u32>();
        let (to_home, gone) = std::sync::mpsc::channel();
        let from_home = Arc::new(std::sync::Mutex::new(from_home));
        for by in [holder, other] {
            let (from_home, to_home) = (Arc::clone(&from_home), to_home.clone());
            scope.spawn(move || {
                loop {
                    let Ok(frame) = from_home.lock().unwrap().recv() else {
                        return;
                    };
                    let is_held = loans.hold(frame, 384, by);
                    assert!(!is_held || !loans.hold(frame, 384, by));
                    // The packet is gone.
                    to_home.send(()).unwrap();
                    let mut returning = crate::loans::Returning::default();
                    assert_eq!(returning.add(loans, frame, by), is_held);
                    assert!(!returning.add(loans, frame, by));
                    returning.end(loans);
                }
            });
        }
        let (mut free, mut out): (Vec<u32>, usize) = (frames.clone().collect(), 0);
        for _ in 0..2000 {
            let lent = std::mem::take(&mut free);
            for frame in &lent {
                loans.lend(*frame, 384);
                to_senders.send(*frame).unwrap();
            }
            lent.iter().for_each(|_| gone.recv().unwrap());
            for frame in lent {
                match loans.settle(frame) {
                    true => free.push(frame),
                    false => out += 1,
                }
            }
            assert!(out <= frames.len() / 2);
            out -= loans.take_returned(frames.start, |frame| free.push(frame)) as usize;
            assert_eq!(free.len() + out, frames.len());
        }
        drop(to_senders);
    });
    loans.take_returned(frames.start, |_| ());
    assert!(!loans.has_out(frames));
}

#[test]
fn a_socket_may_be_closed_while_another_one_looks_for_it() {
    let mut model = Model::new();
    let arena = Arc::clone(&model.arena);
    let mut looked = 0;
    let looked = std::cell::RefCell::new((&mut model.devices, &mut looked));
    let found = arena.any_socket(|_| {
        let (devices, n) = &mut *looked.borrow_mut();
        devices.clear();
        **n += 1;
        false
    });
    assert!(found.is_none());
    assert_eq!(*looked.into_inner().1, 2);
}

#[test]
fn a_part_keeps_its_place_while_a_frame_is_on_its_way_back() {
    let mut model = Model::new();
    forward(&mut model, 10);
    let loans = &model.arena.region.loans;
    // The sending half of another thread stops between two steps of a return.
    let holder = model.devices[1].holder;
    let mut returning = crate::loans::Returning::default();
    let receiver = model.devices.remove(0);
    let (frames, id) = (receiver.rx.own(), receiver.id);
    let held: Vec<_> = frames.clone().filter(|f| loans.has_out(*f..*f + 1)).collect();
    assert_eq!(held.len(), 10);
    drop(receiver);
    held.iter()
        .for_each(|frame| assert!(returning.add(loans, *frame, holder)));
    // The kernel has released the receiver. Parts of other sizes get none of its frames.
    arena::bound(&model.arena, Holder::new(99), id, socket().fd());
    let overlaps = |queue| {
        let part = model.arena.take(BLOCK, 0, QueueId { queue, ..id });
        let received = part.expect("there is room").received.clone();
        received.start < frames.end && frames.start < received.end
    };
    assert!(!overlaps(8));
    returning.end(loans);
    arena::tidy_up();
    assert!(overlaps(9));
}
