//! The filter of a flow, as it is installed.

use super::message::{Counted, FilterId};
use super::side::TcSide;
use crate::Rule;
use crate::rule::VLAN_PRESENT;
use heddle_datapath_api::PortNo;
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
            id: id_of(rule),
            since: Instant::now(),
            in_card: false,
        }
    }
}

/// Identifies the match of a rule.
pub(super) fn id_of(rule: &Rule) -> u64 {
    let mut hasher = DefaultHasher::new();
    (rule.in_port, rule.key, rule.mask, &rule.more).hash(&mut hasher);
    hasher.finish()
}
