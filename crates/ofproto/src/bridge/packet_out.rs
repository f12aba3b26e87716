//! Packets from controllers.

use super::refs::for_each_action;
use super::tables::N_SHOWN_TABLES;
use super::{Bridge, PortTarget};
use crate::versioned::LATEST;
use crate::xlate;
use crate::xlate::{key_port, of_port};
use heddle_datapath_api::{PortNo, Translation};
use heddle_flow::extract::{Hint, extract};
use heddle_flow::{FlowKey, Match};
use heddle_openflow::check::{CheckContext, check_actions, check_instructions};
use heddle_openflow::message::{FlowMod, FlowModCommand, PacketIn, PacketOut};
use heddle_openflow::{
    Action, ErrorKind, Instruction, InstructionSet, Port as OfPort, Version, decode_continuation,
};
use heddle_packet::Packet;

/// A packet-out's packet.
pub(super) struct Injected {
    packet: Packet,
    key: FlowKey,
    in_port: OfPort,
}

/// A packet-out that has been translated.
pub(super) struct Prepared {
    injected: Injected,
    /// The datapath port that it came from; `None`: the one of the key's input port.
    from: Option<PortNo>,
    pub(super) translation: Translation,
    now_ms: u64,
}

impl Bridge {
    /// Runs a packet-out's actions on its packet; returns when the outputs have been handed to the ports.
    pub fn packet_out(&self, version: Version, po: &PacketOut) -> Result<(), ErrorKind> {
        let injected = self.check_packet_out(version, po)?;
        if let Some(prepared) = self.prepare_packet_out(po, injected, None)? {
            self.finish_packet_out(prepared);
        }
        Ok(())
    }

    /// Checks a packet-out by itself, and reads its packet.
    pub(super) fn check_packet_out(&self, version: Version, po: &PacketOut) -> Result<Injected, ErrorKind> {
        if po.buffer_id.is_some() {
            return Err(ErrorKind::BadRequestBufferUnknown);
        }
        let in_port = of_port(po.in_port().0);
        check_in_port(in_port)?;
        let packet = Packet::from_bytes(&po.data);
        let mut key = key_of(&packet, &po.metadata);
        key.in_port = key_port(in_port);
        check_actions(&po.actions, &exactly(&key), &self.check_context(version, 0))?;
        Ok(Injected { packet, key, in_port })
    }

    /// Translates a packet-out at a version of the rules (`None`: the current one). Returns `None` if there
    /// is no switch any more. A translation that fails gives the error that Open vSwitch sends.
    pub(super) fn prepare_packet_out(
        &self,
        po: &PacketOut,
        injected: Injected,
        version: Option<u64>,
    ) -> Result<Option<Prepared>, ErrorKind> {
        self.check_references(&po.actions)?;
        let Some(of) = self.of.upgrade() else {
            return Ok(None);
        };
        let mut prepared = Prepared {
            translation: Translation::default(),
            now_ms: self.now_ms(),
            injected,
            from: None,
        };
        let request = xlate::PacketOut {
            bridge: self.id,
            key: &prepared.injected.key,
            actions: &po.actions,
            len: prepared.injected.packet.len(),
            now_ms: prepared.now_ms,
            version,
        };
        let outcome = of.pipeline().packet_out(&request, &mut prepared.translation);
        if outcome.is_some_and(|o| o.error.is_some()) {
            return Err(ErrorKind::FlowModFailedUnknown);
        }
        Ok(Some(prepared))
    }

    /// Continues a paused pipeline with the packet that a controller hands back (`NXT_RESUME`).
    pub(super) fn resume(&self, version: Version, p: &PacketIn) -> Result<(), ErrorKind> {
        let c = decode_continuation(version, &p.continuation)?;
        let packet = Packet::from_bytes(&p.data);
        let key = key_of(&packet, &p.metadata);
        let Some(of) = self.of.upgrade() else {
            return Ok(());
        };
        let known = |no: &PortNo| of.engine().is_some_and(|dp| dp.has_port(*no));
        let from = PortNo(c.odp_port);
        let frozen = xlate::frozen_of(c, &key).ok_or(ErrorKind::ResumeStale)?;
        let mut prepared = Prepared {
            from: Some(from).filter(known).or(Some(PortNo::NONE)),
            injected: Injected {
                in_port: of_port(key.in_port),
                packet,
                key,
            },
            translation: Translation::default(),
            now_ms: self.now_ms(),
        };
        let pipeline = of.pipeline();
        let (len, now_ms) = (prepared.injected.packet.len(), prepared.now_ms);
        let outcome = pipeline.resume(&frozen, &key, len, now_ms, &mut prepared.translation);
        if outcome.is_none_or(|o| o.error == Some(xlate::XlateError::BridgeNotFound)) {
            return Err(ErrorKind::ResumeStale);
        }
        self.finish_packet_out(prepared);
        Ok(())
    }

    /// To be called before a change is confirmed: the change is then in force for offloaded flows, too.
    pub(crate) fn confirm(&self) {
        if let Some(dp) = self.of.upgrade().and_then(|of| of.engine()) {
            crate::blocking::block_in_place(|| dp.observe_now());
        }
    }

    /// Counts a translated packet-out and hands it to the datapath.
    pub(super) fn finish_packet_out(&self, prepared: Prepared) {
        let Prepared {
            injected: Injected { packet, key, in_port },
            from,
            translation,
            now_ms,
        } = prepared;
        let Some(dp) = self.of.upgrade().and_then(|of| of.engine()) else {
            return;
        };
        for c in translation.credits.iter() {
            c.credit(1, packet.len() as u64, now_ms, key.tcp_flags);
        }
        let actions = translation.actions;
        if !actions.is_empty() {
            let from = from.or_else(|| self.dp_port(in_port)).unwrap_or(PortNo::NONE);
            if let Err(e) = dp.inject(packet, &key, from, actions) {
                log::warn!(target: "ofproto", "{}: packet-out was not carried out: {e}", self.name);
            }
        }
    }

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

    fn check_context(&self, version: Version, table_id: u8) -> CheckContext {
        let n_tables = u8::try_from(self.tables.len()).unwrap_or(u8::MAX);
        CheckContext {
            version,
            max_port: OfPort::MAX,
            table_id,
            n_tables,
        }
    }

    pub(crate) fn dp_port(&self, port: OfPort) -> Option<PortNo> {
        match self.state.lock().ports.get(&port)?.config.target {
            PortTarget::Datapath(no) => Some(no),
            _ => None,
        }
    }
}

/// The key of a packet, with the metadata and the packet type that a controller gives.
fn key_of(packet: &Packet, metadata: &Match) -> FlowKey {
    let hint = Hint {
        packet_type: metadata.key.packet_type,
        ..Hint::ethernet(packet.len())
    };
    let mut key = FlowKey::default();
    extract(packet.head(), &hint, &mut key);
    let said = metadata.key.words().iter().zip(metadata.mask.words());
    for (word, (value, mask)) in key.words_mut().iter_mut().zip(said) {
        *word = *word & !mask | value & mask;
    }
    key
}

/// OpenFlow 1.5 §7.3.6: the input port is an ordinary port, or one of the few reserved ones that can be a
/// source.
fn check_in_port(port: OfPort) -> Result<(), ErrorKind> {
    let reserved = matches!(port, OfPort::LOCAL | OfPort::NONE | OfPort::CONTROLLER);
    if reserved || port <= OfPort::MAX {
        Ok(())
    } else {
        Err(ErrorKind::BadRequestBadPort)
    }
}

/// A match on all bits of `key`.
fn exactly(key: &FlowKey) -> Match {
    let mut m = Match {
        key: *key,
        ..Default::default()
    };
    m.mask.words_mut().fill(u64::MAX);
    m
}
