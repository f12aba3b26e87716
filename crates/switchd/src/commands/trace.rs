//! `ofproto/trace`: the path of a packet through the pipeline.

use super::{Commands, dpctl, flows};
use crate::switch::Switch;
use heddle_daemon::unixctl::Reply;
use heddle_datapath_api::PortNo;
use heddle_ofproto::trace::{TraceEnv, Traced, trace, trace_packet_out};
use heddle_ofproto::xlate::Pipeline;

const USAGE: &str = "{[dp_name] odp_flow | bridge br_flow} [OPTIONS...] [-generate|packet]";

pub(super) fn register(c: &Commands<'_>) {
    c.add("ofproto/trace", USAGE, (1, usize::MAX), |s, args| {
        run(s, args, trace)
    });
    let usage = "[-consistent] {[dp_name] odp_flow | bridge br_flow} [OPTIONS...] [-generate|packet] actions";
    c.add("ofproto/trace-packet-out", usage, (2, usize::MAX), |s, args| {
        run(s, args, trace_packet_out)
    });
}

type Tracer = fn(&Pipeline, &[&str], &TraceEnv<'_>) -> Result<Traced, String>;

/// The text of a trace with these arguments. It changes nothing unless they contain a packet.
pub(super) fn traced(switch: &Switch, args: &[&str]) -> Reply {
    run(switch, args, trace)
}

fn run(switch: &Switch, args: &[&str], tracer: Tracer) -> Reply {
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
    let traced = tracer(switch.ofproto.pipeline(), args, &env)?;
    traced.carry_out(&switch.ofproto);
    Ok(traced.text)
}
