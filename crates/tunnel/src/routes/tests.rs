use super::*;
use proptest::prelude::*;
use std::collections::HashSet;
use std::time::{Duration, Instant};

fn at(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn prefix(text: &str) -> Prefix {
    let (addr, len) = text.split_once('/').expect("a prefix");
    Prefix::new(at(addr), len.parse().expect("a length")).expect("a prefix")
}

fn address(device: &str, text: &str) -> Address {
    let (addr, len) = text.split_once('/').expect("a prefix");
    Address::new(device.into(), at(addr), len.parse().expect("a length"))
}

fn system_route(table: u32, to: &str, device: &str, gateway: Option<&str>) -> SystemRoute {
    SystemRoute {
        table,
        prefix: prefix(to),
        kind: Kind::Unicast,
        metric: 0,
        prefsrc: None,
        scope: if gateway.is_some() { 0 } else { 253 },
        mtu_bytes: None,
        hops: vec![SystemHop {
            device: device.into(),
            device_mtu_bytes: Some(1500),
            gateway: gateway.map(at),
            weight: 1,
        }],
    }
}

type Notified = Arc<Mutex<Vec<u64>>>;

fn routes() -> (Routes, Notified) {
    let notified = Notified::default();
    let list = notified.clone();
    (
        Routes::new(Box::new(move |thing| list.lock().push(thing))),
        notified,
    )
}

fn user(to: &str, device: &str, gateway: Option<&str>, mark: u32) -> UserRoute {
    let (addr, len) = to.split_once('/').expect("a prefix");
    UserRoute {
        table: MAIN,
        addr: at(addr),
        len: len.parse().expect("a length"),
        mark,
        device: device.into(),
        gateway: gateway.map(at),
        source: None,
    }
}

/// Device, gateway and source for a destination.
fn way(r: &Routes, q: &Query) -> Option<(String, Option<IpAddr>, IpAddr)> {
    r.lookup(q).map(|r| (r.device.to_string(), r.gateway, r.source))
}

#[test]
fn pretended_devices_have_routes() {
    let (r, _) = routes();
    assert!(
        !r.add_user(&user("198.51.100.0/24", "br0", Some("192.0.2.254"), 0)),
        "no address"
    );
    r.add_address(address("br0", "192.0.2.1/24"));
    assert!(r.add_user(&user("198.51.100.0/24", "br0", Some("192.0.2.254"), 0)));
    assert!(r.add_user(&user("198.51.100.200/24", "br0", Some("192.0.2.250"), 1234)));
    let to = Query::to(at("198.51.100.1"));
    let by = |gateway| Some(("br0".to_owned(), Some(at(gateway)), at("192.0.2.1")));
    assert_eq!(way(&r, &to), by("192.0.2.254"));
    assert_eq!(way(&r, &Query { mark: 1234, ..to }), by("192.0.2.250"));
    assert_eq!(
        way(&r, &Query { mark: 5, ..to }),
        by("192.0.2.254"),
        "no route has this mark"
    );
    let neighbour = Query::to(at("192.0.2.9"));
    assert_eq!(
        way(&r, &neighbour),
        Some(("br0".to_owned(), None, at("192.0.2.1")))
    );
    assert!(r.lookup(&Query::to(at("192.0.2.1"))).expect("own").local);
    let src = |text| Query {
        src: Some(at(text)),
        ..to
    };
    assert_eq!(way(&r, &src("192.0.2.1")), by("192.0.2.254"));
    assert_eq!(way(&r, &src("192.0.2.2")), None, "not this host's");
    assert!(r.del_user(MAIN, prefix("198.51.100.0/24"), 1234));
    assert!(!r.del_user(MAIN, prefix("198.51.100.0/24"), 1234));
    assert_eq!(way(&r, &Query { mark: 1234, ..to }), by("192.0.2.254"));
    r.remove_addresses("br0");
    assert_eq!(way(&r, &neighbour), None);
}

#[test]
fn only_changed_results_are_notified() {
    let (r, notified) = routes();
    let mut system = System {
        addresses: vec![address("eth0", "10.0.0.1/8"), address("eth1", "20.0.0.1/8")],
        rules: Vec::new(),
        routes: vec![
            system_route(MAIN, "10.0.0.0/8", "eth0", None),
            system_route(MAIN, "0.0.0.0/0", "eth0", Some("10.0.0.254")),
        ],
    };
    r.set_system(&system);
    let near = r.thing(&Query::to(at("10.1.1.1")));
    let far = r.thing(&Query::to(at("30.1.1.1")));
    let farther = r.thing(&Query::to(at("40.1.1.1")));
    let take = || -> HashSet<u64> { std::mem::take(&mut *notified.lock()).into_iter().collect() };
    take();
    system
        .routes
        .push(system_route(MAIN, "30.0.0.0/8", "eth1", Some("20.0.0.9")));
    r.set_system(&system);
    assert_eq!(take(), HashSet::from([far, r.any_thing()]));
    assert_eq!(r.thing(&Query::to(at("30.1.1.1"))), far);
    system.routes.remove(1);
    r.set_system(&system);
    assert_eq!(take(), HashSet::from([farther, r.any_thing()]));
    assert!(r.lookup(&Query::to(at("40.1.1.1"))).is_none());
    system.addresses.remove(1);
    r.set_system(&system);
    assert_eq!(
        take(),
        HashSet::from([far, r.any_thing(), r.addresses_thing(), r.device_thing("eth1")]),
        "{near}"
    );
}

#[test]
fn rules_choose_tables() {
    let (r, _) = routes();
    let rule = |priority, action| Rule {
        action,
        ..Rule::any(false, priority, 0)
    };
    let mut rules = Rule::standard();
    rules.extend([
        // Marked packets have a table of their own, but not for the default route.
        Rule {
            mark: 0x10,
            mark_mask: 0xf0,
            action: Action::Table {
                table: 100,
                suppress_len: Some(0),
            },
            ..Rule::any(false, 10, 0)
        },
        Rule {
            from: Some(prefix("10.0.0.7/32")),
            ..Rule::any(false, 20, 200)
        },
        Rule {
            to: Some(prefix("66.0.0.0/8")),
            ..rule(30, Action::Goto(50))
        },
        rule(40, Action::Nop),
        Rule {
            to: Some(prefix("66.6.0.0/16")),
            ..rule(45, Action::Refuse)
        },
        Rule {
            to: Some(prefix("77.0.0.0/8")),
            ..rule(50, Action::Refuse)
        },
        Rule {
            elsewhere: true,
            ..rule(60, Action::Refuse)
        },
    ]);
    let mut throw = system_route(200, "88.0.0.0/8", "eth0", None);
    (throw.kind, throw.hops) = (Kind::Throw, Vec::new());
    r.set_system(&System {
        addresses: vec![
            address("eth0", "10.0.0.1/24"),
            address("eth0", "10.0.0.7/24"),
            address("eth1", "20.0.0.1/24"),
        ],
        rules,
        routes: vec![
            system_route(MAIN, "0.0.0.0/0", "eth0", Some("10.0.0.254")),
            system_route(100, "0.0.0.0/0", "eth1", Some("20.0.0.100")),
            system_route(100, "50.0.0.0/8", "eth1", Some("20.0.0.50")),
            system_route(200, "0.0.0.0/0", "eth1", Some("20.0.0.200")),
            throw,
        ],
    });
    let gateway = |q: Query| r.lookup(&q).map(|r| r.gateway.expect("all have one").to_string());
    let to = |text: &str| Query::to(at(text));
    let default = Some("10.0.0.254".to_owned());
    assert_eq!(gateway(to("50.1.1.1")), default);
    assert_eq!(
        gateway(Query {
            mark: 0x1f,
            ..to("50.1.1.1")
        }),
        Some("20.0.0.50".into())
    );
    assert_eq!(
        gateway(Query {
            mark: 0x1f,
            ..to("51.1.1.1")
        }),
        default,
        "suppressed"
    );
    let own = Some(at("10.0.0.7"));
    assert_eq!(
        gateway(Query {
            src: own,
            ..to("51.1.1.1")
        }),
        Some("20.0.0.200".into())
    );
    assert_eq!(
        gateway(Query {
            src: own,
            ..to("88.1.1.1")
        }),
        default,
        "thrown"
    );
    assert_eq!(gateway(to("66.6.6.6")), default, "went over the refusal");
    assert_eq!(gateway(to("77.7.7.7")), None);
    assert_eq!(gateway(to("99.9.9.9")), default);
}

#[test]
fn several_ways_share_destinations() {
    let (r, _) = routes();
    let mut route = system_route(MAIN, "0.0.0.0/0", "eth0", Some("10.0.0.2"));
    route.hops.push(SystemHop {
        gateway: Some(at("10.0.0.3")),
        weight: 3,
        ..route.hops[0].clone()
    });
    r.set_system(&System {
        addresses: vec![address("eth0", "10.0.0.1/24")],
        rules: Vec::new(),
        routes: vec![route],
    });
    let to_second = (0..4000_u32)
        .filter(|i| {
            let q = Query::to(std::net::Ipv4Addr::from_bits(0x3000_0000 + i).into());
            let (first, again) = (r.lookup(&q), r.lookup(&q));
            assert_eq!(first, again);
            first.expect("a way").gateway == Some(at("10.0.0.3"))
        })
        .count();
    assert!((2800..3200).contains(&to_second), "{to_second} of 4000");
}

/// The order of preferences in RFC 6724, and that of the kernel for IPv4.
#[test]
fn sources_are_those_of_linux() {
    let addresses = vec![
        Address {
            scope: source::scope::HOST,
            ..address("lo", "127.0.0.1/8")
        },
        address("eth0", "10.0.0.1/24"),
        Address {
            secondary: true,
            ..address("eth0", "10.0.0.2/24")
        },
        address("eth0", "10.9.0.1/24"),
        address("eth0", "2001:db8:1::1/64"),
        address("eth0", "fe80::1/64"),
        address("eth0", "fd00::1/64"),
        address("eth1", "2001:db8:2::1/64"),
        address("eth1", "fe80::2/64"),
    ];
    let linux = |device: &str, to: &str, gateway: Option<&str>, reach| {
        source::as_linux(&addresses, device, at(to), gateway.map(at), reach).map(|a| a.to_string())
    };
    let source = |text: &str| Some(text.to_owned());
    assert_eq!(linux("eth0", "10.0.0.9", None, 253), source("10.0.0.1"));
    assert_eq!(linux("eth0", "30.0.0.9", Some("10.9.0.9"), 0), source("10.9.0.1"));
    assert_eq!(linux("eth0", "30.0.0.9", Some("10.8.0.9"), 0), source("10.0.0.1"));
    assert_eq!(
        linux("eth1", "30.0.0.9", None, 253),
        source("10.0.0.1"),
        "of another device"
    );
    assert_eq!(
        linux("eth0", "2001:db8:2::9", None, 0),
        source("2001:db8:1::1"),
        "the device's own"
    );
    assert_eq!(linux("eth1", "2001:db8:1::9", None, 0), source("2001:db8:2::1"));
    assert_eq!(linux("eth0", "fd00::9", None, 0), source("fd00::1"));
    assert_eq!(linux("eth1", "fe80::9", None, 0), source("fe80::2"));
    assert_eq!(linux("eth0", "3000::9", None, 0), source("2001:db8:1::1"));
}

/// Routes of few bits, so that they overlap.
fn some_prefix() -> impl Strategy<Value = Prefix> {
    let v4 = (any::<u8>(), 0_u8..=8).prop_map(|(b, len)| Prefix::new([b, 0, 0, 0].into(), len));
    let v6 = (any::<u8>(), 0_u8..=8).prop_map(|(b, len)| {
        let mut addr = [0; 16];
        addr[0] = b;
        Prefix::new(addr.into(), len)
    });
    prop_oneof![v4, v6].prop_map(|p| p.expect("short enough"))
}

fn some_entry() -> impl Strategy<Value = (u32, RouteEntry)> {
    (some_prefix(), any::<bool>(), 0_u32..3, 0_u32..3, 1_u32..4).prop_map(
        |(prefix, user, mark, metric, table)| {
            let entry = RouteEntry {
                prefix,
                user,
                mark: if user { mark } else { 0 },
                metric,
                kind: Kind::Unicast,
                hops: vec![Hop {
                    device: "eth0".into(),
                    gateway: None,
                    source: at("1.1.1.1"),
                    mtu_bytes: None,
                    weight: 1,
                }],
            };
            (table, entry)
        },
    )
}

proptest! {
    /// Lookups give the same as a search through a list.
    #[test]
    fn beside_a_list(
        entries in prop::collection::vec(some_entry(), 0..40),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        order in prop::collection::vec((0_u32..3, 1_u32..4), 0..4),
        queries in prop::collection::vec((any::<u8>(), any::<bool>(), 0_u32..4), 1..20),
    ) {
        let mut list: Vec<(u32, RouteEntry)> = Vec::new();
        let mut own: HashMap<u32, Fib> = HashMap::new();
        for (table, e) in entries {
            list.retain(|(t, o)| (*t, o.prefix, o.mark, o.user) != (table, e.prefix, e.mark, e.user));
            own.entry(table).or_default().replace(e.clone());
            list.push((table, e));
        }
        for index in removed {
            if !list.is_empty() {
                let (table, e) = list.remove(index.index(list.len()));
                prop_assert!(own.get_mut(&table).expect("it is there").remove(e.prefix, e.mark, e.user));
            }
        }
        let mut listed: Vec<Prefix> = own.values().flat_map(Fib::entries).map(|e| e.prefix).collect();
        let mut expected: Vec<Prefix> = list.iter().map(|(_, e)| e.prefix).collect();
        listed.sort();
        expected.sort();
        prop_assert_eq!(listed, expected);
        let mut rules: Vec<Rule> = order
            .iter()
            .flat_map(|(priority, table)| [false, true].map(|v6| Rule::any(v6, *priority, *table)))
            .collect();
        rules.sort_by_key(|r| r.priority);
        let table = Table { own, rules: rules.clone(), ..Table::default() };
        for (byte, v6, mark) in queries {
            let mut six = [0; 16];
            six[0] = byte;
            let dst: IpAddr = if v6 { six.into() } else { [byte, 0, 0, 0].into() };
            let q = Query { mark, ..Query::to(dst) };
            let in_table = |wanted: u32, mark: u32| {
                let matching = list.iter().filter(|(t, e)| *t == wanted && e.mark == mark && e.prefix.contains(dst));
                matching.map(|(_, e)| e).max_by_key(|e| {
                    (e.prefix.len() + if e.user { 32 } else { 0 }, e.user, std::cmp::Reverse(e.metric))
                })
            };
            let expected = rules.iter().filter(|r| r.v6 == v6).find_map(|r| {
                let table = r.table().expect("all have one");
                in_table(table, mark).or_else(|| in_table(table, 0))
            });
            prop_assert_eq!(table.lookup(&q).map(|(e, ..)| e), expected);
        }
    }
}

#[test]
fn devices_of_all_next_hops_are_listed() {
    let (r, _) = routes();
    let mut several = system_route(MAIN, "30.0.0.0/8", "eth0", Some("10.0.0.9"));
    several.hops.push(SystemHop {
        device: "eth1".into(),
        ..several.hops[0].clone()
    });
    let mut own = system_route(LOCAL, "10.0.0.1/32", "eth0", None);
    own.kind = Kind::Local;
    r.set_system(&System {
        addresses: vec![address("eth0", "10.0.0.1/8")],
        rules: Vec::new(),
        routes: vec![system_route(MAIN, "10.0.0.0/8", "eth0", None), several, own],
    });
    let devices = |to| -> Vec<String> {
        let found = r.devices(&Query::to(at(to)));
        found.iter().map(ToString::to_string).collect()
    };
    assert_eq!(devices("10.0.0.2"), ["eth0"]);
    assert_eq!(devices("30.0.0.2"), ["eth0", "eth1"]);
    assert!(devices("10.0.0.1").is_empty(), "this host");
    assert!(devices("40.0.0.1").is_empty(), "no route");
}

/// A cached result of a lookup holds for all marks only until there is a rule or route for some.
#[test]
fn results_depend_on_marks_once_a_rule_or_route_reads_them() {
    let (r, notified) = routes();
    let system = |rules| System {
        addresses: vec![address("eth0", "10.0.0.1/8")],
        rules,
        routes: vec![system_route(MAIN, "10.0.0.0/8", "eth0", None)],
    };
    r.set_system(&system(Vec::new()));
    let thing = r.thing(&Query::to(at("10.0.0.2")));
    assert!(!r.reads_marks());
    let marked = Rule {
        mark: 1,
        mark_mask: 1,
        ..Rule::any(false, 100, 77)
    };
    let rules = [Rule::standard(), vec![marked]].concat();
    notified.lock().clear();
    r.set_system(&system(rules));
    assert!(r.reads_marks());
    assert!(
        notified.lock().contains(&thing),
        "the result without a mark is the same, but no other mark's"
    );
    r.set_system(&system(Vec::new()));
    assert!(!r.reads_marks());
    assert!(r.add_user(&user("10.1.0.0/16", "eth0", None, 5)));
    assert!(r.reads_marks());
}

const LIMITS: PathLimits = PathLimits {
    min_v4_bytes: 552,
    v4_lifetime: Duration::from_secs(600),
    v6_lifetime: Duration::from_secs(300),
};

/// 20.0.0.0/8 is behind 10.0.0.254 on eth0, fd20::/16 on the network of eth0.
fn narrow() -> (Routes, Notified) {
    let (r, notified) = routes();
    r.set_system(&System {
        addresses: vec![address("eth0", "10.0.0.1/8"), address("eth0", "fd20::1/16")],
        rules: Vec::new(),
        routes: vec![
            system_route(MAIN, "20.0.0.0/8", "eth0", Some("10.0.0.254")),
            system_route(MAIN, "fd20::/16", "eth0", None),
        ],
    });
    (r, notified)
}

fn report(source: &str, destination: &str, mtu_bytes: u32) -> PathReport {
    PathReport {
        source: at(source),
        destination: at(destination),
        mtu_bytes,
        is_configured: true,
    }
}

#[test]
fn mtus_of_paths_are_learned_and_expire() {
    let (r, notified) = narrow();
    let (to, other) = (Query::to(at("20.0.0.9")), Query::to(at("20.0.0.8")));
    let (thing, other_thing) = (r.thing(&to), r.thing(&other));
    let now = Instant::now();
    let mtu = |q: &Query| r.lookup(q).expect("a route").path_mtu_bytes;
    let learn = |report, now| r.learn_path_mtus(&[report], &LIMITS, now);
    let learned = learn(report("10.0.0.1", "20.0.0.9", 1300), now);
    let expected = LearnedMtu {
        destination: at("20.0.0.9"),
        device: "eth0".into(),
        mtu_bytes: 1300,
    };
    assert_eq!(learned, [expected]);
    assert_eq!((mtu(&to), mtu(&other)), (Some(1300), None));
    assert!(notified.lock().contains(&thing) && !notified.lock().contains(&other_thing));
    // Other values than smaller ones are ignored.
    for (source, destination, mtu) in [
        ("10.0.0.2", "20.0.0.9", 1200),
        ("10.0.0.1", "30.0.0.9", 1200),
        ("10.0.0.1", "20.0.0.9", 1300),
        ("10.0.0.1", "20.0.0.9", 1301),
        ("10.0.0.1", "20.0.0.8", 1500),
        ("fd20::1", "fd20::9", 1279),
    ] {
        let report = report(source, destination, mtu);
        assert!(learn(report, now).is_empty(), "{report:?}");
    }
    assert_eq!(learn(report("fd20::1", "fd20::9", 1280), now).len(), 1);
    assert_eq!(learn(report("10.0.0.1", "20.0.0.8", 0), now).len(), 1);
    assert_eq!(mtu(&other), Some(552), "the minimum");
    // The same value prolongs the time, if half of it is over.
    let seconds = |n| now + Duration::from_secs(n);
    assert!(learn(report("10.0.0.1", "20.0.0.9", 1300), seconds(299)).is_empty());
    assert!(learn(report("10.0.0.1", "20.0.0.8", 100), seconds(301)).is_empty());
    r.expire_path_mtus(seconds(599));
    assert_eq!((mtu(&to), mtu(&other)), (Some(1300), Some(552)));
    let thing = r.thing(&to);
    notified.lock().clear();
    r.expire_path_mtus(seconds(601));
    assert_eq!((mtu(&to), mtu(&other)), (None, Some(552)));
    assert!(notified.lock().contains(&thing));
    r.expire_path_mtus(seconds(902));
    assert_eq!(mtu(&other), None);
}

#[test]
fn destinations_that_flows_choose_have_to_be_in_use() {
    let (r, _) = narrow();
    let of_flows = PathReport {
        is_configured: false,
        ..report("10.0.0.1", "20.0.0.9", 1300)
    };
    let learn = || r.learn_path_mtus(&[of_flows], &LIMITS, Instant::now()).len();
    assert_eq!(learn(), 0);
    let marked = Query {
        mark: 7,
        ..Query::to(at("20.0.0.9"))
    };
    r.thing(&marked);
    assert_eq!(learn(), 1);
}

#[test]
fn another_next_hop_has_its_own_mtu() {
    let (r, _) = narrow();
    let to = Query::to(at("20.0.0.9"));
    let now = Instant::now();
    r.learn_path_mtus(&[report("10.0.0.1", "20.0.0.9", 1300)], &LIMITS, now);
    r.set_system(&System {
        addresses: vec![address("eth0", "10.0.0.1/8")],
        rules: Vec::new(),
        routes: vec![system_route(MAIN, "20.0.0.0/8", "eth0", Some("10.0.0.253"))],
    });
    assert_eq!(r.lookup(&to).expect("a route").path_mtu_bytes, None);
}

#[test]
fn the_number_of_paths_is_bounded() {
    let (r, _) = narrow();
    let now = Instant::now();
    let host = |n: u32| format!("20.0.{}.{}", n >> 8, n & 255);
    let reports: Vec<_> = (1..=5000).map(|n| report("10.0.0.1", &host(n), 1300)).collect();
    r.learn_path_mtus(&reports[..2], &LIMITS, now);
    r.learn_path_mtus(&reports[2..], &LIMITS, now + Duration::from_secs(1));
    let known = |n: u32| {
        let route = r.lookup(&Query::to(at(&host(n)))).expect("a route");
        route.path_mtu_bytes.is_some()
    };
    assert_eq!((1..=5000).filter(|n| known(*n)).count(), 4096);
    assert!(!known(1) && !known(2), "the oldest ones went");
}
