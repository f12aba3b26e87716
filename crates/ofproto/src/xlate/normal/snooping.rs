//! Multicast snooping in NORMAL (RFC 4541): learns from reports and queries, and sends multicast to the ports
//! that want it.
//!
//! Each packet of IGMP and MLD is translated, because each refreshes what was learned, until its port has
//! used up its budget. Other multicast is cached: the translation depends on the listeners of its group and
//! on the routers of its VLAN.
//!
//! **Deviations from Open vSwitch.** A packet leaves a port once, also if the port is a listener, a router
//! and a flood port. Flood ports get only packets of VLANs that they carry.

use super::super::ctx::{Ctx, of_port};
use super::super::report_limit;
use super::{InBundle, Tags};
use crate::model::PortBundle;
use crate::snooping::{
    GroupKey, Listener, MembershipChange, MembershipReport, Snooped, SnoopingTable, SnoopingView,
};
use heddle_datapath_api::DropReason;
use heddle_packet::{Csum, Packet};
use heddle_wire::eth::ethertype as eth;
use heddle_wire::ip::proto;
use heddle_wire::membership::{self, Message, igmp, mld};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The part that a packet has in the protocols of membership.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A report, or the message of a listener that leaves.
    Report,
    Query,
    /// IGMP of another type.
    Other,
    /// Data.
    None,
}

/// Bundles that the packet goes to, with their places.
type Targets<'w> = SmallVec<[(usize, &'w PortBundle); 8]>;

/// The lines of a trace about one kind of port.
struct Lines {
    sends: &'static str,
    unknown: &'static str,
    is_input: &'static str,
}

const GROUP: Lines = Lines {
    sends: "forwarding to mcast group port",
    unknown: "mcast group port is unknown, dropping",
    is_input: "mcast group port is input port, dropping",
};
const ROUTER: Lines = Lines {
    sends: "forwarding to mcast router port",
    unknown: "mcast router port is unknown, dropping",
    is_input: "mcast router port is input port, dropping",
};
const FLOOD: Lines = Lines {
    sends: "forwarding to mcast flood port",
    unknown: "mcast flood port is unknown, dropping",
    is_input: "mcast flood port is input port, dropping",
};
const REPORTS: Lines = Lines {
    sends: "forwarding report to mcast flagged port",
    unknown: "mcast port is unknown, dropping the report",
    is_input: "mcast port is input port, dropping the Report",
};

impl<'w> Ctx<'w> {
    /// The bridge's snooping, if it decides about this packet: IP in multicast frames.
    pub(super) fn snooping(&self) -> Option<&'w SnoopingView> {
        let flow = &self.flow;
        let is_multicast = flow.dl_dst[0] & 1 != 0 && flow.dl_dst != [u8::MAX; 6];
        let is_ip = matches!(flow.dl_type, eth::IP | eth::IPV6);
        self.at.bridge.snooping.as_ref().filter(|_| is_multicast && is_ip)
    }

    /// Forwards multicast. `None`: it goes to no port.
    pub(super) fn forward_multicast(
        &mut self,
        snooping: &'w SnoopingView,
        from: &InBundle<'_>,
        vlans: &Tags,
    ) -> Option<()> {
        let role = self.role();
        if role == Role::None {
            return self.forward_group(snooping, from, vlans);
        }
        if self.is_over_limit(&snooping.table, from) {
            self.out.drop_hint.get_or_insert(DropReason::ReportLimit);
            return None;
        }
        self.out.slow();
        self.learn_membership(snooping, from, vlans.vid(), role);
        if role != Role::Report {
            let line = match self.flow.dl_type {
                eth::IP => "multicast traffic, flooding",
                _ => "MLD query, flooding",
            };
            self.trace.detail(line);
            self.normal_flood(from, vlans);
            return Some(());
        }
        let mut to = Targets::new();
        self.look_at_all_ports();
        self.add_routers(&mut to, snooping, from, vlans);
        self.add(&mut to, &snooping.flood_reports, &REPORTS, from, vlans);
        self.output_to_all(&to, vlans)
    }

    fn role(&mut self) -> Role {
        self.out.mask.0.nw_proto = u8::MAX;
        let (v6, protocol) = (self.flow.dl_type == eth::IPV6, self.flow.nw_proto);
        // Later fragments have no type, and the type of an ICMPv6 message has eight bits.
        let ty = u8::try_from(self.flow.tp_src).unwrap_or(0);
        match (v6, protocol, ty) {
            (false, proto::IGMP, igmp::QUERY) => Role::Query,
            (false, proto::IGMP, _) if membership::is_igmp_report(ty) => Role::Report,
            (false, proto::IGMP, _) => Role::Other,
            (true, proto::ICMPV6, _) => {
                self.out.mask.0.tp_src = u16::MAX;
                match ty {
                    mld::QUERY => Role::Query,
                    _ if membership::is_mld_report(ty) => Role::Report,
                    _ => Role::None,
                }
            }
            _ => Role::None,
        }
    }

    /// Forwards data to the listeners of its group.
    fn forward_group(&mut self, snooping: &'w SnoopingView, from: &InBundle<'_>, vlans: &Tags) -> Option<()> {
        let mask = &mut self.out.mask.0;
        let (group, is_local) = if self.flow.dl_type == eth::IP {
            mask.nw_dst = u32::MAX;
            let group = Ipv4Addr::from_bits(self.flow.nw_dst);
            (group.to_ipv6_mapped(), group.octets().starts_with(&[224, 0, 0]))
        } else {
            mask.ipv6_dst = [u8::MAX; 16];
            let group = Ipv6Addr::from(self.flow.ipv6_dst);
            (group, group == ALL_NODES)
        };
        if is_local {
            // Hosts need not report these groups.
            self.trace.detail("RFC4541: section 2.1.2, item 2, flooding");
            self.normal_flood(from, vlans);
            return Some(());
        }
        let key = GroupKey {
            group,
            vlan: vlans.vid(),
        };
        self.out.depend(snooping.table.slot(key));
        let found = snooping.table.lookup(key);
        if found.is_none() && snooping.flood_unregistered {
            self.trace.detail("unregistered multicast, flooding");
            self.normal_flood(from, vlans);
            return Some(());
        }
        let mut to = Targets::new();
        self.look_at_all_ports();
        if let Some(found) = &found {
            self.add(&mut to, &found.listeners, &GROUP, from, vlans);
            self.add(&mut to, &snooping.flood, &FLOOD, from, vlans);
            self.add_routers(&mut to, snooping, from, vlans);
        } else {
            self.add_routers(&mut to, snooping, from, vlans);
            self.add(&mut to, &snooping.flood, &FLOOD, from, vlans);
        }
        self.output_to_all(&to, vlans)
    }

    fn add_routers(
        &mut self,
        to: &mut Targets<'w>,
        snooping: &SnoopingView,
        from: &InBundle<'_>,
        vlans: &Tags,
    ) {
        let key = GroupKey::routers(vlans.vid());
        self.out.depend(snooping.table.slot(key));
        if let Some(routers) = snooping.table.lookup(key) {
            self.add(to, &routers.listeners, &ROUTER, from, vlans);
        }
    }

    /// Adds those of the listeners' bundles that the packet is to go to.
    fn add(
        &mut self,
        to: &mut Targets<'w>,
        listeners: &[Listener],
        lines: &Lines,
        from: &InBundle<'_>,
        vlans: &Tags,
    ) {
        // A group has each port once.
        let earlier = to.len();
        for listener in listeners {
            let Some((at, bundle)) = self.bundle_of(listener) else {
                self.trace.warn(lines.unknown);
                continue;
            };
            if from.index() == Some(at) {
                self.trace.detail(lines.is_input);
            } else if self.at.is_mirror_output(at) || !vlans.are_in(bundle) {
                self.trace.detail("mcast port is not in this VLAN, dropping");
            } else if !to[..earlier].iter().any(|(before, _)| *before == at) {
                self.trace.detail(lines.sends);
                to.push((at, bundle));
            }
        }
    }

    fn bundle_of(&self, listener: &Listener) -> Option<(usize, &'w PortBundle)> {
        let bridge = self.at.bridge;
        let is_it = |b: &PortBundle| b.id == listener.bundle;
        let by_port = || {
            let at = bridge.ports.get(&listener.port)?.bundle;
            Some((at, &**bridge.bundles.get(&at)?))
        };
        // A bond may have lost the port that the report came in by.
        let search = || {
            bridge
                .bundles
                .iter()
                .map(|(at, b)| (at, &**b))
                .find(|(_, b)| is_it(b))
        };
        by_port().filter(|(_, b)| is_it(b)).or_else(search)
    }

    fn output_to_all(&mut self, to: &Targets<'w>, vlans: &Tags) -> Option<()> {
        for (_, bundle) in to {
            self.output_normal(bundle, vlans);
        }
        (!to.is_empty()).then_some(())
    }

    /// Whether the port has used up its budget ([`report_limit`]).
    fn is_over_limit(&mut self, table: &SnoopingTable, from: &InBundle<'_>) -> bool {
        let Some(bundle) = from.bundle() else { return false };
        self.out.depend(table.limit_slot());
        let logs = self.input.has_packet() && self.input.learn;
        let is_over = report_limit::is_over(table, self.at.bridge, bundle, self.input.now_ms, logs);
        if is_over {
            self.trace
                .warn("the port sends too many messages of multicast groups, dropping");
        }
        is_over
    }

    /// Learns from a report or a query, and charges the port for the message.
    fn learn_membership(&mut self, snooping: &SnoopingView, from: &InBundle<'_>, vlan: u16, role: Role) {
        let (Some(packet), Some(bundle)) = (self.input.packet, from.bundle()) else {
            return;
        };
        if !self.input.learn {
            return;
        }
        let now_ms = self.input.now_ms;
        if bundle.snooping.flood || role == Role::Other {
            return bundle.reports.charge(1, now_ms);
        }
        let frame = bytes(packet);
        let is_summed = packet.offload.csum != Csum::Unknown;
        let message = membership::read(&frame, is_summed);
        let n_records = message.as_ref().map_or(1, Message::n_records);
        bundle.reports.charge(n_records.into(), now_ms);
        let Some(message) = message else {
            let (protocol, name) = (self.protocol(), &bundle.name);
            return self.report_debug(|| {
                format!("multicast snooping received bad {protocol} checksum on port {name} in VLAN {vlan}")
            });
        };
        let learned = self.learn_message(&snooping.table, bundle, vlan, message);
        if let Snooped::Changed(n) = learned
            && n > 0
        {
            self.report_learned(&bundle.name, vlan, message, n);
        }
    }

    fn learn_message(
        &self,
        table: &SnoopingTable,
        bundle: &PortBundle,
        vlan: u16,
        message: Message<'_>,
    ) -> Snooped {
        let from = Listener {
            bundle: bundle.id,
            port: of_port(self.flow.in_port),
        };
        let report = |key, change| MembershipReport {
            key,
            from,
            change,
            now_ms: self.input.now_ms,
        };
        match message {
            Message::Query { has_source: false } => Snooped::Changed(0),
            Message::Query { has_source: true } => {
                let query = report(GroupKey::routers(vlan), MembershipChange::Query);
                table.learn(std::iter::once(query))
            }
            Message::Report(records) => table.learn(records.filter_map(|r| {
                let key = GroupKey { group: r.group, vlan };
                match r.joins {
                    Some(protocol) => Some(report(key, MembershipChange::Join(protocol))),
                    // More than one host may be behind the port: the group expires.
                    None if bundle.snooping.flood_reports => None,
                    None => Some(report(key, MembershipChange::Leave)),
                }
            })),
        }
    }

    fn protocol(&self) -> &'static str {
        match self.flow.dl_type {
            eth::IP => "IGMP",
            _ => "MLD",
        }
    }

    /// Reports the changes that a message has made, as Open vSwitch words them.
    fn report_learned(&mut self, port: &str, vlan: u16, message: Message<'_>, n: usize) {
        let (is_v4, ty) = (self.flow.dl_type == eth::IP, self.flow.tp_src);
        let source = Ipv4Addr::from_bits(self.flow.nw_src);
        let group = match message {
            Message::Report(mut records) => records.next().map(|r| r.group.to_canonical()),
            Message::Query { .. } => None,
        };
        self.report_debug(|| match (message, group) {
            (Message::Query { .. }, _) if is_v4 => {
                format!("multicast snooping query from {source} is on port {port} in VLAN {vlan}")
            }
            (Message::Query { .. }, _) => {
                format!("multicast snooping query on port {port} in VLAN {vlan}")
            }
            (_, Some(group)) if is_v4 && ty == igmp::LEAVE.into() => {
                format!("multicast snooping leaving {group} is on port {port} in VLAN {vlan}")
            }
            (_, Some(group)) if is_v4 && ty != igmp::REPORT_V3.into() => {
                format!("multicast snooping learned that {group} is on port {port} in VLAN {vlan}")
            }
            _ => format!("multicast snooping processed {n} addresses on port {port} in VLAN {vlan}"),
        });
    }
}

/// The group of all nodes on a link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::from_bits(0xff02 << 112 | 1);

/// All bytes of a packet.
fn bytes(packet: &Packet) -> Cow<'_, [u8]> {
    match packet.segs().is_empty() {
        true => packet.head().into(),
        false => packet.to_vec().into(),
    }
}
