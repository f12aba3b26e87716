//! VLAN actions.

use super::ctx::Ctx;
use super::mask::eth;
use heddle_flow::{FlowKey, N_VLANS, Vlan};

const ALL: Vlan = Vlan {
    tpid: u16::MAX,
    tci: u16::MAX,
};

/// Number of tags.
pub(super) fn count(key: &FlowKey) -> usize {
    key.vlans.iter().take_while(|v| v.present()).count()
}

impl Ctx<'_> {
    /// Removes the outermost tag, if there is one.
    pub(super) fn pop_vlan(&mut self) {
        let n = count(&self.flow);
        // The absence of a tag matters, too.
        self.out.mask.0.vlans[0].tci |= Vlan::CFI;
        for mask in self.out.mask.0.vlans.iter_mut().take(n).skip(1) {
            *mask = ALL;
        }
        self.flow.vlans.copy_within(1.., 0);
        if n > 0 {
            self.flow.vlans[N_VLANS - 1] = Vlan::default();
        }
    }

    /// Puts an outermost tag, VLAN 0.
    pub(super) fn push_vlan(&mut self, tpid: u16) {
        let n = count(&self.flow);
        for mask in self.out.mask.0.vlans.iter_mut().take(n) {
            *mask = ALL;
        }
        self.flow.vlans.copy_within(..N_VLANS - 1, 1);
        self.flow.vlans[0] = Vlan { tpid, tci: Vlan::CFI };
    }

    /// Sets the bits `mask` of the outermost tag. Where there is none, adds one if `push_if_missing`.
    pub(super) fn set_vlan_bits(&mut self, bits: u16, mask: u16, push_if_missing: bool) {
        self.out.mask.0.vlans[0].tci |= mask | Vlan::CFI;
        let tag = &mut self.flow.vlans[0];
        if tag.present() || push_if_missing {
            if tag.tpid == 0 {
                tag.tpid = eth::VLAN;
            }
            tag.tci = tag.tci & !mask | bits & mask | Vlan::CFI;
        }
    }
}
