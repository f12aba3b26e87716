//! A worker: one thread that takes packets from its receive queues through lookup and actions to transmit
//! queues.
//!
//! A worker owns all that it touches per packet: queues, caches, buffers, counters. The control side sends
//! commands through a bounded ring and an eventfd. The worker replies on a channel that comes with the
//! command. It takes no lock and allocates nothing per packet; a miss allocates memory for its new entry.
//!
//! One iteration runs commands, does a bounded piece of maintenance, and polls the receive queues whose turn
//! it is. Queues with few packets share a burst. Without packets, the worker polls for a while and then
//! sleeps ([`schedule`]).

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod burst;
mod command;
mod decap;
mod ids;
mod keys;
mod miss;
pub(crate) mod parse;
mod pending_credits;
mod recirc;
mod resources;
mod schedule;
mod stage;
mod tracked;
mod waiting;

pub use command::REALTIME;
pub(crate) use command::{Binding, Command, CommandTx, Injected, Reply, WORKER_TIMEOUT, command_ring};

use crate::counters::{PortCounters, Window, WorkerCounters};
use crate::exec::ct::Tracked;
use crate::exec::program::Program;
use crate::exec::tx::TxTable;
use crate::exec::upcalls::UpcallTx;
use crate::exec::watch::PacketWatch;
use crate::flow_cache::{Cache, CachedTranslation};
use crate::perf::{Iteration, Own};
use crate::shared::Shared;
use heddle_datapath_api::meter::Verdict;
use heddle_datapath_api::{Meter, Translation};
use heddle_flow::FlowKey;
use heddle_flow_cache::{ProgramId, Room, Run};
use heddle_packet::{BURST, Burst, Packet, Pool};
use heddle_port::RxQueue;
use heddle_sync::Published;
use heddle_sync::ring::Consumer;
use heddle_sys::{Epoll, EventFd, Tsc};
use heddle_tunnel::stt::Frames;
#[expect(clippy::disallowed_types, reason = "the worker only tries")]
use parking_lot::Mutex;
use resources::ProgramResources;
use schedule::{PollBackoff, QueueScheduler, Schedule};
use stage::Stage;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Maximum number of revalidator findings that an iteration acts on, without packets.
const FINDINGS_STEP: usize = 64;
/// With packets, findings may take one part in 2^`FINDINGS_SHARE` of the time, in smaller steps. Unused time
/// is kept, up to `FINDINGS_CREDIT` cycles.
const FINDINGS_SHARE: u32 = 3;
const FINDINGS_STEP_BUSY: usize = 4;
const FINDINGS_CREDIT: u64 = 1 << 14;
/// Maximum number of entries, and of cached translations, that one step frees, without packets and with them.
/// Each costs a fraction of a microsecond, and tens of thousands may be removed at once.
const MAX_FREED: usize = 1024;
const MAX_FREED_BUSY: usize = 128;
/// A worker replies to a `Sync` command after a round without packets, or after this number of rounds.
const SYNC_ROUNDS: u32 = 256;
/// Minimum interval between two runs of the cache's housekeeping, milliseconds.
const CACHE_TIDY_INTERVAL_MS: u64 = 1000;

/// State of a receive queue that a worker shares with the control side.
#[derive(Debug, Default)]
pub(crate) struct RxShared {
    /// Cycles spent on packets of this queue in the last minute.
    pub(crate) usage: Window,
    /// The queue's own drop counters. Locked by the worker only when they have changed, between bursts, and
    /// only if free.
    #[expect(clippy::disallowed_types, reason = "the worker only tries")]
    pub(crate) dropped: Mutex<Vec<(&'static str, u64)>>,
    /// Rate limits of the port.
    pub(crate) policing: Policing,
}

/// Limits of what a port may receive (`Interface.ingress_policing_*`): its queues share the buckets.
#[derive(Debug, Default)]
pub(crate) struct Policing {
    /// Whether there are limits. Without limits, policing costs one load of this flag.
    on: AtomicBool,
    limits: Published<Vec<Arc<Meter>>>,
    /// Packets that the limits dropped.
    pub(crate) dropped: AtomicU64,
}

impl Policing {
    pub(crate) fn set(&self, limits: Vec<Arc<Meter>>) {
        let on = !limits.is_empty();
        self.limits.store(limits);
        self.on.store(on, Relaxed);
    }
    #[inline]
    fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }
    /// Removes packets above the limits from `burst`, from place `from` on, and hands them to `lose`. Returns
    /// their number.
    #[cold]
    fn police(&self, burst: &mut Burst, from: usize, now_ms: u64, lose: impl FnMut(Packet)) -> usize {
        let limits = self.limits.load();
        let mut kept = from;
        for i in from..burst.len() {
            if limits
                .iter()
                .all(|m| m.police(&burst[i], now_ms) == Verdict::Pass)
            {
                burst.swap(kept, i);
                kept += 1;
            }
        }
        let dropped = burst.len() - kept;
        burst.drain(kept..).for_each(lose);
        self.dropped.fetch_add(dropped as u64, Relaxed);
        dropped
    }
}

/// A receive queue with its worker's state for it.
pub(crate) struct RxSlot {
    pub(crate) queue: Box<dyn RxQueue>,
    pub(crate) port: u32,
    /// Number of the queue within its port.
    pub(crate) index: usize,
    /// Counters of the port on the worker that polls the queue.
    pub(crate) counters: Arc<PortCounters>,
    pub(crate) shared: Arc<RxShared>,
    /// Sum of the queue's drops when they were last published.
    pub(crate) dropped_seen: u64,
    scheduler: QueueScheduler,
    /// Back-off of a queue whose every poll is a system call.
    backoff: Option<PollBackoff>,
    /// Index of the port's budget in [`Schedule::budgets`], and the budget's pass in which the queue had its
    /// last turn.
    budget: usize,
    pass: u64,
    /// Received packets that wait for the queue's next turn: they are expensive, and other queues may have
    /// packets.
    held: Vec<Packet>,
    /// Descriptor of the queue in the epoll set, and token of its events.
    pub(crate) watched: Option<RawFd>,
    /// The descriptor was readable, and [`RxQueue::woken`] was not called since.
    fired: bool,
}

impl RxSlot {
    /// A queue that no worker has polled yet.
    pub(crate) fn new(queue: Box<dyn RxQueue>, port: u32, index: usize, shared: Arc<RxShared>) -> Self {
        Self {
            backoff: queue.polls_kernel().then(PollBackoff::default),
            queue,
            port,
            index,
            counters: Arc::default(),
            shared,
            dropped_seen: 0,
            scheduler: QueueScheduler::default(),
            budget: 0,
            pass: 0,
            held: Vec::new(),
            watched: None,
            fired: false,
        }
    }
    /// Appends up to `most` packets to `burst`, held ones first.
    fn take(&mut self, most: usize, pool: &mut Pool, burst: &mut Burst, spare: &mut Burst) -> Taken {
        if self.held.is_empty() && most >= BURST - burst.len() {
            let room = BURST - burst.len();
            let n = self.queue.rx(pool, burst);
            return Taken {
                packets: n,
                more: n == room,
            };
        }
        let mut full = true;
        if self.held.is_empty() {
            let n = self.queue.rx(pool, spare);
            full = n == BURST;
            self.held.extend(spare.drain(..));
        }
        let n = most.min(self.held.len()).min(BURST - burst.len());
        burst.extend(self.held.drain(..n));
        Taken {
            packets: n,
            more: full || !self.held.is_empty(),
        }
    }
}

/// The packets that [`RxSlot::take`] has appended.
struct Taken {
    packets: usize,
    /// There may be more.
    more: bool,
}

/// The program that a lookup chose for packets of the burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Choice {
    /// A program of the cache, by its number.
    Cached(ProgramId),
    /// A program of this burst only.
    Once(u16),
    /// No program: the packet was dropped.
    Dropped,
}

impl Choice {
    /// The program to run.
    #[inline]
    fn program<'a>(self, cache: &'a Cache, once: &'a [Arc<Program>]) -> Option<&'a Program> {
        match self {
            Self::Cached(n) => cache.program(n),
            Self::Once(n) => once.get(usize::from(n)).map(|p| &**p),
            Self::Dropped => None,
        }
    }
}

/// Adjacent packets that one program executes together: of one run, or of several.
#[derive(Clone, Copy, Debug)]
struct Group {
    first: u16,
    end: u16,
    /// Number of the first run.
    run: u16,
    longest: u32,
    choice: Choice,
}

impl Group {
    /// A group of the packets of `run`, which is run `r` or the rest of it.
    fn of(run: &Run, r: usize, choice: Choice) -> Self {
        Self {
            first: run.first,
            end: run.end,
            run: u16::try_from(r).expect("a burst has fewer packets"),
            longest: run.longest,
            choice,
        }
    }
}

/// A receive queue's part of a burst.
#[derive(Clone, Copy)]
struct Source {
    /// Index of the queue in [`Worker::rx`].
    slot: usize,
    /// Packets of the queue in the burst.
    packets: usize,
    /// Cycles that receiving them took.
    cycles: u64,
}

/// Scratch space for one burst, reused.
#[derive(Default)]
struct Scratch {
    /// The type of the first header of the burst's packets. Queues receive Ethernet frames only, which is
    /// type 0.
    packet_type: u32,
    /// Context of an injected packet. Packets from queues have none.
    context: Option<Box<FlowKey>>,
    /// Receives the burst of a queue with a short turn; else empty.
    spare: Burst,
    sources: Vec<Source>,
    /// Free list of stages.
    #[expect(clippy::vec_box, reason = "they are moved in and out")]
    spare_stages: Vec<Box<Stage>>,
    /// Lookups that are left to the recirculated packets at hand, and their copies.
    lookups: usize,
    /// Cycles that translations took while programs ran.
    translated: u64,
    translation: Translation,
    /// Room for the full key of a packet to be translated. `None` during a translation.
    room: Option<Box<Room>>,
}

/// The thread's state.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    counters: Arc<WorkerCounters>,
    rx: Vec<RxSlot>,
    schedule: Schedule,
    resources: ProgramResources,
    cache: Cache,
    /// Programs of this burst only.
    once: Vec<Arc<Program>>,
    scratch: Scratch,
    /// The tunnel that the packet at hand came out of.
    popped: Box<FlowKey>,
    /// Segments of frames from tunnels that wait for others.
    frames: Frames,
    /// Packets that wait for a neighbour.
    waiting: waiting::WaitingPackets,
    pending_credits: pending_credits::PendingCredits,
    commands: Consumer<Command>,
    /// Findings of the revalidator about entries (slot, id). An entry is to be evicted, or it is valid under
    /// this cached translation.
    findings: VecDeque<(u32, u64, Option<Arc<CachedTranslation>>)>,
    /// Time at which findings were last acted on, and the cycles that they may take now.
    findings_at: u64,
    findings_credit: u64,
    bell: Arc<EventFd>,
    epoll: Epoll,
    /// `Sync` commands to reply to, with the number of rounds that are left ([`SYNC_ROUNDS`]).
    syncing: Vec<(std::sync::mpsc::Sender<Reply>, u32)>,
    cache_tidied_ms: u64,
    /// The value of [`Shared::inv_prob`] that the cache has.
    inv_prob: u32,
    pinned: bool,
    stop: bool,
}

/// Parts that a worker is built from.
pub(crate) struct Parts {
    /// Number of the worker.
    pub(crate) number: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) pool: Pool,
    pub(crate) cache: Cache,
    pub(crate) upcalls: UpcallTx,
    pub(crate) commands: Consumer<Command>,
    pub(crate) bell: Arc<EventFd>,
    pub(crate) pinned: bool,
}

/// Token of the bell in the epoll set; queues use their descriptor.
const BELL_TOKEN: u64 = u64::MAX;

impl Worker {
    /// Builds the worker; called on its own thread, so that its memory is local.
    pub(crate) fn new(p: Parts) -> std::io::Result<Self> {
        use std::os::fd::AsRawFd;
        let epoll = Epoll::new(16)?;
        epoll.add(p.bell.as_raw_fd(), BELL_TOKEN)?;
        let watch = PacketWatch::new(Arc::clone(&p.shared.watched));
        Ok(Self {
            resources: ProgramResources {
                shared: Arc::clone(&p.shared),
                counters: Arc::clone(&p.counters),
                tx: TxTable::watched(watch, p.number),
                pool: p.pool,
                upcalls: p.upcalls,
                live: crate::exec::Live::default(),
                recirc: None,
                tracked: Tracked::new(),
                resumed: Vec::new(),
                random: Tsc::now() | 1,
                now_ms: 0,
            },
            shared: p.shared,
            counters: p.counters,
            rx: Vec::new(),
            schedule: Schedule::default(),
            cache: p.cache,
            once: Vec::new(),
            popped: Box::default(),
            scratch: Scratch::default(),
            frames: Frames::default(),
            waiting: waiting::WaitingPackets::default(),
            pending_credits: pending_credits::PendingCredits::default(),
            commands: p.commands,
            findings: VecDeque::new(),
            findings_at: Tsc::now(),
            findings_credit: 0,
            bell: p.bell,
            epoll,
            syncing: Vec::new(),
            cache_tidied_ms: 0,
            inv_prob: crate::shared::UNSET,
            pinned: p.pinned,
            stop: false,
        })
    }

    /// Runs until a `Stop` command.
    pub(crate) fn run(&mut self) {
        let (mut t0, mut own) = (Tsc::now(), Own::default());
        while !self.stop {
            self.run_commands();
            self.maintain();
            let perf = self.shared.perf_metrics.load(Relaxed);
            let start = perf.then(|| self.counters.perf_start());
            let got = self.poll_all(t0);
            self.settle();
            let t1 = Tsc::now();
            if self.resources.tx.has_waiting() {
                let resources = &mut self.resources;
                resources
                    .tx
                    .release(t1, &mut resources.pool, &self.counters.drops);
            }
            let c = &self.counters;
            c.iterations.add(1);
            let told = start.is_some_and(|start| {
                let iteration = Iteration {
                    at: c.iterations.get(),
                    start,
                    now: c.perf_start(),
                    end: t1,
                    cycles: t1.wrapping_sub(t0),
                    packets: got as u64,
                };
                c.perf.iteration(&mut own, &iteration, &self.shared.suspects)
            });
            if got > 0 {
                c.iterations_busy.add(1);
                c.cycles_busy.add(t1.wrapping_sub(t0));
                c.usage.add(self.resources.now_ms, t1.wrapping_sub(t0));
                let max = self.shared.spin_cycles.load(Relaxed);
                self.schedule.idle.busy(got, t0..t1, max);
            } else {
                c.cycles_idle.add(t1.wrapping_sub(t0));
                self.idle(t0, t1);
            }
            t0 = if told { Tsc::now() } else { t1 };
            if std::mem::take(&mut self.schedule.idle.slept) {
                let woke = Tsc::now();
                self.counters.cycles_asleep.add(woke.wrapping_sub(t1));
                self.counters.asleep_since.set(0);
                t0 = woke;
            }
        }
        self.publish_rx_drops();
    }

    /// A bounded piece of housekeeping.
    fn maintain(&mut self) {
        if self.frames.any() {
            let now_ms = self.shared.clock.now_ms();
            self.frames.expire(&mut self.resources.pool, now_ms);
            self.count_lost_segments();
        }
        self.end_waiting();
        if self.findings.is_empty() {
            return self.free_evicted();
        }
        let begin = Tsc::now();
        let gained = begin.wrapping_sub(self.findings_at) >> FINDINGS_SHARE;
        self.findings_at = begin;
        self.findings_credit = (self.findings_credit + gained).min(FINDINGS_CREDIT);
        let most = match self.schedule.active {
            0 => FINDINGS_STEP,
            _ if self.findings_credit < FINDINGS_CREDIT / 2 => 0,
            _ => FINDINGS_STEP_BUSY,
        };
        for _ in 0..most {
            match self.findings.pop_front() {
                None => break,
                Some((slot, id, None)) => self.cache.evict_id(slot, id),
                Some((slot, id, Some(cached))) => self.cache.adopt(slot, id, &cached),
            }
        }
        if self.findings.is_empty() && self.findings.capacity() > 1 << 16 {
            self.findings = VecDeque::new();
        }
        self.free_evicted();
        let spent = Tsc::now().wrapping_sub(begin);
        self.findings_credit = self.findings_credit.saturating_sub(spent);
    }

    fn free_evicted(&mut self) {
        let n = self.cache.free_evicted(if self.schedule.active == 0 {
            MAX_FREED
        } else {
            MAX_FREED_BUSY
        });
        if n > 0 {
            if self.cache.wants_revalidator() {
                self.shared.wake_revalidator();
            }
            self.shared.n_flows.fetch_sub(n, Relaxed);
            self.counters.flows.set(self.cache.n_entries() as u64);
            self.counters.masks.set(self.cache.n_masks() as u64);
        }
    }

    /// Publishes the drop counters of queues that have changed, if the control side does not hold the lock.
    fn publish_rx_drops(&mut self) {
        for slot in &mut self.rx {
            let sum = slot.queue.dropped().iter().map(|(_, n)| n).sum();
            if sum != slot.dropped_seen
                && let Some(mut to) = slot.shared.dropped.try_lock()
            {
                to.clear();
                to.extend_from_slice(slot.queue.dropped());
                slot.dropped_seen = sum;
            }
        }
    }
}

impl Drop for Worker {
    /// The entries of the worker no longer count against the flow limit.
    fn drop(&mut self) {
        self.shared.n_flows.fetch_sub(self.cache.n_entries(), Relaxed);
    }
}
