//! Ports, and ICMP type and code.

use super::super::emit::Output;
use super::super::flow::Base;
use super::super::mask::is_ip_any;
use super::{diff, same};
use heddle_datapath_api::{Action, Masked};
use heddle_flow::FlowKey;
use heddle_wire::eth::ethertype as eth;
use heddle_wire::ip::proto;

impl Base<'_> {
    pub(super) fn commit_l4(&mut self, flow: &FlowKey, out: &mut Output<'_>) {
        let proto = flow.nw_proto;
        if !is_ip_any(self) || !matches!(proto, proto::TCP | proto::UDP | proto::SCTP) {
            return;
        }
        let (f, b, m) = (flow, &mut *self, &mut out.mask.0);
        let src = diff(f.tp_src, &mut b.tp_src, &mut m.tp_src);
        let dst = diff(f.tp_dst, &mut b.tp_dst, &mut m.tp_dst);
        if !same(&src) || !same(&dst) {
            out.emit(Action::SetL4 { proto, src, dst });
        }
    }

    /// Type and code are always written together and whole.
    pub(super) fn commit_icmp(&mut self, flow: &FlowKey, out: &mut Output<'_>) {
        let v6 = match (flow.dl_type, flow.nw_proto) {
            (eth::IP, proto::ICMP) => false,
            (eth::IPV6, proto::ICMPV6) => true,
            _ => return,
        };
        let (f, b) = (flow, &mut *self);
        if (f.tp_src, f.tp_dst) == (b.tp_src, b.tp_dst) {
            return;
        }
        (b.tp_src, b.tp_dst) = (f.tp_src, f.tp_dst);
        out.mask.0.tp_src |= 0xff;
        out.mask.0.tp_dst |= 0xff;
        let whole = |v: u16| Masked {
            value: v.to_be_bytes()[1],
            mask: u8::MAX,
        };
        let (ty, code) = (whole(flow.tp_src), whole(flow.tp_dst));
        out.emit(Action::SetIcmp { v6, ty, code });
    }
}
