//! The process dies, and another one opens the device.

use super::*;

/// Ends without any call: nothing is stopped, nothing is written.
fn kill(rig: &mut Rig) {
    rig.session = None;
    let rings = core::mem::take(&mut rig.device.0.lock().rings);
    // Queues that are dropped publish nothing; in the ring, the chains that they had taken stay taken.
    drop(rings);
}

#[test]
fn the_next_process_continues() {
    for layout in [Features::empty(), Features::RING_PACKED] {
        let mut rig = Rig::new(layout);
        rig.probe();
        for mark in [10, 20, 30] {
            rig.exchange(mark);
        }
        // Frames that no process has taken, and one while no process is there.
        rig.guest.transmit(&[40; 66]);
        rig.guest.post_buffer();
        kill(&mut rig);
        rig.guest.transmit(&[41; 67]);
        rig.open();
        rig.resume();
        assert_eq!(rig.device.running(), [0, 1]);
        let mut got = Vec::new();
        rig.until(|rig| {
            got.extend(rig.device.receive());
            got.len() >= 2
        });
        assert_eq!(got, [vec![40; 66], vec![41; 67]], "each once, in order");
        rig.until(|rig| rig.device.send(&[50; 80]));
        assert_eq!(rig.guest.received().unwrap(), vec![50; 80]);
        assert!(rig.guest.received().is_none());
        assert!(rig.guest.transmitted() && rig.guest.transmitted());
        rig.exchange(60);
    }
}

#[test]
fn a_device_without_a_driver_is_found_empty() {
    let mut rig = Rig::new(Features::empty());
    rig.resume();
    assert!(rig.device.running().is_empty());
    rig.probe();
    rig.exchange(1);
}

/// The process dies after it read a message and before its reply: the message comes again.
#[test]
fn a_message_without_a_reply_comes_again() {
    let mut rig = Rig::new(Features::empty());
    for status in [0, 1, 3] {
        rig.status(status);
    }
    rig.kernel.negotiate();
    rig.status(0xb);
    rig.guest.set_up(&rig.kernel);
    let id = rig.kernel.post(1, &[0xf]);
    rig.session.as_ref().unwrap().end().receive().unwrap().unwrap();
    kill(&mut rig);
    rig.open();
    // All looks as if the driver were ready, and it is just waiting for that.
    rig.resume();
    rig.serve();
    assert_eq!(rig.kernel.reply(id).unwrap().result, 0);
    rig.kernel.took(0xf);
    assert_eq!(rig.device.running(), [0, 1]);
    rig.exchange(1);
}

/// The driver was reset while no process was there; the next process gets that message first.
#[test]
fn a_reset_while_no_process_was_there() {
    for layout in [Features::empty(), Features::RING_PACKED] {
        let mut rig = Rig::new(layout);
        rig.probe();
        rig.exchange(1);
        kill(&mut rig);
        let id = rig.kernel.post(1, &[0]);
        rig.open();
        rig.resume();
        rig.serve();
        assert_eq!(rig.kernel.reply(id).unwrap().result, 0);
        rig.kernel.took(0);
        rig.probe();
        rig.exchange(2);
    }
}
