//! The action set (OpenFlow 1.1 and later): merged while tables are traversed, run at the end.

use super::actions::Step;
use super::ctx::{Ctx, key_port};
use super::report::Kind;
use crate::action_set::as_list;
use heddle_openflow::text::ActionsText;
use heddle_openflow::{Action, Port};
use smallvec::SmallVec;

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
