//! Label stacks: labels at the bottom that both stacks have stay; the others are set, popped or pushed.

use super::super::ctx::Ctx;
use super::super::mask::{eth, is_mpls};
use super::super::mpls::{count, pop, push};
use heddle_datapath_api::{Action, Masked};

impl Ctx<'_> {
    /// `encap`: in front of the whole packet.
    pub(super) fn commit_mpls(&mut self, encap: bool) {
        let (mut base_n, flow_n) = (count(&self.base, None), count(&self.flow, None));
        let (flow, base) = (&self.flow.mpls_lse[..flow_n], &self.base.mpls_lse[..base_n]);
        let mut common = flow
            .iter()
            .rev()
            .zip(base.iter().rev())
            .take_while(|(a, b)| a == b)
            .count();
        let ethertype = self.flow.dl_type;

        while base_n > common {
            if base_n == common + 1 && flow_n > common {
                let lse = self.flow.mpls_lse[flow_n - base_n];
                self.emit(Action::SetMpls(Masked {
                    value: lse,
                    mask: u32::MAX,
                }));
                self.base.mpls_lse[0] = lse;
                common += 1;
            } else {
                // Only the last pop gives the type of the packet behind the labels.
                let behind = if !is_mpls(ethertype) && base_n > 1 {
                    eth::MPLS
                } else {
                    ethertype
                };
                if !pop(&mut self.base, base_n, ethertype, None) {
                    // The key does not show the bottom of the stack. The action that pops so far was refused
                    // before.
                    return;
                }
                self.emit(Action::PopMpls { ethertype: behind });
                base_n -= 1;
            }
        }
        while base_n < flow_n {
            let lse = self.flow.mpls_lse[flow_n - base_n - 1];
            self.emit(if encap {
                Action::AddMpls { lse, ethertype }
            } else {
                Action::PushMpls { lse, ethertype }
            });
            push(&mut self.base, base_n, ethertype, None);
            self.base.mpls_lse[0] = lse;
            base_n += 1;
        }
    }
}
