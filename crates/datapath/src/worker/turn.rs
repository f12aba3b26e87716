//! Whose turn it is: receive queues share a worker by cycles, not by packets, and a queue's new flows do not
//! crowd out its old ones.
//!
//! Packets are not equally dear: one that is translated costs ten times one that an entry answers, one that
//! is looked up under many masks may cost as much. Three rules keep dear packets from starving the others.
//! They are **work conserving**: where nothing waits, nothing is held back.
//!
//! 1. **Between queues.** While several queues have packets, a turn of packets of which a burst would cost
//!    more than [`ROUND`] cycles is limited to half of [`QUANTUM`], by what the queue's packets have cost
//!    lately: nobody's ring runs over because another's turn takes long. Cheaper ones always come in bursts:
//!    a few at a time are dearer each, and a limit that makes them dear would keep itself up. And a queue
//!    turn cost more than [`QUANTUM`] cycles waits while other queues have more packets than one turn took,
//!    for as many cycles as its turn cost, times the number of those queues. So each of them gets at least
//!    the cycles that it got, and a queue that is drained each time is never made to wait for anybody. The
//!    packets of the waiting queue stay in its ring: its sender notices, others do not.
//! 2. **Within a queue: the miss budget.** In one ring, packets of established flows wait behind those of new
//!    ones. As long as a queue is behind although it has such established packets, and has been for
//!    [`BEHIND_WINDOWS`] windows of [`WINDOW`] cycles, its misses may take a share of the time that is halved
//!    every window down to a sixteenth, and grows again when the queue keeps up. What goes beyond is dropped,
//!    under a reason of its own (`datapath_drop_miss_budget`): left in the ring it would hold up what stands
//!    behind it, and a new flow's first packet is sent again. A queue of new flows only is not limited.
//!
//! 3. **Between ports.** A guest chooses how many queues it has, so they share: in one round over all queues
//!    those of a port may take [`ROUND`] cycles together. Queues that do not come to their turn for that are
//!    the first of the port in the next round ([`PortBudget`]). And what a queue costs that gives no packets
//!    is charged like what packets cost.
//!
//! **Who is charged.** All of this holds only as long as nobody pays for others' packets, although queues
//! with few packets share a burst. What is not answered by an entry that is known to be right is measured one
//! by one, and charged to its own queue. A queue whose packets are dear all the same ([`DEAR`]; they are
//! looked up under many masks) has its bursts for itself. Otherwise a cheap queue that shares bursts with a
//! dear one would look dear too, and be given turns of a few packets.
//!
//! Cost: a few additions per turn, two reads of the cycle counter per packet that no entry answers. Pure: the
//! caller brings the time.

use super::peers::Peers;
use heddle_packet::BURST;

/// A turn that costs less makes nobody wait: about a burst of answered packets.
pub(super) const QUANTUM: u64 = 16 * 1024;
/// What a turn is charged at most.
const MOST: u64 = 8 * QUANTUM;
/// Cycles over which it is judged whether a queue keeps up.
pub(super) const WINDOW: u64 = 1 << 20;
/// The smallest share is one part in 2^4.
const LEAST: u8 = 4;
/// Windows in a row that a queue has to be behind in before misses are limited: a burst of new flows is no
/// reason.
const BEHIND_WINDOWS: u8 = 4;
/// Turns that say something about a window.
const TURNS: u32 = 16;
/// Windows that a queue has to keep up in before its share is doubled.
const CALM: u8 = 16;

/// A packet that costs more does so for what it is, not because there were few of them: its queue shares no
/// bursts.
const DEAR: u64 = QUANTUM / 8;

/// Cycles that the queues of one port together, or one queue where others of other ports might have packets,
/// take in a round.
const ROUND: u64 = 4 * QUANTUM;

/// What the queues of one port on a worker have together. A round asks each queue once; a *cycle* of the port
/// is over when each of its queues had a turn, in one round or in several.
#[derive(Debug, Default)]
pub(super) struct PortBudget {
    /// Queues that it has.
    queues: u32,
    /// Those that had no turn yet in this cycle.
    left: u32,
    /// Its number. A queue that had its turn bears it.
    cycle: u64,
    /// What the port took in this round.
    round: u64,
    spent: u64,
}

impl PortBudget {
    /// One more queue; returns the number that it bears: it had no turn in this cycle.
    pub(super) fn join(&mut self) -> u64 {
        self.queues += 1;
        self.left += 1;
        self.cycle = self.cycle.max(1);
        self.cycle - 1
    }
    /// Whether a queue that bears the number `last` has its turn in `round`; it then bears the number of this
    /// cycle.
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
    /// A turn of the port took `cycles`.
    pub(super) fn spend(&mut self, cycles: u64) {
        self.spent = self.spent.saturating_add(cycles);
    }
}

/// The worker's other queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    /// There are none.
    None,
    /// None of them had packets in the last round.
    Quiet,
    /// Some had.
    Active,
}

/// A receive queue's account.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// The last turn took all that fitted: more waits.
    full: bool,
    /// What a packet cost lately, cycles.
    dear: u64,
    /// Not before this time, while others are full.
    not_before: u64,
    /// Misses may take one part in 2^`shift` of the time.
    shift: u8,
    /// Cycles that misses may take now.
    credit: u64,
    /// The last turn's time.
    last: u64,
    /// The window: its start, turns in it, those that were full, packets, misses.
    start: u64,
    turns: u32,
    full_turns: u32,
    packets: u32,
    missed: u32,
    /// Cycles that misses took in it.
    window_spent: u64,
    /// Who took of that.
    peers: Peers,
    /// Windows in a row with a backlog; without one, since the share was changed.
    behind: u8,
    calm: u8,
    /// What packets of this turn have cost that were measured one by one.
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
    /// A turn began: `packets` were taken, and `full` says that there was no room for more.
    pub(super) fn took(&mut self, packets: usize, full: bool, now: u64) {
        self.full = full;
        if packets == 0 && self.shift == 0 {
            return;
        }
        self.turns += 1;
        self.full_turns += u32::from(full);
        self.packets += u32::try_from(packets).unwrap_or(u32::MAX);
        if self.shift > 0 {
            // What was not used is kept for a window.
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
        // Misses are to blame only if they took, or would take, a part of the time that matters.
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
    /// Whether a miss may be translated. It is counted either way.
    /// `peer`: whose it is.
    pub(super) fn may_miss(&mut self, peer: u8) -> bool {
        self.missed += 1;
        self.shift == 0 || self.peers.admits(peer, WINDOW >> self.shift) && self.credit > 0
    }
    /// A packet of this turn has cost `cycles`, which others do not pay for; it `missed`: they are of what
    /// misses may take.
    pub(super) fn charge(&mut self, cycles: u64, missed: bool, peer: u8) {
        self.charged += cycles;
        if missed {
            self.window_spent += cycles;
            self.credit = self.credit.saturating_sub(cycles);
            self.peers.spend(peer, cycles);
        }
    }
    /// What was charged in this turn.
    pub(super) fn charged(&self) -> u64 {
        self.charged
    }
    /// Whether the queue's packets are forwarded by themselves.
    pub(super) fn is_dear(&self) -> bool {
        self.dear > DEAR
    }
    /// Packets that the queue's next turn may take: few dear ones, where others have packets too, or may have
    /// before it is over.
    pub(super) fn most(&self, others: Others) -> usize {
        let (enough, budget) = match others {
            Others::None => return BURST,
            Others::Quiet => (ROUND, ROUND),
            Others::Active => (ROUND, QUANTUM / 2),
        };
        if self.dear * BURST as u64 <= enough {
            return BURST;
        }
        // Packets that are dear only because few come at a time are to come out of it.
        let least = match self.dear / DEAR {
            0 | 1 => BURST / 4,
            2 | 3 => BURST / 8,
            _ => 1,
        };
        usize::try_from(budget / self.dear).unwrap_or(BURST).max(least)
    }
    /// A turn that gave no packets took `cycles`, which is not nothing.
    pub(super) fn barren(&mut self, cycles: u64, now: u64, others: usize) {
        if cycles > QUANTUM / 4 {
            self.over(0, cycles, now, others);
        }
    }
    /// The turn of `packets` is over at `now` and took `cycles`; `others` queues are full.
    pub(super) fn over(&mut self, packets: usize, cycles: u64, now: u64, others: usize) {
        self.charged = 0;
        // Beyond that the thread was interrupted: not the queue's fault.
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
                    // Somebody else has the processor now and then.
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
            // And nothing is left idle.
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
        // Cheap turns: each queue in each round.
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

    /// One ring with `hits` of 16 packets established (250 cycles), the others new (2,500; 400 when dropped),
    /// offered at `rate` per million cycles. Returns the shares of established and of new packets that got
    /// through, per mille.
    fn mixed(hits: u64, rate: u64) -> (u64, u64) {
        let mut turn = Turn::default();
        let (mut now, mut fed, mut waiting, mut lost, mut n) = (1_u64, 1_u64, 0_u64, 0_u64, 0_u64);
        let mut old = (0_u64, 0_u64);
        let mut new = (0_u64, 0_u64);
        while now < 600_000_000 {
            now += 100;
            let more = now * rate / 1_000_000 - fed * rate / 1_000_000;
            fed = now;
            // Packets that find no room are lost, established ones as much as new ones.
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
        // And a thread that gets no time now and then is not behind.
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
        // What can be served is: half the time for new flows.
        let (old, new) = mixed(8, 500);
        assert!(old >= 990 && new >= 990, "{old} {new}");
        // New flows alone are as many as can be translated: one per 2,500 cycles.
        let (_, new) = mixed(0, 1_333);
        assert!(new >= 1000 * 380 / 1_333, "{new}");
    }
}
