//! The queue scheduler: receive queues share a worker by cycles, not by packets. Packets of new flows in a
//! queue do not crowd out those of established flows.
//!
//! Packets cost different amounts. A translation costs ten times a cache hit, and a lookup under many masks
//! may cost as much. Three rules keep expensive packets from starving the others. They are **work
//! conserving**: if no packets wait, no queue is held back.
//!
//! 1. **Between queues.** The rule applies while several queues have packets. If a burst of a queue's packets
//!    would cost more than [`ROUND`] cycles, by their recent cost, its turn is limited to half of
//!    [`QUANTUM`]. So no ring overflows during a long turn of another queue. Cheaper packets always come in
//!    bursts: small bursts cost more per packet, so a limit on them would sustain itself. A queue whose turn
//!    cost more than [`QUANTUM`] cycles waits while other queues have more packets than one turn took. It
//!    waits for the cycles of its turn, times the number of those queues. So each of them gets at least the
//!    cycles of that turn. A queue that is drained at each turn never has to wait. The packets of the waiting
//!    queue stay in its ring: its sender notices, other senders do not.
//! 2. **Within a queue: the miss budget.** In one ring, packets of established flows wait behind those of new
//!    flows. A queue is behind if it has packets of established flows and most of its turns leave packets in
//!    the ring. After [`BEHIND_WINDOWS`] such windows of [`WINDOW`] cycles in a row, its misses may take only
//!    half of the time. Each further such window halves the share, down to a sixteenth; it grows again when
//!    the queue keeps up. Misses beyond the share are dropped under a reason of their own
//!    (`datapath_drop_miss_budget`). In the ring they would delay the packets behind them, and the sender of
//!    a new flow repeats its first packet. A queue of new flows only is not limited.
//!
//! 3. **Between ports.** A guest chooses how many queues it has. So the queues of a port share [`ROUND`]
//!    cycles in one round over all queues. Queues that get no turn in a round because of this limit are the
//!    first of the port in the next round ([`PortBudget`]). The cost of a poll without packets is charged
//!    like the cost of packets.
//!
//! **Charging.** These rules hold only if each queue pays for its own packets, although queues with few
//! packets share a burst. A packet without a valid cached entry is measured by itself and charged to its
//! queue. If packets hit the cache but are expensive ([`DEAR`]: a lookup under many masks), their queue
//! shares no bursts. Otherwise a cheap queue that shares bursts with an expensive one would seem expensive
//! and get short turns.
//!
//! Cost: a few additions per turn, two reads of the cycle counter per cache miss. Pure: the caller passes the
//! time.

use super::peers::Peers;
use heddle_packet::BURST;

/// A turn that costs less delays no other queue: about a burst of cache hits.
pub(super) const QUANTUM: u64 = 16 * 1024;
/// Maximum charge of one turn, cycles.
const MOST: u64 = 8 * QUANTUM;
/// Window in which the scheduler measures whether a queue keeps up, cycles.
pub(super) const WINDOW: u64 = 1 << 20;
/// Minimum share of misses, as a negative power of two: one sixteenth.
const LEAST: u8 = 4;
/// Windows in a row that a queue has to be behind before its misses are limited: one burst of new flows is
/// not enough.
const BEHIND_WINDOWS: u8 = 4;
/// Minimum number of turns in a window for a decision.
const TURNS: u32 = 16;
/// Windows in a row in which a queue has to keep up before its share is doubled.
const CALM: u8 = 16;

/// A packet that costs more does so because of its lookup, not because the burst was small: its queue shares
/// no bursts.
const DEAR: u64 = QUANTUM / 8;

/// Budget of one port's queues in a round, cycles. A single queue has the same budget if queues of other
/// ports may have packets.
const ROUND: u64 = 4 * QUANTUM;

/// The shared budget of one port's queues on a worker. A round polls each queue once. A *cycle* of the port
/// ends when each of its queues had a turn, in one round or in several.
#[derive(Debug, Default)]
pub(super) struct PortBudget {
    /// Number of queues of the port.
    queues: u32,
    /// Queues that had no turn yet in this cycle.
    left: u32,
    /// Number of this cycle. A queue that had its turn stores it.
    cycle: u64,
    /// The round that `spent` belongs to, and the cycles that the port took in it.
    round: u64,
    spent: u64,
}

impl PortBudget {
    /// Adds a queue; returns the cycle number that it stores: the one before, as it had no turn in this
    /// cycle.
    pub(super) fn join(&mut self) -> u64 {
        self.queues += 1;
        self.left += 1;
        self.cycle = self.cycle.max(1);
        self.cycle - 1
    }
    /// Whether a queue that stores the cycle number `last` has its turn in `round`; if so, `last` becomes
    /// this cycle.
    pub(super) fn admits(&mut self, last: &mut u64, round: u64) -> bool {
        if self.queues < 2 {
            return true;
        }
        if self.round != round {
            (self.round, self.spent) = (round, 0);
        }
        if self.spent >= ROUND || *last == self.cycle {
            return false;
        }
        *last = self.cycle;
        self.left -= 1;
        if self.left == 0 {
            (self.cycle, self.left) = (self.cycle + 1, self.queues);
        }
        true
    }
    /// Charges the port for a turn that took `cycles`.
    pub(super) fn spend(&mut self, cycles: u64) {
        self.spent = self.spent.saturating_add(cycles);
    }
}

/// State of the worker's other queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    /// The worker has one queue.
    None,
    /// No other queue had packets in the last round.
    Quiet,
    /// Some other queue had packets in the last round.
    Active,
}

/// The account of one receive queue.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// The last turn took as many packets as it was allowed to: more are waiting.
    full: bool,
    /// Recent average cost of a packet, cycles.
    dear: u64,
    /// The queue waits until this time while other queues are full.
    not_before: u64,
    /// Misses may take one part in 2^`shift` of the time.
    shift: u8,
    /// Cycles that misses may take now.
    credit: u64,
    /// Time of the last turn.
    last: u64,
    /// The window: its start, its turns, its full turns, its packets, its misses.
    start: u64,
    turns: u32,
    full_turns: u32,
    packets: u32,
    missed: u32,
    /// Cycles that misses took in the window.
    window_spent: u64,
    /// The same by sender.
    peers: Peers,
    /// Windows in a row in which the queue was behind, and in which it kept up.
    behind: u8,
    calm: u8,
    /// Cost of those packets of this turn that were measured one by one, cycles.
    charged: u64,
}

impl Turn {
    /// Whether the queue has to wait at time `now`, while `others` queues are full.
    pub(super) fn waits(&self, now: u64, others: usize) -> bool {
        others > 0 && now < self.not_before
    }
    pub(super) fn is_full(&self) -> bool {
        self.full
    }
    /// Begins a turn that took `packets`; `full`: as many as it was allowed to.
    pub(super) fn took(&mut self, packets: usize, full: bool, now: u64) {
        self.full = full;
        if packets == 0 && self.shift == 0 {
            return;
        }
        self.turns += 1;
        self.full_turns += u32::from(full);
        self.packets += u32::try_from(packets).unwrap_or(u32::MAX);
        if self.shift > 0 {
            // Unused credit is kept for one window.
            let gained = now.saturating_sub(self.last).min(WINDOW) >> self.shift;
            self.credit = (self.credit + gained).min(WINDOW >> self.shift);
        }
        self.last = now;
        if now.saturating_sub(self.start) >= WINDOW {
            self.judge(now);
        }
    }
    fn judge(&mut self, now: u64) {
        let established = self.packets - self.missed.min(self.packets);
        // Misses are limited only if they took, or would take, a relevant part of the time.
        let dear = self.shift > 0 || self.window_spent << LEAST > now.saturating_sub(self.start);
        let behind = self.turns >= TURNS
            && self.full_turns * 4 > self.turns * 3
            && dear
            && self.missed > 0
            && established * 8 >= self.packets;
        if behind {
            self.calm = 0;
            self.behind = (self.behind + 1).min(BEHIND_WINDOWS);
            if self.behind == BEHIND_WINDOWS && self.shift < LEAST {
                self.shift += 1;
                self.credit = WINDOW >> self.shift;
            }
        } else {
            self.behind = 0;
            self.calm = (self.calm + 1).min(CALM);
            if self.shift > 0 && (self.calm == CALM || self.missed == 0) {
                (self.shift, self.calm) = (self.shift - 1, 0);
            }
        }
        (self.start, self.turns, self.full_turns, self.packets, self.missed) = (now, 0, 0, 0, 0);
        self.window_spent = 0;
        self.peers.begin();
    }
    /// Whether a miss of the sender `peer` may be translated. It is counted either way.
    pub(super) fn may_miss(&mut self, peer: u8) -> bool {
        self.missed += 1;
        self.shift == 0 || self.peers.admits(peer, WINDOW >> self.shift) && self.credit > 0
    }
    /// Charges `cycles` of one packet to this queue alone; `missed`: also to the miss budget.
    pub(super) fn charge(&mut self, cycles: u64, missed: bool, peer: u8) {
        self.charged += cycles;
        if missed {
            self.window_spent += cycles;
            self.credit = self.credit.saturating_sub(cycles);
            self.peers.spend(peer, cycles);
        }
    }
    /// Cycles charged to single packets in this turn.
    pub(super) fn charged(&self) -> u64 {
        self.charged
    }
    /// Whether the queue's packets are expensive, so that its bursts are not shared.
    pub(super) fn is_dear(&self) -> bool {
        self.dear > DEAR
    }
    /// Maximum number of packets of the queue's next turn. It is below a burst if they are expensive and
    /// other queues have packets, or may have some before the turn is over.
    pub(super) fn most(&self, others: Others) -> usize {
        let (enough, budget) = match others {
            Others::None => return BURST,
            Others::Quiet => (ROUND, ROUND),
            Others::Active => (ROUND, QUANTUM / 2),
        };
        if self.dear * BURST as u64 <= enough {
            return BURST;
        }
        // Small bursts raise the cost per packet. This minimum lets such a queue return to full bursts.
        let least = match self.dear / DEAR {
            0 | 1 => BURST / 4,
            2 | 3 => BURST / 8,
            _ => 1,
        };
        usize::try_from(budget / self.dear).unwrap_or(BURST).max(least)
    }
    /// Charges a turn without packets that took `cycles`, unless that is little.
    pub(super) fn barren(&mut self, cycles: u64, now: u64, others: usize) {
        if cycles > QUANTUM / 4 {
            self.over(0, cycles, now, others);
        }
    }
    /// Ends the turn of `packets` at `now`, which took `cycles`; `others` queues are full.
    pub(super) fn over(&mut self, packets: usize, cycles: u64, now: u64, others: usize) {
        self.charged = 0;
        // A longer turn means that the thread was interrupted, which is not the queue's fault.
        let each = cycles.min(4 * MOST) / (packets as u64).max(1);
        let cycles = cycles.min(MOST);
        self.dear = (self.dear * 7 + each) / 8;
        self.not_before = if cycles > QUANTUM {
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
        turns: Vec<Turn>,
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
                turns: (0..n).map(|_| Turn::default()).collect(),
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
                let full = self.turns.iter().filter(|t| t.is_full()).count();
                self.now += 100;
                for i in 0..self.turns.len() {
                    let others = full - usize::from(self.turns[i].is_full()).min(full);
                    if self.turns[i].waits(self.now, others) {
                        continue;
                    }
                    self.feed();
                    let n = self.waiting[i].min(self.turns[i].most(Others::Active) as u64);
                    let more = n > 0 && n < self.waiting[i];
                    self.waiting[i] -= n;
                    self.served[i] += n;
                    self.turns[i].took(packets(n), more, self.now);
                    let mut cost = n * self.kinds[i].0;
                    // Another program takes the processor now and then.
                    if n > 0 && self.served[i] % 10_000 < n {
                        cost += 150_000;
                    }
                    self.now += cost;
                    if n > 0 {
                        self.turns[i].over(packets(n), cost, self.now, others);
                    }
                }
            }
        }
    }

    #[test]
    fn dear_packets_of_one_queue_leave_the_others_what_they_need() {
        // A flow of 300 packets per million cycles (a million a second at 3 GHz) beside packets at up to
        // 10,000 cycles, without end.
        for dear in [250, 400, 1_000, 2_000, 2_500, 10_000, 40_000] {
            let mut sim = Sim::new(&[(250, Some(333)), (dear, None)]);
            sim.run(300_000_000);
            let kept = sim.served[0] * 1000 / (sim.served[0] + sim.lost[0] + sim.waiting[0]);
            assert!(kept >= 990, "{dear}: {kept}, lost {:?}", sim.lost);
            // The processor is never idle.
            let used = sim.served[0] * 250 + sim.served[1] * dear;
            assert!(used * 10 > 300_000_000 * 9, "{dear}: {used}");
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
                let cost = (seed >> 33) % (2 * QUANTUM);
                assert!(spent < ROUND, "round {round}, queue {i}: {spent}");
                spent += cost;
                share.spend(cost);
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
            share.spend(100 * ROUND);
        }
        let mut second = share.join();
        assert!(share.admits(&mut second, 100));
    }

    /// Six cheap packets and one that is looked up under many masks, again and again; bursts are shared as in
    /// `poll`.
    #[test]
    fn a_cheap_queue_does_not_pay_for_a_dear_one() {
        let (mut cheap, mut dear, mut now) = (Turn::default(), Turn::default(), 1);
        for _ in 0..100 {
            cheap.took(6, false, now);
            dear.took(1, true, now);
            let costs = match dear.is_dear() {
                true => [6 * 250, 13_000],
                false => [(6 * 250 + 13_000) * 6 / 7, (6 * 250 + 13_000) / 7],
            };
            now += 6 * 250 + 13_000;
            cheap.over(6, costs[0], now, 1);
            dear.over(1, costs[1], now, 0);
        }
        assert!(dear.is_dear() && !cheap.is_dear());
        assert_eq!(
            (cheap.most(Others::Active), dear.most(Others::Active)),
            (BURST, 1)
        );
    }

    #[test]
    fn packets_that_are_dear_because_few_came_at_a_time_come_in_bursts_again() {
        for each in [300, 900, 1_500] {
            let mut turn = Turn::default();
            // New flows, now and then a whole burst of them.
            for _ in 0..20 {
                turn.over(1, 20_000, 0, 1);
            }
            assert_eq!(turn.most(Others::Active), 1);
            for _ in 0..200 {
                let n = turn.most(Others::Active);
                turn.over(n, QUANTUM / 4 + each * n as u64, 0, 1);
            }
            assert_eq!(turn.most(Others::Active), BURST, "{each}");
        }
    }

    #[test]
    fn two_endless_queues_share_by_cycles() {
        let mut sim = Sim::new(&[(250, None), (5_000, None)]);
        sim.run(100_000_000);
        let (cheap, dear) = (sim.served[0] * 250, sim.served[1] * 5_000);
        assert!(cheap * 10 > dear * 8 && dear * 2 > cheap, "{cheap} {dear}");
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
        let mut turn = Turn::default();
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
            turn.took(take as usize, take == 32, now);
            let begin = now;
            for _ in 0..take {
                n += 1;
                if n % 16 < hits {
                    old = (old.0 + 1, old.1 + 1);
                    now += 250;
                } else if turn.may_miss(0) {
                    turn.charge(2_500, true, 0);
                    new = (new.0 + 1, new.1 + 1);
                    now += 2_500;
                } else {
                    new.1 += 1;
                    now += 400;
                }
            }
            turn.over(take as usize, now - begin, now, 0);
        }
        let _ = lost;
        (old.0 * 1000 / old.1.max(1), new.0 * 1000 / new.1.max(1))
    }

    #[test]
    fn a_burst_of_new_flows_is_no_reason() {
        let mut turn = Turn::default();
        let mut now = 1;
        // Two hundred full turns of half new flows, then the queue is empty.
        for i in 0..200 {
            turn.took(32, i < 199, now);
            for _ in 0..16 {
                now += 250;
                assert!(turn.may_miss(0) || i > 60, "turn {i}");
                turn.charge(2_500, true, 0);
                now += 2_500;
            }
            turn.over(32, 1, now, 0);
        }
        // A thread that is sometimes preempted is not behind.
        let mut turn = Turn::default();
        for i in 0..200 {
            turn.took(32, i % 2 == 0, i * 1_000_000);
            assert!(turn.may_miss(0));
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
