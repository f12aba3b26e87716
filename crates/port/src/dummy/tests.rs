//! Dummy ports as the test commands and their peers see them.

#![allow(clippy::cast_possible_truncation)] // small numbers of the tests' own

use super::*;
use heddle_packet::{Burst, Csum, Offload, Packet, Pool};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

const LIMIT: Duration = Duration::from_secs(30);

fn options(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

fn frame(n: u8) -> Vec<u8> {
    let mut f = vec![n; 60];
    f[12] = 0x08;
    f[13] = 0x00;
    f
}

fn take(rx: &mut Box<dyn RxQueue>) -> Vec<Vec<u8>> {
    let (mut pool, mut burst) = (Pool::new(8), Burst::new());
    rx.rx(&mut pool, &mut burst);
    burst.iter().map(Packet::to_vec).collect()
}

fn send(port: &DummyPort, packet: &Packet) -> crate::TxCounts {
    port.open_tx(0, 1).unwrap().tx(&mut Pool::new(4), &[packet])
}

/// The records of a capture file, after its header is checked.
fn records(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!((u32_at(0), u32_at(20)), (0xa1b2_c3d4, 1));
    let (mut at, mut out) = (24, Vec::new());
    while at < bytes.len() {
        let len = u32_at(at + 8);
        assert_eq!(len, u32_at(at + 12));
        out.push(bytes[at + 16..at + 16 + len].to_vec());
        at += 16 + len;
    }
    out
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{what} did not happen");
}

#[test]
fn injected_frames_arrive_in_order_and_bounded() {
    let p = DummyPort::open("dummy", "d0", &options(&[])).unwrap();
    p.receive(0, &frame(1)); // no queue is open yet: dropped
    let mut rx = p.open_rx(2).unwrap();
    assert_eq!(p.n_rxq(), 2);
    assert!(!rx[0].arm());
    for n in 0..150 {
        p.receive(0, &frame(n));
    }
    p.receive(1, &frame(200));
    p.receive(2, &frame(201)); // no such queue
    assert!(rx[0].arm());
    let mut got = Vec::new();
    loop {
        let some = take(&mut rx[0]);
        if some.is_empty() {
            break;
        }
        got.extend(some);
    }
    assert_eq!(got, (0..100).map(frame).collect::<Vec<_>>());
    assert_eq!(take(&mut rx[1]), [frame(200)]);
}

#[test]
fn waiting_for_the_worker() {
    let p = DummyPort::open("dummy", "d0", &options(&[])).unwrap();
    let mut rx = p.open_rx(1).unwrap();
    assert!(p.wait_processed(LIMIT), "nothing to wait for");
    p.receive(0, &frame(1));
    assert!(!p.wait_processed(Duration::from_millis(20)));
    assert_eq!(take(&mut rx[0]).len(), 1);
    assert!(
        !p.wait_processed(Duration::from_millis(20)),
        "handed out, but not done with"
    );
    let waiter = {
        let p = Arc::clone(&p);
        std::thread::spawn(move || p.wait_processed(LIMIT))
    };
    rx[0].complete();
    assert!(waiter.join().unwrap());
    p.receive(0, &frame(2));
    drop(p.open_rx(1).unwrap());
    assert!(
        p.wait_processed(LIMIT),
        "queues that are replaced are not waited for"
    );
    assert!(take(&mut rx[0]).is_empty(), "an old queue gets nothing");
}

#[test]
fn wake_descriptor_follows_the_queue() {
    let p = DummyPort::open("dummy", "d0", &options(&[])).unwrap();
    let mut rx = p.open_rx(1).unwrap();
    let mut epoll = heddle_sys::Epoll::new(1).unwrap();
    epoll.add(rx[0].wake_fd().unwrap().0, 0).unwrap();
    assert_eq!(epoll.wait(0).unwrap().count(), 0);
    p.receive(0, &frame(1));
    p.receive(0, &frame(2));
    assert_eq!(epoll.wait(0).unwrap().count(), 1);
    assert_eq!(take(&mut rx[0]).len(), 2);
    assert_eq!(epoll.wait(0).unwrap().count(), 0);
    p.receive(0, &frame(3));
    assert_eq!(epoll.wait(0).unwrap().count(), 1);
}

#[test]
fn length_limits_and_offloads() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tx.pcap");
    let p = DummyPort::open("dummy", "d0", &options(&[("tx_pcap", file.to_str().unwrap())])).unwrap();
    p.set_mtu(100).unwrap();
    assert!(p.set_mtu(67).is_err() && p.set_mtu(65536).is_err());
    let mut full = frame(1);
    full.resize(114, 0);
    assert_eq!(send(&p, &Packet::from_bytes(&full)).sent, 1);
    full.push(0);
    assert_eq!(send(&p, &Packet::from_bytes(&full)).too_long, 1);
    full.resize(118, 0);
    full[12..14].copy_from_slice(&[0x81, 0]);
    assert_eq!(send(&p, &Packet::from_bytes(&full)).sent, 1);
    assert_eq!(send(&p, &Packet::from_bytes(&[0; 13])).error, 1);
    let mut open = Packet::from_bytes(&frame(0));
    open.offload = Offload {
        csum: Csum::Partial {
            start: 34,
            offset: 16,
        },
        gso: None,
    };
    assert_eq!(send(&p, &open).sent, 1);
    let got = records(&file);
    assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), [114, 118, 60]);
    assert_eq!(got[2][50..52], [0xff, 0xff]);
}

#[test]
fn captures_append_and_mix() {
    let dir = tempfile::tempdir().unwrap();
    let path = |n: &str| dir.path().join(n).to_str().unwrap().to_owned();
    let split = options(&[("rxq_pcap", &path("rx")), ("tx_pcap", &path("tx"))]);
    for _ in 0..2 {
        let p = DummyPort::open("dummy", "d0", &split).unwrap();
        let _rx = p.open_rx(1).unwrap();
        p.receive(0, &frame(1));
        send(&p, &Packet::from_bytes(&frame(2)));
    }
    assert_eq!(records(&dir.path().join("rx")), [frame(1), frame(1)]);
    assert_eq!(records(&dir.path().join("tx")), [frame(2), frame(2)]);
    let p = DummyPort::open("dummy", "d0", &options(&[("pcap", &path("both"))])).unwrap();
    p.receive(0, &frame(3));
    send(&p, &Packet::from_bytes(&frame(4)));
    assert_eq!(records(&dir.path().join("both")), [frame(3), frame(4)]);
}

#[test]
fn status_and_options() {
    let a = DummyPort::open(
        "dummy-pmd",
        "d0",
        &options(&[("ifindex", "1004"), ("numa_id", "1")]),
    )
    .unwrap();
    let b = DummyPort::open("dummy", "d1", &options(&[])).unwrap();
    assert_ne!(a.status().mac, b.status().mac);
    assert_eq!(a.status().mac[..2], [0xaa, 0x55]);
    assert_eq!(
        (a.status().ifindex, a.numa_id(), a.kind()),
        (1004, 1, "dummy-pmd")
    );
    assert!(a.status().admin_up && a.status().link_up && a.status().mtu == 1500);
    a.set_admin(false).unwrap();
    assert!(!a.status().admin_up && !a.status().link_up);
    a.set_mac([2, 0, 0, 0, 0, 9]).unwrap();
    assert_eq!(a.status().mac, [2, 0, 0, 0, 0, 9]);
    assert_eq!(a.conn_state(), ConnState::Unknown);
}

#[test]
fn replies_to_arp_for_its_address() {
    let p = DummyPort::open("dummy", "d0", &options(&[])).unwrap();
    let mut rx = p.open_rx(1).unwrap();
    p.set_ip4("10.1.1.1".parse().unwrap(), "255.255.255.0".parse().unwrap());
    let request = frame_from_hex(
        "ffffffffffff 020000000007 0806 0001 0800 06 04 0001 020000000007 0a010102 000000000000 0a010101",
    )
    .unwrap();
    send(&p, &Packet::from_bytes(&request));
    let mac: String = p.status().mac.iter().map(|b| format!("{b:02x}")).collect();
    let reply = format!("020000000007{mac}0806000108000604 0002{mac}0a010101 020000000007 0a010102");
    assert_eq!(take(&mut rx[0]), [frame_from_hex(&reply).unwrap()]);
    let mut other = request;
    other[41] = 9;
    send(&p, &Packet::from_bytes(&other));
    assert!(take(&mut rx[0]).is_empty());
}

#[test]
fn hex_forms() {
    assert_eq!(
        frame_from_hex("00 11 22 33 44 55 66 77 88 99 aa BB Cc 0d")
            .unwrap()
            .len(),
        14
    );
    assert_eq!(
        frame_from_hex("in_port(1)"),
        Err("Trailing garbage in packet data")
    );
    assert_eq!(frame_from_hex("001"), Err("Trailing garbage in packet data"));
    assert_eq!(frame_from_hex("0011"), Err("Packet data too short for Ethernet"));
    assert_eq!(frame_from_hex("\u{e9}"), Err("Trailing garbage in packet data"));
}

fn framed(f: &[u8]) -> Vec<u8> {
    [&(f.len() as u16).to_be_bytes(), f].concat()
}

fn read_frame(s: &mut UnixStream) -> Vec<u8> {
    let mut len = [0; 2];
    s.read_exact(&mut len).unwrap();
    let mut f = vec![0; usize::from(u16::from_be_bytes(len))];
    s.read_exact(&mut f).unwrap();
    f
}

#[test]
fn passive_stream() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.sock");
    let name = format!("punix:{}", path.display());
    let p = DummyPort::open("dummy", "d0", &options(&[("pstream", &name)])).unwrap();
    let mut rx = p.open_rx(1).unwrap();
    assert_eq!(p.conn_state(), ConnState::Disconnected);
    let mut peer = UnixStream::connect(&path).unwrap();
    peer.set_read_timeout(Some(LIMIT)).unwrap();
    wait_for("connection", || p.conn_state() == ConnState::Connected);
    // Both frames in pieces that cut through a length and through a frame.
    let bytes = [framed(&frame(1)), framed(&frame(2))].concat();
    for part in [&bytes[..1], &bytes[1..30], &bytes[30..63], &bytes[63..]] {
        peer.write_all(part).unwrap();
        std::thread::sleep(Duration::from_millis(3));
    }
    let mut got = Vec::new();
    wait_for("frames", || {
        got.extend(take(&mut rx[0]));
        got.len() == 2
    });
    assert_eq!(got, [frame(1), frame(2)]);
    send(&p, &Packet::from_bytes(&frame(3)));
    assert_eq!(read_frame(&mut peer), frame(3));
    peer.write_all(&[0, 13]).unwrap(); // shorter than a header: the connection ends
    wait_for("end", || p.conn_state() == ConnState::Disconnected);
    p.set_options(&options(&[])).unwrap();
    assert_eq!(p.conn_state(), ConnState::Unknown);
    assert!(!path.exists());
}

#[test]
fn active_stream_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let name = format!("unix:{}", path.display());
    let p = DummyPort::open("dummy", "d0", &options(&[("stream", &name)])).unwrap();
    assert_eq!(p.conn_state(), ConnState::Disconnected);
    let listener = UnixListener::bind(&path).unwrap();
    for n in 0..2 {
        let (mut peer, _) = listener.accept().unwrap();
        peer.set_read_timeout(Some(LIMIT)).unwrap();
        wait_for("connection", || p.conn_state() == ConnState::Connected);
        send(&p, &Packet::from_bytes(&frame(n)));
        assert_eq!(read_frame(&mut peer), frame(n));
    }
    drop(listener);
    wait_for("end", || p.conn_state() == ConnState::Disconnected);
}

#[test]
fn streams_that_make_no_sense_are_ignored() {
    for (key, name) in [
        ("pstream", "unix:/x"),
        ("pstream", "punix:/no/such/dir/s"),
        ("stream", "x"),
        ("pstream", "ptcp:x"),
    ] {
        let p = DummyPort::open("dummy", "d0", &options(&[(key, name)])).unwrap();
        assert_eq!(p.conn_state(), ConnState::Unknown, "{name}");
    }
    let p = DummyPort::open(
        "dummy",
        "d0",
        &options(&[("stream", "unix:/x"), ("pstream", "ptcp:0")]),
    )
    .unwrap();
    assert_eq!(p.conn_state(), ConnState::Unknown);
}

/// A queue that does not want to keep packets may be given some all the same: it sends them and leaves them.
#[test]
fn packets_that_are_handed_over_are_sent() {
    let port = DummyPort::open("dummy", "p", &options(&[])).unwrap();
    let mut tx = port.open_tx(0, 1).unwrap();
    assert!(!tx.wants_ownership());
    let mut packets: Vec<Packet> = (0..40).map(|i| Packet::from_bytes(&frame(i))).collect();
    let sent = tx.tx_owned(&mut Pool::new(4), &mut packets);
    assert_eq!((sent.sent, sent.bytes), (40, 40 * 60));
    assert_eq!(packets.len(), 40);
}

#[test]
fn each_queue_counts_what_it_carries() {
    let port = DummyPort::open("dummy-pmd", "p", &options(&[("n_txq", "2")])).unwrap();
    let mut queues = port.open_rx(2).unwrap();
    port.receive(1, &frame(1));
    assert_eq!(take(&mut queues[1]).len(), 1);
    let flows: Vec<Packet> = (0..32).map(|flow| Packet::from_bytes(&frame(flow))).collect();
    let all: Vec<&Packet> = flows.iter().collect();
    port.open_tx(3, 4).unwrap().tx(&mut Pool::new(4), &all);
    let count = |name: &str| port.statistics().iter().find(|(n, _)| n == name).map(|(_, n)| *n);
    assert_eq!(
        (count("rx_q0_packets"), count("rx_q1_packets")),
        (Some(0), Some(1))
    );
    assert_eq!(count("rx_q1_bytes"), Some(60));
    assert_eq!(
        (count("tx_q0_packets"), count("tx_q1_packets")),
        (Some(0), Some(32)),
        "that of the worker"
    );
    port.set_tx_steering(true);
    port.open_tx(3, 4).unwrap().tx(&mut Pool::new(4), &all);
    let (first, second) = (count("tx_q0_packets").unwrap(), count("tx_q1_packets").unwrap());
    assert!(
        first > 4 && second > 36 && first + second == 64,
        "{first} {second}"
    );
}

/// An Ethernet frame with TCP over IPv4 and this number of bytes of payload; its checksums are wrong.
fn tcp_frame(payload: usize) -> Vec<u8> {
    let mut f = vec![0; 54 + payload];
    f[12..14].copy_from_slice(&[8, 0]);
    f[14] = 0x45;
    f[16..18].copy_from_slice(&u16::try_from(40 + payload).unwrap().to_be_bytes());
    (f[22], f[23]) = (64, 6);
    f[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    f[46] = 0x50;
    f
}

fn tcp_sum_is_right(frame: &[u8]) -> bool {
    let len = u32::try_from(frame.len() - 34).unwrap();
    let sum = heddle_wire::ip::pseudo(&frame[14..], false, 6, len).unwrap();
    sum.bytes(&frame[34..]).checksum() == 0
}

#[test]
fn a_port_that_segments_hands_in_gso_packets_and_takes_them_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tx.pcap");
    let settings = options(&[("ol_tso_segsz", "500"), ("tx_pcap", path.to_str().unwrap())]);
    let port = DummyPort::open("dummy", "p", &settings).unwrap();
    let mut rx = port.open_rx(1).unwrap();
    port.receive(0, &tcp_frame(1100));
    port.receive(0, &tcp_frame(500));
    let (mut pool, mut burst) = (Pool::new(8), Burst::new());
    rx[0].rx(&mut pool, &mut burst);
    let [long, short] = [&burst[0], &burst[1]];
    let gso = long.offload.gso.expect("more than a segment");
    assert_eq!(
        (gso.size, gso.hdr_len, gso.kind),
        (500, 54, heddle_packet::GsoKind::Tcp4)
    );
    assert_eq!(
        short.offload,
        Offload::default(),
        "one segment is a packet like others"
    );
    assert_eq!(send(&port, long).sent, 1);
    let sent = records(&path);
    assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [54 + 1100]);
    assert!(tcp_sum_is_right(&sent[0]));

    // A port without the option sends segments, each with a correct checksum.
    let other = dir.path().join("other.pcap");
    let port = DummyPort::open("dummy", "q", &options(&[("tx_pcap", other.to_str().unwrap())])).unwrap();
    assert_eq!(send(&port, long).sent, 1);
    let sent = records(&other);
    assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [554, 554, 154]);
    assert!(sent.iter().all(|f| tcp_sum_is_right(f)));
}
