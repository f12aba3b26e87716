//! Adds, changes and removes the filters of flows, and reads their counts.
//!
//! **Invariants.** A flow's filter has the handle of the flow, plus one. Each EtherType has two priorities. A
//! new filter has the first one, and each change uses the other one. A change adds the new filter, then
//! removes the old one, so a packet always finds one of the two. The kernel acknowledges each step before the
//! next.
//!
//! **Counts.** The first action of a filter counts its packets. The kernel reports the counts in the reply to
//! a removal. Packets in the microsecond between count and removal are forwarded, but not counted. The kernel
//! counts bytes without Ethernet header and tag; [`counts_since_last`] adds them. It counts each segment of a
//! GSO packet.
//!
//! **Old actions.** A packet may still run the actions of a filter that was removed.
//! [`FilterTable::settle`] waits for these packets.

use super::TcPolicy;
use super::actions::{self, Cookie};
use super::keys::Keys;
use super::leftovers::{self, Leftover};
use super::message::{self, Counted, FilterId, Reported};
use super::ports::Device;
use crate::miss::{self, CLAIM_TIMEOUT};
use crate::others::Others;
use crate::port_devices::{PortDevice, PortDevices};
use crate::rule::VLAN_PRESENT;
use crate::{Handle, Rule, Why};
use heddle_datapath_api::{FlowCounts, PortNo};
use heddle_sys::route_batch::{RouteBatch, RouteRequest};
use heddle_sys::shared_words;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage::{DelTrafficFilter, GetTrafficFilter, NewTrafficFilter};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::time::Duration;

/// Maximum wait for the kernel's reply to a request.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// Length of an Ethernet header and of a tag, bytes.
const ETHERNET_LEN: u64 = 14;
const TAG_LEN: u64 = 4;
/// EtherTypes of filters: each has two priorities.
const PROTOCOLS: [u16; 3] = [0x0800, 0x86dd, 0x8100];
/// Priorities that one process uses.
pub(super) const PRIORITIES: u16 = 6;
const _: () = assert!(PRIORITIES as usize == 2 * PROTOCOLS.len());
/// Highest priority number of a flow's filter: the last one before the other filters of the switch.
pub(super) const LAST_PRIORITY: u16 = 0x4842;

struct Installed {
    filter_id: FilterId,
    /// The second of the two priorities.
    second: bool,
    /// Bytes of each packet that the kernel does not count.
    uncounted: u64,
    read: Counted,
    /// Last counts, if the filter was already removed with all filters of its device.
    last: Option<Counted>,
}

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
    installed: HashMap<Handle, Installed>,
    pub(super) leftovers: Vec<Leftover>,
    /// Filters were removed since the last call of [`FilterTable::settle`].
    unsettled: bool,
    refused: u64,
    uncounted_removals: u64,
}

/// The reason of a refusal, from the error of a request.
pub(super) fn why(error: &io::Error) -> Why {
    let errno = error.raw_os_error().unwrap_or(Errno::TIMEDOUT.raw_os_error());
    match Errno::from_raw_os_error(errno) {
        Errno::NOSPC => Why::Full,
        Errno::NODEV => Why::InPort,
        _ => Why::Refused(errno),
    }
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
            unsettled: false,
            refused: 0,
            uncounted_removals: 0,
        })
    }

    /// Takes over the filters of an earlier process. They come after the filters of this process, and forward
    /// until [`FilterTable::drop_adopted`].
    pub(super) fn adopt(&mut self) {
        let (mine, rest) = leftovers::adopt(&mut self.batch, self.cookie.owner, self.alone);
        self.leftovers = rest;
        (self.cookie.era, self.priority) = mine;
        let flows = self.adopted();
        if flows > 0 {
            log::info!(target: "netdev_offload", "tc: {flows} filters of an earlier process forward until others take their filter_id");
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

    /// Adds the filter of a rule with the id `filter_id`.
    fn add(&mut self, filter_id: FilterId, keys: Keys, rule: &Rule) -> Result<(), Why> {
        let ports = &self.ports;
        let card_only = self.policy == TcPolicy::SkipSw;
        let device = |no: PortNo| ports.get(no).map(|out| out.ifindex);
        let actions = actions::of(rule, self.cookie, card_only, device)?;
        let flags = match self.policy {
            TcPolicy::None => 0,
            TcPolicy::SkipSw => message::SKIP_SW,
            TcPolicy::SkipHw => message::SKIP_HW,
        };
        let wants_card = self.wants_card();
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
                Err(why(&error))
            }
        }
    }
    /// Removes a filter; returns its last counts.
    fn delete_filter(&mut self, filter_id: FilterId) -> Option<Counted> {
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

    fn filter_id(&self, at: Handle, ifindex: u32, protocol: u16, second: bool) -> FilterId {
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
    /// Whether no packet of the input device is too long for an output device.
    fn fits(&self, rule: &Rule, input: PortDevice) -> bool {
        let limit = |mtu: u32| if mtu == 0 { u32::MAX } else { mtu };
        let outputs = rule.outputs().filter_map(|no| self.ports.get(no));
        outputs.into_iter().all(|out| limit(input.mtu) <= limit(out.mtu))
    }
    /// The device of a rule's input port.
    fn input(&self, rule: &Rule) -> Result<PortDevice, Why> {
        if rule.tunnel || rule.outer.is_some() {
            return Err(Why::Tunnel("is not offloaded through tc"));
        }
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
        if rule.key.recirc != 0 {
            return Err(Why::Connection);
        }
        if rule.outputs().any(|no| self.ports.get(no).is_none()) {
            return Err(Why::OutPort);
        }
        let is_internal = |no: PortNo| self.ports.get(no).is_some_and(|out| out.internal);
        if rule.outputs().any(is_internal) {
            return Err(Why::InternalPort);
        }
        if !self.fits(rule, way) {
            return Err(Why::Mtu);
        }
        Ok(way)
    }
    pub(super) fn install(&mut self, at: Handle, rule: &Rule) -> Result<(), Why> {
        let way = self.input(rule)?;
        let keys = Keys::of(rule)?;
        let filter_id = self.filter_id(at, way.ifindex, keys.protocol, false);
        self.add(filter_id, keys, rule)?;
        let tagged = rule.key.vlan & VLAN_PRESENT != 0;
        let installed = Installed {
            filter_id,
            second: false,
            uncounted: ETHERNET_LEN + if tagged { TAG_LEN } else { 0 },
            read: Counted::default(),
            last: None,
        };
        self.installed.insert(at, installed);
        self.count_flows(way.ifindex, 1);
        Ok(())
    }
    fn count_flows(&mut self, ifindex: u32, n: isize) {
        if let Some(device) = self.devices.get_mut(&ifindex) {
            device.flows = device.flows.saturating_add_signed(n);
        }
    }
    pub(super) fn change(&mut self, at: Handle, rule: &Rule) -> (FlowCounts, Result<(), Why>) {
        let Some(old) = self.installed.get(&at) else {
            let gone = Why::Refused(Errno::NOENT.raw_os_error());
            return (FlowCounts::default(), Err(gone));
        };
        let second = !old.second;
        let done = self.input(rule).and_then(|way| {
            let keys = Keys::of(rule)?;
            let filter_id = self.filter_id(at, way.ifindex, keys.protocol, second);
            self.add(filter_id, keys, rule).map(|()| filter_id)
        });
        let filter_id = match done {
            Ok(filter_id) => filter_id,
            Err(why) => return (self.remove(at), Err(why)),
        };
        let counts = self.remove(at);
        let uncounted = match filter_id.protocol {
            0x8100 => ETHERNET_LEN + TAG_LEN,
            _ => ETHERNET_LEN,
        };
        let installed = Installed {
            filter_id,
            second,
            uncounted,
            read: Counted::default(),
            last: None,
        };
        self.installed.insert(at, installed);
        self.count_flows(filter_id.ifindex, 1);
        (counts, Ok(()))
    }
    pub(super) fn remove(&mut self, at: Handle) -> FlowCounts {
        let Some(mut flow) = self.installed.remove(&at) else {
            return FlowCounts::default();
        };
        if flow.last.is_none() {
            self.count_flows(flow.filter_id.ifindex, -1);
        }
        match flow.last.take().or_else(|| self.delete_filter(flow.filter_id)) {
            Some(now) => counts_since_last(&mut flow, now, 0),
            None => {
                self.uncounted_removals += 1;
                FlowCounts::default()
            }
        }
    }
    /// Removes the filters of all flows that come in by a device. Their counts are kept for
    /// [`FilterTable::remove`].
    pub(super) fn remove_flows_of(&mut self, ifindex: u32) {
        let here = |(at, flow): (&Handle, &Installed)| {
            (flow.filter_id.ifindex == ifindex && flow.last.is_none()).then_some((*at, flow.filter_id))
        };
        let all: Vec<(Handle, FilterId)> = self.installed.iter().filter_map(here).collect();
        for (at, filter_id) in all {
            let last = self.delete_filter(filter_id);
            if let Some(flow) = self.installed.get_mut(&at) {
                flow.last = Some(last.unwrap_or(flow.read));
            }
        }
    }
    /// Waits until no packet uses the actions of a removed filter any more.
    pub(super) fn settle(&mut self) {
        if std::mem::take(&mut self.unsettled) {
            shared_words::wait_for_programs();
        }
    }
    /// Like [`FilterTable::settle`], after the removal of filters that belong to no flow.
    pub(super) fn settle_now(&mut self) {
        self.unsettled = true;
        self.settle();
    }
    pub(super) fn counters(&mut self, now_ms: u64, f: &mut dyn FnMut(Handle, FlowCounts)) {
        let busy = self.devices.iter().filter(|(_, d)| d.flows > 0);
        let busy: Vec<(u32, usize)> = busy.map(|(ifindex, d)| (*ifindex, d.flows)).collect();
        for (ifindex, flows) in busy {
            let mut seen = 0;
            let (installed, cookie) = (&mut self.installed, self.cookie);
            let done = self
                .batch
                .dump(GetTrafficFilter(message::flows_of(ifindex)), &mut |reply| {
                    let Some(reported) = message::read(reply.payload) else {
                        return;
                    };
                    let at = reported.filter_id.handle.wrapping_sub(1);
                    let flow = installed
                        .get_mut(&at)
                        .filter(|flow| flow.filter_id == reported.filter_id);
                    if let Some(flow) = flow.filter(|_| reported.cookie == Some(cookie)) {
                        seen += 1;
                        let counts = counts_since_last(flow, reported.counted, now_ms);
                        if counts.packets > 0 {
                            f(at, counts);
                        }
                    }
                });
            let cut = |e: &io::Error| e.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error());
            if done.as_ref().err().is_none_or(cut) && seen < flows {
                self.reinstall_flows(ifindex, flows - seen);
            }
        }
    }
    /// Another program removed filters of a device: its flows are installed again.
    fn reinstall_flows(&mut self, ifindex: u32, n: usize) {
        if let Some(device) = self.devices.get(&ifindex)
            && !self.ports.is_marked(ifindex)
        {
            log::warn!(
                target: "netdev_offload",
                "{}: another program removed {n} filters of flows; they are installed again", device.name
            );
            self.ports.mark(ifindex);
        }
    }

    pub(super) fn stats(&self) -> Vec<(String, u64)> {
        vec![
            ("devices".to_owned(), self.devices.len() as u64),
            ("filters".to_owned(), self.installed.len() as u64),
            ("adopted-flows".to_owned(), self.adopted() as u64),
            ("refused".to_owned(), self.refused),
            ("uncounted-removals".to_owned(), self.uncounted_removals),
        ]
    }
}

/// Packets and bytes of a filter since the last call.
fn counts_since_last(flow: &mut Installed, now: Counted, now_ms: u64) -> FlowCounts {
    let before = std::mem::replace(&mut flow.read, now);
    let packets = now.packets.saturating_sub(before.packets);
    if packets == 0 {
        return FlowCounts::default();
    }
    // A card counts whole frames.
    let in_hw = now.hw_packets.saturating_sub(before.hw_packets);
    let in_sw = packets.saturating_sub(in_hw);
    FlowCounts {
        packets,
        bytes: now.bytes.saturating_sub(before.bytes) + flow.uncounted * in_sw,
        used_ms: now_ms,
        tcp_flags: 0,
    }
}
