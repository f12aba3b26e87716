//! Continuing in another table: resubmit, goto, and the first table of a bridge behind a patch.

use super::actions::{Step, steps_of};
use super::ctx::Ctx;
use super::limits::MAX_DEPTH;
use super::mask::is_ip_any;
use super::table::{LookupResult, OnMiss};
use heddle_flow::FlowKey;
use heddle_openflow::Action;
use heddle_openflow::action::ControllerAction;
use heddle_openflow::message::PacketInReason;
use heddle_wire::eth::ethertype as eth;

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
        debug_assert!(self.budget.depth <= MAX_DEPTH);
        // Headers behind a popped label must be parsed before a table can match them.
        if self.flow.was_mpls {
            self.rest.freeze();
            return;
        }
        if !self.may_look_up() {
            return;
        }
        let old_table = std::mem::replace(&mut self.at.table, l.table);
        if l.ct_orig {
            if self.flow.ct_nw_proto == 0 || !is_ip_any(&self.flow) {
                self.report_error(|| "resubmit(ct) with non-tracked or non-IP packet!".to_owned());
                self.at.table = old_table;
                return;
            }
            self.swap_tuple();
        }
        let found = self.lookup(l.in_port, l.on_miss);
        if l.ct_orig {
            self.swap_tuple();
        }
        let line = self.report_table(&found, l.table);
        let parent = self.trace.under(line);
        self.budget.resubmits += 1;
        let deepens = u32::from(l.table <= old_table);
        self.budget.depth += deepens;
        self.run_found(&found, l.last, l.run);
        self.budget.depth -= deepens;
        self.trace.under(parent);
        self.at.table = old_table;
    }

    /// Runs the actions of a rule, or of a miss.
    pub(super) fn run_found(&mut self, found: &LookupResult<'w>, last: bool, run: Run) {
        let old_rule = self.at.rule.take();
        let in_bucket = std::mem::replace(&mut self.at.in_bucket, false);
        let old_cookie = std::mem::replace(&mut self.at.cookie, 0);
        match found {
            LookupResult::Rule(rule) => {
                self.out.credit_rule(rule);
                self.at.cookie = rule.cookie;
                self.at.rule = Some(rule);
                self.run_steps(&steps_of(&rule.instructions.0), last, run);
            }
            LookupResult::ToController => {
                let action = Action::Controller(ControllerAction {
                    max_len: u16::MAX,
                    reason: PacketInReason::ImplicitMiss as u8,
                    ..ControllerAction::default()
                });
                self.run_steps(&[Step::Action(&action)], last, run);
            }
            LookupResult::Nothing | LookupResult::Fragment => self.run_steps(&[], last, run),
        }
        self.at.rule = old_rule;
        self.at.cookie = old_cookie;
        self.at.in_bucket = in_bucket;
    }

    fn run_steps(&mut self, steps: &[Step<'_>], last: bool, run: Run) {
        match run {
            Run::Here => self.run_list(steps, last),
            Run::OnCopy => self.run_on_copy(steps, last),
        }
    }

    /// Runs actions, then the action set, on a copy of the packet. Only the emitted actions stay. Steps that
    /// cannot be undone run on a copy that the datapath makes, unless no action follows. Actions of other
    /// tables and groups are checked after they have run ([`Ctx::isolate_changes`]).
    pub(super) fn run_on_copy(&mut self, steps: &[Step<'_>], last: bool) {
        let in_clone = !last && !steps.iter().all(Step::is_reversible);
        if in_clone {
            self.commit();
            if !self.at.has_clone() && !self.at.may_sample() {
                self.report_error(|| "Failed to compose clone action".to_owned());
                return;
            }
        }
        let (flow, mark) = (self.flow, self.mark());
        let (stack, set) = (self.at.stack.clone(), self.at.action_set.clone());
        self.run_list(steps, last || in_clone);
        if !self.rest.freezing {
            self.run_action_set();
        }
        if self.rest.freezing {
            // Later actions do not wait for a copy that is recirculated. A pause ends the translation: the
            // controller decides about the packet.
            self.rest.exit = self.rest.pause.is_some();
            self.finish_freezing();
        }
        (self.at.stack, self.at.action_set) = (stack, set);
        // The copy's connection state is not the packet's.
        self.flow = flow;
        if in_clone {
            self.base = mark.base;
            self.wrap(mark.at);
        } else {
            self.isolate_changes(mark, last);
        }
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
