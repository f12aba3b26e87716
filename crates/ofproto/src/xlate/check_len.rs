//! `check_pkt_larger`: the rest of the list runs twice, for packets that are longer and for those that are
//! not.
//!
//! The packet's length is not part of the key, so the translation has both branches; the datapath chooses per
//! packet.

use super::actions::Step;
use super::ctx::Ctx;
use heddle_datapath_api::Action;
use heddle_flow::FieldValue;
use heddle_openflow::action::CheckPktLarger;

impl Ctx<'_> {
    /// Decides for this packet alone, on a datapath that does not choose.
    pub(super) fn check_this_packet(&mut self, c: &CheckPktLarger) {
        let longer = self
            .input
            .packet
            .is_some_and(|p| p.len() > usize::from(c.pkt_len));
        c.dst.set(&mut self.flow, FieldValue::from_u64(longer.into()));
        self.out.slow();
    }

    pub(super) fn check_pkt_larger(&mut self, c: &CheckPktLarger, rest: &[Step<'_>]) {
        if !self.has_room("check_pkt_larger") {
            return;
        }
        self.commit();
        let (stack, set) = (self.at.stack.clone(), self.at.action_set.clone());
        let (flow, base, exit) = (self.flow, self.base.clone(), self.rest.exit);
        let [greater, less_equal] = [1, 0].map(|larger| {
            self.rest.exit = exit;
            let at = self.out.actions.len();
            c.dst.set(&mut self.flow, FieldValue::from_u64(larger));
            self.run_list(rest, true);
            self.end_pipeline();
            self.at.stack.clone_from(&stack);
            self.at.action_set.clone_from(&set);
            (self.flow, self.base) = (flow, base.clone());
            self.out.actions.drain(at..).collect()
        });
        self.rest.exit = exit;
        self.out.emit(Action::CheckPktLen {
            len: c.pkt_len,
            greater,
            less_equal,
        });
    }
}
