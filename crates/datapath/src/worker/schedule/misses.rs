//! The miss policer: the packets of new flows in a queue leave its established flows, and each other, their
//! share.
//!
//! **Problem.** In one ring, packets of established flows wait behind those of new flows, whose translation
//! costs ten times a cache hit. And many senders may be behind one queue: packets from an uplink come through
//! tunnels of many peers and networks.
//!
//! **The queue's budget** is a token bucket of cycles, with a rate that adapts. A queue is behind if it has
//! packets of established flows and most of its turns leave packets in the ring. After [`BEHIND_WINDOWS`]
//! such windows of [`WINDOW_CYCLES`] in a row, its misses may take only half of the time. Each further such
//! window halves the share, down to a sixteenth; it grows again when the queue keeps up. Misses beyond the
//! share are dropped under a reason of their own (`datapath_drop_miss_budget`). In the ring they would delay
//! the packets behind them, and the sender of a new flow repeats its first packet. A queue of new flows only
//! is not limited.
//!
//! **The senders' shares.** A sender is the outer source and key of a tunnel, hashed into one of [`SENDERS`]
//! accounts (as stochastic fair queueing does). So the memory is fixed, whatever a sender invents. In a
//! window, each active account may use an equal part of the budget; a single active account may use all. An
//! account is active if it had a miss in this window or the one before. Packets without a tunnel are one
//! sender.

use heddle_flow::FlowKey;
use heddle_flow_cache::HashKey;

/// Window in which the policer measures whether a queue keeps up, cycles: some 400 us.
const WINDOW_CYCLES: u64 = 1 << 20;
/// Minimum share of misses, as a negative power of two: one sixteenth.
const MIN_SHARE_SHIFT: u8 = 4;
/// Windows in a row that a queue has to be behind before its misses are limited: one burst of new flows is
/// not enough.
const BEHIND_WINDOWS: u8 = 4;
/// Minimum number of turns in a window for a decision.
const MIN_TURNS: u32 = 16;
/// Windows in a row in which a queue has to keep up before its share is doubled.
const CALM_WINDOWS: u8 = 16;
/// Number of accounts.
const SENDERS: usize = 32;

/// The miss budget of one receive queue.
#[derive(Debug, Default)]
pub(crate) struct MissPolicer {
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
    spent: u64,
    /// The same by sender.
    senders: SenderAccounts,
    /// Windows in a row in which the queue was behind, and in which it kept up.
    behind: u8,
    calm: u8,
}

impl MissPolicer {
    /// Begins a turn that took `packets`; `full`: more are waiting.
    pub(super) fn begin_turn(&mut self, packets: usize, full: bool, now: u64) {
        if packets == 0 && self.shift == 0 {
            return;
        }
        self.turns += 1;
        self.full_turns += u32::from(full);
        self.packets += u32::try_from(packets).unwrap_or(u32::MAX);
        if self.shift > 0 {
            // Unused credit is kept for one window.
            let gained = now.saturating_sub(self.last).min(WINDOW_CYCLES) >> self.shift;
            self.credit = (self.credit + gained).min(WINDOW_CYCLES >> self.shift);
        }
        self.last = now;
        if now.saturating_sub(self.start) >= WINDOW_CYCLES {
            self.end_window(now);
        }
    }
    fn end_window(&mut self, now: u64) {
        let established = self.packets - self.missed.min(self.packets);
        // Misses are limited only if they took, or would take, a relevant part of the time.
        let expensive = self.shift > 0 || self.spent << MIN_SHARE_SHIFT > now.saturating_sub(self.start);
        let behind = self.turns >= MIN_TURNS
            && self.full_turns * 4 > self.turns * 3
            && expensive
            && self.missed > 0
            && established * 8 >= self.packets;
        if behind {
            self.calm = 0;
            self.behind = (self.behind + 1).min(BEHIND_WINDOWS);
            if self.behind == BEHIND_WINDOWS && self.shift < MIN_SHARE_SHIFT {
                self.shift += 1;
                self.credit = WINDOW_CYCLES >> self.shift;
            }
        } else {
            self.behind = 0;
            self.calm = (self.calm + 1).min(CALM_WINDOWS);
            if self.shift > 0 && (self.calm == CALM_WINDOWS || self.missed == 0) {
                (self.shift, self.calm) = (self.shift - 1, 0);
            }
        }
        (self.start, self.turns, self.full_turns, self.packets, self.missed) = (now, 0, 0, 0, 0);
        self.spent = 0;
        self.senders.begin_window();
    }
    /// Whether a miss of this sender may be translated. It is counted either way.
    pub(crate) fn admits(&mut self, sender: u8) -> bool {
        self.missed += 1;
        let budget = WINDOW_CYCLES >> self.shift;
        self.shift == 0 || self.senders.admits(sender, budget) && self.credit > 0
    }
    /// Charges a miss that took `cycles`.
    pub(super) fn charge(&mut self, sender: u8, cycles: u64) {
        self.spent += cycles;
        self.credit = self.credit.saturating_sub(cycles);
        self.senders.charge(sender, cycles);
    }
}

/// The account of a packet's sender.
pub(crate) fn sender_of(context: Option<&FlowKey>) -> u8 {
    let Some(k) = context.filter(|k| (k.tun_src, k.tun_ipv6_src) != (0, [0; 16])) else {
        return 0;
    };
    let key = HashKey::of_process();
    let ipv6 = u128::from_ne_bytes(k.tun_ipv6_src);
    #[allow(clippy::cast_possible_truncation)] // the halves of an address
    let h = key.mix(key.start(), ipv6 as u64, (ipv6 >> 64) as u64);
    let h = key.finish(key.mix(h, k.tun_src.into(), k.tun_id));
    #[allow(clippy::cast_possible_truncation)] // the rest of a division by SENDERS
    let account = (h % SENDERS as u64) as u8;
    account
}

/// The accounts of one queue.
#[derive(Debug, Default)]
struct SenderAccounts {
    /// Cycles that misses took in this window.
    spent: [u64; SENDERS],
    /// Accounts that had a miss in this window, and in the one before: a bit each.
    active: u32,
    before: u32,
}

impl SenderAccounts {
    /// Whether a sender may have another miss translated, if all together may take `budget` cycles in a
    /// window.
    fn admits(&mut self, sender: u8, budget: u64) -> bool {
        let at = usize::from(sender) % SENDERS;
        self.active |= 1 << at;
        let senders = (self.active | self.before).count_ones();
        senders == 1 || self.spent[at] * u64::from(senders) < budget
    }
    /// Charges a sender for a miss that took `cycles`.
    fn charge(&mut self, sender: u8, cycles: u64) {
        self.spent[usize::from(sender) % SENDERS] += cycles;
    }
    /// Begins another window.
    fn begin_window(&mut self) {
        (self.before, self.active) = (self.active, 0);
        self.spent = [0; SENDERS];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hostile sender and three others with few misses: the three get all of theirs, except in the first
    /// window.
    #[test]
    fn one_sender_leaves_the_others_theirs() {
        const BUDGET: u64 = 65_536;
        const MISS: u64 = 2_500;
        let mut senders = SenderAccounts::default();
        for window in 0..4 {
            let (mut credit, mut got) = (BUDGET, [0; 4]);
            // Three in twenty packets are of the other senders.
            for i in 0..2_000 {
                let sender = [0, 1, 2, 3][usize::try_from((i % 20_i32 - 16).max(0)).unwrap()];
                let wants = sender == 0 || got[usize::from(sender)] < 5;
                if wants && senders.admits(sender, BUDGET) && credit >= MISS {
                    credit -= MISS;
                    senders.charge(sender, MISS);
                    got[usize::from(sender)] += 1;
                }
            }
            senders.begin_window();
            assert!(window == 0 || got[1..] == [5, 5, 5], "{got:?}");
            assert!(got[0] >= 5, "{got:?}");
        }
        // A single sender may use the whole budget.
        senders.begin_window();
        senders.begin_window();
        assert!((0..100).all(|_| {
            senders.charge(7, MISS);
            senders.admits(7, BUDGET)
        }));
    }

    #[test]
    fn senders_are_told_apart_by_tunnel() {
        let of = |tun_src, tun_id| {
            sender_of(Some(&FlowKey {
                tun_src,
                tun_id,
                ..FlowKey::default()
            }))
        };
        assert_eq!((sender_of(None), of(0, 5)), (0, 0));
        let all: std::collections::HashSet<u8> = (1..1000).map(|n| of(n, 5)).collect();
        assert_eq!(all.len(), SENDERS);
    }
}
