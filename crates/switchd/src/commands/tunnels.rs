//! `tnl/ports/show` and `tnl/egress_port_range`: endpoints of tunnels, and the source ports of their packets.

use std::fmt::Write as _;
use std::net::IpAddr;

use heddle_flow::key::frag;
use heddle_flow::odp::format_key;
use heddle_flow::{FlowKey, FlowMask};
use heddle_ofproto::tunnels::LocalEndpoint;

use super::Commands;
use crate::switch::Switch;
use heddle_daemon::unixctl::Reply;

/// EtherTypes.
const IPV4: u16 = 0x0800;
/// See [`IPV4`].
const IPV6: u16 = 0x86dd;

pub(super) fn register(c: &Commands<'_>) {
    c.add("tnl/ports/show", "-v", (0, 1), |s, args| match args {
        [v] if v.eq_ignore_ascii_case("-v") => Ok(ends(s)),
        _ => Ok(ports(s)),
    });
    c.add("tnl/egress_port_range", "min max", (0, 2), port_range);
}

/// A line for each port of the datapath that tunnels end at.
fn ports(switch: &Switch) -> String {
    let snapshot = switch.ofproto.pipeline().snapshot();
    let inventory = switch.inventory.read();
    let mut out = String::from("Listening ports:\n");
    for (name, port) in &inventory.shared {
        let Some(no) = port
            .dp_no
            .filter(|no| snapshot.tunnels.endpoints().iter().any(|e| e.pop.port == no.0))
        else {
            continue;
        };
        let users = inventory
            .interfaces
            .values()
            .filter(|i| i.shares && i.dp_no == Some(no));
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name} ({}) ref_cnt={}", no.0, users.count());
    }
    out
}

/// A line for each address and each kind of packets that come out of a tunnel there.
fn ends(switch: &Switch) -> String {
    let pipeline = switch.ofproto.pipeline();
    let snapshot = pipeline.snapshot();
    let inventory = switch.inventory.read();
    let mut out = String::from("Listening ports:\n");
    for address in pipeline.underlay().routes.addresses() {
        let mut all = snapshot.bridges.values().flat_map(|b| b.ports.values());
        let port = all.find(|p| *p.name == *address.device).map(|p| p.mac);
        let outside = || snapshot.underlay.of_device(&address.device).map(|p| p.mac);
        let Some(mac) = port.or_else(outside) else {
            continue;
        };
        for end in snapshot.tunnels.endpoints() {
            let shared = inventory
                .shared
                .iter()
                .find(|(_, i)| i.dp_no.is_some_and(|no| no.0 == end.pop.port));
            for proto in end.protocols() {
                let (key, mask) = packets(end, *proto, mac, address.addr);
                let name = shared.map_or("", |(name, _)| name.as_str());
                let _ = writeln!(out, "{name} ({}) : {}", end.pop.port, format_key(&key, &mask));
            }
        }
    }
    out
}

/// The packets to an address that come out of a tunnel.
fn packets(end: &LocalEndpoint, proto: u8, mac: [u8; 6], to: IpAddr) -> (FlowKey, FlowMask) {
    let mut key = FlowKey {
        dl_dst: mac,
        nw_proto: proto,
        tp_dst: end.port,
        ..FlowKey::default()
    };
    let mut mask = FlowMask::default();
    let m = &mut mask.0;
    (m.dl_dst, m.dl_type, m.nw_proto) = ([u8::MAX; 6], u16::MAX, u8::MAX);
    (m.nw_frag, m.vlans[0].tci) = (frag::MASK, u16::MAX);
    match to {
        IpAddr::V4(to) => (key.dl_type, key.nw_dst, m.nw_dst) = (IPV4, to.to_bits(), u32::MAX),
        IpAddr::V6(to) => {
            (key.dl_type, key.ipv6_dst, m.ipv6_dst) = (IPV6, to.octets(), [u8::MAX; 16]);
        }
    }
    if end.port != 0 {
        m.tp_dst = u16::MAX;
    }
    (key, mask)
}

fn port_range(switch: &Switch, args: &[&str]) -> Reply {
    let underlay = switch.ofproto.pipeline().underlay();
    let [min, max] = args else {
        let (min, max) = underlay.source_ports();
        return Ok(format!("Tunnel UDP source port range: {min}-{max}\n"));
    };
    let port = |text: &str| text.parse().ok().filter(|port: &u16| *port != 0);
    let Some(min) = port(min) else {
        return Ok("Invalid min.".into());
    };
    let Some(max) = port(max) else {
        return Ok("Invalid max.".into());
    };
    underlay.set_source_ports(min.min(max), min.max(max));
    switch.datapath.purge();
    Ok("OK".into())
}
