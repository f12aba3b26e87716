//! Choice of the flows that are offloaded if there are more flows than the back end has room for.
//!
//! While there is room, each flow is offloaded. When there is none, the heaviest waiting flow replaces the
//! lightest offloaded one, if it is more than [`Policy::hysteresis`] times as heavy. So two flows of about
//! the same weight do not take turns: each exchange sends packets of both up for a moment. A round makes at
//! most [`Policy::exchanges`] such exchanges. Weight is packets in the last round; the weight of flows
//! without packets halves with each round. A flow whose weight has fallen to zero is replaced by any flow
//! that has packets. All exchanges of a round together are at most [`Policy::from_rest`].

/// The numbers of the policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Maximum number of offloaded flows, even if the back end has room for more.
    pub most: usize,
    /// Ratio of weights above which a waiting flow replaces an offloaded one.
    pub hysteresis: u64,
    /// Minimum weight of a flow that replaces one that still has weight.
    pub least: u64,
    /// Maximum number of exchanges in a round whose offloaded flow still has weight.
    pub exchanges: usize,
    /// Maximum number of exchanges in a round, with those whose offloaded flow has no weight any more.
    pub from_rest: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            most: 100_000,
            hysteresis: 2,
            least: 16,
            exchanges: 64,
            from_rest: 8192,
        }
    }
}

/// A flow's weight over time.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Weight {
    old: u64,
    new: u64,
}

impl Weight {
    /// Packets were seen in this round.
    pub fn add(&mut self, packets: u64) {
        self.new = self.new.saturating_add(packets);
    }
    /// The round is over.
    pub fn turn(&mut self) {
        self.old = self.new.max(self.old / 2);
        self.new = 0;
    }
    /// Weight at the end of the last round.
    pub fn worth(&self) -> u64 {
        self.old
    }
}

impl Policy {
    /// The exchanges of this round by worth: pairs of a waiting and an offloaded flow. Sorts both lists.
    pub fn exchange<W: Copy, I: Copy>(
        &self,
        waiting: &mut [(W, u64)],
        inside: &mut [(I, u64)],
    ) -> Vec<(W, I)> {
        waiting.sort_by_key(|(_, worth)| std::cmp::Reverse(*worth));
        inside.sort_by_key(|(_, worth)| *worth);
        let mut awake = 0;
        let pairs = waiting.iter().zip(inside.iter()).take(self.from_rest);
        pairs
            .take_while(|((_, heavy), (_, light))| {
                if *light == 0 {
                    return *heavy > 0;
                }
                awake += 1;
                awake <= self.exchanges
                    && *heavy >= self.least
                    && *heavy > light.saturating_mul(self.hysteresis)
            })
            .map(|((w, _), (i, _))| (*w, *i))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heavy_ones_come_in_and_equals_do_not_take_turns() {
        let policy = Policy::default();
        let mut waiting = [('a', 10), ('b', 1000), ('c', 90), ('d', 500)];
        let mut inside = [(1, 50), (2, 300), (3, 5), (4, 50)];
        // d could take the place of 1, c not that of 4.
        let pairs = policy.exchange(&mut waiting, &mut inside);
        assert_eq!(pairs, [('b', 3), ('d', 1)]);
        assert!(
            policy.exchange(&mut [('a', 15)], &mut [(1, 1)]).is_empty(),
            "too light"
        );
        assert!(policy.exchange(&mut [('a', 0)], &mut [(1, 0)]).is_empty());
        let mut waiting: Vec<(u32, u64)> = (0..200).map(|n| (n, 3)).collect();
        let mut inside: Vec<(u32, u64)> = (0..200).map(|n| (n, u64::from(n >= 150))).collect();
        assert_eq!(
            policy.exchange(&mut waiting, &mut inside).len(),
            150,
            "those at rest go"
        );
        waiting.iter_mut().for_each(|(_, worth)| *worth = 99);
        assert_eq!(policy.exchange(&mut waiting, &mut inside).len(), 200);
        inside.iter_mut().for_each(|(_, worth)| *worth += 1);
        assert_eq!(policy.exchange(&mut waiting, &mut inside).len(), policy.exchanges);
        assert!(
            policy.exchange(&mut [('a', 100)], &mut [(1, 50)]).is_empty(),
            "not twice as heavy"
        );
        let one = Policy {
            exchanges: 1,
            ..policy
        };
        assert_eq!(one.exchange(&mut waiting, &mut inside).len(), 1);
    }

    #[test]
    fn weight_is_of_the_last_round_and_fades() {
        let mut w = Weight::default();
        w.add(60);
        w.add(40);
        assert_eq!(w.worth(), 0);
        let worths: Vec<u64> = (0..4)
            .map(|_| {
                w.turn();
                w.worth()
            })
            .collect();
        assert_eq!(worths, [100, 50, 25, 12]);
        w.add(7);
        w.turn();
        assert_eq!(w.worth(), 7);
    }
}
