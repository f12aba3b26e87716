//! Reads the counts of filters.
//!
//! The first action of a filter counts its packets. The kernel counts bytes without Ethernet header and tag;
//! [`counts_since_last`] adds them. It counts each segment of a GSO packet.

use super::flows::{FilterTable, Installed};
use super::message::{self, Counted};
use crate::Handle;
use heddle_datapath_api::FlowCounts;
use netlink_packet_route::RouteNetlinkMessage::GetTrafficFilter;
use rustix::io::Errno;
use std::io;

impl FilterTable {
    pub(super) fn counters(&mut self, now_ms: u64, f: &mut dyn FnMut(Handle, FlowCounts)) {
        let busy = self.devices.iter().filter(|(_, d)| d.flows > 0);
        let busy: Vec<(u32, usize)> = busy.map(|(ifindex, d)| (*ifindex, d.flows)).collect();
        for (ifindex, flows) in busy {
            let mut seen = 0;
            let (installed, paths, cookie) = (&mut self.installed, &mut self.paths, self.cookie);
            // The short form ends with chain 0, at the first filter of another kind.
            let request = match paths.has_chains(ifindex) {
                true => message::all_of(ifindex),
                false => message::flows_of(ifindex),
            };
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
                let counts = counts_since_last(flow, reported.counted, now_ms);
                match flow.child {
                    Some(_) => paths.credit(at, counts),
                    None if counts.packets > 0 => f(at, counts),
                    None => {}
                }
            });
            let cut = |e: &io::Error| e.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error());
            if done.as_ref().err().is_none_or(cut) && seen < flows {
                self.reinstall_flows(ifindex, flows - seen);
            }
        }
        self.paths.take_all(now_ms, f);
        if self.has_buried() {
            self.settle_now();
        }
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
