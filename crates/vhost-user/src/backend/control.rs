//! The thread that serves all vhost-user sockets of the process.
//!
//! **Costs.** One thread. It sleeps until a front end sends something, a retry of a socket is due (once a
//! second), or a request waits for workers. Each iteration looks at every endpoint.
//!
//! **Thread-safety.** [`Control`] may be used from any thread; devices are called on the control thread only.

use super::Socket;
use super::endpoint::{Endpoint, Part};
use super::quota::Quota;
use core::time::Duration;
use heddle_sys::{Epoll, EventFd};
use heddle_virtio::device::Device;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// Maximum number of sockets.
pub const MAX_SOCKETS: usize = 4096;
/// Timeout of a caller that waits for the thread. The thread waits only for workers that are in the middle of
/// a burst.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The name of a socket that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId(u64);

enum Command {
    Add(SocketId, Socket, Box<dyn Device>),
    /// The reason, for people; the thread replies when the device is gone.
    Remove(SocketId, &'static str, SyncSender<()>),
    Stop,
}

struct Shared {
    commands: Mutex<Vec<Command>>,
    wake: Arc<EventFd>,
    /// Sockets so far, and sockets now.
    count: Mutex<(u64, usize)>,
}

/// A handle of the control thread. Dropping it ends all sessions and the thread.
pub struct Control {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl core::fmt::Debug for Control {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

impl Control {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the process has no descriptors or threads left.
    pub fn start() -> io::Result<Self> {
        let wake = Arc::new(EventFd::new()?);
        let epoll = Epoll::new(64)?;
        epoll.add(wake.as_raw_fd(), WAKE)?;
        let shared = Arc::new(Shared {
            commands: Mutex::new(Vec::new()),
            wake,
            count: Mutex::new((0, 0)),
        });
        heddle_sys::sigbus::raise(shared.wake.as_fd());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("vhost-user".into())
            .spawn(move || run(&theirs, epoll))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Serves `socket` with `device` from now on. The thread reports each fault of the socket to the device,
    /// and tries the socket again.
    ///
    /// # Errors
    /// `QuotaExceeded` beyond [`MAX_SOCKETS`].
    pub fn add(&self, socket: Socket, device: Box<dyn Device>) -> io::Result<SocketId> {
        let id = {
            let mut count = self.shared.count.lock();
            if count.1 >= MAX_SOCKETS {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
            count.0 += 1;
            count.1 += 1;
            SocketId(count.0)
        };
        self.command(Command::Add(id, socket, device));
        Ok(id)
    }

    /// Ends the socket's session, if there is one, with `why` for people, removes its file and drops the
    /// device. Returns when that is done, at the latest after [`REPLY_TIMEOUT`]. After a timeout it logs a
    /// warning, and the thread removes the socket when it comes to the command. A device must not call this.
    pub fn remove(&self, id: SocketId, why: &'static str) {
        let (done, wait) = sync_channel(1);
        self.command(Command::Remove(id, why, done));
        // Disconnected: the thread is gone, and the device with it.
        if wait.recv_timeout(REPLY_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            log::error!("vhost-user: the sockets' thread does not reply; a port is removed later");
        }
    }

    fn command(&self, command: Command) {
        self.shared.commands.lock().push(command);
        self.shared.wake.notify();
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        heddle_sys::sigbus::quiet(self.shared.wake.as_fd());
        self.command(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let until = Instant::now() + REPLY_TIMEOUT;
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                let _ = thread.join(); // a panic was printed by the thread itself
            }
        }
    }
}

const WAKE: u64 = 0;

/// Two tokens for each socket, from 2 on: identifiers begin at 1.
fn token(id: SocketId, part: Part) -> u64 {
    2 * id.0 + u64::from(part == Part::Session)
}
fn of_token(token: u64) -> (SocketId, Part) {
    let part = if token % 2 == 1 {
        Part::Session
    } else {
        Part::Listener
    };
    (SocketId(token / 2), part)
}

fn run(shared: &Shared, mut epoll: Epoll) {
    let mut endpoints: BTreeMap<SocketId, Endpoint> = BTreeMap::new();
    let quota = Arc::new(Quota::default());
    loop {
        let commands = core::mem::take(&mut *shared.commands.lock());
        for command in commands {
            match command {
                Command::Add(id, socket, device) => {
                    endpoints.values_mut().for_each(|e| e.compare(&socket));
                    let (wake, quota) = (Arc::clone(&shared.wake), Arc::clone(&quota));
                    endpoints.insert(id, Endpoint::new(socket, device, wake, quota));
                }
                Command::Remove(id, why, done) => {
                    if let Some(endpoint) = endpoints.remove(&id) {
                        endpoint.close(why);
                        shared.count.lock().1 -= 1;
                    }
                    let _ = done.send(()); // the caller may have stopped waiting
                }
                Command::Stop => {
                    for (_, endpoint) in endpoints {
                        endpoint.close("the switch ends");
                    }
                    return;
                }
            }
        }
        let due = endpoints
            .iter_mut()
            .filter_map(|(&id, e)| e.service(|part| token(id, part), &epoll))
            .min();
        let timeout = due.map_or(-1, |at| {
            let left = at.saturating_duration_since(Instant::now());
            // Rounded up, so that a deadline has passed when the thread wakes.
            i32::try_from(left.as_millis()).map_or(i32::MAX, |ms| ms.saturating_add(1))
        });
        let ready: Vec<(SocketId, Part)> = match epoll.wait(timeout) {
            Ok(ready) => ready
                .filter(|r| r.token != WAKE)
                .map(|r| of_token(r.token))
                .collect(),
            Err(e) => {
                log::error!("vhost-user: cannot wait for sockets: {e}");
                std::thread::sleep(core::time::Duration::from_millis(100));
                continue;
            }
        };
        shared.wake.drain();
        for (id, part) in ready {
            if let Some(endpoint) = endpoints.get_mut(&id) {
                endpoint.ready(part);
            }
        }
    }
}
