//! One translation from beginning to end.

use super::actions::Step;
use super::ctx::{Ctx, key_port};
use super::emit::Output;
use super::flow::{Base, Flow};
use super::input::{Input, Start};
use super::limits::{Budget, MAX_DEPTH, XlateError};
use super::mask;
use super::position::{Position, Rest};
use super::report::{Kind, Report, Trace};
use super::resubmit::Run;
use super::table::{LookupResult, OnMiss};
use crate::tunnels::is_tunnelled;
use heddle_datapath_api::{Action as DpAction, Dep, DropReason, Translation};
use heddle_flow::{FlowKey, FlowMask};
use heddle_openflow::{Action, Port};
use heddle_packet::Packet;
use smallvec::SmallVec;

/// Maximum number of attempts at a translation.
const MAX_TRIES: usize = 16;

/// A controller's packet-out.
pub struct PacketOut<'a> {
    /// Id of the bridge.
    pub bridge: u64,
    /// The packet's key; `in_port` is the OpenFlow port in the key's form (16 bits for reserved ones).
    pub key: &'a FlowKey,
    /// Actions to run on the packet.
    pub actions: &'a [Action],
    /// The packet.
    pub packet: &'a Packet,
    /// Coarse clock, ms.
    pub now_ms: u64,
    /// The version of the bridge's rules to look at; `None`: the current one.
    pub version: Option<u64>,
}

/// Results of a translation besides its [`Translation`].
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Why the translation failed; the packet is dropped then.
    pub error: Option<XlateError>,
    /// The packet is a message for a BFD session that monitors a port.
    pub is_bfd: bool,
    /// The packet is a message for the LACP of a port.
    pub is_lacp: bool,
    /// In Open vSwitch, its slow path would handle the packet.
    pub is_slow: bool,
    /// The packet as the pipeline saw it first (OpenFlow input port).
    pub initial: FlowKey,
    /// The packet as the pipeline left it.
    pub last: FlowKey,
    /// The mask as a trace shows it.
    pub shown: FlowMask,
}

/// Translates. `out` is empty except for the dependencies of `from`.
pub(crate) fn run(input: &Input<'_>, report: Option<&mut Report>, out: &mut Translation) -> Outcome {
    let mut initial = *input.key;
    see_as_tables_do(&mut initial, input.in_port);
    translate(input, report, out, |c| Outcome {
        error: c.out.error,
        is_bfd: c.out.is_bfd,
        is_lacp: c.out.is_lacp,
        is_slow: c.out.is_slow(),
        initial,
        last: *c.flow,
        shown: mask::shown(&c.out.mask, input.key),
    })
}

/// Translates a packet that misses the caches. Unlike [`run`], it makes nothing that only a trace shows.
pub(crate) fn on_miss(input: &Input<'_>, out: &mut Translation) -> Option<XlateError> {
    translate(input, None, out, |c| c.out.error)
}

/// Control threads may unlink rules of the version that is read, after they have replaced them. Then the
/// translation begins anew. It may take long, as its thread may be preempted, but hardly [`MAX_TRIES`] times.
fn translate<R>(
    input: &Input<'_>,
    mut report: Option<&mut Report>,
    out: &mut Translation,
    outcome: impl Fn(&Ctx<'_>) -> R,
) -> R {
    let from: SmallVec<[Dep; 4]> = out.deps.as_slice().into();
    for _ in 1..MAX_TRIES {
        match once(input, report.as_deref_mut(), out, &outcome) {
            (outcome, false) => return outcome,
            // A trace shows what was found; no packet is forwarded by it.
            (outcome, true) if report.is_some() => return outcome,
            (_, true) => {
                out.clear();
                out.deps.extend_from_slice(&from);
            }
        }
    }
    let (outcome, torn) = once(input, report, out, &outcome);
    if torn {
        out.actions.clear();
        out.actions.push(DpAction::Drop(DropReason::Policy));
        out.uncacheable = true;
    }
    outcome
}

/// Sets the fields that tables see differently from the datapath: the input port and `actset_output`.
fn see_as_tables_do(key: &mut FlowKey, in_port: u32) {
    key.in_port = in_port;
    key.actset_output = key_port(Port::UNSET);
}

/// One attempt. The flag is set if some rules may have been missed.
fn once<'w, R>(
    input: &'w Input<'w>,
    report: Option<&'w mut Report>,
    out: &'w mut Translation,
    outcome: impl Fn(&Ctx<'_>) -> R,
) -> (R, bool) {
    let mut c = Ctx {
        input,
        at: Position::new(input.bridge),
        rest: Rest::default(),
        flow: Flow::new(*input.key),
        base: Base::new(input.key),
        out: Output::new(out, &input.pipeline.generations),
        budget: Budget::default(),
        trace: Trace {
            report,
            clauses: Vec::new(),
        },
    };
    see_as_tables_do(&mut c.flow, input.in_port);
    if is_tunnelled(input.key) {
        // The tunnel that the packet came from is not the one that it is sent into: outputs set that one
        // anew.
        c.base.copy_tunnel(&FlowKey::default());
    }
    if let Some(version) = input.version {
        c.at.version = version;
    }
    c.out.init_mask(&c.flow, input.key);
    let line = c
        .trace
        .report(Kind::Bridge, || format!("bridge(\"{}\")", input.bridge.name));
    c.trace.under(line);
    c.pipeline();
    c.out.torn |= c.at.is_torn();
    c.finish();
    let outcome = outcome(&c);
    c.out.finish_mask(input.key);
    (outcome, c.out.torn)
}

impl<'w> Ctx<'w> {
    fn pipeline(&mut self) {
        let start = &self.input.start;
        let port = self.in_port();
        if let Some(tunnel) = port.and_then(|p| p.tunnel()) {
            self.come_from_tunnel(tunnel);
        }
        let found = match start {
            Start::Tables if self.flow.recirc_id != 0 => {
                let id = self.flow.recirc_id;
                self.report_error(|| format!("Recirculation context not found for ID {id:x}"));
                self.out.error = Some(XlateError::NoRecirculationContext);
                return;
            }
            Start::Tables => Some(self.first_lookup()),
            _ => None,
        };
        let is_fresh = !self.input.is_thawed();
        if is_fresh && let Some(port) = port.filter(|p| p.tunnel().is_some()) {
            self.out.credit(&port.patch_rx);
        }
        if is_fresh && port.is_some_and(|p| self.is_special(p)) {
            return self.mirror_ingress();
        }
        if self.came_from_mirror() {
            return;
        }
        // A thawed packet was sampled when it came in.
        if is_fresh {
            self.sample_ingress();
        }
        if (port.is_some_and(|p| p.tunnel().is_some()) && !self.take_over_ecn())
            || port.is_some_and(|p| !self.may_receive(p))
        {
            // The rule that was found counts the packet, although the port does not receive it.
            if let Some(LookupResult::Rule(rule)) = &found {
                self.out.credit_rule(rule);
            }
            return;
        }
        // A thawed packet was mirrored when it came in.
        if is_fresh {
            self.mirror_ingress();
        }
        match (start, found) {
            (Start::Thaw { frozen, resumed }, _) => self.thaw(frozen, *resumed),
            (_, Some(found)) => self.run_first(found),
            (Start::Actions(list), None) => {
                let steps: SmallVec<[Step<'_>; 8]> = list.iter().map(Step::Action).collect();
                self.run_list(&steps, true);
            }
            // Looked up above.
            (Start::Tables, None) => {}
        }
        if self.out.error.is_none() {
            self.end_pipeline();
        }
    }

    /// Looks the packet up in the current table and runs the rule that it finds.
    pub(super) fn start(&mut self) {
        let found = self.first_lookup();
        self.run_first(found);
    }

    fn first_lookup(&mut self) -> LookupResult<'w> {
        let table = self.at.table;
        let found = self.lookup(self.flow.in_port, OnMiss::FULL);
        let line = self.report_table(&found, table);
        self.trace.under(line);
        found
    }

    fn run_first(&mut self, found: LookupResult<'w>) {
        self.run_found(&found, true, Run::Here);
        // Packet-ins of the action set name the first rule.
        self.at.cookie = 0;
        if let LookupResult::Rule(rule) = found {
            self.at.cookie = rule.cookie;
            self.at.rule = Some(rule);
        }
    }

    /// Ends the pipeline: runs the action set, or emits the packet's recirculation.
    pub(super) fn end_pipeline(&mut self) {
        if !self.rest.freezing {
            self.run_action_set();
        }
        if self.rest.freezing {
            self.finish_freezing();
        }
    }

    /// Completes the translation except for its mask.
    fn finish(&mut self) {
        if self.budget.is_out_of_steps() {
            // The error stays even if a bucket or patch port has cleared it. An entry must not keep a credit
            // for every step.
            self.out.error = Some(XlateError::TooManySteps);
            self.out.credits.truncate(MAX_DEPTH as usize);
        }
        if self.out.error.is_some() {
            self.out.actions.clear();
        }
        self.out.finish_samples();
        // The last action needs no copy of the packet: no action follows it.
        if let Some(DpAction::Clone(inner)) = self.out.actions.pop_if(is_clone) {
            self.out.actions.extend(inner);
        }
        // Rewrites for a tunnel that cannot be sent have no effect: without them, the packet is dropped and
        // counted.
        let in_vain = matches!(
            self.out.drop_hint,
            Some(DropReason::TunnelAddress | DropReason::TunnelRoute | DropReason::TunnelNeighbour)
        );
        if in_vain {
            while self.out.actions.pop_if(|a| a.only_rewrites()).is_some() {}
        }
        if self.out.actions.is_empty() {
            let reason = match self.out.error {
                Some(error) => error.drop_reason(),
                None => self.out.drop_hint.unwrap_or(DropReason::Policy),
            };
            self.out.actions.push(DpAction::Drop(reason));
        }
    }
}

fn is_clone(action: &mut DpAction) -> bool {
    matches!(action, DpAction::Clone(_))
}
