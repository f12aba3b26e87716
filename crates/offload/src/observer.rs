//! Keeps the back end's flows equal to the revalidator's, and gives its counts back.
//!
//! **Invariants.** Each flow that the revalidator reported has one record: installed, or waiting with a
//! reason. The back end has exactly the installed ones. Packets that it counted are given to the revalidator
//! once: by the reply to `changed` or `gone` of their flow, or by `counters`. If this module itself takes a
//! flow out, the next of these calls gives them.
//!
//! **Threads.** The revalidator calls under its lock; commands read under this module's. No thread holds this
//! module's lock while it waits for the revalidator.

use crate::conns::{Conns, zones};
use crate::policy::Weight;
use crate::{Backend, Handle, Op, Policy, PortLink, Rule, Why};
use heddle_conntrack::Conntrack;
use heddle_datapath_api::{Action, FlowCounts, FlowId, FlowObserver, ObservedFlow, PortCounts, PortNo};
use heddle_flow::{FlowKey, FlowMask};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// Flows and a back end; clones share them. One clone is given to the datapath as its observer.
#[derive(Clone)]
pub struct Offload(Arc<Mutex<Inner>>);

impl fmt::Debug for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offload").finish_non_exhaustive()
    }
}

/// One flow that the revalidator reported.
struct Record {
    id: FlowId,
    rule: Result<Box<Rule>, Why>,
    /// `None`: it is installed.
    waits: Option<Why>,
    weight: Weight,
    /// Packets that workers had counted at the last look.
    heard: u64,
    /// Counted by the back end and not given to the revalidator yet.
    owed: FlowCounts,
}

struct Inner {
    backend: Box<dyn Backend>,
    policy: Policy,
    /// Records by handle.
    records: Vec<Option<Record>>,
    free: Vec<Handle>,
    by_id: HashMap<FlowId, Handle>,
    installed: usize,
    /// Flows that were waiting because the back end was full, at the last round.
    crowded: bool,
    stats: Stats,
    /// Packets that ports received and sent in the back end, with the index of their devices.
    ports: HashMap<PortNo, (u32, PortCounts)>,
    /// Ports that the switch does not offer to the back end: name and reason.
    kept_ports: Vec<(String, String)>,
    /// Ports whose packets do not pass the kernel's stack.
    bypassing: HashSet<PortNo>,
    /// `None`: it has no connections.
    conns: Option<Conns>,
    /// Flows of an earlier process stay, although changes are confirmed.
    hold_adopted: bool,
    /// All packets are to pass workers.
    paused: bool,
    clock: Box<dyn Fn() -> u64 + Send>,
}

/// Numbers of the offload, for people.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Flows that the revalidator has reported.
    pub told: u64,
    /// Flows that are in the back end.
    pub offloaded: u64,
    /// Number of installations.
    pub installs: u64,
    /// Number of changes in place.
    pub changes: u64,
    /// Number of removals.
    pub removals: u64,
    /// Number of removals in favour of a heavier flow.
    pub displaced: u64,
    /// Packets that rules of the pipeline drop.
    pub dropped: u64,
    /// Packets that the back end forwarded.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Connections that are in the back end.
    pub connections: u64,
}

/// Offload state of one flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Explained {
    /// The flow is in the back end of this name.
    Offloaded(&'static str),
    /// The flow is not in the back end, for this reason.
    Waits(Why),
    /// The next pass of the revalidator will report the flow.
    Unknown,
}

fn sum(all: &mut FlowCounts, n: FlowCounts) {
    all.packets += n.packets;
    all.bytes += n.bytes;
    all.used_ms = all.used_ms.max(n.used_ms);
    all.tcp_flags |= n.tcp_flags;
}

/// Counts packets that the back end forwarded by a rule: for all, and for the ports of the rule.
fn count(
    stats: &mut Stats,
    ports: &mut HashMap<PortNo, (u32, PortCounts)>,
    rule: Option<&Rule>,
    n: FlowCounts,
) {
    let Some(rule) = rule.filter(|_| n.packets > 0) else {
        return;
    };
    if rule.drops {
        stats.dropped += n.packets;
    }
    // Each stage counts its packets; they came in once.
    let first = rule.key.recirc == 0 && !rule.tunnel;
    if first {
        stats.packets += n.packets;
        stats.bytes += n.bytes;
    }
    if let Some((_, p)) = ports.get_mut(&rule.in_port).filter(|_| first) {
        p.rx_packets += n.packets;
        p.rx_bytes += n.bytes;
    }
    const TAG_BYTES: u64 = 4;
    let mut bytes = n.bytes;
    for op in &rule.ops {
        match op {
            Op::PushVlan(_) => bytes += TAG_BYTES * n.packets,
            Op::PopVlan => bytes = bytes.saturating_sub(TAG_BYTES * n.packets),
            Op::Encap => bytes += rule.outer.as_ref().map_or(0, |o| o.header.len() as u64) * n.packets,
            Op::Output(no) => {
                if let Some((_, p)) = ports.get_mut(no) {
                    p.tx_packets += n.packets;
                    p.tx_bytes += bytes;
                }
            }
            _ => {}
        }
    }
}

impl Offload {
    /// Flows for this back end, and connections of this tracker, which takes in those that an earlier process
    /// left. `clock`: milliseconds of the datapath's clock, which is the tracker's.
    pub fn new(
        backend: Box<dyn Backend>,
        tracker: Option<Arc<Conntrack>>,
        policy: Policy,
        clock: impl Fn() -> u64 + Send + 'static,
    ) -> Self {
        let conns = tracker.and_then(|tracker| {
            tracker.set_end_offload(backend.end_conns()?);
            let left = backend.adopted_conns();
            let taken = left.iter().filter(|c| tracker.adopt(clock(), c)).count();
            if taken > 0 {
                log::info!(target: "netdev_offload", "{taken} established connections of an earlier process are tracked on");
            }
            Some(Conns::new(tracker))
        });
        Self(Arc::new(Mutex::new(Inner {
            backend,
            policy,
            records: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::new(),
            installed: 0,
            crowded: false,
            stats: Stats::default(),
            ports: HashMap::new(),
            kept_ports: Vec::new(),
            bypassing: HashSet::new(),
            conns,
            hold_adopted: false,
            paused: false,
            clock: Box::new(clock),
        })))
    }
    /// These are the ports now: flows of those that changed are installed anew, or for the first time.
    pub fn set_ports(&self, ports: &[PortLink]) {
        self.0.lock().set_ports(ports);
    }
    /// Ports that the back end is not to have, to be shown: name and reason.
    pub fn set_kept_ports(&self, kept: Vec<(String, String)>) {
        self.0.lock().kept_ports = kept;
    }
    /// Ports of AF_XDP: the reason why no back end has their flows.
    pub fn set_bypassing_ports(&self, ports: HashSet<PortNo>) {
        self.0.lock().bypassing = ports;
    }
    /// The offload state of a flow.
    pub fn explain(&self, id: FlowId) -> Explained {
        self.0.lock().explain(id)
    }
    /// The back end's remark about a flow that it has, for people.
    pub fn note(&self, key: &FlowKey, mask: &FlowMask, actions: &[Action]) -> Option<String> {
        let wanted = Rule::new(key, mask, actions).ok()?;
        let inner = self.0.lock();
        let is_it =
            |r: &Record| r.waits.is_none() && r.rule.as_ref().is_ok_and(|rule| rule.has_match_of(&wanted));
        let at = inner.records.iter().position(|r| r.as_ref().is_some_and(is_it))?;
        inner.backend.note(Handle::try_from(at).ok()?)
    }
    /// Name and counters of the back end, with the numbers of this module.
    pub fn stats(&self) -> (&'static str, Stats, Vec<(String, u64)>) {
        let inner = self.0.lock();
        let stats = Stats {
            told: inner.by_id.len() as u64,
            offloaded: inner.installed as u64,
            connections: inner.conns.as_ref().map_or(0, |c| c.len() as u64),
            ..inner.stats
        };
        (inner.backend.name(), stats, inner.backend.stats())
    }
    /// Ports that are left to workers, by the switch or by the back end: name and reason.
    pub fn left_ports(&self) -> Vec<(String, String)> {
        let inner = self.0.lock();
        let mut all = inner.kept_ports.clone();
        all.extend(inner.backend.left_ports());
        all
    }
    /// Ports that a back end serves in a way that is to be shown: name, place and reason.
    pub fn served_ports(&self) -> Vec<(String, String)> {
        self.0.lock().backend.served_ports()
    }
    /// The back ends, in the order in which flows are offered to them. Each has a name, and the ports whose
    /// flows it may have, with the index of the port's device.
    pub fn providers(&self) -> Vec<(&'static str, Vec<(PortNo, u32)>)> {
        let inner = self.0.lock();
        let with_index = |no: PortNo| Some((no, inner.ports.get(&no)?.0));
        let each =
            |(name, ports): (_, Vec<PortNo>)| (name, ports.into_iter().filter_map(with_index).collect());
        inner.backend.providers().into_iter().map(each).collect()
    }
    /// Number of waiting flows by reason, in descending order.
    pub fn waiting(&self) -> Vec<(Why, usize)> {
        let inner = self.0.lock();
        let mut all: HashMap<Why, usize> = HashMap::new();
        for why in inner.records.iter().flatten().filter_map(|r| r.waits) {
            *all.entry(why).or_default() += 1;
        }
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by_key(|(why, n)| (std::cmp::Reverse(*n), why.to_string()));
        all
    }
    /// Whether entries of an earlier process stay in the back end although changes are confirmed. They do
    /// until flows are restored.
    pub fn hold_adopted(&self, hold: bool) {
        self.0.lock().hold_adopted = hold;
    }
    /// Whether all packets are to pass workers for now, where a capture sees them.
    pub fn set_paused(&self, paused: bool) {
        self.0.lock().set_paused(paused);
    }
    /// Takes out entries that an earlier process left in the back end and that no flow of this process has
    /// confirmed.
    pub fn drop_adopted(&self) {
        self.0.lock().backend.drop_adopted();
    }
    /// Removes the devices that the back end has made for this process, all at once. Otherwise the kernel
    /// removes them one by one when the process ends, which takes long.
    pub fn remove_devices(&self) {
        self.0.lock().backend.remove_devices();
    }
    /// Ends the back end's work for good: all packets go up, or take the path that they had without it.
    pub fn shutdown(&self) {
        let inner = &mut *self.0.lock();
        let now_ms = (inner.clock)();
        if let Some(conns) = &mut inner.conns {
            conns.clear(inner.backend.as_mut(), now_ms);
        }
        inner.backend.shutdown();
    }
}

impl Inner {
    fn record(&mut self, at: Handle) -> Option<&mut Record> {
        self.records.get_mut(at as usize)?.as_mut()
    }
    fn at(&self, id: FlowId) -> Option<Handle> {
        self.by_id.get(&id).copied()
    }
    fn limit(&self) -> usize {
        self.policy.most.min(self.backend.capacity())
    }
    /// Installs a flow that waits, if it can be.
    fn install(&mut self, at: Handle) {
        let full = self.installed >= self.limit();
        let Some(record) = self.records.get_mut(at as usize).and_then(Option::as_mut) else {
            return;
        };
        let done = match &record.rule {
            Err(why) => Err(*why),
            Ok(_) if self.paused => Err(Why::Paused),
            Ok(_) if full => Err(Why::Full),
            Ok(rule) => self.backend.install(at, rule).map_err(|why| {
                let bypasses = |no| self.bypassing.contains(&no);
                match why {
                    Why::InPort | Why::OutPort if bypasses(rule.in_port) || rule.outputs().any(bypasses) => {
                        Why::Afxdp
                    }
                    why => why,
                }
            }),
        };
        record.waits = done.err();
        match record.waits {
            None => {
                self.installed += 1;
                self.stats.installs += 1;
            }
            Some(why) => self.crowded |= why.may_pass(),
        }
    }
    fn install_if_room(&mut self, at: Handle) {
        if self.installed < self.limit() {
            self.install(at);
        }
    }
    /// Changes an installed flow to another rule of the same match, or installs it once more. Its counts are
    /// owed.
    fn change(&mut self, at: Handle, new: Option<Box<Rule>>) {
        let Some(record) = self.records.get_mut(at as usize).and_then(Option::as_mut) else {
            return;
        };
        let Ok(old) = &record.rule else {
            return;
        };
        let (n, done) = self.backend.change(at, new.as_ref().unwrap_or(old));
        sum(&mut record.owed, n);
        count(&mut self.stats, &mut self.ports, Some(old), n);
        record.waits = done.err();
        if let Some(new) = new {
            record.rule = Ok(new);
            self.stats.changes += 1;
        }
        if let Some(why) = record.waits {
            self.crowded |= why.may_pass();
            self.installed -= 1;
            self.stats.removals += 1;
        }
    }
    /// Takes a flow out that is installed. Its counts are owed.
    fn take_out(&mut self, at: Handle, why: Why) {
        let Some(record) = self.records.get_mut(at as usize).and_then(Option::as_mut) else {
            return;
        };
        if record.waits.is_none() {
            record.waits = Some(why);
            let n = self.backend.remove(at);
            sum(&mut record.owed, n);
            let rule = record.rule.as_ref().ok().map(Box::as_ref);
            count(&mut self.stats, &mut self.ports, rule, n);
            self.installed -= 1;
            self.stats.removals += 1;
        }
    }
    /// Takes all flows out, or installs those that were taken out.
    fn set_paused(&mut self, paused: bool) {
        if std::mem::replace(&mut self.paused, paused) == paused {
            return;
        }
        let concerned = |r: &Record| match paused {
            true => r.waits.is_none(),
            false => r.waits == Some(Why::Paused),
        };
        let all: Vec<Handle> = (0..)
            .zip(&self.records)
            .filter_map(|(at, r)| r.as_ref().filter(|r| concerned(r)).map(|_| at))
            .collect();
        for at in all {
            match paused {
                true => self.take_out(at, Why::Paused),
                false => self.install(at),
            }
        }
    }
    fn owed(&mut self, at: Handle) -> FlowCounts {
        self.record(at)
            .map_or(FlowCounts::default(), |r| std::mem::take(&mut r.owed))
    }
    fn set_ports(&mut self, ports: &[PortLink]) {
        let mut old = std::mem::take(&mut self.ports);
        for p in ports {
            let kept = old.remove(&p.no).filter(|(ifindex, _)| *ifindex == p.ifindex);
            self.ports
                .insert(p.no, kept.unwrap_or((p.ifindex, PortCounts::default())));
        }
        let changed = self.backend.set_ports(ports);
        if changed.is_empty() {
            return;
        }
        let touches = |rule: &Rule| {
            let is = |no: PortNo| changed.contains(&no);
            is(rule.in_port) || rule.outputs().any(is)
        };
        let of = |r: &Record| r.rule.as_ref().is_ok_and(|rule| touches(rule));
        let all: Vec<Handle> = (0..)
            .zip(&self.records)
            .filter_map(|(at, r)| r.as_ref().filter(|r| of(r)).map(|_| at))
            .collect();
        // All are taken out before the first comes in again: places may have new meanings.
        for at in &all {
            self.take_out(*at, Why::InPort);
        }
        all.iter().for_each(|at| self.install(*at));
    }
    fn explain(&self, id: FlowId) -> Explained {
        let record = self.at(id).and_then(|at| self.records.get(at as usize)?.as_ref());
        match record.map(|r| r.waits) {
            None => Explained::Unknown,
            Some(None) => {
                let at = self.at(id).unwrap_or(Handle::MAX);
                Explained::Offloaded(self.backend.backend_name(at))
            }
            Some(Some(why)) => Explained::Waits(why),
        }
    }
    /// Connections come and go.
    fn turn_conns(&mut self) {
        let now_ms = (self.clock)();
        let Some(conns) = self.conns.as_mut().filter(|c| c.due(now_ms)) else {
            return;
        };
        let installed = self.records.iter().flatten().filter(|r| r.waits.is_none());
        let zones = zones(installed.filter_map(|r| r.rule.as_deref().ok()));
        conns.turn(self.backend.as_mut(), now_ms, &zones);
    }
    /// The round is over: heavy ones take the place of light ones.
    fn turn(&mut self) {
        self.records.iter_mut().flatten().for_each(|r| r.weight.turn());
        if !std::mem::take(&mut self.crowded) {
            return;
        }
        let (mut waiting, mut inside, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for (at, r) in (0..).zip(&self.records) {
            let Some(r) = r else { continue };
            match r.waits {
                None => inside.push((at, r.weight.worth())),
                Some(why) if why.may_pass() => waiting.push((at, r.weight.worth())),
                Some(_) => {}
            }
        }
        waiting.sort_by_key(|(_, worth): &(Handle, u64)| std::cmp::Reverse(*worth));
        let mut left = waiting.into_iter();
        while self.installed < self.limit()
            && let Some((at, worth)) = left.next()
        {
            self.install(at);
            if self
                .record(at)
                .is_some_and(|r| r.waits.is_some_and(Why::may_pass))
            {
                refused.push((at, worth));
                break;
            }
        }
        let mut waiting: Vec<_> = refused.into_iter().chain(left).collect();
        for (heavy, light) in self.policy.exchange(&mut waiting, &mut inside) {
            self.take_out(light, Why::Full);
            self.install(heavy);
            self.stats.displaced += 1;
            // The back end may refuse the heavy one: then the light one returns.
            self.install_if_room(light);
        }
        let waits = |r: &Record| r.waits.is_some_and(Why::may_pass);
        self.crowded = self.records.iter().flatten().any(waits);
    }
}

impl FlowObserver for Offload {
    fn added(&mut self, flow: &ObservedFlow<'_>) {
        let inner = &mut *self.0.lock();
        let at = inner.free.pop().unwrap_or_else(|| {
            inner.records.push(None);
            Handle::try_from(inner.records.len() - 1).unwrap_or(Handle::MAX)
        });
        let rule = Rule::of(flow).map(Box::new);
        let record = Record {
            id: flow.id,
            waits: Some(rule.as_ref().err().copied().unwrap_or(Why::Full)),
            rule,
            weight: Weight::default(),
            heard: 0,
            owed: FlowCounts::default(),
        };
        inner.records[at as usize] = Some(record);
        inner.by_id.insert(flow.id, at);
        inner.install(at);
    }
    fn changed(&mut self, flow: &ObservedFlow<'_>) -> FlowCounts {
        let inner = &mut *self.0.lock();
        let Some(at) = inner.at(flow.id) else {
            return FlowCounts::default();
        };
        let new = Rule::of(flow).map(Box::new);
        let Some(record) = inner.records.get_mut(at as usize).and_then(Option::as_mut) else {
            return FlowCounts::default();
        };
        let was_in = record.waits.is_none();
        match &new {
            Ok(rule) if was_in && record.rule.as_ref().is_ok_and(|r| r.has_match_of(rule)) => {
                inner.change(at, new.ok());
            }
            _ => {
                inner.take_out(at, Why::Full);
                if let Some(record) = inner.record(at) {
                    record.rule = new;
                }
                inner.install(at);
            }
        }
        inner.owed(at)
    }
    fn gone(&mut self, id: FlowId) -> FlowCounts {
        let inner = &mut *self.0.lock();
        let Some(at) = inner.by_id.remove(&id) else {
            return FlowCounts::default();
        };
        inner.take_out(at, Why::Full);
        let owed = inner.owed(at);
        inner.records[at as usize] = None;
        inner.free.push(at);
        owed
    }
    fn counters(&mut self, f: &mut dyn FnMut(FlowId, FlowCounts)) {
        let inner = &mut *self.0.lock();
        let now_ms = (inner.clock)();
        let Inner {
            backend,
            records,
            stats,
            ports,
            ..
        } = inner;
        backend.counters(now_ms, &mut |at, n| {
            if let Some(r) = records.get_mut(at as usize).and_then(Option::as_mut) {
                sum(&mut r.owed, n);
                r.weight.add(n.packets);
                count(stats, ports, r.rule.as_ref().ok().map(Box::as_ref), n);
            }
        });
        for r in records.iter_mut().flatten() {
            let owed = std::mem::take(&mut r.owed);
            if owed != FlowCounts::default() {
                f(r.id, owed);
            }
        }
    }
    fn seen(&mut self, id: FlowId, packets: u64) {
        let inner = &mut *self.0.lock();
        if let Some(record) = inner.at(id).and_then(|at| inner.record(at)) {
            // Several workers may have the entry: only the highest of their counts is used.
            let more = packets.saturating_sub(record.heard);
            record.heard = record.heard.max(packets);
            record.weight.add(more);
        }
    }
    fn confirm(&mut self) {
        let mut inner = self.0.lock();
        if !inner.hold_adopted {
            inner.backend.drop_adopted();
        }
        inner.backend.settle();
    }
    fn port_counts(&self, no: PortNo) -> PortCounts {
        self.0
            .lock()
            .ports
            .get(&no)
            .map_or(PortCounts::default(), |(_, n)| *n)
    }
    fn dropped(&self) -> u64 {
        self.0.lock().stats.dropped
    }
    fn pass_ends(&mut self) {
        let inner = &mut *self.0.lock();
        inner.turn();
        for at in inner.backend.again() {
            inner.change(at, None);
        }
        inner.turn_conns();
    }
    fn place(&self, id: FlowId) -> Option<&'static str> {
        match self.explain(id) {
            Explained::Offloaded(name) => Some(name),
            Explained::Waits(_) | Explained::Unknown => None,
        }
    }
    fn waits(&self, id: FlowId) -> Option<String> {
        match self.explain(id) {
            Explained::Waits(why) => Some(why.to_string()),
            Explained::Offloaded(_) | Explained::Unknown => None,
        }
    }
}
