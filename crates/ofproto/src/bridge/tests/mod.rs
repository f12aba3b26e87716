//! Tests of one bridge.

pub(super) mod concurrent;
mod last_counts;
mod learned;
mod many_ports;
mod refused;

use super::*;
use crate::model::{Learned, Learner};
use heddle_flow::Match;
use heddle_openflow::message::{
    FlowMod, FlowModCommand, FlowModFlags, FlowRemovedReason, FlowStatsRequest, GROUP_ALL, GROUP_ANY,
    MpReply, MpRequest, PortMod,
};
use heddle_openflow::{Action, ErrorKind, Instruction, InstructionSet};
use heddle_sync::Clock;
use proptest::prelude::*;

struct Recorder(Mutex<Vec<Event>>);

impl EventSink for Recorder {
    fn events(&self, events: &[Event]) {
        self.0.lock().extend_from_slice(events);
    }
}

pub(super) struct Lab {
    pub(super) of: Arc<Ofproto>,
    pub(super) bridge: Arc<Bridge>,
    events: Arc<Recorder>,
}

pub(super) fn lab(config: BridgeConfig) -> Lab {
    let clock = Arc::new(Clock::default());
    clock.stop();
    let of = Ofproto::new(clock);
    let bridge = of.add_bridge("br0", config);
    let events = Arc::new(Recorder(Mutex::default()));
    let sink: Arc<dyn EventSink> = events.clone();
    bridge.subscribe(&sink);
    Lab { of, bridge, events }
}

pub(super) fn secure() -> BridgeConfig {
    BridgeConfig {
        fail_mode: FailMode::Secure,
        ..BridgeConfig::default()
    }
}

pub(super) fn nw_dst(value: u32, prefix: u32) -> Match {
    let mut m = Match::any();
    m.key.dl_type = 0x800;
    m.mask.0.dl_type = 0xffff;
    m.mask.0.nw_dst = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
    m.key.nw_dst = value;
    m.normalize();
    m
}

fn output(port: u32) -> InstructionSet {
    InstructionSet(vec![Instruction::Apply(vec![Action::Output {
        port: OfPort(port),
        max_len: 0,
    }])])
}

pub(super) fn flow_mod(command: FlowModCommand, m: Match, priority: u16, port: u32) -> FlowMod {
    FlowMod::new(command, m, priority, output(port))
}

pub(super) fn flows(b: &Bridge) -> Vec<heddle_openflow::message::FlowStats> {
    let all = FlowStatsRequest {
        match_: Match::any(),
        table_id: 0xff,
        out_port: OfPort::NONE,
        out_group: GROUP_ANY,
        cookie: 0,
        cookie_mask: 0,
        nxm: false,
    };
    match b.multipart(Version::V13, &MpRequest::Flow(Box::new(all))) {
        Ok(MpReply::Flow { flows, .. }) => flows,
        other => panic!("flows, not {other:?}"),
    }
}

impl Lab {
    pub(super) fn add(&self, fm: &FlowMod) -> Result<(), ErrorKind> {
        self.bridge.flow_mod(Version::V13, fm)
    }
    fn removed(&self) -> Vec<(u16, FlowRemovedReason)> {
        let events = self.events.0.lock();
        events
            .iter()
            .filter_map(|e| {
                if let Event::FlowRemoved(f) = e {
                    Some((f.priority, f.reason))
                } else {
                    None
                }
            })
            .collect()
    }
}

#[test]
fn standalone_starts_as_a_learning_switch_and_secure_with_nothing() {
    assert_eq!(flows(&lab(BridgeConfig::default()).bridge).len(), 1);
    assert!(flows(&lab(secure()).bridge).is_empty());
    let l = lab(secure());
    l.bridge.configure(BridgeConfig::default());
    assert_eq!(
        flows(&l.bridge).len(),
        1,
        "the fail mode changed without controllers"
    );
}

#[test]
fn fail_open_is_hidden_and_goes_again() {
    let l = lab(secure());
    l.bridge.set_fail_open(true);
    l.bridge.set_fail_open(true);
    assert!(flows(&l.bridge).is_empty());
    assert_eq!(l.bridge.tables[0].rules.len(), 1);
    l.bridge.set_fail_open(false);
    l.bridge.tick();
    assert!(l.bridge.tables[0].rules.is_empty());
}

#[test]
fn adding_twice_replaces_and_the_version_decides_about_counters() {
    let l = lab(secure());
    let fm = flow_mod(FlowModCommand::Add, nw_dst(0x0a00_0001, 32), 5, 1);
    l.add(&fm).expect("new");
    let mut stats = None;
    l.bridge.tables[0]
        .rules
        .for_each(l.bridge.current_version(), |e| {
            stats = Some(e.data.stats.counted())
        });
    stats.expect("one rule").add(3, 300, 1, 0);
    l.add(&flow_mod(FlowModCommand::Add, nw_dst(0x0a00_0001, 32), 5, 2))
        .expect("replaced");
    let now = flows(&l.bridge);
    assert_eq!((now.len(), now[0].packet_count), (1, 3));
    assert_eq!(now[0].instructions, output(2));
    l.of.clock().warp(5000);
    l.bridge.flow_mod(Version::V10, &fm).expect("replaced");
    let now = flows(&l.bridge);
    assert_eq!(now[0].packet_count, 0, "1.0 starts to count anew");
    // The new flow is as idle as the one that it replaces.
    assert_eq!(now[0].duration_sec, 0);
    assert!(now[0].idle_age.is_some_and(|s| s >= 5), "{:?}", now[0].idle_age);
}

#[test]
fn overlap_is_refused_on_request() {
    let l = lab(secure());
    l.add(&flow_mod(FlowModCommand::Add, nw_dst(0x0a00_0000, 8), 5, 1))
        .expect("new");
    let mut fm = flow_mod(FlowModCommand::Add, nw_dst(0x0a01_0000, 16), 5, 1);
    fm.flags = FlowModFlags::CHECK_OVERLAP;
    assert_eq!(l.add(&fm), Err(ErrorKind::FlowModFailedOverlap));
    fm.priority = 6;
    l.add(&fm).expect("another priority does not overlap");
    assert_eq!(flows(&l.bridge).len(), 2);
}

#[test]
fn strict_and_loose_commands_choose_as_the_specification_says() {
    let l = lab(secure());
    for (value, prefix) in [(0x0a00_0000, 8), (0x0a01_0000, 16), (0x0b00_0000, 8)] {
        l.add(&flow_mod(FlowModCommand::Add, nw_dst(value, prefix), 5, 1))
            .expect("new");
    }
    l.add(&flow_mod(FlowModCommand::Modify, nw_dst(0x0a00_0000, 8), 0, 9))
        .expect("modified");
    assert_eq!(
        flows(&l.bridge)
            .iter()
            .filter(|f| f.instructions == output(9))
            .count(),
        2
    );
    l.add(&flow_mod(
        FlowModCommand::DeleteStrict,
        nw_dst(0x0a00_0000, 8),
        4,
        0,
    ))
    .expect("nothing");
    assert_eq!(flows(&l.bridge).len(), 3);
    l.add(&flow_mod(
        FlowModCommand::DeleteStrict,
        nw_dst(0x0a00_0000, 8),
        5,
        0,
    ))
    .expect("one");
    assert_eq!(flows(&l.bridge).len(), 2);
    let mut by_port = flow_mod(FlowModCommand::Delete, Match::any(), 0, 0);
    by_port.out_port = OfPort(9);
    l.add(&by_port).expect("what outputs to 9");
    assert_eq!(flows(&l.bridge).len(), 1);
    let mut by_cookie = flow_mod(FlowModCommand::Delete, Match::any(), 0, 0);
    (by_cookie.cookie, by_cookie.cookie_mask) = (1, u64::MAX);
    l.add(&by_cookie).expect("no such cookie");
    assert_eq!(flows(&l.bridge).len(), 1);
}

#[test]
fn modification_that_finds_nothing_adds_before_1_2_only() {
    let l = lab(secure());
    let fm = flow_mod(FlowModCommand::Modify, nw_dst(1, 32), 5, 1);
    l.add(&fm).expect("nothing to do");
    assert!(flows(&l.bridge).is_empty());
    l.bridge.flow_mod(Version::V10, &fm).expect("added");
    assert_eq!(flows(&l.bridge).len(), 1);
}

/// Flows that were added within one millisecond, each in a subtable of its own.
#[test]
fn flows_are_dumped_in_the_order_in_which_they_came() {
    let l = lab(secure());
    let networks = [24, 9, 31, 16, 12, 28, 8, 20, 30, 11];
    for len in networks {
        let add = flow_mod(FlowModCommand::Add, nw_dst(0x0a00_0000, len), 7, len);
        l.bridge.flow_mod(Version::V10, &add).expect("added");
    }
    let dumped = |l: &Lab| flows(&l.bridge).into_iter().map(|f| f.match_).collect::<Vec<_>>();
    let wanted: Vec<Match> = networks.into_iter().map(|len| nw_dst(0x0a00_0000, len)).collect();
    assert_eq!(dumped(&l), wanted);
    // A modified flow keeps its position.
    let change = flow_mod(FlowModCommand::ModifyStrict, nw_dst(0x0a00_0000, 31), 7, 1);
    l.bridge.flow_mod(Version::V10, &change).expect("modified");
    assert_eq!(dumped(&l), wanted);
    // Flows of one bundle, which have the same version, are in that order, too.
    let l = lab(secure());
    let adds = networks.map(|len| flow_mod(FlowModCommand::Add, nw_dst(0x0a00_0000, len), 7, len));
    commit(&l, &adds, true).expect("committed");
    assert_eq!(dumped(&l), wanted);
}

#[test]
fn goto_must_lead_to_a_later_table() {
    let l = lab(secure());
    let mut fm = flow_mod(FlowModCommand::Add, Match::any(), 5, 1);
    fm.table_id = 3;
    for (to, ok) in [(2, false), (3, false), (4, true), (255, false)] {
        fm.instructions = InstructionSet(vec![Instruction::Goto(to)]);
        assert_eq!(l.add(&fm).is_ok(), ok, "goto {to}");
    }
}

#[test]
fn timeouts_expire_with_their_reason() {
    let l = lab(secure());
    let clock = l.of.clock().clone();
    let mut fm = flow_mod(FlowModCommand::Add, nw_dst(1, 32), 1, 1);
    fm.flags = FlowModFlags::SEND_FLOW_REM;
    fm.hard_timeout = 10;
    l.add(&fm).expect("hard");
    let mut fm = flow_mod(FlowModCommand::Add, nw_dst(2, 32), 2, 1);
    fm.flags = FlowModFlags::SEND_FLOW_REM;
    fm.idle_timeout = 5;
    l.add(&fm).expect("idle");
    clock.warp(4_999);
    assert_eq!(l.bridge.tick(), 0);
    let busy =
        l.bridge.tables[0]
            .rules
            .find_exact(l.bridge.current_version(), &select::compact(&nw_dst(2, 32)), 2);
    busy.expect("there")
        .data
        .stats
        .counted()
        .add(1, 60, clock.now_ms(), 0);
    clock.warp(4_000);
    assert_eq!(l.bridge.tick(), 0, "a packet kept it alive");
    clock.warp(1_002);
    assert_eq!(l.bridge.tick(), 2);
    let mut got = l.removed();
    got.sort_by_key(|g| g.0);
    assert_eq!(
        got,
        [
            (1, FlowRemovedReason::HardTimeout),
            (2, FlowRemovedReason::IdleTimeout)
        ]
    );
    l.bridge.tick();
    assert!(l.bridge.tables[0].rules.is_empty(), "and they were unlinked");
}

/// The count follows all flows that come and go, by packets and by controllers.
#[test]
fn a_limit_counts_the_flows_of_its_cookie() {
    let l = lab(secure());
    let learned = |n: u32| {
        let mut fm = flow_mod(FlowModCommand::ModifyStrict, nw_dst(n, 32), 5, 1);
        (fm.new_cookie, fm.modify_cookie) = (7, true);
        Arc::new(fm)
    };
    let learn = |n| l.bridge.learn(&learned(n), 3) == Learned::Yes(true);
    assert!((1..=3).all(learn) && !learn(4) && learn(2));
    let delete = |n| l.add(&flow_mod(FlowModCommand::DeleteStrict, nw_dst(n, 32), 5, 1));
    delete(1).expect("well formed");
    assert!(learn(4) && !learn(5));
    let mut other = flow_mod(FlowModCommand::Add, nw_dst(9, 32), 5, 1);
    (other.new_cookie, other.modify_cookie) = (7, true);
    delete(4).expect("well formed");
    l.add(&other).expect("by a controller");
    assert!(!learn(5));
    // A bundle that fails at its end leaves the count as it was.
    let failing = vec![
        flow_mod(FlowModCommand::DeleteStrict, nw_dst(9, 32), 5, 1),
        FlowMod {
            table_id: 0xff,
            ..flow_mod(FlowModCommand::Add, nw_dst(1, 32), 5, 1)
        },
    ];
    commit(&l, &failing, false).expect_err("no such table");
    assert!(!learn(5));
    l.bridge.flush_flows();
    assert!((1..=3).all(learn) && !learn(4));
}

#[test]
fn a_full_table_refuses_or_evicts() {
    let l = lab(secure());
    let limit = |evict| {
        BTreeMap::from([(
            0,
            TableConfig {
                flow_limit: Some(2),
                evict,
                name: None,
                groups: Vec::new(),
                prefixes: None,
            },
        )])
    };
    l.bridge.configure_tables(limit(false));
    for n in 1..=3u16 {
        let mut fm = flow_mod(FlowModCommand::Add, nw_dst(n.into(), 32), n, 1);
        (fm.hard_timeout, fm.importance, fm.flags) = (100, 10 - n, FlowModFlags::SEND_FLOW_REM);
        let want = if n == 3 {
            Err(ErrorKind::FlowModFailedTableFull)
        } else {
            Ok(())
        };
        assert_eq!(l.add(&fm), want);
    }
    l.bridge.configure_tables(limit(true));
    l.add(&flow_mod(FlowModCommand::Add, nw_dst(4, 32), 4, 1))
        .expect("room was made");
    assert_eq!(
        l.removed(),
        [(2, FlowRemovedReason::Eviction)],
        "the least important one went"
    );
}

/// Every request that a controller can make gets a reply, with the mutex free again afterwards.
#[test]
fn every_request_gets_a_reply() {
    let l = lab(BridgeConfig::default());
    l.bridge.set_ports(
        vec![PortBundleConfig {
            name: "p1".into(),
            ..PortBundleConfig::default()
        }],
        vec![port(1, "p1")],
    );
    let all = OfPort::NONE;
    let requests = [
        MpRequest::Desc,
        MpRequest::Table,
        MpRequest::Port(all),
        MpRequest::Queue {
            port: all,
            queue: u32::MAX,
        },
        MpRequest::PortDesc(all),
        MpRequest::TableFeatures(Vec::new()),
        MpRequest::TableDesc,
        MpRequest::GroupStats(GROUP_ALL),
        MpRequest::GroupDesc(GROUP_ALL),
        MpRequest::GroupFeatures,
        MpRequest::MeterStats(u32::MAX),
        MpRequest::MeterConfig(u32::MAX),
        MpRequest::MeterFeatures,
    ];
    for v in Version::ALL {
        let ask = |m: &heddle_openflow::Message| l.bridge.handle(v, None, m).expect("answered").len();
        assert_eq!(ask(&heddle_openflow::Message::FeaturesRequest), 1);
        for r in &requests {
            assert_eq!(
                ask(&heddle_openflow::Message::MultipartRequest {
                    more: false,
                    body: r.clone()
                }),
                1,
                "{r:?}"
            );
        }
        assert!(l.bridge.state.try_lock().is_some());
    }
}

pub(super) fn port(no: u32, name: &str) -> PortConfig {
    PortConfig {
        no: OfPort(no),
        name: name.into(),
        bundle: name.into(),
        target: PortTarget::Unbound,
        mac: [2, 0, 0, 0, 0, u8::try_from(no).expect("small")],
        mtu: 1500,
        admin_up: true,
        link_up: true,
        speed_bps: 0,
        bfd: None,
        lacp: None,
        standby: None,
    }
}

#[test]
fn ports_come_change_and_go_with_events() {
    let l = lab(secure());
    let bundle = |n: &str| PortBundleConfig {
        name: n.into(),
        ..PortBundleConfig::default()
    };
    l.bridge.set_ports(vec![bundle("p1")], vec![port(1, "p1")]);
    l.bridge.set_ports(vec![bundle("p1")], vec![port(1, "p1")]);
    let mut down = port(1, "p1");
    down.link_up = false;
    l.bridge.set_ports(vec![bundle("p1")], vec![down]);
    let pm = PortMod {
        port: OfPort(1),
        config: heddle_openflow::message::PortConfig::NO_FLOOD,
        mask: heddle_openflow::message::PortConfig::NO_FLOOD,
        ..PortMod::default()
    };
    l.bridge.port_mod(&pm, None).expect("changed");
    assert_eq!(
        l.bridge.port_mod(
            &PortMod {
                hw_addr: [9; 6],
                ..pm.clone()
            },
            None
        ),
        Err(ErrorKind::PortModFailedBadHwAddr)
    );
    assert_eq!(
        l.bridge.port_mod(
            &PortMod {
                port: OfPort(7),
                ..pm
            },
            None
        ),
        Err(ErrorKind::PortModFailedBadPort)
    );
    l.bridge.set_ports(vec![], vec![]);
    use heddle_openflow::message::PortReason::{Add, Delete, Modify};
    let reasons: Vec<_> = l
        .events
        .0
        .lock()
        .iter()
        .map(|e| {
            if let Event::PortStatus(s) = e {
                s.status.reason
            } else {
                panic!("only ports change, not {e:?}")
            }
        })
        .collect();
    // New, forwarding, down, out of floods, gone.
    assert_eq!(reasons, [Add, Modify, Modify, Modify, Delete]);
}

#[test]
fn patch_ports_find_each_other_across_bridges() {
    let l = lab(secure());
    let other = l.of.add_bridge("br1", secure());
    let bundle = |n: &str| PortBundleConfig {
        name: n.into(),
        ..PortBundleConfig::default()
    };
    let patch = |name: &str, peer: &str| PortConfig {
        target: PortTarget::Patch(peer.into()),
        ..port(1, name)
    };
    l.bridge.set_ports(vec![bundle("a")], vec![patch("a", "b")]);
    let end = |b: &Bridge| {
        l.of.pipeline().snapshot().bridges[&b.id]
            .ports
            .get(&OfPort(1))
            .unwrap()
            .binding
            .clone()
    };
    assert_eq!(end(&l.bridge), crate::model::Binding::Patch(None));
    other.set_ports(vec![bundle("b")], vec![patch("b", "a")]);
    assert_eq!(
        end(&l.bridge),
        crate::model::Binding::Patch(Some((other.id, OfPort(1))))
    );
    assert_eq!(
        end(&other),
        crate::model::Binding::Patch(Some((l.bridge.id, OfPort(1))))
    );
    l.of.remove_bridge("br1");
    assert_eq!(end(&l.bridge), crate::model::Binding::Patch(None));
}

proptest! {
    /// Any history of flow mods leaves the same flows as a plain list.
    #[test]
    fn histories_against_a_list(ops in prop::collection::vec((0u8..5, 0u32..4, 0u32..3, 0u16..3, 0u32..3), 1..40)) {
        let l = lab(secure());
        let mut list: Vec<(Match, u16, u32)> = Vec::new();
        for (op, value, prefix, priority, port) in ops {
            let m = nw_dst(value << 30, prefix);
            let within = |f: &(Match, u16, u32)| {
                f.0.mask.contains(&m.mask) && f.0.key.equal_under(&m.key, &m.mask)
            };
            let same = |f: &(Match, u16, u32)| f.0 == m && f.1 == priority;
            let command = match op {
                0 => {
                    list.retain(|f| !same(f));
                    list.push((m, priority, port));
                    FlowModCommand::Add
                }
                1 => {
                    list.iter_mut().filter(|f| within(f)).for_each(|f| f.2 = port);
                    FlowModCommand::Modify
                }
                2 => {
                    list.iter_mut().filter(|f| same(f)).for_each(|f| f.2 = port);
                    FlowModCommand::ModifyStrict
                }
                3 => {
                    list.retain(|f| !within(f));
                    FlowModCommand::Delete
                }
                _ => {
                    list.retain(|f| !same(f));
                    FlowModCommand::DeleteStrict
                }
            };
            l.add(&flow_mod(command, m, priority, port)).expect("all are well formed");
            l.bridge.tick();
        }
        let key = |m: &Match, p: u16, i: &InstructionSet| format!("{m:?} {p} {i:?}");
        let mut got: Vec<_> =
            flows(&l.bridge).iter().map(|f| key(&f.match_, f.priority, &f.instructions)).collect();
        let mut want: Vec<_> = list.iter().map(|(m, p, o)| key(m, *p, &output(*o))).collect();
        got.sort();
        want.sort();
        prop_assert_eq!(got, want);
    }
}

/// Commits flow mods as one bundle; with `prepared`, those that can be are prepared.
fn commit(l: &Lab, mods: &[FlowMod], prepared: bool) -> Result<(), BundleFailed> {
    let mut shared = SharedByAdditions::default();
    let entries = mods.iter().map(|fm| {
        let new = prepared.then(|| Addition::prepare(Version::V14, fm, &mut shared));
        Ok(match new.flatten() {
            Some(new) => Bundled::Addition(new),
            None => Bundled::Message(Box::new(heddle_openflow::Message::FlowMod(Box::new(fm.clone())))),
        })
    });
    l.bridge.commit_bundle(Version::V14, 1, 3, (1..).zip(entries))
}

#[test]
fn a_bundle_takes_effect_as_a_whole_or_not_at_all() {
    takes_effect_as_a_whole(false);
    takes_effect_as_a_whole(true);
}

fn takes_effect_as_a_whole(prepared: bool) {
    let l = lab(secure());
    let m = |n| nw_dst(n, 32);
    let add = |n, port| flow_mod(FlowModCommand::Add, m(n), 7, port);
    l.bridge.flow_mod(Version::V14, &add(1, 1)).expect("added");
    let before = l.bridge.tables_version();
    let shown = || {
        let mut all = Vec::new();
        l.bridge.tables[0].rules.for_each(l.bridge.tables_version(), |e| {
            all.push((e.data.matches.clone(), e.data.instructions.clone()))
        });
        all.sort_by_key(|(m, _)| m.expand().key.nw_dst);
        all
    };
    let was = shown();
    // A later message sees what earlier ones did; the last one cannot be carried out.
    let mut bad = add(4, 1);
    bad.table_id = 200;
    bad.instructions = InstructionSet(vec![Instruction::Goto(3)]);
    let failing = [
        add(2, 2),
        flow_mod(FlowModCommand::Delete, Match::any(), 0, 0),
        add(1, 9),
        bad,
    ];
    let failed = commit(&l, &failing, prepared).expect_err("goto must go on");
    assert_eq!(failed.index, 3);
    assert_eq!(shown(), was);
    assert_eq!(l.bridge.tables_version(), before, "nothing became visible");
    l.events.0.lock().clear();
    // And the table is whole: what was restored can go, what was added can be added again.
    let good = [
        add(2, 2),
        flow_mod(FlowModCommand::Delete, Match::any(), 0, 0),
        add(3, 3),
        flow_mod(FlowModCommand::Modify, Match::any(), 0, 5),
    ];
    commit(&l, &good, prepared).expect("carried out");
    assert_eq!(l.bridge.tables_version(), before + 1, "one step for all");
    let now = shown();
    assert_eq!(now.len(), 1);
    assert_eq!(*now[0].1, output(5));
    l.bridge.tick();
    assert_eq!(shown(), now);
}
