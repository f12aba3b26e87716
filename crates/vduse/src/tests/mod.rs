//! Sessions and the control thread, with a kernel in the same process.

mod control;
mod kernel;
mod messages;
mod random;
mod restart;

use crate::session::{Rings, Session};
use heddle_packet::{Burst, Packet, Pool};
use heddle_sys::EventFd;
use heddle_virtio::device::{Call, Device, Link, Offer, Queue, RingSetup, StartError};
use heddle_virtio::journal::Journal;
use heddle_virtio::ring::{Features, Position};
use kernel::{FakeDevice, FakeEnd, Guest};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The calls that a device got.
#[derive(Default)]
pub(super) struct Seen {
    events: Vec<String>,
    rings: BTreeMap<u16, RingSetup>,
    link: Option<Arc<dyn Link>>,
    /// Refuses the start that comes next.
    refuse: bool,
}

/// A port without workers: tests move the queues.
#[derive(Clone, Default)]
pub(super) struct Dummy(Arc<Mutex<Seen>>);

/// The features that the port offers.
const OFFER: Features = Features::RING
    .union(Features::CSUM)
    .union(Features::GUEST_CSUM)
    .union(Features::MQ)
    .union(Features::CTRL_VQ);

impl Dummy {
    fn note_down(&self, event: impl Into<String>) {
        self.0.lock().events.push(event.into());
    }
    fn running(&self) -> Vec<u16> {
        self.0.lock().rings.keys().copied().collect()
    }
    fn events(&self) -> Vec<String> {
        core::mem::take(&mut self.0.lock().events)
    }
    fn has(&self, part: &str) -> bool {
        self.0.lock().events.iter().any(|e| e.contains(part))
    }
    /// Gives the driver `frame`; returns whether it took it.
    fn send(&self, frame: &[u8]) -> bool {
        let mut seen = self.0.lock();
        let link = seen.link.clone();
        let Some(ring) = seen.rings.get_mut(&0) else {
            return false;
        };
        let Queue::ToGuest(tx) = &mut ring.queue else {
            panic!("an even ring is to the guest")
        };
        tx.refresh();
        let out = tx.tx(&[&Packet::from_bytes(frame)]);
        if out.call
            && let Some(call) = &ring.call
        {
            call.raise();
        }
        if let (Some(miss), Some(link)) = (tx.take_miss(), link) {
            link.miss(miss);
        }
        out.sent == 1
    }
    /// The packets that the driver has sent.
    fn receive(&self) -> Vec<Vec<u8>> {
        let mut seen = self.0.lock();
        let link = seen.link.clone();
        let Some(ring) = seen.rings.get_mut(&1) else {
            return Vec::new();
        };
        let Queue::FromGuest(rx) = &mut ring.queue else {
            panic!("an odd ring is from the guest")
        };
        let (mut pool, mut burst) = (Pool::new(64), Burst::new());
        rx.refresh();
        rx.rx(&mut pool, &mut burst);
        let got = burst.iter().map(|p| p.to_vec()).collect();
        burst.drain(..).for_each(|p| pool.put(p));
        rx.complete();
        if rx.take_call()
            && let Some(call) = &ring.call
        {
            call.raise();
        }
        if let (Some(miss), Some(link)) = (rx.take_miss(), link) {
            link.miss(miss);
        }
        got
    }
}

impl Device for Dummy {
    fn offer(&mut self) -> Offer {
        Offer {
            features: OFFER,
            queue_pairs: 128,
            mem_slots: 8,
        }
    }
    fn connected(&mut self, link: Arc<dyn Link>) {
        self.0.lock().link = Some(link);
        self.note_down("connected");
    }
    fn disconnected(&mut self, reason: &str) {
        assert!(self.running().is_empty(), "rings are stopped before the end");
        self.note_down(format!("gone: {reason}"));
    }
    fn trouble(&mut self, text: &str) {
        self.note_down(format!("trouble: {text}"));
    }
    fn unavailable(&mut self, text: &str) {
        self.note_down(format!("unavailable: {text}"));
    }
    fn show(&mut self, key: &'static str, value: &str) {
        self.note_down(format!("{key}={value}"));
    }
    fn note(&mut self, text: &str) {
        self.note_down(format!("note: {text}"));
    }
    fn listening(&mut self) {
        self.note_down("listening");
    }
    fn negotiated(&mut self, _: Features) {}
    fn start(&mut self, ring: RingSetup) -> Result<(), StartError> {
        let mut seen = self.0.lock();
        if core::mem::take(&mut seen.refuse) {
            return Err(StartError::Refused("not now".into()));
        }
        assert!(ring.enabled && ring.call.is_some() && ring.kick.is_some());
        assert!(
            seen.rings.insert(ring.index, ring).is_none(),
            "stopped before it is started again"
        );
        Ok(())
    }
    fn stop(&mut self, index: u16) -> Position {
        let ring = self.0.lock().rings.remove(&index);
        match ring.expect("only started rings are stopped").queue {
            Queue::FromGuest(q) => q.stop(),
            Queue::ToGuest(q) => q.stop(),
        }
    }
    fn enable(&mut self, _: u16, _: bool) {
        panic!("rings of VDUSE are enabled when they start");
    }
    fn set_kick(&mut self, _: u16, _: Option<OwnedFd>) {}
    fn set_call(&mut self, _: u16, _: Option<Call>) {}
    fn set_err(&mut self, _: u16, _: Option<Call>) {}
    fn refresh_memory(&mut self) {
        for ring in self.0.lock().rings.values_mut() {
            match &mut ring.queue {
                Queue::FromGuest(q) => q.refresh(),
                Queue::ToGuest(q) => q.refresh(),
            }
        }
    }
    fn set_mtu(&mut self, _: u16) -> Result<(), String> {
        Ok(())
    }
    fn send_rarp(&mut self, _: [u8; 6]) {}
}

/// A session without a thread, and the driver behind the kernel.
struct Rig {
    device: Dummy,
    session: Option<Session>,
    kernel: Arc<FakeDevice>,
    guest: Guest,
    journal: Journal,
}

impl Rig {
    /// The session continues with the device's earlier state.
    fn resume(&mut self) {
        let session = self.session.as_mut().unwrap();
        session.resume(Rings::All, &mut self.device).unwrap();
    }
    /// A device whose driver will choose `features` beside the required ones.
    fn new(features: Features) -> Self {
        let kernel = FakeDevice::new(Features::VERSION_1 | Features::ACCESS_PLATFORM | features);
        let mut rig = Self {
            device: Dummy::default(),
            session: None,
            guest: Guest::new(&kernel),
            kernel,
            journal: Journal::new(None, crate::QUEUES),
        };
        rig.open();
        rig
    }
    fn open(&mut self) {
        let end = FakeEnd::open(&self.kernel).unwrap();
        let wake = Arc::new(EventFd::new().unwrap());
        let journal = self.journal.clone();
        self.session = Some(Session::new(end, journal, wake, &mut self.device));
    }
    fn serve(&mut self) {
        let session = self.session.as_mut().unwrap();
        session.serve(&mut self.device).unwrap();
    }
    /// Sends a message and returns the reply.
    fn request(&mut self, kind: u32, body: &[u8]) -> kernel::Reply {
        let id = self.kernel.post(kind, body);
        self.serve();
        self.kernel.reply(id).expect("each message is answered")
    }
    /// Sets the status as a driver does; returns whether that was accepted.
    fn status(&mut self, status: u8) -> bool {
        let done = self.request(1, &[status]).result == 0;
        if done {
            self.kernel.took(status);
        }
        done
    }
    /// The driver comes, with new rings.
    fn probe(&mut self) {
        for status in [0, 1, 3] {
            assert!(self.status(status));
        }
        self.kernel.negotiate();
        assert!(self.status(0xb));
        self.guest.set_up(&self.kernel);
        assert!(self.status(0xf), "{:?}", self.device.events());
    }
    /// One frame each way; the bounce region is there from then on.
    fn exchange(&mut self, mark: u8) {
        self.guest.post_buffer();
        self.guest.transmit(&[mark; 70]);
        self.kernel.show_bounce();
        self.until(|rig| rig.device.receive() == [vec![mark; 70]]);
        self.until(|rig| rig.device.send(&[mark + 1; 80]));
        assert_eq!(self.guest.received().unwrap(), vec![mark + 1; 80]);
        assert!(self.guest.transmitted());
    }
    fn until(&mut self, mut what: impl FnMut(&mut Self) -> bool) {
        for _ in 0..500 {
            if what(self) {
                return;
            }
            self.serve();
            std::thread::sleep(core::time::Duration::from_millis(1));
        }
        panic!("it does not happen: {:?}", self.device.events());
    }
}
