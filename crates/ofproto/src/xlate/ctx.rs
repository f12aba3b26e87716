//! The state of one translation.

use super::limits::{MAX_NESTING, MAX_STEPS, XlateError};
use super::normal::Source;
use super::recirc::{Left, Recircs};
use super::report::{Kind, Report};
use crate::model::{BridgeView, PortView, Rule, Snapshot};
use crate::parts::Part;
use crate::sampling::SampleMeta;
use crate::underlay::Underlay;
use heddle_datapath_api::{DropReason, Generations, HashAlg, Translation};
use heddle_flow::field::{port_from_32, port_to_32};
use heddle_flow::{FlowKey, FlowMask};
use heddle_openflow::action::{ControllerAction, Nat};
use heddle_openflow::message::StackValue;
use heddle_openflow::{Action, Port};
use heddle_sync::ReadGuard;
use smallvec::SmallVec;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Below this number of bytes of machine stack, the next level of nesting runs on a new piece of stack.
const RED_ZONE: usize = 64 * 1024;
/// Size of one piece of machine stack, bytes.
const STACK_PIECE: usize = 1024 * 1024;

/// A packet's key that is copied when it is first written to: most packets leave as they came.
#[derive(Clone)]
pub(super) struct OnWrite<'w> {
    came: &'w FlowKey,
    own: Option<FlowKey>,
    /// Outer destination port of the tunnel that it has; keys have no such field.
    pub(super) tunnel_port: u16,
}

impl<'w> OnWrite<'w> {
    pub(super) fn new(came: &'w FlowKey) -> Self {
        Self {
            came,
            own: None,
            tunnel_port: 0,
        }
    }
}

impl Deref for OnWrite<'_> {
    type Target = FlowKey;
    #[inline]
    fn deref(&self) -> &FlowKey {
        self.own.as_ref().unwrap_or(self.came)
    }
}

impl DerefMut for OnWrite<'_> {
    #[expect(clippy::unnecessary_lazy_evaluations, reason = "a copy costs something")]
    fn deref_mut(&mut self) -> &mut FlowKey {
        self.own.get_or_insert_with(|| *self.came)
    }
}

/// One translation.
pub(crate) struct Ctx<'w> {
    pub(super) snapshot: &'w Snapshot,
    pub(super) generations: &'w Generations,
    pub(super) recircs: &'w Recircs,
    /// Routes and neighbours for tunnels.
    pub(super) underlay: &'w Underlay,
    pub(super) reading: &'w ReadGuard,
    /// The bridge whose pipeline runs now.
    pub(super) bridge: &'w BridgeView,
    /// Version of the bridge's rules.
    pub(super) version: u64,
    /// Rules of a version that was read may have been unlinked before their lookup.
    pub(super) torn: bool,

    /// The packet as the pipeline has made it; `in_port` is the OpenFlow port.
    pub(super) flow: FlowKey,
    /// The packet as the emitted actions have made it.
    pub(super) base: OnWrite<'w>,
    /// The packet as it came.
    pub(super) orig: &'w FlowKey,
    /// See [`super::run::Input::from`].
    pub(super) from: Option<(u64, Port)>,
    /// Whether there was a lookup in a table.
    pub(super) has_looked: bool,
    /// The packet as the last lookup in a table saw it; from the second lookup on.
    pub(super) seen: Option<FlowKey>,
    /// Bits that mattered and that Open vSwitch leaves out: they are in the cached mask only.
    pub(super) extra: Option<FlowMask>,
    /// The translation to fill. Until it ends, its mask has the bits that mattered, as Open vSwitch keeps
    /// them: a trace shows these.
    pub(super) out: &'w mut Translation,
    /// Size of the emitted actions, see [`super::limits::MAX_ACTION_BYTES`].
    pub(super) out_bytes: usize,

    pub(super) table: u8,
    /// The rule whose actions run; `None` in a packet-out, or after a miss.
    pub(super) rule: Option<&'w Arc<Rule>>,
    pub(super) cookie: u64,
    pub(super) depth: u32,
    pub(super) resubmits: u32,
    pub(super) nesting: u32,
    /// See [`MAX_STEPS`].
    pub(super) steps: u32,
    /// Set by `exit`: no more actions in this bridge.
    pub(super) exit: bool,
    /// Set along with `exit`: the pipeline continues when the packet comes back; see [`super::freeze`].
    pub(super) freezing: bool,
    /// Steps that are left to do then.
    pub(super) left: Vec<Left>,
    /// The controller action that pauses the pipeline.
    pub(super) pause: Option<ControllerAction>,
    /// The packet comes back with this hash.
    pub(super) recirc_hash: Option<(HashAlg, u32)>,
    /// In Open vSwitch, its slow path would handle the packet.
    pub(super) is_slow: bool,
    /// The packet is a message for a BFD session of this switch.
    pub(super) is_bfd: bool,
    pub(super) error: Option<XlateError>,
    /// Drop reason to use if the translation outputs nothing.
    pub(super) drop_hint: Option<DropReason>,
    /// A header that was pushed or popped in `flow`, and not yet in `base`.
    pub(super) pending: Option<Pending>,
    /// Number of such changes that were emitted.
    pub(super) restacked: u32,
    /// Whether the pipeline may see the connection state of the packet.
    pub(super) conntracked: Tracked,
    /// The `nat` of the `ct` whose nested actions run.
    pub(super) ct_nat: Option<Nat>,
    /// The translation began with a frozen pipeline.
    pub(super) thawed: bool,
    /// The pipeline was frozen to compute a hash, so the packet has one. The flow's `dp_hash` may be zero all
    /// the same: a cached entry keeps only the bits of its mask, and is translated again with those.
    pub(super) has_hash: bool,
    /// The last MPLS label was popped; the headers behind it were not parsed.
    pub(super) was_mpls: bool,
    pub(super) stack: Vec<StackValue>,
    pub(super) action_set: Vec<Action>,
    pub(super) action_set_has_group: bool,
    pub(super) in_action_set: bool,
    /// The actions that run are those of a bucket.
    pub(super) in_bucket: bool,
    pub(super) in_packet_out: bool,
    /// Samples that were emitted.
    pub(super) samples: Vec<Arc<SampleMeta>>,
    /// Mirrors that have received the packet, one bit each.
    pub(super) mirrored: u32,
    /// Maximum number of bytes that the current mirror copies; 0: no limit.
    pub(super) mirror_snaplen: u16,

    /// Whether there is a packet. Without one, anomalies are not logged.
    pub(super) has_packet: bool,
    /// Length of the packet, bytes.
    pub(super) packet_len: Option<usize>,
    pub(super) learn: bool,
    /// Sources that NORMAL has learned.
    pub(super) sources: SmallVec<[Source<'w>; 2]>,
    pub(super) now_ms: u64,
    pub(super) report: Option<&'w mut Report>,
    /// For a trace: the clauses of the conjunction that the last lookup found.
    pub(super) clauses: Vec<&'w Rule>,
}

/// Whether the pipeline may see the connection state that the datapath keeps with the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tracked {
    Yes,
    No,
    /// Only if the packet was tracked when it came in.
    AsItCame,
}

/// A change of the packet's outermost header that is still to be emitted.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Pending {
    /// A header was pushed, with these options of a network service header.
    Encap(Vec<u8>),
    /// A header was popped.
    Decap,
}

/// A port as keys hold it: reserved ports in 16 bits.
pub(crate) fn key_port(port: Port) -> u32 {
    port_from_32(port.0).unwrap_or(port.0)
}
/// The reverse of [`key_port`].
pub(crate) fn of_port(port: u32) -> Port {
    Port(port_to_32(port))
}

impl<'w> Ctx<'w> {
    /// The input port's view, if it is an ordinary port of the current bridge.
    pub(super) fn in_port(&mut self) -> Option<&'w Arc<PortView>> {
        self.port(of_port(self.flow.in_port))
    }
    /// A port of the current bridge. The translation depends on it and its bundle, also if there is none.
    pub(super) fn port(&mut self, port: Port) -> Option<&'w Arc<PortView>> {
        self.port_of(self.bridge, port)
    }
    /// A port of any bridge, see [`Ctx::port`]. Whether it may forward is another dependency: see
    /// [`Ctx::is_up`].
    pub(super) fn port_of(&mut self, bridge: &'w BridgeView, port: Port) -> Option<&'w Arc<PortView>> {
        if self.from != Some((bridge.id, port)) {
            self.depend_on(Part::Port(bridge.id, port));
        }
        bridge.ports.get(&port)
    }
    /// Whether a port of the current bridge may forward. The translation depends on that, too.
    pub(super) fn is_up(&mut self, port: Port) -> bool {
        self.depend_on(Part::Link(self.bridge.id, port));
        self.port(port).is_some_and(|p| p.is_live())
    }
    /// Makes the translation depend on all ports and bundles of the current bridge.
    pub(super) fn look_at_all_ports(&mut self) {
        self.depend_on(Part::Ports(self.bridge.id));
    }
    /// A bridge by its id. The translation depends on it as a whole, also if there is none.
    pub(super) fn other_bridge(&mut self, id: u64) -> Option<&'w Arc<BridgeView>> {
        if self.from.is_none_or(|(from, _)| from != id) {
            self.depend_on(Part::Bridge(id));
        }
        self.snapshot.bridges.get(&id)
    }
    /// Makes the translation depend on the settings of connection tracking zones.
    pub(super) fn depend_on_ct_zones(&mut self) {
        self.depend_on(Part::CtZones);
    }
    /// Makes the translation depend on a part of the configuration. The configuration was read before: see
    /// [`super::Pipeline::publish`].
    pub(super) fn depend_on(&mut self, part: Part) {
        self.depend_once(part.slot());
    }
    /// Makes the translation depend on a slot, once. It is for state that is read once, or was read before.
    pub(super) fn depend_once(&mut self, slot: u16) {
        if !self.out.deps.iter().any(|d| d.slot == slot) {
            self.depend(slot);
        }
    }

    /// Enters a bridge: takes the version of its rules.
    pub(super) fn enter(&mut self, bridge: &'w BridgeView) {
        self.bridge = bridge;
        // Acquire pairs with the Release of the writer that stored the version after it had changed the
        // rules.
        self.version = bridge.version.load(std::sync::atomic::Ordering::Acquire);
    }
    /// Leaves the bridge. If rules of its version were unlinked meanwhile, the translation is torn and begins
    /// anew.
    pub(super) fn exit_bridge(&mut self) {
        use std::sync::atomic::{Ordering, fence};
        // Pairs with the fence in `Bridge::unlink_garbage`.
        fence(Ordering::Acquire);
        self.torn |= self.bridge.purged.load(Ordering::Relaxed) > self.version;
    }

    /// Runs `f` one level deeper, on more machine stack if it gets short. Fails the translation at
    /// [`MAX_NESTING`].
    pub(super) fn nested(&mut self, f: impl FnOnce(&mut Self)) {
        if self.nesting >= MAX_NESTING {
            self.report_error(|| format!("over {MAX_NESTING} nested lists of actions"));
            self.error = Some(XlateError::RecursionTooDeep);
            return;
        }
        self.nesting += 1;
        stacker::maybe_grow(RED_ZONE, STACK_PIECE, || f(self));
        self.nesting -= 1;
    }

    /// Takes one step more. `false`: it was one too many, and the translation fails. Code that clears the
    /// error does not give steps back.
    #[inline]
    pub(super) fn step(&mut self) -> bool {
        if self.steps < MAX_STEPS {
            self.steps += 1;
            return true;
        }
        self.no_step()
    }
    #[cold]
    fn no_step(&mut self) -> bool {
        if self.error.is_none() {
            self.report_error(|| format!("over {MAX_STEPS} actions, tables and buckets"));
        }
        self.error = Some(XlateError::TooManySteps);
        false
    }
    pub(super) fn out_of_steps(&self) -> bool {
        self.steps >= MAX_STEPS
    }

    /// Adds a line to the trace, if there is one. Returns its number, to put other lines under it.
    pub(super) fn report(&mut self, kind: Kind, text: impl FnOnce() -> String) -> Option<usize> {
        self.report.as_mut().map(|r| r.add(kind, text()))
    }
    /// Puts the following lines under a line of the trace. Returns their parent before.
    pub(super) fn report_under(&mut self, line: Option<usize>) -> Option<usize> {
        self.report.as_mut().map(|r| r.set_parent(line.unwrap_or(0)))
    }
    /// A detail (` -> `).
    pub(super) fn detail(&mut self, text: &str) {
        self.report(Kind::Detail, || text.to_owned());
    }
    /// A warning (` >> `).
    pub(super) fn warn(&mut self, text: &str) {
        self.report(Kind::Warn, || text.to_owned());
    }
    /// Reports an error that an operator should see: in the trace, or else in the log.
    pub(super) fn report_error(&mut self, text: impl FnOnce() -> String) {
        if self.report.is_some() {
            self.report(Kind::Error, text);
        } else if self.has_packet {
            super::log::ERRORS.log(log::Level::Warn, self.now_ms, || self.log_text(&text()));
        }
    }
    /// Reports a remark: in the trace, or else in the log.
    pub(super) fn report_info(&mut self, text: &str) {
        if self.report.is_some() {
            self.warn(text);
        } else if self.has_packet {
            super::log::INFOS.log(log::Level::Info, self.now_ms, || self.log_text(text));
        }
    }
    fn log_text(&self, text: &str) -> String {
        let mut base = *self.base;
        base.in_port = self.flow.in_port;
        format!("{text} on bridge {} while processing {base}", self.bridge.name)
    }

    /// Whether the trace is to have names of ports.
    pub(super) fn wants_names(&self) -> bool {
        self.report.as_ref().is_some_and(|r| r.names)
    }

    /// See [`Ctx::extra`].
    pub(super) fn extra(&mut self) -> &mut FlowMask {
        self.extra.get_or_insert_default()
    }

    /// Makes the translation depend on a generation slot. Call it before the state that the slot guards is
    /// read.
    pub(super) fn depend(&mut self, slot: u16) {
        self.out.deps.push(self.generations.read(slot));
    }
}
