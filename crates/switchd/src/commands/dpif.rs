//! `dpif/*`: the datapath as bridges use it.

use std::fmt::Write as _;

use super::flows::{self, Style};
use super::{Commands, bridge_named, dpctl};
use crate::reconcile::{datapath_name, port_text};
use crate::switch::Switch;
use crate::unixctl::Reply;

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
    c.add("dpif/show-dp-features", "bridge", (1, 1), features);
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

/// What this datapath can do, in the words of Open vSwitch.
fn features(switch: &Switch, args: &[&str]) -> Reply {
    let name = args.first().copied().unwrap_or_default();
    let bridge = bridge_named(switch, name, "no such bridge")?;
    let vlans = match bridge.config().vlan_limit {
        0 => heddle_flow::N_VLANS,
        n => n.min(heddle_flow::N_VLANS),
    };
    let yes_no = |yes: bool| if yes { "Yes" } else { "No" };
    let mut out = String::new();
    let features: [(&str, &str); 25] = [
        ("Masked set action", yes_no(true)),
        ("Tunnel push pop", yes_no(false)),
        ("Ufid", yes_no(false)),
        ("Truncate action", yes_no(true)),
        ("Clone action", yes_no(true)),
        ("Sample nesting", "0"),
        ("Conntrack eventmask", yes_no(false)),
        ("Conntrack clear", yes_no(false)),
        ("Max dp_hash algorithm", "1"),
        ("Check pkt length action", yes_no(true)),
        ("Conntrack timeout policy", yes_no(false)),
        ("Explicit Drop action", yes_no(true)),
        ("Optimized Balance TCP mode", yes_no(false)),
        ("Conntrack all-zero IP SNAT", yes_no(false)),
        ("MPLS Label add", yes_no(false)),
        ("Max VLAN headers", &vlans.to_string()),
        ("Max MPLS depth", "3"),
        ("Recirc", yes_no(true)),
        ("CT state", yes_no(false)),
        ("CT zone", yes_no(false)),
        ("CT mark", yes_no(false)),
        ("CT label", yes_no(false)),
        ("CT state NAT", yes_no(false)),
        ("CT orig tuple", yes_no(false)),
        ("IPv6 ND Extension", yes_no(false)),
    ];
    for (feature, answer) in features {
        let _ = writeln!(out, "{feature}: {answer}");
        if feature == "CT orig tuple" {
            let _ = writeln!(out, "CT orig tuple for IPv6: {answer}");
        }
    }
    Ok(out)
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
    let own = switch
        .datapath
        .flows()
        .into_iter()
        .filter(|f| ports.contains(&f.key.in_port));
    Ok(flows::lines(switch, &flows::merged(own), style))
}
