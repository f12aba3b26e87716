//! Bridging: VLANs, learning, flooding.

use super::lab::{Lab, to};
use crate::mac::MacKey;
use crate::model::{Mirror, MirrorOutput, PriorityTags, VlanMode, VlanSet};
use heddle_datapath_api::Purpose;
use heddle_openflow::Port;
use std::sync::Arc;

fn lab() -> Lab {
    let lab = Lab::new(&[4]);
    lab.rule((0, 0), "", vec![to(Port::NORMAL)]);
    lab
}

const A: &str = "dl_src=50:00:00:00:00:0a,dl_dst=50:00:00:00:00:0b";
const B: &str = "dl_src=50:00:00:00:00:0b,dl_dst=50:00:00:00:00:0a";

#[test]
fn floods_then_forwards() {
    let lab = lab();
    let flooded = lab.translate(&Lab::key(&format!("in_port=1,{A}")), Purpose::Miss);
    assert_eq!(
        heddle_datapath_api::format_actions(&flooded.actions, None),
        "100,2,3,4"
    );
    assert!(lab.generations.hold(&flooded.deps));
    assert_eq!(lab.actions(&format!("in_port=2,{B}")), "1");
    assert!(
        !lab.generations.hold(&flooded.deps),
        "the destination is known now"
    );
    assert_eq!(lab.actions(&format!("in_port=1,{A}")), "2");
    assert_eq!(
        lab.actions(&format!("in_port=2,{A}")),
        "drop",
        "back to where it came from"
    );
}

/// A packet to its own sender is dropped, whether or not another thread is at the table of addresses.
#[test]
fn a_packet_to_its_own_sender_goes_nowhere() {
    let own = "dl_src=50:00:00:00:00:0a,dl_dst=50:00:00:00:00:0a";
    for busy in [false, true] {
        let lab = lab();
        let mac = Arc::clone(&lab.bridges[0].mac);
        let held = busy.then(|| mac.hold());
        let t = lab.translate(&Lab::key(&format!("in_port=1,{own}")), Purpose::Miss);
        let actions = heddle_datapath_api::format_actions(&t.actions, None);
        assert_eq!(actions, "drop", "{busy}");
        assert_eq!(t.uncacheable, busy, "the next packet has to learn the address");
        drop(held);
    }
}

#[test]
fn only_misses_learn() {
    let lab = lab();
    lab.translate(&Lab::key(&format!("in_port=1,{A}")), Purpose::Revalidate);
    assert!(lab.bridges[0].mac.entries(0).is_empty());
    let t = lab.translate(&Lab::key(&format!("in_port=1,{A}")), Purpose::Miss);
    assert_eq!(lab.bridges[0].mac.entries(0).len(), 1);
    lab.bridges[0].mac.flush();
    assert!(!lab.generations.hold(&t.deps), "cached packets must learn again");
    // Packets counted earlier do not bring the entry back. A translation that did not learn is not cached: it
    // would keep packets from learning.
    t.credits.iter().for_each(|c| c.credit(1, 60, 2000, 0));
    assert!(lab.bridges[0].mac.entries(0).is_empty());
    let checked = lab.translate(&Lab::key(&format!("in_port=1,{A}")), Purpose::Revalidate);
    assert!(checked.uncacheable && !t.uncacheable);
}

/// A packet that comes back over a patch port is learned at both ports. Cached ones of it leave the source
/// where the last packet left it.
#[test]
fn the_last_port_of_a_packet_counts() {
    let mut lab = Lab::new(&[3, 1]);
    lab.patch((0, 3), (1, 1));
    lab.rule((0, 0), "", vec![to(Port::NORMAL)]);
    lab.rule((1, 0), "", vec![to(Port::IN_PORT)]);
    let t = lab.translate(&Lab::key(&format!("in_port=1,{A}")), Purpose::Miss);
    let at = || lab.bridges[0].mac.entries(0)[0].port;
    assert_eq!(at(), Port(3));
    for used_ms in [2000, 3000] {
        t.credits.iter().for_each(|c| c.credit(1, 60, used_ms, 0));
        assert_eq!(at(), Port(3));
    }
}

/// An address that was seen elsewhere meanwhile moves back with the next packet, before the destination is
/// looked up. Until then, no translation holds for it.
#[test]
fn an_address_that_has_moved_is_moved_back_by_a_packet() {
    let lab = lab();
    let to_itself = "dl_src=50:54:00:00:00:03,dl_dst=50:54:00:00:00:03";
    assert_eq!(
        lab.actions(&format!("in_port=1,{to_itself}")),
        "drop",
        "it is where it came from"
    );
    assert_eq!(lab.actions(&format!("in_port=2,{to_itself}")), "drop");
    let checked = lab.translate(&Lab::key(&format!("in_port=1,{to_itself}")), Purpose::Revalidate);
    assert!(checked.uncacheable, "{:?}", checked.actions);
    assert!(
        !lab.translate(&Lab::key(&format!("in_port=2,{to_itself}")), Purpose::Revalidate)
            .uncacheable
    );
}

#[test]
fn access_trunk_native() {
    let mut lab = lab();
    {
        let b = &mut lab.bridges[0].bundles;
        (b[1].vlan_mode, b[1].tag) = (VlanMode::Access, Some(10));
        b[2].trunks = Some(Arc::new(VlanSet::from_ids([10, 20])));
        (b[3].vlan_mode, b[3].tag) = (VlanMode::NativeUntagged, Some(10));
        (b[4].vlan_mode, b[4].tag) = (VlanMode::NativeTagged, Some(20));
    }
    lab.publish();
    assert_eq!(
        lab.actions(&format!("in_port=1,{A}")),
        "push_vlan(vid=10,pcp=0),100,2,pop_vlan,3,push_vlan(vid=10,pcp=0),4"
    );
    assert_eq!(lab.actions(&format!("in_port=1,dl_vlan=10,{A}")), "drop");
    assert_eq!(lab.actions(&format!("in_port=2,dl_vlan=10,{B}")), "pop_vlan,1");
    assert_eq!(lab.actions(&format!("in_port=2,dl_vlan=30,{B}")), "drop");
    assert_eq!(
        lab.actions(&format!("in_port=4,{A}")),
        "push_vlan(vid=20,pcp=0),100,2,3"
    );
    let entry = lab.bridges[0].mac.lookup(MacKey {
        mac: [0x50, 0, 0, 0, 0, 0x0a],
        vlan: 20,
    });
    assert_eq!(entry, Some(Port(4)));
}

#[test]
fn tunnels_of_tags() {
    let mut lab = lab();
    for (i, tag) in [(1, 100), (2, 100), (3, 200)] {
        let b = &mut lab.bridges[0].bundles[i];
        (b.vlan_mode, b.tag, b.qinq_ethtype) = (VlanMode::Dot1qTunnel, Some(tag), 0x88a8);
    }
    lab.bridges[0].bundles[1].cvlans = Some(Arc::new(VlanSet::from_ids([7])));
    lab.publish();
    assert_eq!(lab.actions(&format!("in_port=1,dl_vlan=8,{A}")), "drop");
    assert_eq!(
        lab.actions(&format!("in_port=1,dl_vlan=7,{A}")),
        "push_vlan(tpid=0x88a8,vid=100,pcp=0),100,pop_vlan,2,push_vlan(tpid=0x88a8,vid=100,pcp=0),4"
    );
}

#[test]
fn priority_tags() {
    let mut lab = lab();
    let b = &mut lab.bridges[0].bundles[2];
    (b.vlan_mode, b.tag, b.priority_tags) = (VlanMode::Access, Some(5), PriorityTags::IfNonzero);
    lab.publish();
    lab.actions(&format!("in_port=2,{B}"));
    assert_eq!(
        lab.actions(&format!("in_port=1,dl_vlan=5,dl_vlan_pcp=3,{A}")),
        "pop_vlan,push_vlan(vid=0,pcp=3),2"
    );
    assert_eq!(lab.actions(&format!("in_port=1,dl_vlan=5,{A}")), "pop_vlan,2");
}

#[test]
fn reserved_addresses_groups_and_flood_vlans() {
    let mut lab = lab();
    assert_eq!(lab.actions("in_port=1,dl_dst=01:80:c2:00:00:0e"), "drop");
    assert_eq!(lab.actions("in_port=1,dl_dst=01:80:c2:00:00:10"), "100,2,3,4");
    assert_eq!(
        lab.actions("in_port=1,dl_src=01:00:5e:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff"),
        "100,2,3,4"
    );
    lab.bridges[0].flood_vlans = Some(Arc::new(VlanSet::from_ids([0])));
    lab.publish();
    lab.actions(&format!("in_port=1,{A}"));
    assert!(
        lab.bridges[0]
            .mac
            .lookup(MacKey {
                mac: [0x50, 0, 0, 0, 0, 0x0a],
                vlan: 0
            })
            .is_none()
    );
}

#[test]
fn protected_ports_keep_apart() {
    let mut lab = lab();
    lab.bridges[0].bundles[1].protected = true;
    lab.bridges[0].bundles[3].protected = true;
    lab.publish();
    assert_eq!(lab.actions(&format!("in_port=1,{A}")), "100,2,4");
    assert_eq!(lab.actions(&format!("in_port=2,{B}")), "1");
}

/// The number of tags decides, and so does a priority that keeps a tag for VLAN 0. Open vSwitch's mask leaves
/// them out; the property test found this.
#[test]
fn tags_are_in_the_cached_mask() {
    let lab = lab();
    let one = lab.translate(
        &Lab::key(&format!("in_port=1,dl_vlan=0,dl_vlan_pcp=3,{A}")),
        Purpose::Revalidate,
    );
    assert_eq!(one.mask.0.vlans[0].tci, 0xffff);
    assert_eq!(one.mask.0.vlans[1].tci, 0x1000, "there is no second one");
    let none = lab.translate(&Lab::key(&format!("in_port=1,{A}")), Purpose::Revalidate);
    assert_eq!(none.mask.0.vlans[0].tci, 0x1000);
}

/// Floods of both kinds have the order that they have in Open vSwitch (recorded: bridge with ports 1 to 5).
#[test]
fn order_of_floods() {
    let lab = Lab::new(&[5]);
    lab.rule((0, 0), "in_port=1", vec![to(Port::FLOOD)]);
    lab.rule((0, 0), "in_port=2", vec![to(Port::NORMAL)]);
    assert_eq!(lab.actions("in_port=1"), "4,100,5,2,3");
    assert_eq!(lab.actions(&format!("in_port=2,{A}")), "100,1,3,4,5");
}

#[test]
fn mirrors_copy_what_comes_and_goes_once() {
    let mut lab = lab();
    let mirror = |sources: &[usize], destinations: &[usize], output, same_output| Mirror {
        sources: sources.to_vec(),
        destinations: destinations.to_vec(),
        vlans: None,
        output,
        snaplen: 0,
        same_output,
        stats: Arc::default(),
    };
    let all = [0, 1, 2, 3, 4];
    // Port 4 gets packets that come in on 1, and packets that leave on 1 or 2, but each packet once.
    let port = MirrorOutput::Bundle(4);
    lab.bridges[0].mirrors = vec![mirror(&[1], &[1], port, 3), mirror(&[], &[2], port, 3)];
    lab.publish();
    let out = lab.translate(&Lab::key(&format!("in_port=1,{A}")), Purpose::Miss);
    assert_eq!(
        heddle_datapath_api::format_actions(&out.actions, None),
        "4,100,2,3"
    );
    let counted = out.credits.clone();
    counted.iter().for_each(|c| c.credit(2, 120, 1, 0));
    let packets = |i: usize| {
        lab.bridges[0].mirrors[i]
            .stats
            .packets
            .load(std::sync::atomic::Ordering::Relaxed)
    };
    assert_eq!((packets(0), packets(1)), (2, 0));
    assert_eq!(lab.actions(&format!("in_port=3,{A}")), "100,1,4,2");
    assert_eq!(
        lab.actions("in_port=4,dl_src=50:00:00:00:00:04"),
        "drop",
        "nothing comes in there"
    );
    // Truncated copies, in one VLAN only: bits of the tag that matter are in the mask.
    lab.bridges[0].mirrors = vec![Mirror {
        vlans: Some(Arc::new(VlanSet::from_ids([7]))),
        snaplen: 100,
        ..mirror(&all, &all, port, 1)
    }];
    lab.publish();
    assert_eq!(
        lab.actions(&format!("in_port=2,{B}")),
        "3",
        "where it was seen last"
    );
    let tagged = lab.translate(
        &Lab::key(&format!("in_port=2,dl_vlan=7,{A}")),
        Purpose::Revalidate,
    );
    assert_eq!(
        heddle_datapath_api::format_actions(&tagged.actions, None),
        "trunc(100),4,100,1,3"
    );
    assert_eq!(tagged.mask.0.vlans[0].tci & 0x1fff, 0x1fff);
    // Copies into a VLAN go to all ports in it; the packets of the VLAN itself are not copied.
    lab.bridges[0].mirrors = vec![mirror(&[2], &[], MirrorOutput::Vlan(9), 1)];
    for b in [0, 3, 4] {
        lab.bridges[0].bundles[b].vlan_mode = VlanMode::Access;
        lab.bridges[0].bundles[b].tag = Some(9);
    }
    lab.publish();
    assert_eq!(
        lab.actions(&format!("in_port=2,{B}")),
        "100,push_vlan(vid=9,pcp=0),1,2,pop_vlan,3,4,3"
    );
}
