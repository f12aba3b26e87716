//! Two devices of one guest: rules see one port, and packets to it leave by the device that the guest uses.

use super::lab::{Lab, dp, out, to};
use crate::standby::{FailoverPair, MAX_CREDITS};
use heddle_datapath_api::{PortNo, Purpose, Translation, format_actions};
use heddle_openflow::Port;

const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 5];
const FROM_GUEST: &str = "in_port=2,dl_src=02:00:00:00:00:05,dl_dst=02:00:00:00:00:01";
const TO_GUEST: &str = "in_port=1,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:05";
/// The datapath port of the standby.
const STANDBY: PortNo = PortNo(77);

/// Port 2 is a pair; packets go between it and port 1, and to the guest itself if they are broadcasts.
fn lab(mac: Option<[u8; 6]>) -> (Lab, FailoverPair) {
    let (l, pair) = bare_lab(mac);
    l.rule((0, 0), "in_port=2", vec![out(2), out(1)]);
    l.rule((0, 0), "in_port=1", vec![out(2)]);
    (l, pair)
}

/// Port 2 is a pair; there are no rules.
fn bare_lab(mac: Option<[u8; 6]>) -> (Lab, FailoverPair) {
    let mut l = Lab::new(&[2]);
    let pair = FailoverPair::new(dp(0, 2), STANDBY, mac, false);
    l.bridges[0].standbys.insert(Port(2), pair.clone());
    l.publish();
    (l, pair)
}

fn from(l: &Lab, port: PortNo, text: &str, purpose: Purpose) -> Translation {
    let mut key = Lab::key(text);
    key.in_port = port.0;
    l.translate(&key, purpose)
}

fn text(t: &Translation) -> String {
    format_actions(&t.actions, None)
}

/// Whether nothing that the translation depends on has changed since.
fn holds(l: &Lab, t: &Translation) -> bool {
    t.deps.iter().all(|d| l.generations.read(d.slot) == *d)
}

#[test]
fn the_device_that_the_guest_sends_by_gets_its_packets() {
    for mac in [Some(GUEST), None] {
        let (l, pair) = lab(mac);
        let to_guest = || l.translate(&Lab::key(TO_GUEST), Purpose::Miss);
        let first = to_guest();
        assert_eq!((text(&first), pair.active()), ("2".to_owned(), dp(0, 2)));
        // The guest is where it was. Its own frames do not return to it, by either device.
        let by_primary = from(&l, dp(0, 2), FROM_GUEST, Purpose::Miss);
        assert_eq!(text(&by_primary), "1");
        assert!(holds(&l, &first) && holds(&l, &by_primary));
        let by_standby = from(&l, STANDBY, FROM_GUEST, Purpose::Miss);
        assert_eq!((text(&by_standby), pair.active()), ("1".to_owned(), STANDBY));
        assert!(holds(&l, &by_standby) && !holds(&l, &first) && !holds(&l, &by_primary));
        assert_eq!((text(&to_guest()), pair.changes()), ("77".to_owned(), 1));
        // A check of the cached flow from the other device neither moves the guest nor keeps that flow: it
        // would hide the guest's next frame.
        let checked = from(&l, dp(0, 2), FROM_GUEST, Purpose::Revalidate);
        assert!(checked.uncacheable && pair.active() == STANDBY);
        let back = from(&l, dp(0, 2), FROM_GUEST, Purpose::Miss);
        assert!(!back.uncacheable);
        assert_eq!((text(&to_guest()), pair.changes()), ("2".to_owned(), 2));
    }
}

#[test]
fn frames_of_other_sources_pass_and_move_nothing() {
    let (l, pair) = lab(Some(GUEST));
    for source in ["02:00:00:00:00:06", "01:00:00:00:00:05", "00:00:00:00:00:00"] {
        let frame = format!("in_port=2,dl_src={source},dl_dst=02:00:00:00:00:01");
        let t = from(&l, STANDBY, &frame, Purpose::Miss);
        assert_eq!(
            (text(&t), pair.active(), t.uncacheable),
            ("1".to_owned(), dp(0, 2), false)
        );
        // The cached flow is for this source alone, so that the guest's frames are seen.
        assert_eq!(t.mask.0.dl_src, [0xff; 6]);
    }
    let t = from(&l, dp(0, 2), FROM_GUEST, Purpose::Miss);
    assert_eq!(t.mask.0.dl_src, [0; 6]);
}

#[test]
fn a_port_that_is_no_pair_any_more_has_one_device() {
    let (mut l, pair) = lab(None);
    from(&l, STANDBY, FROM_GUEST, Purpose::Miss);
    assert_eq!(pair.active(), STANDBY);
    l.bridges[0].standbys.clear();
    l.publish();
    assert_eq!(text(&l.translate(&Lab::key(TO_GUEST), Purpose::Miss)), "2");
    assert_eq!(text(&from(&l, STANDBY, FROM_GUEST, Purpose::Miss)), "drop");
}

#[test]
fn a_packet_that_returns_leaves_by_its_own_device() {
    let (l, pair) = bare_lab(Some(GUEST));
    l.rule((0, 0), "in_port=2", vec![to(Port::IN_PORT)]);
    // Another source, by the device that is not active.
    let frame = "in_port=2,dl_src=02:00:00:00:00:06,dl_dst=02:00:00:00:00:01";
    assert_eq!(text(&from(&l, STANDBY, frame, Purpose::Miss)), "77");
    assert_eq!(text(&from(&l, dp(0, 2), frame, Purpose::Miss)), "2");
    assert_eq!((pair.active(), pair.changes()), (dp(0, 2), 0));
}

#[test]
fn a_guest_that_alternates_is_limited() {
    let (l, pair) = lab(Some(GUEST));
    let devices = [STANDBY, dp(0, 2)];
    let mut last = None;
    for n in 0..10 * MAX_CREDITS {
        last = Some(from(&l, devices[n as usize % 2], FROM_GUEST, Purpose::Miss));
    }
    assert_eq!(pair.changes(), u64::from(MAX_CREDITS));
    // The primary is active. A frame from the standby is forwarded. Its flow is cached until the next tick.
    let by_standby = from(&l, STANDBY, FROM_GUEST, Purpose::Miss);
    assert_eq!(
        (text(&by_standby), by_standby.uncacheable),
        ("1".to_owned(), false)
    );
    assert_eq!(pair.active(), dp(0, 2));
    assert!(last.is_some() && holds(&l, &by_standby));
    assert!(l.pipeline.take_guests_moved());
    l.pipeline.refill_pairs();
    assert!(!holds(&l, &by_standby), "the guest's next frame is translated");
    assert!(l.pipeline.take_guests_moved(), "in the kernel, too");
    from(&l, STANDBY, FROM_GUEST, Purpose::Miss);
    assert_eq!((pair.active(), pair.limited()), (STANDBY, 1));
    // Credits come back, up to the maximum.
    for _ in 0..2 * MAX_CREDITS {
        l.pipeline.refill_pairs();
    }
    assert_eq!(pair.refill(), (false, false));
}
