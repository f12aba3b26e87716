//! Committing: datapath actions for the difference between `base`, the packet as it is, and `flow`, as it
//! should be.
//!
//! The order is Open vSwitch's: the outermost header, Ethernet, the network service header, L3, L4, MPLS,
//! VLAN, priority, mark. If headers behind a popped label are written, MPLS comes right after Ethernet. One
//! action writes all fields of a header that differ.
//!
//! **Masks.** A field that differs is written in the bits that are in the mask by now, since actions read or
//! set those. The other bits are still the packet's own. A bit that differs and is in no mask is added.

mod encap;
mod l3;
mod l4;
mod mpls;
mod vlan;

use super::emit::Output;
use super::flow::Base;
use heddle_datapath_api::{Action, Masked};
use heddle_flow::FlowKey;
use heddle_wire::eth::is_mpls;

/// The value of a field, as bits.
pub(super) trait Bits: Copy + PartialEq + Default {
    fn and(self, o: Self) -> Self;
    fn or(self, o: Self) -> Self;
    fn xor(self, o: Self) -> Self;
}
macro_rules! bits {
    ($($t:ty),*) => {$(
        impl Bits for $t {
            fn and(self, o: Self) -> Self { self & o }
            fn or(self, o: Self) -> Self { self | o }
            fn xor(self, o: Self) -> Self { self ^ o }
        }
    )*};
}
bits!(u8, u16, u32);
impl<const N: usize> Bits for [u8; N]
where
    [u8; N]: Default,
{
    fn and(self, o: Self) -> Self {
        std::array::from_fn(|i| self[i] & o[i])
    }
    fn or(self, o: Self) -> Self {
        std::array::from_fn(|i| self[i] | o[i])
    }
    fn xor(self, o: Self) -> Self {
        std::array::from_fn(|i| self[i] ^ o[i])
    }
}

/// Writes one field. Returns the value and the bits to write, no bits if the field does not differ.
/// Afterwards `base` is as `flow` and `wc` has the bits.
pub(super) fn diff<T: Bits>(flow: T, base: &mut T, wc: &mut T) -> Masked<T> {
    if flow == *base {
        return Masked::default();
    }
    *wc = wc.or(flow.xor(*base));
    *base = flow;
    Masked {
        value: flow.and(*wc),
        mask: *wc,
    }
}

/// Whether [`diff`] found nothing to write.
pub(super) fn same<T: Bits>(m: &Masked<T>) -> bool {
    m.mask == T::default()
}

/// Whether anything that is committed differs: the headers, priority and mark.
fn differs(f: &FlowKey, b: &FlowKey) -> bool {
    const HEADERS: usize = std::mem::offset_of!(FlowKey, dl_dst) / 8;
    let headers = f.words()[HEADERS..].iter().zip(&b.words()[HEADERS..]);
    headers.fold(0, |any, (f, b)| any | (f ^ b)) != 0
        || (f.packet_type, f.skb_priority, f.pkt_mark) != (b.packet_type, b.skb_priority, b.pkt_mark)
}

impl Base<'_> {
    /// Emits the actions that turn the packet into `flow`.
    pub(super) fn commit(&mut self, flow: &FlowKey, out: &mut Output<'_>) {
        self.commit_encap(flow, out);
        if !differs(flow, self) {
            return;
        }
        self.commit_eth(flow, out);
        let mpls_first = is_mpls(self.dl_type) && !is_mpls(flow.dl_type);
        if mpls_first {
            self.commit_mpls(flow, out, false);
        }
        self.commit_nsh(flow, out);
        self.commit_l3(flow, out);
        self.commit_l4(flow, out);
        self.commit_icmp(flow, out);
        if !mpls_first {
            self.commit_mpls(flow, out, false);
        }
        self.commit_vlan(flow, out);
        let priority = diff(
            flow.skb_priority,
            &mut self.skb_priority,
            &mut out.mask.0.skb_priority,
        );
        if !same(&priority) {
            out.emit(Action::SetPriority(priority));
        }
        let mark = diff(flow.pkt_mark, &mut self.pkt_mark, &mut out.mask.0.pkt_mark);
        if !same(&mark) {
            out.emit(Action::SetMark(mark));
        }
    }

    fn commit_eth(&mut self, flow: &FlowKey, out: &mut Output<'_>) {
        if flow.packet_type != 0 || self.packet_type != 0 {
            return;
        }
        let (f, b, m) = (flow, &mut *self, &mut out.mask.0);
        let src = diff(f.dl_src, &mut b.dl_src, &mut m.dl_src);
        let dst = diff(f.dl_dst, &mut b.dl_dst, &mut m.dl_dst);
        if !same(&src) || !same(&dst) {
            out.emit(Action::SetEth { src, dst });
        }
    }
}
