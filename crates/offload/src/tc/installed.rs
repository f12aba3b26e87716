//! The filter of a flow, as it is installed.

use super::message::{Counted, FilterId};
use super::side::TcSide;
use crate::Rule;
use crate::rule::VLAN_PRESENT;
use heddle_datapath_api::{FlowCounts, PortNo};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

/// Length of an Ethernet header and of a tag, bytes.
pub(super) const ETHERNET_LEN: u64 = 14;
const TAG_LEN: u64 = 4;

/// The filter of a flow.
pub(super) struct Installed {
    pub(super) filter_id: FilterId,
    /// The second of the two priorities.
    pub(super) second: bool,
    /// Bytes of each packet that the kernel does not count.
    pub(super) uncounted: u64,
    pub(super) read: Counted,
    /// Last counts, if the filter was already removed with all filters of its device.
    pub(super) last: Option<Counted>,
    pub(super) in_port: PortNo,
    pub(super) side: TcSide,
    /// The chain that it leads to.
    pub(super) child: Option<u32>,
    /// Identifies its match ([`id_of`]).
    pub(super) id: u64,
    pub(super) since: Instant,
    /// A card had it at the last look.
    pub(super) in_card: bool,
}

impl Installed {
    /// The filter of a rule, which has counted nothing yet.
    pub(super) fn new(rule: &Rule, filter_id: FilterId, second: bool, side: TcSide) -> Self {
        // The kernel counts a second tag: the first one alone is beside the packet's bytes.
        let tagged = rule.key.vlan & VLAN_PRESENT != 0;
        Self {
            filter_id,
            second,
            uncounted: ETHERNET_LEN + if tagged { TAG_LEN } else { 0 },
            read: Counted::default(),
            last: None,
            in_port: rule.in_port,
            side,
            child: None,
            id: id_of(rule),
            since: Instant::now(),
            in_card: false,
        }
    }
    /// Packets and bytes of a filter since the last call.
    pub(super) fn counts_since_last(&mut self, now: Counted, now_ms: u64) -> FlowCounts {
        let before = std::mem::replace(&mut self.read, now);
        let packets = now.packets.saturating_sub(before.packets);
        if packets == 0 {
            return FlowCounts::default();
        }
        // A card counts whole frames.
        let in_hw = now.hw_packets.saturating_sub(before.hw_packets);
        let in_sw = packets.saturating_sub(in_hw);
        FlowCounts {
            packets,
            bytes: now.bytes.saturating_sub(before.bytes) + self.uncounted * in_sw,
            used_ms: now_ms,
            tcp_flags: 0,
        }
    }
}

/// Identifies the match of a rule.
pub(super) fn id_of(rule: &Rule) -> u64 {
    let mut hasher = DefaultHasher::new();
    (rule.in_port, rule.key, rule.mask, &rule.more).hash(&mut hasher);
    hasher.finish()
}
