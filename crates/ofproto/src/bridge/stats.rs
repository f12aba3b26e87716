//! Replies to requests of controllers: features, descriptions, statistics.

use super::select::Select;
use super::tables::N_SHOWN_TABLES;
use super::{Bridge, Linked, PortTarget, ports::PortState};
use crate::model::{N_TABLES, Rule};
use crate::standby::FailoverPair;
use crate::stats::Stats;
use heddle_openflow::message::{
    AggregateStats, Capabilities, DescStats, FlowModFlags, FlowStats, FlowStatsRequest, MpReply, MpRequest,
    PortStats, SwitchFeatures, TableStats,
};
use heddle_openflow::{ErrorKind, InstructionSet, Port as OfPort, Version};
use std::sync::atomic::Ordering::Relaxed;

/// OpenFlow 1.0 action types 0 to 11: all.
const ACTIONS_1_0: u32 = 0x0fff;

/// Seconds and nanoseconds between two coarse times.
pub(super) fn age(now_ms: u64, then_ms: u64) -> (u32, u32) {
    let ms = now_ms.saturating_sub(then_ms);
    (
        u32::try_from(ms / 1000).unwrap_or(u32::MAX),
        u32::try_from(ms % 1000 * 1_000_000).unwrap_or(0),
    )
}

fn seconds(now_ms: u64, then_ms: u64) -> u16 {
    u16::try_from(now_ms.saturating_sub(then_ms) / 1000).unwrap_or(u16::MAX)
}

pub(super) fn counts(stats: &Stats) -> (u64, u64) {
    (stats.packets.load(Relaxed), stats.bytes.load(Relaxed))
}

impl Bridge {
    /// The reply to `OFPT_FEATURES_REQUEST`.
    pub fn features(&self, version: Version) -> SwitchFeatures {
        let mut capabilities = Capabilities::FLOW_STATS
            | Capabilities::TABLE_STATS
            | Capabilities::PORT_STATS
            | Capabilities::QUEUE_STATS;
        if version >= Version::V14 {
            capabilities |= Capabilities::BUNDLES;
        }
        if version >= Version::V11 {
            capabilities |= Capabilities::GROUP_STATS;
        }
        if version <= Version::V11 {
            capabilities |= Capabilities::ARP_MATCH_IP;
        }
        let datapath_id = self.state.lock().config.datapath_id;
        SwitchFeatures {
            datapath_id,
            n_buffers: 0,
            n_tables: N_SHOWN_TABLES,
            auxiliary_id: 0,
            capabilities,
            actions: ACTIONS_1_0,
            ports: self.port_descs(),
        }
    }

    /// The reply to a multipart request.
    pub fn multipart(&self, version: Version, request: &MpRequest) -> Result<MpReply, ErrorKind> {
        Ok(match request {
            MpRequest::Desc => MpReply::Desc(self.desc()),
            MpRequest::Flow(r) => MpReply::Flow {
                nxm: r.nxm,
                flows: self.flow_dump(version, r)?.collect(),
            },
            MpRequest::Aggregate(r) => MpReply::Aggregate {
                nxm: r.nxm,
                stats: self.aggregate(r)?,
            },
            MpRequest::Table => MpReply::Table(self.table_stats()),
            MpRequest::Port(p) => MpReply::Port(self.port_stats(*p)),
            MpRequest::Queue { port, queue } => MpReply::Queue(self.queue_stats(*port, *queue)?),
            MpRequest::PortDesc(p) => MpReply::PortDesc(self.some_port_descs(*p)),
            MpRequest::TableFeatures(wanted) => {
                self.change_table_features(wanted)?;
                MpReply::TableFeatures(self.table_features())
            }
            MpRequest::TableDesc => MpReply::TableDesc(self.table_descs()),
            MpRequest::QueueDesc(q) => MpReply::QueueDesc(self.queue_configs(q)?),
            MpRequest::GroupStats(id) => MpReply::GroupStats(self.group_stats(*id)),
            MpRequest::GroupDesc(id) => MpReply::GroupDesc(self.group_descs(*id)),
            MpRequest::GroupFeatures => MpReply::GroupFeatures(Self::group_features(version)),
            MpRequest::MeterStats(id) => MpReply::MeterStats(self.meter_stats(*id)?),
            MpRequest::MeterConfig(id) => MpReply::MeterConfig(self.meter_configs(*id)?),
            MpRequest::MeterFeatures => MpReply::MeterFeatures(Self::meter_features()),
            MpRequest::IpfixBridge => MpReply::IpfixBridge(
                self.of
                    .upgrade()
                    .and_then(|of| of.sampling().bridge_stats(self.id))
                    .ok_or(ErrorKind::NxStatsNotConfigured)?,
            ),
            MpRequest::IpfixFlow => {
                let all = self.of.upgrade().map(|of| of.sampling().set_stats(self.id));
                let all = all.filter(|all| !all.is_empty());
                MpReply::IpfixFlow(all.ok_or(ErrorKind::NxStatsNotConfigured)?)
            }
            // The connection carries this request out before it comes here.
            MpRequest::FlowMonitor(_) => return Err(ErrorKind::BadRequestBadStat),
        })
    }

    fn desc(&self) -> DescStats {
        let config = self.config();
        DescStats {
            mfr_desc: "Nicira, Inc.".into(),
            hw_desc: "Open vSwitch".into(),
            sw_desc: crate::COMPATIBLE_VERSION.into(),
            serial_num: config.dp_sn.unwrap_or_else(|| "None".into()),
            dp_desc: config.dp_desc.unwrap_or_else(|| "None".into()),
        }
    }

    /// Makes rule counters current. Cheap enough for every request; the workers are not disturbed.
    pub(super) fn refresh(&self) {
        if let Some(dp) = self.of.upgrade().and_then(|of| of.engine()) {
            dp.flush_stats();
        }
    }

    /// The flows that a request is about, as they are now.
    pub(crate) fn flow_dump(&self, version: Version, r: &FlowStatsRequest) -> Result<FlowDump, ErrorKind> {
        check_table(r.table_id)?;
        self.refresh();
        Ok(FlowDump {
            version,
            now_ms: self.now_ms(),
            flows: Select::for_stats(r).run(self, self.current_version()).into_iter(),
        })
    }

    fn aggregate(&self, r: &FlowStatsRequest) -> Result<AggregateStats, ErrorKind> {
        check_table(r.table_id)?;
        self.refresh();
        let mut sum = AggregateStats::default();
        for e in Select::for_stats(r).run(self, self.current_version()) {
            let (packets, bytes) = counts(e.data.stats.seen());
            sum.packet_count = sum.packet_count.saturating_add(packets);
            sum.byte_count = sum.byte_count.saturating_add(bytes);
            sum.flow_count += 1;
        }
        Ok(sum)
    }

    fn table_stats(&self) -> Vec<TableStats> {
        self.refresh();
        let state = self.state.lock();
        let shown = self.tables.iter().take(N_SHOWN_TABLES.into());
        shown
            .map(|t| {
                let (matched, missed) = (counts(&t.matched).0, counts(&t.missed).0);
                let table = &state.tables[usize::from(t.id)];
                TableStats {
                    name: table.name().to_owned(),
                    table_id: t.id,
                    max_entries: table.max_entries(),
                    active_count: u32::try_from(table.n_flows).unwrap_or(u32::MAX),
                    lookup_count: matched + missed,
                    matched_count: matched,
                }
            })
            .collect()
    }

    fn some_port_descs(&self, which: OfPort) -> Vec<heddle_openflow::message::PortDesc> {
        let all = self.port_descs();
        all.into_iter()
            .filter(|d| which == OfPort::NONE || d.port == which)
            .collect()
    }

    /// Statistics of ports. As in Open vSwitch, a port that does not exist gives an empty reply, not an
    /// error.
    fn port_stats(&self, which: OfPort) -> Vec<PortStats> {
        self.refresh();
        let now = self.now_ms();
        let state = self.state.lock();
        let wanted = state
            .ports
            .values()
            .filter(|p| which == OfPort::NONE || p.config.no == which);
        wanted.map(|p| self.one_port(p, now)).collect()
    }

    fn one_port(&self, p: &PortState, now: u64) -> PortStats {
        let (duration_sec, duration_nsec) = age(now, p.created_ms);
        let mut out = PortStats {
            duration_sec,
            duration_nsec,
            ..PortStats::unknown(p.config.no)
        };
        match &p.config.target {
            PortTarget::Patch(_) | PortTarget::Tunnel(_) => {
                (out.rx_packets, out.rx_bytes) = counts(&p.patch_rx);
                (out.tx_packets, out.tx_bytes) = counts(&p.patch_tx);
            }
            PortTarget::Datapath(no) => {
                let dp = self.of.upgrade().and_then(|of| of.engine());
                let device = dp.as_ref().and_then(|dp| dp.device_stats(*no));
                if let Some(s) = dp.and_then(|dp| dp.port_stats(*no)) {
                    out.rx_packets = s.rx_packets;
                    out.rx_bytes = s.rx_bytes;
                    out.tx_packets = s.tx_packets;
                    out.tx_bytes = s.tx_bytes;
                    // ... and what the device lost before a receive queue saw it.
                    out.rx_dropped = s.rx_dropped + device.as_ref().map_or(0, |d| d.rx_dropped);
                    out.tx_dropped = s.tx_dropped;
                    out.rx_errors = s.rx_errors;
                    out.tx_errors = s.tx_errors;
                }
                let standby = p.config.standby.as_ref().map(FailoverPair::standby_port);
                if let Some(s) = standby.and_then(|no| self.of.upgrade()?.engine()?.port_stats(no)) {
                    out.rx_packets += s.rx_packets;
                    out.rx_bytes += s.rx_bytes;
                    out.tx_packets += s.tx_packets;
                    out.tx_bytes += s.tx_bytes;
                    out.rx_dropped += s.rx_dropped;
                    out.tx_dropped += s.tx_dropped;
                    out.rx_errors += s.rx_errors;
                    out.tx_errors += s.tx_errors;
                }
                if let Some(device) = device {
                    out.custom = device.custom;
                    if let Some(counters) = device.driver {
                        out.collisions = counters.collisions;
                        out.rx_crc_err = counters.rx_crc_errors;
                        out.rx_frame_err = counters.rx_frame_errors;
                        out.rx_over_err = counters.rx_over_errors;
                    }
                    if !device.counts_losses {
                        let unknown = PortStats::unknown(p.config.no);
                        (out.rx_dropped, out.tx_dropped) = (unknown.rx_dropped, unknown.tx_dropped);
                        (out.rx_errors, out.tx_errors) = (unknown.rx_errors, unknown.tx_errors);
                    }
                }
            }
            PortTarget::Unbound => {}
        }
        out
    }

    /// Packets and bytes of a patch or tunnel port: received, sent.
    pub fn patch_stats(&self, no: OfPort) -> Option<((u64, u64), (u64, u64))> {
        let state = self.state.lock();
        let p = state.ports.get(&no)?;
        Some((counts(&p.patch_rx), counts(&p.patch_tx)))
    }
}

/// Flows that were there at one moment, described one by one.
pub(crate) struct FlowDump {
    version: Version,
    now_ms: u64,
    flows: std::vec::IntoIter<Linked>,
}

impl Iterator for FlowDump {
    type Item = FlowStats;
    fn next(&mut self) -> Option<FlowStats> {
        let flow = self.flows.next()?;
        Some(one_flow(self.version, &flow.data, self.now_ms))
    }
}

fn check_table(t: u8) -> Result<(), ErrorKind> {
    if t != 0xff && usize::from(t) >= N_TABLES {
        Err(ErrorKind::BadRequestBadTableId)
    } else {
        Ok(())
    }
}

fn one_flow(version: Version, rule: &Rule, now: u64) -> FlowStats {
    let (duration_sec, duration_nsec) = age(now, rule.created_ms);
    let (packet_count, byte_count) = counts(rule.stats.seen());
    let mut flags = FlowModFlags::from_bits_truncate(rule.flags);
    if version < Version::V13 {
        // OpenFlow before 1.3 has no room for them in statistics.
        flags = FlowModFlags::empty();
    }
    FlowStats {
        table_id: rule.table,
        match_: rule.wide_match(),
        priority: rule.priority,
        cookie: rule.cookie,
        duration_sec,
        duration_nsec,
        idle_timeout: rule.idle_timeout.load(Relaxed),
        hard_timeout: rule.hard_timeout.load(Relaxed),
        idle_age: Some(seconds(now, rule.used_ms())),
        hard_age: Some(seconds(now, rule.modified_ms.load(Relaxed))),
        flags,
        importance: rule.importance,
        packet_count,
        byte_count,
        instructions: InstructionSet::clone(&rule.instructions),
    }
}
