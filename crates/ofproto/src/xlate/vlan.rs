//! VLAN actions.

use super::flow::Flow;
use heddle_flow::{FlowKey, FlowMask, N_VLANS, Vlan};
use heddle_wire::eth::ethertype as eth;

const ALL: Vlan = Vlan {
    tpid: u16::MAX,
    tci: u16::MAX,
};

/// Number of tags.
pub(super) fn count(key: &FlowKey) -> usize {
    key.vlans.iter().take_while(|v| v.present()).count()
}

impl Flow {
    /// Removes the outermost tag, if there is one.
    pub(super) fn pop_vlan(&mut self, mask: &mut FlowMask) {
        let n = count(self);
        // The absence of a tag matters, too.
        mask.0.vlans[0].tci |= Vlan::CFI;
        for tag in mask.0.vlans.iter_mut().take(n).skip(1) {
            *tag = ALL;
        }
        self.vlans.copy_within(1.., 0);
        if n > 0 {
            self.vlans[N_VLANS - 1] = Vlan::default();
        }
    }

    /// Puts an outermost tag, VLAN 0.
    pub(super) fn push_vlan(&mut self, mask: &mut FlowMask, tpid: u16) {
        let n = count(self);
        for tag in mask.0.vlans.iter_mut().take(n) {
            *tag = ALL;
        }
        self.vlans.copy_within(..N_VLANS - 1, 1);
        self.vlans[0] = Vlan { tpid, tci: Vlan::CFI };
    }

    /// Sets the bits `mask` of the outermost tag. Where there is none, adds one if `push_if_missing`.
    pub(super) fn set_vlan_bits(&mut self, wc: &mut FlowMask, bits: u16, mask: u16, push_if_missing: bool) {
        wc.0.vlans[0].tci |= mask | Vlan::CFI;
        let tag = &mut self.vlans[0];
        if tag.present() || push_if_missing {
            if tag.tpid == 0 {
                tag.tpid = eth::VLAN;
            }
            tag.tci = tag.tci & !mask | bits & mask | Vlan::CFI;
        }
    }
}
