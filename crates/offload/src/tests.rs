//! A back end that is a table, beside a plain model. After any sequence of reports the table has the flows of
//! the model, and each packet is counted once.

use crate::{Backend, Ct, Explained, Handle, Offload, Op, Policy, PortLink, Rule, Stack, Why};
use heddle_conntrack::CtAction;
use heddle_datapath_api::{Action, FlowCounts, FlowId, FlowObserver, Masked, ObservedFlow, PortNo};
use heddle_flow::{FlowKey, FlowMask};
use heddle_tunnel::outer::SOURCE_PORTS;
use heddle_tunnel::{Encap, OptionTable, Outer, TunnelKind, TunnelPop, TunnelPush};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// Flows by handle, with what they have counted.
#[derive(Default)]
struct Table {
    flows: BTreeMap<Handle, (Rule, u64)>,
    ports: BTreeSet<u32>,
    capacity: usize,
    /// Packets that come while a flow is changed or taken out.
    late: u64,
    /// Why it refuses each flow.
    refuses: Option<Why>,
    /// Flows that are to be given to it once more.
    again: Vec<Handle>,
}

#[derive(Clone, Default)]
struct Double(Arc<Mutex<Table>>);

fn counts(packets: u64) -> FlowCounts {
    FlowCounts {
        packets,
        bytes: packets * 60,
        used_ms: 1,
        tcp_flags: 0,
    }
}

impl Backend for Double {
    fn name(&self) -> &'static str {
        "table"
    }
    fn capacity(&self) -> usize {
        self.0.lock().capacity
    }
    fn install(&mut self, at: Handle, rule: &Rule) -> Result<(), Why> {
        let mut t = self.0.lock();
        if !t.ports.contains(&rule.in_port.0) {
            return Err(Why::InPort);
        }
        if rule.outputs().any(|no| !t.ports.contains(&no.0)) {
            return Err(Why::OutPort);
        }
        if let Some(why) = t.refuses {
            return Err(why);
        }
        assert!(t.flows.len() < t.capacity, "more than it takes");
        assert!(t.flows.insert(at, (rule.clone(), 0)).is_none(), "installed twice");
        Ok(())
    }
    fn change(&mut self, at: Handle, rule: &Rule) -> (FlowCounts, Result<(), Why>) {
        let n = self.remove(at);
        (n, self.install(at, rule))
    }
    fn again(&mut self) -> Vec<Handle> {
        std::mem::take(&mut self.0.lock().again)
    }
    fn remove(&mut self, at: Handle) -> FlowCounts {
        let mut t = self.0.lock();
        let (_, n) = t.flows.remove(&at).expect("it is installed");
        counts(n + t.late)
    }
    fn counters(&mut self, _now_ms: u64, f: &mut dyn FnMut(Handle, FlowCounts)) {
        let mut t = self.0.lock();
        for (at, (_, n)) in &mut t.flows {
            if *n > 0 {
                f(*at, counts(std::mem::take(n)));
            }
        }
    }
    fn set_ports(&mut self, ports: &[PortLink]) -> Vec<PortNo> {
        let new: BTreeSet<u32> = ports.iter().map(|p| p.no.0).collect();
        let mut t = self.0.lock();
        let old = std::mem::replace(&mut t.ports, new.clone());
        old.symmetric_difference(&new).map(|no| PortNo(*no)).collect()
    }
    fn stats(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
}

fn link(no: u32) -> PortLink {
    PortLink {
        no: PortNo(no),
        name: format!("p{no}"),
        ifindex: no,
        internal: false,
        mtu: 1500,
    }
}

/// A flow of TCP over IPv4 from a source port.
fn flow(sport: u16, in_port: u32) -> (FlowKey, FlowMask) {
    let (mut key, mut mask) = (FlowKey::default(), FlowMask::default());
    let m = &mut mask.0;
    (key.in_port, m.in_port) = (in_port, u32::MAX);
    m.recirc_id = u32::MAX;
    (key.dl_type, m.dl_type) = (0x0800, u16::MAX);
    (key.nw_proto, m.nw_proto) = (6, u8::MAX);
    m.nw_frag = 3;
    (key.tp_src, m.tp_src) = (sport, u16::MAX);
    (key, mask)
}

/// Calls an observer.
fn observed<T>(
    id: u64,
    sport: u16,
    in_port: u32,
    actions: &[Action],
    f: impl FnOnce(&ObservedFlow<'_>) -> T,
) -> T {
    let (key, mask) = flow(sport, in_port);
    f(&ObservedFlow {
        id: FlowId(id),
        key: &key,
        mask: &mask,
        actions: &Arc::from(actions),
        credits: &[],
    })
}

#[derive(Clone, Debug)]
enum Step {
    Added(u16, u32, u32),
    Changed(usize, u32),
    Gone(usize),
    /// Packets arrive for all that is installed.
    Forward,
    Collect,
    Ports(Vec<u32>),
    /// A pass ends; before it, workers had counted for the flow at this place.
    Pass(usize, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        5 => (0_u16..50, 1_u32..4, 1_u32..5).prop_map(|(s, i, o)| Step::Added(s, i, o)),
        4 => (any::<usize>(), 1_u32..5).prop_map(|(at, o)| Step::Changed(at, o)),
        3 => any::<usize>().prop_map(Step::Gone),
        4 => Just(Step::Forward),
        2 => Just(Step::Collect),
        2 => prop::collection::vec(1_u32..5, 0..5).prop_map(Step::Ports),
        3 => (any::<usize>(), 0_u64..100).prop_map(|(at, n)| Step::Pass(at, n)),
    ];
    prop::collection::vec(one, 1..80)
}

/// An output; that by port 4 comes with an action that only workers have.
fn actions(out: u32) -> Vec<Action> {
    match out {
        4 => vec![Action::PopEth, Action::Output(PortNo(out))],
        _ => vec![Action::Output(PortNo(out))],
    }
}

proptest! {
    #[test]
    fn the_table_has_what_the_model_says(steps in steps(), capacity in 1_usize..6) {
        let double = Double::default();
        (double.0.lock().capacity, double.0.lock().late) = (capacity, 1);
        let mut offload = Offload::new(Box::new(double.clone()), None, Policy::default(), || 1);
        let mut ports: BTreeSet<u32> = (1..4).collect();
        offload.set_ports(&ports.iter().map(|no| link(*no)).collect::<Vec<_>>());
        // The model: present flows by id, and the packets that were forwarded and given back.
        let mut flows: BTreeMap<u64, (u16, u32, u32)> = BTreeMap::new();
        let (mut next, mut forwarded, mut given) = (0, 0, 0);
        for step in steps {
            // Packets that arrive late are counted when a flow is changed in place, or taken out.
            let before = offload.stats().1;
            match step.clone() {
                Step::Added(sport, in_port, out) => {
                    next += 1;
                    observed(next, sport, in_port, &actions(out), |f| offload.added(f));
                    flows.insert(next, (sport, in_port, out));
                }
                Step::Changed(at, out) if !flows.is_empty() => {
                    let at = at % flows.len();
                    let (id, f) = flows.iter_mut().nth(at).unwrap();
                    f.2 = out;
                    given += observed(*id, f.0, f.1, &actions(out), |f| offload.changed(f)).packets;
                }
                Step::Gone(at) if !flows.is_empty() => {
                    let id = *flows.keys().nth(at % flows.len()).unwrap();
                    flows.remove(&id);
                    given += offload.gone(FlowId(id)).packets;
                }
                Step::Changed(..) | Step::Gone(_) => {}
                Step::Forward => {
                    let mut t = double.0.lock();
                    t.flows.values_mut().for_each(|(_, n)| *n += 5);
                    forwarded += 5 * t.flows.len() as u64;
                }
                Step::Collect => offload.counters(&mut |_, n| given += n.packets),
                Step::Ports(new) => {
                    ports = new.into_iter().collect();
                    offload.set_ports(&ports.iter().map(|no| link(*no)).collect::<Vec<_>>());
                }
                Step::Pass(at, n) => {
                    if let Some((id, _)) = flows.iter().nth(at % flows.len().max(1)) {
                        offload.seen(FlowId(*id), n);
                    }
                    offload.pass_ends();
                }
            }
            let after = offload.stats().1;
            let in_place = matches!(step, Step::Changed(..))
                && after.changes > before.changes && after.removals > before.removals;
            forwarded += (after.changes - before.changes) + (after.removals - before.removals)
                - u64::from(in_place);
            // Each flow that can be offloaded, and has room, is in the table, with its own actions.
            let can = |f: &(u16, u32, u32)| f.2 != 4 && ports.contains(&f.1) && ports.contains(&f.2);
            let able: Vec<_> = flows.iter().filter(|(_, f)| can(f)).collect();
            let t = double.0.lock();
            let mut places: HashMap<(u16, u32, u32), usize> = HashMap::new();
            for (rule, _) in t.flows.values() {
                let out: Vec<PortNo> = rule.outputs().collect();
                *places.entry((rule.key.tp_src, rule.in_port.0, out[0].0)).or_default() += 1;
            }
            for (id, f) in &flows {
                let is_in = matches!(offload.explain(FlowId(*id)), Explained::Offloaded(_));
                prop_assert!(!is_in || can(f));
                if is_in {
                    let n = places.get_mut(f);
                    prop_assert!(n.as_ref().is_some_and(|n| **n > 0), "{f:?} is not as it was told");
                    *n.unwrap() -= 1;
                }
            }
            prop_assert!(places.values().all(|n| *n == 0), "the table has what nobody told");
            prop_assert!(t.flows.len() <= capacity.min(able.len()));
            if matches!(step, Step::Pass(..)) {
                prop_assert_eq!(t.flows.len(), capacity.min(able.len()), "room is used");
            }
        }
        offload.counters(&mut |_, n| given += n.packets);
        prop_assert_eq!(given, forwarded);
    }
}

#[test]
fn a_flow_without_a_reply_is_installed_at_the_end_of_the_pass_and_others_are_not() {
    const TIMED_OUT: i32 = 110;
    let double = Double::default();
    double.0.lock().capacity = 10;
    let mut offload = Offload::new(Box::new(double.clone()), None, Policy::default(), || 1);
    offload.set_ports(&[link(1), link(2)]);
    let errors = [(1, TIMED_OUT), (2, 95)];
    for (id, errno) in errors {
        double.0.lock().refuses = Some(Why::Refused(errno));
        observed(id, u16::try_from(id).unwrap(), 1, &actions(2), |f| {
            offload.added(f)
        });
        assert_eq!(offload.explain(FlowId(id)), Explained::Waits(Why::Refused(errno)));
    }
    // Still no reply.
    double.0.lock().refuses = Some(Why::Refused(TIMED_OUT));
    offload.pass_ends();
    assert_eq!(offload.stats().1.offloaded, 0);
    double.0.lock().refuses = None;
    offload.pass_ends();
    assert_eq!(offload.explain(FlowId(1)), Explained::Offloaded("table"));
    assert_eq!(offload.explain(FlowId(2)), Explained::Waits(Why::Refused(95)));
}

#[test]
fn a_flow_that_the_back_end_wants_again_keeps_its_counts_and_may_be_refused_then() {
    let double = Double::default();
    (double.0.lock().capacity, double.0.lock().late) = (10, 1);
    let mut offload = Offload::new(Box::new(double.clone()), None, Policy::default(), || 1);
    offload.set_ports(&[link(1), link(2)]);
    observed(1, 1, 1, &actions(2), |f| offload.added(f));
    for (refuses, state) in [
        (None, Explained::Offloaded("table")),
        (Some(Why::Refused(95)), Explained::Waits(Why::Refused(95))),
    ] {
        let at = *double.0.lock().flows.keys().next().unwrap();
        (double.0.lock().again, double.0.lock().refuses) = (vec![at], refuses);
        offload.pass_ends();
        assert_eq!(offload.explain(FlowId(1)), state);
        let mut counted = 0;
        offload.counters(&mut |_, n| counted += n.packets);
        assert_eq!(counted, 1);
    }
    let stats = offload.stats().1;
    assert_eq!(
        (stats.installs, stats.changes, stats.removals, stats.offloaded),
        (1, 0, 1, 0)
    );
}

fn rule(key: &FlowKey, mask: &FlowMask, actions: &[Action]) -> Result<Rule, Why> {
    Rule::new(key, mask, actions)
}

#[test]
fn what_rules_have_no_word_for_stays_up() {
    let out = [Action::Output(PortNo(2))];
    let (key, mask) = flow(1, 1);
    assert!(rule(&key, &mask, &out).is_ok());
    let made = |f: &dyn Fn(&mut FlowKey, &mut FlowKey)| {
        let (mut k, mut m) = (key, mask);
        f(&mut k, &mut m.0);
        rule(&k, &m, &out)
    };
    // No back end can have it, or only tc.
    let with = |f: &dyn Fn(&mut FlowKey, &mut FlowKey)| made(f).map_or_else(Some, |r| r.only_tc());
    let nobody = |f: &dyn Fn(&mut FlowKey, &mut FlowKey)| made(f).err();
    assert_eq!(with(&|k, _| k.recirc_id = 3), None);
    let behind = |k: &mut FlowKey| (k.recirc_id, k.ct_state) = (3, 0x22);
    assert_eq!(with(&|k, m| (behind(k), m.ct_state = 0xff).1), None);
    let orig = |k: &mut FlowKey, m: &mut FlowKey| (behind(k), m.ct_nw_src = 1).1;
    assert_eq!(
        with(&orig),
        Some(Why::Connection),
        "even if that is zero in this packet"
    );
    assert_eq!(
        with(&|_, m| m.ct_state = 2),
        None,
        "a fresh packet has no connection"
    );
    assert_eq!(with(&|k, m| (k.tun_id, m.tun_id) = (7, 7)), Some(Why::Match));
    assert_eq!(
        with(&|k, m| (k.nw_frag, m.nw_frag) = (1, 3)),
        Some(Why::Fragments)
    );
    assert_eq!(nobody(&|k, m| (k.nw_frag, m.nw_frag) = (1, 3)), None);
    assert_eq!(nobody(&|k, m| (k.nw_frag, m.nw_frag) = (3, 1)), Some(Why::Match));
    assert_eq!(with(&|_, m| m.tcp_flags = 0x010), Some(Why::TcpFlags));
    assert_eq!(with(&|_, m| m.tcp_flags = 0x002), None, "SYN comes up then");
    let mut flagged = mask;
    flagged.0.tcp_flags = 0x002;
    let all = |mask: &FlowMask| rule(&key, mask, &out).map(|r| r.all_flags);
    assert_eq!((all(&mask), all(&flagged)), (Ok(true), Ok(false)));
    assert_eq!(
        with(&|k, m| (k.tcp_flags, m.tcp_flags) = (2, 2)),
        Some(Why::TcpFlags)
    );
    assert_eq!(with(&|k, _| k.nw_proto = 132), Some(Why::Protocol));
    assert_eq!(nobody(&|k, _| k.nw_proto = 132), None);
    assert_eq!(with(&|k, _| k.dl_type = 0x0806), Some(Why::Protocol));
    assert_eq!(nobody(&|k, _| k.dl_type = 0x0806), None);
    assert_eq!(nobody(&|k, _| k.dl_type = 0x8847), Some(Why::Protocol));
    assert_eq!(with(&|_, m| m.dl_type = 0), Some(Why::Match), "ports of what?");
    let tag = |k: &mut FlowKey, m: &mut FlowKey, tpid| {
        (k.vlans[0].tpid, m.vlans[0].tpid) = (tpid, u16::MAX);
        (k.vlans[0].tci, m.vlans[0].tci) = (0x1005, u16::MAX);
    };
    assert_eq!(with(&|k, m| tag(k, m, 0x8100)), None);
    assert_eq!(with(&|k, m| tag(k, m, 0x88a8)), Some(Why::Vlan));
    assert_eq!(nobody(&|k, m| tag(k, m, 0x88a8)), None);
    assert_eq!(nobody(&|k, m| tag(k, m, 0x9100)), Some(Why::Vlan));
}

#[test]
fn actions_become_steps() {
    let (mut key, mut mask) = flow(1, 1);
    (key.nw_ttl, mask.0.nw_ttl) = (64, u8::MAX);
    let out = || Action::Output(PortNo(2));
    let ttl = |value| Action::SetIpv4 {
        src: Masked::default(),
        dst: Masked::default(),
        tos: Masked::default(),
        ttl: Masked { value, mask: 255 },
    };
    let eth = |mask| Action::SetEth {
        src: Masked::default(),
        dst: Masked {
            value: [2, 0, 0, 0, 0, 9],
            mask,
        },
    };
    let ops = |actions: &[Action], mask: &FlowMask| rule(&key, mask, actions).map(|r| r.ops.to_vec());
    let mac = [2, 0, 0, 0, 0, 9];
    assert_eq!(
        ops(&[eth([255; 6]), ttl(63), out(), ttl(62)], &mask),
        Ok(vec![Op::EthDst(mac), Op::Ttl(63), Op::Output(PortNo(2))]),
        "nobody sees what comes after the last output"
    );
    assert_eq!(ops(&[], &mask), Ok(vec![]));
    // Part of a field: only where the rest is known.
    let part = [0, 0, 0, 0, 0, 255];
    assert_eq!(ops(&[eth(part), out()], &mask), Err(Why::Partly));
    let mut knows = mask;
    knows.0.dl_dst = [255; 6];
    let known = ops(&[eth(part), out()], &knows);
    assert_eq!(
        known,
        Ok(vec![Op::EthDst([0, 0, 0, 0, 0, 9]), Op::Output(PortNo(2))])
    );
    // Tags: how many there are must be known.
    let push = Action::PushVlan {
        tpid: 0x8100,
        tci: 0x1007,
    };
    assert_eq!(ops(&[push.clone(), out()], &mask), Err(Why::Vlan));
    let mut untagged = mask;
    untagged.0.vlans[0].tci = 0x1000;
    assert_eq!(
        ops(&[push.clone(), out(), Action::PopVlan, out()], &untagged).map(|o| o.len()),
        Ok(4)
    );
    assert_eq!(ops(&[push.clone(), push, out()], &untagged), Err(Why::Vlan));
    // Tracking: actions behind it are kept, the mark only if it would be written.
    let ct = |commit, force| {
        Action::Ct(Arc::new(CtAction {
            commit,
            force,
            zone: 5,
            mark: Some((0xff, 0x0f)),
            ..CtAction::default()
        }))
    };
    let step = |mark| {
        Op::Ct(Ct {
            zone: 5,
            nat: false,
            mark,
        })
    };
    assert_eq!(
        ops(&[ct(false, false), Action::Recirc(7)], &mask),
        Ok(vec![step(None), Op::Recirc(7)])
    );
    assert_eq!(
        ops(&[out(), ct(true, false)], &mask),
        Ok(vec![Op::Output(PortNo(2)), step(Some((0xf, 0xf)))])
    );
    assert_eq!(
        ops(&[ct(true, true), out()], &mask),
        Err(Why::Action("ct(force)"))
    );
}

/// A GSO packet may lack an outer checksum over IPv4, and over IPv6 if the tunnel's options allow it.
#[test]
fn checksums_of_trains_are_left_out_where_that_is_allowed() {
    let (key, mask) = flow(7, 1);
    let may = |push: TunnelPush| {
        let actions = [Action::TunnelPush(Arc::new(push)), Action::Output(PortNo(2))];
        Rule::new(&key, &mask, &actions).unwrap().may_lack_csum()
    };
    let over_ipv6 = || {
        let [src, dst] = [1, 2].map(|last| std::net::Ipv6Addr::from(last).into());
        push_between(src, dst, true, false)
    };
    assert!(may(push(true, true)));
    assert!(!may(over_ipv6()));
    let mut optional = over_ipv6();
    optional.csum_optional = true;
    assert!(may(optional));
}

/// Headers of VXLAN.
fn push(csum: bool, df: bool) -> TunnelPush {
    let [src, dst] = [1, 2].map(|last| std::net::Ipv4Addr::new(10, 5, 0, last).into());
    push_between(src, dst, csum, df)
}

fn push_between(src: IpAddr, dst: IpAddr, csum: bool, df: bool) -> TunnelPush {
    let encap = Encap::Vxlan {
        port: 4789,
        vni: 7,
        gbp: None,
        gpe: None,
    };
    let outer = Outer {
        eth_src: [2; 6],
        eth_dst: [4; 6],
        src,
        dst,
        tos: 0,
        ttl: 64,
        df,
        label: 0,
        csum,
        source_ports: SOURCE_PORTS,
        encap,
        tunnel_port: 5,
        out_port: 6,
        mtu: 0,
        numbers: Default::default(),
    };
    outer.build().unwrap()
}

#[test]
fn tunnels_are_said_or_it_is_said_why_not() {
    let (key, mask) = flow(7, 1);
    let rule = |actions: &[Action]| Rule::new(&key, &mask, actions);
    let into = |csum, df| Action::TunnelPush(Arc::new(push(csum, df)));
    let out = Action::Output(PortNo(2));
    // On the packet, or on a copy that nothing follows.
    for (actions, csum) in [
        (vec![into(false, true), out.clone()], false),
        (vec![into(true, true), out.clone()], true),
        (vec![Action::Clone(vec![into(false, true), out.clone()])], false),
    ] {
        let rule = rule(&actions).unwrap();
        assert_eq!(*rule.ops, [Op::Encap, Op::Output(PortNo(2))]);
        assert_eq!(rule.outer.as_deref(), Some(&push(csum, true)));
        assert!(!rule.outer_may_fragment());
    }
    // tc takes it, and eBPF does not.
    assert!(
        rule(&[into(false, false), out.clone()])
            .unwrap()
            .outer_may_fragment()
    );
    // The switch itself replies to senders of longer frames.
    let compared = Action::CheckPktLen {
        len: 1364,
        greater: vec![Action::TooBig { frame_len: 1364 }, Action::Recirc(9)],
        less_equal: vec![into(false, true), out.clone()],
    };
    let shorter = rule(std::slice::from_ref(&compared)).unwrap();
    assert_eq!(*shorter.ops, [Op::Encap, Op::Output(PortNo(2))]);
    assert_eq!(shorter.max_frame, Some(1364));
    assert!(rule(&[compared, out.clone()]).is_err());
    for actions in [
        vec![out.clone(), into(false, true), out.clone()],
        vec![into(false, true), out.clone(), out.clone()],
        vec![Action::Clone(vec![into(false, true), out.clone()]), out.clone()],
        vec![into(false, true), into(false, true), out.clone()],
    ] {
        let why = rule(&actions).unwrap_err();
        let on_a_copy = matches!(why, Why::Action("clone"));
        assert!(matches!(why, Why::Tunnel(_)) || on_a_copy, "{actions:?}: {why:?}");
    }
    // A flow that ends a tunnel must match on untagged packets, and has no other step.
    let pop = Action::TunnelPop(Arc::new(TunnelPop {
        kind: TunnelKind::Vxlan,
        port: 5,
        options: OptionTable::default(),
    }));
    assert!(matches!(rule(std::slice::from_ref(&pop)), Err(Why::Tunnel(_))));
    let mut untagged = mask;
    untagged.0.vlans[0].tci = u16::MAX;
    let ends = Rule::new(&key, &untagged, std::slice::from_ref(&pop)).unwrap();
    assert!(matches!(*ends.ops, [Op::Decap(d)] if d.port == PortNo(5) && !d.geneve && d.option.is_none()));
    assert!(Rule::new(&key, &untagged, &[out.clone(), pop]).is_err());
    // A packet that came out of a tunnel: flags that a recognised packet has not, and the tunnel beside the
    // rest.
    let (mut key, mut mask) = (key, mask);
    (key.tun_src, key.tun_dst, key.tun_id, key.tun_flags) = (1, 2, 7, 8);
    (mask.0.tun_src, mask.0.tun_dst, mask.0.tun_id, mask.0.tun_flags) =
        (u32::MAX, u32::MAX, u64::MAX, u16::MAX);
    let inside = Rule::new(&key, &mask, std::slice::from_ref(&out)).unwrap();
    assert!(inside.tunnel && inside.key.tun_dst[..5] == [0, 0, 0, 2, 0] && inside.mask.tun_id == u32::MAX);
    // Families differ though their addresses begin with the same bytes.
    let (mut key6, mut mask6) = (key, mask);
    (key6.tun_src, key6.tun_dst) = (0, 0);
    (key6.tun_ipv6_src[3], key6.tun_ipv6_dst[3]) = (1, 2);
    (mask6.0.tun_ipv6_src, mask6.0.tun_ipv6_dst) = ([0xff; 16], [0xff; 16]);
    let inside6 = Rule::new(&key6, &mask6, std::slice::from_ref(&out)).unwrap();
    assert_eq!(
        (inside6.key.tun_src, inside6.key.tun_dst),
        (inside.key.tun_src, inside.key.tun_dst)
    );
    assert_eq!(inside6.mask.tun_dst, [0xff; 16]);
    assert_eq!(inside.mask.tun_dst[4..], [0; 12]);
    assert_eq!(
        [
            inside.key.tun_flags & 4,
            inside6.key.tun_flags & inside6.mask.tun_flags & 4
        ],
        [0, 4]
    );
    assert_eq!(inside.mask.tun_flags & 4, 4);
    let again = [into(false, true), out.clone()];
    assert!(matches!(Rule::new(&key, &mask, &again), Err(Why::Tunnel(_))));
    key.tun_flags = 1;
    assert!(matches!(
        Rule::new(&key, &mask, std::slice::from_ref(&out)),
        Err(Why::Tunnel(_))
    ));
    (key.tun_flags, key.tun_present, mask.0.tun_present) = (8, 2, 2);
    assert_eq!(Rule::new(&key, &mask, &[out]), Err(Why::Match));
}

/// A flow is in the first back end that accepts it, and its counts come from there. A change that this one
/// refuses moves the flow to the next.
#[test]
fn a_stack_offers_flows_in_order() {
    let (first, second) = (Double::default(), Double::default());
    let all: Vec<Box<dyn Backend>> = vec![Box::new(first.clone()), Box::new(second.clone())];
    let mut stack = Stack::new("both", all);
    (first.0.lock().capacity, second.0.lock().capacity) = (10, 10);
    first.0.lock().ports = [1, 2].into();
    second.0.lock().ports = [1, 2, 3].into();
    let rule = |out: u32| {
        let (key, mask) = flow(1, 1);
        Rule::new(&key, &mask, &[Action::Output(PortNo(out))]).unwrap()
    };
    let sizes = || (first.0.lock().flows.len(), second.0.lock().flows.len());
    assert_eq!(stack.install(7, &rule(2)), Ok(()));
    assert_eq!(stack.install(8, &rule(3)), Ok(()));
    assert_eq!(stack.install(9, &rule(4)), Err(Why::OutPort));
    assert_eq!(sizes(), (1, 1));
    first.0.lock().flows.values_mut().for_each(|(_, n)| *n = 5);
    second.0.lock().flows.values_mut().for_each(|(_, n)| *n = 6);
    let mut seen = Vec::new();
    stack.counters(1, &mut |at, n| seen.push((at, n.packets)));
    assert_eq!(seen, [(7, 5), (8, 6)]);
    // The first does not know the new output.
    assert_eq!(stack.change(7, &rule(3)).1, Ok(()));
    assert_eq!(sizes(), (0, 2));
    assert_eq!(stack.change(7, &rule(4)).1, Err(Why::OutPort));
    assert_eq!(sizes(), (0, 1));
    stack.remove(8);
    assert_eq!((sizes(), stack.capacity()), ((0, 0), 10));
}
