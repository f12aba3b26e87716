//! Mirrors: copies of packets from selected ports or VLANs.
//!
//! A packet is mirrored where it comes in (a mirror's sources) and where it goes out (its destinations), as
//! it is there. Each output of mirrors gets one copy. Ports that mirrors send to carry no other packets, and
//! packets that come in there are dropped.

use super::ctx::Ctx;
use super::normal::{InBundle, Tags, is_reserved};
use crate::model::{Mirror, MirrorOutput};
use heddle_flow::Vlan;

impl Ctx<'_> {
    /// Copies the packet for mirrors of the bundle that it came in on.
    pub(super) fn mirror_ingress(&mut self) {
        if !self.at.bridge.mirrors.is_empty()
            && let Some(InBundle::Bundle(i, b)) = self.input_bundle()
        {
            self.mirror(&InBundle::Bundle(i, b), |m| m.sources.contains(&i));
        }
    }

    /// Copies the packet for mirrors of the bundle that it has just left on.
    pub(super) fn mirror_egress(&mut self, to: usize) {
        let bridge = self.at.bridge;
        if !bridge.mirrors.is_empty()
            && let Some(b) = bridge.bundles.get(&to)
        {
            self.mirror(&InBundle::Bundle(to, b), |m| m.destinations.contains(&to));
        }
    }

    /// Whether the input port is reserved for mirrored packets. If so, reports that the packet is dropped.
    pub(super) fn came_from_mirror(&mut self) -> bool {
        let bridge = self.at.bridge;
        if bridge.mirrors.is_empty() {
            return false;
        }
        let Some(port) = self.in_port().filter(|p| self.at.is_mirror_output(p.bundle)) else {
            return false;
        };
        let name = bridge.bundles.get(&port.bundle).map_or("", |b| b.name.as_str());
        self.report_error(|| {
            format!("dropping packet received on port {name}, which is reserved exclusively for mirroring")
        });
        true
    }

    fn mirror(&mut self, at: &InBundle<'_>, selects: impl Fn(&Mirror) -> bool) {
        let bridge = self.at.bridge;
        let tags = Tags::of(&self.flow);
        let candidates = |done: u32| {
            (0u32..)
                .zip(bridge.mirrors.iter())
                .filter(move |(i, _)| done >> i & 1 == 0)
        };
        if !candidates(self.at.mirrored).any(|(_, m)| selects(m)) {
            return;
        }
        self.look_at_all_ports();
        // The tag decides the packet's VLAN, and so the tags of its copies.
        self.out.extra().0.vlans[0].tci |= Vlan::VID_MASK | Vlan::CFI;
        self.mask_inner_tag();
        if !self.is_vid_admitted(at, tags.vid()) {
            return;
        }
        let vlans = tags.on_input(at.bundle());
        for (i, m) in (0u32..).zip(bridge.mirrors.iter()) {
            // Earlier mirrors may have sent it to the same output.
            if self.at.mirrored >> i & 1 != 0 || !selects(m) {
                continue;
            }
            if let Some(watched) = &m.vlans {
                self.out.mask.0.vlans[0].tci |= Vlan::VID_MASK | Vlan::CFI;
                if !watched.contains(vlans.vid()) {
                    continue;
                }
            }
            self.out.credit(&m.stats);
            self.at.mirrored |= m.same_output;
            self.at.mirror_snaplen = m.snaplen;
            self.mirror_out(&m.output, &vlans);
            self.at.mirror_snaplen = 0;
        }
    }

    fn mirror_out(&mut self, output: &MirrorOutput, vlans: &Tags) {
        let bridge = self.at.bridge;
        match output {
            MirrorOutput::Bundle(to) => {
                if let Some(to) = bridge.bundles.get(to) {
                    self.output_normal(to, vlans);
                }
            }
            // Copies within their own VLAN, or with addresses that bridges do not forward, would be copied
            // again without end.
            MirrorOutput::Vlan(vid) if vlans.vid() == *vid || is_reserved(self.flow.dl_dst) => {}
            MirrorOutput::Vlan(vid) => {
                let moved = vlans.moved_to(*vid);
                for (i, to) in bridge.bundles.iter() {
                    if moved.are_in(to) && !self.at.is_mirror_output(i) {
                        self.output_normal(to, &moved);
                    }
                }
            }
        }
    }
}
