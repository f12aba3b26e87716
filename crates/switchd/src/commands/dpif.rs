//! `dpif/*`: the datapath as bridges use it.

use std::fmt::Write as _;

use super::flows::{Lines, Style};
use super::{Commands, bridge_named, dpctl};
use crate::inventory::{Item, datapath_name, port_text};
use crate::switch::Switch;
use heddle_daemon::unixctl::Reply;
use heddle_datapath_api::FlowDump;
use serde_json::{Value, json};

pub(super) fn register(c: &Commands<'_>) {
    c.add("dpif/dump-dps", "", (0, 0), |s, _| {
        let inventory = s.inventory.read();
        Ok(inventory
            .bridges
            .iter()
            .map(|(name, t)| format!("{t}@{name}\n"))
            .collect())
    });
    c.add("dpif/show", "", (0, 0), |s, _| Ok(show(s)));
    c.add_json("dpif/show", |s, _| Ok(show_json(s)));
    c.add("dpif/show-dp-features", "bridge", (1, 1), features);
    c.add("dpif/set-dp-features", "bridge", (1, 3), set_features);
    c.add(
        "dpif/dump-flows",
        "[-m] [--names | --no-names] bridge",
        (1, usize::MAX),
        dump_flows,
    );
}

fn show(switch: &Switch) -> String {
    let totals = switch.datapath.totals();
    let hits = totals.packets.saturating_sub(totals.misses);
    let types = dpctl::types(switch);
    let inventory = switch.inventory.read();
    let mut out = String::new();
    for t in types {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{}: hit:{hits} missed:{}", datapath_name(&t), totals.misses);
        for bridge in inventory
            .bridges
            .iter()
            .filter(|(_, of)| **of == t)
            .map(|(name, _)| name)
        {
            let _ = writeln!(out, "  {bridge}:");
            for (name, item) in inventory.interfaces.iter().filter(|(_, i)| i.bridge == *bridge) {
                let number = item
                    .dp_no
                    .map_or_else(|| "none".to_owned(), |no| no.0.to_string());
                let settings = dpctl::settings(item);
                let _ = writeln!(
                    out,
                    "    {name} {}/{number}: ({}{settings})",
                    port_text(item.no),
                    item.shown
                );
            }
        }
    }
    out
}

/// [`show`] as a JSON object. Numbers are strings, as in Open vSwitch.
fn show_json(switch: &Switch) -> Value {
    let totals = switch.datapath.totals();
    let hits = totals.packets.saturating_sub(totals.misses);
    let types = dpctl::types(switch);
    let inventory = switch.inventory.read();
    let bridges_of = |t: &str| {
        let of_type = inventory.bridges.iter().filter(|(_, of)| **of == t);
        let bridge = |name: &String| {
            let ports = inventory.interfaces.iter().filter(|(_, i)| i.bridge == *name);
            let ports = ports.map(|(name, item)| (name.clone(), port_json(item)));
            (name.clone(), Value::Object(ports.collect()))
        };
        Value::Object(of_type.map(|(name, _)| bridge(name)).collect())
    };
    let datapath = |t: String| {
        let stats = json!({"hit": hits.to_string(), "missed": totals.misses.to_string()});
        let shown = json!({"bridges": bridges_of(&t), "stats": stats});
        (datapath_name(&t), shown)
    };
    Value::Object(types.into_iter().map(datapath).collect())
}

fn port_json(item: &Item) -> Value {
    let number = item
        .dp_no
        .map_or_else(|| "none".to_owned(), |no| no.0.to_string());
    let ofport = port_text(item.no).to_string();
    let mut shown = json!({"ofport": ofport, "port_no": number, "type": item.shown});
    let config = dpctl::config(item);
    if !config.is_empty() {
        shown["config"] = config.into_iter().map(|(k, v)| (k, Value::from(v))).collect();
    }
    shown
}

/// The features of this datapath, in the words of Open vSwitch.
fn features(switch: &Switch, args: &[&str]) -> Reply {
    let name = args.first().copied().unwrap_or_default();
    let bridge = bridge_named(switch, name, "no such bridge")?;
    Ok(bridge.used_features().of_datapath())
}

/// Disables or enables a feature for all bridges that share the datapath. A fault in the request is the text
/// of a successful reply, not an error, as in Open vSwitch.
fn set_features(switch: &Switch, args: &[&str]) -> Reply {
    let name = args.first().copied().unwrap_or_default();
    let bridge = bridge_named(switch, name, "no such bridge")?;
    let mut features = bridge.used_features();
    let (feature, value) = match args {
        [_, feature, value] => (*feature, *value),
        [_, rest @ ..] => return Ok(features.shown(rest.first().copied()).unwrap_or_else(|why| why)),
        [] => return Ok(String::new()),
    };
    if let Err(why) = features.set(feature, value) {
        return Ok(why);
    }
    let alike: Vec<String> = {
        let all = &switch.inventory.read().bridges;
        let same = all.iter().filter(|(_, t)| Some(*t) == all.get(name));
        same.map(|(name, _)| name.clone()).collect()
    };
    for bridge in alike.iter().filter_map(|name| switch.ofproto.bridge(name)) {
        bridge.use_features(features.clone());
    }
    switch.datapath.purge();
    Ok(String::new())
}

fn dump_flows(switch: &Switch, args: &[&str]) -> Reply {
    let Some((name, options)) = args.split_last() else {
        return Err("no such bridge".into());
    };
    bridge_named(switch, name, "no such bridge")?;
    let mut style = Style::default();
    let mut names = None;
    for option in options {
        match *option {
            "-m" => {
                style.verbose = true;
                style.ufid = Some(" ");
            }
            "--names" => names = Some(true),
            "--no-names" => names = Some(false),
            _ => {}
        }
    }
    style.names = names.unwrap_or(style.verbose);
    let ports: Vec<u32> = {
        let inventory = switch.inventory.read();
        let own = inventory.interfaces.values().filter(|i| i.bridge == *name);
        own.filter_map(|i| Some(i.dp_no?.0)).collect()
    };
    let own = |f: &FlowDump| ports.contains(&f.key.in_port);
    Ok(Lines::new(switch, style).merged(switch, own))
}
