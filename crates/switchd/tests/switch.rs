//! The whole daemon with pretended devices, the real `ovsdb-server` and the real clients.
//!
//! Skipped, with a note, if those are not installed.

mod lab;

use lab::Lab;

const SRC: &str = "50:54:00:00:00:05";
const DST: &str = "50:54:00:00:00:07";

fn frame(src: &str, dst: &str) -> String {
    let hex = |mac: &str| mac.replace(':', "");
    format!("{}{}0800{}", hex(dst), hex(src), "00".repeat(50))
}

#[test]
fn bridge_with_dummy_ports_forwards() {
    let Some(lab) = Lab::new("bridge_with_dummy_ports_forwards") else {
        return;
    };
    lab.vsctl(
        "add-br br0 -- set bridge br0 datapath-type=dummy -- add-port br0 p1 -- set int p1 type=dummy \
               -- add-port br0 p2 -- set int p2 type=dummy ofport_request=7",
    );
    assert_eq!(lab.get("interface", "p2", "ofport"), "7");
    assert_eq!(lab.get("interface", "br0", "ofport"), "65534");
    assert_eq!(lab.get("bridge", "br0", "datapath_version"), "\"<built-in>\"");
    let show = lab.appctl("dpif/show");
    assert!(show.contains("    br0 65534/100: (dummy-internal)\n"), "{show}");
    assert!(show.contains("    p2 7/2: (dummy)\n"), "{show}");

    lab.appctl(&format!("netdev-dummy/receive p1 {}", frame(SRC, DST)));
    assert!(
        lab.ofctl("dump-ports br0 7").contains("tx pkts=1, bytes=64"),
        "flooded"
    );
    let fdb = lab.appctl("fdb/show br0");
    // The entry's age depends on time.
    assert!(fdb.contains(&format!("    1     0  {SRC} ")), "{fdb}");
    lab.appctl(&format!("netdev-dummy/receive p2 {}", frame(DST, SRC)));
    let flows = lab.appctl("dpctl/dump-flows");
    let back = flows.lines().find(|line| line.contains("in_port(2)"));
    assert!(back.is_some_and(|line| line.ends_with("actions:1")), "{flows}");
    assert_eq!(
        lab.ofctl("dump-aggregate br0")
            .split(' ')
            .find(|w| w.starts_with("packet_count")),
        Some("packet_count=2")
    );
}

#[test]
fn numbers_stay_and_ports_go() {
    let Some(lab) = Lab::new("numbers_stay_and_ports_go") else {
        return;
    };
    lab.vsctl("add-br br0 -- set bridge br0 datapath-type=dummy");
    for name in ["pa", "pb", "pc"] {
        lab.vsctl(&format!("add-port br0 {name} -- set int {name} type=dummy"));
    }
    assert_eq!(lab.get("interface", "pc", "ofport"), "3");
    lab.vsctl("del-port pb");
    lab.vsctl("add-port br0 pd -- set int pd type=dummy");
    assert_eq!(
        lab.get("interface", "pd", "ofport"),
        "4",
        "a number is not reused at once"
    );
    assert!(!lab.appctl("dpif/show").contains("pb"));
    // A port that requests another port's number gets it, unless the other has requested it as well.
    lab.vsctl("set int pd ofport_request=1");
    assert_eq!(lab.get("interface", "pd", "ofport"), "1");
    assert_ne!(lab.get("interface", "pa", "ofport"), "1");
    let pa = lab.get("interface", "pa", "ofport");
    lab.vsctl("set int pc ofport_request=1");
    assert_eq!(lab.get("interface", "pc", "ofport"), "3");
    // The database remembers them over a restart.
    lab.restart();
    assert_eq!(lab.get("interface", "pd", "ofport"), "1");
    assert_eq!(lab.get("interface", "pa", "ofport"), pa);
    assert_eq!(lab.ofctl("dump-flows br0").matches("actions=NORMAL").count(), 1);
}

#[test]
fn bad_rows_are_reported_and_the_rest_works() {
    let Some(lab) = Lab::new("bad_rows_are_reported_and_the_rest_works") else {
        return;
    };
    lab.vsctl("add-br br0 -- set bridge br0 datapath-type=dummy");
    let bad = [
        ("type=foo", "could not open network device x (unknown type foo)"),
        (
            "type=dpdk options:dpdk-devargs=0000:ff:1f.7",
            "x: there is no PCI device 0000:ff:1f.7",
        ),
        ("type=patch", "x: patch type requires valid 'peer' argument"),
        ("type=patch options:peer=x", "x: patch peer must not be self"),
        (
            "type=patch options:peer=y options:z=1",
            "x: patch type takes only a 'peer' argument",
        ),
    ];
    for (settings, why) in bad {
        lab.vsctl_fails(&format!(
            "add-port br0 x -- set int x {settings} -- add-port br0 good -- set int good type=dummy"
        ));
        assert_eq!(lab.get("interface", "x", "error"), format!("\"{why}\""));
        assert_eq!(lab.get("interface", "x", "ofport"), "-1");
        assert_eq!(lab.get("interface", "x", "mac_in_use"), "[]");
        assert_eq!(lab.get("interface", "good", "error"), "[]");
        lab.vsctl("del-port x -- del-port good");
    }
    // A device of a name that another bridge has.
    lab.vsctl("add-br br1 -- set bridge br1 datapath-type=dummy -- add-port br1 p9 -- set int p9 type=dummy");
    lab.vsctl_fails(
        "-- --id=@i create interface name=p9 type=dummy -- --id=@p create port name=other interfaces=@i \
                     -- add bridge br0 ports @p",
    );
    assert_eq!(
        lab.ofctl("show br0").matches("p9").count() + lab.ofctl("show br1").matches("p9").count(),
        1
    );
    // A mended row is applied.
    lab.vsctl_fails("add-port br0 x -- set int x type=foo");
    lab.vsctl("set int x type=dummy");
    assert_eq!(lab.get("interface", "x", "error"), "[]");
}

#[test]
fn patches_need_each_other() {
    let Some(lab) = Lab::new("patches_need_each_other") else {
        return;
    };
    lab.vsctl("add-br br0 -- set bridge br0 datapath-type=dummy -- add-port br0 a -- set int a type=patch options:peer=b");
    assert_eq!(
        lab.get("interface", "a", "error"),
        "\"No usable peer 'b' exists in 'dummy' datapath.\""
    );
    lab.vsctl("add-br br1 -- set bridge br1 datapath-type=dummy -- add-port br1 b -- set int b type=patch options:peer=a");
    assert_eq!(lab.get("interface", "a", "error"), "[]");
    assert_eq!(lab.get("interface", "b", "error"), "[]");
    lab.vsctl("add-port br0 p1 -- set int p1 type=dummy -- add-port br1 p2 -- set int p2 type=dummy");
    lab.appctl(&format!("netdev-dummy/receive p1 {}", frame(SRC, DST)));
    let p2 = lab.get("interface", "p2", "ofport");
    assert!(
        lab.ofctl(&format!("dump-ports br1 {p2}"))
            .contains("tx pkts=1, bytes=64")
    );
}

#[test]
fn addresses_and_ids() {
    let Some(lab) = Lab::new("addresses_and_ids") else {
        return;
    };
    lab.vsctl("add-br br0 -- set bridge br0 datapath-type=dummy other-config:hwaddr=00:11:22:33:44:55");
    assert_eq!(lab.get("interface", "br0", "mac_in_use"), "\"00:11:22:33:44:55\"");
    assert_eq!(lab.get("bridge", "br0", "datapath_id"), "\"0000001122334455\"");
    lab.vsctl("set bridge br0 other-config:datapath-id=0x99");
    assert_eq!(lab.get("bridge", "br0", "datapath_id"), "\"0000000000000099\"");
    // Without a wish, the lowest address that a manufacturer gave.
    lab.vsctl("remove bridge br0 other-config hwaddr -- add-port br0 i1 -- set int i1 type=internal mac=\"00:aa:00:00:00:01\"");
    assert_eq!(lab.get("interface", "i1", "mac_in_use"), "\"00:aa:00:00:00:01\"");
    lab.vsctl("set bridge br0 other-config:dp-desc=x");
    assert_eq!(lab.get("interface", "br0", "mac_in_use"), "\"00:aa:00:00:00:01\"");
    // Internal ports follow the smallest MTU of the others.
    lab.vsctl("add-port br0 p1 -- set int p1 type=dummy mtu_request=1400");
    assert_eq!(lab.get("interface", "br0", "mtu"), "1400");
    lab.vsctl("del-port p1");
    assert_eq!(lab.get("interface", "br0", "mtu"), "1500");
}

#[test]
fn states_reach_openflow_and_the_database() {
    let Some(lab) = Lab::new("states_reach_openflow_and_the_database") else {
        return;
    };
    lab.vsctl("add-br br0 -- set bridge br0 datapath-type=dummy -- add-port br0 p1 -- set int p1 type=dummy");
    assert_eq!(lab.appctl("netdev-dummy/set-admin-state p1 down"), "OK\n");
    let show = lab.ofctl("show br0");
    assert!(
        show.contains("config:     PORT_DOWN\n     state:      LINK_DOWN"),
        "{show}"
    );
    lab.wait("interface", "p1", "admin_state", "down");
    lab.ofctl("mod-port br0 p1 up");
    assert!(lab.ofctl("show br0").contains("state:      0"), "at once");
    lab.wait("interface", "p1", "admin_state", "up");
}

#[test]
fn tags_and_time() {
    let Some(lab) = Lab::new("tags_and_time") else {
        return;
    };
    lab.vsctl(
        "add-br br0 -- set bridge br0 datapath-type=dummy \
               -- add-port br0 p1 tag=10 -- set int p1 type=dummy ofport_request=1 \
               -- add-port br0 p2 -- set int p2 type=dummy ofport_request=2 \
               -- add-port br0 p3 tag=20 -- set int p3 type=dummy ofport_request=3",
    );
    lab.appctl(&format!("netdev-dummy/receive p1 {}", frame(SRC, DST)));
    assert!(
        lab.ofctl("dump-ports br0 2").contains("tx pkts=1, bytes=68"),
        "tagged on the trunk"
    );
    assert!(
        lab.ofctl("dump-ports br0 3").contains("tx pkts=0"),
        "another VLAN"
    );
    assert!(
        lab.appctl("fdb/show br0")
            .contains("    1    10  50:54:00:00:00:05")
    );
    lab.appctl("time/stop");
    assert_eq!(lab.appctl("time/warp 301000 10000"), "warped\n");
    assert!(!lab.appctl("fdb/show br0").contains(SRC), "aged");
    // Counters follow the clock that was moved.
    lab.wait("interface", "p1", "statistics:rx_packets", "1");
    assert_eq!(lab.appctl("dpif/dump-flows br0"), "", "idle flows are evicted");
}

#[test]
fn what_the_datapath_can_do_is_in_the_database() {
    let Some(lab) = Lab::new("what_the_datapath_can_do_is_in_the_database") else {
        return;
    };
    lab.vsctl("add-br br0 -- set bridge br0 datapath-type=dummy");
    lab.vsctl(
        "-- --id=@m create Datapath datapath_version=0 capabilities:own=kept -- set Open_vSwitch . datapaths:dummy=@m",
    );
    let row = lab.list("Datapath");
    for said in [
        "ct_zero_snat=\"true\"",
        "max_hash_alg=\"1\"",
        "max_vlan_headers=\"1\"",
        "own=kept",
    ] {
        assert!(row.contains(said), "{said}: {row}");
    }
    let lines = [
        "dummy@ovs-dummy: VLAN header stack length probed as 1",
        "dummy@ovs-dummy: Datapath supports ct_clear action",
    ];
    // The log's thread may be late.
    lines.iter().for_each(|line| lab.wait_log(line));
    let log = lab.log();
    for line in lines {
        assert_eq!(log.matches(line).count(), 1, "{line}");
    }
}

#[test]
fn timeouts_of_zones_are_followed() {
    let Some(lab) = Lab::new("timeouts_of_zones_are_followed") else {
        return;
    };
    lab.vsctl("add-br br0 -- set bridge br0 datapath-type=dummy -- add-port br0 p1 -- set int p1 type=dummy");
    lab.vsctl("-- --id=@m create Datapath datapath_version=0 -- set Open_vSwitch . datapaths:dummy=@m");
    lab.ofctl("add-flow br0 udp,actions=ct(commit,zone=5)");
    let trace = || lab.appctl("ofproto/trace br0 in_port=p1,udp");
    assert!(
        trace().contains("Datapath actions: ct(commit,zone=5)\n"),
        "{}",
        trace()
    );
    lab.vsctl("add-zone-tp dummy zone=5 udp_first=1 udp_single=2");
    assert!(
        trace().contains("Datapath actions: ct(commit,zone=5,timeout=1)\n"),
        "{}",
        trace()
    );
    lab.vsctl("del-zone-tp dummy zone=5");
    assert!(
        trace().contains("Datapath actions: ct(commit,zone=5)\n"),
        "{}",
        trace()
    );
}

/// Clients such as ovn-controller connect as soon as `ovs-vsctl` has returned.
#[test]
fn a_bridge_is_reachable_when_it_is_there() {
    let Some(lab) = Lab::new("a_bridge_is_reachable_when_it_is_there") else {
        return;
    };
    for n in 0..8 {
        lab.vsctl(&format!("add-br br{n}"));
        assert!(lab.listens(&format!("br{n}.mgmt")), "bridge {n}");
    }
    lab.restart();
    assert!(
        lab.listens("br0.mgmt") && lab.listens("br7.mgmt"),
        "after a restart"
    );
}

/// One bad setting causes one line in the log.
#[test]
fn bad_numbers_are_logged_once() {
    let Some(lab) = Lab::new("bad_numbers_are_logged_once") else {
        return;
    };
    lab.vsctl("add-br br0 -- add-port br0 p1 -- set int p1 type=dummy-pmd options:n_rxq=foo");
    lab.vsctl("set open . other_config:n-handler-threads=x");
    lab.wait_log("n-handler-threads=x");
    let log = lab.log();
    let about = |what: &str| {
        log.lines()
            .filter(|l| l.contains("|WARN|") && l.contains(what))
            .count()
    };
    assert_eq!(about("n_rxq"), 1, "{log}");
    assert!(
        log.contains("options:n_rxq=foo is no number of queues: 1 is used"),
        "{log}"
    );
    assert_eq!(about("n-handler-threads"), 1, "{log}");
    assert!(
        log.contains("n-handler-threads=x is not a number: the default is used"),
        "{log}"
    );
}

/// Counters of mirrors follow their packets sooner than statistics are due, which is every five seconds.
#[test]
fn mirrors_are_counted_soon() {
    let Some(lab) = Lab::new("mirrors_are_counted_soon") else {
        return;
    };
    lab.vsctl(
        "add-br br0 -- add-port br0 p1 -- set int p1 type=dummy -- add-port br0 p2 -- set int p2 type=dummy",
    );
    lab.vsctl("set open . other_config:stats-update-interval=3600000");
    lab.vsctl(
        "-- --id=@p2 get port p2 -- --id=@m create mirror name=m select_all=true output_port=@p2 \
         -- set bridge br0 mirrors=@m",
    );
    // The write that comes with the change of the interval does not count.
    lab.wait("mirror", "m", "statistics", "{tx_bytes=0, tx_packets=0}");
    lab.appctl("netdev-dummy/receive p1 in_port(1),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x1234)");
    let seen = || lab.get("mirror", "m", "statistics").contains("tx_packets=1");
    let began = std::time::Instant::now();
    while !seen() {
        assert!(
            began.elapsed().as_secs() < 30,
            "{}",
            lab.get("mirror", "m", "statistics")
        );
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
