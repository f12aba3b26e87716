//! A port whose queues are in memory, and a pipeline that is a list of rules.

use crate::Datapath;
use heddle_classifier::MiniMatch;
use heddle_datapath_api::{
    Action, Changes, Credit, Dep, DropKind, Generations, PortNo, Purpose, Request, Translate, Translation,
};
use heddle_flow::FlowKey;
use heddle_flow::key::Match;
use heddle_packet::{Burst, Csum, Packet, Pool, mark_header};
use heddle_port::{Port, PortError, PortStatus, RxQueue, TxCounts, TxQueue, WakeFd, segment};
use heddle_sync::Published;
use heddle_sys::EventFd;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

#[derive(Default)]
struct Wires {
    to_switch: Mutex<VecDeque<Vec<u8>>>,
    from_switch: Mutex<Vec<Vec<u8>>>,
    /// The worker has taken packets and has not polled again: they may still be in flight.
    in_hand: AtomicBool,
    /// The port reports that received packets have right checksums.
    checked: AtomicBool,
    /// Marks cross the port in headers.
    carries_marks: AtomicBool,
    /// This packet arrives at each poll of the worker.
    endless: Mutex<Option<Vec<u8>>>,
    /// Number of polls by the worker.
    looks: AtomicU64,
}

/// A port with one receive queue.
pub(crate) struct FakePort {
    name: String,
    wires: Arc<Wires>,
    bell: Arc<EventFd>,
    pub(crate) mtu: u32,
    pub(crate) opened: AtomicU64,
    /// The port cannot be opened for sending.
    pub(crate) refuses: AtomicBool,
}

impl FakePort {
    pub(crate) fn new(name: &str) -> Arc<Self> {
        Self::with_mtu(name, 1500)
    }
    pub(crate) fn with_mtu(name: &str, mtu: u32) -> Arc<Self> {
        let bell = Arc::new(EventFd::new().unwrap());
        Arc::new(Self {
            name: name.into(),
            wires: Arc::default(),
            bell,
            mtu,
            opened: 0.into(),
            refuses: (name == "bad").into(),
        })
    }
    /// A port with the same wires: packets of both are in one list, in the order in which they were sent.
    pub(crate) fn twin(&self, name: &str) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            wires: Arc::clone(&self.wires),
            bell: Arc::new(EventFd::new().unwrap()),
            mtu: self.mtu,
            opened: 0.into(),
            refuses: (name == "bad").into(),
        })
    }
    /// Sets whether the port reports right checksums of received packets.
    pub(crate) fn set_checked(&self, on: bool) {
        self.wires.checked.store(on, Relaxed);
    }
    /// Sets whether marks cross the port in headers, as they cross a tap.
    pub(crate) fn carry_marks(&self, on: bool) {
        self.wires.carries_marks.store(on, Relaxed);
    }
    /// From now on this packet arrives at each poll of the worker; `None`: no more.
    pub(crate) fn set_endless(&self, packet: Option<Vec<u8>>) {
        *self.wires.endless.lock() = packet;
        self.bell.notify();
    }
    /// Number of times that the worker has polled.
    pub(crate) fn looks(&self) -> u64 {
        self.wires.looks.load(Relaxed)
    }
    /// Sends packets to the switch.
    pub(crate) fn send(&self, packets: impl IntoIterator<Item = Vec<u8>>) {
        self.wires.to_switch.lock().extend(packets);
        self.bell.notify();
    }
    /// Blocks the worker of the queue for `time` at its next poll; returns when it is blocked.
    pub(crate) fn stall(self: &Arc<Self>, time: Duration) -> std::thread::JoinHandle<()> {
        let port = Arc::clone(self);
        let (tell, held) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let _held = port.wires.to_switch.lock();
            port.bell.notify();
            tell.send(()).unwrap();
            std::thread::sleep(time);
        });
        held.recv().unwrap();
        // Time for the worker to poll.
        std::thread::sleep(Duration::from_millis(200));
        thread
    }
    /// Waits until the switch has taken and forwarded all packets, a bounded time.
    pub(crate) fn drained(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let done = || self.wires.to_switch.lock().is_empty() && !self.wires.in_hand.load(Relaxed);
        while !done() {
            assert!(Instant::now() < deadline, "packets are left");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    /// Returns the packets that the switch has sent since the last call.
    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.wires.from_switch.lock())
    }
    /// Waits until the switch has sent at least `n` packets, a bounded time.
    pub(crate) fn wait(&self, n: usize) -> Vec<Vec<u8>> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.wires.from_switch.lock().len() < n {
            assert!(
                Instant::now() < deadline,
                "{} of {n} packets",
                self.wires.from_switch.lock().len()
            );
            std::thread::sleep(Duration::from_micros(200));
        }
        self.take()
    }
}

impl Port for FakePort {
    fn name(&self) -> &str {
        &self.name
    }
    fn kind(&self) -> &'static str {
        "fake"
    }
    fn open_rx(&self, _: usize) -> Result<Vec<Box<dyn RxQueue>>, PortError> {
        // The port's first queue has a reference to the bell as long as it lives.
        if self.takes_over() && Arc::strong_count(&self.bell) > 1 {
            return Err(PortError::Config("too many at once".into()));
        }
        self.opened.fetch_add(1, Relaxed);
        let q = FakeRx {
            wires: Arc::clone(&self.wires),
            bell: Arc::clone(&self.bell),
            polls_kernel: self.name.starts_with("tap"),
            drops: [("runt", 0)],
        };
        Ok(vec![Box::new(q)])
    }
    fn takes_over(&self) -> bool {
        self.name == "jealous"
    }
    fn open_tx(&self, _: usize, _: usize) -> Result<Box<dyn TxQueue>, PortError> {
        if self.refuses.load(Relaxed) {
            return Err(PortError::Config("cannot open".into()));
        }
        Ok(match self.name.as_str() {
            "shaper" => Box::new(Shaper {
                kept: VecDeque::new(),
                wires: Arc::clone(&self.wires),
            }),
            _ => Box::new(FakeTx(Arc::clone(&self.wires))),
        })
    }
    fn status(&self) -> PortStatus {
        PortStatus {
            mtu: self.mtu,
            ..PortStatus::default()
        }
    }
    fn set_mtu(&self, _: u32) -> Result<(), PortError> {
        Ok(())
    }
    fn set_mac(&self, _: [u8; 6]) -> Result<(), PortError> {
        Ok(())
    }
    fn set_admin(&self, _: bool) -> Result<(), PortError> {
        Ok(())
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

struct FakeRx {
    wires: Arc<Wires>,
    bell: Arc<EventFd>,
    polls_kernel: bool,
    drops: [(&'static str, u64); 1],
}

impl RxQueue for FakeRx {
    fn rx(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let mut q = self.wires.to_switch.lock();
        let before = burst.len();
        self.wires.looks.fetch_add(1, Relaxed);
        let endless = self.wires.endless.lock();
        q.extend(endless.iter().cloned());
        while !burst.is_full() {
            let Some(bytes) = q.pop_front() else { break };
            if bytes.is_empty() {
                self.drops[0].1 += 1;
                continue;
            }
            let mut p = pool.get();
            p.set_bytes(&bytes);
            if self.wires.checked.load(Relaxed) {
                p.offload.csum = Csum::Valid;
            }
            if self.wires.carries_marks.load(Relaxed) && mark_header::read(p.head()).is_some() {
                p.trust_header();
            }
            burst.push(p);
        }
        // Under the lock: otherwise a test could find the queue empty before the packets are in hand.
        self.wires.in_hand.store(burst.len() > before, Relaxed);
        burst.len() - before
    }
    fn polls_kernel(&self) -> bool {
        self.polls_kernel
    }
    fn wake_fd(&self) -> Option<WakeFd> {
        Some(WakeFd(self.bell.as_raw_fd()))
    }
    fn woken(&mut self) {
        if self.polls_kernel {
            self.bell.drain();
        }
    }
    fn arm(&mut self) -> bool {
        self.bell.drain();
        !self.wires.to_switch.lock().is_empty()
    }
    fn dropped(&self) -> &[(&'static str, u64)] {
        &self.drops
    }
}

struct FakeTx(Arc<Wires>);

impl TxQueue for FakeTx {
    fn tx(&mut self, pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
        let mut out = self.0.from_switch.lock();
        let mut n = TxCounts::default();
        for p in packets {
            n.sent += 1;
            n.bytes += p.len() as u64;
            let mark = p.mark();
            let mut send = |p: &Packet| {
                let mut bytes = p.to_vec();
                if self.0.carries_marks.load(Relaxed) && mark != 0 {
                    bytes.splice(mark_header::AT..mark_header::AT, mark_header::with(mark));
                }
                out.push(bytes);
            };
            if p.needs_cutting() {
                segment::finish(pool, p, &mut send).unwrap();
            } else {
                send(p);
            }
        }
        n
    }
}

/// Sends later, as a shaper does: each call sends some of the packets of earlier calls.
struct Shaper {
    kept: VecDeque<Packet>,
    wires: Arc<Wires>,
}

impl Shaper {
    /// Packets that one call sends.
    const RATE: usize = 8;
}

impl TxQueue for Shaper {
    fn tx(&mut self, _: &mut Pool, _: &[&Packet]) -> TxCounts {
        unreachable!("it wants packets of its own")
    }
    fn wants_ownership(&self) -> bool {
        true
    }
    fn tx_owned(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> TxCounts {
        let mut out = self.wires.from_switch.lock();
        for p in self.kept.drain(..self.kept.len().min(Self::RATE)) {
            out.push(p.to_vec());
            pool.put(p);
        }
        assert!(packets.iter().all(|p| p.segs().is_empty()));
        let counts = TxCounts {
            sent: packets.len() as u64,
            bytes: packets.iter().map(|p| p.len() as u64).sum(),
            ..TxCounts::default()
        };
        self.kept.extend(packets.drain(..));
        counts
    }
}

/// A UDP packet of IPv4 with right checksums: `last` is the last byte of both addresses' host part.
pub(crate) fn udp(src: u32, dst: u32, sport: u16, dport: u16) -> Vec<u8> {
    let mut p = vec![0; 60];
    p[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    p[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    p[12..14].copy_from_slice(&[8, 0]);
    p[14] = 0x45;
    p[17] = 46;
    p[22] = 64;
    p[23] = 17;
    p[26..30].copy_from_slice(&src.to_be_bytes());
    p[30..34].copy_from_slice(&dst.to_be_bytes());
    let c = heddle_wire::checksum::checksum(&p[14..34]);
    p[24..26].copy_from_slice(&c.to_be_bytes());
    p[34..36].copy_from_slice(&sport.to_be_bytes());
    p[36..38].copy_from_slice(&dport.to_be_bytes());
    p[39] = 26;
    p
}

/// The number of new flows' first packets that workers dropped because their queue was behind.
pub(crate) fn refused(dp: &Datapath) -> u64 {
    let all = dp.coverage();
    let of_budget = all.iter().find(|(name, _)| *name == DropKind::MissBudget.name());
    of_budget.map_or(0, |(_, n)| *n)
}

/// Counts its credits.
#[derive(Default, Debug)]
pub(crate) struct Tally {
    pub(crate) packets: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl Credit for Tally {
    fn credit(&self, packets: u64, bytes: u64, _: u64, _: u16) {
        self.packets.fetch_add(packets, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }
}

/// A rule: first match wins.
#[derive(Clone, Debug)]
pub(crate) struct ToyRule {
    pub(crate) matches: Match,
    pub(crate) actions: Vec<Action>,
    pub(crate) tally: Arc<Tally>,
}

impl ToyRule {
    pub(crate) fn new(matches: Match, actions: Vec<Action>) -> Self {
        Self {
            matches,
            actions,
            tally: Arc::default(),
        }
    }
    pub(crate) fn any(actions: Vec<Action>) -> Self {
        Self::new(Match::any(), actions)
    }
    pub(crate) fn output(no: u32) -> Self {
        Self::any(vec![Action::Output(PortNo(no))])
    }
}

type Meanwhile = Box<dyn FnOnce(&Toy) + Send>;

/// Both ports of a packet that makes [`Toy`] panic.
pub(crate) const FATAL: u16 = 6666;

/// A pipeline: one list of rules. Each index of the list has a generation slot; or all have one slot, with a
/// log.
#[derive(Default)]
pub(crate) struct Toy {
    rules: Published<Vec<ToyRule>>,
    generations: Generations,
    logged: Option<u16>,
    /// Runs in the next translation, after it has read the rules and before it returns.
    meanwhile: Mutex<Option<Meanwhile>>,
    /// Number of translations for packets.
    pub(crate) translated: AtomicU64,
    /// The key of the last translation without a packet.
    pub(crate) translated_again: Mutex<Option<FlowKey>>,
}

impl Toy {
    pub(crate) fn new(rules: Vec<ToyRule>) -> Arc<Self> {
        Arc::new(Self {
            rules: Published::new(rules),
            ..Self::default()
        })
    }
    /// A pipeline with one slot that has a log.
    pub(crate) fn logged(rules: Vec<ToyRule>) -> Arc<Self> {
        Arc::new(Self {
            rules: Published::new(rules),
            logged: Some(Generations::logged_slot_of(1)),
            ..Self::default()
        })
    }
    /// Replaces the rules, then bumps the generations of all indices.
    pub(crate) fn set(&self, rules: Vec<ToyRule>) {
        let n = rules.len().max(self.rules.get().len());
        self.rules.store(rules);
        if let Some(slot) = self.logged {
            return self.generations.bump(slot);
        }
        (0..=n).for_each(|i| self.generations.bump(Generations::slot_of(i as u64)));
    }
    /// Replaces one rule: only results that depend on its index are stale.
    pub(crate) fn replace(&self, at: usize, rule: ToyRule) {
        let mut rules = (*self.rules.get()).clone();
        let mut changes = Changes::default();
        for r in [&rules[at], &rule] {
            changes.add(&MiniMatch::new(&r.matches));
        }
        rules[at] = rule;
        self.rules.store(rules);
        if let Some(slot) = self.logged {
            return self.generations.bump_changed(slot, changes);
        }
        self.generations.bump(Generations::slot_of(at as u64));
    }
    /// Runs `what` within the next translation, after it has read the rules.
    pub(crate) fn meanwhile(&self, what: impl FnOnce(&Toy) + Send + 'static) {
        *self.meanwhile.lock() = Some(Box::new(what));
    }
    pub(crate) fn rules(&self) -> Arc<Vec<ToyRule>> {
        self.rules.get()
    }
}

impl Translate for Toy {
    fn translate(&self, request: &Request<'_>, out: &mut Translation) {
        if request.purpose == Purpose::Miss {
            self.translated.fetch_add(1, Relaxed);
        } else {
            *self.translated_again.lock() = Some(*request.key);
        }
        // The number of rules may change, so read more generations than there are rules; then the rules.
        let slot = |i| self.logged.unwrap_or(Generations::slot_of(i));
        let deps: Vec<Dep> = (0..64).map(|i| self.generations.read(slot(i))).collect();
        let rules = self.rules.get();
        let meanwhile = self.meanwhile.lock().take();
        if let Some(happens) = meanwhile {
            happens(self);
        }
        let fatal = (request.key.tp_src, request.key.tp_dst) == (FATAL, FATAL);
        assert!(!fatal, "a packet that it cannot bear");
        for (rule, dep) in rules.iter().zip(&deps) {
            out.mask.add(&rule.matches.mask);
            // Several lookups in one table depend on it once.
            if out.deps.last() != Some(dep) {
                out.deps.push(*dep);
            }
            if rule.matches.matches(request.key) {
                out.actions.extend(rule.actions.iter().cloned());
                out.credits.push(Arc::clone(&rule.tally) as Arc<dyn Credit>);
                return;
            }
        }
        out.deps.push(deps[rules.len()]);
    }
    fn generations(&self) -> &Generations {
        &self.generations
    }
}
