//! The action set (OpenFlow 1.1 and later): merged while tables are traversed, run at the end.

use super::actions::Step;
use super::ctx::{Ctx, key_port};
use super::report::Kind;
use heddle_openflow::text::ActionsText;
use heddle_openflow::{Action, Port};
use smallvec::SmallVec;

/// Position of an action in the set's order. Each position has one action: the last one that was written.
fn slot(action: &Action) -> Option<usize> {
    Some(match action {
        Action::PopVlan | Action::StripVlan => 0,
        Action::PopMpls(_) => 1,
        Action::Decap(_) => 2,
        Action::Encap(_) => 3,
        Action::PushMpls(_) => 4,
        Action::PushVlan(_) => 5,
        Action::DecTtl(_) => 6,
        Action::DecMplsTtl => 7,
        Action::DecNshTtl => 8,
        _ => return None,
    })
}
const N_SLOTS: usize = 9;

/// The action that ends the set: without one, the set does nothing. Higher ones win, later ones among equals.
fn finality(action: &Action) -> Option<u8> {
    match action {
        Action::Ct(_) => Some(0),
        Action::CtClear => Some(1),
        Action::Resubmit { .. } => Some(2),
        Action::Output { .. } => Some(3),
        Action::Group(_) => Some(4),
        _ => None,
    }
}

/// Whether the action runs each time that it was written, in the order of writing.
fn is_set_or_move(action: &Action) -> bool {
    matches!(
        action,
        Action::SetField { .. }
            | Action::SetTunMetadata(_)
            | Action::Load { .. }
            | Action::Move { .. }
            | Action::SetEthDst(_)
            | Action::SetEthSrc(_)
            | Action::SetIpDscp(_)
            | Action::SetIpEcn(_)
            | Action::SetIpTtl(_)
            | Action::SetIpv4Dst(_)
            | Action::SetIpv4Src(_)
            | Action::SetL4Dst(_)
            | Action::SetL4Src(_)
            | Action::SetMplsLabel(_)
            | Action::SetMplsTc(_)
            | Action::SetMplsTtl(_)
            | Action::SetQueue(_)
            | Action::SetTunnel(_)
            | Action::SetVlanPcp { .. }
            | Action::SetVlanVid { .. }
    )
}

/// The set as a list in the order of execution; empty if no action ends it.
pub(crate) fn as_list(set: &[Action]) -> Vec<Action> {
    let mut slots: [Option<&Action>; N_SLOTS] = [None; N_SLOTS];
    let mut last: Option<(u8, &Action)> = None;
    for a in set {
        if let Some(s) = slot(a) {
            slots[s] = Some(a);
        } else if let Some(f) = finality(a)
            && last.is_none_or(|(best, _)| f >= best)
        {
            last = Some((f, a));
        }
    }
    let Some((_, last)) = last else { return Vec::new() };
    let sets = set.iter().filter(|a| is_set_or_move(a));
    slots
        .into_iter()
        .flatten()
        .chain(sets)
        .chain([last])
        .cloned()
        .collect()
}

impl Ctx<'_> {
    /// `write_actions`.
    pub(super) fn write_actions(&mut self, actions: &[Action]) {
        self.merge_action_set(actions);
        self.report_action_set("is");
    }

    /// Adds to the set.
    pub(super) fn merge_action_set(&mut self, actions: &[Action]) {
        if !self.at.action_set_has_group {
            for a in actions {
                match a {
                    Action::Output { port, .. } => self.flow.actset_output = key_port(*port),
                    Action::Group(_) => {
                        self.flow.actset_output = key_port(Port::UNSET);
                        self.at.action_set_has_group = true;
                        break;
                    }
                    _ => {}
                }
            }
        }
        self.at.action_set.extend_from_slice(actions);
    }

    /// `clear_actions`.
    pub(super) fn clear_actions(&mut self) {
        self.report_action_set("was");
        self.at.action_set.clear();
        self.flow.actset_output = key_port(Port::UNSET);
        self.at.action_set_has_group = false;
    }

    /// Runs the set, which is empty afterwards.
    pub(super) fn run_action_set(&mut self) {
        if self.at.action_set.is_empty() {
            return;
        }
        let list = as_list(&self.at.action_set);
        self.at.action_set.clear();
        if list.is_empty() {
            return;
        }
        self.at.in_action_set = true;
        let line = self
            .trace
            .report(Kind::Table, || "--. Executing action set:".to_owned());
        let parent = self.trace.under(line);
        let steps: SmallVec<[Step<'_>; 8]> = list.iter().map(Step::Action).collect();
        self.run_list(&steps, true);
        self.trace.under(parent);
        self.at.in_action_set = false;
    }

    fn report_action_set(&mut self, verb: &str) {
        if !self.trace.is_on() {
            return;
        }
        let list = as_list(&self.at.action_set);
        let text = match list.as_slice() {
            [] => format!("action set {verb} empty"),
            actions => format!("action set {verb}: {}", ActionsText { actions, names: None }),
        };
        self.trace.report(Kind::Detail, || text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_execution() {
        let out = |n| Action::Output {
            port: Port(n),
            max_len: 0,
        };
        let set = [
            out(1),
            Action::SetQueue(7),
            Action::PushVlan(0x8100),
            out(2),
            Action::PopVlan,
        ];
        assert_eq!(
            as_list(&set),
            [
                Action::PopVlan,
                Action::PushVlan(0x8100),
                Action::SetQueue(7),
                out(2)
            ]
        );
        assert_eq!(as_list(&set[1..3]), [], "nothing ends it");
        assert_eq!(as_list(&[Action::Group(5), out(1)]), [Action::Group(5)]);
    }
}
