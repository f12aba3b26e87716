//! Ports on veth pairs, in a network namespace of the test's own thread.

mod sharing;

use super::*;
use heddle_packet::{Burst, Packet, Pool};
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs `check` in a network namespace with a pair of up devices, `a0` and `a1`. `false`: not possible here.
fn with_pair(check: impl FnOnce() + Send + 'static) -> bool {
    let run = |command: &str| {
        let out = Command::new("sh").args(["-c", command]).output();
        out.is_ok_and(|out| out.status.success())
    };
    let thread = std::thread::spawn(move || {
        #[expect(
            deprecated,
            reason = "its successor is unsafe; nothing that processes share is unshared here"
        )]
        if rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).is_err() {
            return false;
        }
        if !run("ip link add a0 type veth peer name a1 && ip link set a0 up && ip link set a1 up") {
            return false;
        }
        check();
        true
    });
    thread.join().unwrap()
}

fn options(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

/// A value of `Interface.status`.
fn status_of(port: &AfxdpPort, key: &str) -> String {
    let all = port.status().extra.into_iter();
    let found: Vec<_> = all.filter(|(k, _)| k == key).map(|(_, v)| v).collect();
    found.join(" and ")
}

/// Receives `n` packets, or fewer within a second.
fn receive(queue: &mut Box<dyn RxQueue>, n: usize) -> Vec<Vec<u8>> {
    let (mut pool, mut all) = (Pool::new(64), Vec::new());
    let until = Instant::now() + Duration::from_secs(1);
    while all.len() < n && Instant::now() < until {
        let mut burst = Burst::new();
        queue.rx(&mut pool, &mut burst);
        all.extend(
            burst
                .iter()
                .filter(|p| p.head().starts_with(&[2, 0, 0, 0, 0, 1]))
                .map(Packet::to_vec),
        );
        pool.put_all(burst);
        queue.complete();
    }
    all
}

fn frame(n: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
    bytes.extend((0..len.saturating_sub(14)).map(|i| ((n + i) % 251).try_into().unwrap_or(0)));
    bytes
}

#[test]
fn packets_cross_a_pair() {
    let possible = with_pair(|| {
        let one = AfxdpPort::open("a0", &options(&[]), None).unwrap();
        let other = AfxdpPort::open("a1", &options(&[("xdp-mode", "generic")]), None).unwrap();
        assert_eq!(status_of(&one, "xdp-mode"), "native");
        assert_eq!(status_of(&other, "xdp-mode"), "generic");
        let mut pool = Pool::new(64);
        for (from, to) in [(&one, &other), (&other, &one)] {
            let mut rx = to.open_rx(1).unwrap();
            let mut tx = from.open_tx(5, 6).unwrap();
            // More than the ring has frames, in bursts that are received.
            for round in 0..200 {
                let sent: Vec<_> = (0..32).map(|n| frame(n + round, 60 + n * 40)).collect();
                let packets: Vec<_> = sent.iter().map(|b| Packet::from_bytes(b)).collect();
                let counts = tx.tx(&mut pool, &packets.iter().collect::<Vec<_>>());
                assert_eq!((counts.sent, counts.full), (32, 0));
                assert_eq!(receive(&mut rx[0], 32), sent, "round {round}");
            }
        }
        let long = Packet::from_bytes(&frame(0, 1519));
        let counts = one.open_tx(0, 1).unwrap().tx(&mut pool, &[&long]);
        assert_eq!((counts.sent, counts.too_long), (0, 1));
        one.set_mtu(1600).unwrap();
        let counts = one.open_tx(0, 1).unwrap().tx(&mut pool, &[&long]);
        assert_eq!((counts.sent, counts.too_long), (1, 0));
        one.set_admin(false).unwrap();
        assert!(!one.status().admin_up);
        let counts = one
            .open_tx(0, 1)
            .unwrap()
            .tx(&mut pool, &[&Packet::from_bytes(&frame(0, 60))]);
        assert_eq!((counts.sent, counts.down), (0, 1));
    });
    if !possible {
        eprintln!("no namespaces or veth devices: skipped");
    }
}

/// A UDP packet of flow `n`.
fn udp(n: u8) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend([0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0x12, n, 0x34, 0x56, 0, 26, 0, 0]);
    bytes.resize(60, n);
    bytes
}

#[test]
fn a_flow_or_a_worker_chooses_the_transmit_queue() {
    with_pair(|| {
        let again = "ip link del a0 && ip link add a0 numtxqueues 2 numrxqueues 2 type veth peer name a1 numtxqueues 2 \
                     numrxqueues 2 && ip link set a0 up && ip link set a1 up";
        Command::new("sh").args(["-c", again]).status().unwrap();
        let one = AfxdpPort::open("a0", &options(&[]), None).unwrap();
        let _receivers = one.open_rx(2).unwrap();
        let other = AfxdpPort::open("a1", &options(&[]), None).unwrap();
        let mut rx = other.open_rx(2).unwrap();
        let flows: Vec<_> = (0..32).map(udp).collect();
        let packets: Vec<_> = flows.iter().map(|b| Packet::from_bytes(b)).collect();
        let mut pool = Pool::new(64);
        // Queue n of one end leads to queue n of the other.
        let mut arrived = |by_flow: bool, worker: usize| {
            one.set_tx_steering(by_flow);
            let mut tx = one.open_tx(worker, 3).unwrap();
            let counts = tx.tx(&mut pool, &packets.iter().collect::<Vec<_>>());
            assert_eq!((counts.sent, counts.full), (32, 0));
            let first = receive(&mut rx[0], 32);
            (first, receive(&mut rx[1], 32))
        };
        assert_eq!(status_of(&one, "tx-steering"), "thread");
        // Two queues for three workers: the third one shares the first one's.
        for (worker, queue) in [(0, 0), (1, 1), (2, 0)] {
            let (first, second) = arrived(false, worker);
            let (all, none) = if queue == 0 {
                (first, second)
            } else {
                (second, first)
            };
            assert_eq!((all, none.len()), (flows.clone(), 0), "worker {worker}");
        }
        let (first, second) = arrived(true, 0);
        assert!(first.len() > 4 && second.len() > 4 && first.len() + second.len() == 32);
        assert_eq!(arrived(true, 1), (first, second), "the worker is no matter");
        assert_eq!(status_of(&one, "tx-steering"), "hash");
    });
}

#[test]
fn the_host_gets_its_packets() {
    with_pair(|| {
        let port = AfxdpPort::open("a0", &options(&[]), Some("ether=0x88b5,udp=13398")).unwrap();
        let mut rx = port.open_rx(1).unwrap();
        let peer = AfxdpPort::open("a1", &options(&[]), None).unwrap();
        let mut tx = peer.open_tx(0, 1).unwrap();
        let mut exchange = |port: &AfxdpPort| {
            let packets = [frame(1, 60), udp(1)].map(|b| Packet::from_bytes(&b));
            assert_eq!(tx.tx(&mut Pool::new(8), &[&packets[0], &packets[1]]).sent, 2);
            let got = receive(&mut rx[0], 2);
            let all = port.statistics();
            let n = all
                .iter()
                .find(|(name, _)| name == "xdp_passed_packets")
                .unwrap()
                .1;
            (got.len(), n)
        };
        assert_eq!(status_of(&port, "heddle-xdp-pass"), "ether=0x88b5,udp=13398");
        assert_eq!(exchange(&port), (0, 2));
        port.set_xdp_pass(Some("udp=13398"));
        assert_eq!(exchange(&port), (1, 3));
        port.set_xdp_pass(Some("udp=1,tcp"));
        assert!(port.status().error.unwrap().contains("'tcp': expected"));
        assert_eq!(exchange(&port), (1, 4), "the list in force stays");
        port.set_xdp_pass(None);
        assert_eq!((port.status().error, exchange(&port)), (None, (2, 4)));
    });
}

#[test]
fn faults_are_one_sentence() {
    with_pair(|| {
        let why = |name: &str, pairs: &[(&str, &str)]| match AfxdpPort::open(name, &options(pairs), None) {
            Ok(_) => String::new(),
            Err(e) => e.to_string(),
        };
        assert_eq!(
            why("nope", &[]),
            "could not open network device nope (No such device)"
        );
        assert!(why("lo", &[]).contains("a loopback device cannot be a port"));
        let port = AfxdpPort::open("a0", &options(&[]), None).unwrap();
        assert!(
            port.open_rx(4)
                .is_err_and(|e| e.to_string().contains("it has 1 receive queues, and n_rxq=4"))
        );
        // The port continues with one queue, and reports the error until it has what is wanted.
        assert_eq!(port.open_rx(1).unwrap().len(), 1);
        assert!(port.status().error.unwrap().contains("n_rxq=4"));
        port.set_options(&options(&[("n_rxq", "1")])).unwrap();
        assert_eq!(port.status().error, None);
        drop(port);
        let dpdk = |pairs: &[(&str, &str)]| AfxdpPort::open_dpdk("phys0", &options(pairs), None);
        assert!(dpdk(&[]).is_err_and(|e| e.to_string() == "phys0: options:dpdk-devargs is missing"));
        let port = dpdk(&[("dpdk-devargs", "net_af_xdp0,iface=a0")]).unwrap();
        assert_eq!((port.name(), port.kind()), ("phys0", "dpdk"));
        let status = port.status().extra;
        assert!(
            status.contains(&("heddle-device".into(), "a0".into())),
            "{status:?}"
        );
        assert!(
            port.set_options(&options(&[("dpdk-devargs", "net_af_xdp0,iface=a1")]))
                .is_err()
        );
        drop(port);
        let zero_copy = why("a0", &[("xdp-mode", "native-with-zerocopy")]);
        assert!(
            zero_copy.contains("native-with-zerocopy: queue 0: "),
            "{zero_copy}"
        );
        let first = AfxdpPort::open("a0", &options(&[]), None).unwrap();
        let busy = why("a0", &[]);
        assert!(
            busy.contains("another program has an XDP program at the device"),
            "{busy}"
        );
        drop(first);
        assert_eq!(why("a0", &[]), "", "nothing is left of a port that is gone");
    });
}

#[test]
fn other_options_and_devices_open_the_queues_again() {
    with_pair(|| {
        let port = AfxdpPort::open("a0", &options(&[]), None).unwrap();
        drop(port.open_rx(1).unwrap());
        assert!(!port.stale());
        port.set_options(&options(&[("xdp-mode", "generic")])).unwrap();
        assert!(port.stale());
        let queues = port.open_rx(1).unwrap();
        assert!(!port.stale());
        assert_eq!(status_of(&port, "xdp-mode"), "generic");
        drop(queues);
        let again = "ip link del a0 && ip link add a0 type veth peer name a1 && ip link set a0 up && ip link set a1 up";
        Command::new("sh").args(["-c", again]).status().unwrap();
        assert!(port.status().ifindex != 0 && port.stale());
        let mut rx = port.open_rx(1).unwrap();
        let peer = AfxdpPort::open("a1", &options(&[]), None).unwrap();
        let counts = peer
            .open_tx(0, 1)
            .unwrap()
            .tx(&mut Pool::new(8), &[&Packet::from_bytes(&frame(1, 300))]);
        assert_eq!(counts.sent, 1);
        assert_eq!(receive(&mut rx[0], 1), [frame(1, 300)]);
        port.set_options(&options(&[("xdp-mode", "native-with-zerocopy")]))
            .unwrap();
        drop(rx);
        assert!(port.open_rx(1).is_err());
        assert!(port.status().error.unwrap().contains("native-with-zerocopy"));
    });
}
