//! `fdb/*`: learned addresses.

use std::fmt::Write as _;
use std::sync::Arc;

use heddle_flow::text::reserved_port_name;
use heddle_ofproto::bridge::Bridge;
use heddle_ofproto::mac::{MacEntry, MacKey};
use heddle_openflow::Port as OfPort;
use serde_json::{Value, json};

use super::{Commands, bridge_named};
use crate::inventory::port_text;
use crate::reconcile::{mac_text, parse_mac};
use crate::switch::Switch;
use heddle_daemon::unixctl::{JsonReply, Reply};

pub(super) const NO_BRIDGE: &str = "no such bridge";

pub(super) fn register(c: &Commands<'_>) {
    c.add("fdb/show", "[bridge...]", (0, usize::MAX), show);
    c.add_json("fdb/show", show_json);
    c.add("fdb/flush", "[bridge]", (0, 1), |s, args| {
        some_bridges(s, args)?.iter().for_each(|b| b.mac.flush());
        Ok("table successfully flushed".into())
    });
    c.add("fdb/add", "bridge port vlan mac", (4, 4), add);
    c.add("fdb/del", "bridge vlan mac", (3, 3), del);
    c.add("fdb/stats-show", "bridge", (1, 1), stats);
    c.add("fdb/stats-clear", "[bridge]", (0, 1), |s, args| {
        some_bridges(s, args)?.iter().for_each(|b| b.mac.clear_stats());
        Ok("statistics successfully cleared".into())
    });
}

/// The named bridge, or all.
fn some_bridges(switch: &Switch, args: &[&str]) -> Result<Vec<Arc<Bridge>>, String> {
    match args.first() {
        Some(name) => Ok(vec![bridge_named(switch, name, NO_BRIDGE)?]),
        None => Ok(switch.ofproto.bridges()),
    }
}

pub(super) fn port_name(no: OfPort) -> String {
    reserved_port_name(port_text(no)).map_or_else(|| no.0.to_string(), str::to_owned)
}

/// The bridges that `fdb/show` lists: the named ones, or all.
fn shown_bridges(switch: &Switch, args: &[&str]) -> Result<Vec<Arc<Bridge>>, String> {
    match args {
        [] => Ok(switch.ofproto.bridges()),
        [name] => Ok(vec![bridge_named(switch, name, NO_BRIDGE)?]),
        names => {
            let mut bridges: Vec<Arc<Bridge>> = Vec::new();
            for name in names {
                let bridge = bridge_named(switch, name, &format!("{NO_BRIDGE} {name}"))?;
                // Each bridge is listed once: otherwise a request of some kilobytes could produce a reply of
                // gigabytes.
                if !bridges.iter().any(|b| Arc::ptr_eq(b, &bridge)) {
                    bridges.push(bridge);
                }
            }
            Ok(bridges)
        }
    }
}

fn show(switch: &Switch, args: &[&str]) -> Reply {
    let bridges = shown_bridges(switch, args)?;
    if let [bridge] = bridges.as_slice() {
        let mut out = String::from(" port  VLAN  MAC                Age\n");
        out.extend(lines(switch, bridge));
        return Ok(out);
    }
    const BRIDGE: &str = "Bridge";
    let names = bridges.iter().map(|b| b.name.len());
    let width = names.chain([BRIDGE.len()]).max().unwrap_or_default();
    let mut out = format!(" {BRIDGE:width$}  Port  VLAN  MAC                Age\n");
    for bridge in &bridges {
        let lines = lines(switch, bridge);
        // Each bridge is named, also if nothing was learned on it. Writing to a string cannot fail.
        let mut name = bridge.name.as_str();
        for line in &lines {
            let _ = write!(out, " {name:width$} {line}");
            name = "";
        }
        if lines.is_empty() {
            let _ = writeln!(out, " {name}");
        }
    }
    Ok(out)
}

/// A line for each address of a bridge.
fn lines(switch: &Switch, bridge: &Bridge) -> Vec<String> {
    let line = |e: MacEntry| {
        let age = e.age_s.map_or_else(|| "static".to_owned(), |s| format!("{s:3}"));
        format!(
            "{:>5}  {:4}  {}  {age}\n",
            port_name(e.port),
            e.key.vlan,
            mac_text(e.key.mac)
        )
    };
    bridge
        .mac
        .entries(switch.clock.now_ms())
        .into_iter()
        .map(line)
        .collect()
}

fn show_json(switch: &Switch, args: &[&str]) -> JsonReply {
    let entry = |e: MacEntry| {
        let mut shown = json!({"port": port_text(e.port), "vlan": e.key.vlan, "mac": mac_text(e.key.mac)});
        match e.age_s {
            Some(age) => shown["age"] = age.into(),
            None => shown["static"] = true.into(),
        }
        shown
    };
    let of_bridge = |b: Arc<Bridge>| {
        let entries = b.mac.entries(switch.clock.now_ms()).into_iter().map(entry);
        (b.name.clone(), entries.collect())
    };
    let bridges = shown_bridges(switch, args)?.into_iter().map(of_bridge);
    Ok(Value::Object(bridges.collect()))
}

/// A VLAN id as C's `atoi` parses it.
fn vlan(text: &str) -> u16 {
    let digits: String = text
        .trim_start()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap_or(0) & 0xfff
}

fn add(switch: &Switch, args: &[&str]) -> Reply {
    let [bridge, port, vid, mac] = args else {
        return Err(NO_BRIDGE.into());
    };
    let bridge = bridge_named(switch, bridge, NO_BRIDGE)?;
    let mac = parse_mac(mac).ok_or("bad MAC address")?;
    let no = bridge
        .port_by_name(port)
        .ok_or("software error, odp port is present but no ofp port")?;
    let key = MacKey { mac, vlan: vlan(vid) };
    let now = switch.clock.now_ms();
    let before = bridge.mac.entries(now).into_iter().find(|e| e.key == key);
    let note = before.filter(|e| e.port != no || e.age_s.is_some()).map(|e| {
        let kind = if e.age_s.is_none() { "static" } else { "dynamic" };
        format!(
            "Overriding already existing {kind} entry on {}\n",
            port_name(e.port)
        )
    });
    bridge.mac.add_static(key, no, now);
    Ok(note.unwrap_or_default())
}

fn del(switch: &Switch, args: &[&str]) -> Reply {
    let [bridge, vid, mac] = args else {
        return Err(NO_BRIDGE.into());
    };
    let bridge = bridge_named(switch, bridge, NO_BRIDGE)?;
    let mac = parse_mac(mac).ok_or("bad MAC address")?;
    if bridge.mac.del_static(MacKey { mac, vlan: vlan(vid) }) {
        Ok(String::new())
    } else {
        Err("could not find static mac entry\n".into())
    }
}

fn stats(switch: &Switch, args: &[&str]) -> Reply {
    let name = args.first().copied().unwrap_or_default();
    let s = bridge_named(switch, name, NO_BRIDGE)?.mac.stats();
    Ok(format!(
        "Statistics for bridge \"{name}\":\n  Current/maximum MAC entries in the table: {}/{}\n  \
         Current static MAC entries in the table : {}\n  Total number of learned MAC entries     : {}\n  \
         Total number of expired MAC entries     : {}\n  Total number of evicted MAC entries     : {}\n  \
         Total number of port moved MAC entries  : {}\n",
        s.current, s.max, s.statics, s.learned, s.expired, s.evicted, s.moved
    ))
}
