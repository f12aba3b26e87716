use super::*;
use heddle_flow::{FlowKey, FlowMask};
use heddle_wire::eth::ethertype;
use proptest::prelude::*;
use std::collections::HashSet;

const MAC_A: Mac = [0xaa, 0, 0, 0, 0, 1];
const MAC_B: Mac = [0xaa, 0, 0, 0, 0, 2];
const MINUTE_MS: u64 = 60_000;

fn ip(n: u32) -> IpAddr {
    std::net::Ipv4Addr::from_bits(n).into()
}

fn port(port: u32) -> Origin {
    Origin::Port { bridge: 1, port }
}

type Notified = Arc<Mutex<Vec<u64>>>;

fn table() -> (Neighbours, Notified) {
    let notified = Notified::default();
    let list = notified.clone();
    (
        Neighbours::new(Box::new(move |thing| list.lock().push(thing))),
        notified,
    )
}

fn take(notified: &Notified) -> Vec<u64> {
    std::mem::take(&mut notified.lock())
}

#[test]
fn only_changes_are_notified() {
    let (n, notified) = table();
    assert_eq!(n.lookup("br0", ip(1), 0), None);
    assert_eq!(n.learn("br0", (ip(1), MAC_A), port(1), 0), Learned::New);
    assert_eq!(take(&notified), [n.thing("br0", ip(1))]);
    assert_eq!(n.learn("br0", (ip(1), MAC_A), port(1), 1), Learned::Same);
    n.set("br0", ip(1), MAC_A, 2);
    assert!(take(&notified).is_empty());
    assert_eq!(n.lookup("br0", ip(1), 3), Some(MAC_A));
    assert_eq!(n.lookup("br1", ip(1), 3), None);
    assert_eq!(n.learn("br0", (ip(2), MAC_A), port(1), 4), Learned::New);
    assert_eq!(take(&notified), [n.thing("br0", ip(2))]);
    assert_eq!(n.learn("br0", (ip(1), MAC_B), port(2), 5), Learned::New);
    assert_eq!(take(&notified), [n.thing("br0", ip(1))]);
    n.flush(Some("br1"));
    assert!(take(&notified).is_empty());
    n.flush(Some("br0"));
    let gone: HashSet<u64> = take(&notified).into_iter().collect();
    assert_eq!(gone, HashSet::from([1, 2].map(|i| n.thing("br0", ip(i)))));
    assert_eq!(n.lookup("br0", ip(1), 6), None);
}

#[test]
fn used_entries_stay() {
    let (n, notified) = table();
    n.set("br0", ip(1), MAC_A, 0);
    n.set("br0", ip(2), MAC_A, 0);
    take(&notified);
    let entry = n.find("br0", ip(1), 14 * MINUTE_MS).expect("it is there");
    n.expire(15 * MINUTE_MS);
    assert_eq!(take(&notified), [n.thing("br0", ip(2))]);
    entry.used(16 * MINUTE_MS);
    n.expire(30 * MINUTE_MS);
    assert!(take(&notified).is_empty());
    // Expired, though not removed yet.
    assert_eq!(n.lookup("br0", ip(1), 31 * MINUTE_MS), None);
    assert!(n.entries(31 * MINUTE_MS)[0].stale);
    n.learn("br0", (ip(1), MAC_A), port(1), 31 * MINUTE_MS);
    assert_eq!(take(&notified), [n.thing("br0", ip(1))], "there was none");
    assert!(n.set_aging_s(10) && !n.set_aging_s(0) && !n.set_aging_s(3601));
    n.expire(31 * MINUTE_MS + 9_999);
    assert!(take(&notified).is_empty());
    n.expire(31 * MINUTE_MS + 10_000);
    assert_eq!(take(&notified), [n.thing("br0", ip(1))]);
}

#[test]
fn a_port_that_makes_neighbours_up_evicts_its_own() {
    let (n, _) = table();
    n.set("br0", ip(1), MAC_A, 0);
    n.learn("br0", (ip(2), MAC_A), port(2), 0);
    for i in 0..3 * MAX_ENTRIES {
        let i = u32::try_from(i).expect("few");
        n.learn("br0", (ip(100 + i), MAC_B), port(7), u64::from(i) / 1000);
        // Used all the time, so other entries of the port are evicted first.
        assert_eq!(n.lookup("br0", ip(100), u64::from(i) / 1000), Some(MAC_B));
    }
    assert_eq!(n.entries(0).len(), MAX_ENTRIES);
    assert_eq!(n.lookup("br0", ip(1), 20), Some(MAC_A));
    assert_eq!(n.lookup("br0", ip(2), 20), Some(MAC_A));
    let last = u32::try_from(3 * MAX_ENTRIES).expect("few") + 99;
    assert_eq!(n.lookup("br0", ip(last), 20), Some(MAC_B));
    assert_eq!(n.lookup("br0", ip(101), 20), None);
}

#[test]
fn the_kernel_knows_some() {
    let (n, notified) = table();
    let key = |i| NeighKey {
        bridge: "br0".into(),
        ip: ip(i),
    };
    let known = |mac, in_doubt| SystemNeighbour { mac, in_doubt };
    n.set_system([(key(1), known(MAC_A, false)), (key(2), known(MAC_A, false))].into());
    take(&notified);
    assert_eq!(n.lookup("br0", ip(1), 0), Some(MAC_A));
    n.set("br0", ip(1), MAC_B, 0);
    assert_eq!(n.lookup("br0", ip(1), 0), Some(MAC_B));
    take(&notified);
    n.set_system([(key(1), known(MAC_A, false)), (key(3), known(MAC_A, false))].into());
    let changed: HashSet<u64> = take(&notified).into_iter().collect();
    assert_eq!(changed, HashSet::from([2, 3].map(|i| n.thing("br0", ip(i)))));
    assert_eq!(n.lookup("br0", ip(2), 0), None);
    // A neighbour that the kernel is no longer sure of is notified, unless there is an entry.
    n.set_system([(key(1), known(MAC_A, true)), (key(3), known(MAC_A, true))].into());
    assert_eq!(take(&notified), [n.thing("br0", ip(3))]);
    assert_eq!(n.lookup("br0", ip(3), 0), Some(MAC_A));
    n.set_system([(key(1), known(MAC_A, false)), (key(3), known(MAC_A, false))].into());
    assert!(take(&notified).is_empty());
}

/// A neighbour in doubt is used, and requested until there is a reply.
#[test]
fn neighbours_in_doubt_are_requested() {
    let (n, notified) = table();
    let key = NeighKey {
        bridge: "br0".into(),
        ip: ip(1),
    };
    let known = SystemNeighbour {
        mac: MAC_A,
        in_doubt: true,
    };
    n.set_system([(key, known)].into());
    let to = NeighRequest {
        bridge: 1,
        port: 1,
        source: ip(9),
        target: ip(1),
    };
    take(&notified);
    assert_eq!(n.request("br0", &to, 0), RequestOutcome::New);
    n.expire(OPEN_MS);
    assert_eq!(take(&notified), [n.thing("br0", ip(1))], "to be requested again");
    assert_eq!(n.request("br0", &to, OPEN_MS), RequestOutcome::New);
    n.set("br0", ip(1), MAC_B, OPEN_MS);
    take(&notified);
    n.expire(2 * OPEN_MS);
    assert!(take(&notified).is_empty());
    assert_eq!(n.lookup("br0", ip(1), 2 * OPEN_MS), Some(MAC_B));
}

#[test]
fn packets_advertise() {
    let found = |key: &FlowKey| advertised(key, &mut FlowMask::default());
    let arp = |op, from, to| FlowKey {
        dl_type: ethertype::ARP,
        nw_proto: op,
        nw_src: from,
        nw_dst: to,
        arp_sha: MAC_A,
        ..FlowKey::default()
    };
    assert_eq!(found(&arp(2, 1, 2)), Some((ip(1), MAC_A)));
    assert_eq!(found(&arp(1, 1, 1)), Some((ip(1), MAC_A)));
    assert_eq!(found(&arp(1, 1, 2)), None);
    assert_eq!(found(&arp(2, 0, 2)), None);
    let without_mac = FlowKey {
        arp_sha: [0; 6],
        ..arp(2, 1, 2)
    };
    assert_eq!(found(&without_mac), None);
    let nd = FlowKey {
        dl_type: ethertype::IPV6,
        nw_proto: 58,
        tp_src: 136,
        nd_target: [0x20; 16],
        arp_tha: MAC_B,
        ..FlowKey::default()
    };
    assert_eq!(found(&nd), Some((IpAddr::from([0x20; 16]), MAC_B)));
    for other in [
        FlowKey { tp_src: 135, ..nd },
        FlowKey { tp_dst: 1, ..nd },
        FlowKey { nw_frag: 3, ..nd },
        FlowKey { nw_proto: 17, ..nd },
        FlowKey {
            arp_tha: [0; 6],
            ..nd
        },
    ] {
        assert_eq!(found(&other), None);
    }
}

proptest! {
    /// A packet with the same bits under the mask advertises the same.
    #[test]
    fn masks_have_all_bits_that_were_read(words in prop::collection::vec(any::<u8>(), 8), other in prop::collection::vec(any::<u8>(), 8)) {
        let key = |b: &[u8]| FlowKey {
            dl_type: [ethertype::ARP, ethertype::IPV6, ethertype::IP][usize::from(b[0] % 3)],
            nw_proto: [1, 2, 58][usize::from(b[1] % 3)],
            nw_src: (b[2] % 3).into(),
            nw_dst: (b[3] % 3).into(),
            tp_src: [135, 136][usize::from(b[4] % 2)],
            tp_dst: (b[5] % 2).into(),
            arp_sha: [b[6] % 2; 6],
            arp_tha: [b[7] % 2; 6],
            nd_target: [b[2] % 3; 16],
            nw_frag: [0, 1, 3][usize::from(b[3] % 3)],
            ..FlowKey::default()
        };
        let (one, other) = (key(&words), key(&other));
        let mut mask = FlowMask::default();
        let found = advertised(&one, &mut mask);
        let mut twin = other;
        for ((t, o), m) in twin.words_mut().iter_mut().zip(one.words()).zip(mask.0.words()) {
            *t = *t & !m | o & m;
        }
        prop_assert_eq!(advertised(&twin, &mut FlowMask::default()), found);
    }

    /// The table is compared with a plain map, as long as there is room.
    #[test]
    fn beside_a_map(steps in prop::collection::vec((0_u8..6, 0_u32..4, 0_u8..3, 0_u64..200_000), 1..200)) {
        let (n, notified) = table();
        let mut plain: HashMap<u32, (Mac, u64)> = HashMap::new();
        let mut now_ms = 0;
        prop_assert!(n.set_aging_s(300));
        for (what, i, mac, later_ms) in steps {
            now_ms += later_ms;
            let mac = [2, 0, 0, 0, 0, mac];
            // An expired entry is not found, whether `expire` has run or not.
            plain.retain(|_, (_, used)| *used + 300_000 > now_ms);
            match what {
                0 | 1 => {
                    n.learn("br0", (ip(i), mac), port(u32::from(what)), now_ms);
                    plain.insert(i, (mac, now_ms));
                }
                2 => {
                    n.set("br0", ip(i), mac, now_ms);
                    plain.insert(i, (mac, now_ms));
                }
                3 => n.expire(now_ms),
                4 if later_ms < 10_000 => {
                    n.flush(None);
                    plain.clear();
                }
                _ => {
                    let known = plain.get_mut(&i);
                    let mac = known.map(|(mac, used)| {
                        *used = now_ms;
                        *mac
                    });
                    prop_assert_eq!(n.lookup("br0", ip(i), now_ms), mac);
                }
            }
        }
        let listed: HashMap<u32, Mac> = n
            .entries(now_ms)
            .into_iter()
            .filter(|s| !s.stale)
            .map(|s| match s.key.ip {
                IpAddr::V4(a) => (a.to_bits(), s.mac),
                IpAddr::V6(_) => unreachable!("there are none"),
            })
            .collect();
        prop_assert_eq!(listed, plain.into_iter().map(|(i, (mac, _))| (i, mac)).collect::<HashMap<_, _>>());
        drop(notified);
    }
}

fn key_of(frame: &[u8]) -> FlowKey {
    let mut key = FlowKey::default();
    heddle_flow::extract::extract(
        frame,
        &heddle_flow::extract::Hint::ethernet(frame.len()),
        &mut key,
    );
    key
}

#[test]
fn request_frames_are_well_formed() {
    let at = |text: &str| -> IpAddr { text.parse().expect("an address") };
    let arp = request_frame(MAC_A, at("10.0.0.1"), at("10.0.0.2")).expect("of one family");
    let key = key_of(&arp);
    assert_eq!(
        (key.dl_type, key.dl_dst, key.dl_src),
        (ethertype::ARP, [0xff; 6], MAC_A)
    );
    assert_eq!(
        (key.nw_proto, key.nw_src, key.nw_dst),
        (1, 0x0a00_0001, 0x0a00_0002)
    );
    assert_eq!((key.arp_sha, key.arp_tha), (MAC_A, [0; 6]));
    assert_eq!(arp.len(), 42);
    let (source, target) = (at("fe80::1"), at("2001:db8::12:3456"));
    let nd = request_frame(MAC_A, source, target).expect("of one family");
    let key = key_of(&nd);
    let bytes = |ip| match ip {
        IpAddr::V6(a) => std::net::Ipv6Addr::octets(&a),
        IpAddr::V4(_) => [0; 16],
    };
    assert_eq!(key.dl_dst, [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
    assert_eq!(
        (key.nw_proto, key.tp_src, key.tp_dst, key.nw_ttl),
        (58, 135, 0, 255)
    );
    assert_eq!(
        (key.nd_target, key.ipv6_src, key.arp_sha),
        (bytes(target), bytes(source), MAC_A)
    );
    assert_eq!(key.ipv6_dst, bytes(at("ff02::1:ff12:3456")));
    let message = &nd[54..];
    let sum = heddle_wire::checksum::Sum::ZERO.pseudo_v6(&key.ipv6_src, &key.ipv6_dst, 58, 32);
    assert_eq!(
        (message.len(), sum.bytes(message).checksum()),
        (32, 0),
        "its checksum is right"
    );
    assert_eq!(request_frame(MAC_A, at("10.0.0.1"), target), None);
}

#[test]
fn requests_are_sent_once_a_second() {
    let (n, notified) = table();
    let to = |i| NeighRequest {
        bridge: 1,
        port: 2,
        source: ip(99),
        target: ip(i),
    };
    assert_eq!(n.request("br0", &to(1), 0), RequestOutcome::New);
    assert_eq!(n.request("br0", &to(1), 500), RequestOutcome::Open);
    assert_eq!(n.request("br0", &to(2), 500), RequestOutcome::New);
    assert_eq!(n.take_requests(), [to(1), to(2)]);
    assert_eq!(n.take_requests(), []);
    n.expire(OPEN_MS);
    assert_eq!(take(&notified), [n.thing("br0", ip(1))], "no reply");
    assert_eq!(n.request("br0", &to(1), OPEN_MS), RequestOutcome::New);
    n.learn("br0", (ip(1), MAC_A), port(1), OPEN_MS);
    n.learn("br0", (ip(2), MAC_A), port(1), OPEN_MS);
    take(&notified);
    n.expire(3 * OPEN_MS);
    assert_eq!(take(&notified), [], "they are known");
    for i in 0..u32::try_from(MAX_OPEN).expect("few") {
        assert_eq!(n.request("br1", &to(i), 0), RequestOutcome::New);
    }
    assert_eq!(n.request("br0", &to(5), 0), RequestOutcome::Busy);
    assert_eq!(n.take_requests().len(), MAX_OPEN + 1);
    n.flush(Some("br0"));
    assert_eq!(
        n.request("br1", &to(1), 0),
        RequestOutcome::Open,
        "of another bridge"
    );
    n.flush(Some("br1"));
    assert!(
        take(&notified).contains(&n.thing("br1", ip(1))),
        "a waiting packet requests again"
    );
    assert_eq!(n.request("br1", &to(1), 0), RequestOutcome::New);
}

#[test]
fn entries_of_a_port_are_removed_with_it() {
    let (n, notified) = table();
    n.learn("br0", (ip(1), MAC_A), port(1), 0);
    n.learn("br0", (ip(2), MAC_A), port(2), 0);
    n.set("br0", ip(3), MAC_A, 0);
    take(&notified);
    n.forget(port(1));
    assert_eq!(take(&notified), [n.thing("br0", ip(1))]);
    let left: Vec<IpAddr> = n.entries(0).into_iter().map(|s| s.key.ip).collect();
    assert_eq!(left, [ip(2), ip(3)]);
}

#[test]
fn the_kernel_makes_requests_on_its_own_devices() {
    let (n, notified) = table();
    assert_eq!(n.request_from_kernel("eth0", ip(1), 0), RequestOutcome::New);
    assert_eq!(n.request_from_kernel("eth0", ip(1), 500), RequestOutcome::Open);
    assert_eq!(n.take_requests(), []);
    let request = KernelRequest {
        device: "eth0".into(),
        target: ip(1),
    };
    assert_eq!(n.take_kernel_requests(), [request]);
    assert_eq!(n.take_kernel_requests(), []);
    take(&notified);
    let key = NeighKey {
        bridge: "eth0".into(),
        ip: ip(1),
    };
    let known = SystemNeighbour {
        mac: MAC_A,
        in_doubt: false,
    };
    n.set_system([(key, known)].into());
    assert_eq!(take(&notified), [n.thing("eth0", ip(1))]);
    assert_eq!(n.lookup("eth0", ip(1), 600), Some(MAC_A));
}
