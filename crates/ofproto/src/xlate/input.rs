//! The input of one translation: nothing changes it.

use super::Pipeline;
use super::recirc::Frozen;
use crate::model::{BridgeView, Snapshot};
use heddle_flow::FlowKey;
use heddle_openflow::{Action, Port};
use heddle_packet::Packet;
use heddle_sync::ReadGuard;

/// Input of one translation.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    /// Generations, frozen pipelines, routes and neighbours.
    pub(crate) pipeline: &'a Pipeline,
    /// The configuration.
    pub(crate) snapshot: &'a Snapshot,
    /// RCU read guard: rules that are found live as long as this.
    pub(crate) reading: &'a ReadGuard,
    /// The packet's key, as the packet came.
    pub(crate) key: &'a FlowKey,
    /// The bridge that the packet enters.
    pub(crate) bridge: &'a BridgeView,
    /// OpenFlow input port, in the key's form.
    pub(crate) in_port: u32,
    /// The bridge and port where the packet came in: the translation depends on them already.
    pub(crate) from: Option<(u64, Port)>,
    /// The packet. `None`: there is only a key, so anomalies are not logged.
    pub(crate) packet: Option<&'a Packet>,
    /// Addresses and flows are learned.
    pub(crate) learn: bool,
    /// Coarse clock, ms.
    pub(crate) now_ms: u64,
    /// The first step.
    pub(crate) start: Start<'a>,
    /// The version of the bridge's rules to look at; `None`: the current one.
    pub(crate) version: Option<u64>,
}

/// The first step of a translation.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a> {
    /// A lookup in the first table.
    Tables,
    /// These actions.
    Actions(&'a [Action]),
    /// The steps of a frozen pipeline.
    Thaw {
        frozen: &'a Frozen,
        /// A controller resumes it: even if no steps are left, no table is looked up.
        resumed: bool,
    },
}

impl Input<'_> {
    pub(super) fn has_packet(&self) -> bool {
        self.packet.is_some()
    }
    /// Whether a controller sends the packet, with actions of its own.
    pub(super) fn is_packet_out(&self) -> bool {
        matches!(self.start, Start::Actions(_))
    }
    /// Whether the translation begins with a frozen pipeline.
    pub(super) fn is_thawed(&self) -> bool {
        matches!(self.start, Start::Thaw { .. })
    }
    /// Whether the pipeline was frozen to compute a hash, so that the packet has one. The flow's `dp_hash`
    /// may be zero all the same: a cached entry keeps only the bits of its mask, and is translated again with
    /// those.
    pub(super) fn has_hash(&self) -> bool {
        matches!(self.start, Start::Thaw { frozen, .. } if frozen.hash.is_some())
    }
}
