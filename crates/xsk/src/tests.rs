//! The rings against a model of the kernel's side. Each frame is in one place, and packets keep their bytes
//! and their order, whatever is kept, dropped or refused.

#![allow(unsafe_code)] // the model writes frames

use crate::arena::Part;
use crate::loans::Holder;
use crate::region::{FRAME, Region};
use crate::ring::{CONTINUES, Consumer, Descriptor, HAS_METADATA, Layout, Producer, RingEntry};
use crate::rx::Rx;
use crate::socket::{Features, Socket};
use crate::tx::{METADATA, Refused, Tx};
use heddle_packet::{BURST, Burst, Csum, Packet, Pool};
use heddle_sys::mmap::{Pages, memfd};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

const LAYOUT: Layout = Layout {
    producer: 0,
    consumer: 64,
    flags: 128,
    entries: 192,
};
/// Bytes that the kernel keeps free in front of a received packet.
const HEADROOM: usize = 256;
const FRAMES: u32 = 16;

fn file(size: u32) -> OwnedFd {
    memfd("test", 192 + u64::from(size) * 16, Pages::Normal).unwrap()
}

/// A ring's ends.
fn ring<T: RingEntry>(size: u32) -> (Producer<T>, Consumer<T>) {
    let fd = file(size);
    (
        Producer::map(fd.as_fd(), 0, LAYOUT, size).unwrap(),
        Consumer::map(fd.as_fd(), 0, LAYOUT, size).unwrap(),
    )
}

mod sharing;

fn socket() -> Arc<Socket> {
    socket_with(None)
}

fn socket_with(part: Option<Part>) -> Arc<Socket> {
    let features = Features {
        zero_copy: false,
        many_frames: true,
        metadata: true,
        need_wakeup: true,
    };
    Arc::new(Socket::new(file(1), features, part))
}

/// The kernel's side of the receiving half.
struct Sender {
    region: Arc<Region>,
    fill: Consumer<u64>,
    ring: Producer<Descriptor>,
    /// Frames taken out of the fill ring.
    frames: VecDeque<u64>,
}

impl Sender {
    /// Receives a packet in pieces; `false`: no frames, or no room in the ring.
    fn receive(&mut self, bytes: &[u8], piece: usize) -> bool {
        let n = self.fill.look();
        self.frames.extend((0..n).map(|i| self.fill.peek(i).unwrap()));
        self.fill.advance(n);
        self.fill.release();
        let pieces = bytes.chunks(piece).count();
        if self.frames.len() < pieces || (self.ring.room(pieces as u32) as usize) < pieces {
            return false;
        }
        for (i, piece) in bytes.chunks(piece).enumerate() {
            let address = self.frames.pop_front().unwrap() + HEADROOM as u64;
            // SAFETY: the frame was in the fill ring: it is the kernel's.
            unsafe {
                self.region
                    .write(address, piece.len() as u32, |to| to.copy_from_slice(piece))
            }
            .unwrap();
            self.ring.push(Descriptor {
                address,
                len: piece.len() as u32,
                options: if i + 1 < pieces { CONTINUES } else { 0 },
            });
        }
        self.ring.publish();
        true
    }
}

fn receiving() -> (Rx, Sender) {
    let region = Arc::new(Region::new(FRAMES, Some(0)).unwrap());
    let (ours, theirs) = ring(FRAMES);
    let (packets, received) = ring(FRAMES);
    let rx = Rx::new(socket(), Arc::clone(&region), ours, received, 0..FRAMES);
    let kernel = Sender {
        region,
        fill: theirs,
        ring: packets,
        frames: VecDeque::new(),
    };
    (rx, kernel)
}

/// The bytes of packet `n`.
fn bytes(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (n * 31 + i * 7 + i / 256) as u8).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Receive {
        len: usize,
        piece: usize,
    },
    Poll,
    /// Forget the packets of the burst but every n-th, which is kept longer.
    Forward {
        keep: usize,
    },
    DropKept,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1_usize..9000, prop_oneof![Just(3840_usize), 1_usize..600])
            .prop_map(|(len, piece)| Step::Receive { len: len.min(piece * 15), piece }),
        3 => Just(Step::Poll),
        3 => (1_usize..5).prop_map(|keep| Step::Forward { keep }),
        1 => Just(Step::DropKept),
    ]
}

proptest! {
    #[test]
    fn frames_are_received_and_returned(steps in prop::collection::vec(step(), 1..120)) {
        let (mut rx, mut kernel) = receiving();
        let mut pool = Pool::new(64);
        let (mut burst, mut kept) = (Burst::new(), Vec::new());
        let (mut sent, mut expected) = (0, VecDeque::new());
        let mut in_ring = VecDeque::new();
        for step in steps {
            match step {
                Step::Receive { len, piece } => {
                    let packet = bytes(sent, len);
                    if kernel.receive(&packet, piece) {
                        sent += 1;
                        in_ring.push_back(len.div_ceil(piece));
                        expected.push_back((packet, piece));
                    }
                }
                Step::Poll => {
                    let had = burst.len();
                    let before = rx.faults();
                    rx.rx(&mut pool, &mut burst);
                    let mut got: VecDeque<_> = burst.iter().skip(had).map(Packet::to_vec).collect();
                    // The runts are missing; all others are there, in order.
                    let mut runts = 0;
                    while let Some((packet, piece)) = expected.front() {
                        if packet.len().min(*piece) < 14 {
                            if burst.is_full() && got.is_empty() { break; }
                            runts += 1;
                        } else if got.front() == Some(packet) {
                            got.pop_front();
                        } else {
                            break;
                        }
                        expected.pop_front();
                        in_ring.pop_front();
                    }
                    prop_assert!(got.is_empty(), "unknown bytes");
                    prop_assert!(expected.is_empty() || burst.is_full());
                    prop_assert_eq!(rx.faults().runt - before.runt, runts);
                }
                Step::Forward { keep } => {
                    for (i, packet) in burst.drain(..).enumerate() {
                        if i % keep == 0 && kept.len() < 4 {
                            kept.push((packet.to_vec(), packet));
                        } else {
                            pool.put(packet);
                        }
                    }
                    rx.complete();
                }
                Step::DropKept => {
                    for (before, packet) in kept.drain(..) {
                        prop_assert_eq!(packet.to_vec(), before, "lent frames were written");
                        pool.put(packet);
                    }
                    rx.complete();
                }
            }
            // Each frame is in one place. `fill` and the model's own list are with the kernel.
            let (free, lent) = rx.held();
            let with_kernel = kernel.frames.len() + kernel.fill.look() as usize;
            let waiting: usize = in_ring.iter().sum();
            prop_assert_eq!(free + lent + with_kernel + waiting, FRAMES as usize);
        }
        drop(burst);
        drop(kept);
        while rx.rx(&mut pool, &mut Burst::new()) > 0 {}
        rx.complete();
        prop_assert_eq!(rx.held(), (0, 0));
    }

    #[test]
    fn packets_are_sent_as_they_are(
        steps in prop::collection::vec((1_usize..9000, any::<bool>(), 0_usize..8), 1..80)
    ) {
        let region = Arc::new(Region::new(FRAMES, None).unwrap());
        let (ring_end, mut kernel) = ring::<Descriptor>(FRAMES);
        let (mut done, completed) = ring::<u64>(FRAMES);
        let mut tx = Tx::new(socket(), Arc::clone(&region), ring_end, completed, 0..FRAMES, Holder::new(0));
        let mut expected = VecDeque::new();
        for (n, (len, partial, sends)) in steps.into_iter().enumerate() {
            let mut packet = Packet::from_bytes(&bytes(n, len));
            if partial {
                packet.offload.csum = Csum::Partial { start: 14, offset: 6 };
            }
            match tx.push(&packet) {
                Ok(()) => expected.push_back((packet.to_vec(), partial)),
                Err(why) => {
                    prop_assert_eq!(why, Refused::Full);
                    prop_assert!(tx.free_frames() < len.div_ceil(FRAME - METADATA));
                }
            }
            tx.flush().unwrap();
            for _ in 0..sends {
                let Some(sent) = sent(&mut kernel, &region) else { break };
                let (bytes, partial) = expected.pop_front().unwrap();
                prop_assert_eq!(sent.bytes, bytes);
                let metadata = sent.metadata.map(|m| m[..12].to_vec());
                prop_assert_eq!(metadata, partial.then(|| vec![2, 0, 0, 0, 0, 0, 0, 0, 14, 0, 6, 0]));
                for frame in sent.frames {
                    prop_assert!(done.room(1) > 0);
                    done.push(frame);
                }
                done.publish();
            }
        }
        // All frames come back.
        while let Some(sent) = sent(&mut kernel, &region) {
            prop_assert_eq!(sent.bytes, expected.pop_front().unwrap().0);
            for frame in sent.frames {
                prop_assert!(done.room(1) > 0);
                done.push(frame);
            }
        }
        done.publish();
        prop_assert!(expected.is_empty());
        for n in 0..FRAMES as usize {
            prop_assert_eq!(tx.push(&Packet::from_bytes(&bytes(n, 60))), Ok(()), "frame {}", n);
        }
        prop_assert_eq!(tx.push(&Packet::from_bytes(&[0; 60])), Err(Refused::Full));
    }
}

/// A packet that the kernel sends.
struct Sent {
    bytes: Vec<u8>,
    metadata: Option<[u8; METADATA]>,
    frames: Vec<u64>,
}

/// Takes the next packet out of the transmit ring.
fn sent(kernel: &mut Consumer<Descriptor>, region: &Region) -> Option<Sent> {
    kernel.look();
    let mut sent = Sent {
        bytes: Vec::new(),
        metadata: None,
        frames: Vec::new(),
    };
    loop {
        let d = kernel.peek(0)?;
        kernel.advance(1);
        let mut part = vec![0; d.len as usize];
        assert!(region.read(d.address, &mut part));
        // The kernel wants the room for metadata in each frame.
        let mut metadata = [0; METADATA];
        assert!(region.read(d.address - METADATA as u64, &mut metadata));
        if d.options & HAS_METADATA != 0 {
            assert!(sent.frames.is_empty(), "in the first frame only");
            sent.metadata = Some(metadata);
        }
        sent.bytes.extend(part);
        sent.frames.push(d.address);
        if d.options & CONTINUES == 0 {
            kernel.release();
            return Some(sent);
        }
    }
}

#[test]
fn descriptors_that_make_no_sense_are_refused() {
    let (mut rx, mut kernel) = receiving();
    let mut pool = Pool::new(8);
    let mut burst = Burst::new();
    for (address, len) in [
        (u64::MAX, 60),
        (u64::from(FRAMES) * FRAME as u64, 60),
        (FRAME as u64 - 10, 60),
        (0, FRAME as u32 + 1),
        (0, u32::MAX),
    ] {
        assert!(kernel.ring.room(1) > 0);
        kernel.ring.push(Descriptor {
            address,
            len,
            options: 0,
        });
    }
    kernel.ring.publish();
    assert_eq!(rx.rx(&mut pool, &mut burst), 0);
    assert_eq!(rx.faults().bad_descriptor, 5);
    assert!(kernel.receive(&bytes(0, 60), 3840));
    assert_eq!(rx.rx(&mut pool, &mut burst), 1);
}

#[test]
fn a_burst_that_is_full_leaves_packets() {
    let (mut rx, mut kernel) = receiving();
    let mut pool = Pool::new(8);
    let mut burst: Burst = (1..BURST).map(|_| Packet::new()).collect();
    assert!(kernel.receive(&bytes(0, 60), 3840) && kernel.receive(&bytes(1, 1500), 3840));
    assert_eq!(rx.rx(&mut pool, &mut burst), 1);
    assert!(rx.has_packet());
    burst.clear();
    assert_eq!(rx.rx(&mut pool, &mut burst), 1);
    assert_eq!(burst[0].to_vec(), bytes(1, 1500));
    assert!(!rx.has_packet());
}

#[test]
fn indices_that_make_no_sense_mean_nothing() {
    let fd = file(8);
    let mut producer = Producer::<u64>::map(fd.as_fd(), 0, LAYOUT, 8).unwrap();
    let mut consumer = Consumer::<u64>::map(fd.as_fd(), 0, LAYOUT, 8).unwrap();
    assert_eq!(producer.room(1), 8);
    rustix::io::pwrite(&fd, &1000_u32.to_ne_bytes(), 0).unwrap();
    assert_eq!((consumer.look(), consumer.peek(0)), (0, None));
    rustix::io::pwrite(&fd, &77_u32.to_ne_bytes(), 64).unwrap();
    assert_eq!(producer.room(9), 0);
    for bad in [
        Layout {
            producer: 2,
            ..LAYOUT
        },
        Layout {
            flags: 1 << 20,
            ..LAYOUT
        },
        Layout { entries: 4, ..LAYOUT },
    ] {
        assert!(Producer::<u64>::map(fd.as_fd(), 0, bad, 8).is_err());
    }
    assert!(Consumer::<u64>::map(fd.as_fd(), 0, LAYOUT, 7).is_err());
}
