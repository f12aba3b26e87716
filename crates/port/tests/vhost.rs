//! vhost-user ports with real sessions: two ports, two front ends, a worker that forwards between them and
//! sleeps.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use heddle_packet::{BURST, Burst, Packet, Pool};
use heddle_port::{Port, RxQueue, TxQueue, VhostContext, open_vhost};
use heddle_sys::Epoll;
use heddle_vhost_user::backend::Control;
use heddle_vhost_user::frontend::{Frontend, HugePages, Listener, Nic, NicConfig};
use heddle_vhost_user::message::{ProtocolFeatures, Request};
use heddle_virtio::Features;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes of the virtio-net header.
const HDR: usize = 12;
const FRAME: usize = 100;

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < until, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Forwards between two ports as a worker does: polls, arms, sleeps.
struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(ports: [&Arc<dyn Port>; 2]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let mut rx: Vec<Box<dyn RxQueue>> = ports.iter().flat_map(|p| p.open_rx(1).unwrap()).collect();
        let mut tx: Vec<Box<dyn TxQueue>> = ports.iter().map(|p| p.open_tx(0, 1).unwrap()).collect();
        tx.reverse();
        let thread = std::thread::spawn(move || {
            let (mut pool, mut burst) = (Pool::new(64), Burst::new());
            let mut epoll = Epoll::new(4).unwrap();
            for (i, r) in (0..).zip(&rx) {
                epoll.add(r.wake_fd().unwrap().0, i).unwrap();
            }
            while !ended.load(Relaxed) {
                let mut n = 0;
                for (r, t) in rx.iter_mut().zip(&mut tx) {
                    let got = r.rx(&mut pool, &mut burst);
                    if got > 0 {
                        let out: Vec<&Packet> = burst.iter().collect();
                        assert!(out.len() <= BURST);
                        t.tx(&mut pool, &out);
                        drop(out);
                        burst.drain(..).for_each(|p| pool.put(p));
                        r.complete();
                    }
                    n += got;
                }
                if n > 0 || rx.iter_mut().fold(false, |some, r| r.arm() | some) {
                    continue;
                }
                let woken: Vec<u64> = epoll.wait(100).unwrap().map(|r| r.token).collect();
                for (i, r) in (0..).zip(&mut rx) {
                    if woken.contains(&i) {
                        r.woken();
                    }
                    r.disarm();
                }
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

struct Lab {
    dir: tempfile::TempDir,
    context: VhostContext,
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let context = VhostContext {
            control: Arc::new(Control::start().unwrap()),
            changed: Arc::new(|| {}),
            rundir: dir.path().into(),
            socket_dir: dir.path().into(),
            iommu: false,
            dummy_numa: false,
        };
        Self { dir, context }
    }
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    fn client(&self, name: &str) -> Arc<dyn Port> {
        let path = self.path(name).display().to_string();
        let options = BTreeMap::from([("vhost-server-path".to_owned(), path)]);
        open_vhost("dpdkvhostuserclient", name, &options, self.context.clone()).unwrap()
    }
    fn server(&self, name: &str) -> Arc<dyn Port> {
        open_vhost("dpdkvhostuser", name, &BTreeMap::new(), self.context.clone()).unwrap()
    }
}

fn config(features: Features) -> NicConfig {
    NicConfig {
        features: features | Features::VERSION_1,
        // Without slots, so that the same memory can be handed over twice.
        protocol: (NicConfig::PROTOCOL - ProtocolFeatures::CONFIGURE_MEM_SLOTS)
            | ProtocolFeatures::MTU
            | ProtocolFeatures::RARP,
        pairs: 1,
        queue_size: 64,
        tx_len: 256,
        rx_len: 256,
        huge: HugePages::Never,
    }
}

fn accept(listener: &Listener) -> Frontend {
    listener.accept(LIMIT, LIMIT).unwrap().expect("the port connects")
}

fn status(port: &Arc<dyn Port>, key: &str) -> Option<String> {
    let all = port.status().extra;
    all.into_iter().find(|(k, _)| k == key).map(|(_, v)| v)
}

/// Sends a frame with this number, if there is a buffer.
fn send(nic: &mut Nic, number: u32) -> bool {
    let q = &mut nic.tx[0];
    q.stream.take(64, |_, _| {}).unwrap();
    if q.stream.free() == 0 {
        return false;
    }
    let mut bytes = [0; HDR + FRAME];
    bytes[HDR + 12..HDR + 14].copy_from_slice(&[0x88, 0xb5]);
    bytes[HDR + 14..HDR + 18].copy_from_slice(&number.to_be_bytes());
    let buffer = q.stream.upcoming(0);
    q.stream.write(buffer, 0, &bytes);
    q.stream.set_len(buffer, u32::try_from(bytes.len()).unwrap());
    q.post(1);
    true
}

/// Numbers of the frames that came; their buffers go back.
fn received(nic: &mut Nic) -> Vec<u32> {
    let mut numbers = Vec::new();
    let q = &mut nic.rx[0];
    let view = q.stream.view().clone();
    let n = q.stream.take(64, |buffer, len| {
        let mut bytes = [0; HDR + FRAME];
        view.read(buffer, 0, &mut bytes);
        // A RARP announcement is shorter and of another type.
        if bytes[HDR + 12..HDR + 14] == [0x88, 0xb5] {
            assert_eq!(len as usize, bytes.len());
            numbers.push(u32::from_be_bytes(bytes[HDR + 14..HDR + 18].try_into().unwrap()));
        } else {
            numbers.push(u32::MAX);
        }
    });
    q.post(n.unwrap());
    numbers
}

/// Sends `count` frames from one to the other and wants all of them, in order.
fn exchange(from: &mut Nic, to: &mut Nic, count: u32) {
    let (mut sent, mut got) = (0, Vec::new());
    let until = Instant::now() + LIMIT;
    while got.len() < count as usize {
        // No more on the way than the receiver has buffers for.
        let on_the_way = sent - u32::try_from(got.len()).unwrap();
        if sent < count && on_the_way < 32 && send(from, sent) {
            sent += 1;
        }
        got.extend(received(to));
        assert!(Instant::now() < until, "{sent} sent, {} received", got.len());
    }
    assert_eq!(got, (0..count).collect::<Vec<_>>());
}

fn both_ways(a: &mut Nic, b: &mut Nic) {
    exchange(a, b, 300);
    std::thread::sleep(Duration::from_millis(2)); // the worker falls asleep
    exchange(b, a, 300);
}

fn connect(path: &Path) -> Frontend {
    Frontend::connect(path, LIMIT, LIMIT).unwrap()
}

#[test]
fn two_ports_forward_through_sessions_that_come_and_go() {
    for features in [
        Features::empty(),
        Features::RING_PACKED | Features::MRG_RXBUF,
        Features::EVENT_IDX | Features::IN_ORDER,
    ] {
        let lab = Lab::new();
        let listener = Listener::bind(&lab.path("a")).unwrap();
        let (pa, pb) = (lab.client("a"), lab.server("b"));
        let _worker = Worker::start([&pa, &pb]);
        let config = config(features);
        let mut front_b = connect(&lab.path("b"));
        let mut b = Nic::negotiate(&mut front_b, &config).unwrap();
        b.attach(&mut front_b).unwrap();
        let mut front_a = accept(&listener);
        let mut a = Nic::negotiate(&mut front_a, &config).unwrap();
        a.attach(&mut front_a).unwrap();
        wait_for("links", || pa.status().link_up && pb.status().link_up);
        both_ways(&mut a, &mut b);
        // Only packed rings need a journal; it is in a directory without ports' sockets.
        let packed = features.contains(Features::RING_PACKED);
        assert_eq!(lab.path(".vrings/b").exists(), packed);
        assert_eq!(status(&pa, "vring_1_size").as_deref(), Some("64"));
        assert!(pa.rxq_enabled(0) && !pa.rxq_enabled(1));

        // Other messages of the monitor.
        front_a.request(&Request::NetSetMtu(9000), &[]).unwrap();
        wait_for("the MTU", || status(&pa, "mtu").as_deref() == Some("9000"));
        front_a
            .request(&Request::SendRarp([2, 0, 0, 0, 0, 7]), &[])
            .unwrap();
        let mut got = Vec::new();
        wait_for("the announcement", || {
            got.extend(received(&mut b));
            got == [u32::MAX]
        });
        // A table of memory that is handed over anew while workers run.
        for _ in 0..20 {
            let table = Request::SetMemTable(vec![a.ram().region()]);
            front_a
                .request(&table, &[std::os::fd::AsFd::as_fd(a.ram())])
                .unwrap();
            exchange(&mut a, &mut b, 10);
        }

        // The monitor stops and starts the rings (the guest restarts its driver).
        for _ in 0..10 {
            let at = a.detach(&mut front_a).unwrap();
            assert_eq!(at, [a.rx[0].stream.position(), a.tx[0].stream.position()]);
            wait_for("no link", || !pa.status().link_up);
            a.attach(&mut front_a).unwrap();
            exchange(&mut a, &mut b, 20);
        }

        // The monitor dies; another takes its place.
        drop(front_a);
        wait_for("its end", || {
            status(&pa, "status").as_deref() == Some("disconnected")
        });
        assert!(!pa.status().link_up);
        assert!(status(&pa, "disconnect_reason").unwrap().contains("closed"));
        let mut front_a = accept(&listener);
        a.renew(&mut front_a, config.protocol).unwrap();
        a.attach(&mut front_a).unwrap();
        both_ways(&mut a, &mut b);

        // Down and up again: packets that the guest sends meanwhile wait.
        pa.set_admin(false).unwrap();
        assert!(send(&mut a, 0));
        std::thread::sleep(Duration::from_millis(5));
        assert!(received(&mut b).is_empty());
        pa.set_admin(true).unwrap();
        let mut got = Vec::new();
        wait_for("the frame that waited", || {
            got.extend(received(&mut b));
            got == [0]
        });
        assert_eq!(pa.status().link_resets, 23);
        let stats = pb.statistics();
        let stat = |name: &str| stats.iter().find(|(n, _)| n == name).unwrap().1;
        assert_eq!(stat("rings_broken"), 0);
        assert_eq!(stat("ovs_tx_failure_drops"), 0);
        assert_eq!(stat("tx_q0_good_packets"), 300 + 1 + 200 + 200 + 300 + 1);
        // The port goes while its guest is connected.
        drop(_worker);
        pa.forget();
        wait_for("the end of the session", || front_a.check().is_err());
        pb.forget();
        assert!(!lab.path("b").exists() && !lab.path(".vrings/b").exists());
    }
}

#[test]
fn ports_that_cannot_be_are_refused_with_a_reason() {
    let lab = Lab::new();
    let open = |kind, name: &str, path: Option<String>, context: &VhostContext| {
        let options = path
            .map(|p| ("vhost-server-path".to_owned(), p))
            .into_iter()
            .collect();
        open_vhost(kind, name, &options, context.clone())
            .err()
            .unwrap()
            .to_string()
    };
    let none = open("dpdkvhostuserclient", "a", None, &lab.context);
    assert!(none.contains("vhost-server-path"), "{none}");
    let long = open("dpdkvhostuserclient", "a", Some("x".repeat(108)), &lab.context);
    assert!(long.contains("108 bytes"), "{long}");
    let name = open("dpdkvhostuser", "a/b", None, &lab.context);
    assert!(name.contains("not a valid name"), "{name}");
    let nowhere = VhostContext {
        socket_dir: lab.path("missing"),
        ..lab.context.clone()
    };
    let nowhere = open("dpdkvhostuser", "a", None, &nowhere);
    assert!(nowhere.contains("No such file or directory"), "{nowhere}");
    // Another process listens there: the port waits, and reports it.
    let live = std::os::unix::net::UnixListener::bind(lab.path("b")).unwrap();
    let port = lab.server("b");
    wait_for("the trouble", || port.status().error.is_some());
    drop(live);
    wait_for("its end", || port.status().error.is_none());
    connect(&lab.path("b"));
    assert!(matches!(
        port.set_mtu(60),
        Err(heddle_port::PortError::Sys { .. })
    ));
    port.set_mtu(9000).unwrap();
    assert_eq!(port.status().mtu, 9000);
}

/// Ports may have any name: also one that looks like a file of another port's.
#[test]
fn names_of_ports_and_their_files_do_not_meet() {
    let lab = Lab::new();
    let ports: Vec<_> = ["a", "a.vrings", ".vrings"]
        .map(|name| (name, lab.server(name)))
        .into();
    for (name, _) in &ports {
        wait_for("the socket", || connect_now(&lab.path(name)));
    }
    ports[0].1.forget();
    assert!(!lab.path("a").exists());
    assert!(connect_now(&lab.path("a.vrings")));
}

fn connect_now(path: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(path).is_ok()
}
