//! One translation from beginning to end.

pub(crate) use super::ctx::key_port;

use super::Pipeline;
use super::actions::Step;
use super::ctx::{Ctx, OnWrite, Tracked};
use super::limits::{MAX_ACTION_BYTES, MAX_DEPTH, XlateError};
use super::mask;
use super::recirc::Frozen;
use super::report::{Kind, Report};
use super::resubmit::Run;
use super::table::{Found, OnMiss};
use crate::model::{BridgeView, Snapshot};
use crate::tunnels::{is_tunnelled, tunnel_of};
use heddle_datapath_api::{Dep, DropReason, Translation};
use heddle_flow::{FlowKey, FlowMask};
use heddle_openflow::{Action, Port};
use heddle_sync::ReadGuard;
use smallvec::SmallVec;

/// Maximum number of attempts at a translation.
const TRIES: usize = 16;

/// A controller's packet-out.
pub struct PacketOut<'a> {
    /// Id of the bridge.
    pub bridge: u64,
    /// The packet's key; `in_port` is the OpenFlow port in the key's form (16 bits for reserved ones).
    pub key: &'a FlowKey,
    /// Actions to run on the packet.
    pub actions: &'a [Action],
    /// The packet's length.
    pub len: usize,
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
    /// In Open vSwitch, its slow path would handle the packet.
    pub is_slow: bool,
    /// The packet as the pipeline saw it first (OpenFlow input port).
    pub initial: FlowKey,
    /// The packet as the pipeline left it.
    pub last: FlowKey,
    /// The mask as a trace shows it.
    pub shown: FlowMask,
}

/// Input of one translation.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    /// The packet's key.
    pub(crate) key: &'a FlowKey,
    /// OpenFlow input port, in the key's form.
    pub(crate) in_port: u32,
    /// The bridge and port where the packet came in: the translation depends on them already.
    pub(crate) from: Option<(u64, Port)>,
    /// The packet's length. `None`: there is no packet, so anomalies are not logged.
    pub(crate) packet_len: Option<usize>,
    /// MAC addresses are learned.
    pub(crate) learn: bool,
    /// Coarse clock, ms.
    pub(crate) now_ms: u64,
    /// RCU read guard: rules that are found live as long as this.
    pub(crate) reading: &'a ReadGuard,
    /// The first step.
    pub(crate) start: Start<'a>,
    /// A controller's packet-out.
    pub(crate) packet_out: bool,
    /// The version of the bridge's rules to look at; `None`: the current one.
    pub(crate) version: Option<u64>,
}

/// The first step of a translation.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a> {
    /// A lookup in the first table.
    Tables,
    /// These actions.
    Actions(&'a [Action]),
    /// The steps of a frozen pipeline.
    Thaw {
        frozen: &'a Frozen,
        /// A controller resumes it: even if no steps are left, no table is looked up.
        resumed: bool,
    },
}

/// Translates. `out` is empty except for the dependencies of `from`.
pub(crate) fn run(
    snapshot: &Snapshot,
    pipeline: &Pipeline,
    bridge: &BridgeView,
    input: &Input<'_>,
    report: Option<&mut Report>,
    out: &mut Translation,
) -> Outcome {
    let mut initial = *input.key;
    see_as_tables_do(&mut initial, input.in_port);
    translate(snapshot, pipeline, bridge, input, report, out, |c| Outcome {
        error: c.error,
        is_bfd: c.is_bfd,
        is_slow: c.is_slow || c.out_bytes > MAX_ACTION_BYTES,
        initial,
        last: c.flow,
        shown: mask::shown(&c.out.mask, c.orig),
    })
}

/// Translates a packet that misses the caches. Unlike [`run`], it makes nothing that only a trace shows.
pub(crate) fn answer(
    snapshot: &Snapshot,
    pipeline: &Pipeline,
    bridge: &BridgeView,
    input: &Input<'_>,
    out: &mut Translation,
) -> Option<XlateError> {
    translate(snapshot, pipeline, bridge, input, None, out, |c| c.error)
}

/// Control threads may unlink rules of the version that is read, after they have replaced them. Then the
/// translation begins anew. It may take long, as its thread may be preempted, but hardly [`TRIES`] times.
fn translate<R>(
    snapshot: &Snapshot,
    pipeline: &Pipeline,
    bridge: &BridgeView,
    input: &Input<'_>,
    mut report: Option<&mut Report>,
    out: &mut Translation,
    tell: impl Fn(&Ctx<'_>) -> R,
) -> R {
    let from: SmallVec<[Dep; 4]> = out.deps.as_slice().into();
    for _ in 1..TRIES {
        match once(
            snapshot,
            pipeline,
            bridge,
            input,
            report.as_deref_mut(),
            out,
            &tell,
        ) {
            (told, false) => return told,
            // A trace shows what was found; no packet is forwarded by it.
            (told, true) if report.is_some() => return told,
            (_, true) => {
                out.clear();
                out.deps.extend_from_slice(&from);
            }
        }
    }
    let (told, torn) = once(snapshot, pipeline, bridge, input, report, out, &tell);
    if torn {
        out.actions.clear();
        out.actions
            .push(heddle_datapath_api::Action::Drop(DropReason::Policy));
        out.uncacheable = true;
    }
    told
}

/// Sets the fields that tables see differently from the datapath: the input port and `actset_output`.
fn see_as_tables_do(key: &mut FlowKey, in_port: u32) {
    key.in_port = in_port;
    key.actset_output = key_port(Port::UNSET);
}

/// One attempt. The flag is set if some rules may have been missed.
fn once<'w, R>(
    snapshot: &'w Snapshot,
    pipeline: &'w Pipeline,
    bridge: &'w BridgeView,
    input: &Input<'w>,
    report: Option<&'w mut Report>,
    out: &'w mut Translation,
    tell: impl Fn(&Ctx<'_>) -> R,
) -> (R, bool) {
    let mut c = Ctx {
        snapshot,
        generations: &pipeline.generations,
        recircs: &pipeline.recircs,
        underlay: &pipeline.underlay,
        reading: input.reading,
        bridge,
        version: 0,
        torn: false,
        flow: *input.key,
        base: OnWrite::new(input.key),
        orig: input.key,
        from: input.from,
        has_looked: false,
        seen: None,
        extra: None,
        out,
        out_bytes: 0,
        table: 0,
        rule: None,
        cookie: u64::MAX,
        depth: 0,
        resubmits: 0,
        nesting: 0,
        steps: 0,
        exit: false,
        freezing: false,
        left: Vec::new(),
        pause: None,
        recirc_hash: None,
        has_hash: false,
        is_slow: false,
        is_bfd: false,
        error: None,
        drop_hint: None,
        pending: None,
        restacked: 0,
        conntracked: Tracked::AsItCame,
        ct_nat: None,
        thawed: matches!(input.start, Start::Thaw { .. }),
        was_mpls: false,
        stack: Vec::new(),
        action_set: Vec::new(),
        action_set_has_group: false,
        in_action_set: false,
        in_bucket: false,
        in_packet_out: input.packet_out,
        samples: Vec::new(),
        mirrored: 0,
        mirror_snaplen: 0,
        has_packet: input.packet_len.is_some(),
        packet_len: input.packet_len,
        learn: input.learn,
        sources: SmallVec::new(),
        now_ms: input.now_ms,
        report,
        clauses: Vec::new(),
    };
    see_as_tables_do(&mut c.flow, input.in_port);
    if is_tunnelled(input.key) {
        // The tunnel that the packet came from is not the one that it is sent into: outputs set that one
        // anew.
        c.base.copy_tunnel(&FlowKey::default());
    }
    c.enter(bridge);
    if let Some(version) = input.version {
        c.version = version;
    }
    c.mask_init();
    let line = c.report(Kind::Bridge, || format!("bridge(\"{}\")", bridge.name));
    c.report_under(line);
    c.pipeline(&input.start);
    c.exit_bridge();
    c.finish();
    let told = tell(&c);
    c.finish_mask();
    (told, c.torn)
}

impl<'w> Ctx<'w> {
    fn pipeline(&mut self, start: &Start<'_>) {
        let port = self.in_port();
        if let Some(tunnel) = port.and_then(|p| tunnel_of(p)) {
            self.come_from_tunnel(tunnel, start);
        }
        let found = match start {
            Start::Tables if self.flow.recirc_id != 0 => {
                let id = self.flow.recirc_id;
                self.report_error(|| format!("Recirculation context not found for ID {id:x}"));
                self.error = Some(XlateError::NoRecirculationContext);
                return;
            }
            Start::Tables => Some(self.first_lookup()),
            _ => None,
        };
        let is_fresh = !matches!(start, Start::Thaw { .. });
        if is_fresh && let Some(port) = port.filter(|p| tunnel_of(p).is_some()) {
            self.credit(&port.patch_rx);
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
        if (port.is_some_and(|p| tunnel_of(p).is_some()) && !self.take_over_ecn())
            || port.is_some_and(|p| !self.may_receive(p))
        {
            // The rule that was found counts the packet, although the port does not receive it.
            if let Some(Found::Rule(rule)) = &found {
                self.credit_rule(rule);
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
        self.end();
    }

    /// Looks the packet up in the current table and runs the rule that it finds.
    pub(super) fn start(&mut self) {
        let found = self.first_lookup();
        self.run_first(found);
    }

    fn first_lookup(&mut self) -> Found<'w> {
        let table = self.table;
        let found = self.lookup(self.flow.in_port, OnMiss::FULL);
        let line = self.report_table(&found, table);
        self.report_under(line);
        found
    }

    fn run_first(&mut self, found: Found<'w>) {
        self.run_found(&found, true, Run::Here);
        // Packet-ins of the action set name the first rule.
        self.cookie = 0;
        if let Found::Rule(rule) = found {
            self.cookie = rule.cookie;
            self.rule = Some(rule);
        }
    }

    /// Ends the pipeline: runs the action set, or emits the packet's recirculation.
    fn end(&mut self) {
        if self.error.is_some() {
            return;
        }
        if !self.freezing {
            self.run_action_set();
        }
        if self.freezing {
            self.finish_freezing();
        }
    }

    /// Completes the translation except for its mask.
    fn finish(&mut self) {
        if self.out_of_steps() {
            // The error stays even if a bucket or patch port has cleared it. An entry must not keep a credit
            // for every step.
            self.error = Some(XlateError::TooManySteps);
            self.out.credits.truncate(MAX_DEPTH as usize);
        }
        if self.error.is_some() {
            self.out.actions.clear();
        }
        self.tell_samples();
        // The last action needs no copy of the packet: no action follows it.
        if let Some(heddle_datapath_api::Action::Clone(inner)) = self.out.actions.pop_if(is_clone) {
            self.out.actions.extend(inner);
        }
        // Rewrites for a tunnel that cannot be sent have no effect: without them, the packet is dropped and
        // counted.
        let in_vain = matches!(
            self.drop_hint,
            Some(DropReason::TunnelAddress | DropReason::TunnelRoute | DropReason::TunnelNeighbour)
        );
        if in_vain {
            while self.out.actions.pop_if(|a| a.only_rewrites()).is_some() {}
        }
        if self.out.actions.is_empty() {
            let reason = match self.error {
                Some(error) => error.drop_reason(),
                None => self.drop_hint.unwrap_or(DropReason::Policy),
            };
            self.out.actions.push(heddle_datapath_api::Action::Drop(reason));
        }
    }
    fn finish_mask(&mut self) {
        if let Some(extra) = &self.extra {
            self.out.mask.add(extra);
        }
        mask::trim(&mut self.out.mask, self.orig);
    }
}

fn is_clone(action: &mut heddle_datapath_api::Action) -> bool {
    matches!(action, heddle_datapath_api::Action::Clone(_))
}
