//! Checks of flow mods and lists of actions, before a change or a packet-out uses them.

use super::Bridge;
use super::refs::for_each_action;
use super::tables::N_SHOWN_TABLES;
use crate::versioned::LATEST;
use heddle_openflow::check::{CheckContext, check_instructions};
use heddle_openflow::message::{FlowMod, FlowModCommand};
use heddle_openflow::{Action, ErrorKind, Instruction, InstructionSet, Port as OfPort, Version};

impl Bridge {
    /// Checks a flow mod by itself: its actions against its match, as far as the version demands. Checks also
    /// that controllers may use its tables.
    pub(super) fn check_flow_mod(&self, version: Version, fm: &FlowMod) -> Result<(), ErrorKind> {
        if fm.table_id != 0xff && usize::from(fm.table_id) >= self.tables.len() {
            return Err(ErrorKind::FlowModFailedBadTableId);
        }
        if fm.table_id >= N_SHOWN_TABLES && fm.table_id != 0xff {
            return Err(ErrorKind::BadRequestEperm);
        }
        check_instructions(
            &fm.instructions,
            &fm.match_,
            &self.check_context(version, fm.table_id),
        )?;
        let deletes = matches!(fm.command, FlowModCommand::Delete | FlowModCommand::DeleteStrict);
        if fm.buffer_id.is_some() && !deletes {
            return Err(ErrorKind::BadRequestBufferUnknown);
        }
        Ok(())
    }

    /// Groups and meters that a flow names must exist when it is added (earlier messages of a bundle may have
    /// made them).
    pub(super) fn check_instruction_references(&self, set: &InstructionSet) -> Result<(), ErrorKind> {
        set.0.iter().try_for_each(|i| match i {
            Instruction::Apply(actions) | Instruction::Write(actions) => self.check_references(actions),
            Instruction::Meter(id) => self.check_meter(*id),
            Instruction::Clear | Instruction::WriteMetadata { .. } | Instruction::Goto(_) => Ok(()),
        })
    }

    /// Groups and meters that actions name must be there. The meter of packets for controllers need not be:
    /// a refusal would cost a controller its whole bundle for a limit on its own log.
    pub(super) fn check_references(&self, actions: &[Action]) -> Result<(), ErrorKind> {
        let mut result = Ok(());
        for_each_action(actions, &mut |a| {
            let one = match a {
                Action::Group(id) if self.groups.get(*id, LATEST).is_none() => {
                    Err(ErrorKind::BadActionBadOutGroup)
                }
                Action::Meter(id) => self.check_meter(*id),
                Action::Controller(c) => {
                    self.note_unknown_meter(c.meter_id);
                    Ok(())
                }
                _ => Ok(()),
            };
            result = result.and(one);
        });
        result
    }

    fn check_meter(&self, id: u32) -> Result<(), ErrorKind> {
        let found = self.meters.get(id, LATEST);
        found.map(|_| ()).ok_or(ErrorKind::MeterModFailedInvalidMeter)
    }

    /// Logs that `controller(meter_id=...)` names a meter that is not there.
    fn note_unknown_meter(&self, id: Option<u32>) {
        if let Some(id) = id.filter(|id| self.check_meter(*id).is_err()) {
            log::info!(
                target: "ofproto",
                "{}: controller action names meter {id}, which limits nothing until it is added",
                self.name
            );
        }
    }

    pub(super) fn check_context(&self, version: Version, table_id: u8) -> CheckContext {
        let n_tables = u8::try_from(self.tables.len()).unwrap_or(u8::MAX);
        CheckContext {
            version,
            max_port: OfPort::MAX,
            table_id,
            n_tables,
        }
    }
}
