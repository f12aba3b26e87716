//! TCP between network namespaces through two ports: GSO packets cross whole. Needs root; each test can run
//! alone.

#![allow(clippy::unwrap_used)] // helpers of tests, outside #[test] functions
#![allow(clippy::cast_possible_truncation)] // small numbers of the tests' own

#[path = "common/bridge.rs"]
mod bridge;
mod common;

use bridge::Bridge;
use common::{LIMIT, Netns, ip, unique};
use heddle_port::Port;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that the TCP tests carry.
const AMOUNT: usize = 24 << 20;

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
        "tcp-server" => {
            let (mut s, _) = TcpListener::bind(rest).unwrap().accept().unwrap();
            s.set_read_timeout(Some(LIMIT)).unwrap();
            let (mut buf, mut at) = (vec![0; 1 << 16], 0);
            loop {
                let n = s.read(&mut buf).unwrap();
                if n == 0 {
                    break;
                }
                assert!(
                    buf[..n].iter().enumerate().all(|(i, &b)| b == pattern(at + i)),
                    "changed on the way"
                );
                at += n;
            }
            println!("received {at}");
        }
        "tcp-client" => {
            let mut s = (0..3000)
                .find_map(|_| {
                    std::thread::sleep(Duration::from_millis(10));
                    TcpStream::connect(rest).ok()
                })
                .unwrap();
            let bytes: Vec<u8> = (0..AMOUNT).map(pattern).collect();
            s.write_all(&bytes).unwrap();
            println!("sent {AMOUNT}");
        }
        _ => panic!("unknown role {verb}"),
    }
}

/// Two namespaces with one device each, 10.66.0.1 and .2, whose other ends are ports.
struct Pair {
    a: Netns,
    b: Netns,
    ports: [Arc<dyn Port>; 2],
    dev: [String; 2],
}

impl Pair {
    fn open(test: &str, kinds: [&str; 2]) -> Option<Self> {
        let (a, b) = (Netns::new(test)?, Netns::new(test)?);
        let dev = [format!("ha{}", unique()), format!("hb{}", unique())];
        let mut ports = Vec::new();
        for ((kind, dev), ns) in kinds.iter().zip(&dev).zip([&a, &b]) {
            let port = match *kind {
                "tap" => {
                    let port = heddle_port::open("internal", dev, &BTreeMap::new()).unwrap();
                    ip(&format!("link set {dev} netns {}", ns.0));
                    port
                }
                _ => {
                    let outer = format!("o{dev}");
                    ip(&format!(
                        "link add {outer} type veth peer name {dev} netns {}",
                        ns.0
                    ));
                    let port = heddle_port::open("system", &outer, &BTreeMap::new()).unwrap();
                    port.set_admin(true).unwrap();
                    port
                }
            };
            ports.push(port);
        }
        for (n, (ns, dev)) in [&a, &b].into_iter().zip(&dev).enumerate() {
            ns.ip(&format!("link set {dev} up"));
            ns.ip(&format!("addr add 10.66.0.{}/24 dev {dev}", n + 1));
        }
        let ports = ports.try_into().ok().unwrap();
        Some(Self { a, b, ports, dev })
    }

    /// Carries a TCP stream from a to b; returns the forwarder's counts.
    fn tcp(&self, server: &str) -> bridge::Seen {
        let forward = Bridge::start(Arc::clone(&self.ports[0]), Arc::clone(&self.ports[1]));
        let sink = self.b.peer(&format!("tcp-server {server}:5001"));
        let source = self.a.peer(&format!("tcp-client {server}:5001"));
        assert!(source.finish().contains(&format!("sent {AMOUNT}")));
        assert!(sink.finish().contains(&format!("received {AMOUNT}")));
        forward.finish()
    }
}

fn check_gso_packets(seen: &bridge::Seen) {
    assert!(seen.gso_packets > 10 && seen.longest > 30_000, "{seen:?}");
    assert!(seen.partial >= seen.gso_packets, "{seen:?}");
    assert_eq!((seen.lost, seen.dropped), (0, 0), "{seen:?}");
}

#[test]
fn gso_packets_cross_tap_to_tap() {
    let Some(pair) = Pair::open("gso_packets_cross_tap_to_tap", ["tap", "tap"]) else {
        return;
    };
    check_gso_packets(&pair.tcp("10.66.0.2"));
}

#[test]
fn gso_packets_cross_veth_to_veth() {
    let Some(pair) = Pair::open("gso_packets_cross_veth_to_veth", ["veth", "veth"]) else {
        return;
    };
    check_gso_packets(&pair.tcp("10.66.0.2"));
}

#[test]
fn gso_packets_cross_tap_to_veth() {
    let Some(pair) = Pair::open("gso_packets_cross_tap_to_veth", ["tap", "veth"]) else {
        return;
    };
    check_gso_packets(&pair.tcp("10.66.0.2"));
}

#[test]
fn gso_packets_over_ipv6() {
    let Some(pair) = Pair::open("gso_packets_over_ipv6", ["veth", "tap"]) else {
        return;
    };
    for (n, (ns, dev)) in [&pair.a, &pair.b].into_iter().zip(&pair.dev).enumerate() {
        ns.ip(&format!("addr add fd66::{}/64 dev {dev} nodad", n + 1));
    }
    check_gso_packets(&pair.tcp("[fd66::2]"));
}
