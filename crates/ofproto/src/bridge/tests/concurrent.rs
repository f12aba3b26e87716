//! Translations while rules change: workers wait for no writer, and miss no rule that is there at the version
//! that they read.

use super::super::*;
use heddle_datapath_api::{Action as DpAction, PortNo, Purpose, Request, Translate, Translation};
use heddle_flow::{FlowKey, Match};
use heddle_openflow::message::{FlowMod, FlowModCommand};
use heddle_openflow::{Action, ErrorKind, Instruction, InstructionSet};
use heddle_sync::Clock;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const MAX_WAIT: Duration = Duration::from_secs(30);

/// A bridge with ports 1 to 9, which are the datapath's 1 to 9.
pub(in crate::bridge) fn bridge() -> (Arc<Ofproto>, Arc<Bridge>) {
    let of = Ofproto::new(Arc::new(Clock::default()));
    let secure = BridgeConfig {
        fail_mode: FailMode::Secure,
        ..BridgeConfig::default()
    };
    let bridge = of.add_bridge("br0", secure);
    let ports = (1..10).map(|n| PortConfig {
        no: OfPort(n),
        name: format!("p{n}"),
        mac: [2, 0, 0, 0, 0, 1],
        bundle: format!("p{n}"),
        target: PortTarget::Datapath(PortNo(n)),
        mtu: 1500,
        admin_up: true,
        link_up: true,
        speed_bps: 0,
        bfd: None,
        lacp: None,
        standby: None,
    });
    let bundles = (1..10).map(|n| PortBundleConfig {
        name: format!("p{n}"),
        ..PortBundleConfig::default()
    });
    bridge.set_ports(bundles.collect(), ports.collect());
    (of, bridge)
}

pub(in crate::bridge) fn rule(dst: Option<u32>, priority: u16, to: u32) -> FlowMod {
    let mut m = Match::any();
    if let Some(dst) = dst {
        (m.key.dl_type, m.mask.0.dl_type) = (0x0800, 0xffff);
        (m.key.nw_dst, m.mask.0.nw_dst) = (dst, u32::MAX);
    }
    let output = Action::Output {
        port: OfPort(to),
        max_len: 0,
    };
    FlowMod::new(
        FlowModCommand::Add,
        m,
        priority,
        InstructionSet(vec![Instruction::Apply(vec![output])]),
    )
}

/// The datapath ports that a packet for address `dst` goes to.
fn way(of: &Ofproto, dst: u32) -> Vec<u32> {
    let key = FlowKey {
        in_port: 1,
        dl_type: 0x0800,
        nw_proto: 17,
        nw_dst: dst,
        ..FlowKey::default()
    };
    let request = Request {
        key: &key,
        packet: None,
        now_ms: 1,
        purpose: Purpose::Miss,
    };
    let mut t = Translation::default();
    of.pipeline().translate(&request, &mut t);
    let to = |a: &DpAction| match a {
        DpAction::Output(no) => Some(no.0),
        _ => None,
    };
    t.actions.iter().filter_map(to).collect()
}

/// A writer is held in the middle of its change, with all its locks. Meanwhile packets are forwarded as
/// before. When the writer has ended, packets for all addresses follow the new rules at once.
#[test]
fn packets_do_not_wait_for_a_writer() {
    let (of, bridge) = bridge();
    for dst in 0..100 {
        bridge
            .flow_mod(Version::V13, &rule(Some(dst), 5, 2))
            .expect("new");
    }
    let (began, begun) = mpsc::channel();
    let (go, gone) = mpsc::channel();
    let writer = {
        let bridge = bridge.clone();
        std::thread::spawn(move || {
            bridge.change(None, |c| {
                for dst in 0..50 {
                    c.flow_mod(Version::V13, &rule(Some(dst), 5, 3))?;
                }
                began.send(()).expect("somebody waits");
                gone.recv_timeout(MAX_WAIT).expect("somebody tells");
                for dst in 50..10_000 {
                    c.flow_mod(Version::V13, &rule(Some(dst), 5, 3))?;
                }
                Ok::<(), ErrorKind>(())
            })
        })
    };
    begun.recv_timeout(MAX_WAIT).expect("it begins");
    // In a thread of its own, so that waiting for the writer would be a failure and not the end of all tests.
    let (answer, answers) = mpsc::channel();
    let reader = {
        let of = of.clone();
        std::thread::spawn(move || answer.send((0..100).map(|dst| way(&of, dst)).collect::<Vec<_>>()))
    };
    let seen = answers
        .recv_timeout(MAX_WAIT)
        .expect("readers do not wait for writers");
    assert!(seen.iter().all(|to| *to == [2]), "{seen:?}");
    go.send(()).expect("it waits");
    // All of it or nothing: an address that is looked up later is not behind one that was looked up before.
    while !writer.is_finished() {
        let (first, last) = (way(&of, 0), way(&of, 9_999));
        assert!(first != [3] || last == [3], "{first:?} {last:?}");
    }
    writer.join().expect("it ends").expect("nothing is wrong with it");
    reader.join().expect("it ends").expect("it was heard");
    assert_eq!((way(&of, 0), way(&of, 9_999)), (vec![3], vec![3]));
}

/// One rule is replaced all the time, and the old one is unlinked all the time: no packet falls through to
/// the rule below.
#[test]
fn a_rule_that_is_replaced_is_never_missed() {
    let (of, bridge) = bridge();
    bridge.flow_mod(Version::V13, &rule(None, 1, 9)).expect("new");
    bridge.flow_mod(Version::V13, &rule(Some(7), 5, 2)).expect("new");
    let stop = Arc::new(AtomicBool::new(false));
    let reader = {
        let (of, stop) = (of.clone(), stop.clone());
        std::thread::spawn(move || {
            let mut n = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                let to = way(&of, 7);
                assert!(to == [2] || to == [3], "{to:?} at {n}");
                n += 1;
            }
            n
        })
    };
    let end = Instant::now() + Duration::from_millis(700);
    let mut n = 0;
    while Instant::now() < end && !reader.is_finished() {
        n += 1;
        bridge
            .flow_mod(Version::V13, &rule(Some(7), 5, 2 + n % 2))
            .expect("replaced");
        bridge.purge_rules();
    }
    stop.store(true, Ordering::Relaxed);
    assert!(reader.join().expect("no packet was lost") > 100 && n > 100);
}

/// Rules that are replaced again and again leave little behind, in a bundle and one by one.
#[test]
fn what_was_replaced_does_not_pile_up() {
    let (of, bridge) = bridge();
    let linked = || bridge.tables[0].rules.len();
    let all = |n: u32, check: &dyn Fn()| {
        bridge.change(None, |c| {
            for i in 0..n {
                c.flow_mod(Version::V13, &rule(Some(7), 5, 2 + i % 2))?;
                check();
            }
            Ok::<(), ErrorKind>(())
        })
    };
    all(5_001, &|| assert!(linked() <= 2)).expect("a bundle");
    assert_eq!((linked(), way(&of, 7)), (1, vec![2]));
    for i in 0..5_000 {
        bridge
            .flow_mod(Version::V13, &rule(Some(7), 5, 2 + i % 2))
            .expect("replaced");
        assert!(linked() < 1100);
    }
    assert_eq!(way(&of, 7), [3]);
    // A bundle that fails takes back what it has replaced itself, too.
    let failed = bridge.change(None, |c| {
        for i in 0..100 {
            c.flow_mod(Version::V13, &rule(Some(7), 5, 4 + i % 2))?;
        }
        Err::<(), ErrorKind>(ErrorKind::FlowModFailedOverlap)
    });
    assert!(failed.is_err());
    assert_eq!(way(&of, 7), [3]);
    bridge.purge_rules();
    assert_eq!((linked(), way(&of, 7)), (1, vec![3]));
    bridge
        .flow_mod(Version::V13, &rule(Some(7), 5, 2))
        .expect("replaced");
    assert_eq!(way(&of, 7), [2]);
}
