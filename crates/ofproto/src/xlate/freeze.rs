//! Freezing a pipeline in the middle, and thawing it when the packet comes back.
//!
//! An action that needs the packet to come back sets `exit`, as the action `exit` does, and `freezing`. Every
//! list of actions then appends the steps that it has not run to `left`, the innermost list first. They run
//! in that order when the pipeline continues.

use super::actions::Step;
use super::ctx::Ctx;
use super::flow::Tracked;
use super::limits::XlateError;
use super::position::{Position, Rest};
use super::recirc::{Frozen, Left, Recirculation, steps_text};
use super::report::Kind;
use heddle_datapath_api::Action as DpAction;
use heddle_flow::{FieldId, FieldValue, FlowKey};
use heddle_openflow::text::ActionsText;
use heddle_openflow::{Action, Instruction, Port};
use std::sync::Arc;

/// A key with only the fields of the pipeline, which outlive a recirculation.
pub(super) fn metadata_of(key: &FlowKey) -> FlowKey {
    let mut kept = FlowKey::default();
    copy_metadata(key, &mut kept);
    kept
}

/// Copies the pipeline's fields.
fn copy_metadata(from: &FlowKey, to: &mut FlowKey) {
    to.copy_tunnel(from);
    to.metadata = from.metadata;
    to.regs = from.regs;
    to.in_port = from.in_port;
}

impl Rest {
    /// Keeps steps for when the pipeline continues.
    pub(super) fn leave(&mut self, at: &Position<'_>, steps: &[Step<'_>]) {
        for step in steps {
            match step {
                // These have no effect.
                Step::Action(Action::Note(_) | Action::Conjunction(_)) => continue,
                Step::Action(
                    Action::Output { .. }
                    | Action::OutputReg { .. }
                    | Action::OutputTrunc { .. }
                    | Action::Group(_)
                    | Action::Controller(_)
                    | Action::DecTtl(_)
                    | Action::DecMplsTtl
                    | Action::DecNshTtl
                    | Action::Resubmit { table: None, .. },
                ) => self.leave_unroll(at),
                _ => {}
            }
            let left = match step {
                Step::Action(a) => Left::Action(Action::clone(a)),
                Step::Instruction(Instruction::Goto(table)) => Left::Action(Action::Resubmit {
                    port: Port::IN_PORT,
                    table: Some(*table),
                    with_ct_orig: false,
                }),
                Step::Instruction(Instruction::WriteMetadata { value, mask }) => {
                    Left::Action(Action::SetField {
                        field: FieldId::Metadata,
                        value: FieldValue::from_u64(value & mask),
                        mask: FieldValue::from_u64(*mask),
                    })
                }
                Step::Instruction(i) => Left::Instruction(Instruction::clone(i)),
                Step::Unroll { table, cookie } => Left::Unroll {
                    table: *table,
                    cookie: *cookie,
                },
            };
            self.left.push(left);
        }
    }

    /// Packet-ins of the following steps name the current table and rule.
    fn leave_unroll(&mut self, at: &Position<'_>) {
        let here = (at.table, at.cookie);
        let last = self.left.iter().rev().find_map(|l| match l {
            Left::Unroll { table, cookie } => Some((*table, *cookie)),
            _ => None,
        });
        if last != Some(here) {
            let (table, cookie) = here;
            self.left.push(Left::Unroll { table, cookie });
        }
    }
}

impl Ctx<'_> {
    /// The pipeline's fields to keep, with the tunnel that the packet came from. Adds the tunnel to the mask.
    pub(super) fn kept_metadata(&mut self) -> FlowKey {
        let mut all = FlowKey::default();
        all.words_mut().fill(u64::MAX);
        if self.flow.tun_present == 0 {
            // Without options, there are no values.
            all.tun_metadata.fill(0);
        }
        self.out.extra().0.copy_tunnel(&all);
        metadata_of(&self.flow)
    }

    /// Emits the packet's recirculation, or the packet-in that a controller resumes. If a copy was frozen,
    /// the translation continues.
    pub(super) fn finish_freezing(&mut self) {
        self.commit();
        self.freeze_at(0);
    }

    /// Freezes the pipeline when all changes of the packet are emitted. It continues with the steps in
    /// `left`, or else in a table. `None`: there is no free recirculation id.
    pub(super) fn freeze_at(&mut self, table: u8) -> Option<Arc<Recirculation>> {
        let pause = self.rest.pause.take();
        // The hash is part of the frozen pipeline. Without it, a packet that comes back with its hash could
        // get the id of a packet that needs one.
        let hash = self.rest.hash.take();
        // Tunnel fields that actions wrote are in the mask, even if they had the same values before.
        let own_tunnel =
            pause.is_none() && self.input.from.is_some() && self.flow.has_same_tunnel(self.input.key);
        let metadata = match own_tunnel {
            true => {
                let mut kept = metadata_of(&self.flow);
                kept.copy_tunnel(&FlowKey::default());
                kept
            }
            false => self.kept_metadata(),
        };
        let frozen = Frozen {
            table,
            own_tunnel,
            stack: self.at.stack.clone(),
            hash,
            steps: std::mem::take(&mut self.rest.left),
            action_set: self.at.action_set.clone(),
            userdata: pause.as_ref().map_or_else(Vec::new, |c| c.userdata.clone()),
            ..self.frozen(metadata)
        };
        self.rest.freezing = false;
        let held = self.take_recirculation(frozen)?;
        match pause {
            Some(action) => self.continue_at_controller(&action, held.clone()),
            None => {
                if let Some((alg, basis)) = hash {
                    self.out.emit(DpAction::Hash { alg, basis });
                }
                self.out.emit(DpAction::Recirc(held.id));
                self.out.credits.push(held.clone());
            }
        }
        Some(held)
    }

    /// The pipeline as it is now, with its fields in `metadata`, and without stack, action set and steps.
    pub(super) fn frozen(&mut self, metadata: FlowKey) -> Frozen {
        Frozen {
            bridge: self.at.bridge.id,
            table: self.at.table,
            metadata,
            own_tunnel: false,
            stack: Vec::new(),
            was_mpls: self.flow.was_mpls,
            conntracked: self.is_tracked(),
            mirrored: self.at.mirrored,
            hash: None,
            steps: Vec::new(),
            action_set: Vec::new(),
            userdata: Vec::new(),
        }
    }

    /// The recirculation id of a frozen pipeline. `None`: there is no free one, and the translation fails.
    pub(super) fn take_recirculation(&mut self, frozen: Frozen) -> Option<Arc<Recirculation>> {
        let taken = self.input.pipeline.recircs.take(frozen, self.input.reading);
        if taken.is_none() {
            self.report_error(|| "Failed to allocate recirculation id".to_owned());
            self.out.error = Some(XlateError::NoRecirculationContext);
        }
        taken
    }

    /// Restores the state of a frozen pipeline and runs its steps, or a lookup if there are none.
    pub(super) fn thaw(&mut self, frozen: &Frozen, resumed: bool) {
        let line = self.trace.report(Kind::Thaw, || "thaw".to_owned());
        let parent = self.trace.under(line);
        let Some(bridge) = self.other_bridge(frozen.bridge) else {
            self.report_error(|| "Frozen bridge no longer exists.".to_owned());
            self.out.error = Some(XlateError::BridgeNotFound);
            self.trace.under(parent);
            return;
        };
        if bridge.id != self.at.bridge.id {
            self.at.enter(bridge);
        }
        self.at.table = frozen.table;
        self.trace
            .report(Kind::Thaw, || format!("Resuming from table {}", frozen.table));
        if frozen.conntracked {
            self.flow.conntracked = Tracked::Yes;
        } else {
            self.flow.forget_connection();
        }
        let came = *self.flow;
        copy_metadata(&frozen.metadata, &mut self.flow);
        if frozen.own_tunnel {
            self.flow.copy_tunnel(&came);
        }
        self.at.stack.clone_from(&frozen.stack);
        self.at.mirrored = frozen.mirrored;
        if !frozen.action_set.is_empty() {
            let actions = &frozen.action_set;
            self.trace.report(Kind::Thaw, || {
                format!("Restoring action set: {}", ActionsText { actions, names: None })
            });
            self.merge_action_set(actions);
        }
        if !frozen.steps.is_empty() {
            self.trace.report(Kind::Thaw, || {
                format!("Restoring actions: {}", steps_text(&frozen.steps))
            });
        }
        self.trace.under(parent);
        let steps = frozen.steps.iter().map(|l| match l {
            Left::Action(a) => Step::Action(a),
            Left::Instruction(i) => Step::Instruction(i),
            Left::Unroll { table, cookie } => Step::Unroll {
                table: *table,
                cookie: *cookie,
            },
        });
        let steps: smallvec::SmallVec<[Step<'_>; 8]> = steps.collect();
        if !steps.is_empty() {
            self.run_list(&steps, true);
        } else if !resumed {
            self.start();
        }
    }
}
