//! Pushing and popping the outermost header.

use super::super::emit::Output;
use super::super::encap::is_label_stack;
use super::super::flow::{Base, Pending};
use heddle_datapath_api::{Action, Masked, NshHeader};
use heddle_flow::{FlowKey, Nsh, packet_type};
use heddle_wire::eth::ethertype as eth;
use heddle_wire::nsh::MD_TYPE_1;

impl Base<'_> {
    pub(super) fn commit_encap(&mut self, flow: &FlowKey, out: &mut Output<'_>) {
        let pending = self.pending.take();
        if pending.is_none() && flow.packet_type == self.packet_type {
            return;
        }
        let (from, to) = (self.packet_type, flow.packet_type);
        match pending {
            Some(Pending::Encap(options)) => self.commit_push(flow, out, to, options),
            _ if from == packet_type::ETHERNET && to >> 16 == packet_type::NS_ETHERTYPE => {
                out.emit(Action::PopEth);
                self.packet_type = to;
                (self.dl_src, self.dl_dst) = ([0; 6], [0; 6]);
            }
            Some(Pending::Decap) if from == packet_type::NSH => out.emit(Action::PopNsh),
            Some(Pending::Decap) => {
                self.commit_mpls(flow, out, false);
                if is_label_stack(to) {
                    self.packet_type = to;
                }
            }
            // The packet is recirculated, and parsed then.
            None => return,
        }
        out.restacked += 1;
    }

    fn commit_push(&mut self, flow: &FlowKey, out: &mut Output<'_>, ty: u32, options: Vec<u8>) {
        let (f, b) = (flow, &mut *self);
        b.packet_type = ty;
        match ty {
            packet_type::ETHERNET => {
                (b.dl_src, b.dl_dst) = (f.dl_src, f.dl_dst);
                let (src, dst) = (f.dl_src, f.dl_dst);
                out.emit(Action::PushEth { src, dst });
            }
            packet_type::NSH => {
                b.copy_headers(f);
                let fields = f.nsh;
                out.emit(Action::PushNsh(NshHeader { fields, options }));
            }
            _ => {
                (b.dl_src, b.dl_dst) = ([0; 6], [0; 6]);
                self.commit_mpls(flow, out, true);
            }
        }
    }

    pub(super) fn commit_nsh(&mut self, flow: &FlowKey, out: &mut Output<'_>) {
        if flow.dl_type != eth::NSH || flow.nsh == self.nsh {
            return;
        }
        let (f, b) = (flow.nsh, self.nsh);
        let wc = &mut out.mask.0.nsh;
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
        self.nsh = f;
        if mask != Nsh::default() {
            let value = f & mask;
            out.emit(Action::SetNsh(Masked { value, mask }));
        }
    }
}
