//! Cached flows as text.

use std::collections::BTreeMap;

use heddle_datapath::format::{format_stats, ufid};
use heddle_datapath::{FlowDump, PortNo};
use heddle_flow::odp::KeyText;

use crate::switch::Switch;

/// How flows are shown.
#[derive(Clone, Copy, Default)]
pub(super) struct Style {
    /// Also what does not count.
    pub(super) verbose: bool,
    /// Names of ports.
    pub(super) names: bool,
    /// What stands between a flow's own name and its key; `None`: its name is not shown.
    pub(super) ufid: Option<&'static str>,
}

/// Names of the datapath's ports by number.
pub(super) fn port_names(switch: &Switch) -> BTreeMap<u32, String> {
    switch
        .datapath
        .ports()
        .into_iter()
        .map(|p| (p.no.0, p.name))
        .collect()
}

/// One line per flow.
pub(super) fn lines(switch: &Switch, flows: &[FlowDump], style: Style) -> String {
    let ports = if style.names {
        port_names(switch)
    } else {
        BTreeMap::new()
    };
    let name = |no: u32| ports.get(&no).cloned();
    let dp_name = |no: PortNo| name(no.0);
    let now_ms = switch.clock.now_ms();
    let line = |flow: &FlowDump| {
        let key = KeyText {
            key: &flow.key,
            mask: Some(&flow.mask),
            verbose: style.verbose,
            names: style.names.then_some(&name),
            vlan_limit: heddle_flow::N_VLANS,
        };
        let names: Option<&dyn Fn(PortNo) -> Option<String>> =
            if style.names { Some(&dp_name) } else { None };
        let ufid = style
            .ufid
            .map_or_else(String::new, |sep| ufid(&flow.key, &flow.mask) + sep);
        format!("{ufid}{key}, {}\n", format_stats(flow, now_ms, names))
    };
    flows.iter().map(line).collect()
}
