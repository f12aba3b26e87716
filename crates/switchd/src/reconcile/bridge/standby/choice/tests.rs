use super::*;
use crate::reconcile::desired::Smap;
use heddle_ofproto::bridge::{FailMode, MirrorConfig};

const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 5];

/// An interface with settings of `other_config`, and a port of its own.
fn port(name: &str, settings: &[(&str, &str)]) -> PortRow {
    let mut port = PortRow::synthetic(name);
    let pairs = settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    port.interfaces[0].kind = "system".into();
    port.interfaces[0].other_config = Smap(pairs.collect());
    port
}

/// The same with the ids that an orchestrator writes.
fn guest(name: &str, settings: &[(&str, &str)], mac: [u8; 6]) -> PortRow {
    let mut port = port(name, settings);
    port.interfaces[0].guest.port = Some("web-1".into());
    port.interfaces[0].guest.mac = Some(mac);
    port
}

fn bridge(ports: Vec<PortRow>) -> BridgeRow {
    BridgeRow {
        uuid: heddle_ovsdb::Uuid::new_v4(),
        name: "br0".into(),
        datapath_type: "netdev".into(),
        ports: ports.into_iter().map(|p| (p.name.clone(), p)).collect(),
        devices_of_bonds: Vec::new(),
        controllers: Vec::new(),
        fail_mode: FailMode::Standalone,
        versions: Vec::new(),
        flood_vlans: Vec::new(),
        other_config: Smap::default(),
        snoops_multicast: false,
        tables: BTreeMap::new(),
        mirror_outputs: std::collections::BTreeSet::new(),
        mirrors: Vec::new(),
        ipfix: heddle_ofproto::sampling::IpfixConfig::default(),
    }
}

/// Classes by the first letter of the name.
fn class(row: &InterfaceRow) -> Option<DeviceClass> {
    match row.name.as_bytes()[0] {
        b't' => Some(DeviceClass::Tap),
        b'r' => Some(DeviceClass::Ring),
        b'p' => None,
        _ => Some(DeviceClass::Card),
    }
}

type Texts = Vec<(String, String)>;

/// Pairs as (standby, primary), and faults as (interface, words).
fn chosen(ports: Vec<PortRow>, before: &[(&str, &str)]) -> (Texts, Texts) {
    let before = before.iter().map(|(p, s)| ((*p).to_owned(), (*s).to_owned()));
    let choice = choose(&bridge(ports), class, &before.collect());
    (
        choice.primaries.into_iter().collect(),
        choice.faults.into_iter().collect(),
    )
}

fn pair(standby: &str, primary: &str) -> (String, String) {
    (standby.to_owned(), primary.to_owned())
}

const OF_VF: &[(&str, &str)] = &[(PRIMARY, "vf")];

#[test]
fn a_later_standby_does_not_break_a_pair() {
    let ports = || vec![port("vf", &[]), port("tap-b", OF_VF), port("tap-a", OF_VF)];
    let (pairs, faults) = chosen(ports(), &[("vf", "tap-b")]);
    assert_eq!(pairs, [pair("tap-b", "vf")]);
    let fault = "heddle-standby-for=vf: tap-b is its standby, so it is a port of its own";
    assert_eq!(faults, [pair("tap-a", fault)]);
    // Without a pair, or with one that is no longer configured, the first name wins.
    for before in [&[][..], &[("vf", "tap-c")]] {
        assert_eq!(chosen(ports(), before).0, [pair("tap-a", "vf")]);
    }
}

#[test]
fn interfaces_that_cannot_be_a_pair() {
    let cases = [
        ("tap0", "tap0", "neither the interface itself"),
        ("tap0", "br0", "neither the interface itself"),
        ("tap0", "vf9", "no such interface"),
        ("tap0", "patch0", "tunnels and patch ports have no device"),
        ("patch0", "vf", "tunnels and patch ports have no device"),
        ("tap0", "tap1", "that interface is a standby, too"),
    ];
    for (name, primary, words) in cases {
        let mut ports = vec![port("vf", &[]), port("tap1", OF_VF), port("patch0", &[])];
        ports.retain(|p| p.name != name);
        ports.push(port(name, &[(PRIMARY, primary)]));
        let (pairs, faults) = chosen(ports, &[]);
        assert_eq!(pairs, [pair("tap1", "vf")]);
        assert!(
            faults.len() == 1 && faults[0].1.contains(words),
            "{name} for {primary}: {faults:?}"
        );
    }
}

#[test]
fn devices_of_one_guest_are_recognised() {
    let other = [2, 0, 0, 0, 0, 6];
    for (ports, pairs) in [
        (
            vec![guest("vf", &[], GUEST), guest("tap0", &[], GUEST)],
            vec![pair("tap0", "vf")],
        ),
        (
            vec![guest("ring0", &[], GUEST), guest("tap0", &[], GUEST)],
            vec![pair("ring0", "tap0")],
        ),
        // The same class, another address, three devices, or ruled out.
        (vec![guest("tap1", &[], GUEST), guest("tap0", &[], GUEST)], vec![]),
        (vec![guest("vf", &[], other), guest("tap0", &[], GUEST)], vec![]),
        (
            vec![
                guest("vf", &[], GUEST),
                guest("tap0", &[], GUEST),
                guest("ring0", &[], GUEST),
            ],
            vec![],
        ),
        (
            vec![
                guest("vf", &[], GUEST),
                guest("tap0", &[(PRIMARY, NO_PAIR)], GUEST),
            ],
            vec![],
        ),
        (
            vec![
                guest("vf", &[(PRIMARY, NO_PAIR)], GUEST),
                guest("tap0", &[], GUEST),
            ],
            vec![],
        ),
        (vec![guest("vf", &[], GUEST), port("tap0", &[])], vec![]),
    ] {
        let names: Vec<String> = ports.iter().map(|p| p.name.clone()).collect();
        assert_eq!(chosen(ports, &[]), (pairs, vec![]), "{names:?}");
    }
    // A configured pair is not touched.
    let ports = vec![
        guest("vf", &[], GUEST),
        guest("tap0", &[], GUEST),
        port("tap1", OF_VF),
    ];
    assert_eq!(chosen(ports, &[]).0, [pair("tap1", "vf")]);
}

#[test]
fn settings_of_a_standby_without_effect_are_named() {
    let mut tap = guest("tap0", OF_VF, [2, 0, 0, 0, 0, 6]);
    tap.bundle.tag = Some(7);
    tap.interfaces[0].bfd = Smap([("enable".to_owned(), "true".to_owned())].into());
    let mut vf = guest("vf", &[], GUEST);
    vf.interfaces[0].guest.bad_mac = Some("nonsense".into());
    let mut bridge = bridge(vec![vf, tap]);
    bridge.mirrors.push(MirrorConfig {
        id: "m1".into(),
        all: false,
        sources: vec!["tap0".into()],
        destinations: Vec::new(),
        vlans: Vec::new(),
        target: MirrorTarget::Vlan(9),
        snaplen: 0,
    });
    let choice = choose(&bridge, class, &BTreeMap::new());
    assert_eq!(choice.primaries.len(), 1);
    let settings = "it is the standby of vf, so VLANs and other settings of the port, bfd, mirror m1 have no effect: \
                    set them at vf; external_ids:attached-mac=02:00:00:00:00:06 has no effect: vf has 02:00:00:00:00:05";
    assert_eq!(choice.faults["tap0"], settings);
    let mac = "external_ids:attached-mac=nonsense is no address of a guest: it has no effect";
    assert_eq!(choice.faults["vf"], mac);
}
