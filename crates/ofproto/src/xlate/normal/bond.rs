//! Bonds in NORMAL: packets that a bond takes from its members, and the member that a packet leaves by.

use super::super::ctx::{Ctx, of_port};
use super::Tags;
use crate::bond_port::{BondPart, BondPort, LacpState, Mode, slb_bucket};
use crate::mac::MacKey;
use crate::model::PortBundle;
use crate::parts::Part;
use heddle_datapath_api::LbOutput;
use heddle_openflow::Port;
use std::sync::Arc;

/// The decision about a packet that came in by a member.
enum Admission {
    Accept,
    Refuse,
    /// Refuse it if its source is known on another port: then it is one of our own that came back.
    RefuseIfMoved,
}

/// The port that a packet leaves a bundle by.
pub(super) struct Egress {
    pub(super) port: Port,
    /// The buckets of a bond, one of which the datapath chooses in place of the port.
    pub(super) table: Option<Arc<LbOutput>>,
}

impl Ctx<'_> {
    /// Whether the packet may come in by the member of `bundle` that it came in by, in VLAN `vlan`.
    pub(super) fn is_admissible(&mut self, bundle: &PortBundle, vlan: u16) -> bool {
        let Some(bond) = bundle.bond.as_ref().filter(|b| b.is_bond) else {
            return true;
        };
        match self.admission(bond) {
            Admission::Accept => true,
            Admission::Refuse => {
                self.trace.detail("bonding refused admissibility, dropping");
                false
            }
            Admission::RefuseIfMoved => {
                let came_back = self.is_moved(bundle, vlan);
                if came_back {
                    self.trace
                        .detail("SLB bond thinks this packet looped back, dropping");
                }
                !came_back
            }
        }
    }

    fn admission(&mut self, bond: &BondPort) -> Admission {
        let no = of_port(self.flow.in_port);
        for part in [BondPart::Mode, BondPart::Member(no)] {
            self.out.depend(Part::Bond(bond.id(), part).slot());
        }
        let view = bond.shared.view.get();
        let Some(member) = view.member(no) else {
            return Admission::Refuse;
        };
        match view.lacp {
            // The partner knows the bond, and sends on enabled members only.
            LacpState::Negotiated if member.accepts => return Admission::Accept,
            LacpState::Negotiated => return Admission::Refuse,
            LacpState::Configured if !view.fallback => return Admission::Refuse,
            LacpState::Off if view.mode == Mode::BalanceTcp => return Admission::Refuse,
            LacpState::Configured | LacpState::Off => {}
        }
        // The mask has the whole destination already.
        let multicast = self.flow.dl_dst[0] & 1 != 0;
        let balanced = view.mode == Mode::BalanceSlb;
        if balanced && (!multicast || view.all_members_active) {
            return Admission::RefuseIfMoved;
        }
        self.out.depend(Part::Bond(bond.id(), BondPart::Active).slot());
        let active = bond.shared.view.load().active == Some(no);
        match (active, balanced) {
            (false, _) => Admission::Refuse,
            (true, true) => Admission::RefuseIfMoved,
            (true, false) => Admission::Accept,
        }
    }

    /// Whether the packet's source is known on a port outside the bundle. An announcement that the source has
    /// moved does not count, unless it may be our own.
    fn is_moved(&mut self, bundle: &PortBundle, vlan: u16) -> bool {
        let key = MacKey {
            mac: self.flow.dl_src,
            vlan,
        };
        let table = &self.at.bridge.mac;
        self.out.depend(table.slot(key));
        let known = table.lookup(key);
        if known.is_none_or(|port| bundle.ports.contains(&port)) {
            return false;
        }
        if !self.is_gratuitous_arp() {
            return true;
        }
        // The result holds for a moment only.
        self.out.uncacheable = true;
        table.is_gratuitous_arp_locked(key, self.input.now_ms)
    }

    /// The port by which a packet with these tags leaves a bundle. `None`: no member takes it.
    pub(super) fn bundle_egress(&mut self, bundle: &PortBundle, tags: &Tags) -> Option<Egress> {
        let first = *bundle.ports.first()?;
        let one = |port| Egress { port, table: None };
        let Some(bond) = bundle.bond.as_ref().filter(|b| b.is_bond) else {
            return Some(one(first));
        };
        self.out.depend(Part::Bond(bond.id(), BondPart::Mode).slot());
        let view = bond.shared.view.get();
        let bucket = match view.sends? {
            Mode::BalanceTcp if view.in_datapath => {
                return Some(Egress {
                    port: first,
                    table: Some(bond.shared.table.clone()),
                });
            }
            // Buckets have ports of the datapath only: without such ports there is nothing to balance.
            Mode::ActiveBackup | Mode::BalanceTcp => {
                self.out.depend(Part::Bond(bond.id(), BondPart::Active).slot());
                return bond.shared.view.load().active.map(one);
            }
            Mode::BalanceSlb => {
                self.out.mask.0.dl_src = [u8::MAX; 6];
                slb_bucket(self.flow.dl_src, tags.vid(), view.basis)
            }
        };
        self.out
            .depend(Part::Bond(bond.id(), BondPart::Bucket(bucket)).slot());
        let view = bond.shared.view.load();
        let member = view.buckets.get(usize::from(bucket)).copied().flatten()?;
        if let Some(sent) = bond.shared.sent.get(usize::from(bucket)) {
            self.out.credit(sent);
        }
        Some(one(member))
    }
}
