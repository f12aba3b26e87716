//! Waits for readiness of many connections, and for a time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// The token of the timer.
const TIMER: u64 = u64::MAX;
/// Maximum duration of a wait.
const MAX_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// A connection that can be read or written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) index: usize,
    pub(super) readable: bool,
    pub(super) writable: bool,
}

pub(super) struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    events: Vec<Event>,
    ready: Vec<Ready>,
    armed_ns: u64,
}

fn flags(readable: bool, writable: bool) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, readable);
    flags.set(EventFlags::OUT, writable);
    flags
}

impl Poller {
    pub(super) fn new(most: usize) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        let none = Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        Ok(Self {
            epoll,
            timer,
            events: vec![none; most.clamp(1, 256)],
            ready: Vec::new(),
            armed_ns: 0,
        })
    }
    pub(super) fn add(&self, fd: impl AsFd, index: usize, readable: bool, writable: bool) -> io::Result<()> {
        let data = EventData::new_u64(index as u64);
        Ok(epoll::add(&self.epoll, fd, data, flags(readable, writable))?)
    }
    pub(super) fn modify(
        &self,
        fd: impl AsFd,
        index: usize,
        readable: bool,
        writable: bool,
    ) -> io::Result<()> {
        let data = EventData::new_u64(index as u64);
        Ok(epoll::modify(&self.epoll, fd, data, flags(readable, writable))?)
    }
    /// Waits until a connection is ready, the monotonic clock reaches `due_ns`, or the maximum duration is
    /// over.
    pub(super) fn wait(&mut self, due_ns: Option<u64>) -> io::Result<&[Ready]> {
        let due_ns = due_ns.unwrap_or(0);
        if due_ns != self.armed_ns {
            let at = Timespec {
                tv_sec: i64::try_from(due_ns / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(due_ns % 1_000_000_000).unwrap_or(0),
            };
            let once = Itimerspec {
                it_interval: Timespec::default(),
                it_value: at,
            };
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
            self.armed_ns = due_ns;
        }
        self.ready.clear();
        let n = match epoll::wait(&self.epoll, &mut self.events[..], Some(&MAX_WAIT)) {
            Err(e) if e == rustix::io::Errno::INTR => 0,
            n => n?,
        };
        for event in self.events.iter().take(n) {
            let (token, flags) = (event.data.u64(), event.flags);
            if token == TIMER {
                // The read resets the timer; the number of expirations is not needed.
                let _ = rustix::io::read(&self.timer, &mut [0; 8]);
                self.armed_ns = 0;
                continue;
            }
            let broken = flags.intersects(EventFlags::ERR | EventFlags::HUP);
            self.ready.push(Ready {
                index: usize::try_from(token).unwrap_or(usize::MAX),
                readable: broken || flags.contains(EventFlags::IN),
                writable: flags.contains(EventFlags::OUT),
            });
        }
        Ok(&self.ready)
    }
}
