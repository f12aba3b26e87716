//! Filters that a network card did not take, and that the kernel runs. The card gets them again: it may have
//! room by then.
//!
//! **Order.** Flows with the most packets come first. Each turn offers [`MAX_FLOWS`] of them. The time to the
//! next turn doubles if the card took none, so a card that refuses for good costs little.

use super::installed::Installed;
use crate::Handle;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Number of flows of one turn.
const MAX_FLOWS: usize = 8;
/// Shortest and longest time between two turns. A filter must be that old, too.
const MIN_INTERVAL: Duration = Duration::from_secs(5);
const MAX_INTERVAL: Duration = Duration::from_secs(60);

/// Turns in which a card gets flows again.
#[derive(Debug)]
pub(super) struct Retries {
    next: Option<Instant>,
    interval: Duration,
    /// The flows of the last turn.
    last: Vec<Handle>,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            next: None,
            interval: MIN_INTERVAL,
            last: Vec::new(),
        }
    }
}

impl Retries {
    /// The flows that the card gets again at `now`. `has_card`: whether a device passes filters to a card.
    pub(super) fn due(
        &mut self,
        all: &HashMap<Handle, Installed>,
        has_card: impl Fn(u32) -> bool,
        now: Instant,
    ) -> Vec<Handle> {
        if self.next.is_some_and(|next| now < next) {
            return Vec::new();
        }
        let is_taken = |at: &Handle| all.get(at).is_some_and(|flow| flow.in_card);
        self.interval = match self.last.is_empty() || self.last.iter().any(is_taken) {
            true => MIN_INTERVAL,
            false => (self.interval * 2).min(MAX_INTERVAL),
        };
        let waits = |flow: &Installed| {
            let is_old = now.saturating_duration_since(flow.since) >= MIN_INTERVAL;
            is_old && !flow.in_card && flow.read.packets > 0 && has_card(flow.filter_id.ifindex)
        };
        let mut waiting: Vec<(Handle, u64)> = all
            .iter()
            .filter(|(_, flow)| waits(flow))
            .map(|(at, flow)| (*at, flow.read.packets))
            .collect();
        waiting.sort_unstable_by_key(|(at, packets)| (Reverse(*packets), *at));
        waiting.truncate(MAX_FLOWS);
        self.last = waiting.iter().map(|(at, _)| *at).collect();
        self.next = Some(now + self.interval);
        self.last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rule;
    use crate::tc::message::{Counted, FilterId};
    use crate::tc::side::TcSide;
    use heddle_flow::{FlowKey, FlowMask};

    #[test]
    fn busy_flows_outside_the_card_come_first_and_a_card_that_takes_none_gets_them_less_often() {
        let t0 = Instant::now();
        let after = |s: u64| t0 + Duration::from_secs(s);
        let rule = Rule::new(&FlowKey::default(), &FlowMask::default(), &[]).unwrap();
        let flow = |at: Handle, ifindex: u32, packets: u64| {
            let filter_id = FilterId {
                ifindex,
                chain: 0,
                priority: 7,
                protocol: 0x0800,
                handle: at + 1,
            };
            let mut flow = Installed::new(&rule, filter_id, false, TcSide::Plain);
            flow.since = t0;
            flow.read = Counted {
                packets,
                ..Counted::default()
            };
            (at, flow)
        };
        let mut all: HashMap<Handle, Installed> = (1..=12).map(|at| flow(at, 3, at.into())).collect();
        all.extend([flow(20, 4, 1000), flow(21, 3, 0)]);
        let has_card = |ifindex| ifindex == 3;
        let mut retries = Retries::default();
        assert!(retries.due(&all, has_card, after(1)).is_empty(), "they are new");
        let busiest: Vec<Handle> = (5..=12).rev().collect();
        assert_eq!(retries.due(&all, has_card, after(6)), busiest);
        assert!(retries.due(&all, has_card, after(10)).is_empty());
        // The card took none: 10 s, then 20 s.
        assert_eq!(retries.due(&all, has_card, after(11)), busiest);
        assert!(retries.due(&all, has_card, after(20)).is_empty());
        for at in 5..=12 {
            all.get_mut(&at).unwrap().in_card = true;
        }
        assert_eq!(retries.due(&all, has_card, after(21)), [4, 3, 2, 1]);
        all.get_mut(&4).unwrap().in_card = true;
        assert_eq!(retries.due(&all, has_card, after(26)), [3, 2, 1]);
    }
}
