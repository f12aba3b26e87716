//! The state of one bond with its LACP, and of all bonds.

use super::config::{BondConfig, MemberConfig, MemberLink};
use super::machine::Bond;
use super::{LacpFrame, LacpState, Mode};
use crate::bfd_port::BfdPort;
use crate::bond_port::{BUCKETS, BondShared, BondView, LacpInput, MemberView};
use crate::parts::Part;
use heddle_datapath_api::Generations;
use heddle_lacp::{Aggregator, Outgoing, Status};
use heddle_openflow::Port as OfPort;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A message that a worker had no room for is sent again after this time.
const RETRY_MS: u64 = 5;

/// One bond.
pub(super) struct BondEntry {
    pub(super) name: String,
    pub(super) bridge: u64,
    pub(super) bond: Option<Bond>,
    pub(super) lacp: Option<Aggregator>,
    pub(super) members: BTreeMap<OfPort, (MemberConfig, Arc<LacpInput>)>,
    pub(super) shared: Arc<BondShared>,
    /// Bytes that were accounted, by bucket.
    pub(super) accounted: Vec<u64>,
    /// The bond has to run at once.
    pub(super) dirty: bool,
    /// LACP's view of each member, as the database has it.
    pub(super) current: BTreeMap<OfPort, bool>,
}

/// All bonds, and what other threads are to take of them.
#[derive(Default)]
pub(super) struct All {
    pub(super) by_id: HashMap<u64, BondEntry>,
    pub(super) by_name: BTreeMap<String, u64>,
    pub(super) last_id: u64,
    /// Numbers of tables in the datapath.
    pub(super) tables: BTreeSet<u32>,
    /// Bonds that have had messages since the last refill.
    pub(super) used: BTreeSet<u64>,
    pub(super) refilled_ms: u64,
    /// Bonds for [`super::Bonds::take_learning`].
    pub(super) learning: BTreeSet<u64>,
    /// Ports for [`super::Bonds::take_moved`].
    pub(super) moved: BTreeSet<(u64, OfPort)>,
}

impl All {
    /// The number of a port's bond, which is made if there is none.
    pub(super) fn id_of(&mut self, name: &str, bridge: u64) -> u64 {
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

    pub(super) fn unsent(&mut self, id: u64, port: OfPort, now_ms: u64) {
        if let Some(lacp) = self.by_id.get_mut(&id).and_then(|e| e.lacp.as_mut()) {
            lacp.unsent(port.0, now_ms + RETRY_MS);
        }
    }
}

impl BondEntry {
    pub(super) fn configure(
        &mut self,
        bridge: u64,
        config: &BondConfig,
        members: &[MemberConfig],
        now_ms: u64,
    ) {
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

    /// Passes the members and their links to LACP and to the bond. LACP does not notice the loss of an
    /// `uncounted` link.
    pub(super) fn hand_over_members(&mut self, uncounted: &BTreeSet<OfPort>, now_ms: u64) {
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

    pub(super) fn wake_ms(&self) -> Option<u64> {
        if self.dirty {
            return Some(0);
        }
        let lacp = self.lacp.as_ref().and_then(Aggregator::wake_ms);
        let bond = self.bond.as_ref().and_then(Bond::wake_ms);
        lacp.into_iter().chain(bond).min()
    }

    /// The frames that LACP sends now.
    pub(super) fn run_lacp(&mut self, now_ms: u64) -> Vec<LacpFrame> {
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
    pub(super) fn take_current_changed(&mut self) -> bool {
        let Some(lacp) = &self.lacp else { return false };
        let of = |no: &OfPort| Some((*no, lacp.has_partner(no.0)?));
        let now: BTreeMap<OfPort, bool> = self.members.keys().filter_map(of).collect();
        std::mem::replace(&mut self.current, now) != self.current
    }

    /// The members that LACP has opened or closed.
    pub(super) fn follow_links(&self) -> Vec<OfPort> {
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
    pub(super) fn run_bond(&mut self, now_ms: u64) -> bool {
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
    pub(super) fn account(&mut self) {
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

    pub(super) fn view(&self) -> BondView {
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
    pub(super) fn publish(&self, generations: &Generations) -> bool {
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
    pub(super) fn fill_table(&self, view: &BondView) {
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
