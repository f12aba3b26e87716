//! Multipart requests and replies: statistics and descriptions.

use super::{
    FlowMonitorRequest, FlowUpdate, GroupDesc, GroupStats, MeterConfig, MeterStats, PortDesc, QueueConfig,
    QueueGetConfig, TableDesc, TableFeatures,
};
use crate::action::{InstructionSet, Port};
use heddle_flow::Match;

/// Body of a multipart (statistics) request.
#[derive(Clone, PartialEq, Debug)]
pub enum MpRequest {
    /// Manufacturer and so on.
    Desc,
    /// Flows, one by one.
    Flow(Box<FlowStatsRequest>),
    /// Sums over flows.
    Aggregate(Box<FlowStatsRequest>),
    /// Table counters.
    Table,
    /// Port counters; `Port::NONE` for all.
    Port(Port),
    /// Queue counters.
    Queue {
        /// Port to report; `Port::ALL` or `NONE` for all.
        port: Port,
        /// Queue to report; 0xffffffff for all.
        queue: u32,
    },
    /// Port descriptions; `Port::NONE` for all (only 1.5 can name one).
    PortDesc(Port),
    /// Features of tables; entries with properties request a change.
    TableFeatures(Vec<TableFeatures>),
    /// Table configuration (1.4 and later).
    TableDesc,
    /// Queue configuration (1.4 and later).
    QueueDesc(QueueGetConfig),
    /// Group counters.
    GroupStats(u32),
    /// Group descriptions.
    GroupDesc(u32),
    /// Supported group types and their limits.
    GroupFeatures,
    /// Meter counters.
    MeterStats(u32),
    /// Meter descriptions.
    MeterConfig(u32),
    /// Supported meter bands and their limits.
    MeterFeatures,
    /// Makes (since 1.4 also changes and ends) flow monitors.
    FlowMonitor(Vec<FlowMonitorRequest>),
    /// Counters of the bridge's own IPFIX exporter.
    IpfixBridge,
    /// Counters of the IPFIX exporters that flows name.
    IpfixFlow,
}

/// Body of a reply to [`MpRequest`].
#[derive(Clone, PartialEq, Debug)]
pub enum MpReply {
    /// See `MpRequest::Desc`.
    Desc(DescStats),
    /// Flows; `nxm` picks Nicira's form in 1.0.
    Flow {
        /// Nicira's form (1.0).
        nxm: bool,
        /// The flows.
        flows: Vec<FlowStats>,
    },
    /// Sums; `nxm` as above.
    Aggregate {
        /// Nicira's form (1.0).
        nxm: bool,
        /// The sums.
        stats: AggregateStats,
    },
    /// Table counters.
    Table(Vec<TableStats>),
    /// Port counters.
    Port(Vec<PortStats>),
    /// Queue counters.
    Queue(Vec<QueueStats>),
    /// Port descriptions.
    PortDesc(Vec<PortDesc>),
    /// Table features.
    TableFeatures(Vec<TableFeatures>),
    /// Table descriptions.
    TableDesc(Vec<TableDesc>),
    /// Queue configurations.
    QueueDesc(Vec<QueueConfig>),
    /// Group counters.
    GroupStats(Vec<GroupStats>),
    /// Group descriptions.
    GroupDesc(Vec<GroupDesc>),
    /// Supported group types and their limits.
    GroupFeatures(GroupFeatures),
    /// Meter counters.
    MeterStats(Vec<MeterStats>),
    /// Meter descriptions.
    MeterConfig(Vec<MeterConfig>),
    /// Supported meter bands and their limits.
    MeterFeatures(MeterFeatures),
    /// Monitored flows: the reply to a request, and, with transaction id 0, notifications.
    FlowMonitor(Vec<FlowUpdate>),
    /// Counters of the bridge's own IPFIX exporter.
    IpfixBridge(IpfixStats),
    /// Counters of the exporters that flows name.
    IpfixFlow(Vec<IpfixStats>),
}

/// Selection of flows for statistics.
#[derive(Clone, PartialEq, Debug)]
pub struct FlowStatsRequest {
    /// Flows that this match covers.
    pub match_: Match,
    /// Table of the flows; 0xff: all.
    pub table_id: u8,
    /// Flows that output here (`Port::NONE`: any).
    pub out_port: Port,
    /// Flows that use this group (0xffffffff: any).
    pub out_group: u32,
    /// Flows whose cookie is this under `cookie_mask`.
    pub cookie: u64,
    /// Bits of `cookie` that count.
    pub cookie_mask: u64,
    /// Nicira's form (1.0), also of the reply.
    pub nxm: bool,
}

/// `OFPMP_DESC`. Texts are cut to 255 bytes, the serial number to 31.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DescStats {
    /// Manufacturer.
    pub mfr_desc: String,
    /// Hardware.
    pub hw_desc: String,
    /// Software.
    pub sw_desc: String,
    /// Serial number.
    pub serial_num: String,
    /// The bridge.
    pub dp_desc: String,
}

/// One flow.
#[derive(Clone, PartialEq, Debug)]
pub struct FlowStats {
    /// Table id.
    pub table_id: u8,
    /// Match.
    pub match_: Match,
    /// Priority.
    pub priority: u16,
    /// Cookie.
    pub cookie: u64,
    /// Age: seconds.
    pub duration_sec: u32,
    /// ... and nanoseconds.
    pub duration_nsec: u32,
    /// Idle timeout, seconds.
    pub idle_timeout: u16,
    /// Hard timeout, seconds.
    pub hard_timeout: u16,
    /// Seconds since the last packet (Nicira's form only).
    pub idle_age: Option<u16>,
    /// Seconds since its last change (Nicira's form only).
    pub hard_age: Option<u16>,
    /// Flags (1.3 and later).
    pub flags: super::FlowModFlags,
    /// Importance (1.4 and later).
    pub importance: u16,
    /// Packets; all ones: unknown.
    pub packet_count: u64,
    /// Bytes; all ones: unknown.
    pub byte_count: u64,
    /// Instructions.
    pub instructions: InstructionSet,
}

/// Sums over flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AggregateStats {
    /// Packets; all ones: unknown.
    pub packet_count: u64,
    /// Bytes; all ones: unknown.
    pub byte_count: u64,
    /// Flows.
    pub flow_count: u32,
}

/// One table's counters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TableStats {
    /// Name, 31 bytes at most (1.0 to 1.2).
    pub name: String,
    /// Table id.
    pub table_id: u8,
    /// Maximum number of flows (1.0 to 1.2).
    pub max_entries: u32,
    /// Number of flows.
    pub active_count: u32,
    /// Packets looked up.
    pub lookup_count: u64,
    /// Packets that matched.
    pub matched_count: u64,
}

/// One port's counters; all ones means unknown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortStats {
    /// Port that the counters are of.
    pub port: Port,
    /// Seconds since it was made (1.3 and later).
    pub duration_sec: u32,
    /// ... and nanoseconds.
    pub duration_nsec: u32,
    /// Packets received.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Received, then dropped.
    pub rx_dropped: u64,
    /// Dropped instead of sent.
    pub tx_dropped: u64,
    /// Receive errors of all kinds.
    pub rx_errors: u64,
    /// Transmit errors of all kinds.
    pub tx_errors: u64,
    /// Frame alignment errors.
    pub rx_frame_err: u64,
    /// Overruns.
    pub rx_over_err: u64,
    /// Checksum errors.
    pub rx_crc_err: u64,
    /// Collisions.
    pub collisions: u64,
    /// Intel's counters by packet size and kind, in the order of their wire form (1.4 and later).
    pub custom: Vec<(String, u64)>,
}

impl PortStats {
    /// All counters unknown.
    pub fn unknown(port: Port) -> PortStats {
        const X: u64 = u64::MAX;
        PortStats {
            port,
            duration_sec: u32::MAX,
            duration_nsec: u32::MAX,
            rx_packets: X,
            tx_packets: X,
            rx_bytes: X,
            tx_bytes: X,
            rx_dropped: X,
            tx_dropped: X,
            rx_errors: X,
            tx_errors: X,
            rx_frame_err: X,
            rx_over_err: X,
            rx_crc_err: X,
            collisions: X,
            custom: Vec::new(),
        }
    }
}

/// Counters of an IPFIX exporter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IpfixStats {
    /// Flows that there ever were.
    pub total_flows: u64,
    /// Flows whose records are still to be sent.
    pub current_flows: u64,
    /// Sampled packets.
    pub packets: u64,
    /// Sampled IPv4 packets that could be parsed.
    pub ipv4_packets: u64,
    /// Sampled IPv6 packets that could be parsed.
    pub ipv6_packets: u64,
    /// Sampled packets that could not be parsed.
    pub error_packets: u64,
    /// Sampled IPv4 packets that could not be parsed.
    pub ipv4_error_packets: u64,
    /// Sampled IPv6 packets that could not be parsed.
    pub ipv6_error_packets: u64,
    /// Messages sent, counted per collector.
    pub tx_packets: u64,
    /// Messages that could not be sent.
    pub tx_errors: u64,
    /// Collector set of the exporter; 0 for the bridge's own.
    pub collector_set: u32,
}

/// One queue's counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueStats {
    /// Port of the queue.
    pub port: Port,
    /// Queue id.
    pub queue: u32,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets dropped for an overrun.
    pub tx_errors: u64,
    /// Seconds since it was made (1.3 and later).
    pub duration_sec: u32,
    /// ... and nanoseconds.
    pub duration_nsec: u32,
}

/// Supported group types and limits, by type (all, select, indirect, fast failover).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupFeatures {
    /// Bits of the supported types.
    pub types: u32,
    /// `OFPGFC_*` bits.
    pub capabilities: u32,
    /// Maximum number of groups of each type.
    pub max_groups: [u32; 4],
    /// Bits of the action types of each, in the numbers of the version at hand.
    pub actions: [u32; 4],
}

/// Supported meter bands and limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MeterFeatures {
    /// Maximum number of meters.
    pub max_meters: u32,
    /// Bits of the supported band types.
    pub band_types: u32,
    /// `OFPMF13_*` bits.
    pub capabilities: u32,
    /// Maximum number of bands of a meter.
    pub max_bands: u8,
    /// Maximum colour value.
    pub max_color: u8,
}
