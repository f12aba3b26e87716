//! Actions that run on a copy leave the packet unchanged. Clones, buckets and the bridges behind patch ports
//! are nested at random, and compared with a plain interpreter of OpenFlow.
//!
//! The interpreter runs OpenFlow's actions on a packet of four properties; a second one runs the emitted
//! actions, as the datapath would. Both list the copies that leave, in order.

use super::lab::{Lab, dp, out, resubmit};
use crate::action_set::as_list;
use crate::group::Group;
use heddle_datapath_api::{Action as Odp, Purpose};
use heddle_flow::{FieldId, FieldValue};
use heddle_openflow::action::{Ct, CtZone};
use heddle_openflow::message::{Bucket, GROUP_ANY, GroupDesc, GroupType};
use heddle_openflow::text::parse_actions;
use heddle_openflow::{Action, Instruction, InstructionSet, Port};
use proptest::prelude::*;
use std::collections::HashMap;

/// Tables of each bridge that have a rule.
const TABLES: u8 = 3;
/// Groups of each bridge.
const GROUPS: u32 = 2;
/// From the first bridge to the second.
const PATCH: u32 = 4;
/// A meter that admits nothing.
const METER: u32 = 7;
const SOURCE: u32 = 0x0a00_0001;
const TCP: &str = "in_port=1,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_ttl=64,tcp_src=1,tcp_dst=80";

/// A packet, as far as the interpreters see it.
#[derive(Clone, Debug, PartialEq)]
struct Packet {
    nw_src: u32,
    tagged: bool,
    /// Zones that have tracked it.
    tracked_in: Vec<u16>,
    /// A meter has dropped it.
    dropped: bool,
}

type Left = Vec<(u32, Packet)>;

/// The rules of one bridge by table, and the buckets of its groups.
#[derive(Clone, Debug, Default)]
struct Program {
    tables: Vec<Vec<Instruction>>,
    groups: Vec<Vec<Vec<Action>>>,
}

/// One packet's way through the bridges.
struct Interpreter<'a> {
    bridges: &'a [Program],
    bridge: usize,
    in_port: u32,
    table: u8,
    set: Vec<Action>,
    exit: bool,
    left: Left,
}

impl Interpreter<'_> {
    fn run(bridges: &[Program]) -> Left {
        let mut i = Interpreter {
            bridges,
            bridge: 0,
            in_port: 1,
            table: 0,
            set: Vec::new(),
            exit: false,
            left: Vec::new(),
        };
        let mut packet = Packet {
            nw_src: SOURCE,
            tagged: false,
            tracked_in: Vec::new(),
            dropped: false,
        };
        i.in_table(0, &mut packet);
        i.end(&mut packet);
        i.left
    }

    fn in_table(&mut self, table: u8, p: &mut Packet) {
        let old = std::mem::replace(&mut self.table, table);
        let rules = &self.bridges[self.bridge].tables;
        for instruction in rules.get(usize::from(table)).into_iter().flatten() {
            if self.exit {
                break;
            }
            match instruction {
                Instruction::Apply(actions) => self.actions(actions, p),
                Instruction::Write(actions) => self.set.extend_from_slice(actions),
                other => panic!("{other:?} is not among the instructions"),
            }
        }
        self.table = old;
    }

    /// Runs the action set, which is empty afterwards. After `exit` it does not run, as in Open vSwitch.
    fn end(&mut self, p: &mut Packet) {
        let list = as_list(&std::mem::take(&mut self.set));
        self.actions(&list, p);
    }

    fn actions(&mut self, actions: &[Action], p: &mut Packet) {
        for action in actions {
            if self.exit {
                return;
            }
            match action {
                Action::Output { port, .. } => self.output(port.0, p),
                Action::SetField { value, .. } => p.nw_src = u32::try_from(value.as_u64()).unwrap(),
                Action::SetVlanVid { .. } => p.tagged = true,
                Action::StripVlan => p.tagged = false,
                Action::Ct(ct) => match ct.zone {
                    CtZone::Number(zone) => p.tracked_in.push(zone),
                    CtZone::Field(_) => panic!("zones are numbers"),
                },
                Action::Meter(_) => p.dropped = true,
                Action::Exit => self.exit = true,
                Action::Resubmit { table, .. } => self.in_table(table.unwrap(), p),
                Action::Clone(inner) => {
                    let (set, mut copy) = (self.set.clone(), p.clone());
                    self.actions(inner, &mut copy);
                    self.end(&mut copy);
                    self.set = set;
                }
                Action::Group(id) => {
                    let groups = &self.bridges[self.bridge].groups;
                    for bucket in &groups[*id as usize] {
                        self.actions(&as_list(bucket), &mut p.clone());
                        self.exit = false;
                    }
                }
                other => panic!("{other:?} is not among the actions"),
            }
        }
    }

    fn output(&mut self, port: u32, p: &Packet) {
        if port == self.in_port {
            return;
        }
        if (self.bridge, port) != (0, PATCH) {
            if !p.dropped {
                self.left.push((dp(self.bridge, port).0, p.clone()));
            }
            return;
        }
        let (set, table) = (std::mem::take(&mut self.set), self.table);
        (self.bridge, self.in_port) = (1, PATCH);
        let mut copy = p.clone();
        self.in_table(0, &mut copy);
        self.end(&mut copy);
        (self.bridge, self.in_port, self.table) = (0, 1, table);
        (self.set, self.exit) = (set, false);
    }
}

/// Runs datapath actions as the datapath does; `false`: the packet is gone.
fn execute(actions: &[Odp], p: &mut Packet, left: &mut Left) -> bool {
    for action in actions {
        match action {
            Odp::Output(port) => left.push((port.0, p.clone())),
            Odp::SetIpv4 { src, .. } => p.nw_src = p.nw_src & !src.mask | src.value,
            Odp::PushVlan { .. } => p.tagged = true,
            Odp::PopVlan => p.tagged = false,
            Odp::Ct(ct) => p.tracked_in.push(ct.zone),
            Odp::Meter(_) => return false,
            Odp::Clone(inner) => _ = execute(inner, &mut p.clone(), left),
            Odp::Drop(_) => {}
            other => panic!("{other:?} is not among what these pipelines emit"),
        }
    }
    true
}

fn set_source(n: u32) -> Action {
    Action::SetField {
        field: FieldId::Ipv4Src,
        value: FieldValue::from_u64((SOURCE + n).into()),
        mask: FieldValue::from_u64(u32::MAX.into()),
    }
}

fn ct(zone: u16) -> Action {
    Action::Ct(Box::new(Ct {
        commit: true,
        zone: CtZone::Number(zone),
        ..Ct::default()
    }))
}

/// Actions of a list in table `table`, which resubmits to later ones only.
fn action(table: u8) -> impl Strategy<Value = Action> {
    let onward = table + 1..=TABLES;
    let leaf = prop_oneof![
        4 => (1u32..=PATCH).prop_map(out),
        2 => (0u32..3).prop_map(set_source),
        2 => (1u16..4).prop_map(ct),
        1 => Just(Action::Meter(METER)),
        1 => Just(Action::SetVlanVid { vid: 5, push_if_missing: true }),
        1 => Just(Action::StripVlan),
        1 => Just(Action::Exit),
        2 => onward.prop_map(resubmit),
        2 => (0..GROUPS).prop_map(Action::Group),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop::collection::vec(inner, 1..4).prop_map(Action::Clone)
    })
}

/// Actions of an action set or a bucket; `later`: the first table that they may continue in.
fn final_action(later: u8) -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (1u32..=PATCH).prop_map(out),
        1 => (0u32..3).prop_map(set_source),
        1 => (1u16..4).prop_map(ct),
        1 => (later..=TABLES).prop_map(resubmit),
    ]
}

fn program() -> impl Strategy<Value = Program> {
    let rule = |table: u8| {
        let written = prop_oneof![
            2 => Just(Vec::new()),
            1 => prop::collection::vec(final_action(table + 1), 1..3),
        ];
        (prop::collection::vec(action(table), 1..4), written).prop_map(|(apply, write)| {
            let mut set = vec![Instruction::Apply(apply)];
            if !write.is_empty() {
                set.push(Instruction::Write(write));
            }
            set
        })
    };
    // No rule is in the last table: a packet ends there. Groups may be used in all tables, so their buckets
    // lead to none.
    let buckets = prop::collection::vec(prop::collection::vec(final_action(TABLES), 1..3), 1..3);
    (
        (rule(0), rule(1), rule(2)),
        prop::collection::vec(buckets, GROUPS as usize),
    )
        .prop_map(|((a, b, c), groups)| Program {
            tables: vec![a, b, c],
            groups,
        })
}

fn lab_of(bridges: &[Program]) -> Lab {
    let mut lab = Lab::new(&[PATCH, PATCH]);
    lab.patch((0, PATCH), (1, PATCH));
    for (b, program) in bridges.iter().enumerate() {
        lab.meter(b, METER);
        for (table, instructions) in (0..).zip(&program.tables) {
            let any = heddle_flow::Match::any();
            lab.add((b, table), 1, &any, InstructionSet(instructions.clone()));
        }
        for (id, buckets) in (0..).zip(&program.groups) {
            let bucket = |(id, actions): (u32, &Vec<Action>)| Bucket {
                id,
                weight: 0,
                watch_port: Port::NONE,
                watch_group: GROUP_ANY,
                actions: actions.clone(),
            };
            let desc = GroupDesc {
                group_id: id,
                ty: GroupType::All,
                buckets: (0..).zip(buckets).map(bucket).collect(),
                selection: None,
            };
            lab.bridges[b].groups.insert(id, 1, Group::new(desc, 0));
        }
    }
    lab
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn copies_are_copies(first in program(), second in program()) {
        let bridges = [first, second];
        let lab = lab_of(&bridges);
        let t = lab.translate(&Lab::key(TCP), Purpose::Miss);
        let mut p = Packet {
            nw_src: SOURCE,
            tagged: false,
            tracked_in: Vec::new(),
            dropped: false,
        };
        let mut left = Vec::new();
        execute(&t.actions, &mut p, &mut left);
        prop_assert_eq!(
            left,
            Interpreter::run(&bridges),
            "{}",
            heddle_datapath_api::format_actions(&t.actions, None)
        );
    }
}

fn acts(text: &str) -> Vec<Action> {
    parse_actions(text, None).unwrap()
}

#[test]
fn what_a_resubmit_does_within_a_clone_stays_there() {
    let lab = Lab::new(&[4]);
    lab.meter(0, 1);
    lab.rule((0, 0), "", acts("clone(resubmit(,1)),output:3"));
    lab.rule((0, 1), "tcp_src=1,tcp", vec![Action::Meter(1), out(2)]);
    lab.rule(
        (0, 1),
        "tcp_src=2,tcp",
        acts("ct(commit,nat(src=10.9.9.9)),output:2"),
    );
    lab.rule((0, 1), "tcp_src=3,tcp", acts("output:2"));
    let said: HashMap<_, _> = [1, 2, 3]
        .map(|n| (n, lab.actions(&TCP.replace("tcp_src=1", &format!("tcp_src={n}")))))
        .into();
    assert_eq!(said[&1], "clone(meter(1),2),3");
    assert_eq!(said[&2], "clone(ct(commit,nat(src=10.9.9.9)),2),3");
    assert_eq!(said[&3], "2,3");
}

#[test]
fn what_another_bridge_does_stays_there() {
    let mut lab = Lab::new(&[4, 4]);
    lab.patch((0, 4), (1, 4));
    lab.meter(1, 1);
    lab.rule((0, 0), "", acts("output:4,output:3"));
    lab.rule((1, 0), "", acts("resubmit(,1)"));
    lab.rule(
        (1, 1),
        "tcp_src=1,tcp",
        acts("ct(commit,nat(src=10.9.9.9)),output:2"),
    );
    lab.rule((1, 1), "tcp_src=2,tcp", vec![Action::Meter(1), out(2)]);
    assert_eq!(lab.actions(TCP), "clone(ct(commit,nat(src=10.9.9.9)),102),3");
    let metered = TCP.replace("tcp_src=1", "tcp_src=2");
    assert_eq!(lab.actions(&metered), "clone(meter(1),102),3");
}

/// A bucket's connection is not the packet's; actions that cannot be undone are cloned once, at any depth.
#[test]
fn clones_are_not_doubled() {
    let lab = Lab::new(&[4]);
    lab.rule((0, 0), "", acts("clone(resubmit(,1),output:2),output:3"));
    lab.rule((0, 1), "", acts("clone(resubmit(,2))"));
    lab.rule((0, 2), "", acts("ct(commit),output:4"));
    assert_eq!(lab.actions(TCP), "clone(ct(commit),4),2,3");
}

#[test]
fn a_pause_within_a_clone_ends_it_all() {
    let lab = Lab::new(&[4]);
    lab.rule((0, 0), "", acts("clone(resubmit(,1)),output:2"));
    lab.rule((0, 1), "", acts("controller(pause)"));
    let said = lab.actions(TCP);
    assert!(said.starts_with("userspace(") && !said.contains(",2"), "{said}");
    // A copy that comes back by itself is not a pause.
    let lab = Lab::new(&[4]);
    lab.rule((0, 0), "", acts("clone(debug_recirc,output:3),output:2"));
    let said = lab.actions(TCP);
    assert!(said.starts_with("recirc(") && said.ends_with(",2"), "{said}");
}
