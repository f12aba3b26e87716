//! Translation: from an OpenFlow pipeline and one key to datapath actions, a mask and dependencies.
//!
//! The datapath's workers call [`Pipeline`] on a miss ([`Translate`]); a [`Ctx`](ctx::Ctx) is one run of it,
//! and lists the parts of its state. A run keeps the packet twice. `flow` is the packet as the pipeline has
//! made it, and `base` is the packet as the datapath actions emitted so far have made it. Actions change
//! `flow`; before an output, [`commit`] emits what turns `base` into `flow`. Every bit that a step looks at
//! is added to the mask.
//!
//! **Invariants.** A generation is read before the state that it guards (see [`Translate`]).
//! The version of a bridge's rules is read once per visit, and checked again after each table's generation.
//! Registers and metadata start at zero for a packet of the datapath, so their bits need not be in the mask.
//!
//! **Bounds.** Resubmits, their depth, the stack, the size of the output and the nesting of actions are
//! bounded ([`limits`]). Recursion runs on a stack that grows ([`ctx::Ctx::nested`]).
//!
//! **Threads.** Any number of translations run at once; none waits. Configuration is replaced with
//! [`Pipeline::publish`].

mod action_set;
mod actions;
mod check_len;
mod choose;
mod commit;
mod conjunction;
mod controller;
mod ct;
mod ctx;
mod emit;
mod encap;
pub(crate) mod explain;
mod flood;
mod flow;
mod freeze;
mod group;
mod header;
pub(crate) mod input;
mod learn;
pub mod limits;
mod log;
mod mask;
mod meta;
mod mirror;
mod mpls;
mod native;
mod normal;
mod output;
mod patch;
mod position;
mod prereq;
pub(crate) mod recirc;
pub(crate) mod report;
mod report_limit;
mod resubmit;
mod resume;
pub(crate) mod run;
mod sample;
mod set_field;
mod snoop;
mod special;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod tunnel;
mod vlan;

pub(crate) use ctx::{key_port, of_port};
pub use limits::XlateError;
pub use meta::PacketInMeta;
pub(crate) use normal::tags_on_output;
pub(crate) use resume::{continuation_of, frozen_of};
pub use run::{Outcome, PacketOut};

use crate::model::Snapshot;
use crate::parts::Part;
use crate::standby::{Change, FailoverPair};
use crate::tunnels;
use crate::underlay::Underlay;
use heddle_datapath_api::{
    Action, Dep, DropReason, Generations, PortNo, Purpose, Request, Translate, Translation,
};
use heddle_flow::FlowMask;
use heddle_openflow::Port;
use heddle_sync::{RcuCell, ReadGuard};
use input::{Input, Start};
use recirc::Recircs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The pipeline of all bridges, as the datapath sees it.
pub struct Pipeline {
    snapshot: RcuCell<Snapshot>,
    generations: Arc<Generations>,
    recircs: Recircs,
    underlay: Underlay,
    /// Translations are for packets that are equal in every bit: for tests that want to see each of them.
    exact: AtomicBool,
    /// A guest has changed over to its other device ([`crate::standby`]).
    guests_moved: AtomicBool,
    /// A pair lacks credits, which ticks add.
    pairs_lack_credits: AtomicBool,
    /// Rules are being restored: packets are dropped, whatever rules there are already.
    restoring: AtomicBool,
}

impl Pipeline {
    /// A pipeline without bridges. MAC tables must be made with the same `generations`.
    pub fn new(generations: Arc<Generations>) -> Self {
        Self {
            snapshot: RcuCell::new(Snapshot::default()),
            underlay: Underlay::new(&generations),
            generations,
            recircs: Recircs::default(),
            exact: AtomicBool::new(false),
            guests_moved: AtomicBool::new(false),
            pairs_lack_credits: AtomicBool::new(false),
            restoring: AtomicBool::new(false),
        }
    }
    /// Replaces the configuration, one caller at a time. Cached translations that depend on a changed part
    /// are stale at their next check.
    pub fn publish(&self, snapshot: Snapshot) {
        let snapshot = Arc::new(snapshot);
        let before = self.snapshot.get();
        self.snapshot.replace(Arc::clone(&snapshot));
        crate::coverage::REV_RECONFIGURE.count();
        // Before the parts: a translation that sees a new generation of a part sees a new one of this, too
        // (`is_of`).
        self.generations.bump(Snapshot::CONFIG_SLOT);
        for part in snapshot.differences(&before) {
            self.generations.bump(part.slot());
        }
        drop(before);
        self.snapshot.tidy();
    }
    /// A guest uses another of its devices, since the active one has no link.
    pub(crate) fn change_device(&self, pair: &FailoverPair, port: PortNo) {
        if pair.change_to(port) {
            self.retranslate(pair);
        }
    }
    /// A frame shows that a guest uses another of its devices. `false`: the limit keeps the active one. Never
    /// waits.
    fn change_device_by_frame(&self, pair: &FailoverPair, port: PortNo) -> bool {
        let outcome = pair.change_by_frame(port);
        if outcome == Change::Done {
            self.retranslate(pair);
        }
        if outcome != Change::Unchanged {
            self.pairs_lack_credits.store(true, Relaxed);
        }
        outcome != Change::Limited
    }
    /// Has all flows of a pair translated again, after its state has changed: a translation that has read the
    /// old state has an older generation. A control thread has flows in the kernel follow.
    fn retranslate(&self, pair: &FailoverPair) {
        self.generations.bump(Part::FailoverPair(pair.id()).slot());
        self.guests_moved.store(true, Relaxed);
        self.underlay.deferred_work.ring();
    }
    /// Adds the credits of one tick to all pairs that lack some.
    pub(crate) fn refill_pairs(&self) {
        if !self.pairs_lack_credits.swap(false, Relaxed) {
            return;
        }
        let snapshot = self.snapshot();
        let ports = snapshot.bridges.values().flat_map(|b| b.ports.values());
        for pair in ports.filter_map(|p| p.standby.as_ref()) {
            let (lacks_more, waiting) = pair.refill();
            if lacks_more {
                self.pairs_lack_credits.store(true, Relaxed);
            }
            if waiting {
                self.retranslate(pair);
            }
        }
    }
    /// Whether a guest has changed over since the last call.
    pub(crate) fn take_guests_moved(&self) -> bool {
        self.guests_moved.swap(false, Relaxed)
    }
    /// Whether the configuration still has this generation, which was read before it. Otherwise the
    /// generations of parts may be newer than the parts themselves.
    fn is_of(&self, config: Dep) -> bool {
        self.generations.read(Snapshot::CONFIG_SLOT) == config
    }
    /// The configuration in force.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.get()
    }
    /// The counters that translations depend on, to share with MAC tables and rule changes.
    pub fn shared_generations(&self) -> Arc<Generations> {
        self.generations.clone()
    }
    /// Routes and neighbours of the host, to read and to keep up to date.
    pub fn underlay(&self) -> &Underlay {
        &self.underlay
    }
    /// The frozen pipeline of a recirculation id.
    pub(crate) fn frozen(&self, id: u32) -> Option<Arc<recirc::Recirculation>> {
        self.recircs.hold(id)
    }
    /// Sets whether translations are for all packets that they are right for, or for packets with equal
    /// headers only. The caller empties the caches.
    pub fn set_megaflows(&self, on: bool) {
        self.exact.store(!on, Relaxed);
    }
    /// Whether rules are being restored after a restart, and packets are dropped meanwhile.
    pub fn is_restoring(&self) -> bool {
        self.restoring.load(Relaxed)
    }
    /// Sets whether rules are being restored after a restart. Until then packets are dropped, because some of
    /// the rules may allow packets that all rules together do not. Packet-outs are sent.
    pub fn set_restoring(&self, on: bool) {
        self.restoring.store(on, Relaxed);
    }
    /// Removes frozen pipelines without holders. Call it at intervals longer than a packet takes through the
    /// switch.
    pub fn expire(&self) {
        self.recircs.expire();
    }
    /// Translates a controller's packet-out. `None`: there is no such bridge.
    pub fn packet_out(&self, out: &PacketOut<'_>, translation: &mut Translation) -> Option<Outcome> {
        self.inject(out, Start::Actions(out.actions), translation)
    }
    /// Translates a packet that comes from a controller. `None`: there is no such bridge.
    fn inject(
        &self,
        out: &PacketOut<'_>,
        start: Start<'_>,
        translation: &mut Translation,
    ) -> Option<Outcome> {
        let reading = ReadGuard::begin();
        let snapshot = self.snapshot.load(&reading);
        translation.clear();
        let input = Input {
            pipeline: self,
            snapshot,
            reading: &reading,
            key: out.key,
            bridge: snapshot.bridges.get(&out.bridge)?,
            in_port: out.key.in_port,
            from: None,
            packet: Some(out.packet),
            learn: true,
            now_ms: out.now_ms,
            start,
            version: out.version,
        };
        Some(run::run(&input, None, translation))
    }
}

impl Translate for Pipeline {
    fn translate(&self, request: &Request<'_>, out: &mut Translation) {
        if request.purpose == Purpose::Miss && self.restoring.load(Relaxed) {
            drop_for(DropReason::Restoring, out);
            out.uncacheable = true;
            return;
        }
        let config = self.generations.read(Snapshot::CONFIG_SLOT);
        self.translate_in(&ReadGuard::begin(), request, out);
        out.uncacheable |= !self.is_of(config);
    }
    fn generations(&self) -> &Generations {
        &self.generations
    }
}

impl Pipeline {
    fn translate_in(&self, reading: &ReadGuard, request: &Request<'_>, out: &mut Translation) {
        let snapshot = self.snapshot.load(reading);
        let port = heddle_datapath_api::PortNo(request.key.in_port);
        // Whether a port is a tunnel's follows from its number, which is in every mask.
        let own = snapshot.by_dp_port.get(&port).copied();
        let peer = tunnels::source(request.key).filter(|_| own.is_none());
        match peer {
            Some(peer) => {
                let parts = [Part::Tunnels(port), Part::Peer(port, peer)];
                out.deps.extend(parts.map(|p| self.generations.read(p.slot())));
                out.deps.push(self.generations.read(Part::Input(port).slot()));
            }
            None => out.deps.push(self.generations.read(Part::Input(port).slot())),
        }
        let known = match peer {
            Some(_) => snapshot.tunnels.receive(request.key),
            None => own,
        };
        let known = known.and_then(|(b, p)| Some((snapshot.bridges.get(&b)?, key_port(p), Some((b, p)))));
        let held = match request.key.recirc_id {
            0 => None,
            id => self.recircs.hold(id),
        };
        // A packet that a controller sent came in by no port: its frozen pipeline has the bridge.
        let known = known.or_else(|| {
            let frozen = &held.as_ref()?.frozen;
            let sent = [Port::CONTROLLER, Port::NONE].map(key_port);
            let in_port = frozen.metadata.in_port;
            // Behind a patch port, it is in another bridge, with that patch port as its input port.
            let by_no_port = port == heddle_datapath_api::PortNo::NONE || sent.contains(&in_port);
            let bridge = snapshot.bridges.get(&frozen.bridge).filter(|_| by_no_port)?;
            Some((bridge, in_port, None))
        });
        let Some((bridge, in_port, from)) = known else {
            if peer.is_none() && request.key.recirc_id == 0 && snapshot.underlay.has(port) {
                self.receive_outer(snapshot, request.key, out);
                if self.exact.load(Relaxed) {
                    out.mask.add(&mask::exact(request.key));
                }
                return;
            }
            // Logged for packets only: the revalidator also translates entries of tunnels that are gone.
            if peer.is_some() && request.purpose == Purpose::Miss {
                log::UNKNOWN_TUNNEL.log_to("tunnel", ::log::Level::Warn, request.now_ms, || {
                    format!("receive tunnel port not found ({})", request.key)
                });
            }
            let why = match peer {
                Some(_) => DropReason::NoTunnel,
                None => DropReason::NoPort,
            };
            return drop_for(why, out);
        };
        if let (Some(_), Some((_, of_port))) = (peer, from) {
            let parts = [Part::Bridge(bridge.id), Part::Port(bridge.id, of_port)];
            out.deps.extend(parts.map(|p| self.generations.read(p.slot())));
        }
        if let Some((_, of_port)) = from
            && let Some(pair) = bridge.ports.get(&of_port).and_then(|p| p.standby.as_ref())
        {
            self.follow_guest(pair, port, request, out);
        }
        if let Some((_, of_port)) = from
            && self.limit_reports(bridge, of_port, request, out)
        {
            let parts = [Part::Bridge(bridge.id), Part::Port(bridge.id, of_port)];
            out.deps.extend(parts.map(|p| self.generations.read(p.slot())));
            if self.exact.load(Relaxed) {
                out.mask.add(&mask::exact(request.key));
            }
            return;
        }
        let mut go = |start: Start<'_>| {
            let input = Input {
                pipeline: self,
                snapshot,
                reading,
                key: request.key,
                bridge,
                in_port,
                from,
                packet: request.packet,
                learn: request.purpose == Purpose::Miss,
                now_ms: request.now_ms,
                start,
                version: None,
            };
            let error = run::on_miss(&input, out);
            // If a pipeline loops, only the whole trace shows why.
            let in_circles = matches!(
                error,
                Some(XlateError::RecursionTooDeep | XlateError::TooManyResubmits)
            );
            if in_circles && input.packet.is_some() {
                log::FAILED.log_to("ofproto_dpif_upcall", ::log::Level::Warn, input.now_ms, || {
                    explain::explain(&input)
                });
            }
        };
        if request.key.recirc_id == 0 {
            go(Start::Tables);
            if self.exact.load(Relaxed) {
                out.mask.add(&mask::exact(request.key));
            }
            return;
        }
        match held {
            Some(held) => {
                go(Start::Thaw {
                    frozen: &held.frozen,
                    resumed: false,
                });
                out.credits.push(held);
            }
            None => {
                drop_for(DropReason::NoRecirculation, out);
                out.uncacheable = true;
            }
        }
        if self.exact.load(Relaxed) {
            out.mask.add(&mask::exact(request.key));
        }
    }
}

impl Pipeline {
    /// A packet came from one of the two devices of a guest.
    fn follow_guest(&self, pair: &FailoverPair, port: PortNo, request: &Request<'_>, out: &mut Translation) {
        let source = request.key.dl_src;
        let generation = || self.generations.read(Part::FailoverPair(pair.id()).slot());
        // Before the state: if another worker changes the device meanwhile, this translation is stale.
        let mut dep = generation();
        if pair.is_taken_by(port, source) {
            let mut limited = false;
            if request.purpose == Purpose::Miss {
                limited = !self.change_device_by_frame(pair, port);
                dep = generation();
            }
            // A cached flow would hide the guest's next frame from the translation. If the limit has kept the
            // active device, the next tick has the flow translated again.
            out.uncacheable |= pair.active() != port && !limited;
        }
        out.deps.push(dep);
        if port != pair.active() {
            // Frames with other sources must not hide the guest's.
            out.mask.0.dl_src = [0xff; 6];
        }
    }
}

/// The translation for a packet of which only the origin is known.
fn drop_for(reason: DropReason, out: &mut Translation) {
    out.mask = FlowMask::default();
    mask::of_tunnel(&mut out.mask);
    out.mask.0.in_port = u32::MAX;
    out.mask.0.recirc_id = u32::MAX;
    out.actions.push(Action::Drop(reason));
}
