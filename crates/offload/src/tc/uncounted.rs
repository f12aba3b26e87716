//! Flows of which a network card counts no packet, although packets came before and come afterwards.
//!
//! **Problem.** A card may take a filter and then drop its packets, or forward them without counting. The
//! switch sees neither: the flow looks idle, and is evicted. The next packet comes to the switch again.
//!
//! **Rule.** A card counts no packet of a flow for [`MIN_STAY`], and the flow comes back within
//! [`MAX_ABSENCE`] of its removal. Then the card does not get the flow again for a while. The time doubles
//! with each further turn. This happens to flows with few packets, too, which cost the switch little.

use super::installed::Installed;
use crate::Why;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Minimum time in a card without a packet.
const MIN_STAY: Duration = Duration::from_secs(5);
/// Longest time after which a flow has come back.
const MAX_ABSENCE: Duration = Duration::from_secs(30);
/// First and longest time for which a card does not get a flow again.
const MIN_PENALTY: Duration = Duration::from_secs(60);
const MAX_PENALTY: Duration = Duration::from_secs(3600);
/// Maximum number of flows that are remembered.
const MAX_FLOWS: usize = 8192;

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The card had the flow until then.
    Gone(Instant),
    /// The card does not get it until then.
    Kept(Instant),
    /// The card has another try.
    Tried,
}

/// The flows, by [`Installed::id`].
#[derive(Debug, Default)]
pub(super) struct Uncounted(HashMap<u64, (Phase, Duration)>);

impl Uncounted {
    /// Checks whether a card may get a flow.
    ///
    /// # Errors
    /// The card may not, at `now`.
    pub(super) fn check(&mut self, id: u64, now: Instant) -> Result<(), Why> {
        let Some((state, penalty)) = self.0.get_mut(&id) else {
            return Ok(());
        };
        match *state {
            Phase::Gone(since) if now.duration_since(since) <= MAX_ABSENCE => {
                log::info!(target: "netdev_offload", per_min = 5, burst = 5; "tc: a network card counted no packet of a flow that has packets; workers forward it for {} s", penalty.as_secs());
                *state = Phase::Kept(now + *penalty);
                *penalty = (*penalty * 2).min(MAX_PENALTY);
                Err(Why::NotCounted)
            }
            Phase::Kept(until) if now < until => Err(Why::NotCounted),
            Phase::Gone(_) => {
                self.0.remove(&id);
                Ok(())
            }
            Phase::Kept(_) | Phase::Tried => {
                *state = Phase::Tried;
                Ok(())
            }
        }
    }
    /// A flow's filter was removed.
    pub(super) fn removed(&mut self, flow: &Installed, now: Instant) {
        let counted = flow.read.packets > 0;
        if counted || !flow.in_card || now.duration_since(flow.since) < MIN_STAY {
            if counted {
                self.0.remove(&flow.id);
            }
            return;
        }
        if self.0.len() >= MAX_FLOWS {
            self.0.clear();
        }
        let entry = self.0.entry(flow.id).or_insert((Phase::Tried, MIN_PENALTY));
        entry.0 = Phase::Gone(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rule;
    use crate::tc::installed::id_of;
    use crate::tc::message::{Counted, FilterId};
    use crate::tc::side::TcSide;
    use heddle_flow::{FlowKey, FlowMask};

    fn flow(since: Instant, packets: u64, in_card: bool) -> (u64, Installed) {
        let rule = Rule::new(&FlowKey::default(), &FlowMask::default(), &[]).unwrap();
        let filter_id = FilterId {
            ifindex: 3,
            chain: 0,
            priority: 7,
            protocol: 0x0800,
            handle: 1,
        };
        let mut flow = Installed::new(&rule, filter_id, false, TcSide::Plain);
        (flow.since, flow.in_card) = (since, in_card);
        flow.read = Counted {
            packets,
            ..Counted::default()
        };
        (id_of(&rule), flow)
    }

    #[test]
    fn a_flow_without_counts_that_comes_back_stays_out_for_a_while() {
        let t0 = Instant::now();
        let after = |s: u64| t0 + Duration::from_secs(s);
        let mut all = Uncounted::default();
        let (id, silent) = flow(t0, 0, true);
        assert_eq!(all.check(id, t0), Ok(()));
        all.removed(&silent, after(10));
        assert_eq!(all.check(id, after(11)), Err(Why::NotCounted));
        assert_eq!(all.check(id, after(70)), Err(Why::NotCounted));
        assert_eq!(all.check(id, after(71)), Ok(()), "another try");
        let (_, again) = flow(after(71), 0, true);
        all.removed(&again, after(90));
        assert_eq!(all.check(id, after(91)), Err(Why::NotCounted));
        assert_eq!(all.check(id, after(210)), Err(Why::NotCounted), "twice as long");
        assert_eq!(all.check(id, after(211)), Ok(()));
        // A card that counts is trusted again.
        let (_, counted) = flow(after(211), 5, true);
        all.removed(&counted, after(220));
        assert!(all.0.is_empty());
    }

    #[test]
    fn idle_flows_short_ones_and_flows_of_the_kernel_are_no_concern() {
        let t0 = Instant::now();
        let after = |s: u64| t0 + Duration::from_secs(s);
        let mut all = Uncounted::default();
        let (id, silent) = flow(t0, 0, true);
        all.removed(&silent, after(10));
        assert_eq!(all.check(id, after(60)), Ok(()), "it was idle");
        all.removed(&silent, after(4));
        assert_eq!(all.check(id, after(5)), Ok(()), "it was there for a moment");
        let (_, software) = flow(t0, 0, false);
        all.removed(&software, after(10));
        assert_eq!(all.check(id, after(11)), Ok(()));
    }
}
