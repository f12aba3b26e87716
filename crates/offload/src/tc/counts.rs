//! Reads the counts of filters.
//!
//! The first action of a filter counts its packets. The kernel counts bytes without Ethernet header and tag;
//! [`Installed::counts_since_last`] adds them. It counts each segment of a GSO packet.

use super::flows::FilterTable;
use super::message;
use super::side::TcSide;
use crate::Handle;
use heddle_datapath_api::FlowCounts;
use netlink_packet_route::RouteNetlinkMessage::GetTrafficFilter;
use netlink_packet_route::tc::TcMessage;
use rustix::io::Errno;
use std::io;

impl FilterTable {
    pub(super) fn counters(&mut self, now_ms: u64, f: &mut dyn FnMut(Handle, FlowCounts)) {
        let busy = self.devices.iter().filter(|(_, d)| d.flows > 0);
        let busy: Vec<(u32, usize)> = busy.map(|(ifindex, d)| (*ifindex, d.flows)).collect();
        for (ifindex, flows) in busy {
            // The short form ends with chain 0, at the first filter of another kind.
            let request = match self.paths.has_chains(ifindex) {
                true => message::all_of(ifindex),
                false => message::flows_of(ifindex),
            };
            if let Some(seen) = self.read_counts(vec![request], now_ms, f)
                && seen < flows
            {
                self.reinstall_flows(ifindex, flows - seen);
            }
        }
        // A program is before the filters of tunnel devices, so there is a dump for each priority.
        for (id, ifindex, flows) in self.tunnels.with_inner() {
            let requests = self
                .places()
                .map(|(p, protocol)| message::flows_at(ifindex, p, protocol));
            let requests = requests.collect();
            if let Some(seen) = self.read_counts(requests, now_ms, f)
                && seen < flows
            {
                let name = id.0.device_name(id.1);
                let n = flows - seen;
                log::warn!(target: "netdev_offload", per_min = 5, burst = 5; "{name}: another program removed {n} filters of flows; they are installed again");
                self.reinstall_inner(id);
            }
        }
        self.paths.take_all(now_ms, f);
        self.received.counters(f);
        if self.has_buried() {
            self.settle_now();
        }
    }
    /// Reads the counts of a device's filters. Returns the number of filters of this process, if it is known.
    fn read_counts(
        &mut self,
        requests: Vec<TcMessage>,
        now_ms: u64,
        f: &mut dyn FnMut(Handle, FlowCounts),
    ) -> Option<usize> {
        let (installed, cookie) = (&mut self.installed, self.cookie);
        let (received, paths) = (&mut self.received, &mut self.paths);
        let (mut seen, mut is_whole) = (0, true);
        for request in requests {
            let done = self.batch.dump(GetTrafficFilter(request), &mut |reply| {
                let Some(reported) = message::read(reply.payload) else {
                    return;
                };
                if reported.cookie != Some(cookie) {
                    return;
                }
                let at = reported.filter_id.handle.wrapping_sub(1);
                let flow = installed
                    .get_mut(&at)
                    .filter(|flow| flow.filter_id == reported.filter_id);
                let Some(flow) = flow else {
                    seen += usize::from(paths.counted(reported.filter_id, reported.counted));
                    return;
                };
                seen += 1;
                flow.in_card = reported.in_hw;
                // These also count packets that come back to workers.
                if matches!(flow.side, TcSide::Outer { .. }) {
                    return;
                }
                let counts = flow.counts_since_last(reported.counted, now_ms);
                if flow.child.is_some() {
                    paths.credit(at, counts);
                } else if counts.packets > 0 {
                    f(at, counts);
                    received.credit_outer(flow.side, counts);
                }
            });
            let cut = |e: &io::Error| e.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error());
            is_whole &= done.as_ref().err().is_none_or(cut);
        }
        is_whole.then_some(seen)
    }
    /// Another program removed filters of a device: its flows are installed again.
    fn reinstall_flows(&mut self, ifindex: u32, n: usize) {
        if let Some(device) = self.devices.get(&ifindex)
            && !self.ports.is_marked(ifindex)
        {
            log::warn!(
                target: "netdev_offload",
                "{}: another program removed {n} filters of flows; they are installed again", device.name
            );
            self.ports.mark(ifindex);
        }
    }
}
