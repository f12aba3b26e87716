//! `netdev-dummy/*`: packets and states of pretended devices.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use heddle_flow::{compose, odp};
use heddle_port::dummy::{ConnState, frame_from_hex, parse_ip4, parse_ip6};
use heddle_port::{DummyPort, Port};
use heddle_tunnel::routes::Address;

use super::Commands;
use crate::switch::Switch;
use heddle_daemon::unixctl::Reply;

/// The longest wait of a command for its packets to be processed.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(3);
/// The shortest frame that a command can request.
const MIN_LEN: usize = 14;

pub(super) fn register(c: &Commands<'_>) {
    const ANY: usize = usize::MAX;
    let usage = "name [--qid queue_id] packet|flow [--len packet_len]";
    c.add("netdev-dummy/receive", usage, (2, ANY), receive);
    c.add(
        "netdev-dummy/set-admin-state",
        "[netdev] up|down",
        (1, 2),
        set_admin_state,
    );
    c.add("netdev-dummy/conn-state", "[netdev]", (0, 1), conn_state);
    c.add(
        "netdev-dummy/ip4addr",
        "[netdev] ipaddr/mask-prefix-len",
        (2, 2),
        |s, args| {
            let (port, text) = port_and_text(s, args)?;
            let (addr, mask) = parse_ip4(text)?;
            with_dummy(&port, |d| d.set_ip4(addr, mask));
            own_address(s, args, addr.into(), mask.to_bits().count_ones());
            Ok("OK".into())
        },
    );
    c.add("netdev-dummy/ip6addr", "[netdev] ip6addr", (2, 2), |s, args| {
        let (port, text) = port_and_text(s, args)?;
        let (addr, prefix) = parse_ip6(text)?;
        with_dummy(&port, |d| d.set_ip6(addr, prefix));
        own_address(s, args, addr.into(), prefix.into());
        Ok("OK".into())
    });
}

/// An address of a pretended device is one of the host's, with the routes that come with it.
fn own_address(switch: &Switch, args: &[&str], addr: IpAddr, len: u32) {
    if let (Some(name), Ok(len)) = (args.first(), u8::try_from(len)) {
        let address = Address::new((*name).into(), addr, len);
        switch.ofproto.pipeline().underlay().routes.add_address(address);
    }
}

/// The pretended device of that name.
fn find(switch: &Switch, name: &str) -> Option<Arc<dyn Port>> {
    let device = switch.inventory.read().interfaces.get(name)?.device.clone()?;
    device.as_any().is::<DummyPort>().then_some(device)
}

/// All pretended devices with their names.
fn all(switch: &Switch) -> Vec<(String, Arc<dyn Port>)> {
    let inventory = switch.inventory.read();
    let devices = inventory
        .interfaces
        .iter()
        .filter_map(|(name, i)| Some((name.clone(), i.device.clone()?)));
    devices.filter(|(_, d)| d.as_any().is::<DummyPort>()).collect()
}

fn with_dummy<T>(port: &Arc<dyn Port>, f: impl FnOnce(&DummyPort) -> T) -> Option<T> {
    port.as_any().downcast_ref::<DummyPort>().map(f)
}

fn port_and_text<'a>(switch: &Switch, args: &[&'a str]) -> Result<(Arc<dyn Port>, &'a str), String> {
    let [name, text] = args else {
        return Err("Unknown Dummy Interface".into());
    };
    Ok((find(switch, name).ok_or("Unknown Dummy Interface")?, text))
}

fn receive(switch: &Switch, args: &[&str]) -> Reply {
    let none = "no such dummy netdev";
    let (name, mut rest) = args.split_first().ok_or(none)?;
    let port = find(switch, name).ok_or(none)?;
    let mut queue = 0;
    if let ["--qid", number, more @ ..] = rest {
        let open = with_dummy(&port, DummyPort::n_rxq).unwrap_or(0);
        queue = number
            .parse()
            .ok()
            .filter(|q| *q < open)
            .ok_or("bad rx queue id.")?;
        rest = more;
    }
    let mut result = Ok(String::new());
    while let [text, more @ ..] = rest {
        rest = more;
        let frame = match frame_from_hex(text) {
            Ok(frame) => Ok(frame),
            Err(_) => {
                let mut size = None;
                if let ["--len", number, more @ ..] = rest {
                    size = Some(number.parse().unwrap_or(0));
                    rest = more;
                }
                frame_from_flow(switch, text, size)
            }
        };
        match frame {
            Ok(frame) => drop(with_dummy(&port, |d| d.receive(queue, &frame))),
            Err(why) => {
                // Packets before it have been received.
                result = Err(why);
                break;
            }
        }
    }
    let through = with_dummy(&port, |d| d.wait_processed(DELIVERY_TIMEOUT));
    if through == Some(false) {
        log::warn!(target: "netdev_dummy", "{name}: packets were not processed in time");
    }
    result
}

fn frame_from_flow(switch: &Switch, text: &str, size: Option<usize>) -> Result<Vec<u8>, String> {
    let port = |name: &str| switch.datapath.port_by_name(name).map(|no| no.0);
    match size {
        Some(size) if size < MIN_LEN => Err("too small packet len".into()),
        Some(size) => {
            let key = odp::parse_key(text, Some(&port))?;
            compose::compose_sized(&key, size).ok_or_else(|| "packet len is shorter than its headers".into())
        }
        None => Ok(compose::compose(&odp::parse_key(text, Some(&port))?, 64)),
    }
}

fn set_admin_state(switch: &Switch, args: &[&str]) -> Reply {
    let (state, names) = args.split_last().ok_or("Invalid Admin State")?;
    let up = match state.to_ascii_lowercase().as_str() {
        "up" => true,
        "down" => false,
        _ => return Err("Invalid Admin State".into()),
    };
    let ports = match names.first() {
        Some(name) => vec![find(switch, name).ok_or("Unknown Dummy Interface")?],
        None => all(switch).into_iter().map(|(_, d)| d).collect(),
    };
    for port in ports {
        port.set_admin(up).map_err(|e| e.to_string())?;
    }
    switch.look_at_devices();
    Ok("OK".into())
}

fn conn_state(switch: &Switch, args: &[&str]) -> Reply {
    let text = |name: &str, state: ConnState| {
        let word = match state {
            ConnState::Connected => "connected",
            ConnState::Disconnected => "disconnected",
            ConnState::Unknown => "unknown",
        };
        format!("{name}: {word}\n")
    };
    if let Some(name) = args.first() {
        let state = find(switch, name).and_then(|p| with_dummy(&p, DummyPort::conn_state));
        return Ok(text(name, state.unwrap_or(ConnState::Unknown)));
    }
    let states = all(switch)
        .into_iter()
        .filter_map(|(name, p)| Some((name, with_dummy(&p, DummyPort::conn_state)?)));
    Ok(states
        .filter(|(_, s)| *s != ConnState::Unknown)
        .map(|(name, s)| text(&name, s))
        .collect())
}
