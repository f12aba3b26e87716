//! Bonds: several links that act as one port, and the LACP that they speak.
//!
//! **Shape.** [`Bonds`] has all bonds of the switch. The thread of [`crate::monitor`] runs them, so that LACP
//! messages are as punctual as BFD's. A [`machine::Bond`] decides which members are enabled and active, and
//! which member each bucket has; [`heddle_lacp::Aggregator`] speaks to the partner.
//! The time is passed to both.
//!
//! **Translation.** The decisions are published ([`BondView`]) without a new configuration. A
//! translation depends on the parts that it has read ([`crate::bond_port::BondPart`]). So a member that fails
//! makes only the flows stale that used it, and a bucket that moves only those of the bucket. Flows of
//! `balance-tcp` end in an action that hashes in the datapath ([`heddle_datapath_api::LbOutput`]), and stay
//! valid when buckets move.
//!
//! **Order of locks.** `all` is the last one: with it held, only bonds are called.

mod config;
mod machine;
mod rebalance;
mod show;
#[cfg(test)]
mod tests;

pub use crate::bond_port::{BondPort, LacpLink, LacpState, Mode, slb_bucket};
pub use config::BondSettings;
pub use heddle_lacp::{LinkSettings, Settings as LacpSettings};

use crate::bfd_port::BfdPort;
use crate::bond_port::{BUCKETS, BondShared, BondView, LacpCookie, LacpInput, MemberView};
use crate::dataplane::Dataplane;
use crate::parts::Part;
use config::MemberLink;
use heddle_datapath_api::{Generations, PortNo, UpcallPacket};
use heddle_lacp::{Aggregator, Outgoing, Received, Status, payload_of};
use heddle_openflow::Port as OfPort;
use machine::Bond;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Interval after which a member may have its full number of messages again. A partner sends three messages a
/// second at most (IEEE 802.1AX-2020 §6.4.16).
const REFILL_MS: u64 = 100;
/// A message that a worker had no room for is sent again after this time.
const RETRY_MS: u64 = 5;

/// Settings of a port with several interfaces, or with LACP.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BondConfig {
    /// Settings of the bond; `None`: there is one interface only.
    pub bond: Option<BondSettings>,
    /// Settings of LACP; `None`: it is off.
    pub lacp: Option<LacpSettings>,
}

/// An interface of such a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberConfig {
    /// Number in the bridge.
    pub no: OfPort,
    /// Name.
    pub name: String,
    /// Address.
    pub mac: [u8; 6],
    /// Whether the device has a carrier.
    pub carrier: bool,
    /// Number of changes of the link that the device has counted. As in Open vSwitch, LACP does not notice a
    /// loss that is not counted: a `dummy` that is set down counts none.
    pub link_resets: u64,
    /// The datapath port; `None`: the interface has none of its own.
    pub dp: Option<PortNo>,
    /// Settings of its link.
    pub lacp: LinkSettings,
    /// The session that watches it.
    pub bfd: Option<BfdPort>,
}

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

/// One bond.
struct BondEntry {
    name: String,
    bridge: u64,
    bond: Option<Bond>,
    lacp: Option<Aggregator>,
    members: BTreeMap<OfPort, (MemberConfig, Arc<LacpInput>)>,
    shared: Arc<BondShared>,
    /// Bytes that were accounted, by bucket.
    accounted: Vec<u64>,
    /// The bond has to run at once.
    dirty: bool,
    /// LACP's view of each member, as the database has it.
    current: BTreeMap<OfPort, bool>,
}

#[derive(Default)]
struct All {
    by_id: HashMap<u64, BondEntry>,
    by_name: BTreeMap<String, u64>,
    last_id: u64,
    /// Numbers of tables in the datapath.
    tables: BTreeSet<u32>,
    /// Bonds that have had messages since the last refill.
    used: BTreeSet<u64>,
    refilled_ms: u64,
    /// Bonds for [`Bonds::take_learning`].
    learning: BTreeSet<u64>,
    /// Ports for [`Bonds::take_moved`].
    moved: BTreeSet<(u64, OfPort)>,
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

    /// The text of `bond/show`, of one bond or of all.
    ///
    /// # Errors
    /// Open vSwitch's text for an unknown bond.
    pub fn show(&self, name: Option<&str>) -> Result<String, &'static str> {
        let now_ms = self.dataplane.now_ms();
        let details = |e: &BondEntry| Some(e.bond.as_ref()?.details(e.shared.table.id, now_ms));
        self.texts(name, details, NO_BOND)
    }
    /// The text of `bond/list`.
    pub fn list(&self) -> String {
        let line = |e: &BondEntry| Some(e.bond.as_ref()?.line(e.shared.table.id));
        let lines = self.texts(None, line, NO_BOND).unwrap_or_default();
        format!("bond\ttype\trecircID\tmembers\n{lines}")
    }
    /// The text of `dpif-netdev/bond-show`: the buckets of bonds with `lb-output-action`.
    pub fn show_buckets(&self) -> String {
        let of = |e: &BondEntry| {
            let settings = &e.bond.as_ref()?.settings;
            let hashes = e.shared.view.load().sends == Some(Mode::BalanceTcp);
            let table = Some(&e.shared.table).filter(|_| hashes && settings.lb_output)?;
            let bucket = |n: u8| {
                format!(
                    "\t\tbucket {n} - member {}\n",
                    table.port(n).unwrap_or(PortNo::NONE.0)
                )
            };
            let buckets: String = (0..=u8::MAX).map(bucket).collect();
            Some(format!("\tbond-id {}:\n{buckets}", table.id))
        };
        match self.texts(None, of, NO_BOND) {
            Ok(text) if !text.is_empty() => format!("Bonds:\n{text}"),
            _ => String::new(),
        }
    }
    /// The text of `lacp/show`, of one port or of all.
    ///
    /// # Errors
    /// Open vSwitch's text for an unknown port.
    pub fn show_lacp(&self, name: Option<&str>) -> Result<String, &'static str> {
        self.texts(name, |e| Some(e.lacp.as_ref()?.details()), NO_LACP)
    }
    /// The text of `lacp/show-stats`, of one port or of all.
    ///
    /// # Errors
    /// Open vSwitch's text for an unknown port.
    pub fn show_lacp_stats(&self, name: Option<&str>) -> Result<String, &'static str> {
        self.texts(name, |e| Some(e.lacp.as_ref()?.statistics()), NO_LACP)
    }

    fn texts(
        &self,
        name: Option<&str>,
        of: impl Fn(&BondEntry) -> Option<String>,
        unknown: &'static str,
    ) -> Result<String, &'static str> {
        let all = self.all.lock();
        match name {
            Some(name) => {
                let entry = all.by_name.get(name).and_then(|id| all.by_id.get(id));
                entry.and_then(of).ok_or(unknown)
            }
            None => {
                let entries = all.by_name.values().filter_map(|id| all.by_id.get(id));
                Ok(entries.filter_map(of).collect())
            }
        }
    }
}

const NO_BOND: &str = "no such bond";
const NO_LACP: &str = "no such lacp object";

impl All {
    /// The number of a port's bond, which is made if there is none.
    fn id_of(&mut self, name: &str, bridge: u64) -> u64 {
        if let Some(id) = self.by_name.get(name) {
            return *id;
        }
        self.last_id += 1;
        let id = self.last_id;
        let table = (1..).find(|n| !self.tables.contains(n)).unwrap_or(0);
        self.tables.insert(table);
        let entry = BondEntry {
            name: name.to_owned(),
            bridge,
            bond: None,
            lacp: None,
            members: BTreeMap::new(),
            shared: BondShared::new(id, table),
            accounted: vec![0; BUCKETS],
            dirty: true,
            current: BTreeMap::new(),
        };
        self.by_id.insert(id, entry);
        self.by_name.insert(name.to_owned(), id);
        id
    }

    fn unsent(&mut self, id: u64, port: OfPort, now_ms: u64) {
        if let Some(lacp) = self.by_id.get_mut(&id).and_then(|e| e.lacp.as_mut()) {
            lacp.unsent(port.0, now_ms + RETRY_MS);
        }
    }
}

impl BondEntry {
    fn configure(&mut self, bridge: u64, config: &BondConfig, members: &[MemberConfig], now_ms: u64) {
        self.bridge = bridge;
        self.dirty = true;
        match (&mut self.bond, &config.bond) {
            (Some(bond), Some(settings)) => bond.configure(settings.clone(), now_ms),
            (bond, settings) => {
                *bond = settings.clone().map(|s| Bond::new(&self.name, s, now_ms));
            }
        }
        match (&mut self.lacp, &config.lacp) {
            (Some(lacp), Some(settings)) => lacp.configure(settings.clone()),
            (lacp, settings) => *lacp = settings.clone().map(Aggregator::new),
        }
        let id = self.shared.id;
        let mut old = std::mem::take(&mut self.members);
        let mut uncounted = BTreeSet::new();
        for member in members {
            let old = old.remove(&member.no);
            if old
                .as_ref()
                .is_some_and(|(m, _)| m.link_resets == member.link_resets)
            {
                uncounted.insert(member.no);
            }
            let input = old.map_or_else(|| LacpInput::new(id, member.no), |(_, i)| i);
            self.members.insert(member.no, (member.clone(), input));
        }
        self.hand_over_members(&uncounted, now_ms);
    }

    /// Passes the members and their links on. LACP does not notice the loss of an `uncounted` link.
    fn hand_over_members(&mut self, uncounted: &BTreeSet<OfPort>, now_ms: u64) {
        if let Some(lacp) = &mut self.lacp {
            lacp.keep_links(|no| self.members.contains_key(&OfPort(no)));
            for (member, _) in self.members.values() {
                let no = member.no;
                lacp.set_link(no.0, member.lacp.clone(), now_ms);
                let unnoticed = uncounted.contains(&no) && lacp.has_carrier(no.0);
                lacp.set_carrier(no.0, member.carrier || unnoticed, now_ms);
            }
        }
        if let Some(bond) = &mut self.bond {
            let link = |m: &MemberConfig| MemberLink {
                no: m.no,
                name: m.name.clone(),
                mac: m.mac,
                carrier: m.carrier,
            };
            bond.set_members(self.members.values().map(|(m, _)| link(m)).collect());
        }
    }

    fn wake_ms(&self) -> Option<u64> {
        if self.dirty {
            return Some(0);
        }
        let lacp = self.lacp.as_ref().and_then(Aggregator::wake_ms);
        let bond = self.bond.as_ref().and_then(Bond::wake_ms);
        lacp.into_iter().chain(bond).min()
    }

    /// The frames that LACP sends now.
    fn run_lacp(&mut self, now_ms: u64) -> Vec<LacpFrame> {
        let outgoing = self.lacp.as_mut().map_or(Vec::new(), |lacp| lacp.run(now_ms));
        let frame = |o: Outgoing| {
            let port = OfPort(o.link);
            let (member, _) = self.members.get(&port)?;
            Some(LacpFrame {
                id: self.shared.id,
                bridge: self.bridge,
                port,
                frame: heddle_lacp::frame(member.mac, &o.pdu),
            })
        };
        outgoing.into_iter().filter_map(frame).collect()
    }

    /// Whether LACP's view of any member has changed.
    fn take_current_changed(&mut self) -> bool {
        let Some(lacp) = &self.lacp else { return false };
        let of = |no: &OfPort| Some((*no, lacp.has_partner(no.0)?));
        let now: BTreeMap<OfPort, bool> = self.members.keys().filter_map(of).collect();
        std::mem::replace(&mut self.current, now) != self.current
    }

    /// The members that LACP has opened or closed.
    fn follow_links(&self) -> Vec<OfPort> {
        let Some(lacp) = &self.lacp else {
            return Vec::new();
        };
        let members = self.members.values();
        members
            .filter(|(m, input)| input.set_forwarding(lacp.may_enable(m.no.0)))
            .map(|(m, _)| m.no)
            .collect()
    }

    /// Runs the bond. Returns whether gratuitous packets are due.
    fn run_bond(&mut self, now_ms: u64) -> bool {
        self.account();
        let Some(bond) = &mut self.bond else { return false };
        for (member, _) in self.members.values() {
            let no = member.no;
            let watched = member.bfd.as_ref().is_none_or(BfdPort::is_forwarding);
            let lacp = self.lacp.as_ref().is_none_or(|l| l.may_enable(no.0));
            bond.set_may_enable(no, member.carrier && watched && lacp);
        }
        let state = match &self.lacp {
            None => LacpState::Off,
            Some(lacp) if lacp.status() == Status::Negotiated => LacpState::Negotiated,
            Some(_) => LacpState::Configured,
        };
        bond.run(state, now_ms);
        bond.rebalance(now_ms);
        bond.take_learning()
    }

    /// Adds what was sent in each bucket since the last call.
    fn account(&mut self) {
        let Some(bond) = self.bond.as_mut().filter(|b| !b.buckets.is_empty()) else {
            return;
        };
        for (bucket, (before, sent)) in (0..=u8::MAX).zip(self.accounted.iter_mut().zip(&self.shared.sent)) {
            let hashed = self.shared.table.bytes(bucket);
            let now = hashed.wrapping_add(sent.bytes.load(Relaxed));
            bond.account(usize::from(bucket), now.wrapping_sub(*before));
            *before = now;
        }
    }

    fn view(&self) -> BondView {
        let bond = self.bond.as_ref();
        let accepts = |no: OfPort| match bond.and_then(|b| b.member(no)) {
            Some(m) => m.enabled || m.may_enable,
            None => true,
        };
        let member = |(m, input): &(MemberConfig, Arc<LacpInput>)| MemberView {
            no: m.no,
            accepts: accepts(m.no),
            input: input.clone(),
        };
        let settings = bond.map(|b| &b.settings);
        BondView {
            mode: settings.map_or(Mode::ActiveBackup, |s| s.mode),
            sends: bond.and_then(Bond::sends),
            lacp: bond.map_or(LacpState::Off, |b| b.lacp),
            fallback: settings.is_some_and(|s| s.fallback),
            all_members_active: settings.is_some_and(|s| s.all_members_active && s.mode == Mode::BalanceSlb),
            basis: settings.map_or(0, |s| s.basis),
            in_datapath: self.members.values().all(|(m, _)| m.dp.is_some()),
            active: bond.and_then(|b| b.active),
            members: self.members.values().map(member).collect(),
            buckets: bond.map_or(Vec::new(), |b| b.buckets.iter().map(|b| b.member).collect()),
        }
    }

    /// Publishes the state for translations and workers. Returns whether it has changed.
    fn publish(&self, generations: &Generations) -> bool {
        let view = self.view();
        self.fill_table(&view);
        let parts = view.differences(&self.shared.view.load());
        self.shared.view.store(view);
        // After the state: a translation that has read the old state has an older generation.
        for part in &parts {
            generations.bump(Part::Bond(self.shared.id, *part).slot());
        }
        !parts.is_empty()
    }

    /// Writes the datapath's buckets.
    fn fill_table(&self, view: &BondView) {
        let table = &self.shared.table;
        table.set_basis(view.basis);
        let dp = |no: OfPort| self.members.get(&no).and_then(|(m, _)| m.dp);
        for bucket in 0..=u8::MAX {
            let member = view.buckets.get(usize::from(bucket)).copied().flatten();
            let port = member
                .filter(|_| view.sends == Some(Mode::BalanceTcp))
                .and_then(dp);
            table.set_port(bucket, port.map(|no| no.0));
        }
    }
}
