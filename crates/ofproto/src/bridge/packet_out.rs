//! Packets from controllers.

use super::{Bridge, PortTarget};
use heddle_datapath::{PortNo, Purpose, Request, Translation};
use heddle_flow::FlowKey;
use heddle_openflow::message::{FlowMod, PacketOut};
use heddle_openflow::{ErrorKind, Instruction, Port as OfPort, Version};
use heddle_packet::Packet;

impl Bridge {
    /// Runs a packet-out's actions on its packet; returns when the outputs have been handed to the ports.
    pub fn packet_out(&self, version: Version, po: &PacketOut) -> Result<(), ErrorKind> {
        if po.buffer_id.is_some() {
            return Err(ErrorKind::BadRequestBufferUnknown);
        }
        self.check_in_port(po.in_port())?;
        let packet = Packet::from_bytes(&po.data);
        let mut key = FlowKey::default();
        heddle_flow::extract::extract_into(packet.head(), &mut key);
        for (w, (value, mask)) in
            key.words_mut().iter_mut().zip(po.metadata.key.words().iter().zip(po.metadata.mask.words()))
        {
            *w = *w & !mask | value & mask;
        }
        key.in_port = po.in_port().0;
        heddle_openflow::check::actions(version, &po.actions, &key_match(&key), self.n_tables())?;
        let Some(of) = self.of.upgrade() else { return Ok(()) };
        let Some(dp) = of.datapath() else { return Ok(()) };
        let request = Request { key: &key, packet: Some(&packet), now_ms: self.now_ms(), purpose: Purpose::Miss };
        let mut out = Translation::default();
        of.pipeline().translate_packet_out(self.id, &request, &po.actions, &mut out);
        let bytes = packet.len() as u64;
        for c in &out.credits {
            c.credit(1, bytes, request.now_ms, key.tcp_flags);
        }
        if !out.actions.is_empty() {
            let from = self.dp_port(po.in_port()).unwrap_or(PortNo::NONE);
            if let Err(e) = dp.inject(packet, from, out.actions) {
                log::warn!(target: "ofproto", "{}: packet-out was not carried out: {e}", self.name);
            }
        }
        Ok(())
    }

    /// Checks a flow mod's actions against its match, as far as the version demands.
    pub(super) fn check_actions(&self, version: Version, fm: &FlowMod) -> Result<(), ErrorKind> {
        for i in &fm.instructions.0 {
            if let Instruction::Apply(actions) | Instruction::Write(actions) = i {
                heddle_openflow::check::actions(version, actions, &fm.match_, self.n_tables())?;
            }
        }
        Ok(())
    }

    fn n_tables(&self) -> usize {
        self.tables.len()
    }

    /// OpenFlow 1.5 §7.3.6: the input port is an ordinary port, or one of the few reserved ones that can be a source.
    fn check_in_port(&self, port: OfPort) -> Result<(), ErrorKind> {
        let reserved = matches!(port, OfPort::LOCAL | OfPort::NONE | OfPort::CONTROLLER);
        if reserved || port <= OfPort::MAX { Ok(()) } else { Err(ErrorKind::BadRequestBadPort) }
    }

    fn dp_port(&self, port: OfPort) -> Option<PortNo> {
        match self.state.lock().ports.get(&port)?.config.target {
            PortTarget::Datapath(no) => Some(no),
            _ => None,
        }
    }
}

/// A match on everything that `key` says: what its packet certainly has.
fn key_match(key: &FlowKey) -> heddle_flow::Match {
    let mut m = heddle_flow::Match { key: *key, ..Default::default() };
    m.mask.words_mut().fill(u64::MAX);
    m
}
