//! What goes with a packet to a controller.

use super::recirc::{Frozen, Held};
use super::report::hex;
use heddle_datapath_api::UpcallData;
use heddle_flow::FlowKey;
use heddle_openflow::message::PacketInReason;
use std::any::Any;
use std::sync::Arc;

/// What translation knew when it decided to send the packet to a controller: the issuer's part of an
/// [`Upcall`](heddle_datapath_api::Upcall).
#[derive(Clone)]
pub struct PacketInMeta {
    /// Why.
    pub reason: PacketInReason,
    /// Cookie of the rule; all ones where there is none (packet-out).
    pub cookie: u64,
    /// Table of the rule, or the last one that was searched.
    pub table: u8,
    /// Bytes of the packet to send, 0xffff: all.
    pub max_len: u16,
    /// Which controllers; 0 is all primary ones.
    pub controller_id: u16,
    /// Opaque bytes of the action.
    pub userdata: Vec<u8>,
    /// The pipeline waits for the controller's answer.
    pub continuation: bool,
    /// Print only: nothing is to be sent (a trace without a packet).
    pub dont_send: bool,
    /// The pipeline as it stood: bridge, pipeline fields, and what is left to do.
    pub(crate) held: Arc<Held>,
}

impl PacketInMeta {
    /// Bridge whose pipeline sends it.
    pub fn bridge(&self) -> u64 {
        self.held.frozen.bridge
    }
    /// The pipeline as it stood.
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
