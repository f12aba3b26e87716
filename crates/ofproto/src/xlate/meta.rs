//! Metadata of packet-ins.

use super::recirc::{Frozen, Recirculation};
use super::report::hex;
use heddle_datapath_api::UpcallData;
use heddle_flow::FlowKey;
use heddle_openflow::message::PacketInReason;
use std::any::Any;
use std::sync::Arc;

/// State of the translation that sends the packet to a controller: the issuer's part of an
/// [`Upcall`](heddle_datapath_api::Upcall).
#[derive(Clone)]
pub struct PacketInMeta {
    /// Reason of the packet-in.
    pub reason: PacketInReason,
    /// Cookie of the rule; all ones without a rule (packet-out).
    pub cookie: u64,
    /// Table of the rule, or the last one that was searched.
    pub table: u8,
    /// Bytes of the packet to send, 0xffff: all.
    pub max_len: u16,
    /// Id of the controllers that get it; 0 is all primary ones.
    pub controller_id: u16,
    /// Opaque bytes of the action.
    pub userdata: Vec<u8>,
    /// The pipeline waits until the controller resumes it.
    pub continuation: bool,
    /// Print only: no packet-in is sent (a trace without a packet).
    pub dont_send: bool,
    /// The frozen pipeline: bridge, pipeline fields and the steps that are left.
    pub(crate) held: Arc<Recirculation>,
}

impl PacketInMeta {
    /// Bridge whose pipeline sends it.
    pub fn bridge(&self) -> u64 {
        self.held.frozen.bridge
    }
    /// The frozen pipeline.
    pub(crate) fn frozen(&self) -> &Frozen {
        &self.held.frozen
    }
    /// The pipeline's fields: OpenFlow input port (in the key's form), metadata, registers, tunnel. Headers
    /// are zero: the packet has them.
    pub fn metadata(&self) -> &FlowKey {
        &self.held.frozen.metadata
    }
}

impl std::fmt::Debug for PacketInMeta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text())
    }
}

impl UpcallData for PacketInMeta {
    fn text(&self) -> String {
        format!(
            "controller(reason={},dont_send={},continuation={},recirc_id={},rule_cookie={},controller_id={},\
             max_len={})",
            self.reason as u8,
            u8::from(self.dont_send),
            u8::from(self.continuation),
            self.held.id,
            hex(self.cookie.into()),
            self.controller_id,
            self.max_len
        )
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
