//! One translation in progress: a [`Ctx`], by parts.
//!
//! A method that needs one part is a method of that part, so that its signature shows what it may change.
//! Methods of `Ctx` need several parts.
//!
//! **A new action** is one arm of `Ctx::action` (`actions.rs`), and a method in a file of its kind. The
//! method adds each bit that it reads to `out.mask`, and changes `flow`. Before the next output,
//! [`super::commit`] emits what has changed. If the datapath has an action of its own for it, the method
//! calls [`Ctx::commit`] and then [`Output::emit`].

use super::emit::Output;
use super::flow::{Base, Flow};
use super::input::Input;
use super::limits::{Budget, MAX_NESTING, MAX_STEPS, XlateError};
use super::position::{Position, Rest};
use super::report::{Kind, Trace};
use crate::model::{BridgeView, PortView};
use crate::parts::Part;
use heddle_flow::field::{port_from_32, port_to_32};
use heddle_openflow::Port;
use std::sync::Arc;

/// Below this number of bytes of machine stack, the next level of nesting runs on a new piece of stack.
const RED_ZONE: usize = 64 * 1024;
/// Size of one piece of machine stack, bytes.
const STACK_PIECE: usize = 1024 * 1024;

/// One translation in progress.
pub(super) struct Ctx<'w> {
    /// Read only: configuration, and the packet as it came.
    pub(super) input: &'w Input<'w>,
    /// The position in the pipeline: bridge, table and rule, with stack, action set and mirrors. Each list of
    /// actions changes it, and restores it at its end.
    pub(super) at: Position<'w>,
    /// Whether the pipeline continues, and the steps for when the packet comes back.
    pub(super) rest: Rest,
    /// The packet as the pipeline has made it. Actions on fields change it.
    pub(super) flow: Flow,
    /// The packet as the emitted actions have made it. [`Ctx::commit`] changes it, and actions that emit
    /// headers themselves do (tunnels, MPLS).
    pub(super) base: Base<'w>,
    /// The translation to fill: actions, mask, dependencies, credits; and the error, if it fails.
    pub(super) out: Output<'w>,
    /// The share of the limits that is used up.
    pub(super) budget: Budget,
    /// Lines of `ofproto/trace`, if this is one.
    pub(super) trace: Trace<'w>,
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
        self.port_of(self.at.bridge, port)
    }
    /// A port of any bridge, see [`Ctx::port`]. Whether it may forward is another dependency: see
    /// [`Ctx::is_up`].
    pub(super) fn port_of(&mut self, bridge: &'w BridgeView, port: Port) -> Option<&'w Arc<PortView>> {
        if self.input.from != Some((bridge.id, port)) {
            self.out.depend_on(Part::Port(bridge.id, port));
        }
        bridge.ports.get(&port)
    }
    /// Whether a port of the current bridge may forward. The translation depends on that, too.
    pub(super) fn is_up(&mut self, port: Port) -> bool {
        self.out.depend_on(Part::Link(self.at.bridge.id, port));
        self.port(port).is_some_and(|p| p.is_live())
    }
    /// Makes the translation depend on all ports and bundles of the current bridge.
    pub(super) fn look_at_all_ports(&mut self) {
        self.out.depend_on(Part::Ports(self.at.bridge.id));
    }
    /// A bridge by its id. The translation depends on it as a whole, also if there is none.
    pub(super) fn other_bridge(&mut self, id: u64) -> Option<&'w Arc<BridgeView>> {
        if self.input.from.is_none_or(|(from, _)| from != id) {
            self.out.depend_on(Part::Bridge(id));
        }
        self.input.snapshot.bridges.get(&id)
    }

    /// Runs `f` one level deeper, on more machine stack if it gets short. Fails the translation at
    /// [`MAX_NESTING`].
    pub(super) fn nested(&mut self, f: impl FnOnce(&mut Self)) {
        if self.budget.nesting >= MAX_NESTING {
            self.report_error(|| format!("over {MAX_NESTING} nested lists of actions"));
            self.out.error = Some(XlateError::RecursionTooDeep);
            return;
        }
        self.budget.nesting += 1;
        stacker::maybe_grow(RED_ZONE, STACK_PIECE, || f(self));
        self.budget.nesting -= 1;
    }

    /// Takes one step more. `false`: it was one too many, and the translation fails. Code that clears the
    /// error does not give steps back.
    #[inline]
    pub(super) fn step(&mut self) -> bool {
        self.budget.take_step() || self.no_step()
    }
    #[cold]
    fn no_step(&mut self) -> bool {
        if self.out.error.is_none() {
            self.report_error(|| format!("over {MAX_STEPS} actions, tables and buckets"));
        }
        self.out.error = Some(XlateError::TooManySteps);
        false
    }

    /// Emits the actions that turn the packet into `flow`.
    pub(super) fn commit(&mut self) {
        self.base.commit(&self.flow, &mut self.out);
    }

    /// Reports an error that an operator should see: in the trace, or else in the log.
    pub(super) fn report_error(&mut self, text: impl FnOnce() -> String) {
        if self.trace.is_on() {
            self.trace.report(Kind::Error, text);
        } else if self.input.has_packet() {
            super::log::ERRORS.log(log::Level::Warn, self.input.now_ms, || self.log_text(&text()));
        }
    }
    /// Reports a remark: in the trace, or else in the log.
    pub(super) fn report_info(&mut self, text: &str) {
        if self.trace.is_on() {
            self.trace.warn(text);
        } else if self.input.has_packet() {
            super::log::INFOS.log(log::Level::Info, self.input.now_ms, || self.log_text(text));
        }
    }
    fn log_text(&self, text: &str) -> String {
        let mut base = *self.base;
        base.in_port = self.flow.in_port;
        format!("{text} on bridge {} while processing {base}", self.at.bridge.name)
    }
}
