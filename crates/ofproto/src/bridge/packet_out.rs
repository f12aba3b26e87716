//! Packets from controllers.

use super::{Bridge, PortTarget};
use crate::xlate;
use crate::xlate::{key_port, of_port};
use heddle_datapath::{PortNo, Translation};
use heddle_flow::FlowKey;
use heddle_flow::extract::{Hint, extract};
use heddle_openflow::check::{CheckContext, check_actions, check_instructions};
use heddle_openflow::message::{FlowMod, PacketOut};
use heddle_openflow::{Action, ErrorKind, Instruction, Port as OfPort, Version};
use heddle_packet::Packet;

impl Bridge {
    /// Runs a packet-out's actions on its packet; returns when the outputs have been handed to the ports.
    pub fn packet_out(&self, version: Version, po: &PacketOut) -> Result<(), ErrorKind> {
        if po.buffer_id.is_some() {
            return Err(ErrorKind::BadRequestBufferUnknown);
        }
        let in_port = of_port(po.in_port().0);
        check_in_port(in_port)?;
        let packet = Packet::from_bytes(&po.data);
        let mut key = FlowKey::default();
        extract(packet.head(), &Hint::ethernet(packet.len()), &mut key);
        let said = po.metadata.key.words().iter().zip(po.metadata.mask.words());
        for (word, (value, mask)) in key.words_mut().iter_mut().zip(said) {
            *word = *word & !mask | value & mask;
        }
        key.in_port = key_port(in_port);
        check_actions(&po.actions, &exactly(&key), &self.check_context(version, 0))?;
        check_references(&po.actions)?;
        let Some(of) = self.of.upgrade() else {
            return Ok(());
        };
        let Some(dp) = of.datapath() else { return Ok(()) };
        let now_ms = self.now_ms();
        let mut out = Translation::default();
        let request = xlate::PacketOut {
            bridge: self.id,
            key: &key,
            actions: &po.actions,
            now_ms,
        };
        of.pipeline().packet_out(&request, &mut out);
        for c in &out.credits {
            c.credit(1, packet.len() as u64, now_ms, key.tcp_flags);
        }
        if !out.actions.is_empty() {
            let from = self.dp_port(in_port).unwrap_or(PortNo::NONE);
            if let Err(e) = dp.inject(packet, from, out.actions) {
                log::warn!(target: "ofproto", "{}: packet-out was not carried out: {e}", self.name);
            }
        }
        Ok(())
    }

    /// Checks a flow mod's actions against its match, as far as the version demands.
    pub(super) fn check_flow_mod(&self, version: Version, fm: &FlowMod) -> Result<(), ErrorKind> {
        check_instructions(
            &fm.instructions,
            &fm.match_,
            &self.check_context(version, fm.table_id),
        )?;
        for i in &fm.instructions.0 {
            match i {
                Instruction::Apply(actions) | Instruction::Write(actions) => check_references(actions)?,
                Instruction::Meter(_) => return Err(ErrorKind::MeterModFailedInvalidMeter),
                Instruction::Clear | Instruction::WriteMetadata { .. } | Instruction::Goto(_) => {}
            }
        }
        Ok(())
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

    fn dp_port(&self, port: OfPort) -> Option<PortNo> {
        match self.state.lock().ports.get(&port)?.config.target {
            PortTarget::Datapath(no) => Some(no),
            _ => None,
        }
    }
}

/// There are no groups and no meters yet, so what names one names one that does not exist.
fn check_references(actions: &[Action]) -> Result<(), ErrorKind> {
    actions.iter().try_for_each(|a| match a {
        Action::Group(_) => Err(ErrorKind::BadActionBadOutGroup),
        Action::Meter(_) => Err(ErrorKind::MeterModFailedInvalidMeter),
        Action::Clone(inner) => check_references(inner),
        _ => Ok(()),
    })
}

/// OpenFlow 1.5 §7.3.6: the input port is an ordinary port, or one of the few reserved ones that can be a source.
fn check_in_port(port: OfPort) -> Result<(), ErrorKind> {
    let reserved = matches!(port, OfPort::LOCAL | OfPort::NONE | OfPort::CONTROLLER);
    if reserved || port <= OfPort::MAX {
        Ok(())
    } else {
        Err(ErrorKind::BadRequestBadPort)
    }
}

/// A match on everything that `key` says: what the packet certainly has.
fn exactly(key: &FlowKey) -> heddle_flow::Match {
    let mut m = heddle_flow::Match {
        key: *key,
        ..Default::default()
    };
    m.mask.words_mut().fill(u64::MAX);
    m
}
