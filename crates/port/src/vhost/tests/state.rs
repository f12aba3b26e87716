//! What a port says of itself, and of what it was asked to do.

use super::*;

#[test]
fn status_has_the_keys_that_people_know() {
    let (shared, told) = shared();
    let get = |key: &str| {
        let all = shared.status().extra;
        all.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone())
    };
    assert_eq!(
        (get("mode"), get("status")),
        (Some("client".into()), Some("disconnected".into()))
    );
    assert_eq!(shared.status().extra.len(), 2);
    shared.update(|s| {
        s.connected();
        s.session.features = Features::VERSION_1 | Features::MRG_RXBUF;
        for i in 0..4 {
            s.session.start(i, 256, i < 2);
        }
        s.session.numa = Some(1);
    });
    assert_eq!(told.load(Relaxed), 1);
    let status = shared.status();
    assert!(status.link_up);
    assert_eq!(
        (status.n_rxq, status.numa, status.link_resets),
        (Some(2), Some(1), 1)
    );
    for (key, value) in [
        ("status", "connected"),
        ("socket", "/nowhere"),
        ("features", "0x0000000100008000"),
        ("numa", "1"),
        ("num_of_vrings", "4"),
        ("vring_3_size", "256"),
    ] {
        assert_eq!(get(key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(get("mtu"), None);
    assert!(shared.state.lock().session.polls(0) && !shared.state.lock().session.polls(1));
    shared.update(|s| s.disconnected("it was switched off"));
    let status = shared.status();
    assert!(!status.link_up);
    assert_eq!((status.n_rxq, status.numa), (Some(1), None));
    assert_eq!(get("disconnect_reason").as_deref(), Some("it was switched off"));
}

/// An MTU that is not possible is told where people look; nothing asked for, or another one, makes it good.
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
    let port = VhostPort::open(SERVER, "vm0", &BTreeMap::new(), context).unwrap();
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
fn options_that_do_nothing_are_told() {
    let context = |dummy_numa| VhostContext {
        control: Arc::new(heddle_vhost_user::backend::Control::start().unwrap()),
        changed: Arc::new(|| {}),
        rundir: "/nowhere".into(),
        socket_dir: "/nowhere".into(),
        iommu: false,
        dummy_numa,
    };
    let doubts = |mode, dummy, given: &[(&str, &str)]| {
        let options = given.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        settings::doubts(mode, &options, &context(dummy)).join("; ")
    };
    let path = ("vhost-server-path", "/vm0");
    for retries in ["0", "32", " 8 "] {
        assert_eq!(
            doubts(Mode::Client, false, &[path, ("tx-retries-max", retries)]),
            ""
        );
    }
    assert_eq!(doubts(Mode::Client, true, &[path, ("numa_id", "1")]), "");
    assert_eq!(doubts(Mode::Server, true, &[("numa_id", "1")]), "");
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
        let text = doubts(mode, false, &[(key, value)]);
        assert!(text.contains(says), "{key}={value}: {text}");
    }
}
