//! The kernel's messages as typed values.

use super::{
    HostAddress, HostHop, HostLink, HostLinks, HostNeighbour, HostRoute, HostRouteKind, HostRule,
    HostRuleAction,
};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState as State,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteNextHopFlags, RouteType,
    RouteVia,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The device that packets of this host itself "come in" by, as rules see it.
const LOOPBACK: &str = "lo";

pub(super) fn link(message: LinkMessage) -> HostLink {
    let mut link = HostLink {
        name: "".into(),
        mtu_bytes: None,
        up: message.header.flags.contains(LinkFlags::Up),
        lower_up: message.header.flags.contains(LinkFlags::LowerUp),
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name.into(),
            LinkAttribute::Mtu(mtu) => link.mtu_bytes = Some(mtu),
            _ => {}
        }
    }
    link
}

pub(super) fn address(message: &AddressMessage, links: &HostLinks) -> Option<HostAddress> {
    let header = &message.header;
    let (mut addr, mut local) = (None, None);
    let mut flags = AddressFlags::from_bits_retain(header.flags.bits().into());
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Address(ip) => addr = Some(*ip),
            // The other of two ends is `Address` then.
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Flags(all) => flags = *all,
            _ => {}
        }
    }
    let addr = local.or(addr)?;
    // One bit with two meanings.
    let second = flags.contains(AddressFlags::Secondary);
    let optimistic = flags.contains(AddressFlags::Optimistic);
    Some(HostAddress {
        device: links.get(&header.index)?.name.clone(),
        addr,
        prefix_len: header.prefix_len,
        scope: header.scope.into(),
        secondary: addr.is_ipv4() && second,
        temporary: addr.is_ipv6() && second,
        deprecated: flags.contains(AddressFlags::Deprecated),
        tentative: flags.contains(AddressFlags::Dadfailed)
            || (flags.contains(AddressFlags::Tentative) && !optimistic),
    })
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(a) => Some((*a).into()),
        RouteAddress::Inet6(a) => Some((*a).into()),
        _ => None,
    }
}

/// A route, if it is one for packets to single hosts.
pub(super) fn route(message: RouteMessage, links: &HostLinks) -> Option<HostRoute> {
    let header = &message.header;
    let unspecified: IpAddr = match header.address_family {
        AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
        AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let kind = match header.kind {
        RouteType::Unicast => HostRouteKind::Unicast,
        RouteType::Local => HostRouteKind::Local,
        RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit => HostRouteKind::Refused,
        RouteType::Throw => HostRouteKind::Throw,
        _ => return None,
    };
    // Routes that match on more than a destination, and routes that only cache a lookup, are left out.
    if header.tos != 0 || header.source_prefix_length != 0 || header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    let mut route = HostRoute {
        table: header.table.into(),
        dst: unspecified,
        dst_len: header.destination_prefix_length,
        kind,
        metric: 0,
        prefsrc: None,
        scope: header.scope.into(),
        mtu_bytes: None,
        hops: Vec::new(),
    };
    let mut single = Way::default();
    let mut several = Vec::new();
    for attribute in message.attributes {
        match attribute {
            RouteAttribute::Table(table) => route.table = table,
            RouteAttribute::Destination(dst) => route.dst = ip(&dst)?,
            RouteAttribute::Priority(metric) => route.metric = metric,
            RouteAttribute::PrefSource(source) => route.prefsrc = ip(&source),
            RouteAttribute::Metrics(metrics) => {
                route.mtu_bytes = metrics.iter().find_map(|m| match m {
                    RouteMetric::Mtu(mtu) if *mtu != 0 => Some(*mtu),
                    _ => None,
                });
            }
            RouteAttribute::MultiPath(hops) => {
                for hop in hops {
                    let mut way = Way::default();
                    hop.attributes.iter().for_each(|a| way.take(a));
                    way.device = Some(hop.interface_index);
                    if !hop.flags.contains(RouteNextHopFlags::Dead) {
                        several.extend(way.hop(u32::from(hop.hops) + 1, links));
                    }
                }
            }
            attribute => single.take(&attribute),
        }
    }
    if several.is_empty() && !header.flags.contains(RouteFlags::Dead) {
        several.extend(single.hop(1, links));
    }
    // A route that sends no packets has no next hop, whatever device the kernel names.
    if matches!(kind, HostRouteKind::Unicast | HostRouteKind::Local) {
        route.hops = several;
    }
    Some(route)
}

/// A next hop as its attributes describe it.
#[derive(Default)]
struct Way {
    device: Option<u32>,
    gateway: Option<IpAddr>,
    /// Packets are put into something else on the way.
    encapsulated: bool,
}

impl Way {
    fn take(&mut self, attribute: &RouteAttribute) {
        match attribute {
            RouteAttribute::Oif(index) => self.device = Some(*index),
            RouteAttribute::Gateway(gateway) => self.gateway = ip(gateway),
            RouteAttribute::Via(RouteVia::Inet(gateway)) => self.gateway = Some((*gateway).into()),
            RouteAttribute::Via(RouteVia::Inet6(gateway)) => self.gateway = Some((*gateway).into()),
            RouteAttribute::Encap(_) => self.encapsulated = true,
            _ => {}
        }
    }
    fn hop(self, weight: u32, links: &HostLinks) -> Option<HostHop> {
        let link = links.get(&self.device?)?;
        (!self.encapsulated).then(|| HostHop {
            device: link.name.clone(),
            device_mtu_bytes: link.mtu_bytes,
            gateway: self.gateway.filter(|g| !g.is_unspecified()),
            weight,
        })
    }
}

pub(super) fn rule(message: &RuleMessage) -> HostRule {
    let header = &message.header;
    let mut rule = HostRule {
        priority: 0,
        v6: header.family == AddressFamily::Inet6,
        invert: header.flags.contains(RuleFlags::Invert),
        from: None,
        to: None,
        mark: 0,
        mark_mask: 0,
        elsewhere: header.tos != 0,
        action: HostRuleAction::Nop,
    };
    let mut table = u32::from(header.table);
    let (mut suppress_len, mut goto) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(priority) => rule.priority = *priority,
            RuleAttribute::Source(from) => rule.from = Some((*from, header.src_len)),
            RuleAttribute::Destination(to) => rule.to = Some((*to, header.dst_len)),
            RuleAttribute::FwMark(mark) => rule.mark = *mark,
            RuleAttribute::FwMask(mask) => rule.mark_mask = *mask,
            RuleAttribute::Table(number) => table = *number,
            RuleAttribute::Goto(priority) => goto = Some(*priority),
            // All ones: nothing is suppressed.
            RuleAttribute::SuppressPrefixLen(len) => suppress_len = u8::try_from(*len).ok(),
            RuleAttribute::Iifname(name) => rule.elsewhere |= name != LOOPBACK,
            RuleAttribute::UidRange(range) => rule.elsewhere |= range.start != 0,
            RuleAttribute::L3MDev(on) => rule.elsewhere |= *on,
            RuleAttribute::TunId(id) => rule.elsewhere |= *id != 0,
            RuleAttribute::Oifname(_)
            | RuleAttribute::IpProtocol(_)
            | RuleAttribute::SourcePortRange(_)
            | RuleAttribute::DestinationPortRange(_) => rule.elsewhere = true,
            _ => {}
        }
    }
    rule.action = match header.action {
        RuleAction::ToTable => HostRuleAction::Table(table, suppress_len),
        RuleAction::Goto => goto.map_or(HostRuleAction::Nop, HostRuleAction::Goto),
        RuleAction::Blackhole | RuleAction::Unreachable | RuleAction::Prohibit => HostRuleAction::Refuse,
        _ => HostRuleAction::Nop,
    };
    rule
}

/// A neighbour whose address is known.
pub(super) fn neighbour(message: NeighbourMessage, links: &HostLinks) -> Option<HostNeighbour> {
    let known = matches!(
        message.header.state,
        State::Reachable | State::Stale | State::Delay | State::Probe | State::Permanent
    );
    let stale = message.header.state == State::Stale;
    let (mut addr, mut mac) = (None, None);
    for attribute in message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(a)) => addr = Some(a.into()),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(a)) => addr = Some(a.into()),
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes.try_into().ok(),
            _ => {}
        }
    }
    let device = links.get(&message.header.ifindex)?.name.clone();
    let neighbour = HostNeighbour {
        device,
        addr: addr?,
        mac: mac?,
        stale,
    };
    known.then_some(neighbour)
}
