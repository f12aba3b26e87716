//! Reads the counts of filters.
//!
//! The first action of a filter counts its packets. The kernel counts bytes without Ethernet header and tag;
//! [`counts_since_last`] adds them. It counts each segment of a GSO packet.

use super::flows::FilterTable;
use super::installed::Installed;
use super::message::{self, Counted};
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
            let request = message::flows_of(ifindex);
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
        self.received.counters(f);
    }
    /// Reads the counts of a device's filters. Returns the number of filters of this process, if it is known.
    fn read_counts(
        &mut self,
        requests: Vec<TcMessage>,
        now_ms: u64,
        f: &mut dyn FnMut(Handle, FlowCounts),
    ) -> Option<usize> {
        let (installed, cookie, received) = (&mut self.installed, self.cookie, &mut self.received);
        let (mut seen, mut is_whole) = (0, true);
        for request in requests {
            let done = self.batch.dump(GetTrafficFilter(request), &mut |reply| {
                let Some(reported) = message::read(reply.payload) else {
                    return;
                };
                let at = reported.filter_id.handle.wrapping_sub(1);
                let flow = installed
                    .get_mut(&at)
                    .filter(|flow| flow.filter_id == reported.filter_id);
                let Some(flow) = flow.filter(|_| reported.cookie == Some(cookie)) else {
                    return;
                };
                seen += 1;
                flow.in_card = reported.in_hw;
                // These also count packets that come back to workers.
                if matches!(flow.side, TcSide::Outer { .. }) {
                    return;
                }
                let counts = counts_since_last(flow, reported.counted, now_ms);
                if counts.packets > 0 {
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

/// Packets and bytes of a filter since the last call.
pub(super) fn counts_since_last(flow: &mut Installed, now: Counted, now_ms: u64) -> FlowCounts {
    let before = std::mem::replace(&mut flow.read, now);
    let packets = now.packets.saturating_sub(before.packets);
    if packets == 0 {
        return FlowCounts::default();
    }
    // A card counts whole frames.
    let in_hw = now.hw_packets.saturating_sub(before.hw_packets);
    let in_sw = packets.saturating_sub(in_hw);
    FlowCounts {
        packets,
        bytes: now.bytes.saturating_sub(before.bytes) + flow.uncounted * in_sw,
        used_ms: now_ms,
        tcp_flags: 0,
    }
}
