//! `ofproto/trace`: what would become of a packet.

use super::{Commands, dpctl, flows};
use crate::switch::Switch;
use crate::unixctl::Reply;
use heddle_datapath::PortNo;
use heddle_ofproto::trace::{TraceEnv, trace};

const USAGE: &str = "{[dp_name] odp_flow | bridge br_flow} [OPTIONS...] [-generate|packet]";

pub(super) fn register(c: &Commands<'_>) {
    c.add("ofproto/trace", USAGE, (1, usize::MAX), run);
}

fn run(switch: &Switch, args: &[&str]) -> Reply {
    let types = dpctl::types(switch);
    let names: Vec<String> = types
        .iter()
        .flat_map(|t| [t.clone(), format!("ovs-{t}"), format!("{t}@ovs-{t}")])
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let ports = flows::port_names(switch);
    let env = TraceEnv {
        datapaths: &names,
        port_numbers: &|name| ports.iter().find(|(_, n)| *n == name).map(|(no, _)| *no),
        port_names: &|no: PortNo| ports.get(&no.0).cloned(),
        now_ms: switch.clock.now_ms(),
    };
    trace(switch.ofproto.pipeline(), args, &env).map(|t| t.text)
}
