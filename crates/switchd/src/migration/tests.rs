use super::*;
use heddle_conntrack::transfer::ConnCopy;
use heddle_conntrack::{Conntrack, Endpoint, Tuple, bits};
use std::net::IpAddr;

const NOW: u64 = 1000;

fn tracker() -> Conntrack {
    let config = heddle_conntrack::Config {
        capacity: 1 << 12,
        ..Default::default()
    };
    Conntrack::new(config).expect("room for a tracker")
}

fn identity(zones: &[(&str, u16)], addresses: &[&str]) -> PortIdentity {
    PortIdentity {
        interface: "tap1".into(),
        bridge: "br-int".into(),
        port: "web-1".into(),
        zones: zones
            .iter()
            .map(|(name, zone)| ((*name).to_owned(), *zone))
            .collect(),
        addresses: addresses.iter().map(|a| a.parse().expect("an address")).collect(),
        ..PortIdentity::default()
    }
}

fn extra(zones: &[&str], addresses: &[&str]) -> ExtraZones {
    ExtraZones {
        zones: zones.iter().map(|z| (*z).to_owned()).collect(),
        addresses: addresses.iter().map(|a| a.parse().expect("an address")).collect(),
    }
}

/// Names, numbers, and whether all connections are meant.
fn zones(id: &PortIdentity, extra: &ExtraZones) -> Vec<(String, u16, bool)> {
    let selection = Selection::new(id, extra).expect("a selection");
    let each = selection.zones.into_iter();
    each.map(|z| (z.name, z.zone, z.whole)).collect()
}

const OVN: [(&str, u16); 5] = [
    ("web-1", 10),
    ("web-2", 11),
    ("6a1c_snat", 20),
    ("6a1c_dnat", 21),
    ("other", 30),
];

#[test]
fn the_zones_of_a_port() {
    let own = ("web-1".to_owned(), 10, true);
    let id = identity(&OVN, &[]);
    assert_eq!(zones(&id, &ExtraZones::default()), std::slice::from_ref(&own));
    let notes = Selection::new(&id, &ExtraZones::default())
        .expect("a selection")
        .notes;
    assert_eq!(notes.len(), 2);
    assert_eq!(
        notes[1],
        "zone 6a1c_snat is shared, and no address of the port is known: give --address"
    );
    let shared = |name: &str, zone| (name.to_owned(), zone, false);
    let routers = [shared("6a1c_dnat", 21), shared("6a1c_snat", 20)];
    let known = identity(&OVN, &["10.0.0.5"]);
    assert_eq!(
        zones(&known, &ExtraZones::default()),
        [std::slice::from_ref(&own), &routers[..]].concat()
    );
    let chosen = extra(&["other", "acl=5"], &["10.0.0.5"]);
    let acl = [shared("other", 30), shared("acl", 5)];
    assert_eq!(zones(&id, &chosen), [&[own][..], &acl, &routers].concat());
    // Another bridge has the number, too; another port has a router's name.
    let mut elsewhere = identity(&OVN, &["10.0.0.5"]);
    elsewhere.numbers_elsewhere.insert(10);
    elsewhere.logical_ports.insert("6a1c_snat".into());
    let mine = shared("web-1", 10);
    assert_eq!(
        zones(&elsewhere, &ExtraZones::default()),
        [mine, shared("6a1c_dnat", 21)]
    );
    // Two names of one number: the zone is not the port's alone.
    let twice = identity(&[("web-1", 10), ("web-2", 10)], &["10.0.0.5"]);
    assert_eq!(zones(&twice, &ExtraZones::default()), [shared("web-1", 10)]);
    for (zone, why) in [
        (
            "none",
            "--zone none: bridge br-int has no external_ids:ct-zone-none; name its number, as --zone none=NUMBER",
        ),
        ("acl=x", "--zone acl=x: expected NAME or NAME=NUMBER"),
    ] {
        let refused = Selection::new(&id, &extra(&[zone], &[]));
        assert_eq!(refused.map(drop), Err(why.to_owned()));
    }
    let bare = Selection::new(&identity(&[], &[]), &ExtraZones::default()).expect("a selection");
    assert_eq!(
        bare.notes,
        ["bridge br-int has no external_ids:ct-zone-web-1, and no --zone was given"]
    );
}

fn udp(src: &str, port: u32) -> ConnCopy {
    let end = |addr: &str, l4| Endpoint {
        addr: bits(addr.parse::<IpAddr>().expect("an address")),
        l4,
    };
    let orig = Tuple {
        src: end(src, port),
        dst: end("192.0.2.1", 53),
        proto: 17,
        ipv6: false,
    };
    ConnCopy::new(orig, 30_000)
}

fn sources(ct: &Conntrack, zone: u16) -> Vec<IpAddr> {
    let mut all = Vec::new();
    ct.dump(NOW, 0, u32::MAX, |c| {
        if c.zone == zone {
            all.push(c.orig.src_ip());
        }
    });
    all.sort();
    all
}

fn begin(moves: &Moves, role: Role, id: &PortIdentity, names: &[&str]) -> Arc<Session> {
    let selection = Selection::new(id, &ExtraZones::default()).expect("a selection");
    let mapping = names.iter().map(|name| selection.map(name, id)).collect();
    moves.begin(role, false, selection, mapping, NOW).expect("room")
}

#[test]
fn nothing_of_another_tenant_travels() {
    let (here, there, moves, others) = (tracker(), tracker(), Moves::default(), Moves::default());
    for (zone, c) in [
        (10, udp("10.0.0.5", 1)),
        // The port's own zone has an address that is not in the database.
        (10, udp("10.0.0.77", 1)),
        (11, udp("10.0.0.6", 1)),
        (20, udp("10.0.0.5", 2)),
        (20, udp("10.0.0.6", 2)),
        (30, udp("10.0.0.5", 3)),
    ] {
        here.import(NOW, zone, None, &c, false, None)
            .expect("a new connection");
    }
    here.scan(NOW, 0, u32::MAX, |c| c.settle());
    let id = identity(&OVN, &["10.0.0.5"]);
    let source = begin(&moves, Role::Source, &id, &[]);
    let copied = copy(&here, &source, NOW, 0);
    assert_eq!((copied.connections, copied.left_out, copied.next), (3, 0, None));
    let names: Vec<&str> = source.selection.zones.iter().map(|z| z.name.as_str()).collect();
    assert_eq!(names, ["web-1", "6a1c_dnat", "6a1c_snat"]);

    // Other numbers there, and no zone of the router.
    let far = identity(&[("web-1", 110), ("web-2", 10)], &["10.0.0.5"]);
    let target = begin(&others, Role::Target, &far, &names);
    let done = import(&there, &target, NOW, &copied.content, |_| None).expect("a good file");
    assert_eq!(done.taken, [("new".to_owned(), 2)].into());
    assert_eq!(
        done.refused,
        [("zone 6a1c_snat is not known here".to_owned(), 1)].into()
    );
    assert!(
        done.examples[0].contains("src=10.0.0.5,dst=192.0.2.1,sport=2"),
        "{:?}",
        done.examples
    );
    assert_eq!(sources(&there, 110).len(), 2);
    assert_eq!(there.n_conns(), 2);

    // A file that names other ports' zones, and has other ports' addresses in a shared one.
    let wide = identity(
        &[("web-1", 110), ("web-2", 10), ("6a1c_snat", 120)],
        &["10.0.0.6"],
    );
    let target = begin(&others, Role::Target, &wide, &["web-2", "web-1", "6a1c_snat"]);
    let done = import(&there, &target, NOW, &copied.content, |_| None).expect("a good file");
    assert_eq!(
        done.refused,
        [
            ("zone 6a1c_snat: no address of the port".to_owned(), 1),
            ("zone web-2 is another port's".to_owned(), 2)
        ]
        .into()
    );
    assert_eq!(there.n_conns(), 2);

    assert_eq!(finish(&here, &source, NOW), 3);
    moves.end(&source);
    assert_eq!((sources(&here, 10).len(), sources(&here, 11).len()), (0, 1));
    assert_eq!((sources(&here, 20).len(), sources(&here, 30).len()), (1, 1));
    assert!(moves.of_port("web-1").is_none());
}

#[test]
fn zones_that_change_their_numbers_end_a_move() {
    let selection =
        Selection::new(&identity(&OVN, &["10.0.0.5"]), &ExtraZones::default()).expect("a selection");
    let now = |pairs: &[(&str, u16)]| selection.differs(&identity(pairs, &[]).zones);
    assert_eq!(now(&OVN), None);
    // The port has gone, and its zone with it.
    assert_eq!(now(&OVN[1..]), None);
    for changed in [("web-1", 12), ("web-2", 10), ("6a1c_snat", 22)] {
        let mut pairs = OVN.to_vec();
        pairs.retain(|(name, _)| *name != changed.0);
        pairs.push(changed);
        assert!(now(&pairs).is_some(), "{changed:?}");
    }
}

#[test]
fn a_move_is_given_up() {
    let (there, moves) = (tracker(), Moves::default());
    there
        .import(NOW, 110, None, &udp("10.0.0.5", 9), false, None)
        .expect("a new connection");
    there.scan(NOW, 0, u32::MAX, |c| c.settle());
    let here = tracker();
    here.import(NOW, 10, None, &udp("10.0.0.5", 1), false, None)
        .expect("a new connection");
    let source = begin(&Moves::default(), Role::Source, &identity(&OVN, &[]), &[]);
    let copied = copy(&here, &source, NOW, 0);
    let far = identity(&[("web-1", 110)], &[]);
    let target = begin(&moves, Role::Target, &far, &["web-1"]);
    import(&there, &target, NOW, &copied.content, |_| None).expect("a good file");
    assert_eq!(there.n_conns(), 2);
    assert_eq!(abort(&there, &target, NOW), 1);
    assert_eq!(there.n_conns(), 1, "its own connection stays");
    assert_eq!((abort(&here, &source, NOW), here.n_conns()), (0, 1));
    // Repeated, and finished.
    import(&there, &target, NOW, &copied.content, |_| None).expect("a good file");
    assert_eq!(finish(&there, &target, NOW), 1);
    assert_eq!((abort(&there, &target, NOW), there.n_conns()), (0, 2));
    assert_eq!(*target.counts.lock(), [("new".to_owned(), 2)].into());
}

#[test]
fn a_later_step_replaces_an_earlier_one() {
    let (moves, id) = (Moves::default(), identity(&OVN, &[]));
    let first = begin(&moves, Role::Source, &id, &[]);
    let second = begin(&moves, Role::Source, &id, &[]);
    assert!(moves.session(first.id).is_err() && moves.session(second.id).is_ok());
    // The other role would be finished or aborted with the wrong effect.
    let selection = Selection::new(&id, &ExtraZones::default()).expect("a selection");
    let refused = moves.begin(Role::Target, false, selection, Vec::new(), NOW);
    let why = refused.expect_err("the other role");
    assert!(
        why.starts_with("port web-1: this node is the source of a move that is not finished"),
        "{why}"
    );
    assert!(moves.session(second.id).is_ok());
    moves.end(&first);
    assert_eq!(moves.all().len(), 1);
    moves.end(&second);
    assert!(moves.all().is_empty());
    for n in 0..=MAX_SESSIONS {
        let selection = Selection {
            port: n.to_string(),
            ..Selection::default()
        };
        let begun = moves.begin(Role::Source, false, selection, Vec::new(), NOW);
        assert_eq!(begun.is_ok(), n < MAX_SESSIONS);
    }
}

#[test]
fn bad_contents_are_refused() {
    let (ct, moves) = (tracker(), Moves::default());
    let target = begin(&moves, Role::Target, &identity(&OVN, &[]), &[]);
    let refused = |content: &[u8]| import(&ct, &target, NOW, content, |_| None).expect_err("a bad file");
    assert_eq!(refused(&[]), "the file is not complete: export it again");
    let mut chunk = heddle_migration::connection::Chunk::default();
    chunk.add(3, &udp("10.0.0.5", 1));
    assert_eq!(
        refused(&chunk.content()),
        "the file is not valid: a zone without a name"
    );
}
