//! A worker: one thread that takes packets from its receive queues through lookup and actions to transmit
//! queues.
//!
//! Everything it touches per packet is its own: queues, caches, buffers, counters. The control side reaches
//! it through a bounded command ring and an eventfd; it answers on a channel that the command brings along.
//! It takes no lock and allocates nothing per packet; a miss allocates what the new entry needs.
//!
//! One iteration: commands, one burst from each receive queue, a bounded piece of maintenance; without
//! packets it goes on polling for a while and then sleeps ([`wait`]).

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod burst;
mod command;
mod decap;
mod engine;
mod ids;
mod keys;
mod look;
mod miss;
mod owed;
pub(crate) mod parse;
mod peers;
mod poll;
mod polling;
mod recirc;
mod stage;
mod tracked;
mod turn;
mod wait;
mod waiting;

pub use command::REALTIME;
pub(crate) use command::{Binding, Command, CommandTx, Injected, Reply, WORKER_TIMEOUT, command_ring};

use crate::control::perf::{Own, Start};
use crate::counters::{PortCounters, Window, WorkerCounters};
use crate::exec::ct::Tracked;
use crate::exec::program::{Merges, Program};
use crate::exec::tx::TxTable;
use crate::exec::upcalls::UpcallTx;
use crate::exec::watch::Watch;
use crate::flow_cache::{Cache, CachedTranslation};
use crate::shared::Shared;
use engine::Engine;
use heddle_datapath_api::meter::Verdict;
use heddle_datapath_api::{Meter, Translation};
use heddle_flow::FlowKey;
use heddle_flow_cache::{Room, Run};
use heddle_packet::{BURST, Burst, Packet, Pool};
use heddle_port::RxQueue;
use heddle_sync::Published;
use heddle_sync::ring::Consumer;
use heddle_sys::{Epoll, EventFd, Tsc};
use heddle_tunnel::stt::Frames;
use look::Look;
#[expect(clippy::disallowed_types, reason = "the worker only tries")]
use parking_lot::Mutex;
use stage::Stage;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use turn::{PortBudget, Turn};

/// What the revalidator has found is acted on in steps of this many entries per iteration.
const FINDINGS_STEP: usize = 64;
/// While there are packets it may take one part in 2^3 of the time, in smaller steps; what was not taken is
/// kept for some steps.
const FINDINGS_SHARE: u32 = 3;
const FINDINGS_STEP_BUSY: usize = 4;
const FINDINGS_CREDIT: u64 = 1 << 14;
/// Entries, and cached translations, that are freed per iteration, without packets and with them: each costs
/// a fraction of a microsecond, and tens of thousands may go at once.
const REAPED: usize = 1024;
const REAPED_BUSY: usize = 128;
/// A round without packets answers those who wait for one; so does this many rounds with packets.
const SYNC_ROUNDS: u32 = 256;
/// Masks are put in order of hits every so many milliseconds.
const SORT_MS: u64 = 1000;

/// What the control side reads of a receive queue.
#[derive(Debug, Default)]
pub(crate) struct RxShared {
    /// Cycles spent on packets of this queue in the last minute.
    pub(crate) usage: Window,
    /// The queue's own drop counters. Locked by the worker only when they have changed, between bursts, and
    /// only if free.
    #[expect(clippy::disallowed_types, reason = "the worker only tries")]
    pub(crate) dropped: Mutex<Vec<(&'static str, u64)>>,
    /// What the port may receive; see [`Policing`].
    pub(crate) policing: Policing,
}

/// Limits of what a port may receive (`Interface.ingress_policing_*`): its queues share the buckets.
#[derive(Debug, Default)]
pub(crate) struct Policing {
    /// There are some: all others pay for no more than this.
    on: AtomicBool,
    limits: Published<Vec<Arc<Meter>>>,
    /// Packets that were dropped for them.
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
    /// Takes what is above the limits, of the packets of `burst` from `from` on, and gives it to `lose`.
    /// Returns how many.
    #[cold]
    fn police(&self, burst: &mut Burst, from: usize, now_ms: u64, lose: impl FnMut(Packet)) -> usize {
        let limits = self.limits.load();
        let mut kept = from;
        for i in from..burst.len() {
            let len = burst[i].len();
            if limits.iter().all(|m| m.police(len, now_ms) == Verdict::Pass) {
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

/// A receive queue as its worker holds it.
pub(crate) struct RxSlot {
    pub(crate) queue: Box<dyn RxQueue>,
    pub(crate) port: u32,
    /// Its number among the port's queues.
    pub(crate) index: usize,
    /// Of the worker that polls it.
    pub(crate) counters: Arc<PortCounters>,
    pub(crate) shared: Arc<RxShared>,
    /// Sum of the queue's drops when they were last published.
    pub(crate) dropped_seen: u64,
    turn: Turn,
    /// Of a queue whose looks are system calls.
    look: Option<Look>,
    /// The port's account among [`Worker::budgets`], and the number of the cycle in which the queue had its
    /// last turn.
    budget: usize,
    cycle: u64,
    /// Packets that were received and wait for the queue's next turn: its packets are dear, and others have
    /// some too.
    held: Vec<Packet>,
    /// In the epoll set under this descriptor, which is its token too.
    pub(crate) watched: Option<RawFd>,
    /// That descriptor was readable, and nobody has told the queue.
    fired: bool,
}

impl RxSlot {
    /// A queue that no worker has polled yet.
    pub(crate) fn new(queue: Box<dyn RxQueue>, port: u32, index: usize, shared: Arc<RxShared>) -> Self {
        Self {
            look: queue.asks_kernel().then(Look::default),
            queue,
            port,
            index,
            counters: Arc::default(),
            shared,
            dropped_seen: 0,
            turn: Turn::default(),
            budget: 0,
            cycle: 0,
            held: Vec::new(),
            watched: None,
            fired: false,
        }
    }
}

impl RxSlot {
    /// Appends up to `most` packets to `burst`, those that were held first. Returns how many, and whether
    /// there may be more.
    fn take(&mut self, most: usize, pool: &mut Pool, burst: &mut Burst, spare: &mut Burst) -> (usize, bool) {
        if self.held.is_empty() && most >= BURST - burst.len() {
            let room = BURST - burst.len();
            let n = self.queue.rx(pool, burst);
            return (n, n == room);
        }
        let mut full = true;
        if self.held.is_empty() {
            let n = self.queue.rx(pool, spare);
            full = n == BURST;
            self.held.extend(spare.drain(..));
        }
        let n = most.min(self.held.len()).min(BURST - burst.len());
        burst.extend(self.held.drain(..n));
        (n, full || !self.held.is_empty())
    }
}

/// What a lookup chose for a packet of the burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Choice {
    /// A program of the cache.
    Cached(u32),
    /// A program of this burst only.
    Once(u16),
    /// Dropped already.
    Gone,
}

impl Choice {
    /// What is to be run.
    #[inline]
    fn program<'a>(self, cache: &'a Cache, once: &'a [Arc<Program>]) -> Option<&'a Program> {
        match self {
            Self::Cached(n) => cache.program(n),
            Self::Once(n) => once.get(usize::from(n)).map(|p| &**p),
            Self::Gone => None,
        }
    }
}

/// Packets of one run for which the lookup chose the same.
#[derive(Clone, Copy, Debug)]
struct Group {
    first: u16,
    end: u16,
    /// The run's number.
    run: u16,
    longest: u32,
    choice: Choice,
    /// Whether another run may be added to it.
    merges: Merges,
}

impl Group {
    /// All of a run, or what is left of it.
    fn of(run: &Run, r: usize, choice: Choice) -> Self {
        Self {
            first: run.first,
            end: run.end,
            run: u16::try_from(r).expect("a burst has fewer packets"),
            longest: run.longest,
            choice,
            merges: Merges::No,
        }
    }
}

/// A receive queue's part of a burst.
#[derive(Clone, Copy)]
struct Source {
    /// Its place in the list of queues.
    slot: usize,
    /// Packets.
    packets: usize,
    /// Cycles that receiving them took.
    cycles: u64,
}

/// Scratch space for one burst, reused.
struct Scratch {
    /// The type of the first header of the burst's packets. Queues receive Ethernet frames only.
    packet_type: u32,
    /// What its packets carry; queues receive such as carry nothing.
    carried: Option<Box<FlowKey>>,
    /// Empty but while a queue is read that is to have a short turn.
    spare: Burst,
    sources: Vec<Source>,
    /// Stages that are in no use.
    #[expect(clippy::vec_box, reason = "they are moved in and out")]
    spare_stages: Vec<Box<Stage>>,
    /// Lookups that are left to the packet at hand, and its copies.
    lookups: usize,
    /// Cycles that translations took while programs ran.
    translated: u64,
    translation: Translation,
    /// Of the packet that is translated for; away meanwhile.
    room: Option<Box<Room>>,
}

/// The thread's state.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    counters: Arc<WorkerCounters>,
    rx: Vec<RxSlot>,
    /// What the queues of each port may take together ([`turn`]).
    budgets: Vec<PortBudget>,
    /// Number of the round over the queues.
    round: u64,
    /// Until then queues of which each look is dear are looked at now and then only ([`look`]).
    lively: u64,
    /// When the kernel is asked for all of those at once.
    question: Look,
    /// Queues that had more packets than a turn took, and queues that had packets, in the last round.
    full: usize,
    active: usize,
    engine: Engine,
    cache: Cache,
    /// Programs of this burst only.
    once: Vec<Arc<Program>>,
    scratch: Scratch,
    /// The tunnel that the packet at hand came out of.
    popped: Box<FlowKey>,
    /// Segments of frames from tunnels that wait for others.
    frames: Frames,
    /// Packets that wait for a neighbour.
    waiting: waiting::Waiting,
    owed: owed::Owed,
    commands: Consumer<Command>,
    /// What the revalidator found about entries (slot, id): of no use any more, or (with a cached
    /// translation) right again.
    findings: VecDeque<(u32, u64, Option<Arc<CachedTranslation>>)>,
    /// When findings were acted on last, and cycles that they may take now.
    tidied: u64,
    tidy_credit: u64,
    bell: Arc<EventFd>,
    epoll: Epoll,
    wait: wait::Wait,
    /// Someone waits for one whole round over the receive queues.
    syncing: Vec<(std::sync::mpsc::Sender<Reply>, u32)>,
    sorted_ms: u64,
    /// [`Shared::inv_prob`] as the cache was told.
    inv_prob: u32,
    pinned: bool,
    stop: bool,
}

/// What a worker is made of.
pub(crate) struct Parts {
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
        let watch = Watch::new(Arc::clone(&p.shared.watched));
        Ok(Self {
            engine: Engine {
                shared: Arc::clone(&p.shared),
                counters: Arc::clone(&p.counters),
                tx: TxTable::watched(watch),
                pool: p.pool,
                upcalls: p.upcalls,
                burst: Burst::new(),
                copies: Vec::new(),
                recirc: None,
                tracked: Tracked::new(),
                resumed: Vec::new(),
                random: Tsc::now() | 1,
                now_ms: 0,
            },
            shared: p.shared,
            counters: p.counters,
            rx: Vec::new(),
            budgets: Vec::new(),
            round: 0,
            lively: 0,
            question: Look::default(),
            full: 0,
            active: 0,
            cache: p.cache,
            once: Vec::new(),
            popped: Box::default(),
            scratch: Scratch {
                packet_type: heddle_flow::packet_type::ETHERNET,
                carried: None,
                spare: Burst::new(),
                sources: Vec::new(),
                spare_stages: Vec::new(),
                lookups: 0,
                translated: 0,
                translation: Translation::default(),
                room: None,
            },
            frames: Frames::default(),
            waiting: waiting::Waiting::default(),
            owed: owed::Owed::default(),
            commands: p.commands,
            findings: VecDeque::new(),
            tidied: Tsc::now(),
            tidy_credit: 0,
            bell: p.bell,
            epoll,
            wait: wait::Wait::default(),
            syncing: Vec::new(),
            sorted_ms: 0,
            inv_prob: crate::shared::UNSET,
            pinned: p.pinned,
            stop: false,
        })
    }

    /// Runs until told to stop.
    pub(crate) fn run(&mut self) {
        let (mut t0, mut own) = (Tsc::now(), Own::default());
        while !self.stop {
            self.run_commands();
            self.maintain();
            let perf = self.shared.perf_metrics.load(Relaxed);
            let start = perf.then(|| Start::of(&self.counters));
            let got = self.poll_all(t0);
            self.settle();
            let t1 = Tsc::now();
            let c = &self.counters;
            c.iterations.add(1);
            let told = start.is_some_and(|start| {
                let spent = (t1.wrapping_sub(t0), got as u64);
                c.perf
                    .iteration(c, &mut own, start, spent, (t1, &self.shared.suspects))
            });
            if got > 0 {
                c.iterations_busy.add(1);
                c.cycles_busy.add(t1.wrapping_sub(t0));
                c.usage.add(self.engine.now_ms, t1.wrapping_sub(t0));
                let max = self.shared.spin_cycles.load(Relaxed);
                self.wait.busy(got, (t0, t1), max);
            } else {
                c.cycles_idle.add(t1.wrapping_sub(t0));
                self.idle(t0, t1);
            }
            t0 = if told { Tsc::now() } else { t1 };
            if self.wait.slept() {
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
        self.expire_segments();
        self.end_waiting();
        if self.findings.is_empty() {
            return self.reap();
        }
        let begin = Tsc::now();
        let gained = begin.wrapping_sub(self.tidied) >> FINDINGS_SHARE;
        self.tidied = begin;
        self.tidy_credit = (self.tidy_credit + gained).min(FINDINGS_CREDIT);
        let most = match self.active {
            0 => FINDINGS_STEP,
            _ if self.tidy_credit < FINDINGS_CREDIT / 2 => 0,
            _ => FINDINGS_STEP_BUSY,
        };
        for _ in 0..most {
            match self.findings.pop_front() {
                None => break,
                Some((slot, id, None)) => self.cache.evict(slot, id),
                Some((slot, id, Some(cached))) => self.cache.adopt(slot, id, &cached),
            }
        }
        if self.findings.is_empty() && self.findings.capacity() > 1 << 16 {
            self.findings = VecDeque::new();
        }
        self.reap();
        let spent = Tsc::now().wrapping_sub(begin);
        self.tidy_credit = self.tidy_credit.saturating_sub(spent);
    }

    fn reap(&mut self) {
        let n = self
            .cache
            .reap(if self.active == 0 { REAPED } else { REAPED_BUSY });
        if n > 0 {
            if self.cache.wants_revalidator() {
                self.shared.wake_revalidator();
            }
            self.shared.n_flows.fetch_sub(n, Relaxed);
            self.counters.flows.set(self.cache.n_entries() as u64);
            self.counters.masks.set(self.cache.n_masks() as u64);
        }
    }

    /// Shows the queues' drop counters to the control side, where they have changed.
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
    /// Its entries leave with it; the revalidator sees that nobody holds them any more.
    fn drop(&mut self) {
        self.shared.n_flows.fetch_sub(self.cache.n_entries(), Relaxed);
    }
}
