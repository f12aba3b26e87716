//! Either side dies, in either order, with packets on the way: rings continue at their position, and each
//! packet is given back once.

use super::*;
use proptest::prelude::*;

const PACKED: Features = Features::VERSION_1.union(Features::RING_PACKED);

impl Rig {
    /// The switch is killed: nothing is stopped, workers' queues are gone with the chains that they had
    /// taken.
    fn kill(&mut self) {
        // Dropped queues write nothing, and descriptors are closed as the kernel closes them.
        self.device.seen.lock().rings.clear();
        self.session = None;
    }
    /// A worker takes packets and does not come to give them back.
    fn take_only(&self) -> usize {
        let mut seen = self.device.seen.lock();
        let Some(Queue::FromGuest(q)) = seen.rings.get_mut(&1).map(|r| &mut r.queue) else {
            panic!()
        };
        let mut burst = Burst::new();
        let n = q.rx(&mut Pool::new(0), &mut burst);
        core::mem::forget(burst);
        n
    }
}

/// The base that QEMU sends at every start, if it never got another.
fn first_base(packed: bool) -> u32 {
    Position::default().to_base(packed)
}

/// The store of packed rings' positions in a process.
#[derive(Clone, Copy, Debug)]
enum Keep {
    /// In a file.
    File,
    /// In the front end's area.
    Area,
}

fn area(rig: &mut Rig) -> (Inflight, OwnedFd) {
    let get = Request::GetInflightFd(Inflight {
        mmap_size: 0,
        mmap_offset: 0,
        num_queues: 4,
        queue_size: 64,
    });
    rig.send(&get, &[]);
    match rig.reply_with_fds(&get) {
        Some((Reply::Inflight(shape), mut fds)) => (shape, fds.pop().unwrap()),
        other => panic!("{other:?}"),
    }
}

/// Runs `rounds` of traffic, each ended by one of the ways in which a session can end.
fn survives(features: Features, keep: Keep, rounds: &[(u8, u8, u8)]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let journal = || matches!(keep, Keep::File).then(|| Journal::new(Some(&path), 4));
    let mut rig = Rig::with(Dummy::new(), journal());
    rig.negotiate(features);
    let kept = matches!(keep, Keep::Area).then(|| area(&mut rig));
    let cfg = rig.ring(features, 32);
    let mut driver = Driver::new(&cfg, &rig.mem).unwrap();
    let mut base = first_base(cfg.packed());
    let mut waiting = 0; // taken by no switch, or by one that was killed
    for &(sent, taken, how) in rounds {
        let area = kept.as_ref();
        if let Some((shape, fd)) = area {
            assert_eq!(rig.ack(&Request::SetInflightFd(*shape), &[fd.as_fd()]), 0);
        }
        rig.start(1, &cfg, Some(base));
        let n = usize::from(sent).min(driver.free());
        guest_sends(&mut rig, &mut driver, n);
        waiting += n;
        if taken % 2 == 0 {
            let got = receive(&rig);
            assert_eq!(
                got, waiting,
                "what a switch took and did not give back is taken again"
            );
            assert_eq!(done(&mut driver).len(), waiting);
            waiting = 0;
        } else if waiting > 0 {
            assert!(rig.take_only() > 0);
        }
        match how % 4 {
            0 => rig.kill(),
            1 => rig.hang_up(),
            2 => rig.shut_down(),
            _ => {
                let Reply::Vring(v) = rig.request_reply(&Request::GetVringBase(state(1, 0)), &[]) else {
                    panic!()
                };
                base = v.num;
                // A stop lets the worker finish the chains that it had taken.
                waiting -= done(&mut driver).len();
                rig.hang_up();
            }
        }
        if matches!(how % 4, 1 | 2) {
            waiting -= done(&mut driver).len();
        }
        rig.connect(journal());
        rig.negotiate(features);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rings_survive_either_side(
        rounds in proptest::collection::vec(any::<(u8, u8, u8)>(), 1..12),
        packed: bool,
        area: bool,
        in_order: bool,
    ) {
        let mut features = if packed { PACKED } else { Features::VERSION_1 };
        if in_order {
            features |= Features::IN_ORDER;
        }
        survives(features, if area { Keep::Area } else { Keep::File }, &rounds);
    }
}

/// A guest that was reset while the switch was away: the new ring begins at its beginning, wherever the old
/// one was.
#[test]
fn a_reset_guest_begins_anew() {
    for (features, sent) in [(PACKED, 5), (PACKED, 31), (PACKED, 45), (Features::VERSION_1, 40)] {
        let journal = Journal::new(None, 4);
        let mut rig = Rig::with(Dummy::new(), Some(journal.clone()));
        rig.negotiate(features);
        let cfg = rig.ring(features, 32);
        let base = Some(first_base(cfg.packed()));
        let mut driver = Driver::new(&cfg, &rig.mem).unwrap();
        rig.start(1, &cfg, base);
        for _ in 0..sent {
            guest_sends(&mut rig, &mut driver, 1);
            assert_eq!(receive(&rig), 1);
            assert_eq!(done(&mut driver).len(), 1);
        }
        rig.kill();
        let zero = vec![0; 32 * 16];
        rig.mem.write(cfg.desc, &zero).unwrap();
        rig.mem.write(cfg.driver, &[0; 4]).unwrap();
        rig.mem.write(cfg.device, &[0; 4]).unwrap();
        let mut driver = Driver::new(&cfg, &rig.mem).unwrap();
        rig.connect(Some(journal));
        rig.negotiate(features);
        guest_sends(&mut rig, &mut driver, 3);
        rig.start(1, &cfg, base);
        // A ring that contradicts its record may have a driver that is just writing: the session checks it
        // several times.
        for _ in 0..200 {
            if rig.is_running(1) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
            rig.run();
        }
        assert_eq!(receive(&rig), 3, "{features:?} after {sent}");
        assert_eq!(done(&mut driver).len(), 3);
    }
}

/// The front end's base counts where it is newer: it got the base at a clean stop, or moved the ring itself.
#[test]
fn a_given_base_counts() {
    let journal = Journal::new(None, 4);
    let mut rig = Rig::with(Dummy::new(), Some(journal));
    rig.negotiate(PACKED);
    let cfg = rig.ring(PACKED, 32);
    let mut driver = Driver::new(&cfg, &rig.mem).unwrap();
    rig.start(1, &cfg, Some(first_base(true)));
    guest_sends(&mut rig, &mut driver, 7);
    assert_eq!(receive(&rig), 7);
    let Reply::Vring(v) = rig.request_reply(&Request::GetVringBase(state(1, 0)), &[]) else {
        panic!()
    };
    let at = Position { index: 7, wrap: true };
    assert_eq!(v.num, at.to_base(true));
    rig.start(1, &cfg, Some(v.num));
    assert_eq!(rig.device.seen.lock().rings[&1].config.start, at);
    // A base that names no slot of the ring.
    rig.request_reply(&Request::GetVringBase(state(1, 0)), &[]);
    rig.send(&Request::SetVringBase(state(1, 40 | 40 << 16)), &[]);
    let kick = VringFd {
        index: 1,
        has_fd: false,
    };
    assert_eq!(rig.ack(&Request::SetVringKick(kick), &[]), 1);
}

/// The back end before this one gave chains back in any order. Two of four chains are done; the others are in
/// flight, the later one taken first.
#[test]
fn what_another_back_end_left_in_flight_is_taken_again_in_its_order() {
    use core::sync::atomic::Ordering::Relaxed;
    use heddle_virtio::mem::HostRange;
    let mut rig = Rig::new();
    rig.negotiate(Features::VERSION_1);
    let (shape, fd) = area(&mut rig);
    let cfg = rig.ring(Features::VERSION_1, 64);
    let mut driver = Driver::new(&cfg, &rig.mem).unwrap();
    guest_sends(&mut rig, &mut driver, 4);
    let heads = [0_u64, 1, 2, 3].map(|i| {
        let mut b = [0; 2];
        rig.mem.read(cfg.driver + 4 + 2 * i, &mut b).unwrap();
        u16::from_le_bytes(b)
    });
    for (i, head) in (0..).zip([heads[3], heads[0]]) {
        let e = u64::from(head).to_le_bytes();
        rig.mem.write(cfg.device + 4 + 8 * i, &e).unwrap();
    }
    rig.mem.write(cfg.device + 2, &2_u16.to_le_bytes()).unwrap();
    // Ring 1's region, as `QueueRegionSplit` lays it out.
    let map = Arc::new(Mapping::of_fd(fd.as_fd(), 0, shape.mmap_size).unwrap());
    let region = HostRange::of(map, (16 + 16 * 64_u64).next_multiple_of(64), 16 + 16 * 64, 8).unwrap();
    region.store16(8, 1, Relaxed);
    region.store16(10, 64, Relaxed);
    region.store16(14, 2, Relaxed);
    for (head, counter) in [(heads[2], 5), (heads[1], 6)] {
        region.store64(16 + 16 * usize::from(head) + 8, counter);
        region.store16(16 + 16 * usize::from(head), 1, Relaxed);
    }
    assert_eq!(rig.ack(&Request::SetInflightFd(shape), &[fd.as_fd()]), 0);
    rig.start(1, &cfg, Some(2));
    assert_eq!(receive(&rig), 2);
    let tokens: Vec<u32> = done(&mut driver).iter().map(|d| d.token).collect();
    assert_eq!(tokens, [3, 0, 2, 1]);
    guest_sends(&mut rig, &mut driver, 3);
    assert_eq!(receive(&rig), 3, "and the ring goes on");
    assert_eq!(done(&mut driver).len(), 3);
}

/// A ring that contradicts its record is set up again and again: no thread sleeps for it, and each message
/// takes no time.
#[test]
fn rings_that_contradict_their_record_hold_no_session() {
    let journal = Journal::new(None, 4);
    let mut rig = Rig::with(Dummy::new(), Some(journal.clone()));
    rig.negotiate(PACKED);
    let cfg = rig.ring(PACKED, 32);
    let mut driver = Driver::new(&cfg, &rig.mem).unwrap();
    let base = Some(first_base(true));
    rig.start(1, &cfg, base);
    guest_sends(&mut rig, &mut driver, 5);
    assert_eq!(receive(&rig), 5);
    rig.kill();
    rig.mem.write(cfg.desc, &vec![0; 32 * 16]).unwrap();
    rig.connect(Some(journal));
    rig.negotiate(PACKED);
    rig.start(1, &cfg, base);
    assert!(!rig.is_running(1), "it is looked at again");
    // The quickest of many: one that sleeps in each of them is told from a machine that is busy in some.
    let mut quickest = Duration::MAX;
    let ev = EventFd::new().unwrap();
    for _ in 0..200 {
        let began = Instant::now();
        assert!(matches!(
            rig.request_reply(&Request::GetVringBase(state(1, 0)), &[]),
            Reply::Vring(_)
        ));
        let fd = VringFd {
            index: 1,
            has_fd: true,
        };
        rig.send(&Request::SetVringKick(fd), &[ev.as_fd()]);
        quickest = quickest.min(began.elapsed());
    }
    assert!(quickest < Duration::from_millis(5), "{quickest:?} at least");
    assert_eq!(rig.ended, None);
}
