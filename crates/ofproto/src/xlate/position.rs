//! The position of a translation in the OpenFlow pipeline, and the steps that are left.

use super::limits::MAX_STACK_BYTES;
use super::recirc::Left;
use crate::features::Feature;
use crate::model::{BridgeView, Mirror, MirrorOutput, PortBundle, Rule, port_config};
use heddle_datapath_api::HashAlg;
use heddle_openflow::Action;
use heddle_openflow::action::{ControllerAction, Nat};
use heddle_openflow::message::StackValue;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The position in the pipeline, with the pipeline's own state. Each list of actions that is entered changes
/// it, and restores it at its end.
pub(super) struct Position<'w> {
    /// The bridge whose pipeline runs now.
    pub(super) bridge: &'w BridgeView,
    /// Version of the bridge's rules.
    pub(super) version: u64,
    pub(super) table: u8,
    /// The rule whose actions run; `None` in a packet-out, or after a miss.
    pub(super) rule: Option<&'w Arc<Rule>>,
    pub(super) cookie: u64,
    pub(super) stack: Vec<StackValue>,
    pub(super) action_set: Vec<Action>,
    pub(super) action_set_has_group: bool,
    pub(super) in_action_set: bool,
    /// The actions that run are those of a bucket.
    pub(super) in_bucket: bool,
    /// The `nat` of the `ct` whose nested actions run.
    pub(super) ct_nat: Option<Nat>,
    /// Mirrors that have received the packet, one bit each.
    pub(super) mirrored: u32,
    /// Maximum number of bytes that the current mirror copies; 0: no limit.
    pub(super) mirror_snaplen: u16,
}

impl<'w> Position<'w> {
    /// At the beginning of a bridge's pipeline.
    #[inline]
    pub(super) fn new(bridge: &'w BridgeView) -> Self {
        let mut at = Self {
            bridge,
            version: 0,
            table: 0,
            rule: None,
            cookie: u64::MAX,
            stack: Vec::new(),
            action_set: Vec::new(),
            action_set_has_group: false,
            in_action_set: false,
            in_bucket: false,
            ct_nat: None,
            mirrored: 0,
            mirror_snaplen: 0,
        };
        at.enter(bridge);
        at
    }
    /// Enters a bridge: takes the version of its rules.
    pub(super) fn enter(&mut self, bridge: &'w BridgeView) {
        self.bridge = bridge;
        // Acquire pairs with the Release of the writer that stored the version after it had changed the
        // rules.
        self.version = bridge.version.load(Ordering::Acquire);
    }
    /// Whether rules of the bridge's version were unlinked meanwhile. Then the translation is torn and begins
    /// anew. Call it before the bridge is left.
    pub(super) fn is_torn(&self) -> bool {
        // Pairs with the fence in `Bridge::unlink_garbage`.
        fence(Ordering::Acquire);
        self.bridge.purged.load(Ordering::Relaxed) > self.version
    }

    /// Whether this switch writes outer headers. Otherwise the datapath has devices for tunnels.
    pub(super) fn is_native(&self) -> bool {
        self.bridge.features.has(Feature::TnlPushPop)
    }
    pub(super) fn has_clone(&self) -> bool {
        self.bridge.features.has(Feature::Clone)
    }
    /// Whether a sample of all packets can replace a clone, even nested in other samples.
    pub(super) fn may_sample(&self) -> bool {
        self.bridge.features.number(Feature::SampleNesting) > 3
    }
    /// Whether a bundle is reserved for mirrored packets.
    pub(super) fn is_mirror_output(&self, bundle: usize) -> bool {
        let to = |m: &Mirror| m.output == MirrorOutput::Bundle(bundle);
        self.bridge.mirrors.iter().any(to)
    }
    pub(super) fn is_flood_vlan(&self, vlan: u16) -> bool {
        self.bridge.flood_vlans.as_ref().is_some_and(|v| v.contains(vlan))
    }
    pub(super) fn floods(&self, b: &PortBundle) -> bool {
        let ports = &self.bridge.ports;
        let quiet = |p| {
            let port = ports.get(p);
            port.is_some_and(|v| v.config & port_config::NO_FLOOD != 0)
        };
        !b.ports.iter().any(quiet)
    }
    /// Whether the stack has grown too large: each value takes its bytes and one more.
    pub(super) fn stack_is_full(&self) -> bool {
        // No need to add up a short stack.
        self.stack.len() > MAX_STACK_BYTES / 125
            && self.stack.iter().map(|v| v.bytes().len() + 1).sum::<usize>() >= MAX_STACK_BYTES
    }
}

/// Whether the pipeline continues, and with what after the packet has come back. See [`super::freeze`].
#[derive(Default)]
pub(super) struct Rest {
    /// Set by `exit`: no more actions in this bridge.
    pub(super) exit: bool,
    /// Set along with `exit`: the pipeline continues when the packet comes back.
    pub(super) freezing: bool,
    /// Steps that are left to do then.
    pub(super) left: Vec<Left>,
    /// The controller action that pauses the pipeline.
    pub(super) pause: Option<ControllerAction>,
    /// The packet comes back with this hash.
    pub(super) hash: Option<(HashAlg, u32)>,
}

impl Rest {
    /// Freezes the pipeline: it continues when the packet comes back.
    pub(super) fn freeze(&mut self) {
        self.exit = true;
        self.freezing = true;
    }
    /// Freezes the pipeline; the packet comes back with a hash.
    pub(super) fn freeze_for_hash(&mut self, alg: HashAlg, basis: u32) {
        self.hash = Some((alg, basis));
        self.freeze();
    }
}
