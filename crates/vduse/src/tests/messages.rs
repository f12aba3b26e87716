//! One device: requests of its driver and of the kernel, in order and out of it.

use super::*;

/// A driver comes, exchanges packets, goes and comes again; with both layouts.
#[test]
fn a_driver_comes_and_goes() {
    for layout in [Features::empty(), Features::RING_PACKED, Features::EVENT_IDX] {
        let mut rig = Rig::new(layout);
        for round in 0..3 {
            rig.probe();
            assert_eq!(rig.device.running(), [0, 1]);
            // Each driver is interrupted at its start, as soon as the kernel lets that pass.
            rig.until(|rig| rig.kernel.interrupts().iter().all(|n| *n > round));
            let before = rig.kernel.interrupts();
            rig.exchange(10);
            rig.exchange(20);
            assert_ne!(rig.kernel.interrupts(), before);
            assert!(rig.status(0));
            assert!(rig.device.running().is_empty());
        }
        let events = rig.device.events();
        assert_eq!(events, ["connected"], "{events:?}");
    }
}

/// Packets' memory appears with the first packet only; until then queues wait, whatever messages come.
#[test]
fn memory_appears_when_it_is_used() {
    let mut rig = Rig::new(Features::empty());
    rig.probe();
    rig.guest.transmit(&[7; 64]);
    assert!(rig.device.receive().is_empty());
    for _ in 0..3 {
        rig.serve();
        assert!(rig.device.receive().is_empty());
    }
    assert!(
        rig.session.as_ref().unwrap().deadline().is_some(),
        "it is asked for again"
    );
    rig.kernel.show_bounce();
    rig.until(|rig| rig.device.receive() == [vec![7; 64]]);
}

#[test]
fn the_position_of_a_ring_is_reported_and_it_continues() {
    for layout in [Features::empty(), Features::RING_PACKED] {
        let mut rig = Rig::new(layout);
        rig.probe();
        for round in 1..=3_u8 {
            rig.exchange(10 * round);
            for ring in 0..2_u8 {
                let reply = rig.request(0, &[ring, 0, 0, 0]);
                assert_eq!((reply.result, reply.body[0]), (0, ring));
                let packed = layout == Features::RING_PACKED;
                let wanted = if packed {
                    vec![1, 0, round, 0, 1, 0, round, 0]
                } else {
                    vec![round, 0, 0, 0, 0, 0, 0, 0]
                };
                assert_eq!(reply.body[4..12], wanted);
            }
        }
        assert_eq!(rig.request(0, &[2, 0, 0, 0]).result, 1, "there is no third ring");
        assert_eq!(rig.request(0, &[255; 4]).result, 1);
        rig.exchange(40);
    }
}

/// Memory that moves is not used at its old place from the reply on.
#[test]
fn memory_that_moves_is_requested_again() {
    let mut rig = Rig::new(Features::empty());
    rig.probe();
    rig.exchange(10);
    let (before, len) = {
        let map = heddle_sys::Mapping::of_fd(
            std::os::fd::AsFd::as_fd(&rig.kernel.file),
            0,
            kernel::RINGS + kernel::PACKETS,
        );
        (map.unwrap(), kernel::RINGS + kernel::PACKETS)
    };
    // The same bytes elsewhere in the file.
    let mem = |map: heddle_sys::Mapping| {
        let all = heddle_virtio::Region::new(0, 0, Arc::new(map)).unwrap();
        heddle_virtio::GuestMemory::new(vec![all]).unwrap()
    };
    let old = mem(before);
    let map = heddle_sys::Mapping::of_fd(std::os::fd::AsFd::as_fd(&rig.kernel.file), len, len).unwrap();
    let new = mem(map);
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    old.read(0, &mut bytes).unwrap();
    new.write(0, &bytes).unwrap();
    rig.kernel.state.lock().moved_by = len;
    let all = [0_u64.to_ne_bytes(), u64::MAX.to_ne_bytes()].concat();
    assert_eq!(rig.request(2, &all).result, 0);
    // The used index of ring 0, which is behind its other areas, is written at the new place alone.
    rig.device.send(&[1; 60]);
    let used = |m: &heddle_virtio::GuestMemory| {
        let mut bytes = vec![0; usize::try_from(kernel::RINGS).unwrap()];
        m.read(0, &mut bytes).unwrap();
        bytes
    };
    let before = used(&old);
    rig.guest.post_buffer(); // at the old place, which the device does not read
    assert!(!rig.device.send(&[1; 60]));
    assert_eq!(used(&new)[..64], before[..64]);
    let backwards = [9_u64.to_ne_bytes(), 3_u64.to_ne_bytes()].concat();
    assert_eq!(rig.request(2, &backwards).result, 1);
}

/// Whatever cannot be right is refused with one clear sentence, and the next driver is served.
#[test]
fn what_cannot_be_right_is_refused() {
    type Wrong = fn(&mut kernel::KernelState);
    let cases: [(Wrong, &str); 7] = [
        (|s| s.queues[0].size = 0, "ring 0 has 0 entries"),
        (|s| s.queues[1].size = 1 << 20, "ring 1 has 1048576 entries"),
        (|s| s.queues[1].size = 63, "63"),
        (
            |s| s.queues[0].desc = 0x9_0000_0000,
            "ring 0 is where no memory is",
        ),
        (
            |s| s.queues[1].device = kernel::RINGS_AT + kernel::RINGS - 2,
            "memory",
        ),
        (|s| s.regions[0].writable = false, "may not be read and written"),
        (
            |s| s.chosen |= 1 << 40,
            "features that are not served (0x10000000000)",
        ),
    ];
    for (wrong, text) in cases {
        let mut rig = Rig::new(Features::empty());
        for status in [0, 1, 3] {
            rig.status(status);
        }
        rig.kernel.negotiate();
        rig.status(0xb);
        rig.guest.set_up(&rig.kernel);
        wrong(&mut rig.kernel.state.lock());
        assert!(!rig.status(0xf), "{text}");
        assert!(rig.device.has(text), "{text}: {:?}", rig.device.events());
        rig.kernel.state.lock().regions[0].writable = true;
        rig.probe();
        rig.exchange(1);
    }
}

#[test]
fn a_port_that_refuses_a_ring_fails_the_driver_alone() {
    let mut rig = Rig::new(Features::empty());
    rig.device.0.lock().refuse = true;
    rig.status(0);
    rig.kernel.negotiate();
    rig.guest.set_up(&rig.kernel);
    assert!(!rig.status(0xf));
    assert!(rig.device.has("not now"));
    rig.probe();
    rig.exchange(1);
}

#[test]
fn odd_messages_get_a_reply() {
    let mut rig = Rig::new(Features::empty());
    assert_eq!(rig.request(77, &[]).result, 1);
    assert!(rig.device.has("a message of kind 77"));
    // DRIVER_OK without features or rings, twice; then the usual way.
    assert!(rig.status(0xf) && rig.status(0xf));
    assert!(rig.device.running().is_empty());
    rig.probe();
    assert!(rig.status(0xf), "once more");
    rig.exchange(1);
    // The driver has failed: nothing of it is used.
    assert!(rig.status(0x8f));
    assert!(rig.device.running().is_empty());
    rig.probe();
    rig.exchange(2);
    // A ring alone.
    assert!(rig.status(0));
    rig.kernel.negotiate();
    rig.guest.set_up(&rig.kernel);
    rig.kernel.state.lock().queues[0].ready = false;
    assert!(rig.status(0xf));
    assert_eq!(rig.device.running(), [1]);
}

#[test]
fn a_reply_without_a_waiting_caller_is_no_loss() {
    let mut rig = Rig::new(Features::empty());
    rig.kernel.post(1, &[0]);
    let end = FakeEnd::open(&rig.kernel).unwrap_err();
    assert_eq!(end.kind(), std::io::ErrorKind::ResourceBusy);
    rig.serve();
    rig.probe();
    rig.exchange(1);
    rig.kernel.give_up();
    let broken = rig.session.as_mut().unwrap().serve(&mut rig.device);
    assert!(broken.is_err());
    rig.session.take().unwrap().close(&mut rig.device, "given up");
    assert!(rig.device.has("gone: given up"));
}
