//! Traces against the text that Open vSwitch 3.1 printed for the same pipeline (recorded from its
//! `ofproto/trace`).

use crate::model::VlanMode;
use crate::xlate::tests::lab::{Lab, out, resubmit, to};
use heddle_flow::{FieldId, Match, Subfield};
use heddle_openflow::{Action, Instruction, InstructionSet, Port};

fn lab() -> Lab {
    let mut lab = Lab::new(&[5]);
    let b = &mut lab.bridges[0].bundles[5];
    (b.vlan_mode, b.tag) = (VlanMode::Access, Some(7));
    lab.publish();
    let add = |at: (usize, u8), priority, m: &str, actions| {
        let m = Match::parse_text(m, None).unwrap();
        lab.add(
            at,
            priority,
            &m,
            InstructionSet(vec![Instruction::Apply(actions)]),
        );
    };
    let reg = |field, n_bits| Subfield {
        field,
        ofs: 0,
        n_bits,
    };
    let (reg0, reg1, reg2) = (
        reg(FieldId::Reg0, 32),
        reg(FieldId::Reg1, 16),
        reg(FieldId::Reg2, 32),
    );
    add(
        (0, 0),
        10,
        "in_port=1,tcp",
        vec![Action::Load { dst: reg0, value: 5 }, resubmit(1), out(4)],
    );
    add((0, 0), 9, "in_port=1,arp", vec![to(Port::NORMAL)]);
    let controller = Action::Output {
        port: Port::CONTROLLER,
        max_len: 128,
    };
    let stack = vec![
        Action::StackPush(reg0),
        Action::StackPop(reg1),
        Action::StackPop(reg2),
        controller,
    ];
    add((0, 0), 8, "in_port=2", stack);
    add(
        (0, 0),
        7,
        "in_port=3,ip",
        vec![Action::DecTtl(vec![0]), resubmit(0)],
    );
    let rewrite = vec![
        Action::SetEthDst([0x50, 0x54, 0, 0, 0, 9]),
        Action::Clone(vec![Action::DecTtl(vec![0]), out(2)]),
        Action::Note(vec![1, 2, 0, 0, 0, 0]),
        out(1),
        out(9),
    ];
    add((0, 1), 0x8000, "reg0=5", rewrite);
    lab
}

/// All lines but the mask's: Open vSwitch's classifier looks at fewer bits of rules that do not match.
fn check(args: &[&str], expected: &str) {
    let got = lab().trace(args).unwrap().text;
    let lines = |s: &str| {
        s.lines()
            .filter(|l| !l.starts_with("Megaflow:"))
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert_eq!(
        lines(&got).replace("port p01", "port p1"),
        lines(expected).replace("recirc_id=2", "recirc_id=1")
    );
}

/// If no other bits were looked at, the mask is the same too.
#[test]
fn masks() {
    let lab = Lab::new(&[3]);
    lab.rule(
        (0, 0),
        "",
        vec![Action::DecTtl(vec![0]), Action::SetEthDst([1; 6]), out(2)],
    );
    for (flow, mask) in [
        (
            "in_port=1,icmp,nw_ttl=9",
            "recirc_id=0,eth,icmp,in_port=1,dl_dst=00:00:00:00:00:00,nw_ttl=9,nw_frag=no",
        ),
        (
            "in_port=1,dl_vlan=3",
            "recirc_id=0,eth,in_port=1,dl_dst=00:00:00:00:00:00,dl_type=0x0000,nw_proto=0,nw_ttl=0",
        ),
    ] {
        let text = lab.trace(&["br0", flow]).unwrap().text;
        let line = text.lines().find_map(|l| l.strip_prefix("Megaflow: "));
        assert_eq!(line, Some(mask));
    }
}

#[test]
fn rules_and_rewriting() {
    check(
        &[
            "br0",
            "in_port=1,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_ttl=64,tcp_src=1,tcp_dst=80",
        ],
        r#"Flow: tcp,in_port=1,vlan_tci=0x0000,dl_src=00:00:00:00:00:00,dl_dst=00:00:00:00:00:00,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_tos=0,nw_ecn=0,nw_ttl=64,nw_frag=no,tp_src=1,tp_dst=80,tcp_flags=0

bridge("br0")
-------------
 0. tcp,in_port=1, priority 10
    load:0x5->NXM_NX_REG0[]
    resubmit(,1)
     1. reg0=0x5, priority 32768
            mod_dl_dst:50:54:00:00:00:09
            clone(dec_ttl,output:2)
            dec_ttl
            output:2
            note:01.02.00.00.00.00
            output:1
             >> skipping output to input port
            output:9
             >> Nonexistent output port
    output:4

Final flow: tcp,reg0=0x5,in_port=1,vlan_tci=0x0000,dl_src=00:00:00:00:00:00,dl_dst=50:54:00:00:00:09,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_tos=0,nw_ecn=0,nw_ttl=64,nw_frag=no,tp_src=1,tp_dst=80,tcp_flags=0
Megaflow: recirc_id=0,eth,tcp,in_port=1,dl_dst=00:00:00:00:00:00,nw_ttl=64,nw_frag=no
Datapath actions: set(eth(dst=50:54:00:00:00:09)),set(ipv4(ttl=63)),2,set(ipv4(ttl=64)),4
"#,
    );
}

#[test]
fn bridging_with_a_packet() {
    check(
        &[
            "br0",
            "in_port=1,arp,dl_src=50:54:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff,arp_op=1",
            "-generate",
        ],
        r#"Flow: arp,in_port=1,vlan_tci=0x0000,dl_src=50:54:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff,arp_spa=0.0.0.0,arp_tpa=0.0.0.0,arp_op=1,arp_sha=00:00:00:00:00:00,arp_tha=00:00:00:00:00:00

bridge("br0")
-------------
 0. arp,in_port=1, priority 9
    NORMAL
     -> learned that 50:54:00:00:00:01 is on port p1 in VLAN 0
     -> no learned MAC for destination, flooding

Final flow: unchanged
Megaflow: recirc_id=0,eth,arp,in_port=1,dl_src=50:54:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff,arp_spa=0.0.0.0,arp_tpa=0.0.0.0,arp_op=1
Datapath actions: 100,2,3,4
"#,
    );
}

#[test]
fn stack_and_controller() {
    check(
        &["br0", "in_port=2,dl_vlan=3"],
        r#"Flow: in_port=2,dl_vlan=3,dl_vlan_pcp=0,vlan_tci1=0x0000,dl_src=00:00:00:00:00:00,dl_dst=00:00:00:00:00:00,dl_type=0x0000

bridge("br0")
-------------
 0. in_port=2, priority 8
    push:NXM_NX_REG0[]
    pop:NXM_NX_REG1[0..15]
     -> NXM_NX_REG1[0..15] is now 0
    pop:NXM_NX_REG2[]
     >>>> stack underflow <<<<
    CONTROLLER:128

Final flow: unchanged
Megaflow: recirc_id=0,eth,in_port=2,dl_type=0x0000
Datapath actions: userspace(pid=0,controller(reason=1,dont_send=1,continuation=0,recirc_id=2,rule_cookie=0,controller_id=0,max_len=128))
"#,
    );
}

#[test]
fn no_rule() {
    check(
        &["br0", "in_port=5,arp"],
        r#"Flow: arp,in_port=5,vlan_tci=0x0000,dl_src=00:00:00:00:00:00,dl_dst=00:00:00:00:00:00,arp_spa=0.0.0.0,arp_tpa=0.0.0.0,arp_op=0,arp_sha=00:00:00:00:00:00,arp_tha=00:00:00:00:00:00

bridge("br0")
-------------
 0. No match.
    drop

Final flow: unchanged
Megaflow: recirc_id=0,eth,arp,in_port=5
Datapath actions: drop
"#,
    );
}

/// A key of the datapath names the bridge by its port.
#[test]
fn key_of_the_datapath() {
    check(
        &[
            "in_port(1),eth(src=50:54:00:00:00:01,dst=50:54:00:00:00:02),eth_type(0x0806),arp(sip=1.1.1.1,tip=2.2.2.2,op=1,sha=00:00:00:00:00:00,tha=00:00:00:00:00:00)",
        ],
        r#"Flow: arp,in_port=1,vlan_tci=0x0000,dl_src=50:54:00:00:00:01,dl_dst=50:54:00:00:00:02,arp_spa=1.1.1.1,arp_tpa=2.2.2.2,arp_op=1,arp_sha=00:00:00:00:00:00,arp_tha=00:00:00:00:00:00

bridge("br0")
-------------
 0. arp,in_port=1, priority 9
    NORMAL
     -> no learned MAC for destination, flooding

Final flow: unchanged
Megaflow: recirc_id=0,eth,arp,in_port=1,dl_src=50:54:00:00:00:01,dl_dst=50:54:00:00:00:02
Datapath actions: 100,2,3,4
"#,
    );
}

#[test]
fn the_depth_has_an_end() {
    let text = lab().trace(&["br0", "in_port=3,icmp,nw_ttl=70"]).unwrap().text;
    assert_eq!(
        text.matches(" 0. ip,in_port=3, priority 7\n    dec_ttl\n    resubmit(,0)\n")
            .count(),
        65
    );
    assert!(
        text.contains("    resubmit(,0)\n     >>>> over max translation depth 64 <<<<\n"),
        "{text}"
    );
    let end = "Datapath actions: drop\nTranslation failed (Recursion too deep), packet is dropped.\n";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn options_for_connections_are_understood() {
    let lab = lab();
    let trace = |args: &[&str]| lab.trace(args).unwrap().text;
    let with = trace(&[
        "br0",
        "in_port=1,ip",
        "--ct-next",
        "trk,est",
        "--ct-next",
        "trk,new",
    ]);
    assert_eq!(with, trace(&["br0", "in_port=1,ip"]));
}

#[test]
fn wrong_arguments() {
    let lab = lab();
    for (args, error) in [
        (vec!["br9", "in_port=1"], "br9: unknown bridge"),
        (
            vec!["in_port=1"],
            "syntax error at in_port=1 (or the bridge name was omitted)",
        ),
        (
            vec!["br0", "in_port=1,foo"],
            "Bad openflow flow syntax: in_port=1,foo: unknown field foo",
        ),
        (vec!["br0", "in_port=1", "-x"], "-x: unknown option"),
        (
            vec!["br0", "in_port=1", "--ct-next"],
            "Missing argument for option --ct-next",
        ),
        (vec!["br0", "in_port=1", "zz", "00"], "too many arguments"),
        (
            vec!["br0", "in_port=1", "0011"],
            "Packet data too short for Ethernet",
        ),
        (vec!["br0", "in_port=1", "zz"], "Trailing garbage in packet data"),
        (vec![], "Syntax error"),
    ] {
        assert_eq!(lab.trace(&args).err().as_deref(), Some(error), "{args:?}");
    }
}

/// The packet's headers count, not those of the flow; it is handed back for its packet-ins.
#[test]
fn a_given_packet() {
    let lab = lab();
    let packet = "ffffffffffff5054000000010806000108000604000150540000000101010101000000000000020202020000";
    let t = lab.trace(&["br0", "in_port=1,tcp", packet]).unwrap();
    assert!(t.text.starts_with("Flow: arp,in_port=1,"), "{}", t.text);
    assert_eq!(t.packet.map(|p| p.len()), Some(packet.len() / 2));
    assert_eq!(
        lab.bridges[0].mac.entries(0).len(),
        1,
        "a trace with a packet learns"
    );
}
