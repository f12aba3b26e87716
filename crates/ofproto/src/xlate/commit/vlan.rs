//! Tags: inner tags that both packets have stay; the others are popped and pushed.

use super::super::emit::Output;
use super::super::flow::Base;
use super::super::vlan::count;
use heddle_datapath_api::Action;
use heddle_flow::{FlowKey, Vlan};

impl Base<'_> {
    pub(super) fn commit_vlan(&mut self, flow: &FlowKey, out: &mut Output<'_>) {
        let (base_n, flow_n) = (count(self), count(flow));
        let (base, flow) = (self.vlans, flow.vlans);
        let inner = |n: usize, tags: [Vlan; 2]| tags.into_iter().take(n).rev();
        let common = inner(base_n, base)
            .zip(inner(flow_n, flow))
            .take_while(|(a, b)| a == b)
            .count();
        for i in (0..base_n - common).rev() {
            out.emit(Action::PopVlan);
            out.mask.0.vlans[i] = Vlan {
                tpid: u16::MAX,
                tci: u16::MAX,
            };
        }
        for tag in inner(flow_n - common, flow) {
            out.emit(Action::PushVlan {
                tpid: tag.tpid,
                tci: tag.tci,
            });
        }
        self.vlans = flow;
    }
}
