//! The kernel's end: devices with messages, regions and a driver, as linux's drivers/vdpa/vdpa_user has them.

use crate::host::{DeviceEnd, Host};
use heddle_sys::EventFd;
use heddle_sys::mmap::{Mapping, Pages, memfd};
use heddle_sys::vduse::{Entry, MESSAGE_LEN, NewDevice, QueueInfo};
use heddle_virtio::driver::{Arena, Buf, ChainLocation, Driver};
use heddle_virtio::mem::{GuestMemory, Region};
use heddle_virtio::ring::{Features, QueueConfig};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Address of the rings, and their length in bytes; packets are in the bounce region at zero.
pub(super) const RINGS_AT: u64 = 0x4000_0000;
pub(super) const RINGS: u64 = 128 << 10;
pub(super) const PACKETS: u64 = 256 << 10;

#[derive(Clone, Copy, Debug)]
pub(super) struct Reply {
    pub(super) result: u32,
    pub(super) body: [u8; 16],
}

#[derive(Default)]
pub(super) struct KernelState {
    pub(super) offered: u64,
    pub(super) config: Vec<u8>,
    pub(super) chosen: u64,
    pub(super) queues: [QueueInfo; 2],
    kicks: [Option<EventFd>; 2],
    pub(super) interrupts: [u32; 2],
    pub(super) config_interrupts: u32,
    status: u8,
    waiting: VecDeque<(u32, [u8; MESSAGE_LEN])>,
    read: VecDeque<(u32, [u8; MESSAGE_LEN])>,
    replies: BTreeMap<u32, Reply>,
    last_id: u32,
    pub(super) regions: Vec<Entry>,
    /// Offsets of regions count from here: for a session, this is another file's content.
    pub(super) moved_by: u64,
    pub(super) broken: bool,
    is_open: bool,
    pub(super) on_bus: bool,
}

/// A device as the kernel keeps it.
pub(super) struct FakeDevice {
    pub(super) state: Mutex<KernelState>,
    replied: Condvar,
    /// Readable while there are messages.
    ready: EventFd,
    pub(super) file: OwnedFd,
    /// The features that the driver will choose.
    wish: u64,
}

fn errno(n: i32) -> io::Error {
    io::Error::from_raw_os_error(n)
}
const EPERM: i32 = 1;
const EINVAL: i32 = 22;

impl FakeDevice {
    pub(super) fn new(wish: Features) -> Arc<Self> {
        let state = KernelState {
            offered: u64::MAX,
            regions: vec![Entry {
                offset: 0,
                start: RINGS_AT,
                last: RINGS_AT + RINGS - 1,
                readable: true,
                writable: true,
            }],
            ..KernelState::default()
        };
        Arc::new(Self {
            state: Mutex::new(state),
            replied: Condvar::new(),
            ready: EventFd::new().unwrap(),
            file: memfd("kernel", 2 * (RINGS + PACKETS), Pages::Normal).unwrap(),
            wish: wish.bits(),
        })
    }
    /// Puts a message where it is read, and returns its number.
    pub(super) fn post(&self, kind: u32, body: &[u8]) -> u32 {
        let mut s = self.state.lock();
        s.last_id += 1;
        let id = s.last_id;
        let mut m = [0; MESSAGE_LEN];
        m[..4].copy_from_slice(&kind.to_ne_bytes());
        m[4..8].copy_from_slice(&id.to_ne_bytes());
        m[24..24 + body.len()].copy_from_slice(body);
        s.waiting.push_back((id, m));
        self.ready.notify();
        id
    }
    pub(super) fn reply(&self, id: u32) -> Option<Reply> {
        self.state.lock().replies.remove(&id)
    }
    pub(super) fn n_waiting(&self) -> usize {
        let s = self.state.lock();
        s.waiting.len() + s.read.len()
    }
    /// Sends a message and waits for its reply; gives the device up when none comes.
    fn call(&self, kind: u32, body: &[u8], timeout: Duration) -> io::Result<Reply> {
        if self.state.lock().broken {
            return Err(errno(5));
        }
        let id = self.post(kind, body);
        let mut s = self.state.lock();
        loop {
            if let Some(reply) = s.replies.remove(&id) {
                return Ok(reply);
            }
            if self.replied.wait_for(&mut s, timeout).timed_out() {
                s.broken = true;
                s.waiting.clear();
                self.ready.notify();
                return Err(errno(5));
            }
        }
    }
    pub(super) fn set_status(&self, status: u8, timeout: Duration) -> io::Result<()> {
        let reply = self.call(1, &[status], timeout)?;
        if reply.result != 0 {
            return Err(errno(5));
        }
        self.took(status);
        Ok(())
    }
    /// The device replied to the status.
    pub(super) fn took(&self, status: u8) {
        let mut s = self.state.lock();
        s.status = status;
        if status == 0 {
            s.chosen = 0;
            s.queues = Default::default();
            s.kicks = Default::default();
            s.regions.retain(|r| r.start != 0);
        }
    }
    pub(super) fn negotiate(&self) {
        let mut s = self.state.lock();
        s.chosen = self.wish & s.offered;
    }
    /// The region of packets appears, as it does when the driver maps the first.
    pub(super) fn show_bounce(&self) {
        let mut s = self.state.lock();
        if s.regions.iter().all(|r| r.start != 0) {
            s.regions.push(Entry {
                offset: RINGS,
                start: 0,
                last: PACKETS - 1,
                readable: true,
                writable: true,
            });
        }
    }
    pub(super) fn interrupts(&self) -> [u32; 2] {
        self.state.lock().interrupts
    }
    pub(super) fn give_up(&self) {
        self.state.lock().broken = true;
        self.ready.notify();
    }
}

/// The device, opened.
#[derive(Clone)]
pub(super) struct FakeEnd(Arc<Opened>);
struct Opened(Arc<FakeDevice>);

impl FakeEnd {
    pub(super) fn open(device: &Arc<FakeDevice>) -> io::Result<Arc<dyn DeviceEnd>> {
        let mut s = device.state.lock();
        if core::mem::replace(&mut s.is_open, true) {
            return Err(errno(16));
        }
        if !s.waiting.is_empty() {
            device.ready.notify();
        }
        Ok(Arc::new(Self(Arc::new(Opened(Arc::clone(device))))))
    }
    fn state(&self) -> io::Result<parking_lot::MutexGuard<'_, KernelState>> {
        let s = self.0.0.state.lock();
        if s.broken { Err(errno(EPERM)) } else { Ok(s) }
    }
}
impl core::fmt::Debug for FakeEnd {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("FakeEnd")
    }
}
impl Drop for Opened {
    /// Messages that were read without a reply go to the next reader.
    fn drop(&mut self) {
        let mut s = self.0.state.lock();
        s.is_open = false;
        while let Some(m) = s.read.pop_back() {
            s.waiting.push_front(m);
        }
    }
}

impl DeviceEnd for FakeEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.ready.as_fd()
    }
    fn features(&self) -> io::Result<u64> {
        Ok(self.state()?.chosen)
    }
    fn set_up_queue(&self, index: u16, _: u16) -> io::Result<()> {
        self.queue(index).map(drop)
    }
    fn queue(&self, index: u16) -> io::Result<QueueInfo> {
        let s = self.state()?;
        s.queues
            .get(usize::from(index))
            .copied()
            .ok_or_else(|| errno(EINVAL))
    }
    fn set_kick(&self, index: u16, kick: BorrowedFd<'_>) -> io::Result<()> {
        let mut s = self.state()?;
        let place = s.kicks.get_mut(usize::from(index)).ok_or_else(|| errno(EINVAL))?;
        *place = Some(EventFd::from(kick.try_clone_to_owned()?));
        Ok(())
    }
    fn interrupt(&self, index: u16) -> io::Result<()> {
        let mut s = self.state()?;
        if s.status & 4 == 0 {
            return Err(errno(EINVAL));
        }
        s.interrupts[usize::from(index)] += 1;
        Ok(())
    }
    fn region(&self, first: u64, last: u64) -> io::Result<Option<(Entry, OwnedFd)>> {
        let s = self.state()?;
        let mut found = s.regions.iter().filter(|r| r.start <= last && r.last >= first);
        let first = found.next().map(|r| Entry {
            offset: r.offset + s.moved_by,
            ..*r
        });
        first.map(|r| Ok((r, self.0.0.file.try_clone()?))).transpose()
    }
    fn set_config(&self, offset: u32, bytes: &[u8]) -> io::Result<()> {
        let mut s = self.state()?;
        let place = s
            .config
            .get_mut(offset as usize..)
            .and_then(|c| c.get_mut(..bytes.len()));
        place.ok_or_else(|| errno(EINVAL))?.copy_from_slice(bytes);
        Ok(())
    }
    fn config_interrupt(&self) -> io::Result<()> {
        self.state()?.config_interrupts += 1;
        Ok(())
    }
    fn receive(&self) -> io::Result<Option<[u8; MESSAGE_LEN]>> {
        let mut s = self.state()?;
        let Some(next) = s.waiting.pop_front() else {
            self.0.0.ready.drain();
            return Ok(None);
        };
        s.read.push_back(next);
        Ok(Some(next.1))
    }
    fn reply(&self, m: &[u8; MESSAGE_LEN]) -> io::Result<()> {
        let mut s = self.0.0.state.lock();
        assert_eq!(
            m[8..24],
            [0; 16],
            "the kernel refuses answers whose reserved bytes are not zero"
        );
        let id = u32::from_ne_bytes(m[..4].try_into().unwrap());
        let at = s
            .read
            .iter()
            .position(|(i, _)| *i == id)
            .ok_or_else(|| errno(2))?;
        s.read.remove(at);
        let reply = Reply {
            result: u32::from_ne_bytes(m[4..8].try_into().unwrap()),
            body: m[24..40].try_into().unwrap(),
        };
        s.replies.insert(id, reply);
        self.0.0.replied.notify_all();
        Ok(())
    }
}

/// The driver: two rings of 64 entries, with packets in the bounce region.
pub(super) struct Guest {
    mem: GuestMemory,
    pub(super) drivers: Option<[Driver; 2]>,
    packets: Arena,
    features: Features,
    buffers: VecDeque<u64>,
}

const SIZE: u16 = 64;
const BUFFER: u32 = 256;
const HEADER: usize = 12;

impl Guest {
    pub(super) fn new(device: &FakeDevice) -> Self {
        let map = Arc::new(Mapping::of_fd(device.file.as_fd(), 0, RINGS + PACKETS).unwrap());
        let part = |at, len, offset: u64| {
            Region::part(at, len, 0, Arc::clone(&map), usize::try_from(offset).unwrap()).unwrap()
        };
        let regions = vec![part(RINGS_AT, RINGS, 0), part(0, PACKETS, RINGS)];
        Self {
            mem: GuestMemory::new(regions).unwrap(),
            drivers: None,
            packets: Arena::new(0, PACKETS),
            features: Features::from_bits_truncate(device.wish),
            buffers: VecDeque::new(),
        }
    }
    /// New rings, whose addresses the device gets.
    pub(super) fn set_up(&mut self, device: &FakeDevice) {
        let zeros = vec![0; 4096];
        for at in (0..RINGS).step_by(4096) {
            self.mem.write(RINGS_AT + at, &zeros).unwrap();
        }
        let mut arena = Arena::new(RINGS_AT, RINGS);
        let cfg: [QueueConfig; 2] = [0, 1].map(|_| arena.queue(self.features, SIZE).unwrap());
        self.drivers = Some([0, 1].map(|i: usize| Driver::new(&cfg[i], &self.mem).unwrap()));
        self.packets = Arena::new(0, PACKETS);
        self.buffers.clear();
        let mut s = device.state.lock();
        for (info, cfg) in s.queues.iter_mut().zip(cfg) {
            *info = QueueInfo {
                size: cfg.size.into(),
                desc: cfg.desc,
                driver: cfg.driver,
                device: cfg.device,
                // Wrap counters of a packed ring at its beginning; index 0 of a split one.
                state: if cfg.packed() { [1, 0, 1, 0] } else { [0; 4] },
                ready: true,
            };
        }
    }
    fn drivers(&mut self) -> &mut [Driver; 2] {
        self.drivers.as_mut().expect("rings are set up")
    }
    /// One more buffer for received packets.
    pub(super) fn post_buffer(&mut self) {
        let addr = self.packets.take(BUFFER.into(), 8).unwrap();
        self.buffers.push_back(addr);
        let buf = [Buf { addr, len: BUFFER }];
        let mem = &self.mem;
        let driver = &mut self.drivers.as_mut().expect("rings")[0];
        driver.add(mem, &[], &buf, ChainLocation::Direct, 0).unwrap();
        driver.publish();
    }
    pub(super) fn transmit(&mut self, frame: &[u8]) {
        let addr = self.packets.take(BUFFER.into(), 8).unwrap();
        self.mem.write(addr, &[&[0; HEADER], frame].concat()).unwrap();
        let len = u32::try_from(HEADER + frame.len()).unwrap();
        let mem = &self.mem;
        let driver = &mut self.drivers.as_mut().expect("rings")[1];
        driver
            .add(mem, &[Buf { addr, len }], &[], ChainLocation::Direct, 1)
            .unwrap();
        driver.publish();
    }
    /// The bytes in the oldest buffer.
    pub(super) fn received(&mut self) -> Option<Vec<u8>> {
        let done = self.drivers()[0].pop().unwrap()?;
        let addr = self.buffers.pop_front().unwrap();
        let mut bytes = vec![0; done.len as usize];
        self.mem.read(addr, &mut bytes).unwrap();
        Some(bytes.split_off(HEADER))
    }
    /// Whether a transmitted frame was taken.
    pub(super) fn transmitted(&mut self) -> bool {
        self.drivers()[1].pop().unwrap().is_some()
    }
}

/// A machine whose devices the control thread makes.
#[derive(Default)]
pub(super) struct FakeHost {
    pub(super) devices: Mutex<BTreeMap<String, Arc<FakeDevice>>>,
    /// The module is not loaded.
    pub(super) absent: Mutex<bool>,
    pub(super) log: Mutex<Vec<String>>,
}

/// Time that the fake kernel waits for a reply.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

impl FakeHost {
    pub(super) fn device(&self, name: &str) -> Arc<FakeDevice> {
        Arc::clone(self.devices.lock().get(name).expect("a device"))
    }
    fn find(&self, name: &str) -> io::Result<Arc<FakeDevice>> {
        self.devices.lock().get(name).cloned().ok_or_else(|| errno(2))
    }
    fn note(&self, text: String) {
        self.log.lock().push(text);
    }
}

impl Host for FakeHost {
    fn create(&self, new: &NewDevice<'_>) -> io::Result<()> {
        if *self.absent.lock() {
            return Err(errno(2));
        }
        let mut devices = self.devices.lock();
        if devices.contains_key(new.name) {
            return Err(errno(17));
        }
        let features = Features::from_bits_truncate(new.features);
        // The checks of linux/drivers/vdpa/vdpa_user/vduse_dev.c.
        let needed = Features::VERSION_1 | Features::ACCESS_PLATFORM;
        if !features.contains(needed) || features.contains(Features::CTRL_VQ) || new.queues != 2 {
            return Err(errno(EINVAL));
        }
        let device = FakeDevice::new(needed);
        device.state.lock().offered = new.features;
        device.state.lock().config = new.config.to_vec();
        devices.insert(new.name.to_owned(), device);
        self.note(format!("create {}", new.name));
        Ok(())
    }
    fn destroy(&self, name: &str) -> io::Result<()> {
        let device = self.find(name)?;
        let s = device.state.lock();
        if s.is_open || s.on_bus {
            return Err(errno(16));
        }
        self.devices.lock().remove(name);
        self.note(format!("destroy {name}"));
        Ok(())
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DeviceEnd>> {
        FakeEnd::open(&self.find(name)?)
    }
    fn set_attribute(&self, name: &str, attribute: &str, value: &str) -> io::Result<()> {
        self.note(format!("{name}/{attribute}={value}"));
        Ok(())
    }
    fn add(&self, name: &str) -> io::Result<()> {
        let device = self.find(name)?;
        if core::mem::replace(&mut device.state.lock().on_bus, true) {
            return Err(errno(17));
        }
        for status in [0, 1, 3] {
            device.set_status(status, REPLY_TIMEOUT)?;
        }
        device.negotiate();
        device.set_status(0xb, REPLY_TIMEOUT)?;
        Guest::new(&device).set_up(&device);
        device.set_status(0xf, REPLY_TIMEOUT)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        let device = self.find(name)?;
        if !device.state.lock().on_bus {
            return Err(errno(19));
        }
        // The driver's reset; the device's reply changes nothing.
        let _ = device.set_status(0, REPLY_TIMEOUT);
        device.state.lock().on_bus = false;
        self.note(format!("off the bus: {name}"));
        Ok(())
    }
    fn is_present(&self, name: &str) -> bool {
        self.find(name).is_ok_and(|d| d.state.lock().on_bus)
    }
    fn has_driver(&self, _: &str) -> bool {
        true
    }
    fn netdev(&self, name: &str) -> Option<String> {
        Some(format!("net-{name}"))
    }
}
