//! Adds, changes and removes the filters of flows, and reads their counts.
//!
//! **Invariants.** A flow's first filter has the handle of the flow, plus one. Each EtherType has two
//! priorities. A new filter has the first one, and each change uses the other one. A change adds the new
//! filter, then removes the old one, so a packet always finds one of the two. The kernel acknowledges each
//! step before the next.
//!
//! **Counts.** The kernel reports the counts of a filter in the reply to its removal. Packets in the
//! microsecond between count and removal are forwarded, but not counted.
//!
//! **Old actions.** A packet may still run the actions of a filter that was removed.
//! [`FilterTable::settle`] waits for these packets.

use super::TcPolicy;
use super::actions;
use super::conns::TcConns;
use super::cookie::Cookie;
use super::encap::Encap;
use super::installed::{ETHERNET_LEN, Installed, id_of};
use super::keys::Keys;
use super::leftovers::{self, Leftover};
use super::message::{self, Counted, FilterId, Reported};
use super::paths::Paths;
use super::plan::PathState;
use super::ports::Device;
use super::received::Received;
use super::retries::Retries;
use super::side::TcSide;
use super::tunnel_devices::{self, TunnelDevices};
use super::uncounted::Uncounted;
use crate::miss::{self, CLAIM_TIMEOUT};
use crate::others::Others;
use crate::port_devices::{PortDevice, PortDevices};
use crate::{Handle, Rule, Why};
use heddle_datapath_api::{FlowCounts, PortNo};
use heddle_sys::route_batch::{RouteBatch, RouteRequest};
use heddle_sys::shared_words;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage::{DelTrafficFilter, NewTrafficFilter};
use netlink_packet_route::tc::TcAction;
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

/// Maximum wait for the kernel's reply to a request.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// EtherTypes of filters: each has two priorities.
const PROTOCOLS: [u16; 5] = [0x0800, 0x86dd, 0x8100, 0x88a8, 0x0806];
/// Priorities that one process uses.
pub(super) const PRIORITIES: u16 = 10;
const _: () = assert!(PRIORITIES as usize == 2 * PROTOCOLS.len());
/// Highest priority number of a flow's filter: the last one before the other filters of the switch.
pub(super) const LAST_PRIORITY: u16 = 0x4842;

pub(super) struct FilterTable {
    pub(super) batch: RouteBatch,
    pub(super) cookie: Cookie,
    /// The first priority of this process.
    pub(super) priority: u16,
    pub(super) policy: TcPolicy,
    /// This back end diverts devices itself.
    pub(super) alone: bool,
    /// Device group of the miss devices ([`miss::group_of`]).
    pub(super) group: u32,
    /// Ports; a device that came, went or lost filters is marked.
    pub(super) ports: PortDevices,
    /// Devices that may have filters of flows, by interface index.
    pub(super) devices: HashMap<u32, Device>,
    pub(super) claim_timeout: Duration,
    pub(super) others: Others,
    pub(super) rounds: u32,
    pub(super) installed: HashMap<Handle, Installed>,
    pub(super) leftovers: Vec<Leftover>,
    pub(super) tunnels: TunnelDevices,
    pub(super) received: Received,
    uncounted: Uncounted,
    pub(super) paths: Paths,
    pub(super) conns: TcConns,
    retries: Retries,
    /// Filters were removed since the last call of [`FilterTable::settle`].
    pub(super) unsettled: bool,
    refused: u64,
    uncounted_removals: u64,
}

impl FilterTable {
    pub(super) fn new(owner: u64, policy: TcPolicy, alone: bool) -> io::Result<Self> {
        Ok(Self {
            batch: RouteBatch::new(REPLY_TIMEOUT)?,
            cookie: Cookie { owner, era: 1 },
            priority: LAST_PRIORITY - PRIORITIES + 1,
            policy,
            alone,
            group: miss::group_of(owner),
            ports: PortDevices::default(),
            devices: HashMap::new(),
            claim_timeout: CLAIM_TIMEOUT,
            others: Others::new(),
            rounds: 0,
            installed: HashMap::new(),
            leftovers: Vec::new(),
            tunnels: TunnelDevices::new(owner),
            received: Received::default(),
            uncounted: Uncounted::default(),
            paths: Paths::default(),
            conns: TcConns::default(),
            retries: Retries::default(),
            unsettled: false,
            refused: 0,
            uncounted_removals: 0,
        })
    }

    /// Takes over the filters of an earlier process. They come after the filters of this process, and forward
    /// until [`FilterTable::drop_adopted`].
    pub(super) fn adopt(&mut self) {
        let adopted = leftovers::adopt(&mut self.batch, self.cookie.owner, self.alone);
        self.leftovers = adopted.filters;
        (self.cookie.era, self.priority) = (adopted.era, adopted.priority);
        self.conns.left_zones = adopted.zones;
        let flows = self.adopted();
        if flows > 0 {
            log::info!(target: "netdev_offload", "tc: {flows} filters of an earlier process forward until new ones take their place");
        }
    }
    pub(super) fn adopted(&self) -> usize {
        self.leftovers.iter().filter(|l| !l.is_miss).count()
    }

    // -- requests

    /// Sends one request; returns the kernel's report about the filter, if it sent one.
    pub(super) fn request(&mut self, request: RouteRequest) -> io::Result<Option<Reported>> {
        let mut reported = None;
        let results = self.batch.send(vec![request], &mut |reply| {
            reported = reported.or_else(|| message::read(reply.payload));
        })?;
        results.into_iter().next().unwrap_or(Ok(())).map(|()| reported)
    }

    /// Adds the filter of a rule that does not track, with the id `filter_id`.
    pub(super) fn add(&mut self, filter_id: FilterId, keys: Keys, rule: &Rule) -> Result<(), Why> {
        let of = |table: &Self, card_only| {
            let device = |no: PortNo| table.ports.get(no).map(|out| out.ifindex);
            actions::of(rule, table.cookie, card_only, None, device)
        };
        if self.has_card_actions(filter_id.ifindex, rule) {
            let actions = of(self, true)?;
            if self.add_to_card(filter_id, keys.clone(), actions) {
                return Ok(());
            }
        }
        let actions = of(self, self.policy == TcPolicy::SkipSw)?;
        self.add_actions(filter_id, keys, actions)
    }
    /// Whether a device's card gets a filter of its own for a rule, as its actions are others in the kernel.
    pub(super) fn has_card_actions(&self, ifindex: u32, rule: &Rule) -> bool {
        let is_card = || self.devices.get(&ifindex).is_some_and(|d| d.is_card);
        self.policy == TcPolicy::None && actions::differ_in_card(rule) && is_card()
    }
    /// Adds a filter that only a card runs. `false`: the card did not take it.
    pub(super) fn add_to_card(&mut self, filter_id: FilterId, keys: Keys, actions: Vec<TcAction>) -> bool {
        self.add_filter(filter_id, keys, actions, message::SKIP_SW, false)
            .is_ok()
    }
    /// Adds the filter of a flow, with numbered actions.
    pub(super) fn add_actions(
        &mut self,
        filter_id: FilterId,
        keys: Keys,
        actions: Vec<TcAction>,
    ) -> Result<(), Why> {
        let flags = match self.policy {
            TcPolicy::None => 0,
            TcPolicy::SkipSw => message::SKIP_SW,
            TcPolicy::SkipHw => message::SKIP_HW,
        };
        let wants_card = self.wants_card();
        self.add_filter(filter_id, keys, actions, flags, wants_card)
    }
    /// Adds a filter. `wants_card`: it is refused unless a card has it.
    pub(super) fn add_filter(
        &mut self,
        filter_id: FilterId,
        keys: Keys,
        actions: Vec<TcAction>,
        flags: u32,
        wants_card: bool,
    ) -> Result<(), Why> {
        let request = RouteRequest {
            message: NewTrafficFilter(filter_id.filter(keys.keys, actions, flags)),
            // The reply shows whether the card has the filter.
            flags: NLM_F_CREATE | NLM_F_EXCL | if wants_card { NLM_F_ECHO } else { 0 },
        };
        match self.request(request) {
            Ok(reported) if wants_card && !reported.is_some_and(|r| r.in_hw) => {
                self.refused += 1;
                self.delete_filter(filter_id);
                Err(Why::NotInCard)
            }
            Ok(_) => Ok(()),
            Err(error) => {
                self.refused += 1;
                if error.raw_os_error().is_none() {
                    // The filter may be there.
                    self.delete_filter(filter_id);
                }
                Err(super::why(&error))
            }
        }
    }
    /// Removes a filter; returns its last counts.
    pub(super) fn delete_filter(&mut self, filter_id: FilterId) -> Option<Counted> {
        self.unsettled = true;
        let request = |flags| RouteRequest {
            message: DelTrafficFilter(filter_id.named()),
            flags,
        };
        match self.request(request(NLM_F_ECHO)) {
            Ok(reported) => reported.map(|r| r.counted),
            Err(_) => {
                // The report may be too long: then the kernel keeps the filter. Or the filter is gone.
                let _ = self.request(request(0));
                None
            }
        }
    }

    // -- flows

    pub(super) fn filter_id(&self, at: Handle, ifindex: u32, protocol: u16, second: bool) -> FilterId {
        let index = PROTOCOLS.iter().position(|p| *p == protocol).unwrap_or(0);
        let offset = u16::try_from(2 * index).unwrap_or(0) + u16::from(second);
        FilterId {
            ifindex,
            chain: 0,
            priority: self.priority + offset,
            protocol,
            handle: at.wrapping_add(1),
        }
    }
    /// Priorities of this process, with their protocols.
    pub(super) fn places(&self) -> impl Iterator<Item = (u16, u16)> + use<> {
        let first = self.priority;
        (0..PRIORITIES).filter_map(move |n| Some((first + n, *PROTOCOLS.get(usize::from(n) / 2)?)))
    }
    /// Whether no packet of the input device is too long for an output device, or for the tunnel.
    pub(super) fn fits(&self, rule: &Rule, input: PortDevice) -> bool {
        let limit = |mtu: u32| if mtu == 0 { u32::MAX } else { mtu };
        let len = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        // The outer packet is longer by the inner Ethernet header and the outer headers behind Ethernet.
        let longer = rule.outer.as_ref().map_or(0, |outer| len(outer.header.len()));
        let longest = limit(input.mtu).saturating_add(longer);
        let path = rule.outer.as_ref().map_or(u32::MAX, |outer| limit(outer.mtu));
        let frame = u64::from(limit(input.mtu)) + ETHERNET_LEN;
        let mut outputs = rule.outputs().filter_map(|no| self.ports.get(no));
        outputs.all(|out| longest <= limit(out.mtu))
            && longest <= path
            && rule.max_frame.is_none_or(|max| frame <= max.into())
    }
    /// The tunnel that a rule leads into, with its device.
    pub(super) fn tunnel(&mut self, rule: &Rule) -> Result<Option<(Encap, u32)>, Why> {
        let Some(outer) = &rule.outer else {
            return Ok(None);
        };
        let encap = Encap::of(outer, crate::kernel::version())?;
        // The kernel sends outer packets by its own route: that of the switch may be another one.
        let route = tunnel_devices::route_device(&mut self.batch, encap.key.src, encap.key.dst);
        let by = route.ok().flatten();
        let mut outputs = rule.outputs().filter_map(|no| self.ports.get(no));
        if !outputs.all(|out| Some(out.ifindex) == by) {
            return Err(Why::Tunnel(
                "leaves by another device than the kernel's route leads to",
            ));
        }
        let device = self.tunnels.device_of(&mut self.batch, encap.id())?;
        Ok(Some((encap, device)))
    }
    /// The device of a rule's input port.
    pub(super) fn input(&self, rule: &Rule) -> Result<PortDevice, Why> {
        let way = *self.ports.get(rule.in_port).ok_or(Why::InPort)?;
        if way.internal {
            return Err(Why::InternalPort);
        }
        if !self.devices.contains_key(&way.ifindex) {
            let left = self.others.of(way.ifindex).map(|_| Why::LeftPort);
            return Err(left.unwrap_or(Why::InPort));
        }
        if !self.serves(way.ifindex) {
            return Err(Why::InPort);
        }
        if rule.key.recirc != 0 && !self.alone {
            return Err(super::BESIDE_EBPF);
        }
        self.check_outputs(rule)?;
        if !self.fits(rule, way) {
            return Err(Why::Mtu);
        }
        Ok(way)
    }
    /// Checks that packets may leave by the outputs of a rule.
    pub(super) fn check_outputs(&self, rule: &Rule) -> Result<(), Why> {
        if rule.outputs().any(|no| self.ports.get(no).is_none()) {
            return Err(Why::OutPort);
        }
        let is_internal = |no: PortNo| self.ports.get(no).is_some_and(|out| out.internal);
        match rule.outputs().any(is_internal) {
            true => Err(Why::InternalPort),
            false => Ok(()),
        }
    }
    /// Adds the filters of a flow to chain 0. `second`: at the second priority. There is one at least.
    fn add_flow(&mut self, at: Handle, rule: &Rule, second: bool) -> Result<Vec<Installed>, Why> {
        if rule.tunnel {
            return Ok(vec![self.add_inner(at, rule, second)?]);
        }
        if let Some(decap) = rule.decap() {
            return Ok(vec![self.add_outer(at, rule, decap, second)?]);
        }
        let added = self.add_at(at, rule, second, &PathState::default(), 0, &[])?;
        match added.is_empty() {
            true => Err(Why::Connection),
            false => Ok(added),
        }
    }
    fn insert_flow(&mut self, at: Handle, filters: Vec<Installed>) {
        let mut filters = filters.into_iter();
        if let Some(flow) = filters.next() {
            self.insert_first(at, flow);
        }
        filters.for_each(|flow| self.insert_other(at, flow));
    }
    fn insert_first(&mut self, at: Handle, flow: Installed) {
        self.count_flows(flow.filter_id.ifindex, 1);
        if let Some(id) = flow.side.tunnel() {
            self.tunnels.count_flow(id, 1);
        }
        match flow.side {
            TcSide::Plain | TcSide::Into { .. } => {}
            TcSide::Outer { end, origin, .. } => self.received.insert_outer(at, end, origin),
            TcSide::Inner { tunnel, .. } => {
                if self.tunnels.count_inner(tunnel, 1) {
                    self.reinstall_outer(tunnel);
                }
            }
        }
        self.installed.insert(at, flow);
    }
    pub(super) fn install(&mut self, at: Handle, rule: &Rule) -> Result<(), Why> {
        if rule.key.recirc != 0 && !rule.tunnel {
            return self.install_stage(at, rule);
        }
        self.uncounted.check(id_of(rule), Instant::now())?;
        let flow = self.add_flow(at, rule, false)?;
        self.insert_flow(at, flow);
        Ok(())
    }
    pub(super) fn count_flows(&mut self, ifindex: u32, n: isize) {
        if let Some(device) = self.devices.get_mut(&ifindex) {
            device.flows = device.flows.saturating_add_signed(n);
        }
    }
    /// Flows that the kernel runs and that a card gets again. Beside eBPF, the kernel runs no flow of a card.
    pub(super) fn again(&mut self) -> Vec<Handle> {
        if !self.alone || self.policy != TcPolicy::None {
            return Vec::new();
        }
        let devices = &self.devices;
        let has_card = |ifindex| devices.get(&ifindex).is_some_and(|d| d.is_card);
        self.retries.due(&self.installed, has_card, Instant::now())
    }
    pub(super) fn change(&mut self, at: Handle, rule: &Rule) -> (FlowCounts, Result<(), Why>) {
        if self.is_stage(at) {
            return self.change_stage(at, rule);
        }
        let Some(old) = self.installed.get(&at) else {
            let gone = Why::Refused(Errno::NOENT.raw_os_error());
            return (FlowCounts::default(), Err(gone));
        };
        let second = !old.second;
        let done = self.add_flow(at, rule, second);
        let counts = self.remove(at);
        let done = done.map(|flow| self.insert_flow(at, flow));
        (counts, done)
    }
    pub(super) fn remove(&mut self, at: Handle) -> FlowCounts {
        let Some(mut flow) = self.installed.remove(&at) else {
            return self.remove_stage(at);
        };
        if flow.last.is_none() {
            self.count_flows(flow.filter_id.ifindex, -1);
        }
        if let Some(id) = flow.side.tunnel() {
            self.tunnels.count_flow(id, -1);
        }
        if let TcSide::Inner { tunnel, .. } = flow.side {
            self.tunnels.count_inner(tunnel, -1);
        }
        let last = flow.last.take().or_else(|| self.delete_filter(flow.filter_id));
        if let TcSide::Outer { end, origin, .. } = flow.side {
            return self.received.remove_outer(at, end, origin);
        }
        if let Some(chain) = flow.child {
            self.bury(chain);
        }
        self.remove_others(at);
        let counts = match last {
            Some(now) => {
                let counts = flow.counts_since_last(now, 0);
                self.uncounted.removed(&flow, Instant::now());
                self.received.credit_outer(flow.side, counts);
                counts
            }
            None => {
                self.uncounted_removals += 1;
                FlowCounts::default()
            }
        };
        self.paths.close(at, counts)
    }
    /// Removes the filters of all flows that come in by a device. Their counts are kept for
    /// [`FilterTable::remove`].
    pub(super) fn remove_flows_of(&mut self, ifindex: u32) {
        let here = |(at, flow): (&Handle, &Installed)| {
            (flow.filter_id.ifindex == ifindex && flow.last.is_none()).then_some((*at, flow.filter_id))
        };
        let all: Vec<(Handle, FilterId)> = self.installed.iter().filter_map(here).collect();
        all.iter().for_each(|(at, _)| self.remove_others(*at));
        for (at, filter_id) in all {
            let last = self.delete_filter(filter_id);
            let mut child = None;
            if let Some(flow) = self.installed.get_mut(&at) {
                flow.last = Some(last.unwrap_or(flow.read));
                child = flow.child.take();
            }
            if let Some(chain) = child {
                self.bury(chain);
            }
        }
    }
    /// A text about the tunnel of a flow, and about its network card, for people.
    pub(super) fn note(&self, at: Handle) -> Option<String> {
        let flow = self.installed.get(&at)?;
        let device = self.devices.get(&flow.filter_id.ifindex);
        let has_card = self.policy != TcPolicy::SkipHw && device.is_some_and(|d| d.is_card);
        let place = match (has_card, flow.in_card) {
            (false, _) => "",
            (true, true) => "in the network card",
            (true, false) => "in the kernel: the network card did not take it",
        };
        let parts = [flow.side.to_string(), place.to_owned()];
        let parts: Vec<String> = parts.into_iter().filter(|text| !text.is_empty()).collect();
        Some(parts.join(", ")).filter(|text| !text.is_empty())
    }
    /// Waits until no packet uses the actions of a removed filter any more.
    pub(super) fn settle(&mut self) {
        if std::mem::take(&mut self.unsettled) {
            shared_words::wait_for_programs();
            self.remove_buried();
        }
    }
    /// Like [`FilterTable::settle`], after the removal of filters that belong to no flow.
    pub(super) fn settle_now(&mut self) {
        self.unsettled = true;
        self.settle();
    }
    pub(super) fn stats(&self) -> Vec<(String, u64)> {
        vec![
            ("devices".to_owned(), self.devices.len() as u64),
            (
                "filters".to_owned(),
                (self.installed.len() + self.paths.copies.len()) as u64,
            ),
            ("chains".to_owned(), self.paths.len() as u64),
            ("connections".to_owned(), self.conns.len() as u64),
            (
                "in-card".to_owned(),
                self.installed.values().filter(|flow| flow.in_card).count() as u64,
            ),
            ("tunnel-devices".to_owned(), self.tunnels.len() as u64),
            ("adopted-flows".to_owned(), self.adopted() as u64),
            ("refused".to_owned(), self.refused),
            ("uncounted-removals".to_owned(), self.uncounted_removals),
        ]
    }
}
