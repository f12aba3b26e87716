//! Bytes in are bytes out, in every combination of layout and features, against a plain model.

#![allow(unsafe_code)] // segments of packets point to bytes of the test

use super::*;
use heddle_packet::{Csum, Gso, GsoKind, Lender, Offload, Wraps};
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Clone, Debug)]
struct Sent {
    /// Frame length.
    len: usize,
    /// The offsets at which header and frame are cut into buffers.
    cuts: Vec<usize>,
    indirect: bool,
    offload: bool,
}

fn sent() -> impl Strategy<Value = Sent> {
    let len = prop_oneof![4 => 14_usize..1600, 1 => 60..=limits::MAX_FRAME];
    (
        len,
        proptest::collection::vec(0_usize..1700, 0..5),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(len, cuts, indirect, offload)| Sent {
            len,
            cuts,
            indirect,
            offload,
        })
}

fn start(packed: bool, index: u16, wrap: bool, size: u16) -> Position {
    Position {
        index: if packed { index % size } else { index },
        wrap: wrap || !packed,
    }
}

fn some_offload() -> Offload {
    Offload {
        csum: Csum::Partial {
            start: 34,
            offset: 16,
        },
        gso: Some(Gso {
            kind: GsoKind::Tcp4,
            ecn: false,
            size: 1448,
            hdr_len: 54,
            wraps: Wraps::default(),
        }),
    }
}

/// One run of the transmit direction: `frames` through a ring of `size`, seen by the device in bursts.
fn guest_sends(features: Features, size: u16, start: Position, frames: &[Sent]) -> Result<(), TestCaseError> {
    let mut rig = Rig::at(features, size, start);
    let mut rx = rig.rx();
    let (mut pool, mut burst) = (Pool::new(4), Burst::new());
    let (mut want, mut tokens) = (VecDeque::new(), VecDeque::new());
    for (i, f) in frames.iter().enumerate() {
        let frame = pattern(f.len, i);
        let offload = if f.offload && f.len > 60 {
            some_offload()
        } else {
            Offload::default()
        };
        let bytes = [&crate::encode(&offload, f.len)[..], &frame].concat();
        let mut cuts: Vec<usize> = f
            .cuts
            .iter()
            .map(|&c| c.min(bytes.len()))
            .chain([0, bytes.len()])
            .collect();
        cuts.sort_unstable();
        cuts.dedup();
        let bufs: Vec<Buf> = cuts.windows(2).map(|w| rig.buf(&bytes[w[0]..w[1]])).collect();
        let place = if f.indirect && features.contains(Features::INDIRECT_DESC) {
            ChainLocation::Indirect(rig.arena.take(16 * bufs.len() as u64, 16).unwrap())
        } else {
            ChainLocation::Direct
        };
        match rig.add(&bufs, &[], place, i as u32) {
            Ok(()) => {
                want.push_back((frame, offload));
                tokens.push_back(i as u32);
            }
            Err(e) => prop_assert!(matches!(e, DriverError::Full | DriverError::Chain(_)), "{e}"),
        }
        if i % 3 == 2 || i + 1 == frames.len() {
            rig.driver.publish();
            while !want.is_empty() {
                let n = rx.rx(&mut pool, &mut burst);
                prop_assert!(n > 0, "{:?}", rx.error());
                for p in burst.drain(..) {
                    let Some((frame, offload)) = want.pop_front() else {
                        return Err(TestCaseError::fail("more than was sent"));
                    };
                    prop_assert!(p.head().len() <= limits::HEAD.max(f.len));
                    prop_assert_eq!(p.to_vec(), frame);
                    prop_assert_eq!(p.offload, offload);
                    pool.put(p);
                }
                rx.complete();
            }
            for d in rig.done() {
                prop_assert_eq!(Some(d.token), tokens.pop_front());
                prop_assert_eq!(d.len, 0);
            }
            prop_assert!(tokens.is_empty());
            prop_assert_eq!(rig.driver.free(), usize::from(size));
        }
    }
    prop_assert_eq!(rx.rx(&mut pool, &mut burst), 0);
    prop_assert_eq!((rx.error(), rx.drops()), (None, RxDrops::default()));
    Ok(())
}

#[derive(Clone, Debug)]
enum Step {
    /// The guest posts a chain of buffers.
    Post(Vec<usize>, bool),
    /// The switch sends frames of these lengths.
    Send(Vec<usize>),
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![Just(1526_usize), Just(2048), 12_usize..400, 60_usize..9000];
    prop_oneof![
        3 => (proptest::collection::vec(size, 1..4), any::<bool>()).prop_map(|(v, i)| Step::Post(v, i)),
        2 => proptest::collection::vec(prop_oneof![4 => 14_usize..1600, 1 => 1000_usize..12_000], 1..6).prop_map(Step::Send),
    ]
}

/// The plain model of a receive ring: capacities, first in, first out.
fn model(posted: &mut VecDeque<usize>, mergeable: bool, lens: &[usize]) -> (Vec<usize>, TxOutcome) {
    let (mut sent, mut out) = (Vec::new(), TxOutcome::default());
    for (i, len) in lens.iter().enumerate() {
        let need = len + 12;
        let mut sum = 0;
        let chains = posted
            .iter()
            .take_while(|&&cap| (sum < need).then(|| sum += cap).is_some())
            .count();
        if !mergeable && posted.front().is_some_and(|&cap| cap < need) {
            out.too_long += 1;
        } else if sum < need {
            out.full += (lens.len() - i) as u64;
            break;
        } else {
            posted.drain(..if mergeable { chains } else { 1 });
            sent.push(*len);
            out.sent += 1;
            out.bytes += *len as u64;
        }
    }
    (sent, out)
}

/// One run of the receive direction.
fn guest_receives(
    features: Features,
    size: u16,
    start: Position,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    // The packets have metadata, so the guest takes it.
    let mut rig = Rig::at(features | Features::GUEST_CSUM, size, start);
    let mut tx = rig.tx();
    let mergeable = features.contains(Features::MRG_RXBUF);
    let (mut posted, mut bufs) = (VecDeque::new(), Vec::new());
    for (s, step) in steps.iter().enumerate() {
        match step {
            Step::Post(lens, indirect) => {
                let chain: Vec<Buf> = lens.iter().map(|&n| rig.room(n)).collect();
                let place = if *indirect && features.contains(Features::INDIRECT_DESC) {
                    ChainLocation::Indirect(rig.arena.take(16 * chain.len() as u64, 16).unwrap())
                } else {
                    ChainLocation::Direct
                };
                if rig.add(&[], &chain, place, bufs.len() as u32).is_ok() {
                    rig.driver.publish();
                    posted.push_back(lens.iter().sum());
                    bufs.push(chain);
                }
            }
            Step::Send(lens) => {
                let frames: Vec<Vec<u8>> = lens.iter().map(|&n| pattern(n, s)).collect();
                let mut lender = Lender::new();
                let packets: Vec<Packet> = frames.iter().map(|f| packet_of(f, &mut lender)).collect();
                let refs: Vec<&Packet> = packets.iter().collect();
                let (want, outcome) = model(&mut posted, mergeable, lens);
                let got = tx.tx(&refs);
                prop_assert_eq!(TxOutcome { call: false, ..got }, outcome, "{:?}", tx.error());
                for len in want {
                    let frame = guest_takes(&mut rig, &bufs, mergeable)?;
                    prop_assert_eq!(frame, pattern(len, s));
                }
                prop_assert!(rig.done().is_empty());
            }
        }
    }
    Ok(())
}

/// A packet whose tail is in foreign memory, as a packet from another guest has it.
fn packet_of(frame: &[u8], lender: &mut Lender) -> Packet {
    let head = frame.len().min(100);
    let mut p = Packet::from_bytes(&frame[..head]);
    for part in frame[head..].chunks(5000) {
        let ptr = std::ptr::NonNull::from(part).cast();
        // SAFETY: the frame outlives the packet in these tests.
        assert!(unsafe { p.push_seg(ptr, part.len() as u32, lender) });
    }
    p.offload = some_offload();
    p
}

/// The bytes that the guest's driver makes of the used buffers of one packet.
fn guest_takes(rig: &mut Rig, bufs: &[Vec<Buf>], mergeable: bool) -> Result<Vec<u8>, TestCaseError> {
    let (mut bytes, mut left) = (Vec::new(), 1);
    // The first buffer may hold the header and nothing else.
    let mut at_header = true;
    while left > 0 {
        let done = rig.driver.pop().unwrap();
        prop_assert!(done.is_some(), "a used buffer is missing");
        let done = done.unwrap();
        let chain = &bufs[done.token as usize];
        let mut all: Vec<u8> = chain.iter().flat_map(|&b| rig.read(b)).collect();
        all.truncate(done.len as usize);
        if std::mem::take(&mut at_header) {
            let hdr: Vec<u8> = all.drain(..12).collect();
            left = usize::from(u16::from_le_bytes([hdr[10], hdr[11]]));
            prop_assert!(left >= 1 && (mergeable || left == 1));
            prop_assert_eq!(crate::decode(&hdr, 1 << 16).unwrap().csum, some_offload().csum);
            prop_assert_eq!(
                crate::decode(&hdr, 1 << 16)
                    .unwrap()
                    .gso
                    .map(|g| (g.kind, g.size)),
                some_offload().gso.map(|g| (g.kind, g.size))
            );
        }
        bytes.extend(all);
        left -= 1;
    }
    Ok(bytes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 32 }, ..ProptestConfig::default() })]

    #[test]
    fn what_a_guest_sends_arrives(
        frames in proptest::collection::vec(sent(), 1..12),
        index: u16, wrap: bool, log in 3_u32..7, odd in 0_u16..5,
    ) {
        for features in combinations() {
            let packed = features.contains(Features::RING_PACKED);
            let size = (1 << log) + if packed { odd } else { 0 };
            guest_sends(features, size, start(packed, index, wrap, size), &frames)?;
        }
    }

    #[test]
    fn what_is_sent_to_a_guest_arrives(
        steps in proptest::collection::vec(step(), 1..20),
        index: u16, wrap: bool, log in 3_u32..7, odd in 0_u16..5,
    ) {
        for features in combinations() {
            let packed = features.contains(Features::RING_PACKED);
            let size = (1 << log) + if packed { odd } else { 0 };
            guest_receives(features, size, start(packed, index, wrap, size), &steps)?;
        }
    }
}
