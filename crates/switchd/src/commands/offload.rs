//! Commands that show offloaded flows, and the reasons why others are not offloaded.

use std::fmt::Write as _;

use heddle_datapath_api::{Action, Engine};
use heddle_flow::Match;

use super::flows::{self, Lines, Style};
use super::{Commands, dpctl};
use crate::switch::Switch;
use heddle_daemon::unixctl::Reply;

pub(super) fn register(c: &Commands<'_>) {
    c.add("dpctl/offload-stats-show", "[dp]", (0, 1), stats_show);
    c.add("heddle/offload", "[flow]", (0, 1), show);
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
            (Some(place), _) => format!("offloaded to {place}"),
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
