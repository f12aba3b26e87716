//! Mirrors: copies of packets for whoever watches ports or VLANs.
//!
//! A packet is mirrored where it comes in (a mirror's sources) and where it goes out (its destinations), as
//! it is there, once per destination of mirrors. Ports that mirrors send to take nothing else and let nothing
//! in.

use super::ctx::Ctx;
use super::normal::{InBundle, Tags, is_reserved};
use super::report::Kind;
use crate::model::{Mirror, MirrorOutput};
use heddle_flow::Vlan;

impl Ctx<'_> {
    /// Copies the packet for those who watch where it came in.
    pub(super) fn mirror_ingress(&mut self) {
        if !self.bridge.mirrors.is_empty()
            && let Some(InBundle::Bundle(i, b)) = self.input_bundle()
        {
            self.mirror(&InBundle::Bundle(i, b), |m| m.sources.contains(&i));
        }
    }

    /// Copies the packet for those who watch the bundle that it has just left on.
    pub(super) fn mirror_egress(&mut self, to: usize) {
        let bridge = self.bridge;
        if !bridge.mirrors.is_empty()
            && let Some(b) = bridge.bundles.get(&to)
        {
            self.mirror(&InBundle::Bundle(to, b), |m| m.destinations.contains(&to));
        }
    }

    /// Whether a bundle is kept for what mirrors send.
    pub(super) fn is_mirror_output(&self, bundle: usize) -> bool {
        let to = |m: &Mirror| m.output == MirrorOutput::Bundle(bundle);
        self.bridge.mirrors.iter().any(to)
    }

    /// Whether the input port is one of those; if so it is said that the packet is dropped.
    pub(super) fn came_from_mirror(&mut self) -> bool {
        let bridge = self.bridge;
        if bridge.mirrors.is_empty() {
            return false;
        }
        let Some(port) = self.in_port().filter(|p| self.is_mirror_output(p.bundle)) else {
            return false;
        };
        let name = bridge.bundles.get(&port.bundle).map_or("", |b| b.name.as_str());
        self.report_error(|| {
            format!("dropping packet received on port {name}, which is reserved exclusively for mirroring")
        });
        true
    }

    fn mirror(&mut self, at: &InBundle<'_>, selects: impl Fn(&Mirror) -> bool) {
        let bridge = self.bridge;
        let tags = Tags::of(&self.flow);
        let candidates = |done: u32| {
            (0u32..)
                .zip(bridge.mirrors.iter())
                .filter(move |(i, _)| done >> i & 1 == 0)
        };
        if !candidates(self.mirrored).any(|(_, m)| selects(m)) {
            return;
        }
        self.look_at_all_ports();
        // Which VLAN it is in, and so how it leaves, is decided by its tag.
        self.extra().0.vlans[0].tci |= Vlan::VID_MASK | Vlan::CFI;
        self.mask_inner_tag();
        if !self.is_vid_admitted(at, tags.vid()) {
            return;
        }
        let vlans = tags.on_input(at.bundle());
        for (i, m) in (0u32..).zip(bridge.mirrors.iter()) {
            // Those before may have sent it where this one does.
            if self.mirrored >> i & 1 != 0 || !selects(m) {
                continue;
            }
            if let Some(watched) = &m.vlans {
                self.out.mask.0.vlans[0].tci |= Vlan::VID_MASK | Vlan::CFI;
                if !watched.contains(vlans.vid()) {
                    continue;
                }
            }
            self.credit(&m.stats);
            self.mirrored |= m.same_output;
            self.mirror_snaplen = m.snaplen;
            self.mirror_out(&m.output, &vlans);
            self.mirror_snaplen = 0;
        }
    }

    fn mirror_out(&mut self, output: &MirrorOutput, vlans: &Tags) {
        let bridge = self.bridge;
        match output {
            MirrorOutput::Bundle(to) => {
                if let Some(to) = bridge.bundles.get(to) {
                    self.output_normal(to, vlans);
                }
            }
            // Within the VLAN that copies go to, and with addresses that bridges keep to themselves, there
            // would be no end.
            MirrorOutput::Vlan(vid) if vlans.vid() == *vid || is_reserved(self.flow.dl_dst) => {}
            MirrorOutput::Vlan(vid) => {
                let moved = vlans.moved_to(*vid);
                for (i, to) in bridge.bundles.iter() {
                    if moved.are_in(to) && !self.is_mirror_output(i) {
                        self.output_normal(to, &moved);
                    }
                }
            }
        }
    }

    /// A port that has no number in the datapath cannot be told to cut what it sends.
    pub(super) fn refuse_cut(&mut self) {
        self.report(Kind::Warn, || {
            "Mirror truncate to ODPP_NONE, skipping output".to_owned()
        });
    }
}
