//! Commands that show offloaded flows, and the reasons why others are not offloaded.

use std::collections::HashMap;
use std::fmt::Write as _;

use heddle_datapath_api::{Action, Engine, PortNo};
use heddle_flow::Match;
use serde_json::{Map, Value, json};

use super::flows::{self, Lines, Style};
use super::{Commands, dpctl};
use crate::switch::Switch;
use heddle_daemon::unixctl::Reply;

pub(super) fn register(c: &Commands<'_>) {
    c.add("dpctl/offload-stats-show", "[dp]", (0, 1), stats_show);
    c.add("dpif/offload/show", "", (0, 0), |s, _| Ok(providers_show(s)));
    c.add_json("dpif/offload/show", |s, _| Ok(providers_json(s)));
    c.add("heddle/offload", "[flow]", (0, 1), show);
}

/// A port of a back end: name, number in the datapath, index of its device.
type ProviderPort = (String, u32, u32);

/// A back end with its ports.
type Provider = (&'static str, Vec<ProviderPort>);

/// The back ends of each datapath, in the order in which flows are offered to them, with their ports.
fn providers(switch: &Switch) -> Vec<(String, Vec<Provider>)> {
    let all = switch
        .offload
        .read()
        .as_ref()
        .map(heddle_offload::Offload::providers);
    let all = all.unwrap_or_default();
    let types = dpctl::types(switch);
    let inventory = switch.inventory.read();
    let of_type = |t: &String| {
        let is_here = |bridge: &String| inventory.bridges.get(bridge) == Some(t);
        let here = inventory
            .interfaces
            .iter()
            .filter(|(_, item)| is_here(&item.bridge));
        let names: HashMap<_, _> = here
            .filter_map(|(name, item)| Some((item.dp_no?, name)))
            .collect();
        let port = |(no, ifindex): &(PortNo, u32)| Some(((*names.get(no)?).clone(), no.0, *ifindex));
        let each = |(name, ports): &(&'static str, Vec<_>)| (*name, ports.iter().filter_map(port).collect());
        (crate::inventory::datapath_name(t), all.iter().map(each).collect())
    };
    types.iter().map(of_type).collect()
}

fn providers_show(switch: &Switch) -> String {
    let is_on = switch.offload.read().is_some();
    let mut out = format!("Globally enabled: {is_on}\nDatapaths:\n");
    // Writing to a string cannot fail.
    for (datapath, providers) in providers(switch) {
        let _ = writeln!(out, "{datapath}:");
        for (name, ports) in providers {
            let _ = writeln!(out, "  {name}");
            for (port, no, ifindex) in ports {
                let _ = writeln!(out, "  - {port}: port_no: {no}, ifindex: {ifindex}");
            }
        }
    }
    out
}

/// [`providers_show`] as a JSON object.
fn providers_json(switch: &Switch) -> Value {
    let port = |(port, no, ifindex)| (port, json!({"port_no": no, "ifindex": ifindex}));
    let provider = |(name, ports): Provider| {
        let ports: Map<String, Value> = ports.into_iter().map(port).collect();
        let shown = if ports.is_empty() {
            json!({})
        } else {
            json!({"ports": ports})
        };
        (name.to_owned(), shown)
    };
    let mut out = Map::from_iter([("enabled".to_owned(), switch.offload.read().is_some().into())]);
    for (datapath, providers) in providers(switch) {
        let priority: Vec<&str> = providers.iter().map(|(name, _)| *name).collect();
        let providers: Map<String, Value> = providers.iter().cloned().map(provider).collect();
        out.insert(datapath, json!({"priority": priority, "providers": providers}));
    }
    Value::Object(out)
}

/// Counts of offloaded flows as Open vSwitch shows them, then the back end's own counters.
fn stats_show(switch: &Switch, args: &[&str]) -> Reply {
    let (datapath_type, _) = dpctl::one(switch, args, 1)?;
    let Some(offload) = switch.offload.read().clone() else {
        return Err(dpctl::failed(
            switch,
            "retrieving offload statistics",
            Some(dpctl::EINVAL),
        ));
    };
    // Counts are current, not those of the revalidator's last pass.
    switch.datapath.flush_stats();
    let (name, stats, own) = offload.stats();
    let (mut out, n) = (String::new(), stats.offloaded);
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "HW Offload stats for {}:",
        crate::inventory::datapath_name(&datapath_type)
    );
    let _ = writeln!(out, "  Total");
    let _ = writeln!(out, "    Enqueued offloads:                  0");
    let _ = writeln!(out, "    Inserted offloads:        {n:>11}");
    let _ = writeln!(out, "  {name}");
    let all = [
        ("installed", stats.installs),
        ("changed", stats.changes),
        ("removed", stats.removals),
        ("displaced", stats.displaced),
        ("forwarded-packets", stats.packets),
        ("forwarded-bytes", stats.bytes),
    ];
    let all = all.into_iter().map(|(k, v)| (k.to_owned(), v)).chain(own);
    for (key, value) in all {
        let _ = writeln!(out, "    {:<25} {value:>11}", format!("{key}:"));
    }
    Ok(out)
}

/// Whether actions contain `ct`.
fn tracks(actions: &[Action]) -> bool {
    actions.iter().any(|a| matches!(a, Action::Ct(_)))
}

/// Offloaded flows, the number of others, and the reasons; or the same of the flows that a match selects.
fn show(switch: &Switch, args: &[&str]) -> Reply {
    let Some(offload) = switch.offload.read().clone() else {
        return Ok(
            "offload is off: there is no bridge of type system and other_config:hw-offload is not true, or \
             other_config:heddle-ebpf is false, or neither eBPF nor tc can be used (the log has the reason, module \
             netdev_offload)\n"
                .into(),
        );
    };
    let mut out = String::new();
    let Some(text) = args.first() else {
        let (name, stats, own) = offload.stats();
        let _ = writeln!(
            out,
            "{name}: {} of {} flows are offloaded",
            stats.offloaded, stats.told
        );
        if stats.connections > 0 {
            let _ = writeln!(out, "  {} connections, too", stats.connections);
        }
        let adopted = own.iter().find(|(key, n)| key == "adopted-flows" && *n > 0);
        if let Some((_, n)) = adopted {
            let _ = writeln!(
                out,
                "  {n} flows of an earlier process forward, until these take their place"
            );
        }
        for (name, how) in offload.served_ports() {
            let _ = writeln!(out, "  port {name} is served by {how}");
        }
        for (name, why) in offload.left_ports() {
            let _ = writeln!(out, "  port {name} stays with workers: {why}");
        }
        for (why, n) in offload.waiting() {
            let _ = writeln!(out, "  {n} are not: {why}");
        }
        return Ok(out);
    };
    let ports = flows::port_names(switch);
    let number = |name: &str| ports.iter().find(|(_, n)| *n == name).map(|(no, _)| *no);
    let wanted = Match::parse_text(text, Some(&number))
        .map_err(|e| dpctl::failed(switch, &format!("Failed to parse filter ({e})"), None))?;
    let lines = Lines::new(
        switch,
        Style {
            names: true,
            ..Style::default()
        },
    );
    switch.datapath.each_flow(|flow| {
        let masks = wanted.mask.0.words().iter().zip(flow.mask.words());
        let words = flow.key.words().iter().zip(wanted.key.words()).zip(masks);
        if words
            .into_iter()
            .any(|((have, want), (mask, counts))| (have ^ want) & mask & counts != 0)
        {
            return;
        }
        let says = match (flow.place, &flow.waits) {
            (Some(place), _) if tracks(&flow.actions) => {
                format!("offloaded to {place}: of established connections of TCP and UDP that it has")
            }
            (Some(place), _) => match offload.note(&flow.key, &flow.mask, &flow.actions) {
                Some(note) => format!("offloaded to {place}, {note}"),
                None => format!("offloaded to {place}"),
            },
            (None, Some(why)) => format!("not offloaded: {why}"),
            (None, None) => "not offloaded: it is new, and looked at within a second".to_owned(),
        };
        let _ = writeln!(out, "{}  {says}", lines.of(&flow));
    });
    if out.is_empty() {
        out = "no cached flow matches\n".into();
    }
    Ok(out)
}
