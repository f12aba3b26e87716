//! Protocols with timers that watch ports: BFD ([`heddle_bfd`]), and bonds with LACP ([`crate::bond`]).
//!
//! **Problem.** A peer takes a path for broken when a few messages in a row are missing, after some tens of
//! milliseconds. No other work of the switch may delay them: no bundle of a million rules, no storm of
//! packets for controllers, no slow device.
//!
//! **Shape.** One thread calls [`Monitor::run`] whenever something is due: at the time that it returns, and
//! when messages wait. Translation puts messages into rings of their own before any rule sees them
//! ([`BfdPort::takes`]), and the thread takes them out. It sends frames by translating an output on the port,
//! and posts the result to a worker without waiting for that. It takes no lock of a bridge and none of the
//! datapath.
//!
//! **Forwarding state.** An atomic flag holds a session's state. Translations that need to know whether a
//! port may forward read it, and depend on it ([`Part::Link`](crate::parts::Part::Link)). So nothing is
//! published when it changes, and only those flows are stale that chose a port because it is up, or would
//! have. Another thread notifies controllers, since that takes the bridge's lock ([`Monitor::take_moved`]).
//!
//! **Floods.** Each session may have `MAX_WAITING_MESSAGES` messages per [`REFILL_MS`]; workers drop
//! further ones before they copy them. So forged messages cost a bounded part of a processor, and other
//! sessions lose none. Messages with the session's own discriminator are counted apart: an attacker who has
//! not seen it cannot silence the peer by a flood of others.
//!
//! **Being late.** If this thread was kept from a processor, it does not take that for the peers' silence. It
//! reads all waiting messages before it declares a peer silent. The delay of this thread, or of the worker
//! that sends, is added to the peers' deadlines ([`Pace`]). A frame that the worker has no room for is sent
//! anew.
//!
//! The sessions are in [`sessions`], the delays in [`pace`].
//!
//! **Order of locks.** `sessions` is the last one: with it held, only sessions are called.

mod pace;
mod sessions;
#[cfg(test)]
mod tests;

use crate::bfd_port::BfdPort;
use crate::bond::Bonds;
use crate::dataplane::Dataplane;
use crate::xlate;
use heddle_bfd::Config;
use heddle_datapath_api::{Action as DpAction, Engine, PortNo, Posted, Translation};
use heddle_flow::FlowKey;
use heddle_flow::extract::{Hint, extract};
use heddle_flow::key::tun_flag;
use heddle_openflow::{Action, Port as OfPort};
use heddle_packet::Packet;
use pace::Pace;
use parking_lot::Mutex;
use sessions::{MonitoredSession, SessionChange, Sessions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Interval after which a session may have its full number of messages again.
const REFILL_MS: u64 = 10;
/// Messages that are taken at once.
const BATCH: usize = 64;
/// Batches that are taken before timers are looked at again: more than the rings of many workers hold.
const BATCHES: usize = 128;
/// Maximum number of rounds of one [`Monitor::run`].
const ROUNDS: usize = 16;
/// The same if each round sends one frame at most.
const SINGLE_ROUNDS: usize = 4096;

/// The port of a session's messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchedPort {
    /// Number of the bridge.
    pub bridge: u64,
    /// Number of the port.
    pub no: OfPort,
    /// The port's address: the default source of messages.
    pub mac: [u8; 6],
    /// The datapath port, if packets are counted there.
    pub dp: Option<PortNo>,
}

/// All sessions of the switch.
pub struct Monitor {
    dataplane: Arc<Dataplane>,
    bonds: Arc<Bonds>,
    sessions: Mutex<Sessions>,
    /// Held by the thread that runs it: the monitor's, or one that moves the clock.
    running: Mutex<Pace>,
    status_changed: AtomicBool,
    n: AtomicU64,
}

impl Monitor {
    pub(crate) fn new(dataplane: Arc<Dataplane>, bonds: Arc<Bonds>) -> Self {
        Self {
            dataplane,
            bonds,
            sessions: Mutex::default(),
            running: Mutex::default(),
            status_changed: AtomicBool::new(false),
            n: AtomicU64::new(0),
        }
    }

    /// Makes or changes the session of an interface by `settings` (`Interface.bfd`), or ends it if they
    /// disable BFD. Returns the session's part of the port.
    pub fn configure(
        &self,
        name: &str,
        settings: &BTreeMap<String, String>,
        port: WatchedPort,
    ) -> Option<BfdPort> {
        let config = Config::read(settings);
        self.count_in(|_| true);
        let rx_packets = self.received(&port).unwrap_or(0);
        let now_ms = self.dataplane.now_ms();
        let mut all = self.sessions.lock();
        let bfd_port = match &config {
            None => {
                if all.remove(name) {
                    self.status_changed.store(true, Relaxed);
                }
                None
            }
            Some(config) => {
                self.status_changed.store(true, Relaxed);
                Some(all.configure(
                    name,
                    config,
                    port,
                    (now_ms, rx_packets),
                    self.dataplane.generations(),
                ))
            }
        };
        self.n.store(all.by_id.len() as u64, Relaxed);
        drop(all);
        if bfd_port.is_some()
            && let Some(dp) = self.dataplane.engine()
        {
            dp.wake_control();
        }
        bfd_port
    }

    /// Ends the session of an interface that has gone.
    pub fn remove(&self, name: &str) {
        let mut all = self.sessions.lock();
        all.remove(name);
        self.n.store(all.by_id.len() as u64, Relaxed);
    }

    /// Whether any session's messages go through a device.
    pub fn has_devices(&self) -> bool {
        if self.bonds.has_devices() {
            return true;
        }
        !self.is_empty() && self.sessions.lock().by_id.values().any(|e| e.port.dp.is_some())
    }

    /// Whether there is any session.
    pub fn is_empty(&self) -> bool {
        self.n.load(Relaxed) == 0
    }

    /// Whether the status of any session or bond has changed since the last call.
    pub fn take_status_changed(&self) -> bool {
        let sessions = self.status_changed.swap(false, Relaxed);
        self.bonds.take_status_changed() | sessions
    }
    /// Whether there is anything for [`Monitor::take_status_changed`].
    pub fn has_status_changed(&self) -> bool {
        self.status_changed.load(Relaxed) || self.bonds.has_status_changed()
    }

    /// Ports whose sessions have changed their forwarding state since the last call.
    pub(crate) fn take_moved(&self) -> BTreeSet<(u64, OfPort)> {
        std::mem::take(&mut self.sessions.lock().moved)
    }

    /// `Interface.bfd_status` of an interface; `None`: it has no session.
    pub fn status(&self, name: &str) -> Option<[(&'static str, String); 6]> {
        if self.is_empty() {
            return None;
        }
        self.with(name, |e| e.session.status())
    }

    /// The text of `bfd/show` for an interface.
    pub fn details(&self, name: &str) -> Option<String> {
        let now_ms = self.dataplane.now_ms();
        self.with(name, |e| e.session.details(e.now(now_ms)))
    }

    /// Interfaces with a session.
    pub fn names(&self) -> Vec<String> {
        self.sessions.lock().by_name.keys().cloned().collect()
    }

    /// Forces the forwarding state of an interface's session; `None`: no more. Returns `false` if there is no
    /// session.
    pub fn force(&self, name: &str, forwarding: Option<bool>) -> bool {
        let done = self.with(name, |e| e.session.force(forwarding)).is_some();
        // Settles the session once more, with the new state.
        self.with(name, |_| ());
        if done {
            self.dataplane.wake_deferred_work();
        }
        done
    }

    fn with<R>(&self, name: &str, f: impl FnOnce(&mut MonitoredSession) -> R) -> Option<R> {
        let now_ms = self.dataplane.now_ms();
        let mut all = self.sessions.lock();
        let id = *all.by_name.get(name)?;
        let change = all.take_over_state(id, now_ms, self.dataplane.generations());
        let result = all.by_id.get_mut(&id).map(f);
        let change = all.take_over_state(id, now_ms, self.dataplane.generations()) | change;
        drop(all);
        self.report(change);
        result
    }

    fn report(&self, change: SessionChange) {
        if change.status {
            self.status_changed.store(true, Relaxed);
        }
        if change.moved {
            self.bonds.touch();
            self.dataplane.wake_deferred_work();
        }
    }

    /// Takes messages, and does what is due. Returns when it wants to be called again, ms, even if no message
    /// comes before; `None`: only when one comes. With `wait` it makes a frame only after the one before was
    /// received at its other end, and returns when all were handed to ports. A caller that moves the clock in
    /// steps then sees sessions come up as soon as they can.
    pub fn run(&self, wait: bool) -> Option<u64> {
        let mut pace = self.running.lock();
        let dp = self.dataplane.engine()?;
        for _ in 0..if wait { SINGLE_ROUNDS } else { ROUNDS } {
            let now_ms = self.dataplane.now_ms();
            // Packets of devices are counted by threads that may wait.
            self.count_in(|port| port.dp.is_none());
            let n = self.hear(&*dp, now_ms);
            let late_ms = if wait { 0 } else { pace.late_ms(now_ms) };
            pace.wanted_ms = 0;
            let mut outgoing = Vec::new();
            self.bonds.forgive(late_ms);
            let change = {
                let mut all = self.sessions.lock();
                all.forgive(late_ms, now_ms);
                let most = if wait { 1 } else { usize::MAX };
                all.run(now_ms, self.dataplane.generations(), &mut outgoing, most)
            };
            self.report(change);
            let mut frames = Vec::new();
            self.bonds
                .run(now_ms, &mut frames, if wait { 1 } else { usize::MAX });
            let idle = n == 0 && outgoing.is_empty() && frames.is_empty();
            for o in outgoing {
                let at = (o.port.bridge, o.port.no);
                match self.send(at, &o.frame, o.oam, wait) {
                    Sent::Posted(posted) => pace.sent(posted, now_ms),
                    Sent::NoRoom => self.sessions.lock().unsent(o.id, now_ms),
                    Sent::Done => {}
                }
            }
            for f in frames {
                match self.send((f.bridge, f.port), &f.frame, false, wait) {
                    Sent::Posted(posted) => pace.sent(posted, now_ms),
                    Sent::NoRoom => self.bonds.unsent(&f, now_ms),
                    Sent::Done => {}
                }
            }
            if idle {
                break;
            }
        }
        let next_ms = self.sessions.lock().due.first().map(|(ms, _)| *ms);
        let next_ms = next_ms.into_iter().chain(self.bonds.wake_ms()).min();
        pace.wanted_ms = next_ms.filter(|_| !wait).unwrap_or(0);
        next_ms
    }

    /// Takes the messages that wait. Returns their number.
    fn hear(&self, dp: &dyn Engine, now_ms: u64) -> usize {
        let mut n = 0;
        for _ in 0..BATCHES {
            let mut waiting = Vec::new();
            let taken = dp.take_control(BATCH, &mut |upcall| waiting.push(upcall));
            let mut all = self.sessions.lock();
            waiting.iter().for_each(|upcall| all.receive(upcall, now_ms));
            drop(all);
            waiting
                .iter()
                .for_each(|upcall| self.bonds.receive(upcall, now_ms));
            n += taken;
            if taken < BATCH {
                break;
            }
        }
        n
    }

    /// Reads how many packets ports have received, for the sessions that need it. Called several times a
    /// second, by a thread that may wait.
    pub(crate) fn count(&self) {
        self.count_in(|_| true);
    }

    fn count_in(&self, ports: impl Fn(&WatchedPort) -> bool) {
        if self.is_empty() {
            return;
        }
        let now_ms = self.dataplane.now_ms();
        let wanted: Vec<(u64, WatchedPort)> = {
            let all = self.sessions.lock();
            let all = all.by_id.iter();
            all.filter(|(_, e)| e.session.counts_packets() && ports(&e.port))
                .map(|(id, e)| (*id, e.port.clone()))
                .collect()
        };
        for (id, port) in wanted {
            let Some(packets) = self.received(&port) else {
                continue;
            };
            let mut all = self.sessions.lock();
            if let Some(e) = all.by_id.get_mut(&id)
                && e.rx_packets != packets
            {
                e.rx_packets = packets;
                let now = e.now(now_ms);
                e.session.packets_came(now);
            }
        }
    }

    /// Packets that a port has received so far; `None`: the port is gone.
    fn received(&self, port: &WatchedPort) -> Option<u64> {
        match port.dp {
            Some(no) => Some(self.dataplane.engine()?.port_stats(no)?.rx_packets),
            None => {
                let snapshot = self.dataplane.pipeline().snapshot();
                let port = snapshot.bridges.get(&port.bridge)?.ports.get(&port.no)?;
                Some(port.patch_rx.packets.load(Relaxed))
            }
        }
    }

    /// Sends a frame on its port, as a controller would have it sent.
    fn send(&self, (bridge, no): (u64, OfPort), frame: &[u8], oam: bool, wait: bool) -> Sent {
        let now_ms = self.dataplane.now_ms();
        let packet = Packet::from_bytes(frame);
        let mut key = FlowKey::default();
        extract(packet.head(), &Hint::ethernet(packet.len()), &mut key);
        key.in_port = xlate::key_port(OfPort::NONE);
        let mut actions = Vec::new();
        if oam {
            key.tun_flags |= tun_flag::OAM;
        }
        actions.push(Action::Output { port: no, max_len: 0 });
        let request = xlate::PacketOut {
            bridge,
            key: &key,
            actions: &actions,
            packet: &packet,
            now_ms,
            version: None,
        };
        let mut translation = Translation::default();
        if self
            .dataplane
            .pipeline()
            .packet_out(&request, &mut translation)
            .is_none()
        {
            return Sent::Done;
        }
        for c in translation.credits.iter() {
            c.credit(1, packet.len() as u64, now_ms, 0);
        }
        let drops = |a: &DpAction| matches!(a, DpAction::Drop(_));
        let Some(dp) = self
            .dataplane
            .engine()
            .filter(|_| !translation.actions.iter().all(drops))
        else {
            return Sent::Done;
        };
        if wait {
            // The caller moves the clock and wants to see the frame's effects: wait for the worker.
            let _ = dp.inject(packet, &key, PortNo::NONE, translation.actions);
            return Sent::Done;
        }
        dp.post(packet, &translation.actions)
            .map_or(Sent::NoRoom, Sent::Posted)
    }
}

/// The result of sending a frame.
enum Sent {
    /// The frame was sent, or no port takes it.
    Done,
    /// A worker will send it.
    Posted(Posted),
    /// The worker has too much to do.
    NoRoom,
}
