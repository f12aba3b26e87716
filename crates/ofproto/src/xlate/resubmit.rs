//! Continuing in another table: resubmit, goto, and the first table of a bridge behind a patch.

use super::actions::{Step, steps_of};
use super::ctx::Ctx;
use super::limits::MAX_DEPTH;
use super::mask::{eth, is_ip_any};
use super::table::{Found, OnMiss};
use crate::features::Feature;
use crate::model::Rule;
use heddle_flow::FlowKey;
use heddle_openflow::Action;
use heddle_openflow::action::ControllerAction;
use heddle_openflow::message::PacketInReason;

/// Whether a rule's actions run on the packet or on a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    /// On this packet.
    Here,
    /// On a copy, with the action set at the end.
    OnCopy,
}

/// One lookup to make.
#[derive(Clone, Copy)]
pub(super) struct Lookup {
    pub(super) in_port: u32,
    pub(super) table: u8,
    pub(super) on_miss: OnMiss,
    /// With the original direction's connection tuple in place of the packet's.
    pub(super) ct_orig: bool,
    /// No action follows.
    pub(super) last: bool,
    pub(super) run: Run,
}

impl<'w> Ctx<'w> {
    /// Looks the packet up and runs the actions that it finds.
    pub(super) fn table_action(&mut self, l: Lookup) {
        debug_assert!(self.depth <= MAX_DEPTH);
        // Headers behind a popped label must be parsed before a table can match them.
        if self.was_mpls {
            self.freeze();
            return;
        }
        if !self.may_look_up() {
            return;
        }
        let old_table = std::mem::replace(&mut self.table, l.table);
        if l.ct_orig {
            if self.flow.ct_nw_proto == 0 || !is_ip_any(&self.flow) {
                self.report_error(|| "resubmit(ct) with non-tracked or non-IP packet!".to_owned());
                self.table = old_table;
                return;
            }
            self.swap_tuple();
        }
        let found = self.lookup(l.in_port, l.on_miss);
        if l.ct_orig {
            self.swap_tuple();
        }
        let line = self.report_table(&found, l.table);
        let parent = self.report_under(line);
        self.resubmits += 1;
        let deepens = u32::from(l.table <= old_table);
        self.depth += deepens;
        self.run_found(&found, l.last, l.run);
        self.depth -= deepens;
        self.report_under(parent);
        self.table = old_table;
    }

    /// Runs the actions of a rule, or of a miss.
    pub(super) fn run_found(&mut self, found: &Found<'w>, last: bool, run: Run) {
        let old_rule = self.rule.take();
        let in_bucket = std::mem::replace(&mut self.in_bucket, false);
        let old_cookie = std::mem::replace(&mut self.cookie, 0);
        match found {
            Found::Rule(rule) => {
                self.credit_rule(rule);
                self.cookie = rule.cookie;
                self.rule = Some(rule);
                self.run_steps(&steps_of(&rule.instructions.0), last, run);
            }
            Found::ToController => {
                let action = Action::Controller(ControllerAction {
                    max_len: u16::MAX,
                    reason: PacketInReason::ImplicitMiss as u8,
                    ..ControllerAction::default()
                });
                self.run_steps(&[Step::Action(&action)], last, run);
            }
            Found::Nothing | Found::Fragment => self.run_steps(&[], last, run),
        }
        self.rule = old_rule;
        self.cookie = old_cookie;
        self.in_bucket = in_bucket;
    }

    /// Credits the packet to the rule.
    pub(super) fn credit_rule(&mut self, rule: &Rule) {
        let credits = &mut self.out.credits;
        credits.push_shared(rule.stats.seen(), || rule.stats.counted());
    }

    fn run_steps(&mut self, steps: &[Step<'_>], last: bool, run: Run) {
        match run {
            Run::Here => self.run_list(steps, last),
            Run::OnCopy => self.run_on_copy(steps, last),
        }
    }

    /// Runs actions, then the action set, on a copy of the packet. Only the emitted actions stay. Steps that
    /// cannot be undone run on a copy that the datapath makes, unless no action follows. Actions of other
    /// tables and groups are checked after they have run ([`Ctx::settle`]).
    pub(super) fn run_on_copy(&mut self, steps: &[Step<'_>], last: bool) {
        let in_clone = !last && !steps.iter().all(Step::is_reversible);
        if in_clone {
            self.commit();
            if !self.has_clone() && !self.may_sample() {
                self.report_error(|| "Failed to compose clone action".to_owned());
                return;
            }
        }
        let (base, at) = (self.base.clone(), self.out.actions.len());
        let conntracked = self.conntracked;
        let (stack, set, flow) = (self.stack.clone(), self.action_set.clone(), self.flow);
        let was_mpls = self.was_mpls;
        let mark = self.mark();
        self.run_list(steps, last || in_clone);
        if !self.freezing {
            self.run_action_set();
        }
        if self.freezing {
            // Later actions do not wait for a copy that is recirculated. A pause ends the translation: the
            // controller decides about the packet.
            self.exit = self.pause.is_some();
            self.finish_freezing();
        }
        self.was_mpls = was_mpls;
        self.stack = stack;
        self.action_set = set;
        self.flow = flow;
        // The copy's connection state is not the packet's.
        self.conntracked = conntracked;
        if in_clone {
            self.base = base;
            self.wrap(at);
            self.pending = None;
        } else {
            self.settle(mark, last);
        }
    }

    pub(super) fn has_clone(&self) -> bool {
        self.bridge.features.has(Feature::Clone)
    }

    /// Whether a sample of all packets can replace a clone, even nested in other samples.
    pub(super) fn may_sample(&self) -> bool {
        self.bridge.features.number(Feature::SampleNesting) > 3
    }

    /// Swaps the packet's tuple with the original direction's.
    fn swap_tuple(&mut self) {
        let v4 = self.flow.dl_type == eth::IP;
        swap(&mut self.flow, v4);
        swap(&mut self.out.mask.0, v4);
    }
}

fn swap(k: &mut FlowKey, v4: bool) {
    use std::mem::swap;
    swap(&mut k.nw_proto, &mut k.ct_nw_proto);
    if v4 {
        swap(&mut k.nw_src, &mut k.ct_nw_src);
        swap(&mut k.nw_dst, &mut k.ct_nw_dst);
    } else {
        swap(&mut k.ipv6_src, &mut k.ct_ipv6_src);
        swap(&mut k.ipv6_dst, &mut k.ct_ipv6_dst);
    }
    swap(&mut k.tp_src, &mut k.ct_tp_src);
    swap(&mut k.tp_dst, &mut k.ct_tp_dst);
}
