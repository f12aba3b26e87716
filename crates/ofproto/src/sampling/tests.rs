//! Exporters after changes of the configuration, and the samples that translations emit for them.

use super::{BridgeSampling, ExporterConfig, IpfixConfig, LocalSample, MAX_LOCAL_SAMPLE_BYTES, Sampling};
use crate::xlate::tests::lab::{Lab, out};
use heddle_datapath_api::{Action as Odp, PortNo, Purpose, UpcallPacket};
use heddle_openflow::action::{ObservationId, Sample, SampleDirection};
use heddle_openflow::{Action, Port};

fn exporter(target: &str) -> ExporterConfig {
    ExporterConfig {
        targets: [target.to_owned()].into(),
        ..ExporterConfig::default()
    }
}

fn bridge(sampling: u32) -> IpfixConfig {
    IpfixConfig {
        bridge: Some(BridgeSampling {
            exporter: exporter("127.0.0.1:4739"),
            sampling,
            input: true,
            output: true,
            ..BridgeSampling::default()
        }),
        ..IpfixConfig::default()
    }
}

fn set(id: u32) -> IpfixConfig {
    IpfixConfig {
        sets: [(id, exporter("127.0.0.1:4739"))].into(),
        ..IpfixConfig::default()
    }
}

fn sample(probability: u16) -> Action {
    Action::Sample(Box::new(Sample {
        probability,
        collector_set_id: 1,
        obs_domain_id: ObservationId::Value(2),
        obs_point_id: ObservationId::Value(3),
        sampling_port: Port::NONE,
        direction: SampleDirection::Default,
        form: 1,
    }))
}

const IP: &str = "in_port=1,icmp,nw_src=10.0.0.1,nw_dst=10.0.0.2";

/// The actions of a bridge of three ports for a packet to port 2 under this configuration.
fn actions(ipfix: IpfixConfig, list: Vec<Action>) -> String {
    let mut lab = Lab::new(&[3]);
    lab.rule((0, 0), "", list);
    lab.bridges[0].ipfix = Some(ipfix);
    lab.publish();
    lab.actions(IP)
}

#[test]
fn a_bridge_samples_what_comes_and_what_goes() {
    let all = "userspace(pid=0,ipfix(output_port=4294967295)),userspace(pid=0,ipfix(output_port=2)),2";
    assert_eq!(actions(bridge(1), vec![out(2)]), all);
    let half = "sample(sample=50.0%,actions(userspace(pid=0,ipfix(output_port=4294967295))))";
    assert_eq!(actions(bridge(2), vec![]), half);
    let mut config = bridge(1);
    config.bridge.as_mut().unwrap().input = false;
    assert_eq!(
        actions(config.clone(), vec![out(2)]),
        "userspace(pid=0,ipfix(output_port=2)),2"
    );
    config.bridge.as_mut().unwrap().output = false;
    assert_eq!(actions(config, vec![out(2)]), "2");
}

#[test]
fn a_rule_samples_for_a_set() {
    let whole = "userspace(pid=0,flow_sample(probability=65535,collector_set_id=1,obs_domain_id=2,obs_point_id=3,\
                 output_port=4294967295)),2";
    assert_eq!(actions(set(1), vec![sample(u16::MAX), out(2)]), whole);
    let some = actions(set(1), vec![sample(32768), out(2)]);
    assert!(
        some.starts_with("sample(sample=50.0%,actions(userspace(pid=0,flow_sample(probability=32768,"),
        "{some}"
    );
    // No exporter is configured at all.
    let lab = Lab::new(&[3]);
    lab.rule((0, 0), "", vec![sample(u16::MAX), out(2)]);
    assert_eq!(lab.actions(IP), "2");
    // The bridge has no such port.
    let Action::Sample(mut unknown) = sample(9) else {
        panic!()
    };
    unknown.sampling_port = Port(99);
    assert_eq!(actions(set(1), vec![Action::Sample(unknown), out(2)]), "2");
}

/// A set may have a local group, an exporter, or both.
#[test]
fn a_rule_samples_for_a_local_group() {
    let mut local = IpfixConfig {
        local_groups: [(1, 10)].into(),
        ..IpfixConfig::default()
    };
    let whole = "userspace(pid=0,flow_sample(probability=65535,collector_set_id=1,obs_domain_id=2,obs_point_id=3,\
                 output_port=4294967295,local_group_id=10)),2";
    assert_eq!(actions(local.clone(), vec![sample(u16::MAX), out(2)]), whole);
    let mut lab = Lab::new(&[3]);
    lab.rule((0, 0), "", vec![sample(u16::MAX)]);
    local.sets = set(1).sets;
    lab.bridges[0].ipfix = Some(local);
    lab.publish();
    let t = lab.translate(&Lab::key(IP), Purpose::Miss);
    let Some(Odp::Userspace(upcall)) = t.actions.first() else {
        panic!("{:?}", t.actions)
    };
    assert_eq!(upcall.max_len, MAX_LOCAL_SAMPLE_BYTES);
    let taken = UpcallPacket {
        upcall: upcall.clone(),
        bytes: vec![7; 60],
        packet_type: 0,
        total_len: 1500,
        segments: 1,
        wire_bytes: 1500,
        in_port: PortNo(1),
        key: Lab::key(IP),
        packet: None,
    };
    let found = LocalSample::of(&taken).expect("a local sample");
    assert_eq!(
        (found.group, found.probability, found.total_len),
        (10, 65535, 1500)
    );
    assert_eq!(
        found.cookie(),
        [0, 0, 0, 2, 0, 0, 0, 3],
        "domain and point, big-endian"
    );
    // Samples of the same rule for exporters alone are none.
    lab.bridges[0].ipfix = Some(set(1));
    lab.publish();
    let t = lab.translate(&Lab::key(IP), Purpose::Miss);
    let Some(Odp::Userspace(upcall)) = t.actions.first() else {
        panic!("{:?}", t.actions)
    };
    let exported = UpcallPacket {
        upcall: upcall.clone(),
        ..taken
    };
    assert!(upcall.max_len == u16::MAX && LocalSample::of(&exported).is_none());
}

/// OVN uses this to sample the connections that an access list allows.
#[test]
fn numbers_of_samples_come_from_fields() {
    let Action::Sample(mut s) = sample(u16::MAX) else {
        panic!()
    };
    let field = |text: &str| ObservationId::Field(text.parse().expect("a subfield"));
    (s.obs_domain_id, s.obs_point_id) = (field("NXM_NX_REG3[8..31]"), field("NXM_OF_IP_DST[0..7]"));
    let mut lab = Lab::new(&[3]);
    let load = Action::Load {
        value: 0x1234_5678,
        dst: "NXM_NX_REG3[]".parse().expect("a subfield"),
    };
    lab.rule((0, 0), "", vec![load, Action::Sample(s), out(2)]);
    lab.bridges[0].ipfix = Some(set(1));
    lab.publish();
    for (to, point) in [("10.0.0.2", 2), ("10.0.0.77", 77)] {
        let text = IP.replace("10.0.0.2", to);
        let said = lab.actions(&text);
        let t = lab.translate(&Lab::key(&text), Purpose::Miss);
        assert!(
            said.contains(&format!("obs_domain_id={},obs_point_id={point},", 0x12_3456)),
            "{said}"
        );
        assert_eq!(t.mask.0.nw_dst & 0xff, 0xff);
    }
}

#[test]
fn samples_know_whether_the_packet_is_forwarded() {
    for (list, forwards) in [
        (vec![sample(u16::MAX)], false),
        (vec![sample(u16::MAX), out(2)], true),
    ] {
        let mut lab = Lab::new(&[3]);
        lab.rule((0, 0), "", list);
        lab.bridges[0].ipfix = Some(set(1));
        lab.publish();
        let t = lab.translate(&Lab::key(IP), Purpose::Miss);
        let Some(Odp::Userspace(upcall)) = t.actions.first() else {
            panic!("{:?}", t.actions)
        };
        let meta = upcall
            .cookie
            .0
            .as_any()
            .downcast_ref::<super::SampleMeta>()
            .unwrap();
        assert_eq!(meta.forwards(), forwards);
        assert_eq!(meta.each(), 1);
    }
}

#[test]
fn exporters_follow_the_configuration() {
    let s = Sampling::default();
    assert_eq!(s.configure(1, &IpfixConfig::default()), None);
    let config = IpfixConfig {
        sets: [(1, exporter("127.0.0.1:1")), (2, exporter("xyzzy"))].into(),
        ..bridge(1)
    };
    let done = s.configure(1, &config).unwrap();
    assert_eq!(
        done.sets.keys().collect::<Vec<_>>(),
        [&1],
        "a set without a collector is none"
    );
    assert!(s.bridge_stats(1).is_some() && s.bridge_stats(2).is_none());
    assert_eq!(
        s.set_stats(1).iter().map(|x| x.collector_set).collect::<Vec<_>>(),
        [1]
    );
    s.configure(2, &set(7));
    s.configure(1, &set(3));
    assert!(s.bridge_stats(1).is_none());
    assert_eq!(s.set_stats(1)[0].collector_set, 3);
    assert_eq!(s.set_stats(2)[0].collector_set, 7);
    s.end();
    assert!(s.set_stats(2).is_empty());
}
