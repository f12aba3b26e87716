//! The queue scheduler: receive queues share a worker by cycles, not by packets.
//!
//! Packets cost different amounts. A translation costs ten times a cache hit, and a lookup under many masks
//! may cost as much. The rules here are **work conserving**: if no packets wait, no queue is held back.
//!
//! **Between queues** ([`QueueScheduler`]): deficit round robin in its surplus form. A queue may overdraw its
//! quantum, and pays by waiting. The rule applies while several queues have packets. If a burst of a queue's
//! packets would cost more than [`PORT_ROUND_CYCLES`], by their recent cost, its turn is limited to half of
//! [`QUANTUM_CYCLES`]. So no ring overflows during a long turn of another queue. Cheaper packets always come
//! in bursts: small bursts cost more per packet, so a limit on them would sustain itself. A queue whose turn
//! cost more than [`QUANTUM_CYCLES`] waits while other queues have more packets than one turn took. It waits
//! for the cycles of its turn, times the number of those queues. So each of them gets at least the cycles of
//! that turn. A queue that is drained at each turn never has to wait. The packets of the waiting queue stay
//! in its ring: its sender notices, other senders do not.
//!
//! **Between ports** ([`PortBudget`]): a guest chooses how many queues it has. So the queues of a port share
//! [`PORT_ROUND_CYCLES`] in one round over all queues. Queues that get no turn in a round because of this
//! limit are the first of the port in the next round. The cost of a poll without packets is charged like the
//! cost of packets.
//!
//! **Charging.** These rules hold only if each queue pays for its own packets, although queues with few
//! packets share a burst. A packet without a valid cached entry is measured by itself and charged to its
//! queue. If packets hit the cache but are expensive ([`EXPENSIVE_CYCLES`]: a lookup under many masks), their
//! queue shares no bursts. Otherwise a cheap queue that shares bursts with an expensive one would seem
//! expensive and get short turns.
//!
//! Cost: a few additions per turn, two reads of the cycle counter per cache miss.

use super::misses::MissPolicer;
use heddle_packet::BURST;

/// A turn that costs less delays no other queue: about a burst of cache hits.
pub(crate) const QUANTUM_CYCLES: u64 = 16 * 1024;
/// Maximum charge of one turn.
const MAX_TURN_CYCLES: u64 = 8 * QUANTUM_CYCLES;
/// A packet that costs more does so because of its lookup, not because the burst was small: its queue shares
/// no bursts.
const EXPENSIVE_CYCLES: u64 = QUANTUM_CYCLES / 8;
/// Budget of one port's queues in a round. A single queue has the same budget if queues of other ports may
/// have packets.
const PORT_ROUND_CYCLES: u64 = 4 * QUANTUM_CYCLES;

/// The shared budget of one port's queues on a worker. A round polls each queue once. A *pass* of the port
/// ends when each of its queues had a turn, in one round or in several.
#[derive(Debug, Default)]
pub(crate) struct PortBudget {
    /// Number of queues of the port.
    queues: u32,
    /// Queues that had no turn yet in this pass.
    left: u32,
    /// Number of this pass. A queue that had its turn stores it.
    pass: u64,
    /// The round that `spent` belongs to, and the cycles that the port took in it.
    round: u64,
    spent: u64,
}

impl PortBudget {
    /// Adds a queue; returns the pass number that it stores: the one before, as it had no turn in this
    /// pass.
    pub(crate) fn join(&mut self) -> u64 {
        self.queues += 1;
        self.left += 1;
        self.pass = self.pass.max(1);
        self.pass - 1
    }
    /// Whether a queue that stores the pass number `last` has its turn in `round`; if so, `last` becomes
    /// this pass.
    pub(crate) fn admits(&mut self, last: &mut u64, round: u64) -> bool {
        if self.queues < 2 {
            return true;
        }
        if self.round != round {
            (self.round, self.spent) = (round, 0);
        }
        if self.spent >= PORT_ROUND_CYCLES || *last == self.pass {
            return false;
        }
        *last = self.pass;
        self.left -= 1;
        if self.left == 0 {
            (self.pass, self.left) = (self.pass + 1, self.queues);
        }
        true
    }
    /// Charges the port for a turn that took `cycles`.
    pub(crate) fn charge(&mut self, cycles: u64) {
        self.spent = self.spent.saturating_add(cycles);
    }
}

/// State of the worker's other queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// The worker has one queue.
    None,
    /// No other queue had packets in the last round.
    Quiet,
    /// Some other queue had packets in the last round.
    Active,
}

/// The account of one receive queue.
#[derive(Debug, Default)]
pub(crate) struct QueueScheduler {
    /// The last turn took as many packets as it was allowed to: more are waiting.
    pub(crate) full: bool,
    /// Recent average cost of a packet, cycles.
    packet_cycles: u64,
    /// The queue waits until this time while other queues are full.
    not_before: u64,
    /// Cost of those packets of this turn that were measured one by one, cycles.
    pub(crate) charged: u64,
    pub(crate) misses: MissPolicer,
}

impl QueueScheduler {
    /// Whether the queue has to wait at time `now`, while `others` queues are full.
    pub(crate) fn waits(&self, now: u64, others: usize) -> bool {
        others > 0 && now < self.not_before
    }
    /// Begins a turn that took `packets`; `full`: as many as it was allowed to.
    pub(crate) fn begin_turn(&mut self, packets: usize, full: bool, now: u64) {
        self.full = full;
        self.misses.begin_turn(packets, full, now);
    }
    /// Charges `cycles` of one packet to this queue alone; `missed`: also to the miss budget.
    pub(crate) fn charge(&mut self, cycles: u64, missed: bool, sender: u8) {
        self.charged += cycles;
        if missed {
            self.misses.charge(sender, cycles);
        }
    }
    /// Whether the queue's packets are expensive, so that its bursts are not shared.
    pub(crate) fn is_expensive(&self) -> bool {
        self.packet_cycles > EXPENSIVE_CYCLES
    }
    /// Maximum number of packets of the queue's next turn. It is below a burst if they are expensive and
    /// other queues have packets, or may have some before the turn is over.
    pub(crate) fn max_packets(&self, others: Others) -> usize {
        let (enough, budget) = match others {
            Others::None => return BURST,
            Others::Quiet => (PORT_ROUND_CYCLES, PORT_ROUND_CYCLES),
            Others::Active => (PORT_ROUND_CYCLES, QUANTUM_CYCLES / 2),
        };
        if self.packet_cycles * BURST as u64 <= enough {
            return BURST;
        }
        // Small bursts raise the cost per packet. This minimum lets such a queue return to full bursts.
        let min = match self.packet_cycles / EXPENSIVE_CYCLES {
            0 | 1 => BURST / 4,
            2 | 3 => BURST / 8,
            _ => 1,
        };
        let packets = budget / self.packet_cycles;
        usize::try_from(packets).unwrap_or(BURST).max(min)
    }
    /// Ends the turn of `packets` at `now`, which took `cycles`; `others` queues are full.
    pub(crate) fn end_turn(&mut self, packets: usize, cycles: u64, now: u64, others: usize) {
        self.charged = 0;
        // A longer turn means that the thread was interrupted, which is not the queue's fault.
        let each = cycles.min(4 * MAX_TURN_CYCLES) / (packets as u64).max(1);
        let cycles = cycles.min(MAX_TURN_CYCLES);
        self.packet_cycles = (self.packet_cycles * 7 + each) / 8;
        self.not_before = if cycles > QUANTUM_CYCLES {
            now + cycles.saturating_mul(others.max(1) as u64)
        } else {
            0
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(n: u64) -> usize {
        usize::try_from(n).expect("a burst's worth")
    }

    /// A worker with queues of endless or steady supply, in cycles.
    struct Sim {
        turns: Vec<QueueScheduler>,
        /// (cycles per packet, packets per million cycles or endless)
        kinds: Vec<(u64, Option<u64>)>,
        waiting: Vec<u64>,
        served: Vec<u64>,
        lost: Vec<u64>,
        now: u64,
        fed: u64,
    }

    impl Sim {
        fn new(kinds: &[(u64, Option<u64>)]) -> Self {
            let n = kinds.len();
            Self {
                turns: (0..n).map(|_| QueueScheduler::default()).collect(),
                kinds: kinds.to_vec(),
                waiting: vec![0; n],
                served: vec![0; n],
                lost: vec![0; n],
                now: 1,
                fed: 1,
            }
        }
        fn feed(&mut self) {
            for (i, (_, rate)) in self.kinds.iter().enumerate() {
                match rate {
                    None => self.waiting[i] = 256,
                    Some(rate) => {
                        let before = self.fed * rate / 1_000_000;
                        let more = self.now * rate / 1_000_000 - before;
                        let all = self.waiting[i] + more;
                        self.lost[i] += all.saturating_sub(256);
                        self.waiting[i] = all.min(256);
                    }
                }
            }
            self.fed = self.now;
        }
        fn run(&mut self, cycles: u64) {
            let until = self.now + cycles;
            while self.now < until {
                let full = self.turns.iter().filter(|t| t.full).count();
                self.now += 100;
                for i in 0..self.turns.len() {
                    let others = full - usize::from(self.turns[i].full).min(full);
                    if self.turns[i].waits(self.now, others) {
                        continue;
                    }
                    self.feed();
                    let n = self.waiting[i].min(self.turns[i].max_packets(Others::Active) as u64);
                    let more = n > 0 && n < self.waiting[i];
                    self.waiting[i] -= n;
                    self.served[i] += n;
                    self.turns[i].begin_turn(packets(n), more, self.now);
                    let mut cost = n * self.kinds[i].0;
                    // Another program takes the processor now and then.
                    if n > 0 && self.served[i] % 10_000 < n {
                        cost += 150_000;
                    }
                    self.now += cost;
                    if n > 0 {
                        self.turns[i].end_turn(packets(n), cost, self.now, others);
                    }
                }
            }
        }
    }

    #[test]
    fn expensive_packets_of_one_queue_leave_the_others_what_they_need() {
        // A flow of 300 packets per million cycles (a million a second at 3 GHz) beside packets at up to
        // 10,000 cycles, without end.
        for expensive in [250, 400, 1_000, 2_000, 2_500, 10_000, 40_000] {
            let mut sim = Sim::new(&[(250, Some(333)), (expensive, None)]);
            sim.run(300_000_000);
            let kept = sim.served[0] * 1000 / (sim.served[0] + sim.lost[0] + sim.waiting[0]);
            assert!(kept >= 990, "{expensive}: {kept}, lost {:?}", sim.lost);
            // The processor is never idle.
            let used = sim.served[0] * 250 + sim.served[1] * expensive;
            assert!(used * 10 > 300_000_000 * 9, "{expensive}: {used}");
        }
    }

    #[test]
    fn queues_of_a_port_come_to_their_turns_evenly_and_take_so_much_in_a_round() {
        const QUEUES: usize = 64;
        let mut share = PortBudget::default();
        let mut bears: Vec<u64> = (0..QUEUES).map(|_| share.join()).collect();
        let (mut turns, mut seed) = (vec![0_u64; QUEUES], 1_u64);
        for round in 1..=20_000 {
            let mut spent = 0;
            for i in 0..QUEUES {
                if !share.admits(&mut bears[i], round) {
                    continue;
                }
                turns[i] += 1;
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let cost = (seed >> 33) % (2 * QUANTUM_CYCLES);
                assert!(spent < PORT_ROUND_CYCLES, "round {round}, queue {i}: {spent}");
                spent += cost;
                share.charge(cost);
            }
            assert!(spent > 0, "in each round there is a turn");
        }
        let (least, most) = (turns.iter().min(), turns.iter().max());
        assert!(most.zip(least).is_some_and(|(m, l)| m - l <= 1), "{turns:?}");
        // Cheap turns: each queue is polled in each round.
        let before: u64 = turns.iter().sum();
        for round in 30_000..30_100 {
            for (bears, turns) in bears.iter_mut().zip(&mut turns) {
                *turns += u64::from(share.admits(bears, round));
            }
        }
        let more = turns.iter().sum::<u64>() - before;
        assert!(
            (99 * QUEUES as u64..=100 * QUEUES as u64).contains(&more),
            "{more}"
        );
    }

    #[test]
    fn a_single_queue_is_not_held_back_and_a_new_one_has_its_turn_at_once() {
        let mut share = PortBudget::default();
        let mut first = share.join();
        for round in 1..100 {
            assert!(share.admits(&mut first, round));
            share.charge(100 * PORT_ROUND_CYCLES);
        }
        let mut second = share.join();
        assert!(share.admits(&mut second, 100));
    }

    /// Six cheap packets and one that is looked up under many masks, again and again; bursts are shared as in
    /// `poll`.
    #[test]
    fn a_cheap_queue_does_not_pay_for_an_expensive_one() {
        let (mut cheap, mut expensive, mut now) = (QueueScheduler::default(), QueueScheduler::default(), 1);
        for _ in 0..100 {
            cheap.begin_turn(6, false, now);
            expensive.begin_turn(1, true, now);
            let costs = match expensive.is_expensive() {
                true => [6 * 250, 13_000],
                false => [(6 * 250 + 13_000) * 6 / 7, (6 * 250 + 13_000) / 7],
            };
            now += 6 * 250 + 13_000;
            cheap.end_turn(6, costs[0], now, 1);
            expensive.end_turn(1, costs[1], now, 0);
        }
        assert!(expensive.is_expensive() && !cheap.is_expensive());
        assert_eq!(
            (
                cheap.max_packets(Others::Active),
                expensive.max_packets(Others::Active)
            ),
            (BURST, 1)
        );
    }

    #[test]
    fn packets_that_are_expensive_because_few_came_at_a_time_come_in_bursts_again() {
        for each in [300, 900, 1_500] {
            let mut turn = QueueScheduler::default();
            // New flows, now and then a whole burst of them.
            for _ in 0..20 {
                turn.end_turn(1, 20_000, 0, 1);
            }
            assert_eq!(turn.max_packets(Others::Active), 1);
            for _ in 0..200 {
                let n = turn.max_packets(Others::Active);
                turn.end_turn(n, QUANTUM_CYCLES / 4 + each * n as u64, 0, 1);
            }
            assert_eq!(turn.max_packets(Others::Active), BURST, "{each}");
        }
    }

    #[test]
    fn two_endless_queues_share_by_cycles() {
        let mut sim = Sim::new(&[(250, None), (5_000, None)]);
        sim.run(100_000_000);
        let (cheap, expensive) = (sim.served[0] * 250, sim.served[1] * 5_000);
        assert!(
            cheap * 10 > expensive * 8 && expensive * 2 > cheap,
            "{cheap} {expensive}"
        );
        let mut alone = Sim::new(&[(5_000, None), (250, Some(0))]);
        alone.run(100_000_000);
        assert!(
            alone.served[0] * 5_000 > 95_000_000,
            "nobody waits for a queue without packets"
        );
    }

    /// One ring in which `hits` of 16 packets are established (250 cycles), the others new (2,500; 400 when
    /// dropped), offered at `rate` per million cycles. Returns the shares of established and of new packets
    /// that were forwarded, per mille.
    fn mixed(hits: u64, rate: u64) -> (u64, u64) {
        let mut turn = QueueScheduler::default();
        let (mut now, mut fed, mut waiting, mut lost, mut n) = (1_u64, 1_u64, 0_u64, 0_u64, 0_u64);
        let mut old = (0_u64, 0_u64);
        let mut new = (0_u64, 0_u64);
        while now < 600_000_000 {
            now += 100;
            let more = now * rate / 1_000_000 - fed * rate / 1_000_000;
            fed = now;
            // Packets that find no room are lost, established ones as well as new ones.
            let room = 256 - waiting;
            let gone = more.saturating_sub(room);
            lost += gone;
            (old.1, new.1) = (old.1 + gone * hits / 16, new.1 + gone * (16 - hits) / 16);
            waiting += more.min(room);
            let take = waiting.min(32);
            waiting -= take;
            turn.begin_turn(take as usize, take == 32, now);
            let begin = now;
            for _ in 0..take {
                n += 1;
                if n % 16 < hits {
                    old = (old.0 + 1, old.1 + 1);
                    now += 250;
                } else if turn.misses.admits(0) {
                    turn.charge(2_500, true, 0);
                    new = (new.0 + 1, new.1 + 1);
                    now += 2_500;
                } else {
                    new.1 += 1;
                    now += 400;
                }
            }
            turn.end_turn(take as usize, now - begin, now, 0);
        }
        let _ = lost;
        (old.0 * 1000 / old.1.max(1), new.0 * 1000 / new.1.max(1))
    }

    #[test]
    fn a_burst_of_new_flows_is_no_reason() {
        let mut turn = QueueScheduler::default();
        let mut now = 1;
        // Two hundred full turns of half new flows, then the queue is empty.
        for i in 0..200 {
            turn.begin_turn(32, i < 199, now);
            for _ in 0..16 {
                now += 250;
                assert!(turn.misses.admits(0) || i > 60, "turn {i}");
                turn.charge(2_500, true, 0);
                now += 2_500;
            }
            turn.end_turn(32, 1, now, 0);
        }
        // A thread that is sometimes preempted is not behind.
        let mut turn = QueueScheduler::default();
        for i in 0..200 {
            turn.begin_turn(32, i % 2 == 0, i * 1_000_000);
            assert!(turn.misses.admits(0));
            turn.charge(2_500, true, 0);
        }
    }

    #[test]
    fn new_flows_of_a_queue_do_not_crowd_out_its_established_ones() {
        // A million established and three million new ones a second, far more than can be translated.
        let (old, new) = mixed(4, 1_333);
        assert!(old >= 900, "{old}");
        assert!(new >= 30, "some are served: {new}");
        // This load can be served: new flows take half of the time.
        let (old, new) = mixed(8, 500);
        assert!(old >= 990 && new >= 990, "{old} {new}");
        // New flows alone are as many as can be translated: one per 2,500 cycles.
        let (_, new) = mixed(0, 1_333);
        assert!(new >= 1000 * 380 / 1_333, "{new}");
    }
}
