//! Headers in front of packets: the actions emitted for them, and their traces in later actions.

use super::lab::{Lab, out, resubmit};
use crate::group::Group;
use heddle_datapath_api::{Action as Odp, DropReason, Purpose};
use heddle_flow::{FieldId, FieldValue, Vlan, packet_type};
use heddle_openflow::action::{Encap, EncapProperty};
use heddle_openflow::message::{Bucket, GROUP_ANY, GroupDesc, GroupType};
use heddle_openflow::{Action, Port};

fn encap(packet_type: u32) -> Action {
    encap_with(packet_type, Vec::new())
}

fn encap_with(packet_type: u32, properties: Vec<EncapProperty>) -> Action {
    Action::Encap(Box::new(Encap {
        packet_type,
        hdr_size: 0,
        properties,
    }))
}

fn set(field: FieldId, value: u64) -> Action {
    Action::SetField {
        field,
        value: FieldValue::from_u64(value),
        mask: field.full_mask(),
    }
}

const NEXT: u32 = 0xfffe;
const DECAP: Action = Action::Decap(NEXT);
const PUSH: &str = "push_nsh(flags=0,ttl=63,mdtype=1,np=3,spi=0x0,si=255,c1=0x0,c2=0x0,c3=0x0,c4=0x0)";

/// Fields that are set before the header is emitted are part of it; those set afterwards are written into it.
#[test]
fn a_header_is_emitted_with_its_fields() {
    let lab = Lab::new(&[3]);
    let tlv = EncapProperty::NshTlv {
        class: 0x1000,
        ty: 10,
        data: vec![1, 2, 3],
    };
    let list = vec![
        encap_with(packet_type::NSH, vec![EncapProperty::NshMdType(2), tlv]),
        set(FieldId::NshSpi, 7),
        encap(packet_type::ETHERNET),
        out(2),
        Action::DecNshTtl,
        set(FieldId::NshSi, 254),
        out(3),
    ];
    lab.rule((0, 0), "", list);
    assert_eq!(
        lab.actions("in_port=1"),
        "push_nsh(flags=0,ttl=63,mdtype=2,np=3,spi=0x7,si=255,md2=0x10000a0301020300),\
         push_eth(src=00:00:00:00:00:00,dst=00:00:00:00:00:00),2,set(nsh(ttl=62,spi=0x7,si=254)),3"
    );
}

#[test]
fn what_is_behind_a_header_comes_back() {
    let lab = Lab::new(&[3]);
    lab.rule((0, 0), "", vec![DECAP, DECAP, out(2)]);
    assert_eq!(
        lab.actions("in_port=1,dl_type=0x894f,nsh_mdtype=1,nsh_np=1"),
        "pop_eth,pop_nsh(),recirc(0x1)"
    );
    let t = lab.translate(
        &Lab::key("in_port=1,dl_type=0x894f,nsh_mdtype=1,nsh_np=9"),
        Purpose::Miss,
    );
    assert_eq!(t.actions, [Odp::Drop(DropReason::UnsupportedPacketType)]);
    assert_eq!(t.mask.0.nsh.np, u8::MAX);
}

/// Devices take Ethernet frames only. Another bridge takes any packet.
#[test]
fn packets_without_ethernet_stay_inside() {
    let mut lab = Lab::new(&[3, 3]);
    lab.patch((0, 3), (1, 3));
    lab.rule((0, 0), "", vec![DECAP, out(2), out(3)]);
    lab.rule(
        (1, 0),
        "packet_type=(1,0x800)",
        vec![out(1), encap(packet_type::ETHERNET), out(2)],
    );
    assert_eq!(
        lab.actions("in_port=1,ip"),
        "pop_eth,push_eth(src=00:00:00:00:00:00,dst=00:00:00:00:00:00),102"
    );
}

/// Setting fields back does not undo a header: later actions get the packet as it was.
#[test]
fn headers_pushed_on_a_copy_are_on_the_copy_alone() {
    let lab = Lab::new(&[3]);
    lab.rule(
        (0, 1),
        "",
        vec![encap(packet_type::NSH), encap(packet_type::ETHERNET), out(3)],
    );
    lab.rule((0, 0), "ip", vec![Action::Clone(vec![resubmit(1)]), out(2)]);
    let clone = format!("clone({PUSH},push_eth(src=00:00:00:00:00:00,dst=00:00:00:00:00:00),3),2");
    assert_eq!(lab.actions("in_port=1,ip"), clone);
    let bucket = |action| Bucket {
        id: 0,
        weight: 0,
        watch_port: Port::NONE,
        watch_group: GROUP_ANY,
        actions: vec![action],
    };
    let group = GroupDesc {
        group_id: 1,
        ty: GroupType::All,
        buckets: vec![bucket(resubmit(1)), bucket(out(2))],
        selection: None,
    };
    lab.bridges[0].groups.insert(1, 1, Group::new(group, 0));
    lab.rule((0, 0), "arp", vec![Action::Group(1)]);
    assert_eq!(lab.actions("in_port=1,arp"), clone);
}

#[test]
fn labels_in_front() {
    let lab = Lab::new(&[3]);
    let label = |n| [encap(packet_type::MPLS), set(FieldId::MplsLabel, n)];
    let list = |n: u64| {
        let mut l: Vec<Action> = (1..=n).flat_map(label).collect();
        l.extend([encap(packet_type::ETHERNET), out(2)]);
        l
    };
    lab.rule((0, 0), "ip", list(2));
    assert_eq!(
        lab.actions("in_port=1,ip,nw_ttl=9"),
        "add_mpls(label=1,tc=0,ttl=64,bos=1,eth_type=0x8847),add_mpls(label=2,tc=0,ttl=64,bos=0,eth_type=0x8847),\
         push_eth(src=00:00:00:00:00:00,dst=00:00:00:00:00:00),2"
    );
    // Labels of the frame inside are not of the same stack.
    lab.rule((0, 0), "mpls", list(1));
    assert_eq!(
        lab.actions("in_port=1,mpls,mpls_label=7,mpls_bos=1"),
        "add_mpls(label=1,tc=0,ttl=64,bos=1,eth_type=0x8847),\
         push_eth(src=00:00:00:00:00:00,dst=00:00:00:00:00:00),2"
    );
    lab.rule((0, 0), "arp", list(4));
    let t = lab.translate(&Lab::key("in_port=1,arp"), Purpose::Miss);
    assert_eq!(t.actions, [Odp::Drop(DropReason::TooManyMplsLabels)]);
    lab.rule(
        (0, 0),
        "dl_type=0x8848",
        vec![DECAP, Action::Decap(packet_type::ETHERNET), out(2)],
    );
    assert_eq!(
        lab.actions("in_port=1,mplsm,mpls_bos=1"),
        "pop_eth,pop_mpls(eth_type=0x6558),recirc(0x1)"
    );
}

/// The presence of a tag decides, so an entry is for packets with a tag or for packets without.
#[test]
fn a_tagged_packet_is_not_decapsulated_and_shares_no_entry() {
    let lab = Lab::new(&[3]);
    lab.rule(
        (0, 0),
        "",
        vec![
            DECAP,
            encap(packet_type::NSH),
            encap(packet_type::ETHERNET),
            out(2),
        ],
    );
    for (text, dropped) in [
        ("in_port=1,ip", false),
        ("in_port=1,dl_vlan=10,dl_vlan_pcp=0,ip", true),
    ] {
        let t = lab.translate(&Lab::key(text), Purpose::Miss);
        let is_drop = matches!(t.actions[..], [Odp::Drop(DropReason::UnsupportedPacketType)]);
        assert_eq!(is_drop, dropped, "{text}: {:?}", t.actions);
        assert_ne!(t.mask.0.vlans[0].tci & Vlan::CFI, 0, "{text}");
    }
}
