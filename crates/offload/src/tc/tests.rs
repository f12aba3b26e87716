//! Filters are those that `tc` sends.

mod model;
mod paths;
mod received;
mod restored;
mod tunnels;

use super::actions::{self, IntoTunnel};
use super::attrs;
use super::cookie::Cookie;
use super::keys::Keys;
use super::message::{self, FilterId};
use super::{Tc, TcPolicy};
use crate::{Rule, Why};
use heddle_datapath_api::{Action, Masked, PortNo};
use heddle_flow::{FlowKey, FlowMask};
use netlink_packet_core::{Emitable as _, Nla as _, NlaBuffer, NlasIterator};
use netlink_packet_route::tc::{TcAction, TcActionAttribute, TcAttribute};
use std::collections::BTreeMap;
use std::net::Ipv6Addr;

/// Values of attributes by kind.
type Attributes = BTreeMap<u16, Vec<u8>>;

const COOKIE: Cookie = Cookie { owner: 7, era: 3 };

fn nlas(bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let all = NlasIterator::new(bytes).map(|nla: Result<NlaBuffer<&[u8]>, _>| nla.unwrap());
    all.map(|nla| (nla.kind(), nla.value().to_vec())).collect()
}

/// Keys by kind, and actions in order, in a form that two senders of the same filter share. Masks with all
/// bits are left out, and cookies, which `tc` adds to some actions.
fn canonical(options: &[u8]) -> (Attributes, Vec<Attributes>) {
    const ACTIONS: u16 = 3;
    const COOKIE: u16 = 6;
    const PORT_MASKS: std::ops::RangeInclusive<u16> = 35..=38;
    let mut keys: BTreeMap<_, _> = nlas(options).into_iter().collect();
    let all = keys.remove(&ACTIONS).unwrap();
    keys.retain(|kind, value| !(PORT_MASKS.contains(kind) && value.iter().all(|b| *b == 0xff)));
    let mut actions: Vec<BTreeMap<_, _>> = nlas(&all)
        .iter()
        .zip(1..)
        .map(|((filter_id, action), expected)| {
            assert_eq!(*filter_id, expected);
            nlas(action).into_iter().collect()
        })
        .collect();
    actions.iter_mut().for_each(|a| drop(a.remove(&COOKIE)));
    (keys, actions)
}

/// Bytes that `tc` sends for the filter of this name in `golden/flower.txt`.
fn golden(name: &str) -> Vec<u8> {
    let all = include_str!("golden/flower.txt").lines();
    let hex = all
        .filter_map(|l| l.strip_prefix(name)?.strip_prefix(' '))
        .next()
        .unwrap();
    let digits: Vec<u8> = hex
        .chars()
        .map(|c| u8::try_from(c.to_digit(16).unwrap()).unwrap())
        .collect();
    digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect()
}

fn filter_id(protocol: u16) -> FilterId {
    FilterId {
        ifindex: 3,
        chain: 0,
        priority: 100,
        protocol,
        handle: 0x2a,
    }
}

/// The contents of `TCA_OPTIONS` that this back end sends.
fn options(rule: &Rule, flags: u32) -> (u16, Vec<u8>) {
    options_into(rule, flags, None)
}

/// The same of a rule that leads into a tunnel.
fn options_into(rule: &Rule, flags: u32, tunnel: Option<IntoTunnel<'_>>) -> (u16, Vec<u8>) {
    let keys = Keys::of(rule).unwrap();
    let device = |_: PortNo| Some(2);
    let actions = actions::of(rule, COOKIE, false, tunnel, device).unwrap();
    (keys.protocol, contents(keys, actions, flags))
}

/// The contents of `TCA_OPTIONS` of a filter.
fn contents(keys: Keys, actions: Vec<TcAction>, flags: u32) -> Vec<u8> {
    let m = filter_id(keys.protocol).filter(keys.keys, actions, flags);
    let options = m
        .attributes
        .iter()
        .find(|a| matches!(a, TcAttribute::Options(_)))
        .unwrap();
    let mut bytes = vec![0; options.value_len()];
    options.emit_value(&mut bytes);
    bytes
}

fn out(no: u32) -> Action {
    Action::Output(PortNo(no))
}

/// A flow of IPv4 whose mask has the fields that the datapath always matches on.
fn flow() -> (FlowKey, FlowMask) {
    let (mut key, mut mask) = (FlowKey::default(), FlowMask::default());
    let m = &mut mask.0;
    (key.in_port, m.in_port) = (1, u32::MAX);
    m.recirc_id = u32::MAX;
    (key.dl_type, m.dl_type) = (0x0800, u16::MAX);
    m.nw_frag = 3;
    m.vlans[0].tci = 0x1000;
    (key, mask)
}

#[test]
fn filters_are_those_that_tc_sends() {
    let (mut key, mut mask) = flow();
    let m = &mut mask.0;
    (key.dl_src, m.dl_src) = ([2, 0, 0, 0, 0, 1], [0xff; 6]);
    (key.dl_dst, m.dl_dst) = ([2, 0, 0, 0, 0, 2], [0xff; 6]);
    (key.nw_src, m.nw_src) = (0x0a00_0001, u32::MAX);
    (key.nw_dst, m.nw_dst) = (0x0a00_0000, 0xffff_ff00);
    (key.nw_tos, m.nw_tos) = (0x10, 0xfc);
    (key.nw_ttl, m.nw_ttl) = (64, 0xff);
    (key.nw_proto, m.nw_proto) = (6, 0xff);
    (key.tp_src, m.tp_src) = (1000, u16::MAX);
    (key.tp_dst, m.tp_dst) = (80, u16::MAX);
    m.tcp_flags = 7;
    let whole = |value| Masked {
        value,
        mask: u16::MAX,
    };
    let actions = [
        Action::SetEth {
            src: Masked::default(),
            dst: Masked {
                value: [2, 0, 0, 0, 0, 9],
                mask: [0xff; 6],
            },
        },
        Action::SetIpv4 {
            src: Masked::default(),
            dst: Masked::default(),
            tos: Masked::default(),
            ttl: Masked {
                value: 63,
                mask: 0xff,
            },
        },
        Action::SetL4 {
            proto: 6,
            src: Masked::default(),
            dst: whole(8080),
        },
        out(2),
    ];
    let rule = Rule::new(&key, &mask, &actions).unwrap();
    let (protocol, bytes) = options(&rule, message::SKIP_HW);
    assert_eq!(protocol, 0x0800);
    assert_eq!(canonical(&bytes), canonical(&golden("rewrite")));

    let (mut key, mut mask) = flow();
    let m = &mut mask.0;
    key.dl_type = 0x86dd;
    (key.vlans[0].tpid, m.vlans[0].tpid) = (0x8100, u16::MAX);
    (key.vlans[0].tci, m.vlans[0].tci) = (0x700a, u16::MAX);
    let address = |last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last).octets();
    (key.ipv6_src, m.ipv6_src) = (address(1), [0xff; 16]);
    key.ipv6_dst = address(0);
    m.ipv6_dst[..8].fill(0xff);
    (key.nw_proto, m.nw_proto) = (58, 0xff);
    (key.tp_src, m.tp_src) = (128, u16::MAX);
    (key.tp_dst, m.tp_dst) = (0, u16::MAX);
    let push = |tci| Action::PushVlan { tpid: 0x8100, tci };
    let actions = [Action::PopVlan, out(2), push(0xb014), out(3)];
    let rule = Rule::new(&key, &mask, &actions).unwrap();
    let (protocol, bytes) = options(&rule, 0);
    assert_eq!(protocol, 0x8100);
    assert_eq!(canonical(&bytes), canonical(&golden("tags")));

    let (mut key, mut mask) = flow();
    (key.nw_proto, mask.0.nw_proto) = (17, 0xff);
    (key.tp_dst, mask.0.tp_dst) = (53, u16::MAX);
    let drop = Rule::new(&key, &mask, &[]).unwrap();
    // The tag's action is the only one of its kind here; gact follows it in what tc sends.
    let (keys, dropped) = canonical(&options(&drop, message::SKIP_SW).1);
    let (tc_keys, tc_actions) = canonical(&golden("modify"));
    assert_eq!(keys, tc_keys);
    assert_eq!(dropped[0].get(&2), tc_actions[1].get(&2));
    (key.vlans[0].tpid, mask.0.vlans[0].tpid) = (0x8100, u16::MAX);
    (key.vlans[0].tci, mask.0.vlans[0].tci) = (0x1005, u16::MAX);
    let rule = Rule::new(&key, &mask, &[Action::PopVlan, push(0x3007), out(2)]).unwrap();
    let (_, actions) = canonical(&options(&rule, 0).1);
    assert_eq!(actions[0], tc_actions[0]);

    let (key, mask) = flow();
    let rule = Rule::new(&key, &mask, &[]).unwrap();
    assert_eq!(canonical(&options(&rule, 0).1), canonical(&golden("drop")));

    let (mut key, mut mask) = flow();
    (key.nw_src, mask.0.nw_src) = (0x0a00_0001, u32::MAX);
    (key.nw_dst, mask.0.nw_dst) = (0x0a00_0009, u32::MAX);
    (key.nw_proto, mask.0.nw_proto) = (17, 0xff);
    let dst = Action::SetIpv4 {
        src: Masked::default(),
        dst: whole_address(0x0a00_0002),
        tos: Masked::default(),
        ttl: Masked::default(),
    };
    let src = Action::SetIpv4 {
        src: whole_address(0x0a00_0008),
        dst: Masked::default(),
        tos: Masked::default(),
        ttl: Masked::default(),
    };
    let rule = Rule::new(&key, &mask, &[dst, src, out(2)]).unwrap();
    assert_eq!(canonical(&options(&rule, 0).1), canonical(&golden("nat")));
}

#[test]
fn rarer_filters_are_those_that_tc_sends() {
    let check = |name: &str, protocol, key: &FlowKey, mask: &FlowMask, actions: &[Action]| {
        let (of, bytes) = options(&Rule::new(key, mask, actions).unwrap(), 0);
        assert_eq!(
            (of, canonical(&bytes)),
            (protocol, canonical(&golden(name))),
            "{name}"
        );
    };
    let (mut key, mut mask) = flow();
    let m = &mut mask.0;
    (key.dl_type, m.nw_frag) = (0x0806, 0);
    (key.nw_src, m.nw_src) = (0x0a09_0001, u32::MAX);
    (key.nw_dst, m.nw_dst) = (0x0a09_0000, 0xffff_ff00);
    (key.nw_proto, m.nw_proto) = (2, 0xff);
    (key.arp_sha, m.arp_sha) = ([2, 0, 0, 0, 0, 1], [0xff; 6]);
    (key.arp_tha, m.arp_tha) = ([2, 0, 0, 0, 0, 2], [0xff; 6]);
    check("arp", 0x0806, &key, &mask, &[out(2)]);

    let (mut key, mut mask) = flow();
    for (tag, (tpid, tci)) in [(0x88a8, 0x1ffe), (0x8100, 0xb064)].into_iter().enumerate() {
        (key.vlans[tag].tpid, mask.0.vlans[tag].tpid) = (tpid, u16::MAX);
        (key.vlans[tag].tci, mask.0.vlans[tag].tci) = (tci, u16::MAX);
    }
    check("qinq", 0x88a8, &key, &mask, &[out(2)]);
    let pop = Rule::new(&key, &mask, &[Action::PopVlan, out(2)]).unwrap();
    let actions = actions::of(&pop, COOKIE, false, None, |_| Some(2));
    assert_eq!(actions.err(), Some(Why::Vlan), "one tag of two");

    let (mut key, mut mask) = flow();
    (key.nw_proto, mask.0.nw_proto) = (17, 0xff);
    key.nw_frag = 3;
    check("fragment", 0x0800, &key, &mask, &[out(2)]);
    key.nw_frag = 1;
    check("first", 0x0800, &key, &mask, &[out(2)]);
    let port = Action::SetL4 {
        proto: 17,
        src: Masked {
            value: 9,
            mask: u16::MAX,
        },
        dst: Masked::default(),
    };
    let rule = Rule::new(&key, &mask, &[port, out(2)]).unwrap();
    let actions = actions::of(&rule, COOKIE, false, None, |_| Some(2));
    assert_eq!(
        actions.err(),
        Some(Why::Fragments),
        "its checksum covers all fragments"
    );

    let (mut key, mut mask) = flow();
    key.dl_type = 0x86dd;
    (key.nw_proto, mask.0.nw_proto) = (58, 0xff);
    let dst = Action::SetIpv6 {
        src: Masked::default(),
        dst: Masked {
            value: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9).octets(),
            mask: [0xff; 16],
        },
        label: Masked::default(),
        tclass: Masked::default(),
        hlimit: Masked::default(),
    };
    check("icmp6", 0x86dd, &key, &mask, &[dst, out(2)]);

    let (mut key, mut mask) = flow();
    (key.nw_proto, mask.0.nw_proto) = (6, 0xff);
    (key.tcp_flags, mask.0.tcp_flags) = (0x002, 0x012);
    check("flags", 0x0800, &key, &mask, &[out(2)]);
}

fn whole_address(value: u32) -> Masked<u32> {
    Masked {
        value,
        mask: u32::MAX,
    }
}

#[test]
fn what_flower_cannot_match_is_refused() {
    let (key, mask) = flow();
    let with = |f: &dyn Fn(&mut FlowKey, &mut FlowKey)| {
        let (mut k, mut m) = (key, mask);
        f(&mut k, &mut m.0);
        let rule = Rule::new(&k, &m, &[out(2)]).unwrap();
        Keys::of(&rule).map(|keys| keys.protocol)
    };
    assert_eq!(with(&|_, _| ()), Ok(0x0800));
    assert_eq!(with(&|_, m| m.dl_type = 0), Err(Why::Protocol));
    let v6 = |k: &mut FlowKey| k.dl_type = 0x86dd;
    assert_eq!(with(&|k, m| (v6(k), m.ipv6_label = 0xf).0), Err(Why::Match));
    // Conditions that only neighbour discovery fails.
    assert_eq!(with(&|k, m| (v6(k), m.nd_target = [1; 16]).0), Err(Why::Match));
    let icmp6 = |k: &mut FlowKey, m: &mut FlowKey, kind| {
        v6(k);
        m.nd_target = [1; 16];
        (k.nw_proto, m.nw_proto) = (58, 0xff);
        (k.tp_src, m.tp_src) = (kind, u16::MAX);
    };
    assert_eq!(with(&|k, m| icmp6(k, m, 128)), Ok(0x86dd));
    assert_eq!(with(&|k, m| icmp6(k, m, 135)), Err(Why::Match));
    // Flags of TCP, where the protocol is open.
    assert_eq!(with(&|_, m| m.tcp_flags = 2), Err(Why::Match));
    // Parts of a tag.
    let tag = |k: &mut FlowKey, m: &mut FlowKey, bits| {
        (k.vlans[0].tpid, m.vlans[0].tpid) = (0x8100, u16::MAX);
        (k.vlans[0].tci, m.vlans[0].tci) = (0x1001 & bits, bits);
    };
    assert_eq!(with(&|k, m| tag(k, m, 0x1fff)), Ok(0x8100));
    assert_eq!(with(&|k, m| tag(k, m, 0x1000)), Ok(0x8100));
    assert_eq!(with(&|k, m| tag(k, m, 0x1001)), Err(Why::Partly));
}

#[test]
fn what_tc_cannot_do_is_refused() {
    let (key, mut mask) = flow();
    mask.0.nw_dst = u32::MAX;
    let of = |actions: &[Action]| {
        let rule = Rule::new(&key, &mask, actions).unwrap();
        let device = |no: PortNo| (no.0 == 2).then_some(2);
        actions::of(&rule, COOKIE, false, None, device).map(|all| all.len())
    };
    assert_eq!(of(&[out(2)]), Ok(1));
    assert_eq!(of(&[out(4)]), Err(Why::OutPort));
    let address = Action::SetIpv4 {
        src: Masked::default(),
        dst: whole_address(1),
        tos: Masked::default(),
        ttl: Masked::default(),
    };
    // The protocol is open: ICMP errors have addresses inside.
    assert!(matches!(of(&[address, out(2)]), Err(Why::Action(_))));
    assert!(matches!(of(&[Action::Recirc(7)]), Err(Why::Action(_))));
    let last = |ops: Vec<TcAction>| actions::finish(ops, COOKIE).unwrap().pop().unwrap();
    let drop = last(Vec::new());
    let without_number = |mut action: TcAction| {
        action.tab = 0;
        action
            .attributes
            .retain(|a| !matches!(a, TcActionAttribute::Cookie(_)));
        action
    };
    let drop = without_number(drop);
    // The host's stack would get what passes the last action.
    let rewrite = || attrs::vlan_pop();
    assert_eq!(without_number(last(vec![rewrite()])), drop);
    for ends in [actions::redirect(2), attrs::gact(attrs::TC_ACT_OK)] {
        let found = without_number(last(vec![rewrite(), ends.clone()]));
        assert_eq!(found, without_number(ends.clone()));
        assert_eq!(without_number(last(vec![ends, rewrite()])), drop);
    }
    let many: Vec<Action> = (0..33).map(|_| out(2)).collect();
    assert_eq!(of(&many), Err(Why::TooManyActions));
}

#[test]
fn a_reply_is_read() {
    // The kernel's report of a filter: the request, with statistics at its action.
    let (key, mask) = flow();
    let rule = Rule::new(&key, &mask, &[]).unwrap();
    let keys = Keys::of(&rule).unwrap();
    let actions = actions::of(&rule, COOKIE, false, None, |_| None).unwrap();
    let at = filter_id(keys.protocol);
    let m = at.filter(keys.keys, actions, message::SKIP_HW);
    let mut bytes = vec![0; m.buffer_len()];
    m.emit(&mut bytes);
    let reported = message::read(&bytes).unwrap();
    assert_eq!((reported.filter_id, reported.cookie), (at, Some(COOKIE)));
    assert!(!reported.in_hw && reported.counted == message::Counted::default());
    for n in 0..bytes.len() {
        // A truncated message is no filter, or one with fewer attributes.
        let _ = message::read(&bytes[..n]);
    }
}

#[test]
fn policies_have_open_vswitchs_names() {
    assert_eq!(TcPolicy::parse("none"), Some(TcPolicy::None));
    assert_eq!(TcPolicy::parse("skip_sw"), Some(TcPolicy::SkipSw));
    assert_eq!(TcPolicy::parse("skip_hw"), Some(TcPolicy::SkipHw));
    assert_eq!(TcPolicy::parse("SKIP_HW"), None);
}

/// On a kernel without flower the reason is one line; on another one, the back end starts.
#[test]
fn a_kernel_without_flower_has_a_reason() {
    match Tc::start(0x7e57, TcPolicy::None, false) {
        Ok(tc) => assert_eq!(tc.adopted(), 0),
        Err(why) => assert!(!why.is_empty() && !why.contains('\n'), "{why}"),
    }
}
