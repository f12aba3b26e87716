//! Removes filters of flows that track or recirculate, and the chains behind them ([`super::paths`]).

use super::flows::FilterTable;
use super::message::FilterId;
use super::paths::{Copy, forget};
use heddle_sys::route_batch::RouteRequest;
use netlink_packet_route::RouteNetlinkMessage::{DelTrafficFilter, GetTrafficFilter};

impl FilterTable {
    /// Removes a filter of a stage's flow, and the chain behind it.
    pub(super) fn remove_copy(&mut self, id: u64) {
        let Some(mut copy) = self.forget_copy(id) else {
            return;
        };
        if let Some(now) = self.delete_filter(copy.flow.filter_id) {
            let n = copy.flow.counts_since_last(now, 0);
            self.paths.credit(copy.at, n);
        }
        if let Some(chain) = copy.flow.child {
            self.bury(chain);
        }
    }

    /// Forgets a filter of a stage's flow, which is still in the kernel.
    fn forget_copy(&mut self, id: u64) -> Option<Copy> {
        let copy = self.paths.copies.remove(&id)?;
        self.paths.by_filter.remove(&copy.flow.filter_id);
        if let Some(of) = self.paths.chains.get_mut(&copy.chain) {
            of.copies.retain(|c| *c != id);
        }
        if let Some(flow) = self.paths.flows.get_mut(&copy.at) {
            flow.copies.retain(|c| *c != id);
        }
        self.count_flows(copy.flow.filter_id.ifindex, -1);
        if let Some(id) = copy.flow.side.tunnel() {
            self.tunnels.count_flow(id, -1);
        }
        Some(copy)
    }

    /// No filter leads to a chain any more: reads its counts, and marks its filters for removal.
    pub(super) fn bury(&mut self, chain: u32) {
        let Some(of) = self.paths.chains.get_mut(&chain) else {
            return;
        };
        let stage = (of.in_port, of.recirc);
        let (ifindex, copies) = (of.ifindex, std::mem::take(&mut of.copies));
        let misses: Vec<FilterId> = of.misses.iter().map(|m| m.filter_id).collect();
        for id in copies {
            let Some(copy) = self.paths.copies.get(&id) else {
                continue;
            };
            let (filter_id, child) = (copy.flow.filter_id, copy.flow.child);
            self.read_last_counts(filter_id);
            if let Some(child) = child {
                self.bury(child);
            }
            self.forget_copy(id);
            self.paths.dying.push(filter_id);
        }
        for filter_id in misses {
            self.read_last_counts(filter_id);
            self.paths.by_filter.remove(&filter_id);
            self.paths.dying.push(filter_id);
            self.count_flows(ifindex, -1);
        }
        self.paths.chains.remove(&chain);
        forget(&mut self.paths.chains_of, &stage, &chain);
        self.unsettled = true;
    }

    /// Reads the counts of one filter in a chain.
    fn read_last_counts(&mut self, filter_id: FilterId) {
        let request = RouteRequest {
            message: GetTrafficFilter(filter_id.named()),
            flags: 0,
        };
        if let Ok(Some(reported)) = self.request(request) {
            self.paths.counted(filter_id, reported.counted);
        }
    }

    /// Removes the filters of buried chains. No packet is in them any more.
    pub(super) fn remove_buried(&mut self) {
        let all = std::mem::take(&mut self.paths.dying);
        self.delete_all(all);
    }
    /// Whether chains are buried.
    pub(super) fn has_buried(&self) -> bool {
        !self.paths.dying.is_empty()
    }

    /// Removes filters without a look at their counts.
    pub(super) fn delete_all(&mut self, all: Vec<FilterId>) {
        let requests = all.into_iter().map(|filter_id| RouteRequest {
            message: DelTrafficFilter(filter_id.named()),
            flags: 0,
        });
        let requests: Vec<RouteRequest> = requests.collect();
        if !requests.is_empty() {
            // The device may be gone, and its filters with it.
            let _ = self.batch.send(requests, &mut |_| {});
        }
    }
}
