//! Neighbours that this switch learns from packets on their way to this host.
//!
//! Packets that are output to a port with an address of this host may announce a neighbour. These are replies
//! to one of the bridge's addresses, ARP packets about their own sender, and neighbour advertisements to all
//! nodes. Packets of tunnels that leave by that bridge are sent to the learned addresses.
//!
//! The translation depends on the neighbour that it has learned. If another packet changes the neighbour, the
//! cached translation is made again, and its next packet sets the neighbour again.

use super::ctx::Ctx;
use crate::model::{BridgeView, PortView};
use crate::underlay::Underlay;
use heddle_flow::FlowKey;
use heddle_flow::key::{Vlan, frag};
use heddle_tunnel::neigh::{Learned, Mac, Origin, advertised, solicited_node};
use heddle_tunnel::routes::Address;
use heddle_wire::eth::ethertype;
use heddle_wire::icmp::ND_ADVERT;
use heddle_wire::ip::proto;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Flags of a neighbour advertisement.
const NA_SOLICITED: u32 = 0x4000_0000;
const NA_OVERRIDE: u32 = 0x2000_0000;
/// The group of all nodes on a link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::from_bits(0xff02 << 112 | 1);

impl Ctx<'_> {
    /// Learns from a packet that is output to `port`.
    pub(super) fn snoop(&mut self, port: &PortView) {
        let is_arp = self.flow.dl_type == ethertype::ARP;
        if !is_arp && (self.flow.dl_type, self.flow.nw_proto) != (ethertype::IPV6, proto::ICMPV6) {
            // All masks have the EtherType. The protocol of IPv6 packets matters if the port has an address.
            if self.flow.dl_type == ethertype::IPV6 && self.has_address(port) {
                self.out.extra().0.nw_proto = u8::MAX;
            }
            return;
        }
        if !self.at.is_native() || !self.has_address(port) || self.is_in_a_vlan() {
            return;
        }
        let speaks_of_itself = is_arp && {
            let m = &mut self.out.mask.0;
            (m.nw_src, m.nw_dst) = (u32::MAX, u32::MAX);
            self.flow.nw_src == self.flow.nw_dst
        };
        if !is_arp && self.announces() {
            return self.meet_announced();
        }
        if !speaks_of_itself && !self.is_for_us() {
            return;
        }
        let Some(told) = advertised(&self.flow, &mut self.out.mask) else {
            return;
        };
        if !is_arp {
            let m = &mut self.out.mask.0;
            (m.ipv6_src, m.ipv6_dst) = ([u8::MAX; 16], [u8::MAX; 16]);
        }
        self.learn_neighbour(told);
    }

    /// Learns the sender of an outer packet that is decapsulated here. Only neighbours that are known or
    /// requested are learned: most senders are behind routers.
    pub(super) fn meet_sender(&mut self) {
        let (f, now_ms) = (&self.flow, self.input.now_ms);
        let ip = match f.dl_type {
            ethertype::IP => IpAddr::from(Ipv4Addr::from_bits(f.nw_src)),
            _ => IpAddr::from(Ipv6Addr::from(f.ipv6_src)),
        };
        let mac = f.dl_src;
        // A translation for a cached entry does not know the bits outside of the mask: the address is zero
        // there.
        if mac != [0; 6]
            && self
                .input
                .pipeline
                .underlay
                .neighbours
                .wants(&self.at.bridge.name, ip, now_ms)
        {
            self.learn_neighbour((ip, mac));
        }
    }

    /// Whether the packet is an unsolicited neighbour advertisement to all nodes with the override flag (RFC
    /// 4861, 7.2.6).
    fn announces(&mut self) -> bool {
        let f = &self.flow;
        let m = &mut self.out.mask.0;
        m.ipv6_dst = [u8::MAX; 16];
        if Ipv6Addr::from(f.ipv6_dst) != ALL_NODES {
            return false;
        }
        m.nw_frag = frag::MASK;
        (m.tp_src, m.tp_dst) = (u16::MAX, u16::MAX);
        if f.nw_frag & frag::LATER != 0 || (f.tp_src, f.tp_dst) != (ND_ADVERT.into(), 0) {
            return false;
        }
        // The word behind type and code, which keys hold in the field of IGMP's group.
        m.igmp_group |= NA_SOLICITED | NA_OVERRIDE;
        f.igmp_group & (NA_SOLICITED | NA_OVERRIDE) == NA_OVERRIDE
    }

    /// Learns from an announcement of a neighbour that is known or requested. An announcement makes no new
    /// entry (RFC 4861, 7.2.5).
    fn meet_announced(&mut self) {
        let Some((ip, mac)) = advertised(&self.flow, &mut self.out.mask) else {
            return;
        };
        let neighbours = &self.input.pipeline.underlay.neighbours;
        if neighbours.wants(&self.at.bridge.name, ip, self.input.now_ms) {
            return self.learn_neighbour((ip, mac));
        }
        let slot = Underlay::slot(neighbours.thing(&self.at.bridge.name, ip));
        self.out.depend(slot);
    }

    /// Whether the packet belongs to a VLAN (a tag with VLAN 0 carries only a priority). The host gives it to
    /// the VLAN's device: in that network the same address may belong to another neighbour.
    fn is_in_a_vlan(&mut self) -> bool {
        self.out.mask.0.vlans[0].tci |= Vlan::VID_MASK | Vlan::CFI;
        let tag = self.flow.vlans[0];
        tag.present() && tag.tci & Vlan::VID_MASK != 0
    }

    /// Whether a port's device has an address of this host. The translation depends on that.
    pub(super) fn has_address(&mut self, port: &PortView) -> bool {
        let routes = &self.input.pipeline.underlay.routes;
        self.out
            .depend_once(Underlay::slot(routes.device_thing(&port.name)));
        routes.has_address(&port.name)
    }

    /// Whether the packet is for an address of one of the bridge's ports.
    fn is_for_us(&mut self) -> bool {
        let bridge = self.at.bridge;
        let is_arp = self.flow.dl_type == ethertype::ARP;
        if !is_arp {
            self.out.extra().0.ipv6_dst = [u8::MAX; 16];
        }
        self.look_at_all_ports();
        self.out.depend_once(Underlay::slot(
            self.input.pipeline.underlay.routes.addresses_thing(),
        ));
        let flow = &self.flow;
        self.input
            .pipeline
            .underlay
            .routes
            .any_address(|a| is_meant(flow, a) && is_on(bridge, &a.device))
    }

    /// Learns a neighbour on the current bridge.
    fn learn_neighbour(&mut self, (ip, mac): (IpAddr, Mac)) {
        let neighbours = &self.input.pipeline.underlay.neighbours;
        let bridge = &self.at.bridge.name;
        if self.input.learn {
            let origin = Origin::Port {
                bridge: self.at.bridge.id,
                port: super::of_port(self.flow.in_port).0,
            };
            match neighbours.learn(bridge, (ip, mac), origin, self.input.now_ms) {
                Learned::Same | Learned::New => {}
                Learned::Busy => self.out.uncacheable = true,
            }
        }
        self.out.depend(Underlay::slot(neighbours.thing(bridge, ip)));
        // Another packet may have changed the neighbour just now, or this translation may not learn. Then the
        // next packet is to learn.
        if neighbours.lookup(bridge, ip, self.input.now_ms) != Some(mac) {
            self.out.uncacheable = true;
        }
    }
}

/// Whether the packet is for this address: ARP for it, or IPv6 to it or to its solicited-node group.
fn is_meant(flow: &FlowKey, address: &Address) -> bool {
    match address.addr {
        IpAddr::V4(own) => flow.dl_type == ethertype::ARP && Ipv4Addr::from_bits(flow.nw_dst) == own,
        IpAddr::V6(own) => {
            let dst = Ipv6Addr::from(flow.ipv6_dst);
            let whole = flow.nw_frag & frag::LATER == 0;
            flow.dl_type == ethertype::IPV6 && whole && (dst == own || dst == solicited_node(own))
        }
    }
}

fn is_on(bridge: &BridgeView, device: &str) -> bool {
    bridge.ports.iter().any(|(_, port)| port.name == device)
}
