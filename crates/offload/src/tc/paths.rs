//! Filters of flows that track or recirculate, in chains of their own ([`super::plan`]).
//!
//! ```text
//!   chain 0              chain of that filter            chain of that one
//!   ct zone, goto  ───>  +est: rewrite, ct, goto  ───>   +est: output
//!   ...                  +est: output                    last: undo, to the miss device
//!                        last: undo, to the miss device
//! ```
//!
//! **Order.** A chain is complete before a filter leads to it. When that filter is removed, packets may still
//! be in the chain. So the chain's filters stay until [`FilterTable::settle`] has waited for these packets. A
//! packet in an empty chain would reach the host's stack.
//!
//! **Counts.** A worker counts a packet that the last filter of a chain hands over. So that packet is
//! subtracted from the counts of all filters on its path. The kernel reports the filters one after the other.
//! A count below zero waits for the next report.

use super::counts::counts_since_last;
use super::ct;
use super::flows::{FilterTable, Installed};
use super::message::{Counted, FilterId};
use super::plan::{self, PathState, Undo};
use super::ports::MISS_PRIORITY;
use super::{actions, message};
use crate::{Handle, Rule, Why};
use heddle_datapath_api::{FlowCounts, PortNo};
use heddle_sys::route_batch::RouteRequest;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage::{DelTrafficFilter, GetTrafficFilter, NewTrafficFilter};
use netlink_packet_route::tc::{TcAction, TcFilterFlowerOption as Key};
use std::collections::HashMap;
use std::sync::Arc;

/// Priority of the last filter but one: it hands over packets of established connections, translated back.
const ESTABLISHED_MISS_PRIORITY: u16 = MISS_PRIORITY - 1;
const ETH_P_ALL: u16 = 3;
/// Maximum number of chains.
const MAX_CHAINS: usize = 1 << 16;
/// Maximum number of filters of one flow.
const MAX_COPIES: usize = 256;
/// Bits of a chain's number below the era of its process.
const CHAIN_NUMBER_BITS: u32 = 20;

const TOO_MANY: Why = Why::Action("recirc (too many flows lead to it, through tc)");

/// A filter before a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entrance {
    pub(super) at: Handle,
    /// [`Installed::uncounted`] of its filter.
    pub(super) uncounted: u64,
}

/// A filter at the end of a chain.
struct Miss {
    filter_id: FilterId,
    read: Counted,
}

/// A chain.
struct Chain {
    ifindex: u32,
    in_port: PortNo,
    recirc: u32,
    place: PathState,
    /// The filters on the way, the first of them in chain 0.
    path: Vec<Entrance>,
    misses: Vec<Miss>,
    /// Keys of `copies`.
    copies: Vec<u64>,
}

/// One filter of a flow behind a recirculation, or another one than the first of a flow in chain 0.
struct Copy {
    at: Handle,
    chain: u32,
    flow: Installed,
}

/// A flow behind a recirculation.
struct StageFlow {
    rule: Arc<Rule>,
    copies: Vec<u64>,
}

#[derive(Clone, Copy)]
enum Owner {
    Copy(u64),
    /// Chain, and index among its misses.
    Miss(u32, usize),
}

/// Packets and bytes that a flow has counted and that were not given on yet.
#[derive(Clone, Copy, Default)]
struct Balance {
    packets: i64,
    bytes: i64,
}

impl Balance {
    fn add(&mut self, packets: u64, bytes: u64) {
        self.packets = self.packets.saturating_add_unsigned(packets);
        self.bytes = self.bytes.saturating_add_unsigned(bytes);
    }
    fn subtract(&mut self, packets: u64, bytes: u64) {
        self.packets = self.packets.saturating_sub_unsigned(packets);
        self.bytes = self.bytes.saturating_sub_unsigned(bytes);
    }
}

/// Chains, and the flows in them.
#[derive(Default)]
pub(super) struct Paths {
    /// Keys are the numbers of the chains.
    chains: HashMap<u32, Chain>,
    copies: HashMap<u64, Copy>,
    flows: HashMap<Handle, StageFlow>,
    /// Chains and flows by input port and recirculation id.
    chains_of: HashMap<(PortNo, u32), Vec<u32>>,
    flows_of: HashMap<(PortNo, u32), Vec<Handle>>,
    by_filter: HashMap<FilterId, Owner>,
    balances: HashMap<Handle, Balance>,
    /// Filters in chain 0 beside the flow's first one.
    others: HashMap<Handle, Vec<u64>>,
    /// Filters to which no filter leads any more.
    dying: Vec<FilterId>,
    next_chain: u32,
    next_copy: u64,
}

fn stage_of(rule: &Rule) -> (PortNo, u32) {
    (rule.in_port, rule.key.recirc)
}

fn forget<K: std::hash::Hash + Eq, V: PartialEq>(map: &mut HashMap<K, Vec<V>>, key: &K, value: &V) {
    if let Some(all) = map.get_mut(key) {
        all.retain(|v| v != value);
        if all.is_empty() {
            map.remove(key);
        }
    }
}

impl Paths {
    /// Number of chains.
    pub(super) fn len(&self) -> usize {
        self.chains.len()
    }
    /// Whether a device has chains.
    pub(super) fn has_chains(&self, ifindex: u32) -> bool {
        self.chains.values().any(|c| c.ifindex == ifindex)
    }
    fn chain_number(&mut self, era: u32) -> Option<u32> {
        if self.chains.len() >= MAX_CHAINS {
            return None;
        }
        // Eras that follow each other have other numbers, and chain 0 is none of them.
        let eras = (1 << (ct::CHAIN_BITS - CHAIN_NUMBER_BITS)) - 1;
        let era = (era % eras + 1) << CHAIN_NUMBER_BITS;
        loop {
            self.next_chain = (self.next_chain + 1) % (1 << CHAIN_NUMBER_BITS);
            let chain = era | self.next_chain;
            let used = self.chains.contains_key(&chain) || self.dying.iter().any(|f| f.chain == chain);
            if !used {
                return Some(chain);
            }
        }
    }
    /// Credits counts to a flow.
    pub(super) fn credit(&mut self, at: Handle, n: FlowCounts) {
        if n.packets > 0 {
            self.balances.entry(at).or_default().add(n.packets, n.bytes);
        }
    }
    /// Subtracts packets that a chain has handed over.
    fn debit(&mut self, chain: u32, index: usize, now: Counted) {
        let Some(chain) = self.chains.get_mut(&chain) else {
            return;
        };
        let Some(miss) = chain.misses.get_mut(index) else {
            return;
        };
        let before = std::mem::replace(&mut miss.read, now);
        let packets = now.packets.saturating_sub(before.packets);
        let bytes = now.bytes.saturating_sub(before.bytes);
        if packets == 0 {
            return;
        }
        for entrance in &chain.path {
            let balance = self.balances.entry(entrance.at).or_default();
            balance.subtract(packets, bytes + entrance.uncounted * packets);
        }
    }
    /// Counts of a filter in a chain. `false`: it is none of this process's chains.
    pub(super) fn counted(&mut self, filter_id: FilterId, now: Counted) -> bool {
        match self.by_filter.get(&filter_id).copied() {
            None => return false,
            Some(Owner::Miss(chain, index)) => self.debit(chain, index, now),
            Some(Owner::Copy(id)) => {
                if let Some(copy) = self.copies.get_mut(&id) {
                    let (at, n) = (copy.at, counts_since_last(&mut copy.flow, now, 0));
                    self.credit(at, n);
                }
            }
        }
        true
    }
    /// Takes the counts of a flow that are due.
    pub(super) fn take(&mut self, at: Handle, now_ms: u64) -> FlowCounts {
        let Some(balance) = self.balances.get_mut(&at).filter(|b| b.packets > 0) else {
            return FlowCounts::default();
        };
        let due = std::mem::take(balance);
        FlowCounts {
            packets: due.packets.unsigned_abs(),
            bytes: u64::try_from(due.bytes).unwrap_or(0),
            used_ms: now_ms,
            tcp_flags: 0,
        }
    }
    /// Takes the counts of all flows that are due.
    pub(super) fn take_all(&mut self, now_ms: u64, f: &mut dyn FnMut(Handle, FlowCounts)) {
        let due = self.balances.iter().filter(|(_, b)| b.packets > 0);
        let due: Vec<Handle> = due.map(|(at, _)| *at).collect();
        for at in due {
            f(at, self.take(at, now_ms));
        }
    }
    /// The last counts of a flow that is gone: `n`, and the packets that its chains handed over.
    pub(super) fn close(&mut self, at: Handle, n: FlowCounts) -> FlowCounts {
        if !self.balances.contains_key(&at) {
            return n;
        }
        self.credit(at, n);
        let counts = self.take(at, n.used_ms);
        self.balances.remove(&at);
        counts
    }
}

impl FilterTable {
    /// The actions of a plan, without the jump to the next chain.
    pub(super) fn actions_of(
        &mut self,
        rule: &Rule,
        plan: &plan::Plan,
        tunnel: Option<actions::IntoTunnel<'_>>,
    ) -> Result<Vec<TcAction>, Why> {
        let mut zones = HashMap::new();
        for step in &plan.steps {
            if let plan::Step::Track { zone, .. } = step {
                zones.insert(*zone, self.conns.zones_of(*zone)?);
            }
        }
        let ports = &self.ports;
        let device = |no: PortNo| ports.get(no).map(|out| out.ifindex);
        let ways = actions::Ways {
            card_only: self.policy == super::TcPolicy::SkipSw,
            tunnel,
            device: &device,
        };
        let mut all = Vec::new();
        for (n, step) in plan.steps.iter().enumerate() {
            let ends = plan.next.is_none() && n + 1 == plan.steps.len();
            match step {
                plan::Step::Ops(known, ops) => {
                    let rule = plan::rule_of(rule, known, ops);
                    all.extend(actions::steps(&rule, &ways, ends)?);
                }
                plan::Step::Track { zone, nat } => {
                    let kernel = zones.get(zone).ok_or(Why::Connection)?;
                    all.push(ct::track(kernel.forth, *nat));
                }
            }
        }
        Ok(all)
    }

    /// Makes the chain behind a filter, with its flows. Returns the chain's number.
    pub(super) fn build_chain(
        &mut self,
        ifindex: u32,
        rule: &Rule,
        (recirc, place): (u32, PathState),
        path: Vec<Entrance>,
    ) -> Result<u32, Why> {
        let miss = self.devices.get(&ifindex).and_then(|d| d.miss.as_ref());
        let miss = miss.ok_or(super::BESIDE_EBPF)?.ifindex;
        let era = self.cookie.era;
        let chain = self.paths.chain_number(era).ok_or(Why::Full)?;
        let mut misses = Vec::new();
        for (priority, keys, actions) in self.last_filters(rule, &place, miss)? {
            let filter_id = FilterId {
                ifindex,
                chain,
                priority,
                protocol: ETH_P_ALL,
                handle: 1,
            };
            let request = RouteRequest {
                message: NewTrafficFilter(filter_id.filter(keys, actions, message::SKIP_HW)),
                flags: NLM_F_CREATE | NLM_F_EXCL,
            };
            if let Err(error) = self.request(request) {
                self.delete_all(misses.iter().map(|m: &Miss| m.filter_id).collect());
                return Err(super::why(&error));
            }
            misses.push(Miss {
                filter_id,
                read: Counted::default(),
            });
        }
        for (index, miss) in misses.iter().enumerate() {
            let owner = Owner::Miss(chain, index);
            self.paths.by_filter.insert(miss.filter_id, owner);
        }
        self.count_flows(ifindex, misses.len().cast_signed());
        let stage = (rule.in_port, recirc);
        self.paths.chains_of.entry(stage).or_default().push(chain);
        self.paths.chains.insert(
            chain,
            Chain {
                ifindex,
                in_port: rule.in_port,
                recirc,
                place,
                path,
                misses,
                copies: Vec::new(),
            },
        );
        let flows = self.paths.flows_of.get(&stage).cloned().unwrap_or_default();
        for at in flows {
            // A flow that has no filter here leaves its packets to the last filter.
            if let Err(why) = self.add_copy(at, chain, false) {
                log::debug!(target: "netdev_offload", "tc: a flow has no filter in chain {chain}: {why}");
            }
        }
        Ok(chain)
    }

    /// The last filters of a chain: priority, keys and actions.
    #[allow(clippy::type_complexity)]
    fn last_filters(
        &mut self,
        rule: &Rule,
        place: &PathState,
        miss: u32,
    ) -> Result<Vec<(u16, Vec<Key>, Vec<TcAction>)>, Why> {
        let all = place.undo.as_slice();
        let plain = (MISS_PRIORITY, Vec::new());
        let kinds = match (place.last_translation(), all) {
            // Packets of other connections were not translated.
            (Some(_), [_, rest @ ..]) => {
                let established = ct::ConnMatch::default().keys();
                vec![
                    (ESTABLISHED_MISS_PRIORITY, established, all),
                    (plain.0, plain.1, rest),
                ]
            }
            _ => vec![(plain.0, plain.1, all)],
        };
        let mut filters = Vec::new();
        for (priority, keys, undo) in kinds {
            let mut actions = Vec::new();
            for step in undo {
                match step {
                    Undo::Nat(zone) => actions.push(ct::track(self.conns.zones_of(*zone)?.back, true)),
                    Undo::Rewrites(known, ops) => {
                        let rule = plan::rule_of(rule, known, ops);
                        let ways = actions::Ways {
                            card_only: false,
                            tunnel: None,
                            device: &|_| None,
                        };
                        actions.extend(actions::steps(&rule, &ways, false)?);
                    }
                }
            }
            actions.push(actions::redirect(miss));
            filters.push((priority, keys, actions::finish(actions, self.cookie)?));
        }
        Ok(filters)
    }

    /// Adds the filter of a stage's flow to a chain. `second`: at the second priority. `false`: no packet of
    /// the chain matches it.
    fn add_copy(&mut self, at: Handle, chain: u32, second: bool) -> Result<bool, Why> {
        let (Some(flow), Some(to)) = (self.paths.flows.get(&at), self.paths.chains.get(&chain)) else {
            return Ok(false);
        };
        if flow.copies.len() >= MAX_COPIES {
            return Err(TOO_MANY);
        }
        let rule = Arc::clone(&flow.rule);
        let (place, path) = (to.place.clone(), to.path.clone());
        let added = self.add_at(at, &rule, second, &place, chain, &path)?;
        let any = !added.is_empty();
        added
            .into_iter()
            .for_each(|one| _ = self.insert_copy(at, chain, one));
        Ok(any)
    }

    /// Takes up a filter that was added; returns its number.
    fn insert_copy(&mut self, at: Handle, chain: u32, installed: Installed) -> u64 {
        let id = self.paths.next_copy;
        self.paths.next_copy += 1;
        self.count_flows(installed.filter_id.ifindex, 1);
        if let Some(id) = installed.tunnel {
            self.tunnels.count_flow(id, 1);
        }
        let owner = Owner::Copy(id);
        self.paths.by_filter.insert(installed.filter_id, owner);
        let copy = Copy {
            at,
            chain,
            flow: installed,
        };
        self.paths.copies.insert(id, copy);
        if let Some(to) = self.paths.chains.get_mut(&chain) {
            to.copies.push(id);
        }
        if let Some(flow) = self.paths.flows.get_mut(&at) {
            flow.copies.push(id);
        }
        id
    }

    /// Takes up another filter of a flow in chain 0.
    pub(super) fn insert_other(&mut self, at: Handle, installed: Installed) {
        let id = self.insert_copy(at, 0, installed);
        self.paths.others.entry(at).or_default().push(id);
    }
    /// Removes the other filters of a flow in chain 0.
    pub(super) fn remove_others(&mut self, at: Handle) {
        let all = self.paths.others.remove(&at).unwrap_or_default();
        all.into_iter().for_each(|id| self.remove_copy(id));
    }

    /// Removes a filter of a stage's flow, and the chain behind it.
    fn remove_copy(&mut self, id: u64) {
        let Some(mut copy) = self.paths.copies.remove(&id) else {
            return;
        };
        self.paths.by_filter.remove(&copy.flow.filter_id);
        if let Some(of) = self.paths.chains.get_mut(&copy.chain) {
            of.copies.retain(|c| *c != id);
        }
        if let Some(flow) = self.paths.flows.get_mut(&copy.at) {
            flow.copies.retain(|c| *c != id);
        }
        self.count_flows(copy.flow.filter_id.ifindex, -1);
        if let Some(id) = copy.flow.tunnel {
            self.tunnels.count_flow(id, -1);
        }
        if let Some(now) = self.delete_filter(copy.flow.filter_id) {
            let n = counts_since_last(&mut copy.flow, now, 0);
            self.paths.credit(copy.at, n);
        }
        if let Some(chain) = copy.flow.child {
            self.bury(chain);
        }
    }

    /// No filter leads to a chain any more: reads its counts, and marks its filters for removal.
    pub(super) fn bury(&mut self, chain: u32) {
        let Some(of) = self.paths.chains.get(&chain) else {
            return;
        };
        let stage = (of.in_port, of.recirc);
        let (ifindex, copies) = (of.ifindex, of.copies.clone());
        let misses: Vec<FilterId> = of.misses.iter().map(|m| m.filter_id).collect();
        for id in copies {
            let Some(copy) = self.paths.copies.get(&id) else {
                continue;
            };
            let (filter_id, child) = (copy.flow.filter_id, copy.flow.child);
            self.read_counts(filter_id);
            if let Some(child) = child {
                self.bury(child);
            }
            let Some(copy) = self.paths.copies.remove(&id) else {
                continue;
            };
            if let Some(flow) = self.paths.flows.get_mut(&copy.at) {
                flow.copies.retain(|c| *c != id);
            }
            if let Some(id) = copy.flow.tunnel {
                self.tunnels.count_flow(id, -1);
            }
            self.paths.by_filter.remove(&filter_id);
            self.paths.dying.push(filter_id);
            self.count_flows(ifindex, -1);
        }
        for filter_id in misses {
            self.read_counts(filter_id);
            self.paths.by_filter.remove(&filter_id);
            self.paths.dying.push(filter_id);
            self.count_flows(ifindex, -1);
        }
        self.paths.chains.remove(&chain);
        forget(&mut self.paths.chains_of, &stage, &chain);
        self.unsettled = true;
    }

    /// Reads the counts of one filter in a chain.
    fn read_counts(&mut self, filter_id: FilterId) {
        let request = RouteRequest {
            message: GetTrafficFilter(filter_id.named()),
            flags: 0,
        };
        if let Ok(Some(reported)) = self.request(request) {
            self.paths.counted(filter_id, reported.counted);
        }
    }

    /// Removes the filters of buried chains. No packet is in them any more.
    pub(super) fn remove_buried(&mut self) {
        let all = std::mem::take(&mut self.paths.dying);
        self.delete_all(all);
    }
    /// Whether chains are buried.
    pub(super) fn has_buried(&self) -> bool {
        !self.paths.dying.is_empty()
    }

    /// Removes filters without a look at their counts.
    pub(super) fn delete_all(&mut self, all: Vec<FilterId>) {
        let requests = all.into_iter().map(|filter_id| RouteRequest {
            message: DelTrafficFilter(filter_id.named()),
            flags: 0,
        });
        let requests: Vec<RouteRequest> = requests.collect();
        if !requests.is_empty() {
            // The device may be gone, and its filters with it.
            let _ = self.batch.send(requests, &mut |_| {});
        }
    }

    // -- flows behind a recirculation

    /// Installs a flow behind a recirculation: a filter in each chain that leads to it.
    pub(super) fn install_stage(&mut self, at: Handle, rule: &Rule) -> Result<(), Why> {
        plan::can_be_established(rule)?;
        self.input(rule)?;
        self.paths.balances.remove(&at);
        let flow = StageFlow {
            rule: Arc::new(rule.clone()),
            copies: Vec::new(),
        };
        let stage = stage_of(rule);
        self.paths.flows.insert(at, flow);
        self.paths.flows_of.entry(stage).or_default().push(at);
        let done = self.add_copies(at, &HashMap::new());
        if done.is_err() {
            self.remove_stage(at);
        }
        done
    }
    /// Adds a flow to all chains that lead to it. `second`: the priority of its old filter, by chain.
    ///
    /// # Errors
    /// All chains refuse it.
    fn add_copies(&mut self, at: Handle, second: &HashMap<u32, bool>) -> Result<(), Why> {
        let stage = self.paths.flows.get(&at).map(|flow| stage_of(&flow.rule));
        let chains = stage.and_then(|stage| self.paths.chains_of.get(&stage));
        let (mut refused, mut added) = (None, false);
        for chain in chains.cloned().unwrap_or_default() {
            let second = second.get(&chain).is_some_and(|second| !second);
            match self.add_copy(at, chain, second) {
                Ok(one) => added |= one,
                Err(why) => refused = Some(why),
            }
        }
        refused.filter(|_| !added).map_or(Ok(()), Err)
    }
    /// Whether a flow is one behind a recirculation.
    pub(super) fn is_stage(&self, at: Handle) -> bool {
        self.paths.flows.contains_key(&at)
    }
    /// Replaces the steps of a flow behind a recirculation.
    pub(super) fn change_stage(&mut self, at: Handle, rule: &Rule) -> (FlowCounts, Result<(), Why>) {
        let checked = plan::can_be_established(rule).and_then(|()| self.input(rule).map(drop));
        if let Err(why) = checked {
            return (self.remove_stage(at), Err(why));
        }
        let Some(flow) = self.paths.flows.get_mut(&at) else {
            return (FlowCounts::default(), Err(Why::InPort));
        };
        flow.rule = Arc::new(rule.clone());
        let old = std::mem::take(&mut flow.copies);
        let second: HashMap<u32, bool> = old
            .iter()
            .filter_map(|id| self.paths.copies.get(id))
            .map(|copy| (copy.chain, copy.flow.second))
            .collect();
        // The filters of both rules have different priorities.
        let done = self.add_copies(at, &second);
        old.into_iter().for_each(|id| self.remove_copy(id));
        match done {
            Ok(()) => (self.paths.take(at, 0), Ok(())),
            Err(why) => (self.remove_stage(at), Err(why)),
        }
    }
    /// Removes a flow behind a recirculation; returns its counts.
    pub(super) fn remove_stage(&mut self, at: Handle) -> FlowCounts {
        let Some(flow) = self.paths.flows.get(&at) else {
            return FlowCounts::default();
        };
        let (stage, copies) = (stage_of(&flow.rule), flow.copies.clone());
        copies.into_iter().for_each(|id| self.remove_copy(id));
        self.paths.flows.remove(&at);
        forget(&mut self.paths.flows_of, &stage, &at);
        self.paths.close(at, FlowCounts::default())
    }
}
