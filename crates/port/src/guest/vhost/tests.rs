//! Options, MTU and status of vhost-user ports.

use super::*;
use std::collections::BTreeMap;

/// An impossible MTU is shown where people look; without a configured MTU, or with another one, the error
/// goes.
#[test]
fn an_impossible_mtu_is_an_error_until_it_is_gone() {
    let lab = tempfile::tempdir().unwrap();
    let context = VhostContext {
        control: Arc::new(heddle_vhost_user::backend::Control::start().unwrap()),
        changed: Arc::new(|| {}),
        rundir: lab.path().into(),
        socket_dir: lab.path().into(),
        iommu: false,
        dummy_numa: false,
    };
    let port = open_vhost(SERVER, "vm0", &BTreeMap::new(), context).unwrap();
    let seen = || (port.status().mtu, port.status().error);
    for mtu in [68, 9000, 65535] {
        port.set_mtu(mtu).unwrap();
        assert_eq!(seen(), (mtu, None));
    }
    for mtu in [67, 65536, u32::MAX] {
        port.set_mtu(mtu).unwrap_err();
        let (mtu_now, error) = seen();
        assert_eq!(mtu_now, 65535);
        assert!(
            error
                .unwrap()
                .contains(&format!("an MTU of {mtu} is not possible"))
        );
    }
    port.set_mtu(port.default_mtu().unwrap()).unwrap();
    assert_eq!(seen(), (1500, None));
}

#[test]
fn options_without_effect_are_reported() {
    let context = |dummy_numa| VhostContext {
        control: Arc::new(heddle_vhost_user::backend::Control::start().unwrap()),
        changed: Arc::new(|| {}),
        rundir: "/nowhere".into(),
        socket_dir: "/nowhere".into(),
        iommu: false,
        dummy_numa,
    };
    let warnings = |mode, dummy, given: &[(&str, &str)]| {
        let options = given.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        settings::warnings(mode, &options, &context(dummy)).join("; ")
    };
    let path = ("vhost-server-path", "/vm0");
    for retries in ["0", "32", " 8 "] {
        assert_eq!(
            warnings(Mode::Client, false, &[path, ("tx-retries-max", retries)]),
            ""
        );
    }
    assert_eq!(warnings(Mode::Client, true, &[path, ("numa_id", "1")]), "");
    assert_eq!(warnings(Mode::Server, true, &[("numa_id", "1")]), "");
    for (mode, key, value, says) in [
        (
            Mode::Client,
            "tx-retries-max",
            "33",
            "no number from 0 to 32: 8 is used",
        ),
        (Mode::Client, "tx-retries-max", "-1", "no number"),
        (Mode::Client, "tx-retries-max", "many", "no number"),
        (Mode::Client, "n_rxq", "2", "the guest decides"),
        (Mode::Client, "numa_id", "1", "not known"),
        (Mode::Client, "vhost_server_path", "/vm0", "not known"),
        (
            Mode::Server,
            "vhost-server-path",
            "/vm0",
            "not configurable (vhost-server-path)",
        ),
    ] {
        let text = warnings(mode, false, &[(key, value)]);
        assert!(text.contains(says), "{key}={value}: {text}");
    }
}
