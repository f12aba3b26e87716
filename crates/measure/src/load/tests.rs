//! Both ends in one process, over loopback.

use super::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn load(pattern: Pattern, transport: Transport, connections: usize, request: usize) -> Load {
    Load {
        pattern,
        transport,
        connections,
        threads: 2,
        request,
        response: 100,
        rate_per_s: None,
    }
}

/// Totals of client and server in the measured time, and the client's result.
fn run(load: &Load, to: IpAddr, ms: u64) -> (Totals, Totals, EndResult) {
    load.check().unwrap();
    let listening = Listening::open(load, to, 0).unwrap();
    let sockets = connect(load, to, &listening.ports().unwrap()).unwrap();
    let server = Running::start(load, Role::Server, listening.accept(load).unwrap()).unwrap();
    let client = Running::start(load, Role::Client, sockets).unwrap();
    client.measure(true);
    std::thread::sleep(Duration::from_millis(ms));
    client.measure(false);
    server.measure(false);
    let (c, s) = (client.totals(), server.totals());
    assert!(!client.is_broken() && !server.is_broken());
    let found = client.stop();
    assert_eq!(found.faults, [""; 0]);
    assert_eq!(server.stop().faults, [""; 0]);
    (c, s, found)
}

#[test]
fn requests_are_answered() {
    for transport in [Transport::Tcp, Transport::Udp] {
        for (connections, size) in [(1, 1), (2, 5000), (17, 1), (17, 30_000)] {
            let load = load(Pattern::Rr, transport, connections, size);
            let (client, server, found) = run(&load, V4, 150);
            assert!(client.transactions > 20, "{load:?} {client:?}");
            assert!(server.transactions + 100 > client.transactions);
            assert_eq!(client.bytes, client.transactions * (size as u64 + 100));
            let latency = found.latency.unwrap();
            assert!(latency.len() > 10 && latency.len() <= client.transactions + connections as u64);
            assert!(found.lag.is_none());
        }
    }
    // More connections than the usual queue of a listener holds.
    let many = load(Pattern::Rr, Transport::Tcp, 300, 10);
    assert!(run(&many, V4, 300).0.transactions > 300);
    let load = load(Pattern::Rr, Transport::Tcp, 3, 10);
    assert!(run(&load, Ipv6Addr::LOCALHOST.into(), 100).0.transactions > 20);
}

#[test]
fn streams_flow() {
    for transport in [Transport::Tcp, Transport::Udp] {
        for (pattern, connections) in [(Pattern::Write, 1), (Pattern::Read, 1), (Pattern::Write, 9)] {
            let load = load(pattern, transport, connections, 1400);
            let (client, server, _) = run(&load, V4, 150);
            let (sent, got) = if pattern == Pattern::Write {
                (client, server)
            } else {
                (server, client)
            };
            assert!(got.bytes > 100_000, "{load:?} {got:?}");
            assert!(got.bytes <= sent.bytes + (64 << 20));
        }
    }
}

/// The rate of the load is kept, on few connections and many.
#[test]
fn a_rate_is_kept() {
    for (pattern, connections) in [
        (Pattern::Rr, 1),
        (Pattern::Rr, 10),
        (Pattern::Write, 1),
        (Pattern::Write, 10),
    ] {
        let mut load = load(pattern, Transport::Tcp, connections, 50);
        load.rate_per_s = Some(500.0);
        let (client, _, found) = run(&load, V4, 600);
        assert!(
            (230..=310).contains(&client.transactions),
            "{connections} {client:?}"
        );
        if pattern == Pattern::Rr {
            assert!(found.lag.unwrap().len() > 100);
        }
    }
}

/// Numbers of requests that took 50 ms or longer, and of all requests. The load is 1,000 a second for half a
/// second, to a server that stops for 200 ms.
fn slow_requests() -> (u64, u64) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut s, _) = listener.accept().unwrap();
        let mut n = 0;
        while s.read_exact(&mut [0; 10]).is_ok() {
            n += 1;
            if n == 100 {
                std::thread::sleep(Duration::from_millis(200));
            }
            if s.write_all(&[0; 100]).is_err() {
                return;
            }
        }
    });
    let mut load = load(Pattern::Rr, Transport::Tcp, 1, 10);
    load.rate_per_s = Some(1000.0);
    let sockets = connect(&load, V4, &[at.port()]).unwrap();
    let client = Running::start(&load, Role::Client, sockets).unwrap();
    client.measure(true);
    std::thread::sleep(Duration::from_millis(500));
    let latency = client.stop().latency.unwrap();
    server.join().unwrap();
    (
        latency.len() - latency.count_between(0, 50_000_000),
        latency.len(),
    )
}

/// At a fixed rate, all requests that were due while the server was stopped are slow, not just the first.
#[test]
fn no_omission_is_coordinated() {
    // 200 requests were due. Those of the first 150 ms wait for 50 ms or more. A busy machine makes others
    // slow, but not each time.
    let mut tries = Vec::new();
    while !tries.last().is_some_and(|(slow, _)| (100..250).contains(slow)) {
        assert!(tries.len() < 5, "{tries:?}");
        tries.push(slow_requests());
    }
}

#[test]
fn faults_are_told() {
    let load = load(Pattern::Rr, Transport::Tcp, 1, 10);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let text = Listening::open(&load, V4, port).unwrap_err().to_string();
    assert_eq!(text, format!("port {port} of 127.0.0.1 is in use"));
    let sockets = connect(&load, V4, &[port]).unwrap();
    let client = Running::start(&load, Role::Client, sockets).unwrap();
    drop(listener);
    for _ in 0..1000 {
        if client.is_broken() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!client.stop().faults.is_empty());
    let text = connect(&load, V4, &[port]).unwrap_err().to_string();
    assert_eq!(text, "127.0.0.1: Connection refused");
}

#[test]
fn nonsense_is_refused() {
    let good = load(Pattern::Rr, Transport::Udp, 1, 1);
    assert_eq!(good.check(), Ok(()));
    for bad in [
        Load {
            request: 0,
            ..good.clone()
        },
        Load {
            response: 70_000,
            ..good.clone()
        },
        Load {
            connections: 0,
            ..good.clone()
        },
        Load {
            rate_per_s: Some(f64::NAN),
            ..good.clone()
        },
        Load {
            rate_per_s: Some(0.0),
            ..good.clone()
        },
    ] {
        assert!(bad.check().is_err(), "{bad:?}");
    }
}
