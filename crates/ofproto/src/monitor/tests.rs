//! Packets of a session, their treatment, and the effect of the session's state.

use crate::bfd_port::{BfdPort, BfdState, MAX_WAITING_MESSAGES};
use crate::xlate::tests::lab::{Lab, dp, out};
use heddle_bfd::Filter;
use heddle_datapath_api::{Action, Purpose, UpcallKind};
use heddle_flow::{FlowKey, FlowMask, Match};
use heddle_openflow::{Instruction, InstructionSet, Port};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

fn bfd_port(filter: Filter) -> BfdPort {
    BfdPort {
        shared: Arc::new(BfdState {
            id: 7,
            forwarding: false.into(),
            disc: 0x1234_5678,
            came: 0.into(),
            came_known: 0.into(),
        }),
        filter,
    }
}

fn message() -> FlowKey {
    FlowKey {
        in_port: dp(0, 1).0,
        dl_type: 0x0800,
        dl_dst: [0, 0x23, 0x20, 0, 0, 1],
        nw_proto: 17,
        nw_dst: 0x0a00_0001,
        tp_dst: 3784,
        ..FlowKey::default()
    }
}

fn takes(filter: Filter, key: &FlowKey) -> bool {
    let (mut mask, mut extra) = (FlowMask::default(), FlowMask::default());
    let taken = bfd_port(filter).takes(key, &mut mask, &mut extra);
    // A packet with the same bits under the mask is treated alike.
    mask.add(&extra);
    let mut other = *key;
    let ones = other.words_mut().iter_mut().zip(mask.words());
    ones.for_each(|(word, mask)| *word = *word & mask | 0x5555_5555_5555_5555 & !mask);
    let again = bfd_port(filter).takes(&other, &mut FlowMask::default(), &mut FlowMask::default());
    assert_eq!(taken, again, "{filter:?}: {key}");
    taken
}

#[test]
fn messages_are_told_from_other_packets() {
    let m = message();
    let any = Filter::default();
    assert!(takes(any, &m));
    assert!(!takes(any, &FlowKey { tp_dst: 3785, ..m }));
    assert!(!takes(any, &FlowKey { nw_proto: 6, ..m }));
    assert!(!takes(any, &FlowKey { dl_type: 0x86dd, ..m }));
    assert!(!takes(any, &FlowKey { nw_frag: 3, ..m }));
    let ip = |ip: [u8; 4]| Filter {
        dst_ip: Some(ip.into()),
        ..any
    };
    assert!(takes(ip([10, 0, 0, 1]), &m));
    assert!(!takes(ip([10, 0, 0, 2]), &m), "some other host's");
    let mac = |mac| Filter {
        dst_mac: Some(mac),
        ..any
    };
    assert!(takes(mac(m.dl_dst), &m));
    assert!(!takes(mac([2; 6]), &m));
    let keyless = Filter {
        no_tunnel_key: true,
        ..any
    };
    assert!(takes(keyless, &m));
    assert!(!takes(keyless, &FlowKey { tun_id: 5, ..m }));
}

#[test]
fn no_rule_sees_a_message() {
    let mut lab = Lab::new(&[4]);
    let w = bfd_port(Filter::default());
    lab.bridges[0].bfd_ports.insert(Port(1), w);
    lab.publish();
    lab.add(
        (0, 0),
        10,
        &Match::default(),
        InstructionSet(vec![Instruction::Apply(vec![out(2)])]),
    );
    let t = lab.translate(&message(), Purpose::Miss);
    match t.actions.as_slice() {
        [Action::Userspace(up)] => assert_eq!(up.kind, UpcallKind::SlowPath("bfd")),
        other => panic!("{other:?}"),
    }
    let other = FlowKey {
        tp_dst: 53,
        ..message()
    };
    assert_eq!(
        lab.translate(&other, Purpose::Miss).actions,
        [Action::Output(dp(0, 2))]
    );
    // On a port without a session, the packet is an ordinary one.
    let elsewhere = FlowKey {
        in_port: dp(0, 3).0,
        ..message()
    };
    assert_eq!(
        lab.translate(&elsewhere, Purpose::Miss).actions,
        [Action::Output(dp(0, 2))]
    );
}

#[test]
fn messages_of_two_sessions_are_not_mixed_up() {
    use heddle_datapath_api::UpcallCookie;
    let of = |id| {
        let shared = BfdState {
            id,
            forwarding: false.into(),
            disc: 0x1234_5678,
            came: 0.into(),
            came_known: 0.into(),
        };
        let filter = Filter::default();
        UpcallCookie(
            BfdPort {
                shared: Arc::new(shared),
                filter,
            }
            .cookie(),
        )
    };
    // Translations with equal actions share one cached translation.
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
}

#[test]
fn a_session_has_its_share_of_the_ring_and_no_more() {
    let w = bfd_port(Filter::default());
    let cookie = w.cookie();
    let admitted = |frame: &[u8]| (0..1000).filter(|_| cookie.admit(frame)).count();
    // From 10.0.0.2 to 10.0.0.1, UDP to port 3784, and a message that is up.
    let frame = |your_disc: u32, mult: u8| {
        let mut f = vec![0, 0x23, 0x20, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        f.extend([
            0x45, 0, 0, 52, 0, 0, 0, 0, 255, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1,
        ]);
        f.extend([0xc0, 0, 0x0e, 0xc8, 0, 32, 0, 0, 0x20, 0xc0, mult, 24, 0, 0, 0, 9]);
        f.extend(your_disc.to_be_bytes());
        f.extend([0; 12]);
        f
    };
    // Whatever messages others forge, the peer's messages have room.
    let all = MAX_WAITING_MESSAGES as usize;
    assert_eq!(
        (
            admitted(&[]),
            admitted(&frame(7, 3)),
            admitted(&frame(0x1234_5678, 0))
        ),
        (all, 0, 0)
    );
    assert_eq!(admitted(&frame(0x1234_5678, 3)), all);
    w.shared.refill();
    assert!(cookie.admit(&frame(7, 3)) && cookie.admit(&frame(0x1234_5678, 3)));
    assert_eq!(cookie.text(), "slow_path(bfd)");
}

#[test]
fn a_port_is_live_as_its_session_allows() {
    let mut lab = Lab::new(&[4]);
    let w = bfd_port(Filter::default());
    lab.bridges[0].bfd_ports.insert(Port(2), w.clone());
    lab.publish();
    let snapshot = lab.pipeline.snapshot();
    let port = snapshot.bridges[&0].ports.get(&Port(2)).unwrap();
    assert!(port.up && !port.is_live());
    w.shared.forwarding.store(true, Relaxed);
    assert!(port.is_live());
}
