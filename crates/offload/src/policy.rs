//! Which flows are worth a place in a back end that has fewer places than there are flows.
//!
//! While there is room, whoever comes gets in. When there is none, the heaviest that waits takes the place of
//! the lightest that is in, if it is [`Policy::hysteresis`] times as heavy: so two flows of about the same
//! weight do not take turns, since each exchange sends packets of both up for a moment. A round exchanges at
//! most [`Policy::exchanges`]. Weight is packets in the last round; the weight of those that rest halves with
//! each round. One that has rested until nothing is left of it gives its place to whoever has packets: of
//! such exchanges a round makes [`Policy::from_rest`].

/// The numbers of the policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Most flows offloaded, however many the back end could take.
    pub most: usize,
    /// How many times as heavy one has to be to take another's place.
    pub hysteresis: u64,
    /// Least weight of one that takes another's place.
    pub least: u64,
    /// Most exchanges in a round.
    pub exchanges: usize,
    /// Most exchanges in a round of which the one that goes out has rested.
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
    /// What it was worth, at the end of the last round.
    pub fn worth(&self) -> u64 {
        self.old
    }
}

impl Policy {
    /// Which of those that wait (first of each pair) take the place of which that are in, by worth. Both
    /// lists get sorted.
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
