//! One socket: makes connections and keeps them, one at a time.
//!
//! A server listens at the socket as long as the port exists; a client tries to connect to it about once a
//! second. A front end that did something wrong is served again after a pause that grows; so is one that
//! comes and goes ([`Backoff`]). All sockets share one thread. So the number of new connections that a socket
//! accepts a second is bounded ([`Gate`]), and so is its share of the thread's time ([`Budget`]).

use super::listen::{Listener, dial};
use super::pace::{Backoff, Budget, Gate, RETRY};
use super::quota::Quota;
use super::session::{CloseReason, Session, is_starved};
use super::{Role, Socket};
use crate::message::Connection;
use core::time::Duration;
use heddle_sys::{Epoll, EventFd};
use heddle_virtio::device::{Device, MAX_QUEUE_PAIRS};
use heddle_virtio::journal::Journal;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

/// Time from the loss of a connection to the first attempt.
const AFTER_LOSS: Duration = Duration::from_millis(200);

/// The part of an endpoint that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Listener,
    Session,
}

pub(super) struct Endpoint {
    socket: Socket,
    device: Box<dyn Device>,
    wake: Arc<EventFd>,
    journal: Journal,
    quota: Arc<Quota>,
    listener: Option<Listener>,
    session: Option<(Session, Instant)>,
    /// When to try to connect or listen, or to let a front end in again.
    next: Instant,
    /// Time until which connections are not accepted, since the last attempt failed.
    deaf: Instant,
    backoff: Backoff,
    gate: Gate,
    budget: Budget,
    /// Time until which the session's messages are not read.
    rest: Instant,
    /// The last text about the socket itself, which is not repeated.
    logged: String,
    /// The parts that epoll watches.
    watched: [bool; 2],
}

impl Endpoint {
    pub(super) fn new(
        socket: Socket,
        mut device: Box<dyn Device>,
        wake: Arc<EventFd>,
        quota: Arc<Quota>,
    ) -> Self {
        let rings = 2 * device.offer().queue_pairs.clamp(1, MAX_QUEUE_PAIRS);
        let journal = Journal::new(socket.journal.as_deref(), rings);
        Self {
            socket,
            device,
            wake,
            journal,
            quota,
            listener: None,
            session: None,
            next: Instant::now(),
            deaf: Instant::now(),
            backoff: Backoff::default(),
            gate: Gate::new(Instant::now()),
            budget: Budget::new(Instant::now()),
            rest: Instant::now(),
            logged: String::new(),
            watched: [false; 2],
        }
    }

    /// Does the due work; returns the latest time of the next call.
    pub(super) fn service(&mut self, token: impl Fn(Part) -> u64, epoll: &Epoll) -> Option<Instant> {
        let mut due = None;
        if let Some((session, _)) = &mut self.session {
            match session.tick(&mut *self.device) {
                Ok(next) => due = next,
                Err(end) => self.end(&end),
            }
        }
        let now = Instant::now();
        if self.session.is_none() && now >= self.next {
            self.attempt(now);
        }
        if self.session.is_none() {
            due = Some(self.next.max(now));
        }
        self.watch(token, epoll);
        // A listener that waits for connections has nothing else to wait for but the loss of its file.
        if self.session.is_none() && self.listener.is_some() && self.next <= now {
            due = Some(now + RETRY);
        }
        let quiet = [self.deaf, self.rest].into_iter().filter(|t| *t > now);
        due.into_iter().chain(quiet).min()
    }

    /// Handles input.
    pub(super) fn ready(&mut self, part: Part) {
        match part {
            Part::Session => self.read(),
            Part::Listener => self.accept(),
        }
    }

    fn read(&mut self) {
        let Some((session, _)) = &mut self.session else {
            return;
        };
        let began = Instant::now();
        if began < self.rest {
            return;
        }
        let heard = session.readable(&mut *self.device);
        if let Err(end) = heard {
            self.end(&end);
        }
        if let Some(until) = self.budget.used(began, Instant::now()) {
            self.rest = until;
        }
    }

    fn attempt(&mut self, now: Instant) {
        match self.socket.role {
            Role::Client => {
                self.next = now + RETRY;
                match dial(&self.socket.path) {
                    Ok(stream) => self.begin(Connection::new(stream)),
                    Err(e) => self.failed("cannot connect to", &e),
                }
            }
            Role::Server => {
                if self.listener.as_ref().is_some_and(|l| !l.is_there()) {
                    self.drop_listener();
                }
                if self.listener.is_none() {
                    match Listener::bind(&self.socket.path) {
                        Ok(listener) => {
                            self.listener = Some(listener);
                            self.logged.clear();
                            self.device.listening();
                        }
                        Err(e) => {
                            self.next = now + RETRY;
                            self.failed("cannot listen at", &e);
                        }
                    }
                }
            }
        }
    }

    fn accept(&mut self) {
        while let Some(listener) = &self.listener {
            let now = Instant::now();
            // The session rests, so its end would not be noticed: new connections wait in the listener's
            // queue.
            if self.session.is_some() && now < self.rest {
                self.deaf = self.rest;
                return;
            }
            if let Err(until) = self.gate.pass(now) {
                self.deaf = until;
                return;
            }
            let conn = match listener.accept() {
                Ok(Some(stream)) => Connection::new(stream),
                Ok(None) => return,
                Err(e) => {
                    self.failed("cannot accept at", &e);
                    self.deaf = now + RETRY;
                    return;
                }
            };
            // The one before may be gone already, without having been noticed yet.
            self.read();
            if self.session.is_some() {
                self.device.note("a second front end was turned away");
            } else if now >= self.next && !conn.is_over() {
                self.begin(conn);
            }
            // Otherwise the endpoint is in a pause, and the front end has to connect again. If such
            // connections stayed in the queue, those that are closed by now would be accepted first, each
            // with a pause of its own.
        }
    }

    fn begin(&mut self, conn: Connection) {
        self.logged.clear();
        let journal = Some(self.journal.clone());
        let (wake, quota) = (Arc::clone(&self.wake), Arc::clone(&self.quota));
        let session = Session::new(conn, &mut *self.device, wake, journal, quota);
        self.session = Some((session, Instant::now()));
        self.watched[1] = false;
    }

    fn end(&mut self, end: &CloseReason) {
        let Some((session, began)) = self.session.take() else {
            return;
        };
        self.watched[1] = false;
        let now = Instant::now();
        let pause = self
            .backoff
            .after(end, session.is_greeted(), now.duration_since(began));
        session.close(&end.to_string(), &mut *self.device);
        if end.is_starved() {
            self.device.starved();
        }
        let least = match self.socket.role {
            Role::Client => AFTER_LOSS,
            Role::Server => Duration::ZERO,
        };
        self.next = now + pause.max(least);
    }

    /// Ends the session because the port drops the socket; `why` is for people.
    pub(super) fn close(mut self, why: &'static str) {
        self.end(&CloseReason::Removed(why));
    }

    /// Another port is configured to connect to `socket`. If this endpoint connects to the same path, it logs
    /// that: the server at that path serves one of the two ports only.
    pub(super) fn compare(&mut self, socket: &Socket) {
        if (socket.role, self.socket.role) == (Role::Client, Role::Client) && socket.path == self.socket.path
        {
            let path = socket.path.display();
            self.device.note(&format!("another port connects to {path}, too"));
        }
    }

    /// Reports the system's error about the socket.
    fn failed(&mut self, what: &str, e: &io::Error) {
        self.trouble(&format!("{what} {}: {e}", self.socket.path.display()));
        if is_starved(e) {
            self.device.starved();
        }
    }

    /// Reports a fault of the socket to the device, unless it was the last one reported.
    fn trouble(&mut self, text: &str) {
        if self.logged != text {
            text.clone_into(&mut self.logged);
            self.device.trouble(text);
        }
    }

    fn drop_listener(&mut self) {
        self.listener = None;
        self.watched[0] = false;
    }

    /// Adds and removes descriptors so that exactly the wanted ones are watched. A descriptor that was closed
    /// is not watched any more.
    #[expect(clippy::indexing_slicing, reason = "0 and 1 are the places of two")]
    fn watch(&mut self, token: impl Fn(Part) -> u64, epoll: &Epoll) {
        let now = Instant::now();
        let (quiet, rests) = (now < self.deaf, now < self.rest);
        let listener = self.listener.as_ref().map(AsRawFd::as_raw_fd);
        let session = self.session.as_ref();
        let fd = session.map(|(s, _)| s.as_fd().as_raw_fd());
        let paused = session.is_some_and(|(s, _)| s.is_paused());
        for (i, part, fd, want) in [
            (0, Part::Listener, listener, !quiet),
            (1, Part::Session, fd, !paused && !rests),
        ] {
            let Some(fd) = fd else { continue };
            let done = match (self.watched[i], want) {
                (false, true) => epoll.add(fd, token(part)),
                (true, false) => epoll.remove(fd),
                _ => continue,
            };
            match done {
                Ok(()) => self.watched[i] = want,
                Err(e) => self.cannot_watch(&e),
            }
        }
    }
    #[cold]
    fn cannot_watch(&mut self, e: &io::Error) {
        self.failed("cannot watch", e);
    }
}
