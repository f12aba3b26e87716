//! Cached flows as text.

use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_datapath_api::{FlowDump, Merged, PortNo, ufid};
use heddle_flow::odp::KeyText;
use heddle_ofproto::model::Snapshot;

use crate::switch::Switch;

/// The format of shown flows.
#[derive(Clone, Copy, Default)]
pub(super) struct Style {
    /// Also fields that the mask leaves open.
    pub(super) verbose: bool,
    /// Names of ports.
    pub(super) names: bool,
    /// The text between a flow's UFID and its key; `None`: the UFID is not shown.
    pub(super) ufid: Option<&'static str>,
    /// The text of Open vSwitch for flows of the kernel's datapath, which has no packet types.
    pub(super) kernel: bool,
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

/// Formats flows as lines.
pub(super) struct Lines {
    style: Style,
    ports: BTreeMap<u32, String>,
    now_ms: u64,
    /// Knows the names of tunnels' options.
    snapshot: Arc<Snapshot>,
}

impl Lines {
    pub(super) fn new(switch: &Switch, style: Style) -> Lines {
        Lines {
            style,
            ports: match style.names {
                true => port_names(switch),
                false => BTreeMap::new(),
            },
            now_ms: switch.clock.now_ms(),
            snapshot: switch.ofproto.pipeline().snapshot(),
        }
    }

    /// The line of a flow.
    pub(super) fn of(&self, flow: &FlowDump) -> String {
        let style = self.style;
        let _scope = self.snapshot.tlv_scope_of(&flow.key);
        let name = |no: u32| self.ports.get(&no).cloned();
        let dp_name = |no: PortNo| name(no.0);
        let mut mask = flow.mask;
        if style.kernel && flow.key.packet_type == 0 {
            mask.0.packet_type = 0;
        }
        let key = KeyText {
            key: &flow.key,
            mask: Some(&mask),
            verbose: style.verbose,
            names: style.names.then_some(&name),
            vlan_limit: heddle_flow::N_VLANS,
        };
        let names: Option<&dyn Fn(PortNo) -> Option<String>> =
            if style.names { Some(&dp_name) } else { None };
        let ufid = style
            .ufid
            .map_or_else(String::new, |sep| ufid(&flow.key, &flow.mask) + sep);
        let stats = match flow.place {
            // Only verbose output shows the place that forwards the flow.
            Some(_) if !style.verbose => {
                let plain = FlowDump {
                    place: None,
                    ..flow.clone()
                };
                plain.stats_text(self.now_ms, names)
            }
            _ => flow.stats_text(self.now_ms, names),
        };
        format!("{ufid}{key}, {stats}\n")
    }

    /// The lines of the flows that `wanted` accepts; a flow that several workers cache has one line.
    pub(super) fn merged(&self, switch: &Switch, wanted: impl Fn(&FlowDump) -> bool) -> String {
        let mut merged = Merged::default();
        switch.datapath.each_flow(|flow| {
            if wanted(&flow) {
                merged.add(flow);
            }
        });
        merged.flows().iter().map(|flow| self.of(flow)).collect()
    }
}
