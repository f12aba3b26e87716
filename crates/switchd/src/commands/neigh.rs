//! `tnl/neigh/*` and, by their older name, `tnl/arp/*`: neighbours that tunnels' packets go to.

use std::fmt::Write as _;
use std::net::IpAddr;

use heddle_tunnel::Neighbours;

use super::Commands;
use crate::reconcile::{mac_text, parse_mac};
use crate::switch::Switch;
use heddle_daemon::unixctl::Reply;

/// Columns of an address in the list.
const IP_WIDTH: usize = 46;

pub(super) fn register(c: &Commands<'_>) {
    for kind in ["arp", "neigh"] {
        let name = |what: &str| format!("tnl/{kind}/{what}");
        c.add(&name("show"), "", (0, 0), show);
        c.add(&name("set"), "BRIDGE IP MAC", (3, 3), set);
        c.add(&name("flush"), "", (0, 0), |s, _| {
            neighbours(s).flush(None);
            Ok("OK".into())
        });
        c.add(&name("aging"), "[SECS]", (0, 1), aging);
    }
}

fn neighbours(switch: &Switch) -> &Neighbours {
    &switch.ofproto.pipeline().underlay().neighbours
}

fn show(switch: &Switch, _: &[&str]) -> Reply {
    let mut out = String::from("IP                                            MAC                 Bridge\n");
    out.push_str("==========================================================================\n");
    for n in neighbours(switch).entries(switch.clock.now_ms()) {
        let stale = if n.stale { " STALE" } else { "" };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{:IP_WIDTH$}{}   {}{stale}",
            n.key.ip.to_string(),
            mac_text(n.mac),
            n.key.bridge
        );
    }
    Ok(out)
}

fn set(switch: &Switch, args: &[&str]) -> Reply {
    let [bridge, ip, mac] = args else {
        return Err("bad IP address".into());
    };
    let ip: IpAddr = ip.parse().map_err(|_| "bad IP address")?;
    let mac = parse_mac(mac).ok_or("bad MAC address")?;
    neighbours(switch).set(bridge, ip, mac, switch.clock.now_ms());
    Ok("OK".into())
}

fn aging(switch: &Switch, args: &[&str]) -> Reply {
    let neighbours = neighbours(switch);
    match args.first() {
        None => Ok(neighbours.aging_s().to_string()),
        Some(text) if text.parse().is_ok_and(|s| neighbours.set_aging_s(s)) => Ok("OK".into()),
        Some(_) => Err("bad aging value".into()),
    }
}
