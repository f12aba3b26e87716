//! The rules that a flow mod or a statistics request selects.

use super::{Bridge, Linked};
use crate::model::Rule;
use heddle_classifier::MiniMatch;
use heddle_flow::Match;
use heddle_openflow::action::Action;
use heddle_openflow::message::{FlowMod, FlowStatsRequest, GROUP_ANY};
use heddle_openflow::{Instruction, Port as OfPort};
use std::cmp::Reverse;

/// All criteria of a selection.
pub(super) struct Select {
    matches: MiniMatch,
    /// `Some`: strict, with just this priority.
    strict: Option<u16>,
    table_id: u8,
    cookie: u64,
    cookie_mask: u64,
    out_port: OfPort,
    out_group: u32,
}

impl Select {
    pub(super) fn new(fm: &FlowMod, strict: bool, filter_out: bool) -> Self {
        Self {
            matches: compact(&fm.match_),
            strict: strict.then_some(fm.priority),
            table_id: fm.table_id,
            cookie: fm.cookie,
            cookie_mask: fm.cookie_mask,
            out_port: if filter_out { fm.out_port } else { OfPort::NONE },
            out_group: if filter_out { fm.out_group } else { GROUP_ANY },
        }
    }

    pub(super) fn for_stats(r: &FlowStatsRequest) -> Self {
        Self {
            matches: compact(&r.match_),
            strict: None,
            table_id: r.table_id,
            cookie: r.cookie,
            cookie_mask: r.cookie_mask,
            out_port: r.out_port,
            out_group: r.out_group,
        }
    }

    /// The rules at `version`, table by table, higher priorities first, then in the order of their addition,
    /// hidden ones left out.
    pub(super) fn run(&self, bridge: &Bridge, version: u64) -> Vec<Linked> {
        let mut found = Vec::new();
        for table in bridge
            .tables
            .iter()
            .filter(|t| self.table_id == 0xff || t.id == self.table_id)
        {
            let from = found.len();
            if let Some(priority) = self.strict {
                let e = table
                    .rules
                    .find_linked(version, &self.matches, i32::from(priority));
                found.extend(e.filter(|e| self.wants(&e.data)));
            } else {
                table.rules.for_each_within(version, &self.matches, |e| {
                    if self.wants(&e.data) {
                        found.push(e.clone());
                    }
                });
                found[from..].sort_by_key(|e| (Reverse(e.priority), e.data.created_ms, e.data.serial));
            }
        }
        found
    }

    fn wants(&self, rule: &Rule) -> bool {
        !rule.hidden
            && (rule.cookie ^ self.cookie) & self.cookie_mask == 0
            && (self.out_port == OfPort::NONE || has_output(rule, self.out_port))
            && has_group(rule, self.out_group)
    }
}

/// Whether a rule outputs to this port.
pub(super) fn has_output(rule: &Rule, port: OfPort) -> bool {
    outputs(rule, &|a| sends_to(a, port))
}

/// Whether a rule uses this group ([`GROUP_ANY`]: it need not).
pub(super) fn has_group(rule: &Rule, group: u32) -> bool {
    group == GROUP_ANY || outputs(rule, &|a| matches!(a, Action::Group(g) if *g == group))
}

/// The compact form of a match as a peer sent it (its key may have bits outside the mask).
pub(super) fn compact(m: &Match) -> MiniMatch {
    MiniMatch::new(m)
}

fn sends_to(action: &Action, port: OfPort) -> bool {
    match action {
        Action::Output { port: p, .. }
        | Action::OutputTrunc { port: p, .. }
        | Action::Enqueue { port: p, .. } => *p == port,
        Action::Controller(_) => port == OfPort::CONTROLLER,
        _ => false,
    }
}

/// Whether some action, also in nested lists, satisfies `f`.
fn outputs(rule: &Rule, f: &dyn Fn(&Action) -> bool) -> bool {
    fn any(actions: &[Action], f: &dyn Fn(&Action) -> bool) -> bool {
        actions
            .iter()
            .any(|a| f(a) || matches!(a, Action::Clone(inner) if any(inner, f)))
    }
    rule.instructions.0.iter().any(|i| match i {
        Instruction::Apply(actions) | Instruction::Write(actions) => any(actions, f),
        _ => false,
    })
}
