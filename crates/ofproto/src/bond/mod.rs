//! Bonds: several links that act as one port, and the LACP that they speak.
//!
//! **Shape.** [`Bonds`] has all bonds of the switch. The thread of [`crate::monitor`] runs them, so that LACP
//! messages are as punctual as BFD's. A [`machine::Bond`] decides which members are enabled and active, and
//! which member each bucket has; [`heddle_lacp::Aggregator`] speaks to the partner.
//! The time is passed to both.
//!
//! **Translation.** The decisions are published ([`BondView`](crate::bond_port::BondView)) without a new
//! configuration. A translation depends on the parts that it has read ([`crate::bond_port::BondPart`]). So a
//! member that fails makes only the flows stale that used it, and a bucket that moves only those of the
//! bucket. Flows of `balance-tcp` end in an action that hashes in the datapath
//! ([`heddle_datapath_api::LbOutput`]), and stay valid when buckets move.
//!
//! * [`config`]: settings. * [`entry`]: one bond with its LACP, and the table of all.
//! * [`machine`], [`rebalance`]: the decisions. * [`texts`], [`show`]: replies to commands.
//!
//! **Order of locks.** `all` is the last one: with it held, only bonds are called.

mod config;
mod entry;
mod machine;
mod rebalance;
mod show;
#[cfg(test)]
mod tests;
mod texts;

pub use crate::bond_port::{BondPort, LacpLink, LacpState, Mode, slb_bucket};
pub use config::{BondConfig, BondSettings, MemberConfig};
pub use heddle_lacp::{LinkSettings, Settings as LacpSettings};

use crate::bond_port::LacpCookie;
use crate::dataplane::Dataplane;
use crate::parts::Part;
use entry::{All, BondEntry};
use heddle_datapath_api::UpcallPacket;
use heddle_lacp::{Received, payload_of};
use heddle_openflow::Port as OfPort;
use machine::Bond;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Interval after which a member may have its full number of messages again. A partner sends three messages a
/// second at most (IEEE 802.1AX-2020 §6.4.16).
const REFILL_MS: u64 = 100;

/// A frame that is to be sent.
pub(crate) struct LacpFrame {
    /// Number of the bond.
    pub(crate) id: u64,
    /// Number of the bridge.
    pub(crate) bridge: u64,
    /// The member.
    pub(crate) port: OfPort,
    pub(crate) frame: Vec<u8>,
}

/// All bonds of the switch.
pub struct Bonds {
    dataplane: Arc<Dataplane>,
    all: Mutex<All>,
    n: AtomicU64,
    status_changed: AtomicBool,
    /// Cached flows are stale: see [`Bonds::take_stale`].
    stale: AtomicBool,
}

impl Bonds {
    pub(crate) fn new(dataplane: Arc<Dataplane>) -> Self {
        Self {
            dataplane,
            all: Mutex::default(),
            n: AtomicU64::new(0),
            status_changed: AtomicBool::new(false),
            stale: AtomicBool::new(false),
        }
    }

    /// Makes or changes the bond of a port of bridge `bridge`. Returns the bond's part of the bundle; `None`:
    /// the port is no bond and speaks no LACP.
    pub fn configure(
        &self,
        name: &str,
        bridge: u64,
        config: &BondConfig,
        members: &[MemberConfig],
    ) -> Option<BondPort> {
        if config.bond.is_none() && config.lacp.is_none() {
            self.remove(name);
            return None;
        }
        let now_ms = self.dataplane.now_ms();
        let mut all = self.all.lock();
        let id = all.id_of(name, bridge);
        let entry = all.by_id.get_mut(&id)?;
        entry.configure(bridge, config, members, now_ms);
        let port = BondPort {
            shared: entry.shared.clone(),
            is_bond: config.bond.is_some(),
            speaks_lacp: config.lacp.is_some(),
        };
        // The state is published before packets can meet it.
        let mut unsent = Vec::new();
        self.step(&mut all, id, now_ms, &mut unsent);
        for o in unsent {
            all.unsent(o.id, o.port, now_ms);
        }
        self.n.store(all.by_id.len() as u64, Relaxed);
        drop(all);
        self.status_changed.store(true, Relaxed);
        if let Some(dp) = self.dataplane.engine() {
            dp.wake_control();
        }
        Some(port)
    }

    /// Ends the bond of a port.
    pub fn remove(&self, name: &str) {
        let mut all = self.all.lock();
        if let Some(id) = all.by_name.remove(name) {
            if let Some(entry) = all.by_id.remove(&id) {
                all.tables.remove(&entry.shared.table.id);
            }
            all.used.remove(&id);
            all.learning.remove(&id);
        }
        self.n.store(all.by_id.len() as u64, Relaxed);
    }

    /// Whether there is any bond.
    pub fn is_empty(&self) -> bool {
        self.n.load(Relaxed) == 0
    }
    /// Whether any bond's packets go through a device.
    pub fn has_devices(&self) -> bool {
        let members = |e: &BondEntry| e.members.values().any(|(m, _)| m.dp.is_some());
        !self.is_empty() && self.all.lock().by_id.values().any(members)
    }

    /// Whether the state of any bond that the database has may have changed since the last call.
    pub fn take_status_changed(&self) -> bool {
        self.status_changed.swap(false, Relaxed)
    }
    /// Whether there is anything for [`Bonds::take_status_changed`].
    pub fn has_status_changed(&self) -> bool {
        self.status_changed.load(Relaxed)
    }

    /// The address of the active member (`Port.bond_active_slave`). `None`: the port is no bond.
    pub fn active_mac(&self, name: &str) -> Option<[u8; 6]> {
        let all = self.all.lock();
        let entry = all.by_id.get(all.by_name.get(name)?)?;
        Some(entry.bond.as_ref()?.active_mac)
    }
    /// `Interface.lacp_current` of a member. `None`: it speaks no LACP.
    pub fn lacp_current(&self, port: &str, member: OfPort) -> Option<bool> {
        if self.is_empty() {
            return None;
        }
        let all = self.all.lock();
        let entry = all.by_id.get(all.by_name.get(port)?)?;
        entry.lacp.as_ref()?.has_partner(member.0)
    }

    /// A device's carrier has changed.
    pub fn set_carrier(&self, name: &str, carrier: bool) {
        if self.is_empty() {
            return;
        }
        let now_ms = self.dataplane.now_ms();
        let mut all = self.all.lock();
        let mut changed = false;
        for entry in all.by_id.values_mut() {
            let found = entry.members.values_mut().find(|(m, _)| m.name == name);
            if let Some((member, _)) = found.filter(|(m, _)| m.carrier != carrier) {
                member.carrier = carrier;
                entry.dirty = true;
                entry.hand_over_members(&BTreeSet::new(), now_ms);
                changed = true;
            }
        }
        drop(all);
        if changed && let Some(dp) = self.dataplane.engine() {
            dp.wake_control();
        }
    }

    /// Has every bond look at its members' sessions.
    pub(crate) fn touch(&self) {
        if !self.is_empty() {
            self.all.lock().by_id.values_mut().for_each(|e| e.dirty = true);
        }
    }

    /// Takes an upcall, if it is an LACP message.
    pub(crate) fn receive(&self, upcall: &UpcallPacket, now_ms: u64) {
        let Some(LacpCookie(input)) = upcall.upcall.cookie.0.as_any().downcast_ref() else {
            return;
        };
        let mut all = self.all.lock();
        all.used.insert(input.bond);
        let Some(entry) = all.by_id.get_mut(&input.bond) else {
            return;
        };
        let (Some(lacp), Some(payload)) = (&mut entry.lacp, payload_of(&upcall.bytes)) else {
            return;
        };
        let received = lacp.receive(input.port.0, payload, now_ms);
        entry.dirty |= received == Received::Message;
    }

    /// Partners get this much more time to be heard: the thread was late.
    pub(crate) fn forgive(&self, late_ms: u64) {
        if late_ms == 0 || self.is_empty() {
            return;
        }
        let mut all = self.all.lock();
        for lacp in all.by_id.values_mut().filter_map(|e| e.lacp.as_mut()) {
            lacp.forgive(late_ms);
        }
    }

    /// Does what is due, until `most` frames are to be sent.
    pub(crate) fn run(&self, now_ms: u64, outgoing: &mut Vec<LacpFrame>, most: usize) {
        if self.is_empty() {
            return;
        }
        let mut all = self.all.lock();
        if now_ms.saturating_sub(all.refilled_ms) >= REFILL_MS {
            all.refilled_ms = now_ms;
            for id in std::mem::take(&mut all.used) {
                if let Some(e) = all.by_id.get(&id) {
                    e.members.values().for_each(|(_, input)| input.refill());
                }
            }
        }
        let due = |e: &BondEntry| e.wake_ms().is_some_and(|at_ms| at_ms <= now_ms);
        let due: Vec<u64> = all
            .by_id
            .iter()
            .filter(|(_, e)| due(e))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            if outgoing.len() >= most {
                break;
            }
            self.step(&mut all, id, now_ms, outgoing);
        }
    }

    /// When it has to run again, ms. `None`: only after an event.
    pub(crate) fn wake_ms(&self) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        self.all
            .lock()
            .by_id
            .values()
            .filter_map(BondEntry::wake_ms)
            .min()
    }

    /// A frame was not sent.
    pub(crate) fn unsent(&self, frame: &LacpFrame, now_ms: u64) {
        self.all.lock().unsent(frame.id, frame.port, now_ms);
    }

    /// Bonds that have gratuitous packets to send since the last call: number of the bridge, and name.
    pub(crate) fn take_learning(&self) -> Vec<(u64, String)> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut all = self.all.lock();
        let ids = std::mem::take(&mut all.learning);
        let entries = ids.iter().filter_map(|id| all.by_id.get(id));
        entries.map(|e| (e.bridge, e.name.clone())).collect()
    }

    /// Whether copies of cached flows outside the workers have to be renewed, since the last call.
    pub(crate) fn take_stale(&self) -> bool {
        self.stale.swap(false, Relaxed)
    }

    /// Ports that LACP has opened or closed since the last call.
    pub(crate) fn take_moved(&self) -> BTreeSet<(u64, OfPort)> {
        if self.is_empty() {
            return BTreeSet::new();
        }
        std::mem::take(&mut self.all.lock().moved)
    }

    /// Runs one bond, and publishes its state.
    fn step(&self, all: &mut All, id: u64, now_ms: u64, outgoing: &mut Vec<LacpFrame>) {
        let Some(entry) = all.by_id.get_mut(&id) else {
            return;
        };
        entry.dirty = false;
        outgoing.extend(entry.run_lacp(now_ms));
        let mut changed = entry.take_current_changed();
        let moved = entry.follow_links();
        let learns = entry.run_bond(now_ms);
        changed |= entry.bond.as_mut().is_some_and(Bond::take_active_changed);
        let differs = entry.publish(self.dataplane.generations());
        for port in &moved {
            self.dataplane
                .generations()
                .bump(Part::Link(entry.bridge, *port).slot());
        }
        let bridge = entry.bridge;
        if learns {
            all.learning.insert(id);
        }
        self.stale.fetch_or(differs, Relaxed);
        if learns || differs || !moved.is_empty() {
            all.moved.extend(moved.into_iter().map(|port| (bridge, port)));
            self.dataplane.wake_deferred_work();
        }
        if changed {
            self.status_changed.store(true, Relaxed);
        }
    }

    /// Runs a command on the bond of a port, and the bond at once.
    fn command(
        &self,
        name: &str,
        f: impl FnOnce(&mut Bond) -> Result<&'static str, &'static str>,
    ) -> Result<&'static str, &'static str> {
        let mut all = self.all.lock();
        let id = *all.by_name.get(name).ok_or(NO_BOND)?;
        let entry = all.by_id.get_mut(&id).ok_or(NO_BOND)?;
        let result = f(entry.bond.as_mut().ok_or(NO_BOND)?)?;
        let differs = entry.publish(self.dataplane.generations());
        entry.dirty = true;
        self.stale.fetch_or(differs, Relaxed);
        drop(all);
        self.status_changed.store(true, Relaxed);
        self.dataplane.wake_deferred_work();
        if let Some(dp) = self.dataplane.engine() {
            dp.wake_control();
        }
        Ok(result)
    }

    /// Moves a bucket to a member (`bond/migrate`).
    ///
    /// # Errors
    /// Open vSwitch's texts.
    pub fn migrate(&self, bond: &str, hash: &str, member: &str) -> Result<&'static str, &'static str> {
        self.command(bond, |b| b.migrate(hash, member))
    }
    /// Makes a member active (`bond/set-active-member`).
    ///
    /// # Errors
    /// Open vSwitch's texts.
    pub fn set_active(&self, bond: &str, member: &str) -> Result<&'static str, &'static str> {
        self.command(bond, |b| b.set_active(member))
    }
    /// Enables or disables a member until its link changes (`bond/enable-member`).
    ///
    /// # Errors
    /// Open vSwitch's texts.
    pub fn set_enabled(&self, bond: &str, member: &str, enable: bool) -> Result<&'static str, &'static str> {
        self.command(bond, |b| b.set_enabled(member, enable))
    }
}

const NO_BOND: &str = "no such bond";
const NO_LACP: &str = "no such lacp object";
