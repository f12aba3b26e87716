//! NORMAL: forwarding as a learning switch with VLANs does.
//!
//! Tags of the packet become the VLANs that it is in ([`xvlan::Tags::on_input`]). Its source is learned there
//! ([`learn`]), and its destination is looked up there. For each output, the VLANs become tags again.

mod bond;
mod input;
mod learn;
mod snooping;
mod xvlan;

use super::ctx::Ctx;
use crate::mac::MacKey;
use crate::model::{PortBundle, VlanMode};
use heddle_datapath_api::DropReason;
use heddle_flow::Vlan;
use heddle_openflow::Port;
use heddle_wire::eth::is_vlan;
pub(super) use input::{InBundle, is_reserved};
pub(super) use xvlan::Tags;
pub(crate) use xvlan::tags_on_output;

impl Ctx<'_> {
    /// The NORMAL port.
    pub(super) fn normal(&mut self) {
        let m = &mut self.out.mask.0;
        m.dl_src = [0xff; 6];
        m.dl_dst = [0xff; 6];
        m.vlans[0].tci |= Vlan::VID_MASK | Vlan::CFI;
        self.mask_inner_tag();

        if self.forward_normally().is_none() {
            self.out.drop_hint.get_or_insert(DropReason::Bridging);
        }
    }

    /// Adds bits of tags that bridging decides by only sometimes. A tag for VLAN 0 stays only for its
    /// priority, and an inner tag keeps a packet out of access ports.
    pub(super) fn mask_inner_tag(&mut self) {
        let [outer, inner] = self.flow.vlans;
        if outer.present() && outer.vid() == 0 {
            self.out.extra().0.vlans[0].tci |= Vlan::PCP_MASK;
        }
        if inner.present() {
            self.out.extra().0.vlans[1] = Vlan {
                tpid: u16::MAX,
                tci: u16::MAX,
            };
        }
    }

    /// `None`: the packet is not forwarded at all.
    fn forward_normally(&mut self) -> Option<()> {
        let from = self.input_bundle()?;
        if is_vlan(self.flow.dl_type) && !self.flow.vlans[0].present() {
            if self.input.has_packet() {
                self.report_error(|| {
                    format!(
                        "dropping packet with partial VLAN tag received on port {}",
                        from.name()
                    )
                });
            }
            self.trace.warn("partial VLAN tag, dropping");
            return None;
        }
        if from.index().is_some_and(|i| self.at.is_mirror_output(i)) {
            if self.input.has_packet() {
                let name = from.name();
                self.report_error(|| {
                    format!(
                        "dropping packet received on port {name}, which is reserved exclusively for mirroring"
                    )
                });
            }
            self.trace.warn("input port is mirror output port, dropping");
            return None;
        }
        let tags = Tags::of(&self.flow);
        if !self.is_vid_admitted(&from, tags.0[0].vid) {
            self.trace
                .warn("disallowed VLAN VID for this input port, dropping");
            return None;
        }
        let vlans = tags.on_input(from.bundle());
        let vlan = vlans.0[0].vid;
        if from.bundle().is_some() && !self.at.bridge.forward_bpdu && is_reserved(self.flow.dl_dst) {
            self.trace.detail("packet has reserved destination MAC, dropping");
            return None;
        }
        if from.bundle().is_some_and(|b| !self.is_admissible(b, vlan)) {
            self.out.drop_hint.get_or_insert(DropReason::NoBondMember);
            return None;
        }
        let gratuitous = self.is_gratuitous_arp();
        let unlearned = self.learn_source(&from, vlan, gratuitous);
        match self.snooping() {
            Some(snooping) => self.forward_multicast(snooping, &from, &vlans),
            None => self.forward(&from, &vlans, unlearned),
        }
    }

    /// `unlearned`: see [`Self::learn_source`].
    fn forward(
        &mut self,
        from: &InBundle<'_>,
        vlans: &Tags,
        unlearned: Option<(MacKey, Port)>,
    ) -> Option<()> {
        let key = MacKey {
            mac: self.flow.dl_dst,
            vlan: vlans.0[0].vid,
        };
        let found = self.lookup_mac(key);
        let own = unlearned.filter(|(source, _)| *source == key);
        let Some(port) = own.map(|(_, port)| port).or(found) else {
            self.trace.detail("no learned MAC for destination, flooding");
            self.normal_flood(from, vlans);
            return Some(());
        };
        let bridge = self.at.bridge;
        let Some(view) = self.port(port) else {
            self.trace.warn("learned port is unknown, dropping");
            return None;
        };
        if from.index() == Some(view.bundle) {
            self.trace.detail("learned port is input port, dropping");
            return None;
        }
        if self.at.is_mirror_output(view.bundle) {
            self.trace.warn("learned port is a mirror port, dropping");
            return None;
        }
        self.trace.detail("forwarding to learned port");
        let to = bridge.bundles.get(&view.bundle)?;
        self.output_normal(to, vlans);
        Some(())
    }

    /// The port that `key` was learned on. The translation depends on it, also if there is none.
    fn lookup_mac(&mut self, key: MacKey) -> Option<Port> {
        if key.is_multicast() || self.at.is_flood_vlan(key.vlan) {
            return None;
        }
        let table = &self.at.bridge.mac;
        self.out.depend(table.slot(key));
        table.lookup(key)
    }

    /// Outputs to every other bundle in the VLAN, in the order of the configuration.
    fn normal_flood(&mut self, from: &InBundle<'_>, vlans: &Tags) {
        let bridge = self.at.bridge;
        self.look_at_all_ports();
        for (i, to) in bridge.bundles.iter() {
            if from.index() != Some(i)
                && vlans.are_in(to)
                && self.at.floods(to)
                && !self.at.is_mirror_output(i)
            {
                self.output_normal(to, vlans);
            }
        }
    }

    /// Outputs on one bundle, with the tags that it wants.
    pub(super) fn output_normal(&mut self, to: &PortBundle, vlans: &Tags) {
        if to.vlan_mode == VlanMode::Dot1qTunnel && to.cvlans.is_some() {
            self.out.mask.0.vlans[1].tci = u16::MAX;
        }
        let tags = vlans.on_output(to, self.flow.vlans[0]);
        if to.ports.is_empty() {
            return;
        }
        let Some(egress) = self.bundle_egress(to, &tags) else {
            self.out.drop_hint.get_or_insert(DropReason::NoBondMember);
            return;
        };
        let old = self.flow.vlans;
        tags.put(&mut self.flow, to.priority_tags);
        self.output_by(egress.port, egress.table, false);
        self.flow.vlans = old;
    }
}
