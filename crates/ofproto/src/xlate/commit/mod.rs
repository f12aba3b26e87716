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

use super::ctx::Ctx;
use super::mask::is_mpls;
use heddle_datapath_api::{Action, Masked};
use heddle_flow::FlowKey;

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

impl Ctx<'_> {
    /// Emits the actions that turn the packet into `flow`.
    pub(super) fn commit(&mut self) {
        self.commit_encap();
        if !self.differs() {
            return;
        }
        self.commit_eth();
        let mpls_first = is_mpls(self.base.dl_type) && !is_mpls(self.flow.dl_type);
        if mpls_first {
            self.commit_mpls(false);
        }
        self.commit_nsh();
        self.commit_l3();
        self.commit_l4();
        self.commit_icmp();
        if !mpls_first {
            self.commit_mpls(false);
        }
        self.commit_vlan();
        let priority = diff(
            self.flow.skb_priority,
            &mut self.base.skb_priority,
            &mut self.out.mask.0.skb_priority,
        );
        if !same(&priority) {
            self.emit(Action::SetPriority(priority));
        }
        let mark = diff(
            self.flow.pkt_mark,
            &mut self.base.pkt_mark,
            &mut self.out.mask.0.pkt_mark,
        );
        if !same(&mark) {
            self.emit(Action::SetMark(mark));
        }
    }

    /// Whether anything that is committed differs: the headers, priority and mark.
    fn differs(&self) -> bool {
        const HEADERS: usize = std::mem::offset_of!(FlowKey, dl_dst) / 8;
        let (f, b) = (&self.flow, &*self.base);
        let headers = f.words()[HEADERS..].iter().zip(&b.words()[HEADERS..]);
        headers.fold(0, |any, (f, b)| any | (f ^ b)) != 0
            || (f.packet_type, f.skb_priority, f.pkt_mark) != (b.packet_type, b.skb_priority, b.pkt_mark)
    }

    fn commit_eth(&mut self) {
        if self.flow.packet_type != 0 || self.base.packet_type != 0 {
            return;
        }
        let (f, b, m) = (&self.flow, &mut self.base, &mut self.out.mask.0);
        let src = diff(f.dl_src, &mut b.dl_src, &mut m.dl_src);
        let dst = diff(f.dl_dst, &mut b.dl_dst, &mut m.dl_dst);
        if !same(&src) || !same(&dst) {
            self.emit(Action::SetEth { src, dst });
        }
    }
}
