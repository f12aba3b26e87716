//! The stream of a dummy port: frames, each behind its length in two bytes (big-endian), over a Unix or TCP
//! connection.
//!
//! A passive endpoint (`punix:`, `ptcp:`) sends to and receives from every peer that connects. An active one
//! (`unix:`, `tcp:`) connects, and connects again with growing pauses. One thread per endpoint does all of
//! it, woken by an eventfd when there is something to send or to stop for. Each peer has up to 100 frames
//! waiting; more are dropped.

mod socket;

use super::state::Shared;
use heddle_sys::{Epoll, EventFd};
use parking_lot::Mutex;
use socket::{Listener, Socket};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Frames that wait at most, per peer and between worker and thread.
const QUEUE_LIMIT: usize = 100;
/// Maximum number of peers of one listener.
const MAX_PEERS: usize = 256;
/// Time from an error of accept(2) to the next attempt.
const ACCEPT_REST: Duration = Duration::from_millis(20);
const MIN_FRAME: usize = 14;
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(8);

/// The port's end of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Endpoint {
    /// Waits for peers at the address.
    Passive(String),
    /// Connects to the address.
    Active(String),
}

impl Endpoint {
    pub(super) fn name(&self) -> &str {
        let (Self::Passive(name) | Self::Active(name)) = self;
        name
    }
}

/// A running endpoint. Dropping it ends its thread and closes its connections.
#[derive(Debug)]
pub(super) struct Conn {
    endpoint: Endpoint,
    link: Arc<Link>,
    thread: Option<JoinHandle<()>>,
}

/// The state that the thread and the worker share.
#[derive(Debug)]
struct Link {
    outbox: Mutex<VecDeque<Vec<u8>>>,
    wake: EventFd,
    peers: AtomicUsize,
    stop: AtomicBool,
}

impl Conn {
    pub(super) fn start(endpoint: Endpoint, port: Weak<Shared>) -> io::Result<Self> {
        let listener = match &endpoint {
            Endpoint::Passive(name) => Some(Listener::bind(name)?),
            Endpoint::Active(name) => {
                socket::check_name(name)?;
                None
            }
        };
        let link = Arc::new(Link {
            outbox: Mutex::default(),
            wake: EventFd::new()?,
            peers: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let mut run = Run::new(endpoint.clone(), listener, Arc::clone(&link), port)?;
        let thread = std::thread::Builder::new()
            .name("dummy-stream".into())
            .spawn(move || run.run())?;
        Ok(Self {
            endpoint,
            link,
            thread: Some(thread),
        })
    }
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
    pub(super) fn connected(&self) -> bool {
        // Relaxed: a snapshot for people.
        self.link.peers.load(Ordering::Relaxed) > 0
    }
    pub(super) fn send(&self, frame: &[u8]) {
        let Ok(len) = u16::try_from(frame.len()) else {
            return;
        };
        let mut outbox = self.link.outbox.lock();
        if outbox.len() < QUEUE_LIMIT {
            outbox.push_back([&len.to_be_bytes(), frame].concat());
            drop(outbox);
            self.link.wake.notify();
        }
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        // Release pairs with the thread's Acquire; the eventfd orders it anyway.
        self.link.stop.store(true, Ordering::Release);
        self.link.wake.notify();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One connection.
struct Peer {
    id: u64,
    socket: Socket,
    input: Vec<u8>,
    output: VecDeque<Vec<u8>>,
    /// Bytes of the first of `output` that are sent.
    sent: usize,
}

/// The thread's own state.
struct Run {
    endpoint: Endpoint,
    listener: Option<Listener>,
    link: Arc<Link>,
    port: Weak<Shared>,
    epoll: Epoll,
    peers: Vec<Peer>,
    next_id: u64,
    retry_at: Instant,
    pause: Duration,
}

const WAKE: u64 = 0;
const LISTENER: u64 = 1;

impl Run {
    fn new(
        endpoint: Endpoint,
        listener: Option<Listener>,
        link: Arc<Link>,
        port: Weak<Shared>,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(16)?;
        epoll.add(link.wake.as_raw_fd(), WAKE)?;
        if let Some(l) = &listener {
            epoll.add(l.as_raw_fd(), LISTENER)?;
        }
        let (retry_at, pause) = (Instant::now(), MIN_PAUSE);
        Ok(Self {
            endpoint,
            listener,
            link,
            port,
            epoll,
            peers: Vec::new(),
            next_id: 2,
            retry_at,
            pause,
        })
    }

    fn run(&mut self) {
        while !self.link.stop.load(Ordering::Acquire) {
            self.connect();
            let timeout = self.timeout_ms();
            let ready: Vec<u64> = match self.epoll.wait(timeout) {
                Ok(events) => events.map(|e| e.token).collect(),
                Err(_) => return,
            };
            if ready.contains(&WAKE) {
                self.link.wake.drain();
            }
            if ready.contains(&LISTENER) {
                self.accept();
            }
            self.distribute();
            let Some(port) = self.port.upgrade() else { return };
            self.peers.retain_mut(|peer| {
                let read = !ready.contains(&peer.id) || peer.receive(&port).is_ok();
                read && peer.flush().is_ok()
            });
            self.link.peers.store(self.peers.len(), Ordering::Relaxed);
        }
    }

    /// The time in which nothing can happen without an event.
    fn timeout_ms(&self) -> i32 {
        if self.peers.iter().any(|p| !p.output.is_empty()) {
            return 5;
        }
        if self.listener.is_none() && self.peers.is_empty() {
            let wait = self.retry_at.saturating_duration_since(Instant::now());
            return i32::try_from(wait.as_millis() + 1).unwrap_or(1000);
        }
        -1
    }

    fn connect(&mut self) {
        let Endpoint::Active(name) = &self.endpoint else {
            return;
        };
        if !self.peers.is_empty() || Instant::now() < self.retry_at {
            return;
        }
        match Socket::connect(name) {
            Ok(socket) => {
                self.pause = MIN_PAUSE;
                self.add(socket);
            }
            Err(_) => {
                self.retry_at = Instant::now() + self.pause;
                self.pause = (self.pause * 2).min(MAX_PAUSE);
            }
        }
    }

    fn accept(&mut self) {
        loop {
            match self.listener.as_ref().map(Listener::accept) {
                Some(Ok(socket)) if self.peers.len() < MAX_PEERS => self.add(socket),
                // Closed at once.
                Some(Ok(_)) => {}
                Some(Err(e)) if e.kind() != io::ErrorKind::WouldBlock => {
                    // Out of descriptors, most likely: the caller stays pending, so do not spin on it.
                    std::thread::sleep(ACCEPT_REST);
                    return;
                }
                _ => return,
            }
        }
    }

    fn add(&mut self, socket: Socket) {
        let id = self.next_id;
        self.next_id += 1;
        if self.epoll.add(socket.as_raw_fd(), id).is_ok() {
            self.peers.push(Peer {
                id,
                socket,
                input: Vec::new(),
                output: VecDeque::new(),
                sent: 0,
            });
            self.link.peers.store(self.peers.len(), Ordering::Relaxed);
        }
    }

    fn distribute(&mut self) {
        let frames = std::mem::take(&mut *self.link.outbox.lock());
        for frame in frames {
            for peer in self.peers.iter_mut().filter(|p| p.output.len() < QUEUE_LIMIT) {
                peer.output.push_back(frame.clone());
            }
        }
    }
}

impl Peer {
    /// Takes the bytes that have arrived; an error ends the connection.
    fn receive(&mut self, port: &Shared) -> io::Result<()> {
        let mut chunk = [0; 16 * 1024];
        match self.socket.read(&mut chunk) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => self.input.extend_from_slice(chunk.get(..n).unwrap_or_default()),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(()),
            Err(e) => return Err(e),
        }
        let mut rest = self.input.as_slice();
        while let Some((&[a, b], after)) = rest.split_first_chunk::<2>() {
            let len = usize::from(u16::from_be_bytes([a, b]));
            if len < MIN_FRAME {
                return Err(ErrorKind::InvalidData.into());
            }
            let Some((frame, after)) = after.split_at_checked(len) else {
                break;
            };
            port.inject(0, frame.to_vec());
            rest = after;
        }
        let used = self.input.len() - rest.len();
        self.input.drain(..used);
        Ok(())
    }

    /// Sends the bytes that the socket takes.
    fn flush(&mut self) -> io::Result<()> {
        while let Some(frame) = self.output.front() {
            match self.socket.write(frame.get(self.sent..).unwrap_or_default()) {
                Ok(n) => self.sent += n,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(()),
                Err(e) => return Err(e),
            }
            if self.sent >= frame.len() {
                self.sent = 0;
                self.output.pop_front();
            }
        }
        Ok(())
    }
}
