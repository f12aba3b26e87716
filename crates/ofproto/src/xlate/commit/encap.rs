//! Pushing and popping the outermost header.

use super::super::ctx::{Ctx, Pending};
use super::super::encap::is_label_stack;
use super::super::mask::eth;
use heddle_datapath_api::{Action, Masked, NshHeader};
use heddle_flow::{Nsh, packet_type};
use heddle_wire::nsh::MD_TYPE_1;

impl Ctx<'_> {
    pub(super) fn commit_encap(&mut self) {
        let pending = self.pending.take();
        if pending.is_none() && self.flow.packet_type == self.base.packet_type {
            return;
        }
        let (from, to) = (self.base.packet_type, self.flow.packet_type);
        match pending {
            Some(Pending::Encap(options)) => self.commit_push(to, options),
            _ if from == packet_type::ETHERNET && to >> 16 == packet_type::NS_ETHERTYPE => {
                self.emit(Action::PopEth);
                self.base.packet_type = to;
                (self.base.dl_src, self.base.dl_dst) = ([0; 6], [0; 6]);
            }
            Some(Pending::Decap) if from == packet_type::NSH => self.emit(Action::PopNsh),
            Some(Pending::Decap) => {
                self.commit_mpls(false);
                if is_label_stack(to) {
                    self.base.packet_type = to;
                }
            }
            // The packet is recirculated, and parsed then.
            None => return,
        }
        self.restacked += 1;
    }

    fn commit_push(&mut self, ty: u32, options: Vec<u8>) {
        let (f, b) = (&self.flow, &mut self.base);
        b.packet_type = ty;
        match ty {
            packet_type::ETHERNET => {
                (b.dl_src, b.dl_dst) = (f.dl_src, f.dl_dst);
                let (src, dst) = (f.dl_src, f.dl_dst);
                self.emit(Action::PushEth { src, dst });
            }
            packet_type::NSH => {
                b.copy_headers(f);
                let fields = f.nsh;
                self.emit(Action::PushNsh(NshHeader { fields, options }));
            }
            _ => {
                (b.dl_src, b.dl_dst) = ([0; 6], [0; 6]);
                self.commit_mpls(true);
            }
        }
    }

    pub(super) fn commit_nsh(&mut self) {
        if self.flow.dl_type != eth::NSH || self.flow.nsh == self.base.nsh {
            return;
        }
        let (f, b) = (self.flow.nsh, self.base.nsh);
        let wc = &mut self.out.mask.0.nsh;
        *wc = *wc | (f ^ b);
        let mut mask = Nsh {
            mdtype: 0,
            np: 0,
            ..*wc
        };
        if f.mdtype != MD_TYPE_1 {
            // No context words are written.
            mask = Nsh {
                c1: 0,
                c2: 0,
                c3: 0,
                c4: 0,
                ..mask
            };
        }
        self.base.nsh = f;
        if mask != Nsh::default() {
            let value = f & mask;
            self.emit(Action::SetNsh(Masked { value, mask }));
        }
    }
}
