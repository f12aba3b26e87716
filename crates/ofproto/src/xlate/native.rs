//! Tunnels whose headers this switch writes and removes itself.
//!
//! **Output.** The route to the tunnel's remote address leads to a device, which may be the internal port of
//! some bridge. From there the packet, with its outer headers, goes through that bridge's pipeline in the
//! same translation. The translation emits the template of the headers, then the actions of that pipeline.
//! That pipeline matches the outer headers. If the device is no port of a bridge ([`UnderlayPort`]), the
//! packet leaves by it as it is.
//!
//! **Input.** A packet that is output to a port of this host ends a tunnel if it is for the port's address,
//! with the tunnel's protocol. It is looked up again, as received on the tunnel's port. So is a packet that
//! comes in by a device that is no port of a bridge ([`Pipeline::receive_outer`]).
//!
//! **Dependencies.** A translation depends on the route, the neighbour, the addresses of this host, and the
//! tunnels that end here ([`Part::TunnelEndpoints`]).

use super::ctx::{Ctx, key_port};
use super::recirc::{Frozen, Left};
use super::report::Kind;
use super::tunnel::fields;
use super::{Pipeline, mask};
use crate::model::{Binding, BridgeView, PortView, Snapshot};
use crate::parts::Part;
use crate::tunnels::{LocalEndpoint, Tunnel, address};
use crate::underlay::Underlay;
use crate::underlay_port::UnderlayPort;
use heddle_datapath_api::{Action as DpAction, Credit, DropReason, PortNo, Translation, Wait};
use heddle_flow::key::{frag, tun_flag};
use heddle_flow::{FlowKey, FlowMask, packet_type};
use heddle_openflow::{Action, Port};
use heddle_tunnel::config::Key;
use heddle_tunnel::neigh::NeighEntry;
use heddle_tunnel::routes::{Query, Route};
use heddle_tunnel::{Encap, Gbp, Outer, TunnelConfig, TunnelPop, TunnelType};
use heddle_wire::eth::{Ethernet, ethertype};
use heddle_wire::tunnel::Gtpu;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Bytes of an Ethernet header with a tag: devices receive tagged packets that are longer than their MTU.
const TAGGED_ETHERNET: usize = Ethernet::LEN + 4;

/// The bits of a tunnel's key that VXLAN and Geneve send as their VNI.
const VNI_BITS: u64 = 0xff_ffff;

/// Credit that keeps a neighbour's entry while there are packets for it.
struct Used(Arc<NeighEntry>);

impl Credit for Used {
    fn credit(&self, _packets: u64, _bytes: u64, used_ms: u64, _tcp_flags: u16) {
        self.0.used(used_ms);
    }
}

/// Credit for packets that are longer by their outer headers.
struct Longer {
    who: Arc<dyn Credit>,
    by_bytes: u64,
}

impl Credit for Longer {
    fn credit(&self, packets: u64, bytes: u64, used_ms: u64, tcp_flags: u16) {
        let bytes = bytes + packets * self.by_bytes;
        self.who.credit(packets, bytes, used_ms, tcp_flags);
    }
}

/// The port that a route leads to.
#[derive(Clone, Copy)]
enum Egress<'w> {
    /// A port of a bridge, and its datapath port.
    Bridge(&'w BridgeView, &'w PortView, PortNo),
    /// A device that is no port of a bridge.
    Device(&'w UnderlayPort),
}

/// The route to a tunnel's remote address, and the port that it leads to.
struct NextHop<'w> {
    egress: Egress<'w>,
    route: Route,
    /// Address of the next hop.
    next: IpAddr,
}

impl<'w> NextHop<'w> {
    /// The bridge or device by whose name the neighbour is known.
    fn link(&self) -> &'w str {
        match self.egress {
            Egress::Bridge(bridge, ..) => &bridge.name,
            Egress::Device(port) => &port.device,
        }
    }
    fn mac(&self) -> [u8; 6] {
        match self.egress {
            Egress::Bridge(_, port, _) => port.mac,
            Egress::Device(port) => port.mac,
        }
    }
    fn dp(&self) -> PortNo {
        match self.egress {
            Egress::Bridge(.., dp) => dp,
            Egress::Device(port) => port.no,
        }
    }
    /// Longest packet, with its IP header, bytes.
    fn mtu(&self) -> u32 {
        let mtu = self.route.mtu_bytes.unwrap_or(match self.egress {
            Egress::Bridge(_, port, _) => port.mtu,
            Egress::Device(port) => port.mtu,
        });
        self.route.path_mtu_bytes.map_or(mtu, |path| path.min(mtu))
    }
    /// Whether senders of longer packets get an error. Packets by a bridge's port get none for the MTU of the
    /// route: the bridge's rules may send them elsewhere.
    fn refuses_longer(&self) -> bool {
        matches!(self.egress, Egress::Device(_)) || self.route.path_mtu_bytes.is_some()
    }
}

impl<'w> Ctx<'w> {
    /// Outputs the packet, whose tunnel is in `flow`, with outer headers. `true`: it waits for a neighbour,
    /// and was not sent.
    pub(super) fn native_output(&mut self, from: &PortView, tunnel: &Tunnel, last: bool) -> bool {
        let Some(hop) = self.next_hop() else { return false };
        match self.next_mac(&hop) {
            Ok(mac) => self.send_out(from, tunnel, (&hop, mac), last),
            Err(requested) => return requested && self.wait_for(from, &hop),
        }
        false
    }

    /// Makes the packet wait for the next hop, whose address was requested, and be output then. `false`: it
    /// does not wait.
    fn wait_for(&mut self, from: &PortView, hop: &NextHop<'_>) -> bool {
        if self.trace.is_on() {
            return false;
        }
        let thing = self
            .input
            .pipeline
            .underlay
            .neighbours
            .thing(hop.link(), hop.next);
        let slot = Underlay::slot(thing);
        // The generation from before the neighbour was looked up.
        let Some(dep) = self.out.deps.iter().find(|d| d.slot == slot).copied() else {
            return false;
        };
        let port = match key_port(from.no) == self.flow.in_port {
            true => Port::IN_PORT,
            false => from.no,
        };
        let output = match self.out.truncation() {
            Some(max_len) => Action::OutputTrunc { port, max_len },
            None => Action::Output { port, max_len: 0 },
        };
        let metadata = self.kept_metadata();
        let frozen = Frozen {
            table: 0,
            // Mirrors have received the packet already.
            mirrored: u32::MAX,
            steps: vec![Left::Action(output)],
            ..self.frozen(metadata)
        };
        let Some(held) = self.input.pipeline.recircs.take(frozen, self.input.reading) else {
            return false;
        };
        self.out.emit(DpAction::Wait(Wait {
            slot,
            generation: dep.generation,
            recirc: held.id,
        }));
        self.out.credits.push(held);
        true
    }

    fn send_out(
        &mut self,
        from: &PortView,
        tunnel: &Tunnel,
        (hop, mac): (&NextHop<'w>, [u8; 6]),
        last: bool,
    ) {
        let at = self.out.actions.len();
        let text = |mac: [u8; 6]| mac.map(|b| format!("{b:02x}")).join(":");
        self.trace.report(Kind::Detail, || {
            let (from, to) = (text(hop.mac()), text(mac));
            format!("tunneling from {from} {} to {to} {}", hop.route.source, hop.next)
        });
        let outer = self.outer(tunnel, hop, mac);
        let Some((outer, mut push)) = outer.and_then(|o| o.build().ok().map(|push| (o, push))) else {
            self.trace.warn("native tunnel header build failed");
            self.out.drop_hint.get_or_insert(DropReason::TunnelAddress);
            return;
        };
        let (old_flow, old_base) = (self.flow, self.base.clone());
        let (old_mask, old_extra) = (self.out.mask, self.out.extra);
        *self.flow = of_outer(&self.flow, &outer);
        *self.base = of_outer(&self.base, &outer);
        push.csum_optional = tunnel.config.csum_optional;
        let by_bytes = push.header.len() as u64;
        let longest = self.longest_frame(hop, &outer, push.header.len());
        self.out.emit(DpAction::TunnelPush(Arc::new(push)));
        let n_credits = self.out.credits.len();
        match hop.egress {
            Egress::Bridge(bridge, port, _) => self.patch_output(from, bridge.id, port.no, last),
            Egress::Device(port) => self.out.emit(DpAction::Output(port.no)),
        }
        for i in n_credits..self.out.credits.len() {
            if let Some(who) = self.out.credits.get(i).cloned() {
                self.out.credits.put(i, Arc::new(Longer { who, by_bytes }));
            }
        }
        // The outer headers do not come from the packet: only mark and priority are its own.
        let marks = (self.out.mask.0.pkt_mark, self.out.mask.0.skb_priority);
        (self.out.mask, self.out.extra) = (old_mask, old_extra);
        self.out.mask.0.pkt_mark |= marks.0;
        self.out.mask.0.skb_priority |= marks.1;

        let emitted = self.out.actions.len() - at;
        (self.flow, self.base) = (old_flow, old_base);
        if emitted <= 1 {
            self.out.actions.truncate(at);
            return;
        }
        if let Some(len) = longest {
            self.refuse_longer(from, hop, len, at);
        }
        if !last {
            let inner: Vec<_> = self.out.actions.drain(at..).collect();
            self.out.emit(DpAction::Clone(inner));
        }
    }

    /// Length of the longest frame that fits into the route's MTU with `outer_len` bytes of outer headers.
    /// `None`: no length is compared. That is so unless [`NextHop::refuses_longer`], or if outer packets may
    /// be fragmented. It is also so with STT, for truncated packets, without an
    /// Ethernet header, and if the input port's MTU is small.
    fn longest_frame(&mut self, hop: &NextHop<'_>, outer: &Outer, outer_len: usize) -> Option<u16> {
        if !hop.refuses_longer() || !outer.df || self.flow.packet_type != packet_type::ETHERNET {
            return None;
        }
        // Frames of STT are sent in segments, and truncated packets are short.
        if matches!(outer.encap, Encap::Stt { .. }) || self.out.truncation().is_some() {
            return None;
        }
        let mtu = usize::try_from(hop.mtu()).ok()?;
        let len = (mtu + Ethernet::LEN).checked_sub(outer_len)?;
        let from = self.input.from.and_then(|(bridge, port)| {
            let bridge = self.input.snapshot.bridges.get(&bridge)?;
            self.port_of(bridge, port)
        });
        let received = from.map_or(0, |port| port.mtu) as usize;
        if received != 0 && received + TAGGED_ETHERNET <= len {
            return None;
        }
        u16::try_from(len).ok()
    }

    /// Limits the actions from index `at` to frames of at most `len` bytes. The sender of a longer frame gets
    /// an ICMP error, which the pipeline handles as a packet from the tunnel.
    fn refuse_longer(&mut self, from: &PortView, hop: &NextHop<'_>, len: u16, at: usize) {
        let less_equal: Vec<_> = self.out.actions.drain(at..).collect();
        let mut metadata = FlowKey {
            in_port: key_port(from.no),
            ..FlowKey::default()
        };
        let kept = self.kept_metadata();
        metadata.copy_tunnel(&kept);
        // The error has the tunnel's key and options, as in Linux, and comes from the remote address.
        (metadata.tun_src, metadata.tun_ipv6_src) = (self.flow.tun_dst, self.flow.tun_ipv6_dst);
        (metadata.tun_dst, metadata.tun_ipv6_dst) = match hop.route.source {
            IpAddr::V4(a) => (a.into(), [0; 16]),
            IpAddr::V6(a) => (0, a.octets()),
        };
        let frozen = Frozen {
            table: 0,
            conntracked: false,
            was_mpls: false,
            mirrored: 0,
            ..self.frozen(metadata)
        };
        // The connection is the packet's, and the error finds its own.
        let mut greater = vec![DpAction::TooBig { frame_len: len }, DpAction::CtClear];
        if let Some(held) = self.take_recirculation(frozen) {
            greater.push(DpAction::Recirc(held.id));
            self.out.credits.push(held);
        }
        self.out.emit(DpAction::CheckPktLen {
            len,
            greater,
            less_equal,
        });
    }

    /// The route to the tunnel's remote address, if there is one.
    fn next_hop(&mut self) -> Option<NextHop<'w>> {
        let dst = address(self.flow.tun_dst, self.flow.tun_ipv6_dst);
        let src = address(self.flow.tun_src, self.flow.tun_ipv6_src);
        let q = Query {
            mark: self.flow.pkt_mark,
            dst,
            src: (!src.is_unspecified()).then_some(src),
        };
        let routes = &self.input.pipeline.underlay.routes;
        self.out.depend(Underlay::slot(routes.thing(&q)));
        if routes.reads_marks() {
            self.out.extra().0.pkt_mark = u32::MAX;
        }
        let hop = routes.lookup(&q).and_then(|route| {
            let egress = self.egress_of(&route)?;
            let next = route.gateway.unwrap_or(dst);
            Some(NextHop { egress, route, next })
        });
        let Some(hop) = hop else {
            self.trace.warn("native tunnel routing failed");
            self.out.drop_hint.get_or_insert(DropReason::TunnelRoute);
            return None;
        };
        self.trace.report(Kind::Detail, || {
            format!("tunneling to {} via {}", hop.next, hop.route.device)
        });
        Some(hop)
    }

    /// The port of a route's device: a bridge's internal port, or any other port of the datapath.
    fn egress_of(&mut self, route: &Route) -> Option<Egress<'w>> {
        let (name, snapshot) = (&*route.device, self.input.snapshot);
        self.out.depend_on(Part::Underlay);
        if let Some(port) = snapshot.underlay.of_device(name) {
            // A packet to this host's own address leaves by no device.
            return (!route.local).then_some(Egress::Device(port));
        }
        let own = snapshot.bridges.values().find(|b| b.name == name);
        if let Some(bridge) = own {
            self.other_bridge(bridge.id);
            let port = self.port_of(bridge, Port::LOCAL)?;
            if let Binding::Datapath(no) = port.binding {
                return Some(Egress::Bridge(bridge, port, no));
            }
        }
        // A change of any port of any bridge may give the device another port.
        self.out.depend(crate::model::Snapshot::CONFIG_SLOT);
        snapshot.bridges.values().find_map(|bridge| {
            let port = bridge.ports.values().find(|p| p.name == name)?;
            match port.binding {
                Binding::Datapath(no) => Some(Egress::Bridge(bridge, port, no)),
                _ => None,
            }
        })
    }

    /// The Ethernet address of the next hop, or whether it was requested.
    fn next_mac(&mut self, hop: &NextHop<'_>) -> Result<[u8; 6], bool> {
        let (link, next) = (hop.link(), hop.next);
        let neighbours = &self.input.pipeline.underlay.neighbours;
        self.out.depend(Underlay::slot(neighbours.thing(link, next)));
        if let Some(entry) = neighbours.find(link, next, self.input.now_ms) {
            let mac = entry.mac;
            self.out.credits.push(Arc::new(Used(entry)));
            return Ok(mac);
        }
        if let Some(known) = neighbours.system(link, next) {
            if known.in_doubt {
                self.request_neighbour(hop);
            }
            return Ok(known.mac);
        }
        self.trace.report(Kind::Detail, || {
            let request = if next.is_ipv4() { "ARP" } else { "ND" };
            format!("neighbor cache miss for {next} on bridge {link}, sending {request} request")
        });
        self.out.drop_hint.get_or_insert(DropReason::TunnelNeighbour);
        Err(self.request_neighbour(hop))
    }

    /// Requests the address of the next hop. Returns whether the request was made.
    fn request_neighbour(&mut self, hop: &NextHop<'_>) -> bool {
        // A translation without a packet, for a cached entry, makes the request too. The route may have
        // appeared just now, and the next packet should not be lost. A trace without a packet makes none.
        // Without a request, the translation is not cached, so that the next packet makes it.
        let requested = (self.input.learn || !self.trace.is_on()) && {
            let (underlay, now_ms) = (&self.input.pipeline.underlay, self.input.now_ms);
            match hop.egress {
                Egress::Bridge(bridge, port, _) => {
                    underlay.request(bridge, port.no, hop.route.source, hop.next, now_ms)
                }
                Egress::Device(port) => underlay.request_from_kernel(&port.device, hop.next, now_ms),
            }
        };
        self.out.uncacheable |= !requested;
        requested
    }

    /// The outer headers for the tunnel fields of `flow`; `None`: they cannot be made.
    fn outer(&self, tunnel: &Tunnel, hop: &NextHop<'_>, mac: [u8; 6]) -> Option<Outer> {
        let f = &self.flow;
        let dst = address(f.tun_dst, f.tun_ipv6_dst);
        let flag = |bit: u16| f.tun_flags & bit != 0;
        Some(Outer {
            eth_src: hop.mac(),
            eth_dst: mac,
            src: hop.route.source,
            dst,
            tos: f.tun_tos,
            ttl: f.tun_ttl,
            df: flag(tun_flag::DF),
            label: 0,
            // UDP over IPv6 has a checksum by its standard; Open vSwitch always writes one.
            csum: flag(tun_flag::CSUM) || dst.is_ipv6() && tunnel.config.ty.has_dst_port(),
            source_ports: self.input.pipeline.underlay.source_ports(),
            encap: self.encapsulation(&tunnel.config)?,
            tunnel_port: tunnel.dp.0,
            out_port: hop.dp().0,
            mtu: hop.mtu(),
            numbers: tunnel.numbers.clone(),
        })
    }

    fn encapsulation(&self, config: &TunnelConfig) -> Option<Encap> {
        let f = &self.flow;
        let port = config.dst_port;
        let vni = u32::try_from(f.tun_id & VNI_BITS).ok()?;
        let word = u32::try_from(f.tun_id & u64::from(u32::MAX)).ok()?;
        let ethertype = match f.packet_type {
            packet_type::ETHERNET => Some(ethertype::TEB),
            ty if ty >> 16 == packet_type::NS_ETHERTYPE => u16::try_from(ty & 0xffff).ok(),
            _ => None,
        };
        Some(match config.ty {
            TunnelType::Geneve => {
                let map = self.at.bridge.tlv.as_ref();
                let written = map.map_or(Some((Vec::new(), false)), |m| heddle_tunnel::options::write(f, m));
                let (options, critical) = written?;
                let oam = f.tun_flags & tun_flag::OAM != 0;
                Encap::Geneve {
                    port,
                    vni,
                    oam,
                    critical,
                    options,
                }
            }
            TunnelType::Vxlan => Encap::Vxlan {
                port,
                vni,
                // A group policy that is zero is left out, as in Open vSwitch and Linux.
                gbp: (config.gbp && (f.tun_gbp_id, f.tun_gbp_flags) != (0, 0)).then_some(Gbp {
                    id: f.tun_gbp_id,
                    flags: f.tun_gbp_flags,
                }),
                gpe: match config.gpe {
                    true => Some(next_protocol(ethertype?)?),
                    false => None,
                },
            },
            TunnelType::Gre | TunnelType::Ip6gre => Encap::Gre {
                proto: ethertype?,
                key: (config.out_key != Key::Absent).then_some(word),
                seq: config.seq,
            },
            TunnelType::Erspan | TunnelType::Ip6erspan => {
                let session = u16::try_from(f.tun_id).ok()?;
                match f.tun_erspan_ver {
                    1 => Encap::Erspan1 {
                        session,
                        index: f.tun_erspan_idx,
                    },
                    2 => Encap::Erspan2 {
                        session,
                        egress: f.tun_erspan_dir != 0,
                        hwid: f.tun_erspan_hwid,
                    },
                    _ => return None,
                }
            }
            TunnelType::Gtpu => Encap::Gtpu {
                port,
                flags: if f.tun_gtpu_flags == 0 {
                    GTPU_FLAGS
                } else {
                    f.tun_gtpu_flags
                },
                message: if f.tun_gtpu_msgtype == 0 {
                    Gtpu::GPDU
                } else {
                    f.tun_gtpu_msgtype
                },
                teid: word,
                seq: config.seq,
            },
            TunnelType::Srv6 => Encap::Srv6 {
                segments: segments(config, f),
                next: match ethertype? {
                    ethertype::IP => 4,
                    ethertype::IPV6 => 41,
                    _ => return None,
                },
            },
            TunnelType::Stt => Encap::Stt { port, key: f.tun_id },
            TunnelType::Bareudp | TunnelType::Lisp => return None,
        })
    }

    /// The decapsulation for a packet that is output to this port, if it ends a tunnel there.
    pub(super) fn ends_tunnel(&mut self, port: &PortView) -> Option<Arc<TunnelPop>> {
        self.out.depend_on(Part::TunnelEndpoints);
        let snapshot = self.input.snapshot;
        let ends = snapshot.tunnels.endpoints();
        if ends.is_empty() || !self.at.is_native() {
            return None;
        }
        if !self.has_address(port) {
            return None;
        }
        let routes = &self.input.pipeline.underlay.routes;
        let (f, m) = (&self.flow, &mut self.out.mask.0);
        let dst = destination(f, m)?;
        if !routes.is_address(&port.name, dst) {
            return None;
        }
        m.dl_dst = [u8::MAX; 6];
        pop_for(ends, f, m, f.dl_dst == port.mac)
    }
}

impl Pipeline {
    /// The translation for a packet that came in by a device that is no port of a bridge. It comes out of a
    /// tunnel, or is dropped. The packet is for this host's Ethernet address.
    pub(super) fn receive_outer(&self, snapshot: &Snapshot, key: &FlowKey, out: &mut Translation) {
        let routes = &self.underlay.routes;
        let slots = [
            Part::TunnelEndpoints.slot(),
            Underlay::slot(routes.addresses_thing()),
        ];
        out.deps.extend(slots.map(|slot| self.generations.read(slot)));
        out.mask = FlowMask::default();
        mask::of_tunnel(&mut out.mask);
        let m = &mut out.mask.0;
        (m.in_port, m.recirc_id, m.packet_type) = (u32::MAX, u32::MAX, u32::MAX);
        let dst = destination(key, m).filter(|dst| routes.any_address(|a| a.addr == *dst));
        let pop = dst.and_then(|_| pop_for(snapshot.tunnels.endpoints(), key, m, true));
        mask::trim(&mut out.mask, key);
        out.actions
            .push(pop.map_or(DpAction::Drop(DropReason::NoTunnel), DpAction::TunnelPop));
    }
}

/// The destination of an IP packet.
fn destination(f: &FlowKey, m: &mut FlowKey) -> Option<IpAddr> {
    m.dl_type = u16::MAX;
    match f.dl_type {
        ethertype::IP => {
            m.nw_dst = u32::MAX;
            Some(address(f.nw_dst, [0; 16]))
        }
        ethertype::IPV6 => {
            m.ipv6_dst = [u8::MAX; 16];
            Some(address(0, f.ipv6_dst))
        }
        _ => None,
    }
}

/// The decapsulation for an IP packet to an address of this host. `is_for_us`: its Ethernet address is the
/// device's.
fn pop_for(ends: &[LocalEndpoint], f: &FlowKey, m: &mut FlowKey, is_for_us: bool) -> Option<Arc<TunnelPop>> {
    m.vlans[0].tci = u16::MAX;
    // A tag without a VLAN id has only a priority, and belongs to no VLAN.
    let mut is_of_vlan = f.vlans[0].tci & VLAN_VID != 0;
    if f.vlans[0].tci != 0 && !is_of_vlan {
        m.vlans[1].tci = u16::MAX;
        is_of_vlan = f.vlans[1].tci != 0;
    }
    (m.nw_proto, m.nw_frag) = (u8::MAX, frag::MASK);
    // The decapsulation drops first fragments and counts them. Later fragments have no ports.
    let is_later = f.nw_frag & frag::LATER != 0;
    if !is_for_us || is_of_vlan || is_later {
        return None;
    }
    let mut of_proto = ends.iter().filter(|e| e.has_protocol(f.nw_proto)).peekable();
    if of_proto.peek().is_some_and(|e| e.port != 0) {
        m.tp_dst = u16::MAX;
    }
    let is_v6 = f.dl_type == ethertype::IPV6;
    let end = of_proto
        .filter(|e| e.port == 0 || e.port == f.tp_dst)
        .min_by_key(|e| e.is_for_ipv6 != is_v6)?;
    Some(end.pop.clone())
}

/// Bits of a tag that are the VLAN's id.
const VLAN_VID: u16 = 0xfff;
/// GTP-U's first byte: version 1, GTP.
const GTPU_FLAGS: u8 = 0x30;

/// The next protocol of a VXLAN-GPE header.
fn next_protocol(ty: u16) -> Option<u8> {
    Some(match ty {
        ethertype::IP => 1,
        ethertype::IPV6 => 2,
        ethertype::TEB => 3,
        ethertype::NSH => 4,
        _ => return None,
    })
}

/// Segments of segment routing: the configured ones, or the remote address alone.
fn segments(config: &TunnelConfig, f: &FlowKey) -> Vec<[u8; 16]> {
    match config.segments.is_empty() {
        true => vec![f.tun_ipv6_dst],
        false => config.segments.iter().map(Ipv6Addr::octets).collect(),
    }
}

/// The key of a packet with these outer headers. Its metadata is that of `inner`.
fn of_outer(inner: &FlowKey, outer: &Outer) -> FlowKey {
    let mut key = FlowKey::default();
    key.copy_context(inner);
    (key.in_port, key.recirc_id) = (inner.in_port, inner.recirc_id);
    (key.dl_src, key.dl_dst) = (outer.eth_src, outer.eth_dst);
    (key.nw_src, key.ipv6_src) = fields(outer.src);
    (key.nw_dst, key.ipv6_dst) = fields(outer.dst);
    key.dl_type = if outer.dst.is_ipv4() {
        ethertype::IP
    } else {
        ethertype::IPV6
    };
    (key.nw_tos, key.nw_ttl) = (outer.tos, outer.ttl);
    key.nw_proto = outer.ip_proto();
    key.tp_dst = match outer.encap {
        Encap::Geneve { port, .. }
        | Encap::Vxlan { port, .. }
        | Encap::Gtpu { port, .. }
        | Encap::Stt { port, .. } => port,
        Encap::Gre { .. } | Encap::Erspan1 { .. } | Encap::Erspan2 { .. } | Encap::Srv6 { .. } => 0,
    };
    key
}
