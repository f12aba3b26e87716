//! Tap devices and packet sockets: order, metadata, queues, and devices that move, vanish and come back.
//! Needs root; each test can run alone.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions
#![allow(clippy::cast_possible_truncation)] // small numbers of the tests' own

mod common;

use common::{Netns, ip, unique, wait_for};
use heddle_packet::{Burst, Csum, Gso, GsoKind, Packet, Pool, Wraps};
use heddle_port::{Birthplace, KeptTaps, Port, RxQueue, SystemPort, TapPort};
use heddle_sys::{TapLinks, netns, steering};
use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

/// The byte at `i` of the test stream: no period that a segment size divides.
fn pattern(i: usize) -> u8 {
    (i % 251) as u8 ^ (i >> 13) as u8
}

/// Not a test by itself: the part of this program that a test starts inside a namespace.
#[test]
fn peer() {
    let Ok(role) = std::env::var("HEDDLE_PEER") else {
        return;
    };
    let (verb, rest) = role.split_once(' ').unwrap();
    match verb {
        "udp-flood" => {
            let (addr, count) = rest.split_once(' ').unwrap();
            let count: usize = count.parse().unwrap();
            for flow in 0..16 {
                let s = UdpSocket::bind(("0.0.0.0", 20_000 + flow)).unwrap();
                for n in 0..count / 16 {
                    s.send_to(&n.to_be_bytes(), addr).unwrap();
                    if n % 16 == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            }
            println!("sent");
        }
        _ => panic!("unknown role {verb}"),
    }
}

/// An IPv4 TCP frame of `payload` bytes behind `tags` VLAN tags, checksum left to the receiver; a GSO packet
/// if longer than a segment.
fn tcp_frame(tags: &[u16], payload: usize) -> Packet {
    let mut b = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for tci in tags {
        b.extend([0x81, 0]);
        b.extend(tci.to_be_bytes());
    }
    b.extend([8, 0, 0x45, 0]);
    b.extend(((40 + payload) as u16).to_be_bytes());
    b.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let ip = b.len() - 20;
    let sum = heddle_wire::checksum::checksum(&b[ip..]);
    b[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    let start = b.len() as u16;
    b.extend([
        0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0x12, 0x34, 0, 0,
    ]);
    b.extend((0..payload).map(pattern));
    let mut p = Packet::from_bytes(&b);
    p.offload.csum = Csum::Partial { start, offset: 16 };
    if payload > 1000 {
        p.offload.gso = Some(Gso {
            kind: GsoKind::Tcp4,
            ecn: false,
            size: 1000,
            hdr_len: start + 20,
            wraps: Wraps::default(),
        });
    }
    p
}

/// Short packets come by the ring and long ones by the socket: they arrive in the order of sending.
#[test]
fn short_and_long_keep_their_order() {
    let Some(_root) = Netns::new("short_and_long_keep_their_order") else {
        return;
    };
    let (one, two) = (format!("hv{}", unique()), format!("hv{}", unique()));
    ip(&format!("link add {one} type veth peer name {two}"));
    let (a, b) = (SystemPort::open(&one).unwrap(), SystemPort::open(&two).unwrap());
    a.set_admin(true).unwrap();
    b.set_admin(true).unwrap();
    wait_for("link", || b.status().link_up);
    let mut rx = b.open_rx(1).unwrap().remove(0);
    let mut tx = a.open_tx(0, 1).unwrap();
    let mut pool = Pool::new(64);
    // Runs of both kinds, longer and shorter than a burst; several rounds take the ring past its end.
    for round in 0..12_u32 {
        drain(&mut rx, &mut pool);
        let lengths = (0..100_u32).map(|i| {
            if (i * 7 + round) % 11 < 5 || (40..75).contains(&i) {
                9000
            } else {
                50
            }
        });
        let mut sent: Vec<Packet> = lengths.map(|n| tcp_frame(&[], n)).collect();
        for (i, p) in sent.iter_mut().enumerate() {
            p.head_mut()[..6].copy_from_slice(&[2, 0, 0, 0, round as u8, i as u8]);
        }
        let c = tx.tx(&mut pool, &sent.iter().collect::<Vec<_>>());
        assert_eq!(c.sent, 100, "{c:?}");
        let mut got = Vec::new();
        wait_for("arrival", || {
            got.extend(
                drain(&mut rx, &mut pool)
                    .into_iter()
                    .filter(|f| f[..5] == [2, 0, 0, 0, round as u8]),
            );
            got.len() >= 100
        });
        let sent: Vec<Vec<u8>> = sent.iter().map(Packet::to_vec).collect();
        assert!(got == sent, "round {round}: order or bytes changed");
    }
    assert!(rx.dropped().is_empty(), "{:?}", rx.dropped());
    ip(&format!("link del {one}"));
}

/// The kernel takes a tag out of a packet that it receives; the receive queue puts it back, metadata
/// included.
#[test]
fn tags_and_metadata_survive_a_veth_pair() {
    let Some(_root) = Netns::new("tags_and_metadata_survive_a_veth_pair") else {
        return;
    };
    let (one, two) = (format!("hv{}", unique()), format!("hv{}", unique()));
    ip(&format!("link add {one} type veth peer name {two}"));
    let (a, b) = (SystemPort::open(&one).unwrap(), SystemPort::open(&two).unwrap());
    a.set_admin(true).unwrap();
    b.set_admin(true).unwrap();
    wait_for("link", || b.status().link_up);
    let mut rx = b.open_rx(1).unwrap().remove(0);
    let mut tx = a.open_tx(0, 1).unwrap();
    let mut pool = Pool::new(64);
    let tags: [&[u16]; 4] = [&[], &[0x2007], &[5, 6], &[0]];
    for payload in [10, 900, 30_000, 64_000] {
        for tags in tags {
            let sent = tcp_frame(tags, payload);
            drain(&mut rx, &mut pool);
            let c = tx.tx(&mut pool, &[&sent]);
            assert_eq!(c.sent, 1, "{payload} bytes, tags {tags:?}: {c:?}");
            let (mut burst, mut got) = (Burst::new(), None);
            wait_for("arrival", || {
                rx.rx(&mut pool, &mut burst);
                got = burst.drain(..).find(|p| p.to_vec() == sent.to_vec());
                got.is_some()
            });
            let (got, sent) = (got.unwrap().offload, sent.offload);
            assert_eq!(got.csum, sent.csum, "{payload} bytes, tags {tags:?}");
            assert_eq!(
                got.gso.map(|g| (g.kind, g.size)),
                sent.gso.map(|g| (g.kind, g.size))
            );
        }
    }
    assert!(rx.dropped().is_empty(), "{:?}", rx.dropped());
    ip(&format!("link del {one}"));
}

#[test]
fn tap_is_followed_into_a_namespace() {
    let Some(ns) = Netns::new("tap_is_followed_into_a_namespace") else {
        return;
    };
    let name = format!("ht{}", unique());
    let port = TapPort::open(&name).unwrap();
    let home = port.status();
    assert!(home.ifindex > 0 && home.mtu == 1500 && !home.admin_up, "{home:?}");
    assert!(
        home.extra.contains(&("driver_name".into(), "tun".into())),
        "{home:?}"
    );
    ip(&format!("link set {name} netns {}", ns.0));
    ns.ip(&format!(
        "link set {name} name pod0 mtu 1400 address 02:00:00:00:00:77 up"
    ));
    let away = port.status();
    assert_eq!(
        (away.mtu, away.admin_up, away.link_up),
        (1400, true, true),
        "{away:?}"
    );
    assert_eq!(away.mac, [2, 0, 0, 0, 0, 0x77]);
    port.set_mtu(1300).unwrap();
    port.set_mac([2, 0, 0, 0, 0, 0x78]).unwrap();
    port.set_admin(false).unwrap();
    let changed = port.status();
    assert_eq!(
        (changed.mtu, changed.admin_up, changed.mac[5]),
        (1300, false, 0x78),
        "{changed:?}"
    );
    // More queues join it there.
    assert_eq!(port.open_rx(2).unwrap().len(), 2);
    assert_eq!(port.status().ifindex, changed.ifindex);
}

#[test]
fn tap_goes_with_its_namespace() {
    let Some(ns) = Netns::new("tap_goes_with_its_namespace") else {
        return;
    };
    let name = format!("ht{}", unique());
    let port = TapPort::open(&name).unwrap();
    ip(&format!("link set {name} netns {}", ns.0));
    let there = port.status();
    assert!(there.ifindex > 0 && there.mtu == 1500, "{there:?}");
    drop(ns);
    wait_for("its end", || port.status().ifindex == 0);
    let gone = port.status();
    assert!(
        gone.mtu == 1500 && !gone.link_up,
        "the last known values stay: {gone:?}"
    );
}

/// Waits until no queue of the owner's devices is open. A program that another test of this process starts
/// has copies of all descriptors for the moment between fork and exec.
fn wait_closed(owner: &str) {
    let mark = format!("heddle:{owner}:");
    let is_open = |link: &heddle_sys::tap_links::Link| {
        link.alias.starts_with(&mark) && link.tap.is_some_and(|tap| tap.queues > 0)
    };
    wait_for("queues to be closed", || {
        let all = netns::all()
            .into_iter()
            .filter_map(|ns| TapLinks::new(Some(&ns)).ok()?.all().ok());
        !all.flatten().any(|link| is_open(&link))
    });
}

#[test]
fn kept_taps_are_found_taken_over_and_removed() {
    let Some(ns) = Netns::new("kept_taps_are_found_taken_over_and_removed") else {
        return;
    };
    let owner = unique();
    let name = format!("ht{}", unique());
    let kept = || {
        let kept = KeptTaps::new(&owner);
        kept.look();
        kept
    };
    for n_rxq in [1, 2] {
        let index = kept().open(&name, n_rxq).unwrap().status().ifindex;
        ip(&format!("link set {name} netns {}", ns.0));
        wait_closed(&owner);
        ns.ip(&format!("link set {name} name pod0 up"));
        // Another owner makes one of its own; this one's stays.
        let stranger = unique();
        let other = KeptTaps::new(&stranger);
        other.look();
        other.remove_others(|_| false);
        let second = other.open(&name, 1).unwrap();
        assert!(second.status().ifindex != index);
        second.forget();
        drop(second);
        wait_closed(&stranger);
        let found = kept();
        found.remove_others(|port| port == name);
        let port = found.open(&name, 1).unwrap();
        assert_eq!(port.status().ifindex, index);
        assert_eq!(port.open_rx(n_rxq).unwrap().len(), n_rxq);
        assert!(!found.settle());
        // Held: neither taken nor removed.
        let second = kept();
        let refused = second.open(&name, n_rxq).map(drop).unwrap_err().to_string();
        assert!(refused.ends_with("(Device or resource busy)"), "{refused}");
        assert!(second.settle(), "worth another look");
        kept().remove_others(|_| false);
        assert_eq!(port.status().ifindex, index);
        if n_rxq == 1 {
            drop(port);
            wait_closed(&owner);
            kept().remove_others(|_| false);
        } else {
            port.forget();
            drop(port);
        }
        wait_closed(&owner);
        ip(&format!("tuntap add {name} mode tap"));
        let index = kept().open(&name, 1).unwrap().status().ifindex;
        wait_closed(&owner);
        let port = kept().open(&name, 2).unwrap();
        assert_eq!(
            (port.status().ifindex, port.status().n_rxq),
            (index, Some(1)),
            "one that was there"
        );
        port.forget();
        drop(port);
        wait_closed(&owner);
        let port = KeptTaps::new(&owner).open(&name, 1).unwrap();
        assert!(port.status().ifindex != index, "it went with its port");
        port.forget();
        drop(port);
        wait_closed(&owner);
    }
}

#[test]
fn a_tap_is_made_in_another_namespace() {
    let Some(ns) = Netns::new("a_tap_is_made_in_another_namespace") else {
        return;
    };
    let (owner, name) = (unique(), format!("ht{}", unique()));
    let path = format!("/run/netns/{}", ns.0);
    let id = netns::id(&netns::open(Path::new(&path)).unwrap()).unwrap();
    let at = |id| {
        Some(Birthplace {
            namespace: Path::new(&path),
            id,
            device: "pod0",
        })
    };
    let kept = || {
        let kept = KeptTaps::new(&owner);
        kept.look();
        kept
    };
    let here = || Path::new("/sys/class/net").join(&name).exists();
    // The namespace is not the one meant: the device is made here, as without a birthplace.
    let port = kept().open_at(&name, 1, at(id + 1)).unwrap();
    assert!(here());
    port.forget();
    drop(port);
    wait_closed(&owner);
    let port = kept().open_at(&name, 1, at(id)).unwrap();
    assert!(!here());
    let links = || {
        let out = ns.command("ip").args(["-o", "link"]).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let there = links();
    assert!(there.contains(&format!("heddle:{owner}:{name}")), "{there}");
    port.set_mtu(1400).unwrap();
    port.set_admin(true).unwrap();
    let status = port.status();
    assert!(
        status.mtu == 1400 && status.admin_up && status.ifindex > 0,
        "{status:?}"
    );
    // A device that has not changed for long is queried less often, and its changes are seen all the same.
    for _ in 0..20 {
        port.status();
    }
    ns.ip("link set pod0 mtu 1300");
    assert!((0..5).any(|_| port.status().mtu == 1300));
    port.set_mtu(1400).unwrap();
    assert_eq!(port.status().mtu, 1400);
    // Another program has a device of that name: the port's device is made here.
    let other = format!("{name}x");
    let second = kept().open_at(&other, 1, at(id)).unwrap();
    assert_eq!(second.status().mtu, 1500);
    second.forget();
    drop(second);
    // The device outlives its port, and is found where it is.
    drop(port);
    wait_closed(&owner);
    let port = kept().open_at(&name, 2, None).unwrap();
    assert_eq!(port.status().ifindex, status.ifindex);
    port.forget();
    drop(port);
    wait_closed(&owner);
    assert!(!links().contains("pod0"));
}

#[test]
fn tap_names_are_exclusive() {
    let Some(_root) = Netns::new("tap_names_are_exclusive") else {
        return;
    };
    let name = format!("ht{}", unique());
    ip(&format!("link add {name} type veth peer name o{name}"));
    let refused = TapPort::open(&name).map(drop);
    ip(&format!("link del {name}"));
    let text = refused.unwrap_err().to_string();
    assert!(
        text.starts_with(&format!("could not open network device {name} (")),
        "{text}"
    );
    drop(TapPort::open(&name).unwrap());
    let again = TapPort::open(&name).expect("the device went with its port");
    assert_eq!(again.name(), name);
}

/// Sends a broadcast frame and returns whether the namespace's device counts it.
fn arrives(port: &dyn Port, worker: usize, n: usize) -> bool {
    let mut frame = vec![0xff; 60];
    frame[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
    let c = port
        .open_tx(worker, n)
        .unwrap()
        .tx(&mut Pool::new(1), &[&Packet::from_bytes(&frame)]);
    c.sent == 1
}

#[test]
fn tap_queues_come_and_go() {
    let Some(_root) = Netns::new("tap_queues_come_and_go") else {
        return;
    };
    let port = TapPort::open(&format!("ht{}", unique())).unwrap();
    assert!(!arrives(&port, 0, 1), "a device that is down takes nothing");
    port.set_admin(true).unwrap();
    let three = port.open_rx(3).unwrap();
    assert_eq!(three.len(), 3);
    let mut late = port.open_tx(2, 3).unwrap();
    assert!(arrives(&port, 0, 3) && arrives(&port, 2, 3));
    drop(three);
    assert_eq!(port.open_rx(1).unwrap().len(), 1);
    // The queue of worker 2 is detached now; its transmit queue falls back.
    let mut frame = vec![0xff; 60];
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    let p = Packet::from_bytes(&frame);
    assert_eq!(late.tx(&mut Pool::new(1), &[&p, &p]).sent, 2);
    // Each packet is counted, and none of a later burst is lost.
    port.set_admin(false).unwrap();
    let lost = late.tx(&mut Pool::new(1), &[&p, &p, &p]);
    assert_eq!((lost.sent, lost.down), (0, 3));
    port.set_admin(true).unwrap();
    assert_eq!(late.tx(&mut Pool::new(1), &[&p, &p]).sent, 2);
}

fn drain(queue: &mut Box<dyn RxQueue>, pool: &mut Pool) -> Vec<Vec<u8>> {
    let mut burst = Burst::new();
    let mut out = Vec::new();
    while queue.rx(pool, &mut burst) > 0 {
        out.extend(burst.iter().map(Packet::to_vec));
        burst.drain(..).for_each(|p| pool.put(p));
    }
    out
}

/// A namespace with a veth whose outer end has the returned name.
fn veth(test: &str) -> Option<(Netns, String)> {
    let ns = Netns::new(test)?;
    let outer = format!("hv{}", unique());
    attach(&ns, &outer);
    Some((ns, outer))
}

fn attach(ns: &Netns, outer: &str) {
    ip(&format!(
        "link add {outer} type veth peer name in0 netns {}",
        ns.0
    ));
    ns.ip("link set in0 up");
    ns.ip("addr add 10.66.0.1/24 dev in0");
    ns.ip("neigh add 10.66.0.2 lladdr 02:00:00:00:00:02 dev in0");
}

fn udp_count(frames: &[Vec<u8>]) -> usize {
    frames
        .iter()
        .filter(|f| f.len() > 23 && f[12..14] == [8, 0] && f[23] == 17)
        .count()
}

#[test]
fn device_comes_back() {
    let Some((ns, outer)) = veth("device_comes_back") else {
        return;
    };
    let port = SystemPort::open(&outer).unwrap();
    port.set_admin(true).unwrap();
    let mut rx = port.open_rx(1).unwrap();
    let mut tx = port.open_tx(0, 1).unwrap();
    let mut pool = Pool::new(64);
    let first = port.status();
    assert!(first.link_up && first.admin_up && first.ifindex > 0, "{first:?}");
    assert!(
        first.extra.contains(&("driver_name".into(), "veth".into())),
        "{first:?}"
    );
    let send = |tx: &mut Box<dyn heddle_port::TxQueue>, pool: &mut Pool| {
        let mut f = vec![0xff; 60];
        f[12..14].copy_from_slice(&[0x88, 0xb5]);
        tx.tx(pool, &[&Packet::from_bytes(&f)])
    };
    assert_eq!(send(&mut tx, &mut pool).sent, 1);

    ip(&format!("link del {outer}"));
    let gone = port.status();
    assert_eq!((gone.ifindex, gone.link_up, gone.admin_up), (0, false, false));
    assert_eq!(gone.link_resets, first.link_resets + 1);
    assert_eq!(send(&mut tx, &mut pool).down, 1);
    assert!(drain(&mut rx[0], &mut pool).len() < 20);

    attach(&ns, &outer);
    port.set_admin(true).unwrap();
    wait_for("link", || port.status().link_up);
    assert!(!port.stale());
    drain(&mut rx[0], &mut pool);
    assert_eq!(send(&mut tx, &mut pool).sent, 1);
    let flood = ns.peer("udp-flood 10.66.0.2:9 160");
    assert!(flood.finish().contains("sent"));
    assert_eq!(udp_count(&drain(&mut rx[0], &mut pool)), 160);
}

#[test]
fn fanout_shares_and_loses_nothing() {
    let Some((ns, outer)) = veth("fanout_shares_and_loses_nothing") else {
        return;
    };
    let port = SystemPort::open(&outer).unwrap();
    port.set_admin(true).unwrap();
    let mut rx = port.open_rx(3).unwrap();
    wait_for("link", || port.status().link_up);
    let flood = ns.peer("udp-flood 10.66.0.2:9 480");
    assert!(flood.finish().contains("sent"));
    let mut pool = Pool::new(64);
    let counts: Vec<usize> = rx.iter_mut().map(|q| udp_count(&drain(q, &mut pool))).collect();
    assert_eq!(counts.iter().sum::<usize>(), 480, "{counts:?}");
    assert!(counts.iter().filter(|n| **n > 0).count() >= 2, "{counts:?}");
    assert_eq!(port.status().rx_dropped, 0);
    ip(&format!("link del {outer}"));
    attach(&ns, &outer);
    wait_for("notice", || port.stale() || port.status().ifindex == 0);
    assert!(port.stale(), "members of a group cannot be bound again");
    drop(rx);
    assert_eq!(port.open_rx(3).unwrap().len(), 3);
    assert!(!port.stale());
}

/// More queues, fewer, and the same number. Earlier packets are in the old ones, later packets in the new
/// ones, and no packet is in both.
#[test]
fn new_queues_take_over() {
    let Some((ns, outer)) = veth("new_queues_take_over") else {
        return;
    };
    let port = SystemPort::open(&outer).unwrap();
    port.set_admin(true).unwrap();
    let mut old = port.open_rx(1).unwrap();
    wait_for("link", || port.status().link_up);
    let mut pool = Pool::new(64);
    for n in [3, 2, 2, 1, 1] {
        assert!(ns.peer("udp-flood 10.66.0.2:9 160").finish().contains("sent"));
        wait_for("arrival", || old.iter_mut().any(|q| q.arm()));
        let mut new = port.open_rx(n).unwrap();
        assert!(ns.peer("udp-flood 10.66.0.2:9 320").finish().contains("sent"));
        let mut count = |queues: &mut Vec<Box<dyn RxQueue>>| -> usize {
            queues.iter_mut().map(|q| udp_count(&drain(q, &mut pool))).sum()
        };
        let (before, mut after) = (count(&mut old), 0);
        wait_for("all of them", || {
            after += count(&mut new);
            before + after >= 480
        });
        assert_eq!(before + after, 480, "{n} queues: {before} and {after}");
        assert!(before > 0 && count(&mut old) == 0, "{n} queues");
        assert_eq!(port.status().rx_dropped, 0);
        old = new;
    }
}

#[test]
fn limits_and_own_packets() {
    let Some((ns, outer)) = veth("limits_and_own_packets") else {
        return;
    };
    let port = SystemPort::open(&outer).unwrap();
    port.set_admin(true).unwrap();
    port.set_mtu(1400).unwrap();
    port.set_mac([2, 0, 0, 0, 0, 0x31]).unwrap();
    wait_for("link", || port.status().link_up);
    let status = port.status();
    assert_eq!((status.mtu, status.mac[5]), (1400, 0x31));
    assert!(port.set_mtu(10).is_err());
    let mut rx = port.open_rx(1).unwrap();
    let mut tx = port.open_tx(0, 1).unwrap();
    let mut pool = Pool::new(64);
    drain(&mut rx[0], &mut pool);
    let frame = |len: usize| {
        let mut f = vec![0xff; len];
        f[12..14].copy_from_slice(&[0x88, 0xb5]);
        Packet::from_bytes(&f)
    };
    let (fits, long) = (frame(1414), frame(1500));
    let all: Vec<&Packet> = (0..50).map(|i| if i % 5 == 4 { &long } else { &fits }).collect();
    let c = tx.tx(&mut pool, &all);
    assert_eq!((c.sent, c.too_long, c.bytes), (40, 10, 40 * 1414), "{c:?}");
    assert!(
        !drain(&mut rx[0], &mut pool)
            .iter()
            .any(|f| f[12..14] == [0x88, 0xb5]),
        "own packets come back"
    );
    port.set_admin(false).unwrap();
    let c = tx.tx(&mut pool, &[&fits]);
    assert_eq!(c.down, 1, "{c:?}");
    port.set_admin(true).unwrap();
    wait_for("link", || port.status().link_up);
    assert_eq!(tx.tx(&mut pool, &[&fits]).sent, 1);
    let flood = ns.peer("udp-flood 10.66.0.2:9 32");
    assert!(flood.finish().contains("sent"));
    assert_eq!(udp_count(&drain(&mut rx[0], &mut pool)), 32);
}

#[test]
fn steering_is_set_and_undone() {
    let Some((_ns, outer)) = veth("steering_is_set_and_undone") else {
        return;
    };
    let mask = || std::fs::read_to_string(format!("/sys/class/net/{outer}/queues/rx-0/rps_cpus")).unwrap();
    let port = SystemPort::open(&outer).unwrap();
    let before = mask();
    port.steer(&[0]);
    assert!(mask().trim().ends_with('1'), "{}", mask());
    drop(port);
    assert_eq!(mask(), before);
    std::fs::write(format!("/sys/class/net/{outer}/queues/rx-0/rps_cpus"), "2").ok();
    let theirs = mask();
    let port = SystemPort::open(&outer).unwrap();
    port.steer(&[0]);
    drop(port);
    assert_eq!(mask(), theirs, "what the owner has set stays");
    steering::set(&outer, &[]).unwrap();
    let port = SystemPort::open(&outer).unwrap();
    port.steer(&[0]);
    assert!(steering::is(&outer, &[0]).unwrap());
    if steering::set(&outer, &[0, 1]).is_ok() {
        let theirs = mask();
        drop(port);
        assert_eq!(mask(), theirs, "also what the owner has set meanwhile");
    }
}
