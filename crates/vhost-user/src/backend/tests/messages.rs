//! Each message: its effect, and the reasons to refuse it.

use super::*;

#[test]
fn what_is_offered_is_what_is_implemented() {
    let mut rig = Rig::new();
    let Reply::U64(features) = rig.request_reply(&Request::GetFeatures, &[]) else {
        panic!()
    };
    let extra = Features::PROTOCOL_FEATURES | Features::LOG_ALL;
    assert_eq!(features, (rig.device.offer.features | extra).bits());
    assert_eq!(
        rig.request_reply(&Request::GetProtocolFeatures, &[]),
        Reply::U64(PROTOCOL.bits())
    );
    assert_eq!(rig.request_reply(&Request::GetQueueNum, &[]), Reply::U64(2));
    assert!(!PROTOCOL.intersects(
        ProtocolFeatures::PAGEFAULT | ProtocolFeatures::CROSS_ENDIAN | ProtocolFeatures::INBAND_NOTIFICATIONS
    ));
}

#[test]
fn features_that_were_not_offered_end_the_session() {
    for bits in [1_u64 << 63, Features::GUEST_TSO4.bits()] {
        let mut rig = Rig::new();
        rig.send(&Request::SetFeatures(bits), &[]);
        let end = rig.ended.expect("no answer was asked for");
        assert!(
            end.contains("SET_FEATURES") && end.contains("was not offered"),
            "{end}"
        );
        assert!(matches!(
            rig.device.seen.lock().events.last(),
            Some(Event::Gone(_))
        ));
    }
    let mut rig = Rig::new();
    rig.send(&Request::SetProtocolFeatures(PROTOCOL.bits()), &[]);
    assert_eq!(
        rig.ack(
            &Request::SetProtocolFeatures(ProtocolFeatures::PAGEFAULT.bits()),
            &[]
        ),
        1
    );
    assert_eq!(rig.ack(&Request::SetProtocolFeatures(1 << 60), &[]), 1);
    assert_eq!(rig.ack(&Request::SetFeatures(1 << 63), &[]), 1);
    assert_eq!(rig.ended, None);
}

#[test]
fn acknowledgements_only_when_negotiated() {
    let mut rig = Rig::new();
    let owner = Request::SetOwner;
    rig.front
        .send_request(&owner, HeaderFlags::NEED_REPLY, &[])
        .unwrap();
    rig.run();
    assert_eq!(rig.reply_to(&owner), None);
    rig.send(
        &Request::SetProtocolFeatures(ProtocolFeatures::REPLY_ACK.bits()),
        &[],
    );
    assert_eq!(rig.ack(&owner, &[]), 0);
    // One reply each: a request with its own reply gets no other.
    assert_eq!(rig.ack(&Request::GetQueueNum, &[]), 2);
    assert_eq!(rig.reply_to(&owner), None);
}

#[test]
fn requests_of_features_that_were_not_negotiated_are_refused() {
    let inflight = Inflight {
        mmap_size: 0,
        mmap_offset: 0,
        num_queues: 2,
        queue_size: 64,
    };
    for request in [
        Request::SendRarp([2; 6]),
        Request::NetSetMtu(1500),
        Request::ResetDevice,
        Request::GetMaxMemSlots,
        Request::GetStatus,
        Request::SetStatus(1),
        Request::GetInflightFd(inflight),
        Request::PostcopyAdvise,
        Request::PostcopyListen,
        Request::PostcopyEnd,
        Request::SetVringEndian(state(0, 0)),
        Request::VringKick(state(0, 0)),
    ] {
        let mut rig = Rig::new();
        rig.send(&request, &[]);
        assert!(
            rig.ended.is_some_and(|e| e.starts_with(request.name())),
            "{request:?}"
        );
    }
}

#[test]
fn unknown_requests_get_a_reply_or_end_the_session() {
    for code in [0, 26, 27, 33, 41, 42, 9999, u32::MAX] {
        let mut rig = Rig::new();
        rig.front.send(code, HeaderFlags::empty(), &[0; 8], &[]).unwrap();
        rig.run();
        assert_eq!(rig.ended, Some(format!("unknown request {code}")));
        let mut rig = Rig::new();
        rig.negotiate(Features::VERSION_1);
        rig.front
            .send(code, HeaderFlags::NEED_REPLY, &[0; 8], &[])
            .unwrap();
        rig.run();
        let Received::Frame(f) = rig.front.recv().unwrap() else {
            panic!("no answer")
        };
        assert_eq!(
            (f.header.request, f.payload),
            (code, 1_u64.to_ne_bytes().to_vec())
        );
        assert_eq!(rig.ended, None);
    }
}

#[test]
fn mtu_rarp_status_and_configuration_reach_the_device() {
    let mut rig = Rig::new();
    rig.negotiate(Features::VERSION_1 | Features::MTU);
    rig.events();
    assert_eq!(rig.ack(&Request::NetSetMtu(1500), &[]), 0);
    for mtu in [9001, 67, 65536, u64::MAX] {
        assert_eq!(rig.ack(&Request::NetSetMtu(mtu), &[]), 1);
    }
    rig.send(&Request::SendRarp([2, 0, 0, 1, 2, 3]), &[]);
    rig.send(&Request::SetStatus(0xf), &[]);
    assert_eq!(rig.request_reply(&Request::GetStatus, &[]), Reply::U64(0xf));
    assert_eq!(rig.ack(&Request::SetStatus(0x100), &[]), 1);
    let told: Vec<Event> = rig
        .events()
        .into_iter()
        .filter(|e| !matches!(e, Event::Trouble(_)))
        .collect();
    assert_eq!(
        told,
        [
            Event::Mtu(1500),
            Event::Mtu(9001),
            Event::Rarp([2, 0, 0, 1, 2, 3]),
            Event::Status(0xf)
        ]
    );
    let part = |offset, len| ConfigSpace {
        offset,
        flags: ConfigFlags::empty(),
        bytes: vec![0; len],
    };
    let Reply::Config(c) = rig.request_reply(&Request::GetConfig(part(2, 4)), &[]) else {
        panic!()
    };
    assert_eq!(c.bytes, [3, 4, 5, 6]);
    for (offset, len) in [(5, 4), (u32::MAX, 8), (0, 0)] {
        assert_eq!(
            rig.request_reply(&Request::GetConfig(part(offset, len)), &[]),
            Reply::NoConfig
        );
    }
    assert_eq!(rig.ack(&Request::SetConfig(part(1, 2)), &[]), 1);
    let live = ConfigSpace {
        flags: ConfigFlags::MIGRATION,
        ..part(1, 2)
    };
    assert_eq!(rig.ack(&Request::SetConfig(live), &[]), 0);
}

#[test]
fn messages_with_the_wrong_descriptors_end_the_session() {
    let ev = EventFd::new().unwrap();
    let kick = Request::SetVringKick(VringFd {
        index: 0,
        has_fd: true,
    });
    for (request, fds) in [
        (Request::SetOwner, vec![ev.as_fd()]),
        (kick.clone(), vec![]),
        (kick, vec![ev.as_fd(); 2]),
        (Request::SetMemTable(vec![]), vec![ev.as_fd()]),
        (Request::SetLogFd, vec![]),
    ] {
        let mut rig = Rig::new();
        rig.send(&request, &fds);
        assert!(
            rig.ended.is_some_and(|e| e.contains("descriptors")),
            "{request:?}"
        );
    }
    // A descriptor of a wrong kind.
    let mut rig = Rig::new();
    rig.negotiate(Features::VERSION_1);
    let file = rig.file.try_clone().unwrap();
    let call = Request::SetVringCall(VringFd {
        index: 0,
        has_fd: true,
    });
    assert_eq!(rig.ack(&call, &[file.as_fd()]), 1);
    assert_eq!(rig.ack(&Request::SetBackendReqFd, &[file.as_fd()]), 1);
    // The message that some front ends send with a descriptor too many.
    let region = rig.region();
    assert_eq!(rig.ack(&Request::RemMemReg(region), &[file.as_fd()]), 0);
}

#[test]
fn memory_comes_and_goes_region_by_region() {
    let mut rig = Rig::new();
    rig.negotiate(Features::VERSION_1);
    assert_eq!(rig.request_reply(&Request::GetMaxMemSlots, &[]), Reply::U64(4));
    let file = rig.file.try_clone().unwrap();
    let region = |n: u64, size| MemRegion {
        guest: BASE + n * LEN,
        size,
        user: USER + n * LEN,
        offset: 0,
    };
    for n in 1..4 {
        assert_eq!(rig.ack(&Request::AddMemReg(region(n, LEN)), &[file.as_fd()]), 0);
    }
    assert_eq!(rig.ack(&Request::AddMemReg(region(5, LEN)), &[file.as_fd()]), 1); // no slot
    assert_eq!(rig.ack(&Request::RemMemReg(region(2, LEN - 1)), &[]), 1); // not that one
    let elsewhere = MemRegion {
        user: 1,
        ..region(2, LEN)
    };
    assert_eq!(rig.ack(&Request::RemMemReg(elsewhere), &[]), 1);
    assert_eq!(rig.ack(&Request::RemMemReg(region(2, LEN)), &[]), 0);
    assert_eq!(rig.ack(&Request::RemMemReg(region(2, LEN)), &[]), 1);
    assert_eq!(rig.ended, None);
}

/// CVE-2018-1059's kind, at the table: regions that overlap, wrap, or are longer than their file (which would
/// be SIGBUS in a worker).
#[test]
fn regions_that_make_no_sense_are_refused() {
    let good = Rig::new().region();
    let cut = memfd("cut", 4096, Pages::Normal).unwrap();
    for (what, table) in [
        (
            "beyond the file",
            vec![MemRegion {
                size: LEN + 1,
                ..good
            }],
        ),
        ("offset beyond the file", vec![MemRegion { offset: 4096, ..good }]),
        (
            "offset that wraps",
            vec![MemRegion {
                offset: u64::MAX,
                ..good
            }],
        ),
        ("empty", vec![MemRegion { size: 0, ..good }]),
        (
            "guest address wraps",
            vec![MemRegion {
                guest: u64::MAX - 4096,
                ..good
            }],
        ),
        (
            "user address wraps",
            vec![MemRegion {
                user: u64::MAX - 4096,
                ..good
            }],
        ),
        (
            "overlap",
            vec![
                good,
                MemRegion {
                    guest: BASE + LEN - 1,
                    ..good
                },
            ],
        ),
        ("twice", vec![good, good]),
    ] {
        let mut rig = Rig::new();
        rig.negotiate(Features::VERSION_1);
        let file = rig.file.try_clone().unwrap();
        let fds = vec![file.as_fd(); table.len()];
        assert_eq!(rig.ack(&Request::SetMemTable(table.clone()), &fds), 1, "{what}");
        // The old table stays in use.
        assert_eq!(rig.ack(&Request::RemMemReg(good), &[]), 0, "{what}");
        if let [region] = table[..] {
            assert_eq!(rig.ack(&Request::AddMemReg(region), &[file.as_fd()]), 1, "{what}");
        }
        assert_eq!(rig.ack(&Request::SetMemTable(vec![good]), &[cut.as_fd()]), 1);
    }
}

/// "Inflight-table size desync": sizes come in a message, in the area itself and from the ring.
#[test]
fn an_inflight_area_has_its_announced_size() {
    let shape = |size, queues, entries| Inflight {
        mmap_size: size,
        mmap_offset: 0,
        num_queues: queues,
        queue_size: entries,
    };
    let mut rig = Rig::new();
    rig.negotiate(Features::VERSION_1 | Features::RING_PACKED);
    let get = Request::GetInflightFd(shape(0, 2, 64));
    rig.send(&get, &[]);
    let (Reply::Inflight(got), mut fds) = rig.reply_with_fds(&get).unwrap() else {
        panic!()
    };
    let fd = fds.pop().unwrap();
    assert_eq!((got.num_queues, got.queue_size, got.mmap_offset), (2, 64, 0));
    assert_eq!(rig.ack(&Request::SetInflightFd(got), &[fd.as_fd()]), 0);
    for bad in [
        shape(got.mmap_size, 2, 4096), // regions do not fit
        shape(got.mmap_size, 5, 8),    // more queues than there are
        shape(got.mmap_size, 0, 64),
        shape(got.mmap_size, 2, 0),
        shape(got.mmap_size, 2, 32769),
        shape(0, 2, 64),
        shape(got.mmap_size + 4096, 2, 128), // beyond the file
        Inflight {
            mmap_offset: 4096,
            ..got
        },
        Inflight {
            mmap_offset: u64::MAX,
            ..got
        },
    ] {
        assert_eq!(rig.ack(&Request::SetInflightFd(bad), &[fd.as_fd()]), 1, "{bad:?}");
    }
    for bad in [
        shape(0, 5, 64),
        shape(0, 0, 64),
        shape(0, 2, 0),
        shape(0, 1, 40000),
    ] {
        let mut rig = Rig::new();
        rig.negotiate(Features::VERSION_1);
        rig.send(&Request::GetInflightFd(bad), &[]);
        assert!(rig.ended.is_some_and(|e| e.starts_with("GET_INFLIGHT_FD")));
    }
    // A ring larger than the area's queues runs without it.
    let cfg = rig.ring(Features::VERSION_1 | Features::RING_PACKED, 128);
    rig.start(1, &cfg, None);
    assert!(rig.is_running(1));
}

#[test]
fn a_session_that_never_speaks_or_never_finishes_is_ended() {
    let began = Instant::now();
    let mut rig = Rig::new();
    let session = rig.session.as_mut().unwrap();
    let due = session
        .tick(&mut rig.device)
        .unwrap()
        .expect("a front end has to speak");
    assert!(due > began + Duration::from_secs(1));
    // Half a header.
    use std::io::Write;
    let (a, b) = UnixStream::pair().unwrap();
    let wake = Arc::new(EventFd::new().unwrap());
    let mut session = Session::new(Connection::new(a), &mut rig.device, wake, None, Arc::default());
    (&b).write_all(&[1, 0, 0]).unwrap();
    session.readable(&mut rig.device).unwrap();
    let due = session
        .tick(&mut rig.device)
        .unwrap()
        .expect("a message has to end");
    assert!(due < Instant::now() + Duration::from_secs(3));
    drop(b);
    assert!(session.readable(&mut rig.device).is_err());
}
