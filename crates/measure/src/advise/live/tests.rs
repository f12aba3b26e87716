//! Each rule finds its made-up fault, and no fault in a healthy switch.

use super::observe::needless_ct;
use super::rules::RULES;
use super::*;

/// An observation of a healthy switch.
fn well() -> Seen {
    let worker = |core| Worker {
        core,
        busy: 0.3,
        packets: 10_000,
        ..Worker::default()
    };
    let queue = |port: &str, core| Queue {
        port: port.into(),
        queue: 0,
        core: Some(core),
    };
    let device = |port: &str| Device {
        port: port.into(),
        bridge: "br0".into(),
        name: port.into(),
        netns: "/run/netns/pod".into(),
        mtu: 1500,
        ..Device::default()
    };
    Seen {
        seconds: 1.0,
        processors: vec![0, 1],
        workers: vec![worker(0), worker(1)],
        queues: vec![queue("a", 0), queue("b", 0), queue("c", 1)],
        flows: 10,
        flow_limit: 1000,
        interfaces: vec![Interface {
            name: "a".into(),
            affinity: "0:1".into(),
            ..Interface::default()
        }],
        devices: vec![device("a"), device("b"), device("c")],
        tables: vec![("br0".into(), 3, 100)],
        controllers: vec![("br0".into(), "tcp:1".into(), true, String::new())],
        received: vec![5000, 0],
        readers: vec![(7, "server".into(), 0)],
        ..Seen::default()
    }
}

#[test]
fn nothing_is_found_where_all_is_well() {
    assert_eq!(judge(&well()), []);
    assert_eq!(judge(&Seen::default()), []);
}

/// A rule's name, and the change that it must find.
type Fault = (&'static str, fn(&mut Seen));

#[test]
fn each_fault_is_found_by_its_rule_alone() {
    let faults: [Fault; 18] = [
        ("interface error", |s| {
            s.interfaces[0].error = "no such device".into()
        }),
        ("setting without effect", |s| {
            let words = ["bridge br0", "stp_enable", "no spanning tree runs"].map(str::to_owned);
            s.without_effect = vec![words.into()];
        }),
        ("flows are restored", |s| s.restoring = true),
        ("device of an earlier switch", |s| {
            s.devices[0].doubles = vec!["/run/netns/pod".into()]
        }),
        ("controller unreachable", |s| s.controllers[0].2 = false),
        ("MTU mismatch", |s| s.devices[1].mtu = 9000),
        ("offload off", |s| s.devices[2].off = vec!["tso".into()]),
        ("queue without its core", |s| {
            s.interfaces[0].affinity = "0:5".into()
        }),
        ("queues on one worker", |s| {
            s.workers[0].busy = 0.8;
            s.workers[1].busy = 0.01;
        }),
        ("worker full", |s| s.workers[1].busy = 0.97),
        ("over-commitment", |s| s.workers[1].waiting = 0.3),
        ("more workers than processors", |s| s.processors = vec![0]),
        ("steal", |s| s.steal = 0.2),
        ("RFS off", |s| s.readers[0].2 = 1),
        ("flow limit reached", |s| s.workers[0].limit_hits = 5),
        ("masks at the limit", |s| s.workers[0].not_cached = 500),
        ("ct that no rule needs", |s| {
            s.needless_ct = vec![("br0".into(), "ip,actions=ct(table=1)".into())]
        }),
        ("MAC table full", |s| s.tables[0].1 = 100),
    ];
    assert_eq!(faults.len(), RULES.len());
    for (name, plant) in faults {
        let mut seen = well();
        plant(&mut seen);
        let found = judge(&seen);
        let rules: Vec<&str> = found.iter().map(|f| f.rule).collect();
        assert_eq!(rules, [name], "{found:?}");
        assert!(!found[0].evidence.is_empty() && !found[0].mend.is_empty() && !found[0].source.is_empty());
    }
}

#[test]
fn rfs_that_is_on_is_left_alone() {
    let mut seen = well();
    seen.readers[0].2 = 1;
    seen.rfs_entries = 32_768;
    seen.devices[0].rfs = true;
    assert_eq!(judge(&seen), []);
}

#[test]
fn packets_of_others_are_no_reason_for_rfs() {
    let mut seen = well();
    seen.readers[0].2 = 1;
    seen.workers.iter_mut().for_each(|w| w.packets = 0);
    assert_eq!(judge(&seen), []);
}

#[test]
fn ct_with_and_without_a_use() {
    let plain = "table_id=0, duration=3s, n_packets=0, priority=1,ip,actions=ct(table=1)\ntable_id=1, priority=0,actions=NORMAL\n";
    assert!(needless_ct(plain).unwrap().contains("ip,actions=ct(table=1)"));
    for used in [
        "priority=1,ct_state=+est+trk,ip,actions=NORMAL\n",
        "priority=1,ip,actions=ct(commit,nat(src=10.0.0.1))\n",
        "priority=1,ip,actions=move:NXM_NX_CT_MARK[]->NXM_NX_REG0[],ct_mark\n",
    ] {
        assert_eq!(needless_ct(&format!("{plain}{used}")), None, "{used}");
    }
    assert_eq!(needless_ct("table_id=0, actions=NORMAL\n"), None);
}
