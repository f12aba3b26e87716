//! Ports, and ICMP type and code.

use super::super::ctx::Ctx;
use super::super::mask::{eth, is_ip_any, proto};
use super::{diff, same};
use heddle_datapath_api::{Action, Masked};

impl Ctx<'_> {
    pub(super) fn commit_l4(&mut self) {
        let proto = self.flow.nw_proto;
        if !is_ip_any(&self.base) || !matches!(proto, proto::TCP | proto::UDP | proto::SCTP) {
            return;
        }
        let (f, b, m) = (&self.flow, &mut self.base, &mut self.out.mask.0);
        let src = diff(f.tp_src, &mut b.tp_src, &mut m.tp_src);
        let dst = diff(f.tp_dst, &mut b.tp_dst, &mut m.tp_dst);
        if !same(&src) || !same(&dst) {
            self.emit(Action::SetL4 { proto, src, dst });
        }
    }

    /// Type and code are always written together and whole.
    pub(super) fn commit_icmp(&mut self) {
        let v6 = match (self.flow.dl_type, self.flow.nw_proto) {
            (eth::IP, proto::ICMP) => false,
            (eth::IPV6, proto::ICMPV6) => true,
            _ => return,
        };
        let (f, b) = (&self.flow, &mut self.base);
        if (f.tp_src, f.tp_dst) == (b.tp_src, b.tp_dst) {
            return;
        }
        (b.tp_src, b.tp_dst) = (f.tp_src, f.tp_dst);
        self.out.mask.0.tp_src |= 0xff;
        self.out.mask.0.tp_dst |= 0xff;
        let whole = |v: u16| Masked {
            value: v.to_be_bytes()[1],
            mask: u8::MAX,
        };
        let (ty, code) = (whole(self.flow.tp_src), whole(self.flow.tp_dst));
        self.emit(Action::SetIcmp { v6, ty, code });
    }
}
