//! `ofproto/trace`: a translation, line by line.
//!
//! The layout is Open vSwitch's, since people and scripts read it. It has the key, each bridge with its
//! rules, actions and their effects, the key at the end, the mask, the datapath actions. A trace has side
//! effects only with a packet (given, or made with `-generate`): it learns, and [`Traced::carry_out`] sends
//! its packet-ins.

mod args;
mod effects;
mod fork;
#[cfg(test)]
mod tests;

use crate::model::Snapshot;
use crate::xlate::Pipeline;
use crate::xlate::explain::text;
use crate::xlate::input::{Input, Start};
use crate::xlate::report::{Fork, Report};
use crate::xlate::run::run;
use heddle_datapath_api::{Action as DpAction, PortNo, Translation};
use heddle_flow::text::{DEFAULT_PRIORITY, PortNumbers};
use heddle_flow::{FlowKey, Match};
use heddle_openflow::text::parse_actions;
use heddle_openflow::{Action, Version};
use heddle_packet::Packet;
use heddle_sync::ReadGuard;

/// The datapath's names and numbers that a trace needs.
pub struct TraceEnv<'a> {
    /// Names that a datapath may be given by, such as `netdev`.
    pub datapaths: &'a [&'a str],
    /// Numbers of datapath ports by name.
    pub port_numbers: PortNumbers<'a>,
    /// Names of datapath ports, for `--names`.
    pub port_names: &'a dyn Fn(PortNo) -> Option<String>,
    /// Coarse clock, ms.
    pub now_ms: u64,
}

/// A trace.
pub struct Traced {
    /// The text to print; without a newline at its end unless the translation failed.
    pub text: String,
    /// The packet that was given or made.
    packet: Option<Vec<u8>>,
    /// Bridge that the packet entered.
    bridge: u64,
    /// Each translation without an error.
    runs: Vec<TracedActions>,
}

/// The outcome of one translation of a trace.
struct TracedActions {
    /// The packet's key, with the OpenFlow port (reserved ones in 16 bits).
    key: FlowKey,
    /// The datapath's actions.
    actions: Vec<DpAction>,
}

/// Runs `ofproto/trace` with these arguments (without the command's name).
///
/// # Errors
/// A text for the user, if the arguments are wrong.
pub fn trace(pipeline: &Pipeline, args: &[&str], env: &TraceEnv<'_>) -> Result<Traced, String> {
    let snapshot = pipeline.snapshot();
    let request = args::parse(pipeline, &snapshot, args, env)?;
    Ok(trace_request(pipeline, &snapshot, request, None, env))
}

/// Runs `ofproto/trace-packet-out`: as [`trace`], with the actions of a packet-out as the last argument.
///
/// # Errors
/// A text for the user, if the arguments are wrong.
pub fn trace_packet_out(pipeline: &Pipeline, args: &[&str], env: &TraceEnv<'_>) -> Result<Traced, String> {
    let snapshot = pipeline.snapshot();
    let (actions, args) = args.split_last().ok_or("Syntax error")?;
    let request = args::parse(pipeline, &snapshot, args, env)?;
    let actions = {
        let _scope = request.bridge.tlv_scope();
        parse_actions(actions, None)?
    };
    let mut known = Match {
        key: request.key,
        ..Match::default()
    };
    known.mask.words_mut().fill(u64::MAX);
    let version = if request.consistent {
        Version::V13
    } else {
        Version::V10
    };
    heddle_openflow::check::actions(version, &actions, &known, request.bridge.tables.len())
        .map_err(|e| format!("Bad actions: {}", e.name()))?;
    Ok(trace_request(pipeline, &snapshot, request, Some(&actions), env))
}

fn trace_request(
    pipeline: &Pipeline,
    snapshot: &Snapshot,
    request: args::Request<'_>,
    actions: Option<&[Action]>,
    env: &TraceEnv<'_>,
) -> Traced {
    let bridge = request.bridge;
    let _scope = bridge.tlv_scope();
    let frozen = pipeline.frozen(request.key.recirc_id);
    let frozen = frozen
        .as_ref()
        .filter(|_| request.key.recirc_id != 0)
        .map(|h| &h.frozen);
    let start = match (actions, frozen) {
        (Some(actions), _) => Start::Actions(actions),
        (None, Some(frozen)) => Start::Thaw {
            frozen,
            resumed: false,
        },
        (None, None) => Start::Tables,
    };
    let (text, run, forks) = one(pipeline, snapshot, &request, start, env);
    let mut traced = Traced {
        text,
        packet: None,
        bridge: bridge.id,
        runs: run.into_iter().collect(),
    };
    fork::trace_all(pipeline, snapshot, &request, forks, env, &mut traced);
    traced.packet = request.packet;
    traced
}

/// Traces one translation. Returns the text, what happens to the packet, and copies that come back from the
/// tracker.
fn one(
    pipeline: &Pipeline,
    snapshot: &Snapshot,
    request: &args::Request<'_>,
    start: Start<'_>,
    env: &TraceEnv<'_>,
) -> (String, Option<TracedActions>, Vec<Fork>) {
    let bridge = request.bridge;
    let mut report = Report::default();
    report.names = request.names;
    let mut translation = Translation::default();
    let reading = ReadGuard::begin();
    let packet = request.packet.as_deref().map(Packet::from_bytes);
    let input = Input {
        pipeline,
        snapshot,
        reading: &reading,
        key: &request.key,
        bridge,
        in_port: request.key.in_port,
        from: None,
        packet: packet.as_ref(),
        learn: request.packet.is_some(),
        now_ms: env.now_ms,
        start,
        version: None,
    };
    let outcome = run(&input, Some(&mut report), &mut translation);

    let port_name = |port: u32| {
        bridge
            .ports
            .get(&crate::xlate::of_port(port))
            .map(|p| p.name.clone())
    };
    let show = |m: &Match| {
        let names: Option<heddle_flow::text::PortNames<'_>> =
            if request.names { Some(&port_name) } else { None };
        m.text(names, DEFAULT_PRIORITY).to_string()
    };
    let port_names = request.names.then_some(env.port_names);
    let text = text(&request.key, &outcome, &report, &translation, port_names, &show);
    let run = outcome.error.is_none().then_some(TracedActions {
        key: request.key,
        actions: translation.actions,
    });
    (text, run, report.forks)
}
