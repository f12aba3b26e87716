//! Front ends that send anything: no panic, bounded memory, and each session continues or ends with a text.

use super::*;
use proptest::prelude::*;

/// A number that is mostly plausible.
fn index() -> impl Strategy<Value = u32> {
    prop_oneof![12 => 0_u32..4, 1 => 4_u32..300, 1 => any::<u32>()]
}
fn user() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => (0..LEN / 64).prop_map(|n| USER + n * 64),
        2 => (0..LEN / 64).prop_map(|n| BASE + n * 64),
        1 => Just(USER + LEN - 16),
        1 => any::<u64>(),
    ]
}
fn region() -> impl Strategy<Value = MemRegion> {
    let whole = Just(MemRegion {
        guest: BASE,
        size: LEN,
        user: USER,
        offset: 0,
    });
    let part = (0_u64..4, 1_u64..3, 0_u64..4).prop_map(|(at, len, off)| MemRegion {
        guest: BASE + at * LEN / 4,
        size: len * LEN / 4,
        user: USER + at * LEN / 4,
        offset: off * LEN / 4,
    });
    let any = any::<[u64; 4]>().prop_map(|[guest, size, user, offset]| MemRegion {
        guest,
        size,
        user,
        offset,
    });
    prop_oneof![4 => whole, 3 => part, 1 => any]
}
fn vring_fd() -> impl Strategy<Value = VringFd> {
    (prop_oneof![10 => 0_u8..4, 1 => any::<u8>()], any::<bool>())
        .prop_map(|(index, has_fd)| VringFd { index, has_fd })
}
fn features() -> impl Strategy<Value = u64> {
    let mine = Dummy::new().offer.features | Features::PROTOCOL_FEATURES | Features::LOG_ALL;
    prop_oneof![6 => any::<u64>().prop_map(move |b| b & mine.bits()), 1 => any::<u64>()]
}
fn inflight() -> impl Strategy<Value = Inflight> {
    let size = prop_oneof![0_u64..100_000, any::<u64>()];
    (
        size,
        prop_oneof![3 => Just(0), 1 => any::<u64>()],
        0_u16..6,
        0_u16..300,
    )
        .prop_map(|(mmap_size, mmap_offset, num_queues, queue_size)| Inflight {
            mmap_size,
            mmap_offset,
            num_queues,
            queue_size,
        })
}
fn iotlb() -> impl Strategy<Value = IotlbMsg> {
    let kind = prop_oneof![
        6 => Just(IotlbKind::Update),
        2 => Just(IotlbKind::Invalidate),
        1 => Just(IotlbKind::Miss),
    ];
    (
        user(),
        prop_oneof![Just(4096), Just(LEN), any::<u64>()],
        user(),
        0_u8..4,
        kind,
    )
        .prop_map(|(iova, size, user, access, kind)| IotlbMsg {
            iova,
            size,
            user,
            access: Access::from_bits_truncate(access),
            kind,
        })
}

/// Requests of the kind that sets something up, so that sequences get somewhere.
fn plausible() -> impl Strategy<Value = Request> {
    let state = || {
        (index(), prop_oneof![8 => 0_u32..65, 1 => any::<u32>()])
            .prop_map(|(index, num)| VringState { index, num })
    };
    let addr = (index(), any::<bool>(), user(), user(), user(), any::<u64>()).prop_map(
        |(index, log_used, desc, used, avail, log)| VringAddr {
            index,
            log_used,
            desc,
            used,
            avail,
            log,
        },
    );
    let sized = (index(), prop_oneof![Just(16), Just(64), Just(1)])
        .prop_map(|(index, num)| VringState { index, num });
    let config = || {
        (0_u32..20, any::<bool>(), 0_usize..20).prop_map(|(offset, live, len)| ConfigSpace {
            offset,
            flags: if live {
                ConfigFlags::MIGRATION
            } else {
                ConfigFlags::empty()
            },
            bytes: vec![1; len],
        })
    };
    let rings = prop_oneof![
        6 => sized.prop_map(Request::SetVringNum),
        6 => addr.prop_map(Request::SetVringAddr),
        3 => state().prop_map(Request::SetVringBase),
        3 => state().prop_map(Request::GetVringBase),
        6 => vring_fd().prop_map(Request::SetVringKick),
        3 => vring_fd().prop_map(Request::SetVringCall),
        1 => vring_fd().prop_map(Request::SetVringErr),
        3 => state().prop_map(Request::SetVringEnable),
        1 => state().prop_map(Request::SetVringEndian),
    ];
    let memory = prop_oneof![
        3 => proptest::collection::vec(region(), 0..4).prop_map(Request::SetMemTable),
        2 => region().prop_map(Request::AddMemReg),
        2 => region().prop_map(Request::RemMemReg),
        2 => (prop_oneof![Just(4096_u64), any::<u64>()], 0_u64..3).prop_map(|(size, n)| {
            Request::SetLogBase(Some(LogArea { size, offset: n * 4096 }))
        }),
        4 => iotlb().prop_map(Request::Iotlb),
        1 => inflight().prop_map(Request::GetInflightFd),
        2 => inflight().prop_map(Request::SetInflightFd),
    ];
    let device = prop_oneof![
        4 => features().prop_map(Request::SetFeatures),
        1 => any::<u64>().prop_map(|b| Request::SetProtocolFeatures(b & PROTOCOL.bits())),
        1 => prop_oneof![0_u64..10_000, any::<u64>()].prop_map(Request::NetSetMtu),
        1 => (0_u64..20).prop_map(Request::SetStatus),
        1 => config().prop_map(Request::GetConfig),
        1 => config().prop_map(Request::SetConfig),
        1 => Just(Request::ResetDevice),
        1 => Just(Request::ResetOwner),
        1 => Just(Request::SetBackendReqFd),
        1 => Just(Request::GetStatus),
    ];
    prop_oneof![5 => rings, 4 => memory, 2 => device]
}

/// One act of a front end.
#[derive(Clone, Debug)]
enum Act {
    /// A request with its descriptors, or with one more or less; with or without NEED_REPLY.
    Send(Request, i8, bool),
    /// Bytes of any kind.
    Raw(Vec<u8>),
    /// Bytes into the guest's memory, where rings may be.
    Poke(u64, Vec<u8>),
    /// The workers run.
    Work,
    /// A ring is set up as it should be.
    Ring(u8, bool),
    /// Connected anew, with these features.
    Again(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let extra = || prop_oneof![30 => Just(0_i8), 1 => Just(1), 1 => Just(-1)];
    let any_request = crate::message::tests::request();
    prop_oneof![
        40 => (plausible(), extra(), proptest::bool::weighted(0.95)).prop_map(|(r, e, a)| Act::Send(r, e, a)),
        2 => (any_request, extra(), any::<bool>()).prop_map(|(r, e, a)| Act::Send(r, e, a)),
        1 => proptest::collection::vec(any::<u8>(), 0..40).prop_map(Act::Raw),
        4 => ((0..LEN / 64), proptest::collection::vec(any::<u8>(), 1..64)).prop_map(|(n, b)| Act::Poke(BASE + n * 64, b)),
        6 => Just(Act::Work),
        8 => (0_u8..4, any::<bool>()).prop_map(|(i, log)| Act::Ring(i, log)),
        1 => any::<u64>().prop_map(Act::Again),
    ]
}

impl Rig {
    fn work(&mut self) {
        let packet = Packet::from_bytes(&[5; 100]);
        let mut seen = self.device.seen.lock();
        let link = seen.link.clone().unwrap();
        for ring in seen.rings.values_mut() {
            let miss = match &mut ring.queue {
                Queue::FromGuest(q) => {
                    let mut burst = Burst::new();
                    q.rx(&mut Pool::new(0), &mut burst);
                    drop(burst);
                    q.complete();
                    q.take_miss()
                }
                Queue::ToGuest(q) => {
                    q.tx(&[&packet, &packet]);
                    q.take_miss()
                }
            };
            if let Some(miss) = miss {
                link.miss(miss);
            }
        }
    }
    /// All settings of a ring, at a place of its own.
    fn good_ring(&mut self, index: u8, log_used: bool) {
        let at = USER + 0x4000 * u64::from(index);
        let n = u32::from(index);
        let addr = VringAddr {
            index: n,
            log_used,
            desc: at,
            avail: at + 0x1000,
            used: at + 0x2000,
            log: 0x5000,
        };
        let ev = EventFd::new().unwrap();
        let fd = VringFd { index, has_fd: true };
        for (request, fds) in [
            (Request::SetVringNum(state(n, 64)), &[][..]),
            (Request::SetVringAddr(addr), &[]),
            (Request::SetVringCall(fd), &[ev.as_fd()]),
            (Request::SetVringKick(fd), &[ev.as_fd()]),
            (Request::SetVringEnable(state(n, 1)), &[]),
        ] {
            let _ = self.front.send_request(&request, HeaderFlags::NEED_REPLY, fds); // may have ended
            self.run();
            self.reply_to(&request);
        }
    }
}

/// Runs the acts. Each request with NEED_REPLY gets exactly one reply, or the session ends.
fn play(acts: &[Act]) {
    let journal = Journal::new(None, 4);
    let mut rig = Rig::with(Dummy::new(), Some(journal.clone()));
    let (channel, _kept) = UnixStream::pair().unwrap();
    let mut negotiated = false;
    let mut wanted = 0;
    for act in acts {
        if let Act::Again(features) = act {
            wanted = *features;
        }
        if rig.session.is_none() || matches!(act, Act::Again(_)) {
            if rig.session.is_some() {
                rig.hang_up();
            }
            assert!(matches!(rig.events().last(), Some(Event::Gone(_)) | None));
            rig.connect(Some(journal.clone()));
            negotiated = false;
        }
        if !negotiated {
            rig.send(&Request::SetProtocolFeatures(PROTOCOL.bits()), &[]);
            let offer = rig.device.offer.features & Features::from_bits_truncate(wanted);
            let features = offer | Features::PROTOCOL_FEATURES;
            rig.send(&Request::SetFeatures(features.bits()), &[]);
            let file = rig.file.try_clone().unwrap();
            let table = Request::SetMemTable(vec![rig.region()]);
            assert_eq!(rig.ack(&table, &[file.as_fd()]), 0);
            negotiated = true;
        }
        match act {
            Act::Again(_) => {}
            Act::Ring(index, log) => rig.good_ring(*index, *log),
            Act::Work => rig.work(),
            Act::Poke(at, bytes) => {
                let _ = rig.mem.write(*at, bytes); // beyond the end: nothing
            }
            Act::Raw(bytes) => {
                use std::io::Write;
                let raw = rig.front.as_fd().try_clone_to_owned().unwrap();
                let _ = UnixStream::from(raw).write_all(bytes);
                rig.run();
                // Half a message may be left: nothing else can be sent on this connection.
                rig.hang_up();
            }
            Act::Send(request, extra, request_reply) => {
                let file = rig.file.try_clone().unwrap();
                let fd = match request {
                    Request::SetBackendReqFd => channel.as_fd(),
                    _ => file.as_fd(),
                };
                let ev = EventFd::new().unwrap();
                let fd = match request {
                    Request::SetVringKick(_) | Request::SetVringCall(_) | Request::SetVringErr(_) => {
                        ev.as_fd()
                    }
                    _ => fd,
                };
                let right = match request.fds() {
                    FdRule::Exactly(n) => n,
                    FdRule::Optional => 0,
                };
                let n = right.saturating_add_signed(isize::from(*extra)).min(MAX_FDS);
                let flags = if *request_reply {
                    HeaderFlags::NEED_REPLY
                } else {
                    HeaderFlags::empty()
                };
                let acks = *request_reply && rig.session.as_ref().is_some_and(Session::acknowledges);
                rig.front.send_request(request, flags, &vec![fd; n]).unwrap();
                rig.run();
                let replies = std::iter::from_fn(|| rig.reply_to(request)).count();
                let wanted = rig.ended.is_none() && (acks || request.reply() == ReplyKind::Own);
                assert_eq!(replies, usize::from(wanted), "{request:?} {:?}", rig.ended);
            }
        }
        assert!(rig.device.seen.lock().rings.len() <= 4);
    }
    rig.shut_down();
    assert!(rig.device.seen.lock().rings.is_empty());
}

proptest! {
    #[test]
    fn any_messages_in_any_order(acts in proptest::collection::vec(act(), 1..120)) {
        play(&acts);
    }
}
