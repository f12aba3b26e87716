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
        let longer = self.packet_len.is_some_and(|len| len > usize::from(c.pkt_len));
        c.dst.set(&mut self.flow, FieldValue::from_u64(longer.into()));
        self.slow();
    }

    pub(super) fn check_pkt_larger(&mut self, c: &CheckPktLarger, rest: &[Step<'_>]) {
        if !self.has_room("check_pkt_larger") {
            return;
        }
        self.commit();
        let (stack, set) = (self.stack.clone(), self.action_set.clone());
        let (flow, base, was_mpls) = (self.flow, self.base.clone(), self.was_mpls);
        let (exit, conntracked) = (self.exit, self.conntracked);
        let [greater, less_equal] = [1, 0].map(|larger| {
            self.exit = exit;
            let at = self.out.actions.len();
            c.dst.set(&mut self.flow, FieldValue::from_u64(larger));
            self.run_list(rest, true);
            if !self.freezing {
                self.run_action_set();
            }
            if self.freezing {
                self.finish_freezing();
            }
            self.stack.clone_from(&stack);
            self.action_set.clone_from(&set);
            (self.flow, self.base, self.was_mpls) = (flow, base.clone(), was_mpls);
            self.conntracked = conntracked;
            self.pending = None;
            self.out.actions.drain(at..).collect()
        });
        self.exit = exit;
        self.emit(Action::CheckPktLen {
            len: c.pkt_len,
            greater,
            less_equal,
        });
    }
}
