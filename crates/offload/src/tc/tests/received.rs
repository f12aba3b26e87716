//! Filters of flows out of tunnels.

use super::{COOKIE, canonical, filter_id, flow, golden, nlas, out};
use crate::tc::actions;
use crate::tc::keys::Keys;
use crate::tc::message;
use crate::tc::received::{inner_keys, outer_keys};
use crate::{Rule, Why};
use heddle_datapath_api::Action;
use heddle_flow::key::tun_flag;
use heddle_flow::{FlowKey, FlowMask};
use heddle_sys::tunnel_links::TunnelLinkKind;
use heddle_tunnel::{OptionTable, TunnelKind, TunnelPop};
use netlink_packet_core::{Emitable as _, Nla as _};
use netlink_packet_route::tc::{TcAction, TcAttribute};
use std::sync::Arc;

const GENEVE: TunnelLinkKind = TunnelLinkKind::Geneve;
const OPTION: Option<(u16, u8)> = Some((0x0102, 0x80));

/// A flow out of a tunnel, with the mask that the datapath always has.
fn inner() -> (FlowKey, FlowMask) {
    let (mut key, mut mask) = flow();
    let m = &mut mask.0;
    (key.tun_src, m.tun_src) = (0x0a05_0002, u32::MAX);
    (key.tun_dst, m.tun_dst) = (0x0a05_0001, u32::MAX);
    (m.tun_ipv6_src, m.tun_ipv6_dst) = ([0xff; 16], [0xff; 16]);
    (key.tun_id, m.tun_id) = (77, u64::MAX);
    key.tun_flags = tun_flag::KEY;
    m.tun_flags = tun_flag::KEY | tun_flag::CSUM;
    (key.tun_tos, m.tun_tos) = (0x10, 0xff);
    (key, mask)
}

fn bytes(keys: Keys, actions: Vec<TcAction>) -> Vec<u8> {
    let m = filter_id(keys.protocol).filter(keys.keys, actions, 0);
    let options = m.attributes.iter();
    let options = options
        .into_iter()
        .find(|a| matches!(a, TcAttribute::Options(_)))
        .unwrap();
    let mut bytes = vec![0; options.value_len()];
    options.emit_value(&mut bytes);
    bytes
}

fn compare(key: &FlowKey, mask: &FlowMask, id: (TunnelLinkKind, u16), name: &str) {
    let rule = Rule::new(key, mask, &[out(2)]).unwrap();
    let keys = inner_keys(&rule, id, OPTION).unwrap();
    let actions = actions::of(&rule, COOKIE, false, None, |_| Some(2)).unwrap();
    let ((keys, actions), (tc_keys, tc_actions)) =
        (canonical(&bytes(keys, actions)), canonical(&golden(name)));
    assert_eq!(keys, tc_keys);
    // `tc` names the checksum of a tunnel also where it ends.
    const NO_CSUM: u16 = 10;
    let options = |all: &[super::Attributes]| -> Vec<Vec<_>> {
        let of = |a: &super::Attributes| {
            nlas(&a[&2])
                .into_iter()
                .filter(|(kind, _)| *kind != NO_CSUM)
                .collect()
        };
        all.iter().map(of).collect()
    };
    assert_eq!(options(&actions), options(&tc_actions));
}

#[test]
fn tunnels_are_matched_as_by_tc() {
    let (mut key, mut mask) = inner();
    (key.tun_ttl, mask.0.tun_ttl) = (64, 0xff);
    (key.tun_present, mask.0.tun_present) = (1, 1);
    key.tun_metadata[..4].copy_from_slice(&[0, 1, 0, 2]);
    mask.0.tun_metadata[..4].fill(0xff);
    compare(&key, &mask, (GENEVE, 6081), "out4");
    let (mut key, mask) = inner();
    (key.tun_src, key.tun_dst) = (0, 0);
    key.tun_ipv6_src = "fd00:5::2".parse::<std::net::Ipv6Addr>().unwrap().octets();
    key.tun_ipv6_dst = "fd00:5::1".parse::<std::net::Ipv6Addr>().unwrap().octets();
    (key.tun_id, key.tun_tos) = (66051, 0);
    // A checksum outside makes no difference.
    key.tun_flags |= tun_flag::CSUM;
    compare(&key, &mask, (TunnelLinkKind::Vxlan, 4789), "out6");
}

/// A filter must not match packets that its flow does not match.
#[test]
fn what_flower_does_not_match_on_tunnels_is_refused() {
    let with = |f: &dyn Fn(&mut FlowKey, &mut FlowKey), option| {
        let (mut key, mut mask) = inner();
        f(&mut key, &mut mask.0);
        let rule = Rule::new(&key, &mask, &[out(2)]).unwrap();
        inner_keys(&rule, (GENEVE, 6081), option).map(|keys| keys.protocol)
    };
    assert_eq!(with(&|_, _| (), OPTION), Ok(0x0800));
    // The flow matches on: no control packet, no second option, no first option, a part of an identifier.
    let is_refused = |f: &dyn Fn(&mut FlowKey, &mut FlowKey)| {
        assert!(matches!(with(f, OPTION), Err(Why::Tunnel(_) | Why::Partly)));
    };
    is_refused(&|_, m| m.tun_flags |= tun_flag::OAM);
    is_refused(&|_, m| m.tun_present = 2);
    is_refused(&|_, m| m.tun_metadata[4] = 1);
    is_refused(&|_, m| m.tun_present = 1);
    is_refused(&|k, m| (k.tun_id, m.tun_id) = (1, 1));
    // The option's class and type are unknown.
    let option = |k: &mut FlowKey, m: &mut FlowKey| (k.tun_present, m.tun_present) = (1, 1);
    assert!(with(&|k, m| option(k, m), None).is_err());
    assert_eq!(with(&|k, m| option(k, m), OPTION), Ok(0x0800));
}

/// A flow of outer packets to UDP port 4789.
fn outer(f: impl FnOnce(&mut FlowKey, &mut FlowKey)) -> Rule {
    let (mut key, mut mask) = flow();
    let m = &mut mask.0;
    m.vlans[0].tci = u16::MAX;
    (key.nw_dst, m.nw_dst) = (0x0a05_0001, u32::MAX);
    (key.nw_proto, m.nw_proto) = (17, 0xff);
    (key.tp_dst, m.tp_dst) = (4789, u16::MAX);
    f(&mut key, m);
    let pop = TunnelPop {
        kind: TunnelKind::Vxlan,
        port: 9,
        options: OptionTable::default(),
    };
    Rule::new(&key, &mask, &[Action::TunnelPop(Arc::new(pop))]).unwrap()
}

#[test]
fn outer_packets_pass_as_by_tc() {
    let rule = outer(|_, _| {});
    assert_eq!(rule.decap().map(|decap| decap.port.0), Some(9));
    let keys = outer_keys(&rule).unwrap();
    let actions = actions::to_host(0x0d03_0005, COOKIE);
    let m = filter_id(keys.protocol).filter(Vec::new(), actions.clone(), message::SKIP_HW);
    let mut whole = vec![0; m.buffer_len()];
    m.emit(&mut whole);
    assert!(message::read(&whole).is_some_and(|reported| reported.to_host));
    let ((mut keys, actions), (mut tc_keys, tc_actions)) =
        (canonical(&bytes(keys, actions)), canonical(&golden("outer")));
    // `tc` was given `skip_hw`.
    const FLAGS: u16 = 22;
    keys.remove(&FLAGS);
    tc_keys.remove(&FLAGS);
    assert_eq!(keys, tc_keys);
    let options = |all: &[super::Attributes]| -> Vec<_> { all.iter().map(|a| nlas(&a[&2])).collect() };
    assert_eq!(options(&actions), options(&tc_actions));
}

/// The kernel would change or drop the packet inside, or workers would see another packet come back.
#[test]
fn some_outer_packets_stay_with_workers() {
    assert!(outer_keys(&outer(|_, _| {})).is_ok());
    assert!(outer_keys(&outer(|k, m| (k.nw_tos, m.nw_tos) = (3, 3))).is_err());
    assert!(outer_keys(&outer(|k, m| (k.nw_tos, m.nw_tos) = (2, 3))).is_ok());
    assert!(outer_keys(&outer(|k, m| (k.tp_src, m.tp_src) = (7, 7))).is_err());
    // At a port of a bridge: the host's stack drops packets for another device's address.
    assert!(outer_keys(&outer(|k, m| (k.dl_dst, m.dl_dst) = ([2; 6], [0xff; 6]))).is_err());
    assert!(outer_keys(&outer(|k, m| (k.dl_src, m.dl_src) = ([2; 6], [0xff; 6]))).is_err());
}
