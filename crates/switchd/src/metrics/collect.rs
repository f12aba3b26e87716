//! The metrics: counters and sizes of all parts of the switch, read at each scrape.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Weak;

use heddle_datapath_api::{DropKind, Engine, PortStats};
use heddle_port::PortStatus;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::cli::COMPATIBLE_VERSION;
use crate::mirror_state::MirrorState;
use crate::switch::Switch;

/// Most ports, receive queues, zones and tunnels that have lines of their own.
pub(super) const MAX_LINES: usize = 8192;
/// Longest label.
const LABEL_CHARS: usize = 64;

/// The switch, which may be gone.
pub(super) struct Collected {
    pub(super) of: Weak<Switch>,
}

impl fmt::Debug for Collected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collected")
    }
}

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(switch) = self.of.upgrade() else {
            return Ok(());
        };
        let mut out = Out(&mut encoder);
        process(&mut out)?;
        ports(&mut out, &switch)?;
        datapath(&mut out, &switch)?;
        workers(&mut out, &switch)?;
        connections(&mut out, &switch)?;
        kernel_connections(&mut out, &switch)?;
        bridges(&mut out, &switch)
    }
}

/// Labels and a value.
type Line<L> = (L, u64);

struct Out<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Out<'_, '_> {
    fn family<L: EncodeLabelSet>(
        &mut self,
        (name, help, kind): (&str, &str, MetricType),
        lines: impl IntoIterator<Item = Line<L>>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in lines {
            value_of(metric.encode_family(&labels)?, kind, value)?;
        }
        Ok(())
    }

    fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        lines: impl IntoIterator<Item = Line<L>>,
    ) -> fmt::Result {
        self.family((name, help, MetricType::Counter), lines)
    }

    fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        lines: impl IntoIterator<Item = Line<L>>,
    ) -> fmt::Result {
        self.family((name, help, MetricType::Gauge), lines)
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        value_of(metric, MetricType::Gauge, value)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        value_of(metric, MetricType::Counter, value)
    }
}

fn value_of(mut metric: MetricEncoder<'_>, kind: MetricType, value: u64) -> fmt::Result {
    match kind {
        MetricType::Counter => metric.encode_counter::<NoLabelSet, u64, u64>(&value, None),
        _ => metric.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX)),
    }
}

/// A name from the configuration, fit for a label.
fn label(name: &str) -> String {
    let clean = |c: char| if c.is_control() { '?' } else { c };
    name.chars().take(LABEL_CHARS).map(clean).collect()
}

fn process(out: &mut Out<'_, '_>) -> fmt::Result {
    let labels = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("openvswitch", COMPATIBLE_VERSION),
    ];
    // A gauge, as programs of Prometheus have it: its older text format has no type `info`, and promtool
    // refuses it.
    out.gauges("build_info", "The program.", [(labels, 1)])?;
    let memory = heddle_sys::memory::usage().ok();
    let resident = memory.as_ref().map_or(0, |m| m.resident);
    out.gauge(
        "memory_resident_bytes",
        "Memory of the process that is in use.",
        resident,
    )?;
    let peak = memory.map_or(0, |m| m.peak);
    out.gauge(
        "memory_peak_bytes",
        "The most memory that the process has used.",
        peak,
    )
}

/// A port's labels and counts.
struct PortLine {
    labels: [(&'static str, String); 3],
    stats: PortStats,
    status: PortStatus,
}

fn ports(out: &mut Out<'_, '_>, switch: &Switch) -> fmt::Result {
    let inventory = switch.inventory.read();
    let own = inventory.interfaces.iter().filter(|(_, item)| !item.shares);
    let all: Vec<_> = own
        .chain(&inventory.shared)
        .filter_map(|(name, item)| Some((name.clone(), item.clone(), item.dp_no?)))
        .collect();
    drop(inventory);
    out.gauge("ports", "Ports of the datapath.", all.len() as u64)?;
    let lines: Vec<PortLine> = all
        .into_iter()
        .take(MAX_LINES)
        .filter_map(|(name, item, no)| {
            Some(PortLine {
                labels: [
                    ("port", label(&name)),
                    ("bridge", label(&item.bridge)),
                    ("type", item.shown.to_owned()),
                ],
                stats: switch.datapath.port_stats(no)?,
                status: item.device.map(|d| d.status()).unwrap_or_default(),
            })
        })
        .collect();
    type Count = (&'static str, &'static str, fn(&PortLine) -> u64);
    const COUNTS: [Count; 8] = [
        ("port_received_packets", "Packets received.", |p| {
            p.stats.rx_packets
        }),
        ("port_received_bytes", "Bytes received.", |p| p.stats.rx_bytes),
        (
            "port_received_dropped",
            "Packets that a receive queue lost or did not take.",
            |p| p.stats.rx_dropped + p.status.rx_dropped,
        ),
        (
            "port_received_errors",
            "Packets received that make no sense.",
            |p| p.stats.rx_errors,
        ),
        ("port_sent_packets", "Packets sent.", |p| p.stats.tx_packets),
        ("port_sent_bytes", "Bytes sent.", |p| p.stats.tx_bytes),
        (
            "port_sent_dropped",
            "Packets not sent: queue full, too long, device down.",
            |p| p.stats.tx_dropped,
        ),
        (
            "port_sent_errors",
            "Packets that the system refused to send.",
            |p| p.stats.tx_errors,
        ),
    ];
    for (name, help, count) in COUNTS {
        out.counters(name, help, lines.iter().map(|p| (&p.labels[..], count(p))))?;
    }
    let up = lines.iter().map(|p| (&p.labels[..], u64::from(p.status.link_up)));
    out.gauges("port_up", "Whether the port's link is up.", up)
}

fn datapath(out: &mut Out<'_, '_>, switch: &Switch) -> fmt::Result {
    let t = switch.datapath.totals();
    out.counter("packets", "Packets that were looked up.", t.packets)?;
    let levels = [
        ("same", t.l0_hits),
        ("exact", t.l1_hits),
        ("wildcarded", t.l2_hits),
        ("translated", t.misses),
    ];
    let lines = levels.map(|(level, n)| ([("level", level)], n));
    out.counters("lookups", "Packets by where the cache found what to do.", lines)?;
    out.counter(
        "masks_probed",
        "Masks that wildcarded lookups went through.",
        t.l2_masks_probed,
    )?;
    out.counter(
        "flow_limit_hits",
        "Flows not cached since there were too many.",
        t.limit_hits,
    )?;
    out.gauge("flows", "Cached flows.", t.flows)?;
    out.gauge(
        "flow_limit",
        "The most cached flows.",
        switch.datapath.flow_limit() as u64,
    )?;
    out.gauge(
        "masks",
        "Masks of cached flows, of the worker that has most.",
        t.masks,
    )?;
    let coverage: BTreeMap<&str, u64> = switch.datapath.coverage().into_iter().collect();
    let drops = DropKind::ALL.iter().map(|kind| {
        let n = coverage.get(kind.name()).copied().unwrap_or(0);
        ([("reason", kind.name())], n)
    });
    out.counters("drops", "Packets dropped, by reason (docs/drops.md).", drops)?;
    let samples = switch.sample_counts.all();
    let events = samples.map(|(name, n)| ([("event", name.trim_start_matches("sample_"))], n));
    out.counters(
        "samples",
        "Local samples: taken, sent, lost (docs/ipfix.md).",
        events,
    )
}

fn workers(out: &mut Out<'_, '_>, switch: &Switch) -> fmt::Result {
    let now = switch.datapath.snapshot();
    out.gauge(
        "cycles_hertz",
        "Cycles of the clock that workers count by, a second.",
        now.tsc_hz,
    )?;
    let workers: Vec<_> = now
        .workers
        .iter()
        .map(|w| {
            let counters: BTreeMap<&str, u64> = w.counters.iter().copied().collect();
            let mut asleep = counters.get("cycles_asleep").copied().unwrap_or(0);
            // The counters do not include a sleep that has not ended.
            let since = counters.get("asleep_since").copied().unwrap_or(0);
            if since != 0 {
                asleep += now.tsc.saturating_sub(since);
            }
            (w.core.to_string(), counters, asleep)
        })
        .collect();
    let of = |c: &BTreeMap<&str, u64>, name: &str| c.get(name).copied().unwrap_or(0);
    let mut counters = |name: &str, help: &str, label: &'static str, parts: &[(&'static str, &str)]| {
        let lines = workers.iter().flat_map(|(core, c, asleep)| {
            parts.iter().map(move |(part, counter)| {
                let n = if *part == "asleep" {
                    *asleep
                } else {
                    of(c, counter)
                };
                ([("core", core.as_str()), (label, *part)], n)
            })
        });
        out.counters(name, help, lines)
    };
    let states = [("busy", "cycles_busy"), ("idle", "cycles_idle"), ("asleep", "")];
    counters(
        "worker_cycles",
        "Cycles by what the worker did.",
        "state",
        &states,
    )?;
    let stages = [
        ("receive", "cycles_rx"),
        ("parse", "cycles_parse"),
        ("lookup", "cycles_lookup"),
        ("translate", "cycles_translate"),
        ("actions", "cycles_exec"),
        ("send", "cycles_tx"),
    ];
    counters(
        "worker_stage_cycles",
        "Busy cycles by stage; some are measured and stand for all.",
        "stage",
        &stages,
    )?;
    let kinds = [("busy", "iterations_busy"), ("all", "iterations")];
    counters(
        "worker_iterations",
        "Rounds over the receive queues.",
        "kind",
        &kinds,
    )?;
    let events = [
        ("packets", "packets"),
        ("recirculated", "recirculated"),
        ("waited", "waited"),
        ("bursts", "bursts"),
        ("sleeps", "sleeps"),
        ("revalidated", "revalidated"),
        ("not_cached", "not_cached"),
    ];
    counters(
        "worker_events",
        "Things that happened, by name.",
        "event",
        &events,
    )?;
    let flows = workers
        .iter()
        .map(|(core, c, _)| ([("core", core.as_str())], of(c, "flows")));
    out.gauges("worker_flows", "Flows that the worker has cached.", flows)?;
    let queues: Vec<_> = now
        .queues
        .iter()
        .take(MAX_LINES)
        .map(|q| {
            let core = q.core.map_or_else(String::new, |core| core.to_string());
            let labels = [
                ("port", label(&q.port)),
                ("queue", q.queue.to_string()),
                ("core", core),
            ];
            (labels, q.percent)
        })
        .collect();
    let percent = queues.iter().filter_map(|(labels, percent)| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to 100"
        )]
        let percent = (*percent)? as u64;
        Some((&labels[..], percent))
    });
    out.gauges(
        "queue_worker_percent",
        "Share of its worker's last minute that a receive queue took, in percent.",
        percent,
    )
}

fn connections(out: &mut Out<'_, '_>, switch: &Switch) -> fmt::Result {
    let tracker = switch.datapath.conntrack();
    out.gauge("connections", "Tracked connections.", tracker.n_conns().into())?;
    out.gauge(
        "connections_limit",
        "The most tracked connections.",
        tracker.max_conns().into(),
    )?;
    let zones: Vec<_> = tracker
        .zone_limits()
        .into_iter()
        .take(MAX_LINES)
        .map(|z| ([("zone", z.zone.to_string())], z.count, z.limit))
        .collect();
    let counts = zones
        .iter()
        .map(|(labels, count, _)| (&labels[..], u64::from(*count)));
    out.gauges(
        "zone_connections",
        "Connections of zones that have limits.",
        counts,
    )?;
    let limits = zones
        .iter()
        .map(|(labels, _, limit)| (&labels[..], u64::from(*limit)));
    out.gauges("zone_connections_limit", "Limits of zones; 0: none.", limits)?;
    let drops: Vec<&str> = DropKind::ALL.iter().map(|kind| kind.name()).collect();
    let events = switch.datapath.coverage().into_iter();
    let events = events
        .filter(|(name, _)| !drops.contains(name))
        .map(|(name, n)| ([("event", name)], n));
    out.counters(
        "connection_events",
        "Events of connection tracking, by name.",
        events,
    )
}

/// The mirror of connections in the kernel's table, if it is on.
fn kernel_connections(out: &mut Out<'_, '_>, switch: &Switch) -> fmt::Result {
    let MirrorState::On(counts) = switch.kernel_conntrack.state() else {
        return Ok(());
    };
    let states = [
        ("mirrored", counts.entries),
        ("refused", counts.refused),
        ("over_limit", counts.over_limit),
        ("no_room", counts.no_room),
    ];
    out.gauges(
        "kernel_connections",
        "Connections by their state in the kernel's table.",
        states.map(|(state, n)| ([("state", state)], n as u64)),
    )?;
    let events = [
        ("written", counts.written),
        ("changed", counts.changed),
        ("removed", counts.removed),
        ("deletion_followed", counts.deletions),
        ("comparison", counts.comparisons),
    ];
    out.counters(
        "kernel_connection_events",
        "Events of the mirror in the kernel's table, by name.",
        events.map(|(event, n)| ([("event", event)], n)),
    )
}

fn bridges(out: &mut Out<'_, '_>, switch: &Switch) -> fmt::Result {
    let bridges = switch.ofproto.bridges();
    let lines: Vec<_> = bridges
        .iter()
        .take(MAX_LINES)
        .map(|b| {
            let rules: usize = b.tables.iter().map(|t| t.rules.len()).sum();
            (
                [("bridge", label(&b.name))],
                rules,
                b.n_ports(),
                b.n_subscribers(),
            )
        })
        .collect();
    let number = |n: usize| n as u64;
    let rules = lines.iter().map(|(labels, n, ..)| (&labels[..], number(*n)));
    out.gauges("bridge_rules", "OpenFlow rules.", rules)?;
    let ports = lines.iter().map(|(labels, _, n, _)| (&labels[..], number(*n)));
    out.gauges("bridge_ports", "Ports of a bridge.", ports)?;
    let connected = lines.iter().map(|(labels, .., n)| (&labels[..], number(*n)));
    out.gauges(
        "openflow_connections",
        "Controllers and tools that are connected.",
        connected,
    )?;
    let inventory = switch.inventory.read();
    let mut tunnels: BTreeMap<&'static str, u64> = BTreeMap::new();
    for item in inventory.interfaces.values().filter(|item| item.shares) {
        *tunnels.entry(item.shown).or_default() += 1;
    }
    drop(inventory);
    let tunnels = tunnels.into_iter().map(|(kind, n)| ([("type", kind)], n));
    out.gauges("tunnels", "Tunnel ports, by type.", tunnels)
}
