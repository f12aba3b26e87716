//! The miss policer: divides a queue's miss budget among senders, so that one tunnel peer's new flows leave
//! other peers their share.
//!
//! **Problem.** Many senders may be behind one queue: packets from an uplink come through tunnels of many
//! peers and networks. The queue has a single miss budget ([`super::turn`]), and one hostile sender would use
//! it up.
//!
//! **Design.** A sender is the outer source and key of a tunnel, hashed into one of [`PEERS`] accounts. So
//! the memory is fixed, whatever a sender invents. In a window, each active account may use an equal part of
//! the budget; a single active account may use all. An account is active if it had a miss in this window or
//! the one before. Packets without a tunnel are one sender.
//!
//! Pure: the caller signals the end of a window.

use heddle_flow::FlowKey;
use heddle_flow_cache::HashKey;

/// Number of accounts.
const PEERS: usize = 32;

/// The account of a packet's sender.
pub(super) fn peer_of(outside: Option<&FlowKey>) -> u8 {
    let Some(k) = outside.filter(|k| (k.tun_src, k.tun_ipv6_src) != (0, [0; 16])) else {
        return 0;
    };
    let key = HashKey::of_process();
    let ipv6 = u128::from_ne_bytes(k.tun_ipv6_src);
    #[allow(clippy::cast_possible_truncation)] // the halves of an address
    let h = key.mix(key.start(), ipv6 as u64, (ipv6 >> 64) as u64);
    let h = key.finish(key.mix(h, k.tun_src.into(), k.tun_id));
    #[allow(clippy::cast_possible_truncation)] // the rest of a division by PEERS
    let account = (h % PEERS as u64) as u8;
    account
}

/// The accounts of one queue.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// Cycles that misses took in this window.
    spent: [u64; PEERS],
    /// Accounts that had a miss in this window, and in the one before: a bit each.
    asked: u32,
    before: u32,
}

impl Peers {
    /// Whether a sender may have another miss translated, if all together may take `budget` cycles in a
    /// window.
    pub(super) fn admits(&mut self, peer: u8, budget: u64) -> bool {
        let at = usize::from(peer) % PEERS;
        self.asked |= 1 << at;
        let senders = (self.asked | self.before).count_ones();
        senders == 1 || self.spent[at] * u64::from(senders) < budget
    }
    /// Charges a sender for a miss that took `cycles`.
    pub(super) fn spend(&mut self, peer: u8, cycles: u64) {
        self.spent[usize::from(peer) % PEERS] += cycles;
    }
    /// Begins another window.
    pub(super) fn begin(&mut self) {
        (self.before, self.asked) = (self.asked, 0);
        self.spent = [0; PEERS];
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
        let mut peers = Peers::default();
        for window in 0..4 {
            let (mut credit, mut got) = (BUDGET, [0; 4]);
            // Three in twenty packets are of the other senders.
            for i in 0..2_000 {
                let peer = [0, 1, 2, 3][usize::try_from((i % 20_i32 - 16).max(0)).unwrap()];
                let wants = peer == 0 || got[usize::from(peer)] < 5;
                if wants && peers.admits(peer, BUDGET) && credit >= MISS {
                    credit -= MISS;
                    peers.spend(peer, MISS);
                    got[usize::from(peer)] += 1;
                }
            }
            peers.begin();
            assert!(window == 0 || got[1..] == [5, 5, 5], "{got:?}");
            assert!(got[0] >= 5, "{got:?}");
        }
        // A single sender may use the whole budget.
        peers.begin();
        peers.begin();
        assert!((0..100).all(|_| {
            peers.spend(7, MISS);
            peers.admits(7, BUDGET)
        }));
    }

    #[test]
    fn senders_are_told_apart_by_tunnel() {
        let of = |tun_src, tun_id| {
            peer_of(Some(&FlowKey {
                tun_src,
                tun_id,
                ..FlowKey::default()
            }))
        };
        assert_eq!((peer_of(None), of(0, 5)), (0, 0));
        let all: std::collections::HashSet<u8> = (1..1000).map(|n| of(n, 5)).collect();
        assert_eq!(all.len(), PEERS);
    }
}
