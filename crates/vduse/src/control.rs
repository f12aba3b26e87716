//! The thread that serves all VDUSE devices of the process.
//!
//! **Costs.** One thread serves the devices. It sleeps until the kernel has a message, a queue misses an
//! address, or a retry is due. Another thread serves the vDPA bus ([`crate::bus`]). It sleeps until devices
//! come or go.
//!
//! **Thread-safety.** [`Control`] may be used from any thread; devices are called on the control thread only.

use crate::bus::Bus;
use crate::endpoint::{Endpoint, Shared};
use crate::host::Host;
use crate::session::Rings;
use crate::spec::{Spec, Wanted};
use core::time::Duration;
use heddle_sys::{Epoll, EventFd};
use heddle_virtio::device::Device;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// Maximum number of devices.
pub const MAX_DEVICES: usize = 4096;
/// Timeout of a caller that waits for the thread.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The name of a device that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(u64);

enum Command {
    Add(DeviceId, Box<Spec>, Box<dyn Device>),
    Configure(DeviceId, Wanted),
    /// All ports of the configuration are there.
    Settled,
    /// Whether the device goes for good; the reason, for people; the channel. The reply is sent when workers
    /// have no ring any more, or the device is on its way off the bus.
    Remove(DeviceId, bool, &'static str, SyncSender<()>),
    Stop,
}

struct Inner {
    commands: Mutex<Vec<Command>>,
    wake: Arc<EventFd>,
    /// Devices so far, and devices now.
    count: Mutex<(u64, usize)>,
}

/// A handle of the control thread. Dropping it ends all sessions and the thread; devices stay.
pub struct Control {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

impl core::fmt::Debug for Control {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

impl Control {
    /// Starts the threads, for devices of `host`.
    ///
    /// # Errors
    /// When the process has no descriptors or threads left.
    pub fn start(host: Arc<dyn Host>) -> io::Result<Self> {
        let wake = Arc::new(EventFd::new()?);
        let epoll = Epoll::new(64)?;
        epoll.add(wake.as_raw_fd(), WAKE)?;
        let bus = Bus::start(Arc::clone(&host), Arc::clone(&wake))?;
        let inner = Arc::new(Inner {
            commands: Mutex::default(),
            wake,
            count: Mutex::new((WAKE, 0)),
        });
        heddle_sys::sigbus::raise(inner.wake.as_fd());
        let theirs = Arc::clone(&inner);
        let thread = std::thread::Builder::new()
            .name("vduse".into())
            .spawn(move || run(&theirs, &*host, &bus, epoll))?;
        Ok(Self {
            inner,
            thread: Some(thread),
        })
    }

    /// Makes and serves a device from now on. Faults are reported to `device`, and tried again.
    ///
    /// # Errors
    /// `QuotaExceeded` beyond [`MAX_DEVICES`].
    pub fn add(&self, spec: Spec, device: Box<dyn Device>) -> io::Result<DeviceId> {
        let id = {
            let mut count = self.inner.count.lock();
            if count.1 >= MAX_DEVICES {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
            count.0 += 1;
            count.1 += 1;
            DeviceId(count.0)
        };
        self.command(Command::Add(id, Box::new(spec), device));
        Ok(id)
    }

    /// All ports of the configuration are there. Until then, for at most two seconds, rings that an earlier
    /// process had wait. So packets from one pod to another are not dropped because the other's port comes
    /// later.
    pub fn settled(&self) {
        self.command(Command::Settled);
    }

    /// Changes the values that the driver reads, and interrupts it.
    pub fn configure(&self, id: DeviceId, wanted: Wanted) {
        self.command(Command::Configure(id, wanted));
    }

    /// Ends the service of a device, with `why` for people. It stays for the next process, unless it goes
    /// `for_good`: then it is taken off the bus and destroyed afterwards. Must not be called by a device.
    pub fn remove(&self, id: DeviceId, for_good: bool, why: &'static str) {
        let (done, wait) = sync_channel(1);
        self.command(Command::Remove(id, for_good, why, done));
        if wait.recv_timeout(REPLY_TIMEOUT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            log::error!("vduse: the devices' thread does not reply; a port is removed later");
        }
    }

    fn command(&self, command: Command) {
        self.inner.commands.lock().push(command);
        self.inner.wake.notify();
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        heddle_sys::sigbus::quiet(self.inner.wake.as_fd());
        self.command(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let until = Instant::now() + 2 * REPLY_TIMEOUT;
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                let _ = thread.join(); // a panic was printed by the thread itself
            }
        }
    }
}

/// The token of the thread's own descriptor; devices have their identifiers, which begin behind it.
const WAKE: u64 = 0;

fn run(inner: &Inner, host: &dyn Host, bus: &Bus, mut epoll: Epoll) {
    let mut endpoints: BTreeMap<u64, Endpoint> = BTreeMap::new();
    let mut stop: Option<Instant> = None;
    let mut failed: Vec<u64> = Vec::new();
    let mut settled = false;
    loop {
        let was_settled = settled;
        let shared = Shared {
            settled,
            host,
            bus,
            epoll: &epoll,
            wake: &inner.wake,
        };
        let commands = core::mem::take(&mut *inner.commands.lock());
        for command in commands {
            match command {
                Command::Add(id, spec, device) => {
                    endpoints.insert(id.0, Endpoint::new(id.0, *spec, device));
                }
                Command::Configure(id, wanted) => {
                    if let Some(endpoint) = endpoints.get_mut(&id.0) {
                        endpoint.configure(wanted);
                    }
                }
                Command::Settled => settled = true,
                Command::Remove(id, for_good, why, done) => {
                    if let Some(endpoint) = endpoints.get_mut(&id.0) {
                        endpoint.end(for_good, why, &shared);
                    }
                    let _ = done.send(()); // the caller may have stopped waiting
                }
                Command::Stop => {
                    for endpoint in endpoints.values_mut() {
                        endpoint.end(false, "the switch ends", &shared);
                    }
                    stop = Some(Instant::now() + REPLY_TIMEOUT);
                }
            }
        }
        for id in failed.drain(..) {
            if let Some(endpoint) = endpoints.get_mut(&id) {
                endpoint.failed(&shared);
            }
        }
        for done in bus.done() {
            if let Some(endpoint) = endpoints.get_mut(&done.id) {
                endpoint.done(done, &shared);
            }
        }
        let due = serve(&mut endpoints, &shared);
        if settled && !was_settled {
            for rings in [Rings::ToDriver, Rings::All] {
                for endpoint in endpoints.values_mut() {
                    endpoint.resume(rings, &shared);
                }
            }
        }
        let before = endpoints.len();
        endpoints.retain(|_, e| !e.is_gone());
        inner.count.lock().1 -= before - endpoints.len();
        // Devices that leave are waited for, since no other thread would take them off the bus.
        if let Some(until) = stop
            && (endpoints.is_empty() || until <= Instant::now())
        {
            for endpoint in endpoints.values_mut() {
                endpoint.drop_all("the switch ends", &shared);
            }
            return;
        }
        let timeout = [due, stop].into_iter().flatten().min().map_or(-1, |at| {
            let left = at.saturating_duration_since(Instant::now());
            // Rounded up, so that a deadline has passed when the thread wakes.
            i32::try_from(left.as_millis()).map_or(i32::MAX, |ms| ms.saturating_add(1))
        });
        match epoll.wait(timeout) {
            // Readable ones are all looked at anyway.
            Ok(ready) => failed.extend(ready.filter(|r| r.error && r.token != WAKE).map(|r| r.token)),
            Err(e) => {
                log::error!("vduse: cannot wait for devices: {e}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        inner.wake.drain();
    }
}

/// Looks at all devices. Returns when the first wants that again.
fn serve(endpoints: &mut BTreeMap<u64, Endpoint>, shared: &Shared<'_>) -> Option<Instant> {
    // The endpoint that has a device: the first one that uses its name, until it is gone.
    let mut holders: BTreeMap<String, bool> = BTreeMap::new();
    let mut due: Option<Instant> = None;
    for endpoint in endpoints.values_mut().filter(|e| !e.is_gone()) {
        let taken = holders.get(endpoint.name()).copied();
        let at = endpoint.service(taken, shared);
        holders
            .entry(endpoint.name().to_owned())
            .or_insert(endpoint.is_leaving());
        due = [due, at].into_iter().flatten().min();
    }
    due
}
