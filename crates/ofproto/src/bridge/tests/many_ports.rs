//! Many ports: a change of one port costs about the same as on a small bridge.

use super::super::{PortBundleConfig, PortConfig, PortTarget};
use super::{Lab, lab, secure};
use crate::model::{PortBundle, PortView, Snapshot};
use heddle_datapath_api::PortNo;
use heddle_openflow::Port as OfPort;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

fn name(no: u32) -> String {
    format!("p{no:05}")
}

fn bundle(no: u32) -> PortBundleConfig {
    PortBundleConfig {
        name: name(no),
        trunks: vec![1, 2, 3],
        ..PortBundleConfig::default()
    }
}

fn port(no: u32) -> PortConfig {
    PortConfig {
        no: OfPort(no),
        name: name(no),
        bundle: name(no),
        target: PortTarget::Datapath(PortNo(no)),
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        admin_up: true,
        link_up: true,
        speed_bps: 0,
        bfd: None,
        lacp: None,
        standby: None,
    }
}

/// Ports and bundles that were made for the second of two snapshots, and those that it does not share with
/// the first.
fn made(before: &Snapshot, after: &Snapshot) -> (usize, usize) {
    let (Some(a), Some(b)) = (before.bridges.get(&1), after.bridges.get(&1)) else {
        panic!("the bridge is there");
    };
    let ports = b.ports.differences(&a.ports);
    let bundles = b.bundles.differences(&a.bundles);
    let inputs = after.by_dp_port.differences(&before.by_dp_port);
    let same = |x: Option<&Arc<PortView>>, y: Option<&Arc<PortView>>| {
        x.zip(y).is_some_and(|(x, y)| Arc::ptr_eq(x, y))
    };
    let new_ports = ports.iter().filter(|no| !same(a.ports.get(no), b.ports.get(no)));
    (new_ports.count(), ports.len() + bundles.len() + inputs.len())
}

#[test]
fn one_port_among_many() {
    let l = lab(secure());
    let set = |all: &mut dyn Iterator<Item = u32>, last: &dyn Fn(&mut PortConfig)| {
        let numbers: Vec<u32> = all.collect();
        let mut ports: Vec<PortConfig> = numbers.iter().map(|n| port(*n)).collect();
        ports.last_mut().map(last);
        l.bridge
            .set_ports(numbers.into_iter().map(bundle).collect(), ports);
        l.of.pipeline().snapshot()
    };
    let as_it_is = |_: &mut PortConfig| {};
    let many = set(&mut (1..=4000).filter(|n| *n != 1000), &as_it_is);
    let nothing = set(&mut (1..=4000).filter(|n| *n != 1000), &as_it_is);
    assert_eq!(made(&many, &nothing), (0, 0));
    // At most three chunks of each, where one has become two.
    let between = set(&mut (1..=4000), &as_it_is);
    let (new, looked_at) = made(&nothing, &between);
    assert_eq!(new, 1);
    assert!(looked_at <= 9 * 64, "{looked_at} of 12,000");
    let down = set(&mut (1..=4000), &|p| p.link_up = false);
    let (new, looked_at) = made(&between, &down);
    assert_eq!(new, 1);
    assert!(looked_at <= 64, "{looked_at} of 12,000");
    let gone = set(&mut (2..=4000), &|p| p.link_up = false);
    assert_eq!(made(&down, &gone).0, 1);
    assert_eq!(gone.by_dp_port.get(&PortNo(1)), None);
}

proptest! {
    /// A snapshot that was updated step by step equals one that was made at once.
    #[test]
    fn mended_is_as_good_as_new(steps in prop::collection::vec(prop::collection::btree_map(1_u32..12, (0_u32..8, 0_u8..4), 0..10), 1..8)) {
        let l = lab(secure());
        let configure = |l: &Lab, step: &BTreeMap<u32, (u32, u8)>| {
            let ports = step.iter().map(|(no, (member_of, how))| PortConfig {
                bundle: name(*member_of),
                link_up: how & 1 == 0,
                target: match how {
                    3 => PortTarget::Patch(name(*no ^ 1)),
                    _ => PortTarget::Datapath(PortNo(*no)),
                },
                ..port(*no)
            });
            let names: BTreeSet<u32> = step.values().map(|(member_of, _)| *member_of).collect();
            // Bundles of the highest number have another trunk with each step.
            let trunk = u16::try_from(step.len()).unwrap();
            let bundles = names.into_iter().map(|n| PortBundleConfig {
                trunks: if n == 7 { vec![trunk] } else { vec![] },
                ..bundle(n)
            });
            l.bridge.set_ports(bundles.collect(), ports.collect());
            l.of.pipeline().snapshot()
        };
        // The number of a bundle is its history: a bundle keeps it as long as it keeps one of its ports.
        let bare = |b: &Arc<PortBundle>| PortBundle { id: 0, ..PortBundle::clone(b) };
        let mut before: Vec<Arc<PortBundle>> = Vec::new();
        for step in &steps {
            let mended = configure(&l, step);
            let fresh = configure(&lab(secure()), step);
            let (mended, fresh) = (mended.bridges.get(&1).unwrap(), fresh.bridges.get(&1).unwrap());
            prop_assert!(mended.bundles.values().map(bare).eq(fresh.bundles.values().map(bare)));
            let now: Vec<Arc<PortBundle>> = mended.bundles.values().cloned().collect();
            let numbers: BTreeSet<u32> = now.iter().map(|b| b.id).collect();
            prop_assert_eq!(numbers.len(), now.len());
            for (b, old) in now.iter().flat_map(|b| before.iter().map(move |old| (b, old))) {
                let keeps = b.name == old.name && b.ports.iter().any(|no| old.ports.contains(no));
                prop_assert!(!keeps || b.id == old.id);
                prop_assert!(b.name == old.name || b.id != old.id);
            }
            before = now;
            prop_assert_eq!(mended.ports.iter().count(), fresh.ports.iter().count());
            for (a, b) in mended.ports.values().zip(fresh.ports.values()) {
                prop_assert_eq!((a.no, &a.binding, a.up), (b.no, &b.binding, b.up));
                prop_assert_eq!(mended.bundles.get(&a.bundle).map(bare), fresh.bundles.get(&b.bundle).map(bare));
            }
        }
        let inputs = |w: &Snapshot| w.by_dp_port.iter().map(|(dp, at)| (dp, *at)).collect::<Vec<_>>();
        let last = steps.last().unwrap();
        prop_assert_eq!(inputs(&l.of.pipeline().snapshot()), inputs(&configure(&lab(secure()), last)));
    }
}
