//! Rings: when they start and stop, memory that changes under them, the dirty log, the IOMMU.

use super::*;
use heddle_packet::Packet;

#[test]
fn a_ring_runs_between_its_kick_and_its_base() {
    for features in layouts() {
        let mut rig = Rig::new();
        rig.negotiate(features);
        let cfg = rig.ring(features, 64);
        let mut driver = Driver::new(&cfg, &rig.mem).unwrap();
        rig.start(1, &cfg, Some(Position::default().to_base(cfg.packed())));
        let events = rig.events();
        // Disabled at first: PROTOCOL_FEATURES was negotiated.
        assert_eq!(
            events[events.len() - 2..],
            [Event::Start(1, false), Event::Enable(1, true)]
        );
        guest_sends(&mut rig, &mut driver, 5);
        assert_eq!(receive(&rig), 5);
        assert_eq!(done(&mut driver).len(), 5);
        let Reply::Vring(base) = rig.request_reply(&Request::GetVringBase(state(1, 0)), &[]) else {
            panic!()
        };
        let at = Position { index: 5, wrap: true };
        assert_eq!((base.index, base.num), (1, at.to_base(cfg.packed())));
        assert!(!rig.is_running(1));
        // Again, with nothing but a kick: the base is the one of the last reply.
        assert_eq!(
            rig.request_reply(&Request::GetVringBase(state(1, 0)), &[]),
            Reply::Vring(base)
        );
        let kick = VringFd {
            index: 1,
            has_fd: false,
        };
        assert_eq!(rig.ack(&Request::SetVringKick(kick), &[]), 0);
        guest_sends(&mut rig, &mut driver, 2);
        assert_eq!(receive(&rig), 2);
        assert!(
            rig.device.seen.lock().rings[&1].kick.is_none(),
            "a ring without a kick is polled"
        );
    }
}

/// Messages about a ring in any order; the last one starts it.
#[test]
fn the_order_of_ring_messages_does_not_matter() {
    for first in 0..3 {
        let mut rig = Rig::new();
        rig.negotiate(Features::VERSION_1);
        let cfg = rig.ring(Features::VERSION_1, 64);
        let mut requests = [
            Request::SetVringNum(state(0, 64)),
            Request::SetVringAddr(Rig::addr_of(0, &cfg)),
            Request::SetVringKick(VringFd {
                index: 0,
                has_fd: false,
            }),
        ];
        requests.rotate_left(first);
        for (n, request) in requests.iter().enumerate() {
            assert_eq!(rig.ack(request, &[]), 0);
            assert_eq!(rig.is_running(0), n == 2, "{n} {request:?}");
        }
    }
}

#[test]
fn without_protocol_features_rings_start_enabled() {
    let mut rig = Rig::new();
    rig.send(&Request::SetFeatures(0), &[]);
    let file = rig.file.try_clone().unwrap();
    rig.send(&Request::SetMemTable(vec![rig.region()]), &[file.as_fd()]);
    let cfg = rig.ring(Features::empty(), 64);
    rig.send(&Request::SetVringNum(state(1, 64)), &[]);
    rig.send(&Request::SetVringAddr(Rig::addr_of(1, &cfg)), &[]);
    rig.send(
        &Request::SetVringKick(VringFd {
            index: 1,
            has_fd: false,
        }),
        &[],
    );
    assert_eq!(rig.ended, None);
    assert!(rig.events().contains(&Event::Start(1, true)));
    // A legacy guest: ten bytes of header.
    let mut driver = Driver::new(&cfg, &rig.mem).unwrap();
    let addr = rig.arena.take(70, 2).unwrap();
    driver
        .add(&rig.mem, &[Buf { addr, len: 70 }], &[], ChainLocation::Direct, 1)
        .unwrap();
    driver.publish();
    assert_eq!(receive(&rig), 1);
}

#[test]
fn rings_that_make_no_sense_are_refused() {
    let mut rig = Rig::new();
    rig.negotiate(Features::VERSION_1);
    let cfg = rig.ring(Features::VERSION_1, 64);
    let addr = Rig::addr_of(1, &cfg);
    for bad in [
        Request::SetVringNum(state(1, 0)),
        Request::SetVringNum(state(1, 32769)),
        Request::SetVringNum(state(1, u32::MAX)),
        Request::SetVringNum(state(4, 64)),
        Request::SetVringNum(state(u32::MAX, 64)),
        Request::SetVringBase(state(4, 0)),
        Request::SetVringEnable(state(4, 1)),
        Request::SetVringEnable(state(1, 2)),
        Request::SetVringAddr(VringAddr { index: 4, ..addr }),
        Request::SetVringKick(VringFd {
            index: 200,
            has_fd: false,
        }),
        Request::SetVringCall(VringFd {
            index: 4,
            has_fd: false,
        }),
        Request::SetVringErr(VringFd {
            index: 255,
            has_fd: false,
        }),
    ] {
        assert_eq!(rig.ack(&bad, &[]), 1, "{bad:?}");
    }
    // Addresses are looked at when the ring starts.
    let kick = Request::SetVringKick(VringFd {
        index: 1,
        has_fd: false,
    });
    for bad in [
        VringAddr {
            desc: addr.desc + 8,
            ..addr
        },
        VringAddr {
            desc: USER + LEN - 64 * 16 + 16,
            ..addr
        },
        VringAddr { used: 0, ..addr },
        VringAddr {
            used: u64::MAX,
            ..addr
        },
        VringAddr {
            avail: USER - 2,
            ..addr
        },
        VringAddr {
            avail: addr.avail + 1,
            ..addr
        },
        VringAddr {
            desc: cfg.desc,
            used: cfg.device,
            avail: cfg.driver,
            ..addr
        }, // guest's instead of the front end's
    ] {
        let mut rig = Rig::new();
        rig.negotiate(Features::VERSION_1);
        rig.send(&Request::SetVringNum(state(1, 64)), &[]);
        rig.send(&Request::SetVringAddr(bad), &[]);
        assert_eq!(rig.ack(&kick, &[]), 1, "{bad:x?}");
        assert!(!rig.is_running(1));
    }
    // A split ring that is no power of two.
    rig.send(&Request::SetVringNum(state(1, 63)), &[]);
    rig.send(&Request::SetVringAddr(addr), &[]);
    assert_eq!(rig.ack(&kick, &[]), 1);
    assert_eq!(rig.ended, None);
}

#[test]
fn descriptors_are_replaced_while_a_ring_runs() {
    let mut rig = Rig::new();
    rig.negotiate(Features::VERSION_1);
    let cfg = rig.ring(Features::VERSION_1, 64);
    rig.start(0, &cfg, Some(0));
    rig.events();
    let ev = EventFd::new().unwrap();
    let with = VringFd {
        index: 0,
        has_fd: true,
    };
    let without = VringFd {
        index: 0,
        has_fd: false,
    };
    rig.send(&Request::SetVringCall(with), &[ev.as_fd()]);
    rig.send(&Request::SetVringCall(without), &[]);
    rig.send(&Request::SetVringErr(with), &[ev.as_fd()]);
    rig.send(&Request::SetVringKick(with), &[ev.as_fd()]);
    rig.send(&Request::SetVringEnable(state(0, 0)), &[]);
    rig.send(&Request::SetVringEnable(state(0, 0)), &[]);
    assert_eq!(
        rig.events(),
        [
            Event::Notify(0, Notify::Call, true),
            Event::Notify(0, Notify::Call, false),
            Event::Notify(0, Notify::Err, true),
            Event::Notify(0, Notify::Kick, true),
            Event::Enable(0, false)
        ]
    );
    // The settings of a running ring do not change.
    assert_eq!(rig.ack(&Request::SetVringBase(state(0, 7)), &[]), 1);
    assert_eq!(rig.ack(&Request::SetVringNum(state(0, 128)), &[]), 1);
    assert_eq!(rig.ack(&Request::SetFeatures(0), &[]), 1);
    rig.send(&Request::SetVringEnable(state(0, 1)), &[]);
    rig.send(&Request::ResetOwner, &[]);
    assert_eq!(rig.events().last(), Some(&Event::Enable(0, false)));
}

#[test]
fn a_reset_stops_all_rings() {
    for reset in [Request::ResetDevice, Request::SetStatus(0)] {
        let mut rig = Rig::new();
        rig.negotiate(Features::VERSION_1);
        let cfg = rig.ring(Features::VERSION_1, 64);
        rig.start(0, &cfg, Some(0));
        rig.start(1, &cfg, Some(0));
        assert_eq!(rig.ack(&reset, &[]), 0);
        assert!(!rig.is_running(0) && !rig.is_running(1));
        // The front end has to send all settings again.
        rig.send(
            &Request::SetVringKick(VringFd {
                index: 0,
                has_fd: false,
            }),
            &[],
        );
        assert!(!rig.is_running(0));
        rig.start(0, &cfg, Some(0));
        assert!(rig.is_running(0));
    }
}

/// "Use after unmap on SET_MEM_TABLE while workers run": the reply waits until no worker uses the old table,
/// and the old mapping lives until then.
#[test]
fn memory_is_not_given_back_before_workers_let_go() {
    let mut rig = Rig::new();
    rig.negotiate(Features::VERSION_1);
    let cfg = rig.ring(Features::VERSION_1, 64);
    let mut driver = Driver::new(&cfg, &rig.mem).unwrap();
    rig.start(1, &cfg, Some(0));
    guest_sends(&mut rig, &mut driver, 3);
    // A worker in the middle of a burst.
    let held = rig.device.seen.lock().rings[&1].memory.get();
    let file = rig.file.try_clone().unwrap();
    let table = Request::SetMemTable(vec![rig.region()]);
    rig.front
        .send_request(&table, HeaderFlags::NEED_REPLY, &[file.as_fd()])
        .unwrap();
    // The next message is not read before.
    rig.front
        .send_request(&Request::GetQueueNum, HeaderFlags::empty(), &[])
        .unwrap();
    for _ in 0..3 {
        rig.run();
        assert_eq!(rig.reply_to(&table), None);
    }
    let mut bytes = [0; 16];
    held.read(cfg.desc, &mut bytes).unwrap();
    assert_ne!(bytes, [0; 16], "the old table reads the same memory still");
    drop(held);
    rig.run();
    assert_eq!(rig.reply_to(&table), Some(Reply::U64(0)));
    rig.run();
    assert_eq!(rig.reply_to(&Request::GetQueueNum), Some(Reply::U64(2)));
    assert_eq!(receive(&rig), 3);
}

#[test]
fn rings_follow_memory_that_moves() {
    let mut rig = Rig::new();
    rig.negotiate(Features::VERSION_1);
    let cfg = rig.ring(Features::VERSION_1, 64);
    let mut driver = Driver::new(&cfg, &rig.mem).unwrap();
    rig.start(1, &cfg, Some(0));
    guest_sends(&mut rig, &mut driver, 2);
    assert_eq!(receive(&rig), 2);
    rig.events();
    // The same memory: the ring is not disturbed.
    let file = rig.file.try_clone().unwrap();
    assert_eq!(
        rig.ack(&Request::SetMemTable(vec![rig.region()]), &[file.as_fd()]),
        0
    );
    assert_eq!(rig.events(), []);
    guest_sends(&mut rig, &mut driver, 2);
    assert_eq!(receive(&rig), 2);
    // The ring's area is gone.
    let tail = MemRegion {
        guest: BASE + LEN / 2,
        user: USER + LEN / 2,
        size: LEN / 2,
        offset: LEN / 2,
    };
    // Done is done: the ring waits.
    assert_eq!(rig.ack(&Request::SetMemTable(vec![tail]), &[file.as_fd()]), 0);
    assert!(!rig.is_running(1));
    let waits = |e: &Event| matches!(e, Event::Note(t) if t.contains("waits for its memory"));
    assert!(rig.events().iter().any(waits));
    // The memory is back: so is the ring, at its old position.
    assert_eq!(
        rig.ack(&Request::SetMemTable(vec![rig.region()]), &[file.as_fd()]),
        0
    );
    assert!(rig.is_running(1));
    guest_sends(&mut rig, &mut driver, 2);
    assert_eq!(receive(&rig), 2);
    assert_eq!(done(&mut driver).len(), 6);
    // The ring is also back when the region is taken out and put in again.
    assert_eq!(rig.ack(&Request::RemMemReg(rig.region()), &[]), 0);
    assert!(!rig.is_running(1));
    assert_eq!(rig.ack(&Request::AddMemReg(rig.region()), &[file.as_fd()]), 0);
    assert!(rig.is_running(1));
    guest_sends(&mut rig, &mut driver, 2);
    assert_eq!(receive(&rig), 2);
}

/// A refused table changes nothing: the rings run with the old table.
#[test]
fn a_table_that_is_refused_is_not_in_force() {
    let mut rig = Rig::new();
    rig.negotiate(Features::VERSION_1);
    let cfg = rig.ring(Features::VERSION_1, 64);
    let mut driver = Driver::new(&cfg, &rig.mem).unwrap();
    rig.start(1, &cfg, Some(0));
    rig.events();
    let table = rig.session.as_ref().unwrap().table();
    let (file, good) = (rig.file.try_clone().unwrap(), rig.region());
    let beyond = MemRegion {
        size: LEN + 1,
        ..good
    };
    let elsewhere = MemRegion {
        guest: good.guest + LEN,
        ..good
    };
    for (request, fds) in [
        (Request::SetMemTable(vec![beyond]), 1),
        (Request::SetMemTable(vec![good, good]), 2),
        (Request::AddMemReg(good), 1),
        (Request::RemMemReg(elsewhere), 0),
    ] {
        assert_eq!(rig.ack(&request, &vec![file.as_fd(); fds]), 1, "{request:?}");
        let now = rig.session.as_ref().unwrap().table();
        assert!(Arc::ptr_eq(&table, &now), "{request:?}");
    }
    drop(table);
    assert!(rig.events().iter().all(|e| matches!(e, Event::Trouble(_))));
    guest_sends(&mut rig, &mut driver, 2);
    assert_eq!(receive(&rig), 2);
}

/// One front end claims all addresses of the process: sparse files cost it nothing.
#[test]
fn memory_is_bounded_per_session() {
    let mut rig = Rig::new();
    rig.negotiate(Features::VERSION_1);
    let tib = 1_u64 << 40;
    let sparse = memfd("sparse", 16 * tib, Pages::Normal).unwrap();
    let region = |n: u64, size| MemRegion {
        guest: (1 + n) * 16 * tib,
        user: (1 + n) * 16 * tib,
        size,
        offset: 0,
    };
    let fd = [sparse.as_fd()];
    assert_eq!(rig.ack(&Request::AddMemReg(region(0, 16 * tib)), &fd), 1);
    assert_eq!(rig.ack(&Request::AddMemReg(region(0, tib)), &fd), 0);
    assert_eq!(rig.ack(&Request::AddMemReg(region(1, 15 * tib)), &fd), 1);
    let table = vec![region(0, 8 * tib), region(1, 9 * tib)];
    assert_eq!(rig.ack(&Request::SetMemTable(table), &[fd[0], fd[0]]), 1);
    assert_eq!(rig.ended, None);
}

/// Migration: written pages are marked from the replies to SET_LOG_BASE and SET_FEATURES on, the used ring at
/// the log address that the front end sent.
#[test]
fn written_pages_are_logged() {
    for features in layouts() {
        let mut rig = Rig::new();
        rig.negotiate(features);
        let cfg = rig.ring(features, 64);
        let mut driver = Driver::new(&cfg, &rig.mem).unwrap();
        rig.start(0, &cfg, Some(Position::default().to_base(cfg.packed())));
        let fd = memfd("log", 4096, Pages::Normal).unwrap();
        let area = LogArea {
            size: 4096,
            offset: 0,
        };
        assert_eq!(
            rig.request_reply(&Request::SetLogBase(Some(area)), &[fd.as_fd()]),
            Reply::U64(0)
        );
        let log = |page: u64| {
            let map = Arc::new(Mapping::of_fd(fd.as_fd(), 0, 4096).unwrap());
            let view = heddle_virtio::mem::HostRange::of(map, 0, 4096, 8).unwrap();
            let word = view.load64(usize::try_from(page / 64 * 8).unwrap());
            word >> (page % 64) & 1 != 0
        };
        let page = |addr: u64| addr / 4096;
        let buffer = rig.arena.take(3 * 4096, 4096).unwrap();
        let mut send = |rig: &mut Rig, n: u64| {
            let buf = Buf {
                addr: buffer + n * 4096,
                len: 2048,
            };
            driver
                .add(&rig.mem, &[], &[buf], ChainLocation::Direct, 0)
                .unwrap();
            driver.publish();
            let packet = Packet::from_bytes(&[1; 60]);
            let mut seen = rig.device.seen.lock();
            let Some(Queue::ToGuest(q)) = seen.rings.get_mut(&0).map(|r| &mut r.queue) else {
                panic!()
            };
            assert_eq!(q.tx(&[&packet]).sent, 1);
        };
        send(&mut rig, 0);
        assert!(!log(page(buffer)), "logging is not on yet");
        let on = features | Features::PROTOCOL_FEATURES | Features::LOG_ALL;
        assert_eq!(rig.ack(&Request::SetFeatures(on.bits()), &[]), 0);
        let far = 20_000 * 4096; // "might be outside the legal guest physical address range"
        let addr = VringAddr {
            log_used: true,
            log: far,
            ..Rig::addr_of(0, &cfg)
        };
        assert_eq!(rig.ack(&Request::SetVringAddr(addr), &[]), 0);
        assert!(rig.is_running(0));
        send(&mut rig, 1);
        assert!(log(page(buffer + 4096)) && !log(page(buffer)) && !log(page(buffer + 8192)));
        assert!(log(if cfg.packed() { page(cfg.desc) } else { page(far) }));
        let off = features | Features::PROTOCOL_FEATURES;
        assert_eq!(rig.ack(&Request::SetFeatures(off.bits()), &[]), 0);
        send(&mut rig, 2);
        assert!(!log(page(buffer + 8192)));
        // A log that is not there.
        let area = LogArea {
            size: 8192,
            offset: 0,
        };
        rig.send(&Request::SetLogBase(Some(area)), &[fd.as_fd()]);
        assert!(rig.ended.is_some_and(|e| e.starts_with("SET_LOG_BASE")));
    }
}

/// The front end cuts the file under the guest's memory while rings run: that session ends, and the process
/// lives.
#[test]
fn memory_that_is_cut_ends_the_session() {
    let mut rig = Rig::new();
    rig.negotiate(Features::VERSION_1);
    let cfg = rig.ring(Features::VERSION_1, 64);
    let mut driver = Driver::new(&cfg, &rig.mem).unwrap();
    rig.start(1, &cfg, Some(0));
    guest_sends(&mut rig, &mut driver, 3);
    rig.run();
    assert_eq!(rig.ended, None);
    rustix::fs::ftruncate(&rig.file, 0).unwrap();
    assert_eq!(receive(&rig), 0, "an empty ring");
    rig.run();
    assert!(rig.ended.unwrap().contains("cut the file"));
}

/// A dirty log that is cut while a worker writes to it ends the session, too.
#[test]
fn a_log_that_is_cut_ends_the_session() {
    let mut rig = Rig::new();
    rig.negotiate(Features::VERSION_1 | Features::LOG_ALL);
    let cfg = rig.ring(Features::VERSION_1, 64);
    let mut driver = Driver::new(&cfg, &rig.mem).unwrap();
    let fd = memfd("log", 4096, Pages::Normal).unwrap();
    let area = LogArea {
        size: 4096,
        offset: 0,
    };
    rig.request_reply(&Request::SetLogBase(Some(area)), &[fd.as_fd()]);
    rig.start(0, &cfg, Some(0));
    let buf = Buf {
        addr: rig.arena.take(2048, 4096).unwrap(),
        len: 2048,
    };
    driver
        .add(&rig.mem, &[], &[buf], ChainLocation::Direct, 0)
        .unwrap();
    driver.publish();
    rustix::fs::ftruncate(&fd, 0).unwrap();
    rig.run();
    assert_eq!(rig.ended, None, "nobody looked at it yet");
    if let Some(Queue::ToGuest(q)) = rig.device.seen.lock().rings.get_mut(&0).map(|r| &mut r.queue) {
        q.tx(&[&Packet::from_bytes(&[1; 60])]);
    }
    rig.run();
    assert!(rig.ended.unwrap().contains("cut the file"));
}

/// "Control-queue double fetch": a back end that serves the control queue reads a command twice, once to
/// check it. This one serves none: front ends serve the control queue themselves, and the ring behind the
/// data rings does not exist here.
#[test]
fn control_queue_double_fetch() {
    let mut rig = Rig::new();
    rig.negotiate(Features::VERSION_1 | Features::MQ);
    let control = 2 * u32::from(rig.device.offer.queue_pairs);
    let cfg = rig.ring(Features::VERSION_1, 64);
    let fd = VringFd {
        index: u8::try_from(control).unwrap(),
        has_fd: false,
    };
    for request in [
        Request::SetVringNum(state(control, 64)),
        Request::SetVringBase(state(control, 0)),
        Request::SetVringAddr(Rig::addr_of(control, &cfg)),
        Request::SetVringKick(fd),
        Request::SetVringCall(fd),
        Request::SetVringEnable(state(control, 1)),
    ] {
        assert_eq!(rig.ack(&request, &[]), 1, "{request:?}");
    }
    assert!(rig.device.seen.lock().rings.is_empty());
}

/// Postcopy is not offered, and its messages are refused without harm to rings that run.
#[test]
fn postcopy_is_refused_cleanly() {
    let mut rig = Rig::new();
    rig.negotiate(Features::VERSION_1);
    let Reply::U64(offered) = rig.request_reply(&Request::GetProtocolFeatures, &[]) else {
        panic!()
    };
    assert_eq!(offered & ProtocolFeatures::PAGEFAULT.bits(), 0);
    let cfg = rig.ring(Features::VERSION_1, 64);
    rig.start(1, &cfg, Some(0));
    let features = PROTOCOL | ProtocolFeatures::PAGEFAULT;
    assert_eq!(rig.ack(&Request::SetProtocolFeatures(features.bits()), &[]), 1);
    assert_eq!(rig.ack(&Request::PostcopyListen, &[]), 1);
    assert!(rig.is_running(1));
    // These have a reply of their own, which cannot express a refusal.
    rig.send(&Request::PostcopyAdvise, &[]);
    assert!(
        rig.ended
            .is_some_and(|e| e.contains("postcopy migration was not offered"))
    );
}

/// Memory that is not a file in memory: its pages may come from a server that does not reply. The session
/// refuses it, also if it could be mapped.
#[test]
fn memory_has_to_be_a_file_in_memory() {
    let mut rig = Rig::new();
    rig.negotiate(Features::VERSION_1);
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/zero")
        .unwrap();
    let region = MemRegion {
        guest: BASE,
        size: LEN,
        user: USER,
        offset: 0,
    };
    rig.send(&Request::SetMemTable(vec![region]), &[file.as_fd()]);
    assert!(rig.ended.unwrap().contains("no file in memory"));
}

/// A descriptor that makes notifications wait ends its session, since each that replaced it could do the
/// same.
#[test]
fn a_stuck_descriptor_ends_the_session() {
    let mut rig = Rig::new();
    rig.negotiate(Features::VERSION_1);
    rig.run();
    assert_eq!(rig.ended, None);
    rig.session.as_ref().unwrap().outbox().stuck();
    rig.run();
    assert!(rig.ended.unwrap().contains("made the switch wait"));
}
