//! Packets that come out of a tunnel here.

use super::super::ctx::Ctx;
use super::super::{Pipeline, mask};
use crate::model::{PortView, Snapshot};
use crate::parts::Part;
use crate::tunnels::{LocalEndpoint, address};
use crate::underlay::Underlay;
use heddle_datapath_api::{Action as DpAction, DropReason, Translation};
use heddle_flow::key::frag;
use heddle_flow::{FlowKey, FlowMask};
use heddle_tunnel::TunnelPop;
use heddle_wire::eth::ethertype;
use std::net::IpAddr;
use std::sync::Arc;

/// Bits of a tag that are the VLAN's id.
const VLAN_VID: u16 = 0xfff;

impl Ctx<'_> {
    /// The decapsulation for a packet that is output to this port, if it ends a tunnel there.
    pub(in crate::xlate) fn ends_tunnel(&mut self, port: &PortView) -> Option<Arc<TunnelPop>> {
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
    pub(in crate::xlate) fn receive_outer(&self, snapshot: &Snapshot, key: &FlowKey, out: &mut Translation) {
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
