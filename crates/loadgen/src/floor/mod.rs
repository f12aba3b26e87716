//! The limit of this machine: the generator against a loop that switches nothing.
//!
//! A thread on the switch's core takes the packets of one port and puts them into its partner's buffers. It
//! does nothing that makes a switch: it neither reads packets nor decides, and trusts the guest (the guest is
//! ourselves). Three kinds, see [`Kind`].
//!
//! The cost of a floor is counted as switches count theirs: cycles of turns that moved packets, by packets.

mod device;
mod raw;
mod ring;
#[cfg(test)]
mod tests;

use crate::run::{Engine, Port, load_of};

use crate::load::{Load, Setup};

use crate::error::RunError;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use heddle_sys::{Tsc, cpu};
use heddle_vhost_user::frontend::Nic;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Maximum number of packets of one turn and direction.
pub const BURST: usize = 32;

/// The loop's way to move a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Moves descriptors and copies once, from one guest's memory to the other's.
    OneCopy,
    /// Copies twice, by way of private memory.
    TwoCopies,
    /// One copy by this project's own device side of the rings, with all of its checks; no datapath.
    Rings,
}

/// Counters of a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Cycles of turns that moved packets.
    pub busy: u64,
    /// Packets moved.
    pub packets: u64,
    /// Packets dropped because the partner had no buffers.
    pub dropped: u64,
}

impl Work {
    /// The difference to the earlier counters `o`.
    #[must_use]
    pub fn since(self, o: Self) -> Self {
        Self {
            busy: self.busy - o.busy,
            packets: self.packets - o.packets,
            dropped: self.dropped - o.dropped,
        }
    }
    /// Busy cycles per packet.
    pub fn cycles(self) -> f64 {
        self.busy as f64 / self.packets.max(1) as f64
    }
}

/// One direction: from a port's transmit queue into its partner's receive queue.
trait Lane {
    /// Moves at most a burst; returns packets moved and packets dropped.
    fn turn(&mut self) -> Result<(usize, usize), RunError>;
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    busy: AtomicU64,
    packets: AtomicU64,
    dropped: AtomicU64,
}

/// A loop that runs until it is dropped.
#[derive(Debug)]
pub struct Floor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), RunError>>>,
}

impl Floor {
    /// Makes `count` ports, a loop between them on core `core`, and the generator that drives them; loads as
    /// for [`Engine::connect`].
    ///
    /// # Errors
    /// [`RunError`].
    pub fn start(
        kind: Kind,
        count: usize,
        core: usize,
        setup: &Setup,
        loads: &[Load],
    ) -> Result<(Self, Engine), RunError> {
        let mut nics = Vec::new();
        for port in 0..count {
            let load = load_of(loads, port)?;
            load.check(setup)?;
            let config = setup.nic(load.shape);
            let nic = Nic::new(config.features, &config);
            nics.push(nic.map_err(|error| RunError::Session { port, error })?);
        }
        let both = Load {
            both_ways: true, // announcements go both ways even where packets do not
            ..Load::default()
        };
        let mut lanes: Vec<Box<dyn Lane + Send>> = Vec::new();
        for (i, from) in nics.iter().enumerate() {
            let Some(to) = both.target(i, count).and_then(|t| nics.get(t)) else {
                continue;
            };
            for (tx, rx) in from.tx.iter().zip(&to.rx) {
                lanes.push(match kind {
                    Kind::OneCopy | Kind::TwoCopies => {
                        Box::new(raw::Raw::new((from, tx), (to, rx), kind == Kind::TwoCopies)?)
                    }
                    Kind::Rings => Box::new(device::Rings::new((from, tx), (to, rx))?),
                });
            }
        }
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("floor".into())
            .spawn(move || run(core, &mut lanes, &theirs))
            .map_err(|error| RunError::Io {
                what: "a thread",
                error,
            })?;
        let floor = Self {
            shared,
            thread: Some(thread),
        };
        let ports = nics.into_iter().map(|nic| Port::new(nic, None)).collect();
        let engine = Engine::over(ports, setup, loads)?;
        Ok((floor, engine))
    }
    /// The present counters.
    pub fn work(&self) -> Work {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed); // statistics
        Work {
            busy: get(&self.shared.busy),
            packets: get(&self.shared.packets),
            dropped: get(&self.shared.dropped),
        }
    }
    /// Ends the loop; returns its counters.
    ///
    /// # Errors
    /// The error that ended the loop before.
    pub fn stop(mut self) -> Result<Work, RunError> {
        self.end()?;
        Ok(self.work())
    }
    fn end(&mut self) -> Result<(), RunError> {
        self.shared.stop.store(true, Ordering::Relaxed); // a flag; nothing is ordered by it
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(RunError::Silent("the loop panicked".into())),
            None => Ok(()),
        }
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        let _ = self.end(); // `stop` returns the error, if it matters
    }
}

fn run(core: usize, lanes: &mut [Box<dyn Lane + Send>], shared: &Shared) -> Result<(), RunError> {
    cpu::pin(&[core]).map_err(|error| RunError::Io {
        what: "the core of the loop",
        error,
    })?;
    let mut work = Work::default();
    let mut then = Tsc::now();
    while !shared.stop.load(Ordering::Relaxed) {
        // Time is read once per queue and turn, as switches do.
        for lane in lanes.iter_mut() {
            let (moved, dropped) = lane.turn()?;
            let now = Tsc::now();
            if moved + dropped > 0 {
                work.busy += now - then;
                work.packets += (moved + dropped) as u64;
                work.dropped += dropped as u64;
                // This core's own cache line; the other core reads it a few times per second.
                shared.busy.store(work.busy, Ordering::Relaxed);
                shared.packets.store(work.packets, Ordering::Relaxed);
                shared.dropped.store(work.dropped, Ordering::Relaxed);
            } else {
                core::hint::spin_loop();
            }
            then = now;
        }
    }
    Ok(())
}
