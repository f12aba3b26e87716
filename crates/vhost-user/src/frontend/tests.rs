//! The front end against this project's back end, with a device that sends each received packet back.

use super::*;
use crate::backend::{Control, Role, Socket};
use crate::message::ProtocolFeatures;
use heddle_packet::{Burst, Packet, Pool};
use heddle_virtio::device::{Call, Device, Link, Offer, Queue, RingSetup, StartError};
use heddle_virtio::ring::{Features, Position};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

const WAIT: Duration = Duration::from_secs(60);
type Rings = Arc<Mutex<BTreeMap<u16, RingSetup>>>;

/// Sends packets of queue pair `i` back on queue pair `i`.
struct Echo {
    rings: Rings,
    features: Features,
}

impl Device for Echo {
    fn offer(&mut self) -> Offer {
        Offer {
            features: self.features,
            queue_pairs: 4,
            mem_slots: 8,
        }
    }
    fn connected(&mut self, _: Arc<dyn Link>) {}
    fn disconnected(&mut self, _: &str) {}
    fn trouble(&mut self, _: &str) {}
    fn negotiated(&mut self, _: Features) {}
    fn start(&mut self, ring: RingSetup) -> core::result::Result<(), StartError> {
        self.rings.lock().insert(ring.index, ring);
        Ok(())
    }
    fn stop(&mut self, index: u16) -> Position {
        match self.rings.lock().remove(&index).expect("started").queue {
            Queue::FromGuest(q) => q.stop(),
            Queue::ToGuest(q) => q.stop(),
        }
    }
    fn enable(&mut self, index: u16, on: bool) {
        if let Some(r) = self.rings.lock().get_mut(&index) {
            r.enabled = on;
        }
    }
    fn set_kick(&mut self, _: u16, _: Option<OwnedFd>) {}
    fn set_call(&mut self, _: u16, _: Option<Call>) {}
    fn set_err(&mut self, _: u16, _: Option<Call>) {}
    fn refresh_memory(&mut self) {}
    fn set_mtu(&mut self, _: u16) -> core::result::Result<(), String> {
        Ok(())
    }
    fn send_rarp(&mut self, _: [u8; 6]) {}
}

/// Moves the waiting packets, once.
fn turn(rings: &Rings, pool: &mut Pool) {
    let mut rings = rings.lock();
    for pair in 0..4 {
        let Some(mut tx) = rings.remove(&(2 * pair + 1)) else {
            continue;
        };
        if let (Queue::FromGuest(from), Some(rx)) = (&mut tx.queue, rings.get_mut(&(2 * pair)))
            && let Queue::ToGuest(to) = &mut rx.queue
            && tx.enabled
            && rx.enabled
        {
            let mut burst = Burst::new();
            if from.rx(pool, &mut burst) > 0 {
                let packets: Vec<&Packet> = burst.iter().collect();
                let out = to.tx(&packets);
                assert_eq!((out.too_long, out.down), (0, 0));
                drop(packets);
                burst.drain(..).for_each(|p| pool.put(p));
                from.complete();
            }
            assert_eq!((from.error(), to.error()), (None, None));
        }
        rings.insert(tx.index, tx);
    }
}

/// A back end that can be made to die.
struct Rig {
    control: Option<Control>,
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

impl Rig {
    fn new(path: PathBuf, role: Role, features: Features) -> Self {
        let rings = Rings::default();
        let control = Control::start().unwrap();
        let socket = Socket {
            path,
            role,
            journal: None,
        };
        let echo = Echo {
            rings: Arc::clone(&rings),
            features,
        };
        control.add(socket, Box::new(echo)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let worker = std::thread::spawn(move || {
            let mut pool = Pool::new(64);
            while !theirs.load(Ordering::Relaxed) {
                turn(&rings, &mut pool);
                std::thread::yield_now();
            }
        });
        Self {
            control: Some(control),
            stop,
            worker: Some(worker),
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.worker.take().map(JoinHandle::join);
        drop(self.control.take());
    }
}

fn config(features: Features) -> NicConfig {
    NicConfig {
        features: features | Features::VERSION_1,
        protocol: NicConfig::PROTOCOL,
        pairs: 1,
        queue_size: 64,
        tx_len: 512,
        rx_len: 512,
        huge: HugePages::Never,
    }
}

/// Sends `count` numbered frames per queue pair and waits until each has come back, once and in order.
fn exchange(nic: &mut Nic, count: u64, first: u64) {
    let end = Instant::now() + WAIT;
    let pairs = nic.tx.len();
    let (mut sent, mut back) = (vec![first; pairs], vec![first; pairs]);
    while back.iter().any(|&n| n < first + count) {
        assert!(Instant::now() < end, "{sent:?} sent, {back:?} back");
        for pair in 0..pairs {
            let q = &mut nic.tx[pair];
            q.stream.take(usize::MAX, |_, _| ()).unwrap();
            // No more in flight than the receive ring holds.
            while sent[pair] < first + count && sent[pair] - back[pair] < 32 && q.stream.free() > 0 {
                let buffer = q.stream.upcoming(0);
                let mut frame = vec![0; 12 + 60];
                frame[12 + 14..12 + 22].copy_from_slice(&sent[pair].to_le_bytes());
                q.stream.write(buffer, 0, &frame);
                q.stream.set_len(buffer, 72);
                q.post(1);
                sent[pair] += 1;
            }
            let q = &mut nic.rx[pair];
            let view = q.stream.view().clone();
            q.stream
                .take(usize::MAX, |buffer, len| {
                    let mut number = [0; 8];
                    view.read(buffer, 12 + 14, &mut number);
                    assert_eq!((u64::from_le_bytes(number), len), (back[pair], 72));
                    back[pair] += 1;
                })
                .unwrap();
            let free = q.stream.free();
            q.post(free);
        }
        std::thread::yield_now();
    }
}

#[test]
fn frames_go_and_come_in_both_roles_and_layouts() {
    let dir = tempfile::tempdir().unwrap();
    for (i, features) in [
        Features::empty(),
        Features::RING_PACKED | Features::MRG_RXBUF,
        Features::EVENT_IDX | Features::IN_ORDER,
        Features::RING_PACKED | Features::EVENT_IDX | Features::IN_ORDER,
    ]
    .into_iter()
    .enumerate()
    {
        for role in [Role::Server, Role::Client] {
            let path = dir.path().join(format!("{i}{role:?}"));
            let listener = (role == Role::Client).then(|| Listener::bind(&path).unwrap());
            let _rig = Rig::new(path.clone(), role, Features::RING | Features::MQ);
            let mut front = match &listener {
                Some(l) => l.accept(WAIT, WAIT).unwrap().unwrap(),
                None => Frontend::connect(&path, WAIT, WAIT).unwrap(),
            };
            let mut nic = Nic::negotiate(&mut front, &config(features)).unwrap();
            assert!(nic.features().contains(features));
            nic.attach(&mut front).unwrap();
            exchange(&mut nic, 500, 0);
            front.check().unwrap();
            let at = nic.detach(&mut front).unwrap();
            let q = [&nic.rx[0], &nic.tx[0]];
            // The packets that were sent have been used, so both sides name the same position.
            assert_eq!(at, q.map(|q| q.stream.position()), "{features:?}");
        }
    }
}

#[test]
fn several_queue_pairs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mq");
    let _rig = Rig::new(path.clone(), Role::Server, Features::RING | Features::MQ);
    let mut front = Frontend::connect(&path, WAIT, WAIT).unwrap();
    let config = NicConfig {
        pairs: 3,
        ..config(Features::MQ)
    };
    let mut nic = Nic::negotiate(&mut front, &config).unwrap();
    nic.attach(&mut front).unwrap();
    exchange(&mut nic, 200, 0);
}

/// The rings outlive back ends: the next one continues at the old position.
#[test]
fn back_ends_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    for features in [Features::empty(), Features::RING_PACKED] {
        let path = dir.path().join(format!("{}", features.bits()));
        let listener = Listener::bind(&path).unwrap();
        let mut nic = None;
        for round in 0..4 {
            let rig = Rig::new(path.clone(), Role::Client, Features::RING);
            let mut front = listener.accept(WAIT, WAIT).unwrap().unwrap();
            let nic = match &mut nic {
                None => nic.insert(Nic::negotiate(&mut front, &config(features)).unwrap()),
                Some(nic) => {
                    nic.renew(&mut front, NicConfig::PROTOCOL).unwrap();
                    nic
                }
            };
            nic.attach(&mut front).unwrap();
            exchange(nic, 150, round * 150);
            drop(rig);
            let end = Instant::now() + WAIT;
            while front.check().is_ok() {
                assert!(Instant::now() < end, "the end of the back end is seen");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

#[test]
fn what_is_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("poor");
    let nobody = Frontend::connect(&path, Duration::ZERO, WAIT);
    assert!(matches!(nobody, Err(FrontendError::Path { .. })));

    let _rig = Rig::new(path.clone(), Role::Server, Features::VERSION_1 | Features::MQ);
    let mut front = Frontend::connect(&path, WAIT, WAIT).unwrap();
    let packed = Nic::negotiate(&mut front, &config(Features::RING_PACKED));
    assert!(matches!(packed, Err(FrontendError::Lacks(f)) if f == Features::RING_PACKED));
    drop(front);

    let mut front = Frontend::connect(&path, WAIT, WAIT).unwrap();
    let many = NicConfig {
        pairs: 5,
        ..config(Features::MQ)
    };
    assert!(matches!(
        Nic::negotiate(&mut front, &many),
        Err(FrontendError::Queues(4))
    ));
}

/// A back end that never replies costs its timeout, no more.
#[test]
fn silence_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("silent");
    let silent = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let mut front = Frontend::connect(&path, WAIT, Duration::from_millis(30)).unwrap();
    let (stream, _) = silent.accept().unwrap();
    let answer = front.open(ProtocolFeatures::all());
    assert!(matches!(
        answer,
        Err(FrontendError::Timeout {
            what: "GET_FEATURES",
            ..
        })
    ));
    drop(stream);
    assert!(matches!(front.check(), Err(FrontendError::Closed)));
}

#[test]
fn sockets_without_a_listener_are_replaced_and_live_ones_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let first = Listener::bind(&path).unwrap();
    assert!(matches!(
        Listener::bind(&path),
        Err(FrontendError::Path { error, .. }) if error.kind() == std::io::ErrorKind::AddrInUse
    ));
    drop(first);
    assert!(!path.exists());
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap()); // leaves its file behind
    assert!(path.exists());
    Listener::bind(&path).unwrap();
}

/// A file of another kind at the path belongs to another program. It is neither replaced nor removed, also
/// not at the end.
#[test]
fn only_sockets_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("passwd");
    std::fs::write(&plain, b"precious").unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&plain, &link).unwrap();
    for path in [&plain, &link] {
        let e = Listener::bind(path).unwrap_err().to_string();
        assert!(e.contains("no socket"), "{e}");
        assert_eq!(std::fs::read(&plain).unwrap(), b"precious");
    }
    // A stale one is replaced; a file that was put in our socket's place stays.
    let path = dir.path().join("vm0");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let ours = Listener::bind(&path).unwrap();
    assert!(Listener::bind(&path).is_err(), "somebody listens");
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, b"theirs").unwrap();
    drop(ours);
    assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
}
