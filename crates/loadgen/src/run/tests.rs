//! The engine over sockets, against this project's back end with a device that carries packets from port to
//! port.

use super::*;
use crate::frame::Shape;
use crate::load::{Aim, Checks, Load, Setup, Timing};
use core::time::Duration;
use heddle_packet::{Burst, Packet, Pool};
use heddle_vhost_user::backend::{Control, Role, Socket};
use heddle_vhost_user::frontend::HugePages;
use heddle_virtio::Features;
use heddle_virtio::device::{Call, Device, Link as DeviceLink, Offer, Queue, RingSetup, StartError};
use heddle_virtio::ring::Position;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Rings by port and index.
type Rings = Arc<Mutex<BTreeMap<(usize, u16), RingSetup>>>;

struct PortDevice {
    port: usize,
    rings: Rings,
}

impl Device for PortDevice {
    fn offer(&mut self) -> Offer {
        Offer {
            features: Features::RING | Features::STATUS,
            queue_pairs: 1,
            mem_slots: 8,
        }
    }
    fn connected(&mut self, _: Arc<dyn DeviceLink>) {}
    fn disconnected(&mut self, _: &str) {}
    fn trouble(&mut self, _: &str) {}
    fn negotiated(&mut self, _: Features) {}
    fn start(&mut self, ring: RingSetup) -> Result<(), StartError> {
        self.rings.lock().unwrap().insert((self.port, ring.index), ring);
        Ok(())
    }
    fn stop(&mut self, index: u16) -> Position {
        let ring = self.rings.lock().unwrap().remove(&(self.port, index));
        match ring.expect("started").queue {
            Queue::FromGuest(q) => q.stop(),
            Queue::ToGuest(q) => q.stop(),
        }
    }
    fn enable(&mut self, index: u16, on: bool) {
        if let Some(r) = self.rings.lock().unwrap().get_mut(&(self.port, index)) {
            r.enabled = on;
        }
    }
    fn set_kick(&mut self, _: u16, _: Option<OwnedFd>) {}
    fn set_call(&mut self, _: u16, _: Option<Call>) {}
    fn set_err(&mut self, _: u16, _: Option<Call>) {}
    fn refresh_memory(&mut self) {}
    fn set_mtu(&mut self, _: u16) -> Result<(), String> {
        Ok(())
    }
    fn send_rarp(&mut self, _: [u8; 6]) {}
}

/// A switch of two ports that can be made to die.
struct Switch {
    control: Option<Control>,
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

impl Switch {
    fn new(paths: &[PathBuf], role: Role) -> Self {
        let rings = Rings::default();
        let control = Control::start().unwrap();
        for (port, path) in paths.iter().enumerate() {
            let socket = Socket {
                path: path.clone(),
                role,
                journal: None,
            };
            let rings = Arc::clone(&rings);
            control.add(socket, Box::new(PortDevice { port, rings })).unwrap();
        }
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let worker = std::thread::spawn(move || {
            let mut pool = Pool::new(64);
            while !theirs.load(Ordering::Relaxed) {
                carry(&rings, &mut pool);
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

fn carry(rings: &Rings, pool: &mut Pool) {
    let mut rings = rings.lock().unwrap();
    for port in 0..2 {
        let Some(mut tx) = rings.remove(&(port, 1)) else {
            continue;
        };
        if let Queue::FromGuest(from) = &mut tx.queue {
            let mut burst = Burst::new();
            if from.rx(pool, &mut burst) > 0 {
                if let Some(rx) = rings.get_mut(&(1 - port, 0))
                    && let Queue::ToGuest(to) = &mut rx.queue
                {
                    let packets: Vec<&Packet> = burst.iter().collect();
                    to.tx(&packets);
                }
                burst.drain(..).for_each(|p| pool.put(p));
                from.complete();
            }
        }
        rings.insert((port, 1), tx);
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.worker.take().map(JoinHandle::join);
        drop(self.control.take());
    }
}

fn timing(ms: u64) -> Timing {
    Timing {
        warm_up: Duration::from_millis(5),
        measure: Duration::from_millis(ms),
        drain: Duration::from_secs(10),
        ..Timing::default()
    }
}

#[test]
fn both_roles_carry_content() {
    let dir = tempfile::tempdir().unwrap();
    for (role, packed) in [(Role::Client, false), (Role::Server, false), (Role::Client, true)] {
        let paths: Vec<PathBuf> = (0..2)
            .map(|i| dir.path().join(format!("{role:?}{packed}{i}")))
            .collect();
        let _switch = Switch::new(&paths, role);
        let endpoints: Vec<Endpoint> = paths
            .iter()
            .map(|p| match role {
                Role::Client => Endpoint::Listen(p.clone()),
                Role::Server => Endpoint::Connect(p.clone()),
            })
            .collect();
        let setup = Setup {
            packed,
            huge: HugePages::Never,
            ..Setup::default()
        };
        let load = Load {
            checks: Checks::Content,
            both_ways: true,
            shape: Shape::Udp(200),
            ..Load::default()
        };
        let mut engine = Engine::connect(&endpoints, &setup, &[load]).unwrap();
        let out = engine.measure(&timing(20)).unwrap();
        assert_eq!((out.corrupt, out.reordered), (0, 0));
        assert!(
            out.received_total > 0 && out.read == out.received_total,
            "{out:?}"
        );
        engine.close().unwrap();
    }
}

/// A packet to a router that arrives unchanged is corrupt for the receiver.
#[test]
fn packets_for_a_gateway_have_its_address() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = (0..2).map(|i| dir.path().join(format!("{i}"))).collect();
    let endpoints: Vec<Endpoint> = paths.iter().map(|p| Endpoint::Listen(p.clone())).collect();
    let _switch = Switch::new(&paths, Role::Client);
    let setup = Setup {
        huge: HugePages::Never,
        ..Setup::default()
    };
    for (gateway, good) in [([2, 0, 0, 0, 0, 1], false), (crate::frame::mac(1), true)] {
        let aim = Aim {
            gateway: Some(gateway),
            address: [Some(0x1e00_0001), None],
        };
        let load = Load {
            aim,
            ..Load::default()
        };
        let mut engine = Engine::connect(&endpoints, &setup, &[load]).unwrap();
        let out = engine.measure(&timing(20)).unwrap();
        assert!(out.read > 0, "{out:?}");
        assert_eq!(out.corrupt, if good { 0 } else { out.read });
        engine.close().unwrap();
    }
}

/// The switch dies and comes again while packets flow: reception pauses and continues, and no packet is
/// corrupt.
#[test]
fn switches_come_and_go_under_traffic() {
    let dir = tempfile::tempdir().unwrap();
    for packed in [false, true] {
        let paths: Vec<PathBuf> = (0..2).map(|i| dir.path().join(format!("{packed}{i}"))).collect();
        let endpoints: Vec<Endpoint> = paths.iter().map(|p| Endpoint::Listen(p.clone())).collect();
        let setup = Setup {
            packed,
            huge: HugePages::Never,
            ..Setup::default()
        };
        let load = Load {
            checks: Checks::Content,
            ..Load::default()
        };
        let switch = Switch::new(&paths, Role::Client);
        let mut engine = Engine::connect(&endpoints, &setup, &[load]).unwrap();
        engine.reconnecting();
        let theirs = paths.clone();
        let killer = std::thread::spawn(move || {
            let mut switch = Some(switch);
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(100));
                drop(switch.take());
                std::thread::sleep(Duration::from_millis(20));
                switch = Some(Switch::new(&theirs, Role::Client));
            }
            switch
        });
        let mut received = 0;
        let mut outages = 0;
        let mut last = 0;
        for _ in 0..400 {
            let done = killer.is_finished();
            let out = engine.measure(&timing(30)).unwrap();
            assert_eq!((out.corrupt, out.reordered), (0, 0), "{out:?}");
            received += out.received_total;
            outages += out.outages.len();
            last = out.received_total;
            if done && last > 0 {
                break;
            }
        }
        let switch = killer.join().unwrap();
        assert!(
            received > 0 && last > 0 && outages > 0,
            "{received} {last} {outages}"
        );
        drop(switch);
    }
}

#[test]
fn endpoints_are_read() {
    let path = PathBuf::from("/a:b");
    assert_eq!("/a:b".parse(), Ok(Endpoint::Listen(path.clone())));
    assert_eq!("listen:/a:b".parse(), Ok(Endpoint::Listen(path.clone())));
    assert_eq!("connect:/a:b".parse(), Ok(Endpoint::Connect(path)));
    assert!("".parse::<Endpoint>().is_err());
    // The name of a port, for example, as a path on which the program would wait for ever.
    assert!("foo".parse::<Endpoint>().is_err());
    assert_eq!("./foo".parse(), Ok(Endpoint::Listen("./foo".into())));
}

#[test]
fn partners() {
    let one = Load::default();
    let both = Load {
        both_ways: true,
        ..one
    };
    assert_eq!(
        [0, 1, 2, 3].map(|p| one.target(p, 4)),
        [Some(1), None, Some(3), None]
    );
    assert_eq!([0, 1, 2].map(|p| both.target(p, 3)), [Some(1), Some(0), Some(2)]);
    assert_eq!(one.target(0, 1), Some(0));
}

/// Without a peer, the link reports once what it waits for, and then fails.
#[test]
fn steps_of_a_wait_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vm0");
    let config = Setup::default().nic(Shape::Udp(64));
    for (endpoint, says) in [
        (Endpoint::Connect(path.clone()), "listens at"),
        (Endpoint::Listen(path.clone()), "connect to"),
    ] {
        let mut told = Vec::new();
        let mut link = Link::new(endpoint).unwrap();
        let wait = Duration::from_millis(1200);
        link.open(&config, wait, &mut |text| told.push(text.to_owned()))
            .unwrap_err();
        let [text] = &told[..] else { panic!("{told:?}") };
        assert!(text.contains(says) && text.contains("vm0"), "{text}");
    }
}
