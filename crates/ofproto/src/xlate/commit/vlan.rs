//! Tags: inner tags that both packets have stay; the others are popped and pushed.

use super::super::ctx::Ctx;
use super::super::vlan::count;
use heddle_datapath_api::Action;
use heddle_flow::Vlan;

impl Ctx<'_> {
    pub(super) fn commit_vlan(&mut self) {
        let (base, flow) = (self.base.vlans, self.flow.vlans);
        let (base_n, flow_n) = (count(&self.base), count(&self.flow));
        let inner = |n: usize, tags: [Vlan; 2]| tags.into_iter().take(n).rev();
        let common = inner(base_n, base)
            .zip(inner(flow_n, flow))
            .take_while(|(a, b)| a == b)
            .count();
        for i in (0..base_n - common).rev() {
            self.emit(Action::PopVlan);
            self.out.mask.0.vlans[i] = Vlan {
                tpid: u16::MAX,
                tci: u16::MAX,
            };
        }
        for tag in inner(flow_n - common, flow) {
            self.emit(Action::PushVlan {
                tpid: tag.tpid,
                tci: tag.tci,
            });
        }
        self.base.vlans = flow;
    }
}
