//! Rules with timeouts, in the order in which they are to be looked at.
//!
//! **Problem.** There may be a million of them, and the expiry looks ten times a second. So a rule is stored
//! under the time at which it is due if no packet comes. When that time has come, the expiry looks at the
//! rule. If packets have put the time off, the rule is stored under its new time.
//!
//! **Invariant.** A rule is never due before the time that it is stored under. Packets that end a connection
//! bring the time forward, though (`fin_timeout`): rules with that action are `hasty`, and looked at each
//! time.
//!
//! **Costs.** A logarithm per rule and timeout. Removed rules stay until their time comes, or until they are
//! half of all.

use super::Linked;
use super::expire::{deadline_ms, due};
use super::refs::for_each;
use crate::model::Rule;
use heddle_openflow::Action;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

/// Up to this number, removed rules are left where they are.
const MAX_REMOVED: usize = if cfg!(test) { 4 } else { 1024 };

/// See the module's text.
#[derive(Default)]
pub(crate) struct Timeouts {
    /// Rules by the last millisecond at which none of them is due if no packet comes.
    calm: BTreeMap<u64, Vec<Linked>>,
    hasty: Vec<Linked>,
    /// Number of rules in both, and maximum number of removed rules among them.
    len: usize,
    removed: usize,
}

/// Whether a rule times out, or may once packets have come.
fn times_out(rule: &Rule) -> bool {
    rule.idle_timeout.load(Relaxed) != 0 || rule.hard_timeout.load(Relaxed) != 0
}

/// Whether packets may bring its time forward. The buckets of a group may have the action, too.
fn is_hasty(rule: &Rule) -> bool {
    let mut hasty = false;
    for_each(rule, |a| {
        hasty |= match a {
            Action::FinTimeout { .. } => true,
            Action::Group(_) => times_out(rule),
            _ => false,
        }
    });
    hasty
}

impl Timeouts {
    /// Adds a rule that was linked, if it may time out.
    pub(super) fn add(&mut self, e: &Linked) {
        let list = if is_hasty(&e.data) {
            &mut self.hasty
        } else if times_out(&e.data) {
            self.calm.entry(deadline_ms(&e.data)).or_default()
        } else {
            return;
        };
        list.push(e.clone());
        self.len += 1;
    }

    /// Counts a rule that was unlinked; its entry stays.
    pub(super) fn removed(&mut self, e: &Linked) {
        self.removed += usize::from(times_out(&e.data) || is_hasty(&e.data));
    }

    /// Takes out the hasty rules of `version`, the last one, that are due as far as is known. The caller adds
    /// a rule again if it turns out not to be due.
    pub(super) fn take_hasty(&mut self, now_ms: u64, version: u64) -> Vec<Linked> {
        if self.removed > MAX_REMOVED.max(self.len / 2) {
            self.retain(|e| e.visible(version));
        }
        let (mut all, before) = (Vec::new(), self.hasty.len());
        self.hasty.retain(|e| {
            let is_due = e.visible(version) && due(&e.data, now_ms).is_some();
            all.extend(is_due.then(|| e.clone()));
            e.visible(version) && !is_due
        });
        self.len -= before - self.hasty.len();
        all
    }

    /// Takes out the other rules that are due, and looks at no more than `most` of them. Returns also whether
    /// it looked at any.
    pub(super) fn take_calm(&mut self, now_ms: u64, version: u64, most: usize) -> (Vec<Linked>, bool) {
        let (mut all, mut looked) = (Vec::new(), 0);
        while looked < most
            && let Some(mut first) = self.calm.first_entry().filter(|e| *e.key() < now_ms)
        {
            let list = first.get_mut();
            let some = list.split_off(list.len().saturating_sub(most - looked));
            if list.is_empty() {
                first.remove();
            }
            looked += some.len();
            self.len -= some.len();
            for e in some.into_iter().filter(|e| e.visible(version)) {
                if due(&e.data, now_ms).is_some() {
                    all.push(e);
                } else {
                    self.add(&e);
                }
            }
        }
        (all, looked > 0)
    }

    fn retain(&mut self, keep: impl Fn(&Linked) -> bool) {
        self.hasty.retain(&keep);
        self.calm.retain(|_, list| {
            list.retain(&keep);
            !list.is_empty()
        });
        self.len = self.hasty.len() + self.calm.values().map(Vec::len).sum::<usize>();
        self.removed = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ofproto;
    use crate::bridge::{Bridge, BridgeConfig, Event, EventSink, FailMode};
    use heddle_flow::Match;
    use heddle_openflow::message::{FlowMod, FlowModCommand, FlowModFlags};
    use heddle_openflow::{Instruction, InstructionSet, Version};
    use heddle_sync::Clock;
    use parking_lot::Mutex;
    use proptest::prelude::*;
    use std::sync::Arc;

    #[derive(Clone, Debug)]
    enum Op {
        /// Number, idle timeout, hard timeout, and whether the rule's packets may shorten them.
        Add(u16, u16, u16, bool),
        Use(u16),
        Shorten(u16),
        Delete(u16),
        Warp(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let n = || 0_u16..12;
        let timeout = || prop_oneof![Just(0_u16), 1_u16..4, Just(60_000)];
        prop_oneof![
            3 => (n(), timeout(), timeout(), any::<bool>()).prop_map(|(n, i, h, f)| Op::Add(n, i, h, f)),
            2 => n().prop_map(Op::Use),
            1 => n().prop_map(Op::Shorten),
            2 => n().prop_map(Op::Delete),
            3 => prop_oneof![1_u64..1500, Just(1000), Just(1001)].prop_map(Op::Warp),
        ]
    }

    fn tcp(n: u16) -> Match {
        let mut m = Match::any();
        (m.key.dl_type, m.mask.0.dl_type) = (0x800, u16::MAX);
        (m.key.nw_proto, m.mask.0.nw_proto) = (6, u8::MAX);
        (m.key.tp_dst, m.mask.0.tp_dst) = (n, u16::MAX);
        m.normalize();
        m
    }

    fn flow_mod(command: FlowModCommand, n: u16, actions: Vec<Action>) -> FlowMod {
        FlowMod::new(
            command,
            tcp(n),
            1,
            InstructionSet(vec![Instruction::Apply(actions)]),
        )
    }

    fn rules(b: &Bridge) -> Vec<Linked> {
        let mut all = Vec::new();
        b.tables[0]
            .rules
            .for_each(b.current_version(), |e| all.push(e.clone()));
        all
    }

    fn of_number(b: &Bridge, n: u16) -> Option<Linked> {
        rules(b).into_iter().find(|e| e.data.wide_match().key.tp_dst == n)
    }

    proptest! {
        /// Against a look at all rules: those that are due go at once, the others stay, and removed rules are
        /// not kept.
        #[test]
        fn as_a_look_at_all_of_them(ops in prop::collection::vec(op(), 1..60)) {
            let clock = Arc::new(Clock::default());
            clock.stop();
            let of = Ofproto::new(clock.clone());
            let config = BridgeConfig { fail_mode: FailMode::Secure, ..BridgeConfig::default() };
            let bridge = of.add_bridge("br0", config);
            for op in ops {
                match op {
                    Op::Add(n, idle, hard, fin) => {
                        let fin = fin.then_some(Action::FinTimeout { idle: 1, hard: 0 });
                        let mut fm = flow_mod(FlowModCommand::Add, n, fin.into_iter().collect());
                        (fm.idle_timeout, fm.hard_timeout) = (idle, hard);
                        bridge.flow_mod(Version::V13, &fm).expect("well formed");
                    }
                    Op::Use(n) => {
                        if let Some(e) = of_number(&bridge, n) {
                            e.data.stats.counted().add(1, 60, clock.now_ms(), 0);
                        }
                    }
                    Op::Shorten(n) => {
                        if let Some(e) = of_number(&bridge, n).filter(|e| is_hasty(&e.data)) {
                            e.data.reduce_timeouts(1, 0);
                        }
                    }
                    Op::Delete(n) => {
                        let fm = flow_mod(FlowModCommand::DeleteStrict, n, Vec::new());
                        bridge.flow_mod(Version::V13, &fm).expect("well formed");
                    }
                    Op::Warp(ms) => clock.warp(ms),
                }
                let now = clock.now_ms();
                let is_due = |e: &Linked| due(&e.data, now).is_some();
                let want = rules(&bridge).iter().filter(|e| is_due(e)).count();
                prop_assert_eq!(bridge.tick(), want);
                prop_assert!(!rules(&bridge).iter().any(is_due));
            }
            bridge.flush_flows();
            bridge.tick();
            bridge.tick();
            prop_assert!(bridge.state.lock().timeouts.len <= MAX_REMOVED);
        }
    }

    /// Rules that time out together do not all go under one lock, nor all in one tick.
    #[test]
    fn many_go_in_pieces() {
        struct Together(Mutex<Vec<usize>>);
        impl EventSink for Together {
            fn events(&self, events: &[Event]) {
                self.0.lock().push(events.len());
            }
        }
        let clock = Arc::new(Clock::default());
        clock.stop();
        let of = Ofproto::new(clock.clone());
        let config = BridgeConfig {
            fail_mode: FailMode::Secure,
            ..BridgeConfig::default()
        };
        let bridge = of.add_bridge("br0", config);
        let together = Arc::new(Together(Mutex::default()));
        let sink: Arc<dyn EventSink> = together.clone();
        bridge.subscribe(&sink);
        for n in 0..100 {
            let mut fm = flow_mod(FlowModCommand::Add, n, Vec::new());
            (fm.hard_timeout, fm.flags) = (1, FlowModFlags::SEND_FLOW_REM);
            bridge.flow_mod(Version::V13, &fm).expect("well formed");
        }
        clock.warp(1001);
        let gone = bridge.tick();
        assert!((1..100).contains(&gone), "{gone} in one tick");
        assert_eq!(gone + bridge.tick(), 100);
        assert_eq!((rules(&bridge).len(), bridge.tick()), (0, 0));
        let together = together.0.lock();
        assert!(
            together.iter().all(|n| *n <= 2) && together.iter().sum::<usize>() == 100,
            "{together:?}"
        );
    }
}
