//! Freezing a pipeline in the middle, and thawing it when the packet comes back.
//!
//! An action that needs the packet to come back sets `exit`, as the action `exit` does, and `freezing`: on
//! the way out, every list of actions leaves what it has not done yet in `left`, the innermost first. What is
//! left runs, in that order, when the pipeline goes on.

use super::actions::Step;
use super::ctx::{Ctx, Tracked};
use super::limits::XlateError;
use super::recirc::{Frozen, Held, Left, steps_text};
use super::report::Kind;
use heddle_datapath_api::{Action as DpAction, HashAlg};
use heddle_flow::{FieldId, FieldValue, FlowKey};
use heddle_openflow::text::ActionsText;
use heddle_openflow::{Action, Instruction, Port};
use std::sync::Arc;

/// The pipeline's fields of a key that outlive a recirculation.
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

impl Ctx<'_> {
    /// From here on, the pipeline goes on when the packet comes back.
    pub(super) fn freeze(&mut self) {
        self.exit = true;
        self.freezing = true;
    }

    /// As [`Ctx::freeze`]; the packet comes back with a hash of it.
    pub(super) fn freeze_for_hash(&mut self, alg: HashAlg, basis: u32) {
        self.recirc_hash = Some((alg, basis));
        self.freeze();
    }

    /// Keeps steps for when the pipeline goes on.
    pub(super) fn leave(&mut self, steps: &[Step<'_>]) {
        for step in steps {
            match step {
                // Nothing would come of these.
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
                ) => self.leave_place(),
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

    /// Packet-ins of what follows name the table and rule at hand.
    fn leave_place(&mut self) {
        let here = (self.table, self.cookie);
        let last = self.left.iter().rev().find_map(|l| match l {
            Left::Unroll { table, cookie } => Some((*table, *cookie)),
            _ => None,
        });
        if last != Some(here) {
            let (table, cookie) = here;
            self.left.push(Left::Unroll { table, cookie });
        }
    }

    /// The pipeline's fields as they are kept; the tunnel that the packet came from is part of them.
    pub(super) fn kept_metadata(&mut self) -> FlowKey {
        let mut all = FlowKey::default();
        all.words_mut().fill(u64::MAX);
        if self.flow.tun_present == 0 {
            // Options that are not there have no values.
            all.tun_metadata.fill(0);
        }
        self.extra().0.copy_tunnel(&all);
        metadata_of(&self.flow)
    }

    /// Emits what has the packet come back (or the controller resume it). The translation itself goes on
    /// where a copy was frozen.
    pub(super) fn finish_freezing(&mut self) {
        self.commit();
        self.freeze_at(0);
    }

    /// As [`Ctx::finish_freezing`], with all that the packet should be emitted already: the pipeline goes on
    /// with what was left to do, or else in a table. `None`: there is no room for another pipeline.
    pub(super) fn freeze_at(&mut self, table: u8) -> Option<Arc<Held>> {
        let pause = self.pause.take();
        // Without it, what comes back with a hash would have the id of what is yet to be hashed, and be taken
        // for it.
        let hash = self.recirc_hash.take();
        // What was written of the tunnel is in the mask, even if it was that before.
        let own_tunnel = pause.is_none() && self.from.is_some() && self.flow.has_same_tunnel(self.orig);
        let metadata = match own_tunnel {
            true => {
                let mut kept = metadata_of(&self.flow);
                kept.copy_tunnel(&FlowKey::default());
                kept
            }
            false => self.kept_metadata(),
        };
        let frozen = Frozen {
            bridge: self.bridge.id,
            table,
            metadata,
            own_tunnel,
            stack: self.stack.clone(),
            was_mpls: self.was_mpls,
            conntracked: self.is_tracked(),
            mirrored: self.mirrored,
            hash,
            steps: std::mem::take(&mut self.left),
            action_set: self.action_set.clone(),
            userdata: pause.as_ref().map_or_else(Vec::new, |c| c.userdata.clone()),
        };
        self.freezing = false;
        let Some(held) = self.recircs.take(frozen, self.reading) else {
            self.report_error(|| "Failed to allocate recirculation id".to_owned());
            self.error = Some(XlateError::NoRecirculationContext);
            return None;
        };
        match pause {
            Some(action) => self.continue_at_controller(&action, held.clone()),
            None => {
                if let Some((alg, basis)) = hash {
                    self.emit(DpAction::Hash { alg, basis });
                }
                self.emit(DpAction::Recirc(held.id));
                self.out.credits.push(held.clone());
            }
        }
        Some(held)
    }

    /// Puts the pipeline into the state that it was frozen in, and runs what was left to do; a lookup, if
    /// nothing was.
    pub(super) fn thaw(&mut self, frozen: &Frozen, resumed: bool) {
        let line = self.report(Kind::Thaw, || "thaw".to_owned());
        let parent = self.report_under(line);
        let Some(bridge) = self.other_bridge(frozen.bridge) else {
            self.report_error(|| "Frozen bridge no longer exists.".to_owned());
            self.error = Some(XlateError::BridgeNotFound);
            self.report_under(parent);
            return;
        };
        if bridge.id != self.bridge.id {
            self.enter(bridge);
        }
        self.table = frozen.table;
        self.report(Kind::Thaw, || format!("Resuming from table {}", frozen.table));
        if frozen.conntracked {
            self.conntracked = Tracked::Yes;
        } else {
            self.forget_connection();
        }
        let came = self.flow;
        copy_metadata(&frozen.metadata, &mut self.flow);
        if frozen.own_tunnel {
            self.flow.copy_tunnel(&came);
        }
        self.stack.clone_from(&frozen.stack);
        self.has_hash = frozen.hash.is_some();
        self.mirrored = frozen.mirrored;
        if !frozen.action_set.is_empty() {
            let actions = &frozen.action_set;
            self.report(Kind::Thaw, || {
                format!("Restoring action set: {}", ActionsText { actions, names: None })
            });
            self.merge_action_set(actions);
        }
        if !frozen.steps.is_empty() {
            self.report(Kind::Thaw, || {
                format!("Restoring actions: {}", steps_text(&frozen.steps))
            });
        }
        self.report_under(parent);
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
