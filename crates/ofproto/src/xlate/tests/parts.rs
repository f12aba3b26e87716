//! Configurations that change: translations that depend on a changed part do not hold, and others do.

use super::lab::{Lab, LabBridge, out, to};
use super::props::{lab, packet, rules, rules13};
use crate::model::{Mirror, MirrorOutput, PortBundle, VlanMode, VlanSet, port_config};
use heddle_datapath_api::{Purpose, Translation};
use heddle_flow::FlowKey;
use heddle_openflow::action::{self, BundleAlgorithm, HashFields};
use heddle_openflow::{Action, Port};
use proptest::prelude::*;
use std::sync::Arc;

/// One change, of bridge `n & 1`; `a` and `b` choose the port or bundle, and the new value.
fn change(lab: &mut Lab, n: u8, a: usize, b: u8) {
    let other = lab.bridges[0].patches.is_empty();
    if n == 9 {
        return match other {
            true => lab.patch((0, 4), (1, 4)),
            false => lab.bridges.iter_mut().for_each(|b| b.patches.clear()),
        };
    }
    let bridge = &mut lab.bridges[usize::from(b & 1)];
    let LabBridge {
        bundles,
        config,
        mirrors,
        down,
        ..
    } = bridge;
    let at = a % bundles.len().max(1);
    let port = Port(u32::from(b >> 1) % 5 + 1);
    match n {
        // Adds the port, with a bundle at some index, or removes it.
        0 | 1 => match bundles.iter().position(|b| b.ports.contains(&port)) {
            Some(at) => {
                bundles[at].ports.retain(|p| *p != port);
                if bundles[at].ports.is_empty() {
                    bundles.remove(at);
                }
            }
            None => bundles.insert(
                at,
                PortBundle {
                    name: format!("again{}", port.0),
                    ports: vec![port],
                    ..PortBundle::default()
                },
            ),
        },
        2 => {
            let bits = [
                port_config::NO_FLOOD,
                port_config::NO_FWD,
                port_config::NO_RECV,
                port_config::NO_PACKET_IN,
            ];
            *config.entry(port).or_default() ^= bits[a % 4];
        }
        3 => {
            if let Some(bundle) = bundles.get_mut(at) {
                (bundle.vlan_mode, bundle.tag) = match b >> 1 & 3 {
                    0 => (VlanMode::Access, Some(1)),
                    1 => (VlanMode::NativeTagged, Some(2)),
                    _ => (VlanMode::Trunk, None),
                };
            }
        }
        4 => {
            if let Some(bundle) = bundles.get_mut(at) {
                bundle.trunks = (b & 2 != 0).then(|| Arc::new(VlanSet::from_ids([0, 1])));
                bundle.protected = b & 4 != 0;
            }
        }
        // A bond of two, or all in another order.
        5 if bundles.len() > 1 => {
            let gone = bundles.remove(at);
            if let Some(first) = bundles.first_mut() {
                first.ports.extend(gone.ports);
            }
        }
        6 => bundles.reverse(),
        7 => {
            bridge.miss_to_controller ^= b & 2 != 0;
            bridge.flood_vlans = (b & 4 != 0).then(|| Arc::new(VlanSet::from_ids([1])));
        }
        10 => {
            if !down.remove(&port) {
                down.insert(port);
            }
        }
        _ => match mirrors.pop() {
            Some(_) => {}
            None => mirrors.push(Mirror {
                sources: vec![at],
                destinations: vec![usize::from(b >> 1) % 3],
                vlans: None,
                output: match b & 16 {
                    0 => MirrorOutput::Bundle(usize::from(b >> 2) % 3),
                    _ => MirrorOutput::Vlan(2),
                },
                snaplen: 0,
                same_output: 1,
                stats: Arc::default(),
            }),
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A translation equals a fresh one for as long as its dependencies hold.
    #[test]
    fn translations_depend_on_the_parts_that_they_read(
        rules in prop_oneof![rules(10), rules13(10)],
        packets in prop::collection::vec(packet(), 1..6),
        changes in prop::collection::vec((0u8..11, any::<usize>(), any::<u8>()), 1..12),
    ) {
        let mut lab = lab(&rules);
        let mut earlier: Vec<(FlowKey, Translation)> = Vec::new();
        for (n, a, b) in changes {
            for p in &packets {
                let key = Lab::key(p);
                let t = lab.translate(&key, Purpose::Miss);
                prop_assert!(!t.uncacheable);
                earlier.push((key, t));
            }
            change(&mut lab, n, a, b);
            lab.publish();
            for (key, t) in &earlier {
                let now = lab.translate(key, Purpose::Revalidate);
                if lab.generations.hold(&t.deps) {
                    prop_assert_eq!(&now.actions, &t.actions);
                    prop_assert!(t.mask.contains(&now.mask));
                }
            }
        }
    }
}

/// A flapping link makes only translations stale that looked at the link's state.
#[test]
fn a_link_is_nothing_to_those_who_only_send_there() {
    let mut lab = Lab::new(&[5]);
    lab.rule((0, 0), "in_port=1", vec![out(2)]);
    lab.rule((0, 0), "in_port=2", vec![to(Port::FLOOD)]);
    // The first member that is up.
    let bundle = action::Bundle {
        fields: HashFields::EthSrc,
        basis: 0,
        algorithm: BundleAlgorithm::ActiveBackup,
        members: vec![Port(2), Port(3)],
        dst: None,
    };
    lab.rule((0, 0), "in_port=3", vec![Action::Bundle(Box::new(bundle))]);
    let answers = |lab: &Lab| {
        [1, 2, 3, 4].map(|port| lab.translate(&Lab::key(&format!("in_port={port}")), Purpose::Miss))
    };
    for (flaps, holds) in [(2, [true, true, false, true]), (5, [true; 4]), (3, [true; 4])] {
        let before = answers(&lab);
        lab.bridges[0].down.insert(Port(flaps));
        lab.publish();
        let held = before.map(|t| lab.generations.hold(&t.deps));
        assert_eq!(held, holds, "port {flaps} goes down");
        let before = answers(&lab);
        lab.bridges[0].down.clear();
        lab.publish();
        let held = before.map(|t| lab.generations.hold(&t.deps));
        assert_eq!(
            (held[0], held[1], held[3]),
            (true, true, true),
            "port {flaps} comes up"
        );
    }
}

/// Changes that do not concern a translation do not make it stale.
#[test]
fn a_port_is_nothing_to_those_who_do_not_use_it() {
    let mut lab = Lab::new(&[5, 4]);
    lab.patch((0, 4), (1, 4));
    lab.rule((0, 0), "in_port=1", vec![out(2)]);
    lab.rule((0, 0), "in_port=2", vec![to(Port::FLOOD)]);
    lab.rule((0, 0), "in_port=3", vec![out(4)]);
    lab.rule((1, 0), "", vec![to(Port::NORMAL)]);
    let answers = |lab: &Lab| {
        [1, 2, 3].map(|port| {
            let key = Lab::key(&format!("in_port={port},dl_src=50:00:00:00:00:0a"));
            lab.translate(&key, Purpose::Miss)
        })
    };
    let mut expect = |what: &str, change: &dyn Fn(&mut Lab), holds: [bool; 3]| {
        let before = answers(&lab);
        change(&mut lab);
        lab.publish();
        assert_eq!(before.map(|t| lab.generations.hold(&t.deps)), holds, "{what}");
    };
    expect("nothing", &|_| {}, [true, true, true]);
    expect(
        "a port goes",
        &|l| drop(l.bridges[0].bundles.pop()),
        [true, false, true],
    );
    let new = |no: u32| PortBundle {
        ports: vec![Port(no)],
        ..PortBundle::default()
    };
    // Inserted before the other bundles, which get other indices.
    expect(
        "a port comes",
        &|l| l.bridges[0].bundles.insert(0, new(7)),
        [true, false, true],
    );
    expect(
        "a port comes behind the patch",
        &|l| l.bridges[1].bundles.push(new(7)),
        [true, false, false],
    );
    expect(
        "the output port changes",
        &|l| _ = l.bridges[0].config.insert(Port(2), port_config::NO_FWD),
        [false, false, true],
    );
    expect(
        "the input port's bundle changes",
        &|l| l.bridges[0].bundles[2].protected = true,
        [false, false, true],
    );
    expect(
        "the bridge changes",
        &|l| l.bridges[0].miss_to_controller = true,
        [false, false, false],
    );
}
