//! Ports on veth pairs, in a network namespace of the test's own thread.

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
