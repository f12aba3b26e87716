//! Behind an IOMMU: misses go out, entries come in and go away, rings are behind it too.

use super::*;
use heddle_virtio::ring::RingError;

const IOMMU: Features = Features::VERSION_1.union(Features::ACCESS_PLATFORM);
/// The guest's IOMMU maps its memory with this offset: I/O virtual address minus physical address.
const SHIFT: u64 = 0x40_0000_0000;

/// A front end with the back end's channel.
struct Iommu {
    rig: Rig,
    channel: Connection,
}

impl Iommu {
    fn new() -> Self {
        let mut rig = Rig::new();
        rig.negotiate(IOMMU);
        let (a, b) = UnixStream::pair().unwrap();
        assert_eq!(rig.ack(&Request::SetBackendReqFd, &[a.as_fd()]), 0);
        Self {
            rig,
            channel: Connection::new(b),
        }
    }
    /// The addresses that the session requests now.
    fn misses(&mut self) -> Vec<(u64, Access)> {
        self.rig.run();
        let mut all = Vec::new();
        while let Received::Frame(f) = self.channel.recv().unwrap() {
            match BackendRequest::decode(f.header.request, &f.payload).unwrap() {
                BackendRequest::Iotlb(m) if m.kind == IotlbKind::Miss => all.push((m.iova, m.access)),
                other => panic!("{other:?}"),
            }
        }
        all
    }
    fn update(&mut self, iova: u64, size: u64, access: Access) -> u64 {
        self.message(IotlbMsg {
            iova,
            size,
            user: iova.wrapping_sub(SHIFT).wrapping_sub(BASE).wrapping_add(USER),
            access,
            kind: IotlbKind::Update,
        })
    }
    fn invalidate(&mut self, iova: u64, size: u64) -> u64 {
        self.message(IotlbMsg {
            iova,
            size,
            user: 0,
            access: Access::empty(),
            kind: IotlbKind::Invalidate,
        })
    }
    /// The reply comes with or without NEED_REPLY.
    fn message(&mut self, msg: IotlbMsg) -> u64 {
        match self.rig.request_reply(&Request::Iotlb(msg), &[]) {
            Reply::U64(n) => n,
            other => panic!("{other:?}"),
        }
    }
    /// A ring whose areas are named behind the IOMMU.
    fn start(&mut self, index: u32) -> (QueueConfig, Driver) {
        let cfg = self.rig.ring(IOMMU, 256);
        let driver = Driver::new(&cfg, &self.rig.mem).unwrap();
        let addr = VringAddr {
            index,
            log_used: false,
            desc: cfg.desc + SHIFT,
            used: cfg.device + SHIFT,
            avail: cfg.driver + SHIFT,
            log: 0,
        };
        self.rig.send(&Request::SetVringNum(state(index, 256)), &[]);
        self.rig.send(&Request::SetVringAddr(addr), &[]);
        let kick = VringFd {
            index: u8::try_from(index).unwrap(),
            has_fd: false,
        };
        self.rig.send(&Request::SetVringKick(kick), &[]);
        self.rig.send(&Request::SetVringEnable(state(index, 1)), &[]);
        assert_eq!(self.rig.ended, None);
        (cfg, driver)
    }
    /// Resolves misses page by page, as QEMU does, until none is left; returns their number.
    fn resolve(&mut self) -> usize {
        let mut n = 0;
        loop {
            let misses = self.misses();
            if misses.is_empty() {
                return n;
            }
            for (iova, access) in misses {
                n += 1;
                assert!(n < 2000, "misses do not end");
                assert_eq!(self.update(iova & !4095, 4096, access), 0);
            }
        }
    }
    /// Lets ring 1's worker run and report its misses.
    fn work(&mut self) -> usize {
        let mut got = 0;
        for _ in 0..40 {
            got += receive(&self.rig);
            let mut seen = self.rig.device.seen.lock();
            let Some(Queue::FromGuest(q)) = seen.rings.get_mut(&1).map(|r| &mut r.queue) else {
                panic!()
            };
            assert_eq!(q.error().filter(|e| !matches!(e, RingError::Area(_))), None);
            let Some(miss) = q.take_miss() else { break };
            let link = seen.link.clone().unwrap();
            drop(seen);
            link.miss(miss);
            self.resolve();
        }
        got
    }
}

#[test]
fn rings_and_buffers_are_requested() {
    let mut it = Iommu::new();
    let (cfg, mut driver) = it.start(1);
    assert!(!it.rig.is_running(1));
    let areas = [cfg.desc, cfg.driver, cfg.device].map(|a| (a + SHIFT, Access::all()));
    assert_eq!(it.misses(), areas);
    // The session does not repeat the request at once.
    it.rig.send(
        &Request::SetVringKick(VringFd {
            index: 1,
            has_fd: false,
        }),
        &[],
    );
    assert_eq!(it.misses(), []);
    for (iova, access) in areas {
        assert_eq!(it.update(iova & !4095, 4096, access), 0);
    }
    it.resolve();
    assert!(it.rig.is_running(1));
    guest_sends_at(&mut it.rig, &mut driver, 20, SHIFT);
    assert_eq!(it.work(), 20);
    assert_eq!(done(&mut driver).len(), 20);
    // Everything is gone; the session requests the needed entries again.
    assert_eq!(it.invalidate(0, u64::MAX), 0);
    guest_sends_at(&mut it.rig, &mut driver, 5, SHIFT);
    assert_eq!(receive(&it.rig), 0);
    assert!(it.resolve() >= 2);
    assert_eq!(it.work(), 5);
    assert_eq!(done(&mut driver).len(), 5);
}

/// A buffer that the device may only read is not written to.
#[test]
fn permissions_hold() {
    let mut it = Iommu::new();
    let (_, mut driver) = it.start(0);
    it.resolve();
    assert!(it.rig.is_running(0));
    let at = it.rig.arena.take(8192, 4096).unwrap();
    assert_eq!(it.update(at + SHIFT, 4096, Access::READ), 0);
    let buf = Buf {
        addr: at + SHIFT,
        len: 2048,
    };
    driver
        .add(&it.rig.mem, &[], &[buf], ChainLocation::Direct, 0)
        .unwrap();
    driver.publish();
    let packet = Packet::from_bytes(&[7; 60]);
    let send = |it: &mut Iommu| {
        let mut seen = it.rig.device.seen.lock();
        let Some(Queue::ToGuest(q)) = seen.rings.get_mut(&0).map(|r| &mut r.queue) else {
            panic!()
        };
        (q.tx(&[&packet]).sent, q.take_miss())
    };
    let (sent, miss) = send(&mut it);
    let miss = miss.expect("writing is not allowed there");
    assert_eq!((sent, miss.addr, miss.write), (0, at + SHIFT, true));
    let link = it.rig.device.seen.lock().link.clone().unwrap();
    link.miss(miss);
    assert_eq!(it.misses(), [(at + SHIFT, Access::WRITE)]);
    assert_eq!(it.update(at + SHIFT, 4096, Access::all()), 0);
    assert_eq!(send(&mut it).0, 1);
    let mut bytes = [0; 72];
    it.rig.mem.read(at, &mut bytes).unwrap();
    assert_eq!(bytes[12..], [7; 60]);
}

#[test]
fn entries_that_make_no_sense_are_refused() {
    let mut it = Iommu::new();
    let good = BASE + SHIFT;
    for (iova, size) in [
        (good, 0),
        (good, LEN + 1),
        (good - 1, 4096),
        (u64::MAX - 4095, 4096),
        (0, u64::MAX),
    ] {
        assert_eq!(it.update(iova, size, Access::all()), 1, "{iova:#x}+{size:#x}");
    }
    for kind in [IotlbKind::Miss, IotlbKind::AccessFail] {
        let msg = IotlbMsg {
            iova: good,
            size: 4096,
            user: USER,
            access: Access::all(),
            kind,
        };
        assert_eq!(it.message(msg), 1);
    }
    assert_eq!(it.update(good, LEN, Access::all()), 0);
    assert_eq!(it.rig.ended, None);
    // Without the feature there is no IOTLB.
    let mut rig = Rig::new();
    rig.negotiate(Features::VERSION_1);
    let msg = IotlbMsg {
        iova: good,
        size: 4096,
        user: USER,
        access: Access::all(),
        kind: IotlbKind::Update,
    };
    assert_eq!(rig.request_reply(&Request::Iotlb(msg), &[]), Reply::U64(1));
}

/// A guest that maps page by page for ever: the oldest entries go, and the table stays bounded.
#[test]
fn entries_are_bounded() {
    let mut it = Iommu::new();
    let pages = LEN / 4096;
    for n in 0..3000_u64 {
        // Neighbours must not merge: every other page, over and over at other addresses.
        let user = USER + n * 2 % pages * 4096;
        let msg = IotlbMsg {
            iova: SHIFT + n * 8192,
            size: 4096,
            user,
            access: Access::all(),
            kind: IotlbKind::Update,
        };
        assert_eq!(it.message(msg), 0);
    }
    let table = it
        .rig
        .session
        .as_ref()
        .map(|s| s.table().regions().len())
        .unwrap();
    assert_eq!(table, heddle_virtio::mem::MAX_ENTRIES / 2);
}

/// The channel is the front end's: it may close it or send anything.
#[test]
fn a_broken_channel_harms_no_session() {
    let mut it = Iommu::new();
    it.channel = Connection::new(UnixStream::pair().unwrap().0);
    it.start(1);
    it.rig.run();
    let refused = |e: &Event| matches!(e, Event::Trouble(t) if t.contains("request"));
    assert!(it.rig.ended.is_some() || it.rig.events().iter().any(refused));
    let mut it = Iommu::new();
    it.start(1);
    it.channel.send(77, HeaderFlags::empty(), &[1; 100], &[]).unwrap();
    it.resolve();
    assert!(it.rig.is_running(1));
}
