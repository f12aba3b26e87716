//! Filters that an earlier process left, whether it ended or was killed.
//!
//! The next process finds them by the cookie of their first action, which has the number of the run
//! directory. They forward after its own filters, until a change of rules is confirmed. Each process has its
//! own era and its own priorities, which come before those of the filters that it found.

use super::entries;
use super::flows::{FilterTable, LAST_PRIORITY, PRIORITIES, REPLY_TIMEOUT};
use super::message::{self, FilterId};
use heddle_sys::device_programs::DevicePrograms;
use heddle_sys::route_batch::{RouteBatch, RouteRequest};
use heddle_sys::shared_words;
use netlink_packet_route::RouteNetlinkMessage::{DelTrafficFilter, GetTrafficFilter};
use std::collections::HashSet;

/// Lowest priority number of filters of flows.
const FIRST_PRIORITY: u16 = 0x1000;

/// A filter of an earlier process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leftover {
    pub(super) filter_id: FilterId,
    /// The filter is the last one of a device, and sends packets to a miss device.
    pub(super) is_miss: bool,
    /// The filter passes outer packets of a tunnel to the host's stack.
    pub(super) to_host: bool,
}

/// The filters of all processes with this owner number, their highest era, and the kernel's zones of their
/// connections.
fn find(batch: &mut RouteBatch, owner: u64) -> (Vec<Leftover>, u32, HashSet<u16>) {
    let devices = DevicePrograms::new().and_then(|all| all.with_filters());
    let (mut all, mut era, mut zones) = (Vec::new(), 0, HashSet::new());
    for ifindex in devices.unwrap_or_default() {
        // The device may be gone.
        let _ = batch.dump(GetTrafficFilter(message::all_of(ifindex)), &mut |reply| {
            let Some(reported) = message::read(reply.payload) else {
                return;
            };
            if let Some(cookie) = reported.cookie.filter(|c| c.owner == owner) {
                era = era.max(cookie.era);
                zones.extend(message::ct_zones(reply.payload));
                all.push(Leftover {
                    filter_id: reported.filter_id,
                    is_miss: reported.filter_id.chain == 0 && reported.filter_id.priority > LAST_PRIORITY,
                    to_host: reported.to_host,
                });
            }
        });
    }
    (all, era, zones)
}

/// Removes filters, those in chain 0 first: then no filter leads to the others, and packets leave them.
fn delete(batch: &mut RouteBatch, all: &[Leftover]) -> usize {
    let (first, behind): (Vec<_>, Vec<_>) = all.iter().partition(|l| l.filter_id.chain == 0);
    let n = delete_some(batch, &first);
    if behind.is_empty() {
        return n;
    }
    shared_words::wait_for_programs();
    n + delete_some(batch, &behind)
}

fn delete_some(batch: &mut RouteBatch, all: &[&Leftover]) -> usize {
    let requests = all.iter().map(|l| RouteRequest {
        message: DelTrafficFilter(l.filter_id.named()),
        flags: 0,
    });
    let results = batch.send(requests.collect(), &mut |_| {});
    results.map_or(0, |all| all.iter().filter(|done| done.is_ok()).count())
}

/// State of earlier processes that a new one takes over.
pub(super) struct Adopted {
    /// Era of the new process.
    pub(super) era: u32,
    /// First priority of the new process.
    pub(super) priority: u16,
    /// Filters that it takes over.
    pub(super) filters: Vec<Leftover>,
    /// Zones of the kernel that the filters use.
    pub(super) zones: HashSet<u16>,
}

/// Era and first priority of a new process, and the filters that it takes over. `alone`: this back end
/// diverts devices itself. Otherwise miss filters are removed at once, since the eBPF program needs their
/// priority. So are filters that pass packets of tunnels to the host's stack.
pub(super) fn adopt(batch: &mut RouteBatch, owner: u64, alone: bool) -> Adopted {
    let (mut all, era, zones) = find(batch, owner);
    if !alone {
        let (misses, flows): (Vec<_>, Vec<_>) = all.into_iter().partition(|l| l.is_miss || l.to_host);
        delete(batch, &misses);
        all = flows;
    }
    let flows = all.iter().filter(|l| !l.is_miss);
    let first = flows.map(|l| l.filter_id.priority).min();
    let mut priority = first.unwrap_or(LAST_PRIORITY + 1).saturating_sub(PRIORITIES);
    if priority < FIRST_PRIORITY {
        delete(batch, &all);
        all.clear();
        priority = LAST_PRIORITY + 1 - PRIORITIES;
    }
    Adopted {
        era: era.wrapping_add(1),
        priority,
        filters: all,
        zones,
    }
}

/// Removes all filters of processes with this owner number; returns their number.
pub(super) fn remove(owner: u64) -> usize {
    let Ok(mut batch) = RouteBatch::new(REPLY_TIMEOUT) else {
        return 0;
    };
    let (all, _, zones) = find(&mut batch, owner);
    let n = delete(&mut batch, &all);
    if !zones.is_empty() {
        entries::remove_entries(&zones);
    }
    n
}

impl FilterTable {
    /// Removes filters of an earlier process that pass outer packets from a device to the host's stack. The
    /// miss device that their packets would come back by is gone.
    pub(super) fn drop_adopted_outer(&mut self, ifindex: u32) {
        let passes = |l: &Leftover| l.to_host && l.filter_id.ifindex == ifindex;
        let (old, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.leftovers).into_iter().partition(passes);
        self.leftovers = rest;
        delete(&mut self.batch, &old);
    }
    /// Removes the filters of an earlier process.
    pub(super) fn drop_adopted(&mut self) {
        let all = std::mem::take(&mut self.leftovers);
        if all.is_empty() {
            self.conns.drop_adopted();
            return;
        }
        // This process has replaced the miss filters of its own devices.
        let ours: HashSet<u32> = self.devices.keys().copied().collect();
        let old: Vec<Leftover> = all
            .into_iter()
            .filter(|l| !l.is_miss || !ours.contains(&l.filter_id.ifindex))
            .collect();
        let n = delete(&mut self.batch, &old);
        self.settle_now();
        self.conns.drop_adopted();
        log::info!(target: "netdev_offload", "tc: {n} filters that an earlier process left are removed");
    }
}
