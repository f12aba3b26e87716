//! The filter that comes after those of flows, and matches all packets.

use super::message::{self, FilterId};
use heddle_sys::route_batch::{RouteBatch, RouteRequest};
use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_route::RouteNetlinkMessage::{DelTrafficFilter, NewTrafficFilter};
use netlink_packet_route::tc::TcAction;
use std::io;

/// Priority of the miss filter: the one of the eBPF program.
pub(super) const MISS_PRIORITY: u16 = 0x4844;
const ETH_P_ALL: u16 = 3;

fn miss_filter_id(ifindex: u32) -> FilterId {
    FilterId {
        ifindex,
        chain: 0,
        priority: MISS_PRIORITY,
        protocol: ETH_P_ALL,
        handle: 1,
    }
}

/// Adds or replaces the miss filter of a device, with the queueing discipline that it needs.
pub(super) fn add_miss_filter(
    batch: &mut RouteBatch,
    ifindex: u32,
    actions: Vec<TcAction>,
    flags: u16,
) -> io::Result<()> {
    // The discipline may exist already.
    let _ = heddle_sys::ingress::add_clsact(ifindex);
    let filter = miss_filter_id(ifindex).filter(Vec::new(), actions, message::SKIP_HW);
    let request = RouteRequest {
        message: NewTrafficFilter(filter),
        flags: NLM_F_CREATE | flags,
    };
    let results = batch.send(vec![request], &mut |_| {})?;
    results.into_iter().next().unwrap_or(Ok(()))
}

/// Removes the miss filter of a device; it may be gone, with its device or with the queueing discipline.
pub(super) fn remove_miss_filter(batch: &mut RouteBatch, ifindex: u32) {
    let request = RouteRequest {
        message: DelTrafficFilter(miss_filter_id(ifindex).named()),
        flags: 0,
    };
    let _ = batch.send(vec![request], &mut |_| {});
}
