//! One translation from beginning to end.

pub(crate) use super::ctx::key_port;

use super::actions::Step;
use super::ctx::Ctx;
use super::limits::XlateError;
use super::mask;
use super::report::{Kind, Report};
use super::resubmit::Run;
use super::table::{Found, OnMiss};
use crate::model::{BridgeView, World};
use heddle_datapath::action::DropReason;
use heddle_datapath::{Generations, Translation};
use heddle_flow::{FlowKey, FlowMask};
use heddle_openflow::{Action, Port};
use smallvec::SmallVec;

/// A controller's packet-out.
pub struct PacketOut<'a> {
    /// Which bridge.
    pub bridge: u64,
    /// The packet's key; `in_port` is the OpenFlow port in the key's form (16 bits for reserved ones).
    pub key: &'a FlowKey,
    /// What to do with it.
    pub actions: &'a [Action],
    /// Coarse clock, ms.
    pub now_ms: u64,
    /// The version of the bridge's rules to look at; `None`: the current one.
    pub version: Option<u64>,
}

/// What a translation says besides its [`Translation`].
#[derive(Clone, Debug)]
pub struct Outcome {
    /// It failed; the packet is dropped.
    pub error: Option<XlateError>,
    /// The packet as the pipeline saw it first (OpenFlow input port).
    pub initial: FlowKey,
    /// ... and last.
    pub last: FlowKey,
    /// The mask as a trace shows it.
    pub shown: FlowMask,
}

/// What is to be translated.
pub(crate) struct Input<'a> {
    /// The packet's key.
    pub(crate) key: &'a FlowKey,
    /// OpenFlow input port, in the key's form.
    pub(crate) in_port: u32,
    /// There is a packet: what is odd is logged.
    pub(crate) has_packet: bool,
    /// MAC addresses are learned.
    pub(crate) learn: bool,
    /// Coarse clock, ms.
    pub(crate) now_ms: u64,
    /// Actions to run in place of a table lookup.
    pub(crate) actions: Option<&'a [Action]>,
    /// ... because a controller said so.
    pub(crate) packet_out: bool,
    /// The version of the bridge's rules to look at; `None`: the current one.
    pub(crate) version: Option<u64>,
}

/// Translates. `out` has the configuration's dependency already, and nothing else.
pub(crate) fn run<'w>(
    world: &'w World,
    generations: &'w Generations,
    bridge: &'w BridgeView,
    input: &Input<'_>,
    report: Option<&'w mut Report>,
    out: &'w mut Translation,
) -> Outcome {
    let mut flow = *input.key;
    flow.in_port = input.in_port;
    flow.actset_output = key_port(Port::UNSET);
    let mut c = Ctx {
        world,
        generations,
        bridge,
        version: 0,
        flow,
        base: flow,
        orig: *input.key,
        seen: None,
        wc: FlowMask::default(),
        extra: FlowMask::default(),
        out,
        out_bytes: 0,
        table: 0,
        rule: None,
        cookie: u64::MAX,
        depth: 0,
        resubmits: 0,
        nesting: 0,
        exit: false,
        error: None,
        drop_hint: None,
        was_mpls: false,
        stack: Vec::new(),
        action_set: Vec::new(),
        action_set_has_group: false,
        in_action_set: false,
        in_packet_out: input.packet_out,
        n_controller: 0,
        has_packet: input.has_packet,
        learn: input.learn,
        now_ms: input.now_ms,
        report,
    };
    c.enter(bridge);
    if let Some(version) = input.version {
        c.version = version;
    }
    c.mask_init();
    let line = c.report(Kind::Bridge, || format!("bridge(\"{}\")", bridge.name));
    c.report_under(line);
    if flow.recirc_id == 0 {
        c.pipeline(input.actions);
    } else {
        c.report_error(|| format!("Recirculation context not found for ID {:x}", flow.recirc_id));
        c.error = Some(XlateError::NoRecirculationContext);
    }
    c.finish(flow)
}

impl Ctx<'_> {
    fn pipeline(&mut self, actions: Option<&[Action]>) {
        let found = match actions {
            Some(_) => None,
            None => {
                let found = self.lookup(self.flow.in_port, OnMiss::FULL);
                let line = self.report_table(&found, self.table);
                self.report_under(line);
                Some(found)
            }
        };
        if let Some(port) = self.in_port()
            && !self.may_receive(port)
        {
            return;
        }
        match (found, actions) {
            (Some(found), _) => {
                // The action set runs in the first rule's name.
                self.cookie = 0;
                if let Found::Rule(rule) = &found {
                    self.cookie = rule.cookie;
                    self.rule = Some(rule.clone());
                }
                self.run_found(found, true, Run::Here);
            }
            (None, list) => {
                let steps: SmallVec<[Step<'_>; 8]> = list.unwrap_or(&[]).iter().map(Step::Action).collect();
                self.run_list(&steps, true);
            }
        }
        if self.error.is_none() {
            self.run_action_set();
        }
    }

    fn finish(mut self, initial: FlowKey) -> Outcome {
        if self.error.is_some() {
            self.out.actions.clear();
        }
        // Nothing comes after the last action, so it needs no copy.
        if let Some(heddle_datapath::Action::Clone(inner)) = self.out.actions.pop_if(is_clone) {
            self.out.actions.extend(inner);
        }
        if self.out.actions.is_empty() {
            let reason = match self.error {
                Some(error) => error.drop_reason(),
                None => self.drop_hint.unwrap_or(DropReason::Policy),
            };
            self.out.actions.push(heddle_datapath::Action::Drop(reason));
        }
        self.extra.add(&self.wc);
        self.out.mask = mask::cached(&self.extra, &self.orig);
        Outcome {
            error: self.error,
            initial,
            last: self.flow,
            shown: mask::shown(&self.wc, &self.orig),
        }
    }
}

fn is_clone(action: &mut heddle_datapath::Action) -> bool {
    matches!(action, heddle_datapath::Action::Clone(_))
}
