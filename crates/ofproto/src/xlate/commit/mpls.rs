//! Label stacks: labels at the bottom that both stacks have stay; the others are set, popped or pushed.

use super::super::emit::Output;
use super::super::flow::Base;
use super::super::mpls::{count, pop, push};
use heddle_datapath_api::{Action, Masked};
use heddle_flow::FlowKey;
use heddle_wire::eth::{ethertype as eth, is_mpls};

impl Base<'_> {
    /// `encap`: in front of the whole packet.
    pub(super) fn commit_mpls(&mut self, flow: &FlowKey, out: &mut Output<'_>, encap: bool) {
        let (mut base_n, flow_n) = (count(self, None), count(flow, None));
        let (wanted, present) = (&flow.mpls_lse[..flow_n], &self.mpls_lse[..base_n]);
        let mut common = wanted
            .iter()
            .rev()
            .zip(present.iter().rev())
            .take_while(|(a, b)| a == b)
            .count();
        let ethertype = flow.dl_type;

        while base_n > common {
            if base_n == common + 1 && flow_n > common {
                let lse = flow.mpls_lse[flow_n - base_n];
                out.emit(Action::SetMpls(Masked {
                    value: lse,
                    mask: u32::MAX,
                }));
                self.mpls_lse[0] = lse;
                common += 1;
            } else {
                // Only the last pop gives the type of the packet behind the labels.
                let behind = if !is_mpls(ethertype) && base_n > 1 {
                    eth::MPLS
                } else {
                    ethertype
                };
                if !pop(self, base_n, ethertype, None) {
                    // The key does not show the bottom of the stack. The action that pops so far was refused
                    // before.
                    return;
                }
                out.emit(Action::PopMpls { ethertype: behind });
                base_n -= 1;
            }
        }
        while base_n < flow_n {
            let lse = flow.mpls_lse[flow_n - base_n - 1];
            out.emit(if encap {
                Action::AddMpls { lse, ethertype }
            } else {
                Action::PushMpls { lse, ethertype }
            });
            push(self, base_n, ethertype, None);
            self.mpls_lse[0] = lse;
            base_n += 1;
        }
    }
}
