//! In a network namespace of a thread's own.

use super::*;
use rustix::thread::UnshareFlags;
use std::net::IpAddr;

/// Runs `work` in a new namespace; false where that is not allowed.
fn alone(work: impl FnOnce() + Send + 'static) -> bool {
    let thread = std::thread::spawn(move || {
        #[allow(
            deprecated,
            reason = "its successor is unsafe; nothing that processes share is unshared here"
        )]
        if rustix::thread::unshare(UnshareFlags::NEWNET).is_err() {
            return false;
        }
        work();
        true
    });
    thread.join().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn route(dst: &str, dst_len: u8, gateway: Option<&str>) -> Route {
    Route {
        dst: ip(dst),
        dst_len,
        gateway: gateway.map(ip),
        mtu_bytes: Some(1400),
        advmss: None,
        priority: None,
        table: None,
        scope: None,
    }
}

#[test]
fn settings_go_from_device_to_device() {
    let ran = alone(|| {
        let net = NetConfig::new(None).unwrap();
        let peer = Change {
            name: Some("b"),
            mac: Some([2, 0, 0, 0, 0, 9]),
            ..Change::default()
        };
        net.add_veth("a", Some(1450), &peer).unwrap();
        let (a, b) = (
            net.device("a").unwrap().unwrap(),
            net.device("b").unwrap().unwrap(),
        );
        assert_eq!(
            (a.kind.as_str(), a.peer, a.mtu_bytes),
            ("veth", Some(b.ifindex), 1450)
        );
        assert!(a.up && !b.up && b.mac == Some([2, 0, 0, 0, 0, 9]));
        let up = Change {
            up: Some(true),
            ..Change::default()
        };
        net.change(b.ifindex, &up).unwrap();
        net.add_address(b.ifindex, ip("10.1.0.2"), 24).unwrap();
        net.add_address(b.ifindex, ip("10.1.0.3"), 24).unwrap();
        net.add_route(b.ifindex, &route("0.0.0.0", 0, Some("10.1.0.1")))
            .unwrap();
        net.add_route(b.ifindex, &route("10.9.0.0", 16, None)).unwrap();
        let settings = net.settings(b.ifindex).unwrap();
        let addresses = |s: &Settings| {
            let mut s = s.clone();
            s.retain_given();
            s.addresses()
        };
        assert_eq!(addresses(&settings), [(ip("10.1.0.2"), 24), (ip("10.1.0.3"), 24)]);
        assert_eq!(settings.routes(), 2);

        net.remove(b.ifindex).unwrap();
        assert_eq!(net.device("a").unwrap(), None);
        net.remove(b.ifindex).unwrap();
        net.add_veth(
            "c",
            None,
            &Change {
                name: Some("d"),
                ..peer
            },
        )
        .unwrap();
        let d = net.device("d").unwrap().unwrap().ifindex;
        net.change(
            d,
            &Change {
                name: Some("b"),
                ..up
            },
        )
        .unwrap();
        net.restore(d, b.ifindex, &settings).unwrap();
        let again = net.settings(d).unwrap();
        assert_eq!(addresses(&again), addresses(&settings));
        assert_eq!(again.routes(), 2);
        net.restore(d, b.ifindex, &settings).unwrap();
        net.remove_addresses(&again).unwrap();
        let mut nothing = net.settings(d).unwrap();
        nothing.retain_given();
        assert!(
            nothing.is_empty() && nothing.addresses().is_empty(),
            "{nothing:?}"
        );
    });
    if !ran {
        println!("SKIP settings_go_from_device_to_device: no new namespaces");
    }
}

#[test]
fn no_such_device() {
    let net = NetConfig::new(None).unwrap();
    assert!(net.devices().unwrap().iter().any(|d| d.name == "lo"));
    assert_eq!(net.device("no-such-dev").unwrap(), None);
    assert_eq!(net.device("a-name-that-is-much-too-long").unwrap(), None);
}
