//! `Interface.status` of a tunnel: the device that its packets leave by, or the reason why they cannot leave.

use std::net::IpAddr;

use heddle_port::PortStatus;
use heddle_tunnel::config::Local;
use heddle_tunnel::routes::{Query, Route};

use super::{Body, Iface};
use crate::switch::Switch;

/// The key of the reason.
const NO_EGRESS: &str = "tunnel_egress_error";

/// The status of an interface; empty if it is no tunnel, or flows choose the remote.
pub(super) fn tunnel_status(iface: &Iface, switch: &Switch) -> Vec<(String, String)> {
    let Body::Tunnel(tunnel) = &iface.body else {
        return Vec::new();
    };
    let config = &tunnel.config;
    let Some(dst) = config.remote else {
        return Vec::new();
    };
    let query = Query {
        mark: config.egress_pkt_mark.unwrap_or(0),
        dst,
        src: match config.local {
            Local::Is(src) => Some(src),
            Local::Any | Local::Flow => None,
        },
    };
    let route = switch.ofproto.pipeline().underlay().routes.lookup(&query);
    let mut all = match &route {
        Some(route) => {
            let carrier = if has_carrier(&route.device, switch) {
                "up"
            } else {
                "down"
            };
            vec![
                ("tunnel_egress_iface", route.device.to_string()),
                ("tunnel_egress_iface_carrier", carrier.to_owned()),
            ]
        }
        None => Vec::new(),
    };
    let why = match &route {
        _ if !config.writes_headers() => Some(match config.ty.name() {
            ty @ ("erspan" | "ip6erspan") => format!("{ty} without erspan_ver sends nothing"),
            ty => format!("tunnels of type {ty} are not supported"),
        }),
        Some(route) => unusable(route, dst, switch),
        None => {
            let from = query.src.map_or_else(String::new, |src| format!(" from {src}"));
            Some(format!("no route to {dst}{from}"))
        }
    };
    all.extend(why.map(|why| (NO_EGRESS, why)));
    all.into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// Why packets cannot leave by the device of a route.
fn unusable(route: &Route, dst: IpAddr, switch: &Switch) -> Option<String> {
    let device = &*route.device;
    let inventory = switch.inventory.read();
    if let Some(item) = inventory.interfaces.get(device)
        && let Some(port) = &item.device
    {
        // The host's stack gets no packet that comes in by such a port.
        let routes = &switch.ofproto.pipeline().underlay().routes;
        let has_address = port.kind() == "system" && routes.is_address(device, route.source);
        let bridge = &item.bridge;
        return has_address.then(|| {
            format!(
                "the route to {dst} leads to {device}, a port of {bridge}: its address belongs on {bridge}"
            )
        });
    }
    match inventory.underlay.get(device) {
        _ if route.local => Some(format!("{dst} is an address of this host")),
        Some(None) => None,
        Some(Some(why)) => Some(format!("the route to {dst} leads to {device}: {why}")),
        None => Some(format!(
            "the route to {dst} leads to {device}, which is not open for tunnels: see the log"
        )),
    }
}

/// Whether a device has a carrier: one of the kernel's, or of the switch alone.
fn has_carrier(device: &str, switch: &Switch) -> bool {
    if let Some(carrier) = switch.carriers.read().get(device) {
        return *carrier;
    }
    let own = {
        let inventory = switch.inventory.read();
        inventory.interfaces.get(device).and_then(|i| i.device.clone())
    };
    own.is_some_and(|device| device.status().link_up)
}

/// Logs that a tunnel has lost its route, or never had one.
pub(super) fn log_lost_route(iface: &Iface, now: &PortStatus) {
    let lost = |status: &PortStatus| status.extra.iter().find(|(key, _)| key == NO_EGRESS).cloned();
    let now = lost(now);
    if now != lost(&iface.status)
        && let Some((_, why)) = now
    {
        log::info!(target: "tunnel", "{}: {why}, packets into it are dropped", iface.name);
    }
}
