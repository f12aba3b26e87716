//! Values that the control plane reads from a datapath, copied out.

use crate::action::{Action, PortNo, Upcall};
use crate::format::{PortNames, format_actions, format_key, tcp_flags};
use hashbrown::HashTable;
use heddle_flow::{FlowKey, FlowMask};
use heddle_packet::Packet;
use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// A packet for the control plane.
#[derive(Debug)]
pub struct UpcallPacket {
    /// The upcall of the action.
    pub upcall: Arc<Upcall>,
    /// The packet as it was at the action, cut to `upcall.max_len`.
    pub bytes: Vec<u8>,
    /// The type of its first header, see [`heddle_flow::packet_type`].
    pub packet_type: u32,
    /// The whole length before it was cut.
    pub total_len: usize,
    /// Packets that a GSO packet will be cut into; else 1.
    pub segments: u32,
    /// Bytes that these have, each with its headers.
    pub wire_bytes: u64,
    /// Port that it came in by.
    pub in_port: PortNo,
    /// The key as it was received, with priority and mark as the actions have set them.
    pub key: FlowKey,
    /// The whole packet with its offload metadata, where an upcall of the kind
    /// [`crate::UpcallKind::SlowPath`] wants all of it (to be injected again).
    pub packet: Option<Packet>,
}

/// A port, as the datapath knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Number.
    pub no: PortNo,
    /// Interface name.
    pub name: String,
    /// `Interface.type`.
    pub kind: &'static str,
    /// Receive queues opened.
    pub n_rxq: usize,
    /// Workers poll the queues, and commands show them.
    pub is_pmd: bool,
}

/// A port's counters since it was added, over all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets that the receive queues could not take.
    pub rx_dropped: u64,
    /// Packets received that could not be parsed or were malformed at the port.
    pub rx_errors: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets not sent: queue full, too long, device down.
    pub tx_dropped: u64,
    /// Packets not sent: refused by the system.
    pub tx_errors: u64,
    /// The receive queues' own reasons, and [`POLICED`].
    pub rx_reasons: Vec<(&'static str, u64)>,
}

/// The reason of packets above what a port may receive (`Interface.ingress_policing_*`).
pub const POLICED: &str = "policed";

/// One cached flow.
#[derive(Clone, Debug)]
pub struct FlowDump {
    /// The key of the packet that it was made for.
    pub key: FlowKey,
    /// Bits of the key that count.
    pub mask: FlowMask,
    /// Packets since it was cached (the one that made it not counted, as in OVS).
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Clock when it was last used, milliseconds; 0: never.
    pub used_ms: u64,
    /// Union of TCP flags.
    pub tcp_flags: u16,
    /// Actions on its packets.
    pub actions: Arc<[Action]>,
    /// Processor of the worker that holds the flow.
    pub core: usize,
    /// Index of that worker.
    pub worker: usize,
    /// Place outside of workers that forwards its packets (`dp:NAME`).
    pub place: Option<&'static str>,
    /// Why an observer forwards none of them, if there is one.
    pub waits: Option<String>,
}

impl FlowDump {
    /// Whether another one, of another worker, is the same flow.
    fn same_flow(&self, other: &Self) -> bool {
        let keys = self.key.words().iter().zip(other.key.words());
        self.mask == other.mask
            && keys.zip(self.mask.words()).all(|((a, b), m)| (a ^ b) & m == 0)
            && self.actions == other.actions
    }
    /// The text behind a flow's key: `packets:1, bytes:60, used:0.5s, flags:S., actions:2`.
    pub fn stats_text(&self, now_ms: u64, names: PortNames<'_>) -> String {
        let mut s = String::new();
        // Writing to a string cannot fail.
        let _ = write!(s, "packets:{}, bytes:{}, used:", self.packets, self.bytes);
        let _ = match self.used_ms {
            0 => write!(s, "never"),
            t => write!(
                s,
                "{}.{:03}s",
                now_ms.saturating_sub(t) / 1000,
                now_ms.saturating_sub(t) % 1000
            ),
        };
        if self.tcp_flags != 0 {
            s.push_str(", flags:");
            tcp_flags(&mut s, self.tcp_flags);
        }
        if let Some(place) = self.place {
            let _ = write!(s, ", offloaded:yes, dp:{place}");
        }
        s.push_str(", actions:");
        s.push_str(&format_actions(&self.actions, names));
        s
    }
    /// One line as `dpctl/dump-flows` prints it. `now_ms`: the datapath's clock.
    pub fn text(&self, now_ms: u64, names: PortNames<'_>) -> String {
        let key = format_key(&self.key, &self.mask, false, names);
        format!("{key}, {}", self.stats_text(now_ms, names))
    }
    /// The line of `dpctl/dump-flows -m`: also with the bits that do not count.
    pub fn text_verbose(&self, now_ms: u64, names: PortNames<'_>) -> String {
        let key = format_key(&self.key, &self.mask, true, names);
        format!("{key}, {}", self.stats_text(now_ms, names))
    }
}

/// Flows in the order in which they come, those that several workers cache as one.
#[derive(Debug, Default)]
pub struct Merged {
    flows: Vec<FlowDump>,
    index: HashTable<usize>,
    state: RandomState,
}

impl Merged {
    /// Adds a flow as a worker caches it.
    pub fn add(&mut self, flow: FlowDump) {
        let hash_of = |f: &FlowDump| {
            self.state
                .hash_one((f.key.masked(&f.mask).words(), f.mask.words()))
        };
        let (hash, all) = (hash_of(&flow), &mut self.flows);
        let same = |at: &usize| all[*at].same_flow(&flow);
        if let Some(&at) = self.index.find(hash, same) {
            let m = &mut all[at];
            m.packets += flow.packets;
            m.bytes += flow.bytes;
            m.used_ms = m.used_ms.max(flow.used_ms);
            m.tcp_flags |= flow.tcp_flags;
        } else {
            self.index.insert_unique(hash, all.len(), |at| hash_of(&all[*at]));
            all.push(flow);
        }
    }
    /// All of them.
    pub fn flows(&self) -> &[FlowDump] {
        &self.flows
    }
}

/// Totals of all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets received, injected ones included.
    pub packets: u64,
    /// Packets equal to the one before (L0).
    pub l0_hits: u64,
    /// Exact-match hits (L1).
    pub l1_hits: u64,
    /// Wildcarded hits (L2).
    pub l2_hits: u64,
    /// Packets that were translated.
    pub misses: u64,
    /// Packets for the control plane that found no room.
    pub lost: u64,
    /// Masks that wildcarded hits went through.
    pub l2_masks_probed: u64,
    /// Translations that were not cached because the flow limit was reached.
    pub limit_hits: u64,
    /// Entries now.
    pub flows: u64,
    /// Masks now (most of any worker).
    pub masks: u64,
}

/// The counters of workers at one time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The time stamp counter.
    pub tsc: u64,
    /// Frequency of the time stamp counter.
    pub tsc_hz: u64,
    /// All workers.
    pub workers: Vec<WorkerView>,
    /// All receive queues.
    pub queues: Vec<QueueView>,
}

/// A worker.
#[derive(Clone, Debug, Default)]
pub struct WorkerView {
    /// Number.
    pub id: usize,
    /// The worker's processor: it is pinned to it, or represents it in texts.
    pub core: usize,
    /// NUMA node.
    pub numa: u32,
    /// Polls only queues with an affinity.
    pub isolated: bool,
    /// Counters by name.
    pub counters: Vec<(&'static str, u64)>,
}

/// A receive queue.
#[derive(Clone, Debug, Default)]
pub struct QueueView {
    /// The port's name.
    pub port: String,
    /// Number.
    pub queue: usize,
    /// Processor of the worker that polls it.
    pub core: Option<usize>,
    /// Part of that worker's last minute; `None`: not known yet.
    pub percent: Option<f64>,
    /// NUMA node of the port's device or guest, if it is known.
    pub numa: Option<u32>,
}
