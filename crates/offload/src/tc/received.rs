//! Packets out of tunnels: the kernel's tunnel devices take the outer headers off, and filters at these
//! devices forward what was inside.
//!
//! **Two filters for a packet.** The *outer* flow ends the tunnel. Its filter is at the underlay's device,
//! and passes the packet to the host's stack, whose tunnel device decapsulates it. The *inner* flow comes in
//! by the tunnel's port. Its filter is at the tunnel device, and also matches on the tunnel. A network card
//! has inner filters only: it decapsulates by itself.
//!
//! **One owner.** Outer packets pass to the host's stack only while the tunnel device has the programs of
//! [`super::tunnel_programs`] and there is an inner filter. The programs drop packets of strangers, and give
//! packets without a filter back to workers, with outer headers. All other outer packets stay with workers.
//!
//! **Match.** The filters match fewer packets than the flows. An outer packet with ECT(1) or "congestion
//! experienced" stays with workers: the kernel would change or drop the packet inside. The filters leave open
//! whether an outer packet had a UDP checksum, since no OpenFlow rule can match on that.
//!
//! **Counts.** The filter of an outer flow also counts packets that come back. So its count is not used:
//! packets of inner filters are counted for the outer flow to the same address, too.

use super::attrs::{self, TunnelMatch};
use super::flows::FilterTable;
use super::installed::Installed;
use super::keys::Keys;
use super::side::{LocalEnd, TcSide};
use super::tunnel_devices::TunnelId;
use super::tunnel_programs::{Source, TunnelPrograms, origin_of};
use super::{ENDS_HERE, TcPolicy, actions, message};
use crate::rule::{TUN_IPV6, TUN_OPTION, TUN_OTHER, VLAN_PRESENT};
use crate::{Decap, Handle, Headers, Rule, Why};
use heddle_datapath_api::{FlowCounts, PortNo};
use heddle_sys::LinkCtl;
use heddle_sys::tunnel_links::TunnelLinkKind;
use netlink_packet_route::tc::TcFilterFlowerOption as Key;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

const IPV4: u16 = 0x0800;
const UDP: u8 = 17;
/// The ECN bit that "congestion experienced" and ECT(1) have. Packets without it are decapsulated unchanged.
const ECN_LOW_BIT: u8 = 1;
/// Lengths of Ethernet with IP, and of UDP with VXLAN's or Geneve's header, and of an option, bytes.
const ETHERNET_AND_IPV4: u64 = 34;
const ETHERNET_AND_IPV6: u64 = 54;
const UDP_AND_TUNNEL: u64 = 16;
const OPTION: u64 = 8;

/// A tunnel port's tunnels, as the flows that end them name them.
#[derive(Debug)]
struct TunnelPort {
    id: TunnelId,
    /// Class and type of the option that is a match field.
    option: Option<(u16, u8)>,
    /// Ports that outer packets come in by.
    underlay: BTreeSet<PortNo>,
}

/// State of packets out of tunnels.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// `None`: not needed yet.
    programs: Option<Result<TunnelPrograms, Why>>,
    /// Devices that have the programs.
    attached: HashSet<u32>,
    ports: HashMap<PortNo, TunnelPort>,
    /// Installed outer flows, with counts that were not read yet.
    outer: HashMap<Handle, FlowCounts>,
    by_end: HashMap<LocalEnd, Handle>,
    /// Origins of removed filters. Packets that these filters have passed may still be on their way.
    retired: Vec<u32>,
}

impl Received {
    /// Takes a tunnel port's tunnels from the flow that ends them. Returns whether they were unknown.
    fn learn(&mut self, decap: Decap, id: TunnelId, underlay: PortNo) -> bool {
        let known = self
            .ports
            .get_mut(&decap.port)
            .filter(|p| p.id == id && p.option == decap.option);
        match known {
            Some(port) => {
                port.underlay.insert(underlay);
                false
            }
            None => {
                let port = TunnelPort {
                    id,
                    option: decap.option,
                    underlay: [underlay].into(),
                };
                self.ports.insert(decap.port, port);
                true
            }
        }
    }
    /// The programs, which are loaded at the first call.
    fn loaded(&mut self) -> Result<&mut TunnelPrograms, Why> {
        let programs = self.programs.get_or_insert_with(TunnelPrograms::load);
        programs.as_mut().map_err(|why| *why)
    }
    /// Ports of these tunnels, and ports that their outer packets come in by.
    fn ports_of(&self, id: TunnelId) -> impl Iterator<Item = (PortNo, &BTreeSet<PortNo>)> {
        let of = self.ports.iter().filter(move |(_, port)| port.id == id);
        of.map(|(no, port)| (*no, &port.underlay))
    }
    pub(super) fn insert_outer(&mut self, at: Handle, end: LocalEnd, origin: u32) {
        self.outer.insert(at, FlowCounts::default());
        self.by_end.insert(end, at);
        self.retired.retain(|o| *o != origin);
    }
    /// Removes an outer flow; returns its counts.
    pub(super) fn remove_outer(&mut self, at: Handle, end: LocalEnd, origin: u32) -> FlowCounts {
        if self.by_end.get(&end) == Some(&at) {
            self.by_end.remove(&end);
        }
        self.retired.push(origin);
        self.outer.remove(&at).unwrap_or_default()
    }
    /// Counts packets of a flow that comes out of a tunnel for the flow that ends the tunnel.
    pub(super) fn credit_outer(&mut self, side: TcSide, n: FlowCounts) {
        let TcSide::Inner {
            end: Some(end),
            outer_len,
            ..
        } = side
        else {
            return;
        };
        let at = self.by_end.get(&end);
        if let Some(all) = at.and_then(|at| self.outer.get_mut(at)) {
            all.packets += n.packets;
            all.bytes += n.bytes + outer_len * n.packets;
            all.used_ms = all.used_ms.max(n.used_ms);
        }
    }
    /// Gives `f` the counts of outer flows since the last call.
    pub(super) fn counters(&mut self, f: &mut dyn FnMut(Handle, FlowCounts)) {
        for (at, n) in self.outer.iter_mut().filter(|(_, n)| n.packets > 0) {
            f(*at, std::mem::take(n));
        }
    }
    /// Forgets the origins of filters that were removed before the last call: a call is made about once a
    /// second.
    pub(super) fn forget_retired(&mut self) {
        if let Some(Ok(programs)) = &mut self.programs {
            self.retired.drain(..).for_each(|origin| programs.forget(origin));
        }
    }
}

/// The tunnels that a flow of outer packets ends.
fn id_of(rule: &Rule, decap: Decap) -> Result<TunnelId, Why> {
    let (k, m) = (&rule.key, &rule.mask);
    if m.nw_proto != u8::MAX || k.nw_proto != UDP || m.tp_dst != u16::MAX {
        return Err(Why::Match);
    }
    let kind = match decap.geneve {
        true => TunnelLinkKind::Geneve,
        false => TunnelLinkKind::Vxlan,
    };
    Ok((kind, k.tp_dst))
}

/// Keys for the outer packets of a flow.
pub(super) fn outer_keys(rule: &Rule) -> Result<Keys, Why> {
    const OTHER: Why = Why::Tunnel("ends here, and its outer packets are matched on rare fields");
    let (k, m) = (&rule.key, &rule.mask);
    // The pipeline of a bridge matches on the destination, which is the bridge's address.
    if m.dl_dst != [0; 6] {
        return Err(Why::Tunnel(
            "ends at a port of a bridge, and filters only take packets out of it at a device in no bridge",
        ));
    }
    // The source is written anew for packets that come back.
    if m.dl_src != [0; 6] || m.tp_src != 0 || k.vlan & VLAN_PRESENT != 0 || k.nw_tos & ECN_LOW_BIT != 0 {
        return Err(OTHER);
    }
    let mut narrow = rule.clone();
    narrow.mask.nw_tos |= ECN_LOW_BIT;
    Keys::of(&narrow)
}

/// The match of an inner flow on its tunnel.
fn tunnel_match(
    k: &Headers,
    m: &Headers,
    id: TunnelId,
    known: Option<(u16, u8)>,
) -> Result<TunnelMatch, Why> {
    let is_v6 = k.tun_flags & TUN_IPV6 != 0;
    let ip = |all: &[u8; 16]| -> IpAddr {
        match is_v6 {
            true => (*all).into(),
            false => [all[0], all[1], all[2], all[3]].into(),
        }
    };
    if m.tun_flags & TUN_OTHER != 0 {
        return Err(Why::Tunnel("has options, or flags, that flower does not match"));
    }
    let vni = match m.tun_id {
        0 => None,
        // An identifier has 24 bits.
        mask if mask & 0x00ff_ffff == 0x00ff_ffff => Some(k.tun_id),
        _ => return Err(Why::Partly),
    };
    let wants = m.tun_flags & TUN_OPTION != 0 || m.tun_opt != [0; 4];
    let has = k.tun_flags & TUN_OPTION != 0 || k.tun_opt != [0; 4];
    let option = match (wants, has, known) {
        (false, ..) => None,
        (true, true, Some((class, kind))) => Some((class, kind, k.tun_opt, m.tun_opt)),
        _ => return Err(Why::Tunnel("is matched on an option that is not there")),
    };
    Ok(TunnelMatch {
        src: (ip(&k.tun_src), ip(&m.tun_src)),
        dst: (ip(&k.tun_dst), ip(&m.tun_dst)),
        id: vni,
        port: id.1,
        tos: (k.tun_tos, m.tun_tos),
        ttl: (k.tun_ttl, m.tun_ttl),
        option,
    })
}

/// Keys for packets of an inner flow. `known`: class and type of the option that is a match field.
pub(super) fn inner_keys(rule: &Rule, id: TunnelId, known: Option<(u16, u8)>) -> Result<Keys, Why> {
    let tunnel = tunnel_match(&rule.key, &rule.mask, id, known)?;
    let mut keys = Keys::of(rule)?;
    keys.keys
        .extend(attrs::tunnel_keys(&tunnel).into_iter().map(Key::Other));
    Ok(keys)
}

/// Whether the kernel drops a packet of IPv4 that comes in by another device than its route back leads to. It
/// uses the higher one of two settings.
fn has_strict_check(device: &str) -> bool {
    const STRICT: u8 = 1;
    let of = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"));
        text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    of("all").max(of(device)) == STRICT
}

impl FilterTable {
    /// Whether the kernel's tunnel devices receive packets. Otherwise eBPF takes them, or only cards run
    /// filters.
    fn receives(&self) -> bool {
        self.alone && self.policy != TcPolicy::SkipSw
    }
    /// Whether flows out of tunnels can be filters: of the kernel, or of a card.
    fn takes_inner(&self) -> bool {
        let has_card = || self.devices.values().any(|d| d.is_card);
        self.receives() || self.policy != TcPolicy::SkipHw && has_card()
    }
    /// Adds the filter of a flow that ends a tunnel.
    pub(super) fn add_outer(
        &mut self,
        at: Handle,
        rule: &Rule,
        decap: Decap,
        second: bool,
    ) -> Result<Installed, Why> {
        let id = id_of(rule, decap)?;
        if self.received.learn(decap, id, rule.in_port) {
            self.ports.mark_port(decap.port);
        }
        let way = self.input(rule)?;
        let device = self.devices.get(&way.ifindex).filter(|_| self.receives());
        let Some((name, miss)) = device.and_then(|d| Some((d.name.clone(), d.miss.as_ref()?.ifindex))) else {
            return Err(ENDS_HERE);
        };
        let keys = outer_keys(rule)?;
        if keys.protocol == IPV4 && has_strict_check(&name) {
            return Err(Why::Tunnel(
                "ends at a device where the kernel checks sources strictly (rp_filter is 1; 2 is loose)",
            ));
        }
        if !self.tunnels.receives(id) {
            return Err(Why::Tunnel("ends here, and no flow out of it has a filter"));
        }
        let origin = origin_of(self.cookie, at).ok_or(Why::Full)?;
        let Some(Ok(programs)) = &mut self.received.programs else {
            return Err(ENDS_HERE);
        };
        let source = Source {
            miss,
            // Packets to other addresses do not reach the tunnel device.
            eth_dst: LinkCtl::new()
                .and_then(|l| l.mac(&name))
                .map_err(|_| Why::InPort)?,
            eth_src: rule.key.dl_src,
            port: id.1,
            is_geneve: decap.geneve,
        };
        programs.set(origin, source)?;
        let filter_id = self.filter_id(at, way.ifindex, keys.protocol, second);
        let actions = actions::to_host(origin, self.cookie);
        self.add_filter(filter_id, keys, actions, message::SKIP_HW, false)?;
        let end = LocalEnd {
            port: decap.port,
            dst: rule.key.dst,
        };
        let side = TcSide::Outer {
            tunnel: id,
            end,
            origin,
        };
        Ok(Installed::new(rule, filter_id, second, side))
    }
    /// Adds the filter of a flow that comes in by a tunnel's port.
    pub(super) fn add_inner(&mut self, at: Handle, rule: &Rule, second: bool) -> Result<Installed, Why> {
        if !self.takes_inner() {
            return Err(ENDS_HERE);
        }
        let port = self.received.ports.get(&rule.in_port).ok_or(Why::InPort)?;
        let (id, known) = (port.id, port.option);
        if rule.key.recirc != 0 {
            return Err(Why::Connection);
        }
        self.check_outputs(rule)?;
        let keys = inner_keys(rule, id, known)?;
        let receives = self.receives();
        if receives {
            self.received.loaded()?;
        }
        let ifindex = self.tunnels.device_of(&mut self.batch, id)?;
        if receives {
            self.attach_programs(id, ifindex)?;
        }
        let filter_id = self.filter_id(at, ifindex, keys.protocol, second);
        self.add(filter_id, keys, rule)?;
        let (k, m) = (&rule.key, &rule.mask);
        let (is_v6, has_option) = (k.tun_flags & TUN_IPV6 != 0, m.tun_flags & TUN_OPTION != 0);
        let ip = if is_v6 {
            ETHERNET_AND_IPV6
        } else {
            ETHERNET_AND_IPV4
        };
        let all = if is_v6 { 16 } else { 4 };
        let end = m.tun_dst.starts_with(&[0xff; 16][..all]).then_some(LocalEnd {
            port: rule.in_port,
            dst: k.tun_dst,
        });
        let side = TcSide::Inner {
            tunnel: id,
            end,
            outer_len: ip + UDP_AND_TUNNEL + if has_option { OPTION } else { 0 },
        };
        Ok(Installed::new(rule, filter_id, second, side))
    }
    /// Attaches this process's programs to a tunnel device, if it does not have them.
    fn attach_programs(&mut self, id: TunnelId, ifindex: u32) -> Result<(), Why> {
        if self.received.attached.contains(&ifindex) {
            return Ok(());
        }
        let name = id.0.device_name(id.1);
        let refused = |e: std::io::Error| {
            log::warn!(target: "netdev_offload", per_min = 5, burst = 5; "{name}: workers take packets out of its tunnels: {e}");
            Why::Tunnel("ends here, and the programs of filters out of tunnels cannot be attached")
        };
        let programs = self.received.loaded()?;
        // From now on no packet passes to the host's stack. Then the filter that drops all packets can go.
        programs.attach_first(&name).map_err(refused)?;
        super::miss_filter::remove_miss_filter(&mut self.batch, ifindex);
        programs.attach_last(&name).map_err(refused)?;
        self.received.attached.insert(ifindex);
        Ok(())
    }
    /// Outer packets of these tunnels begin to pass to the host's stack, or end to: their flows are installed
    /// again.
    pub(super) fn reinstall_outer(&mut self, id: TunnelId) {
        for (_, underlay) in self.received.ports_of(id) {
            underlay.iter().for_each(|no| self.ports.mark_port(*no));
        }
    }
    /// Flows out of these tunnels are installed again.
    pub(super) fn reinstall_inner(&mut self, id: TunnelId) {
        let all: Vec<PortNo> = self.received.ports_of(id).map(|(no, _)| no).collect();
        all.into_iter().for_each(|no| self.ports.mark_port(no));
    }
    /// The devices of these tunnels are gone: flows into the tunnels and out of them are installed again.
    fn reinstall_flows_of(&mut self, tunnels: &[TunnelId]) {
        let of = |flow: &&Installed| flow.side.tunnel().is_some_and(|id| tunnels.contains(&id));
        let behind = self.paths.copies.values().map(|copy| &copy.flow);
        for flow in self.installed.values().chain(behind).filter(of) {
            self.ports.mark_port(flow.in_port);
        }
        tunnels.iter().for_each(|id| self.reinstall_outer(*id));
    }
    /// Makes and removes what tunnels need, about once a second.
    pub(super) fn check_tunnels(&mut self) {
        let checked = self.tunnels.check(self.adopted() > 0);
        for (id, ifindex) in &checked.gone {
            self.forget_device(*ifindex);
            let name = id.0.device_name(id.1);
            log::warn!(target: "netdev_offload", "{name}: another program removed it; flows of its tunnels are installed again");
        }
        let gone: Vec<TunnelId> = checked.gone.iter().map(|(id, _)| *id).collect();
        self.reinstall_flows_of(&gone);
        checked.closed.iter().for_each(|id| self.reinstall_outer(*id));
        checked
            .removed
            .iter()
            .for_each(|ifindex| self.forget_device(*ifindex));
        self.received.forget_retired();
    }
    /// A tunnel device is gone.
    pub(super) fn forget_device(&mut self, ifindex: u32) {
        self.received.attached.remove(&ifindex);
    }
}
