//! Packets from controllers: packet-outs, and packet-ins that a controller hands back (`NXT_RESUME`).

use super::{Bridge, PortTarget};
use crate::xlate;
use crate::xlate::{key_port, of_port};
use heddle_datapath_api::{PortNo, Translation};
use heddle_flow::extract::{Hint, extract};
use heddle_flow::{FlowKey, Match};
use heddle_openflow::check::check_actions;
use heddle_openflow::message::{PacketIn, PacketOut};
use heddle_openflow::{ErrorKind, Port as OfPort, Version, decode_continuation};
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
            packet: &prepared.injected.packet,
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
        let (packet, now_ms) = (&prepared.injected.packet, prepared.now_ms);
        let outcome = pipeline.resume(&frozen, &key, packet, now_ms, &mut prepared.translation);
        if outcome.is_none_or(|o| o.error == Some(xlate::XlateError::BridgeNotFound)) {
            return Err(ErrorKind::ResumeStale);
        }
        self.finish_packet_out(prepared);
        Ok(())
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
