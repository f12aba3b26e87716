//! Filters of flows that track or recirculate, in chains of their own ([`super::plan`]).
//!
//! ```text
//!   chain 0              chain of that filter            chain of that one
//!   ct zone, goto  ───>  +est: rewrite, ct, goto  ───>   +est: output
//!   ...                  +est: output                    last: undo, to the miss device
//!                        last: undo, to the miss device
//! ```
//!
//! **Order.** A chain is complete before a filter leads to it. When that filter is removed, packets may still
//! be in the chain. So the chain's filters stay until [`FilterTable::settle`] has waited for these packets. A
//! packet in an empty chain would reach the host's stack.
//!
//! **Counts.** A worker counts a packet that the last filter of a chain hands over. So that packet is
//! subtracted from the counts of all filters on its path. The kernel reports the filters one after the other.
//! A count below zero waits for the next report.

use super::ct;
use super::installed::Installed;
use super::message::{Counted, FilterId};
use super::plan::PathState;
use crate::{Handle, Rule};
use heddle_datapath_api::{FlowCounts, PortNo};
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of chains.
const MAX_CHAINS: usize = 1 << 16;
/// Bits of a chain's number below the era of its process.
const CHAIN_NUMBER_BITS: u32 = 20;

/// A filter before a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entrance {
    pub(super) at: Handle,
    /// [`Installed::uncounted`] of its filter.
    pub(super) uncounted: u64,
}

/// A filter at the end of a chain.
pub(super) struct Miss {
    pub(super) filter_id: FilterId,
    pub(super) read: Counted,
}

/// A chain.
pub(super) struct Chain {
    pub(super) ifindex: u32,
    pub(super) in_port: PortNo,
    pub(super) recirc: u32,
    pub(super) place: PathState,
    /// The filters on the way, the first of them in chain 0.
    pub(super) path: Vec<Entrance>,
    pub(super) misses: Vec<Miss>,
    /// Keys of `copies`.
    pub(super) copies: Vec<u64>,
}

/// One filter of a flow behind a recirculation, or a second filter of a flow in chain 0.
pub(super) struct Copy {
    pub(super) at: Handle,
    pub(super) chain: u32,
    pub(super) flow: Installed,
}

/// A flow behind a recirculation.
pub(super) struct StageFlow {
    pub(super) rule: Arc<Rule>,
    pub(super) copies: Vec<u64>,
}

#[derive(Clone, Copy)]
pub(super) enum Owner {
    Copy(u64),
    /// Chain, and index among its misses.
    Miss(u32, usize),
}

/// Packets and bytes that a flow has counted and that are not reported yet.
#[derive(Clone, Copy, Default)]
struct Balance {
    packets: i64,
    bytes: i64,
}

impl Balance {
    fn add(&mut self, packets: u64, bytes: u64) {
        self.packets = self.packets.saturating_add_unsigned(packets);
        self.bytes = self.bytes.saturating_add_unsigned(bytes);
    }
    fn subtract(&mut self, packets: u64, bytes: u64) {
        self.packets = self.packets.saturating_sub_unsigned(packets);
        self.bytes = self.bytes.saturating_sub_unsigned(bytes);
    }
}

/// Chains, and the flows in them.
#[derive(Default)]
pub(super) struct Paths {
    /// Keys are the numbers of the chains.
    pub(super) chains: HashMap<u32, Chain>,
    pub(super) copies: HashMap<u64, Copy>,
    pub(super) flows: HashMap<Handle, StageFlow>,
    /// Chains and flows by input port and recirculation id.
    pub(super) chains_of: HashMap<(PortNo, u32), Vec<u32>>,
    pub(super) flows_of: HashMap<(PortNo, u32), Vec<Handle>>,
    pub(super) by_filter: HashMap<FilterId, Owner>,
    balances: HashMap<Handle, Balance>,
    /// Filters in chain 0 beside the flow's first one.
    pub(super) others: HashMap<Handle, Vec<u64>>,
    /// Filters to which no filter leads any more.
    pub(super) dying: Vec<FilterId>,
    next_chain: u32,
    pub(super) next_copy: u64,
}

pub(super) fn stage_of(rule: &Rule) -> (PortNo, u32) {
    (rule.in_port, rule.key.recirc)
}

pub(super) fn forget<K: std::hash::Hash + Eq, V: PartialEq>(
    map: &mut HashMap<K, Vec<V>>,
    key: &K,
    value: &V,
) {
    if let Some(all) = map.get_mut(key) {
        all.retain(|v| v != value);
        if all.is_empty() {
            map.remove(key);
        }
    }
}

impl Paths {
    /// Number of chains.
    pub(super) fn len(&self) -> usize {
        self.chains.len()
    }
    /// Whether a device has chains.
    pub(super) fn has_chains(&self, ifindex: u32) -> bool {
        self.chains.values().any(|c| c.ifindex == ifindex)
    }
    pub(super) fn chain_number(&mut self, era: u32) -> Option<u32> {
        if self.chains.len() >= MAX_CHAINS {
            return None;
        }
        // Eras that follow each other have other numbers, and chain 0 is none of them.
        let eras = (1 << (ct::CHAIN_BITS - CHAIN_NUMBER_BITS)) - 1;
        let era = (era % eras + 1) << CHAIN_NUMBER_BITS;
        loop {
            self.next_chain = (self.next_chain + 1) % (1 << CHAIN_NUMBER_BITS);
            let chain = era | self.next_chain;
            let used = self.chains.contains_key(&chain) || self.dying.iter().any(|f| f.chain == chain);
            if !used {
                return Some(chain);
            }
        }
    }
    /// Credits counts to a flow.
    pub(super) fn credit(&mut self, at: Handle, n: FlowCounts) {
        if n.packets > 0 {
            self.balances.entry(at).or_default().add(n.packets, n.bytes);
        }
    }
    /// Subtracts packets that a chain has handed over.
    fn debit(&mut self, chain: u32, index: usize, now: Counted) {
        let Some(chain) = self.chains.get_mut(&chain) else {
            return;
        };
        let Some(miss) = chain.misses.get_mut(index) else {
            return;
        };
        let before = std::mem::replace(&mut miss.read, now);
        let packets = now.packets.saturating_sub(before.packets);
        let bytes = now.bytes.saturating_sub(before.bytes);
        if packets == 0 {
            return;
        }
        for entrance in &chain.path {
            let balance = self.balances.entry(entrance.at).or_default();
            balance.subtract(packets, bytes + entrance.uncounted * packets);
        }
    }
    /// Counts of a filter in a chain. `false`: it is none of this process's chains.
    pub(super) fn counted(&mut self, filter_id: FilterId, now: Counted) -> bool {
        match self.by_filter.get(&filter_id).copied() {
            None => return false,
            Some(Owner::Miss(chain, index)) => self.debit(chain, index, now),
            Some(Owner::Copy(id)) => {
                if let Some(copy) = self.copies.get_mut(&id) {
                    let (at, n) = (copy.at, copy.flow.counts_since_last(now, 0));
                    self.credit(at, n);
                }
            }
        }
        true
    }
    /// Takes the counts of a flow that are due.
    pub(super) fn take(&mut self, at: Handle, now_ms: u64) -> FlowCounts {
        let Some(balance) = self.balances.get_mut(&at).filter(|b| b.packets > 0) else {
            return FlowCounts::default();
        };
        let due = std::mem::take(balance);
        FlowCounts {
            packets: due.packets.unsigned_abs(),
            bytes: u64::try_from(due.bytes).unwrap_or(0),
            used_ms: now_ms,
            tcp_flags: 0,
        }
    }
    /// Takes the counts of all flows that are due.
    pub(super) fn take_all(&mut self, now_ms: u64, f: &mut dyn FnMut(Handle, FlowCounts)) {
        let due = self.balances.iter().filter(|(_, b)| b.packets > 0);
        let due: Vec<Handle> = due.map(|(at, _)| *at).collect();
        for at in due {
            f(at, self.take(at, now_ms));
        }
    }
    /// A flow begins without counts.
    pub(super) fn begin(&mut self, at: Handle) {
        self.balances.remove(&at);
    }
    /// The last counts of a flow that is gone: `n`, and the packets that its chains handed over.
    pub(super) fn close(&mut self, at: Handle, n: FlowCounts) -> FlowCounts {
        if !self.balances.contains_key(&at) {
            return n;
        }
        self.credit(at, n);
        let counts = self.take(at, n.used_ms);
        self.balances.remove(&at);
        counts
    }
}
