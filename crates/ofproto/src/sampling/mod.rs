//! Samples of packets, for IPFIX collectors and for local readers: configuration, exporters and counting.
//!
//! **Shape.** A translation emits samples if the bridge is configured so ([`IpfixConfig::bridge`]) or a rule
//! has the action. Each sample carries what the translation knows of the port and the tunnel
//! ([`SampleMeta`]). Workers put copies of headers into rings of their own and never wait: a sample without
//! room is lost and counted (`datapath_drop_sample_error`). One thread takes samples out ([`Sampling::run`]),
//! counts them in the exporter that they are for ([`heddle_ipfix::Exporter`]), and sends records through UDP
//! sockets that never block. Samples of a set with a local group also go to the caller ([`LocalSample`]).
//!
//! **Floods.** The thread rests as long as it has worked, so samples cost at most half a processor. A worker
//! copies at most what its ring holds between two visits. No thread waits for this one, nor for its lock
//! longer than a batch takes.
//!
//! **Order of locks.** `exporters` is a leaf: nothing is called with it held.

mod collectors;
mod local;
mod meta;
#[cfg(test)]
mod tests;

pub use local::{LocalSample, MAX_LOCAL_SAMPLE_BYTES};
pub(crate) use meta::{SampleMeta, SampledTunnel, WhichExporter};

use collectors::{Collectors, Indices};
use heddle_datapath_api::{Engine, UpcallPacket};
use heddle_flow::FlowKey;
use heddle_flow::extract::{Hint, extract};
use heddle_ipfix::{CacheConfig, Exporter, Sampled, Stats};
use heddle_openflow::message::IpfixStats;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Samples that are taken out of rings in one go.
const BATCH: usize = 512;
/// UDP port of a collector whose target has none (RFC 7011 §10.3.4).
const DEFAULT_PORT: u16 = 4739;

/// One row of `IPFIX`, as far as all exporters share it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExporterConfig {
    /// Addresses of collectors, as the database has them.
    pub targets: BTreeSet<String>,
    /// `cache_active_timeout`.
    pub active_timeout_s: u32,
    /// `cache_max_flows`.
    pub max_flows: u32,
    /// `other_config:enable-tunnel-sampling`.
    pub tunnels: bool,
    /// `other_config:virtual_obs_id`.
    pub virtual_obs_id: Option<String>,
}

/// `Bridge.ipfix`: all packets of a bridge are sampled.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BridgeSampling {
    /// Collectors, and settings of the cache.
    pub exporter: ExporterConfig,
    /// Sampling rate: one packet out of this number.
    pub sampling: u32,
    /// `obs_domain_id`.
    pub domain: u32,
    /// `obs_point_id`.
    pub point: u32,
    /// Packets are sampled as they come in.
    pub input: bool,
    /// Packets are sampled as they go out.
    pub output: bool,
}

impl BridgeSampling {
    /// Sampling probability, as a fraction of 2³²−1.
    pub(crate) fn probability(&self) -> u32 {
        (u32::MAX / self.sampling.max(1)).max(1)
    }
}

/// The sampling of one bridge.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IpfixConfig {
    /// All packets.
    pub bridge: Option<BridgeSampling>,
    /// Rows of `Flow_Sample_Collector_Set` by `id`: those that rules name.
    pub sets: BTreeMap<u32, ExporterConfig>,
    /// Groups of local samples by the `id` of their rows of `Flow_Sample_Collector_Set`.
    pub local_groups: BTreeMap<u32, u32>,
}

impl IpfixConfig {
    /// Whether no packet is sampled, so that sample actions of rules have no effect.
    pub fn is_empty(&self) -> bool {
        self.bridge.is_none() && self.sets.is_empty() && self.local_groups.is_empty()
    }
}

/// An exporter with its settings and collectors.
struct Active {
    config: ExporterConfig,
    exporter: Exporter,
    collectors: Collectors,
}

impl Active {
    /// `None`: no collector could be initialized.
    fn new(id: u32, config: &ExporterConfig) -> Option<Self> {
        let collectors = Collectors::new(&config.targets, DEFAULT_PORT);
        if collectors.is_empty() {
            log::warn!(target: "ipfix", per_min = 1, burst = 5;
                "no collectors could be initialized, IPFIX exporter disabled");
            return None;
        }
        Some(Self {
            config: config.clone(),
            exporter: Exporter::new(id, cache(config)),
            collectors,
        })
    }

    /// Takes over new settings. `false`: no collector is left.
    fn configure(&mut self, config: &ExporterConfig) -> bool {
        if self.config == *config {
            return true;
        }
        if self.config.targets != config.targets {
            self.end();
            self.collectors = Collectors::new(&config.targets, DEFAULT_PORT);
        }
        self.config = config.clone();
        self.exporter.configure(cache(config));
        self.expire();
        !self.collectors.is_empty()
    }

    fn expire(&mut self) {
        let collectors = &mut self.collectors;
        self.exporter.expire(now_us(), &mut |m| collectors.send(m));
    }

    fn end(&mut self) {
        let collectors = &mut self.collectors;
        self.exporter.end(now_us(), &mut |m| collectors.send(m));
    }
}

fn cache(config: &ExporterConfig) -> CacheConfig {
    CacheConfig {
        active_timeout_s: config.active_timeout_s,
        max_flows: config.max_flows,
        virtual_obs_id: config.virtual_obs_id.clone(),
    }
}

/// Microseconds since 1970.
fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// An exporter's bridge, and whether it is the bridge's own or that of a set.
type Id = (u64, WhichExporter);

#[derive(Default)]
struct Exporters {
    all: HashMap<Id, Active>,
    /// Exporters that there ever were.
    last_id: u32,
    indices: Indices,
}

/// All exporters of the switch.
#[derive(Default)]
pub struct Sampling {
    exporters: Mutex<Exporters>,
}

impl Sampling {
    /// Makes a bridge's exporters match `config`. Returns the part of `config` that has exporters; `None`:
    /// `config` is empty.
    pub(crate) fn configure(&self, bridge: u64, config: &IpfixConfig) -> Option<Arc<IpfixConfig>> {
        let mut done = config.clone();
        let mut wanted: BTreeMap<WhichExporter, &ExporterConfig> = BTreeMap::new();
        wanted.extend(config.bridge.iter().map(|b| (WhichExporter::Bridge, &b.exporter)));
        wanted.extend(config.sets.iter().map(|(id, c)| (WhichExporter::Set(*id), c)));
        let mut e = self.exporters.lock();
        e.all.retain(|(of, which), active| {
            let stays = *of != bridge || wanted.get(which).is_some_and(|c| active.configure(c));
            if !stays {
                active.end();
            }
            stays
        });
        for (which, config) in wanted {
            if e.all.contains_key(&(bridge, which)) {
                continue;
            }
            e.last_id = e.last_id.wrapping_add(1);
            match Active::new(e.last_id, config) {
                Some(active) => _ = e.all.insert((bridge, which), active),
                None => match which {
                    WhichExporter::Bridge => done.bridge = None,
                    WhichExporter::Set(id) => _ = done.sets.remove(&id),
                },
            }
        }
        // If a set has no exporter, samples for it are still shown in actions, but counted nowhere.
        (!config.is_empty()).then(|| Arc::new(done))
    }

    /// Ends all exporters: their records go out.
    pub fn end(&self) {
        let mut e = self.exporters.lock();
        e.all.values_mut().for_each(Active::end);
        e.all.clear();
    }

    /// Counters of a bridge's own exporter.
    pub(crate) fn bridge_stats(&self, bridge: u64) -> Option<IpfixStats> {
        let e = self.exporters.lock();
        let active = e.all.get(&(bridge, WhichExporter::Bridge))?;
        Some(stats(active.exporter.stats(), 0))
    }

    /// Counters of the exporters that a bridge's rules name, by their ids.
    pub(crate) fn set_stats(&self, bridge: u64) -> Vec<IpfixStats> {
        let e = self.exporters.lock();
        let of_bridge = e.all.iter().filter(|((of, _), _)| *of == bridge);
        let sets = of_bridge.filter_map(|((_, which), active)| match which {
            WhichExporter::Bridge => None,
            WhichExporter::Set(id) => Some((*id, stats(active.exporter.stats(), *id))),
        });
        sets.collect::<BTreeMap<_, _>>().into_values().collect()
    }

    /// Takes samples, gives local ones to `local`, and sends the records whose time has come. Returns whether
    /// samples may be left, and when the next record is due, microseconds from now.
    pub fn run(&self, engine: &dyn Engine, local: &mut dyn FnMut(&LocalSample<'_>)) -> (bool, Option<u64>) {
        let mut waiting = Vec::new();
        let n = engine.take_samples(BATCH, &mut |upcall| waiting.push(upcall));
        waiting.iter().filter_map(LocalSample::of).for_each(|s| local(&s));
        let now_us = now_us();
        let mut e = self.exporters.lock();
        let Exporters { all, indices, .. } = &mut *e;
        for upcall in &waiting {
            count(all, indices, upcall, now_us);
        }
        let mut due_us = None;
        for active in all.values_mut() {
            if active.exporter.due_us().is_some_and(|due| due <= now_us) {
                active.expire();
            }
            due_us = due_us.into_iter().chain(active.exporter.due_us()).min();
        }
        (n == BATCH, due_us.map(|due| due.saturating_sub(now_us)))
    }
}

/// Counts one sample in its exporter.
fn count(all: &mut HashMap<Id, Active>, indices: &mut Indices, upcall: &UpcallPacket, now_us: u64) {
    let Some(meta) = upcall.upcall.cookie.0.as_any().downcast_ref::<SampleMeta>() else {
        return;
    };
    let Some(active) = all.get_mut(&(meta.bridge, meta.which)) else {
        return;
    };
    let mut key = FlowKey::default();
    let hint = Hint {
        total_len: upcall.total_len,
        packet_type: upcall.packet_type,
        vlan_limit: 2,
    };
    extract(&upcall.bytes, &hint, &mut key);
    let tunnel = meta.tunnel.as_ref().filter(|_| active.config.tunnels);
    let tunnel = tunnel.and_then(|t| t.of(&upcall.key));
    let input = indices.interface(&meta.input, now_us);
    let output = indices.interface(&meta.output, now_us);
    let sampled = Sampled {
        key: &key,
        bytes: upcall.wire_bytes,
        segments: upcall.segments.into(),
        each: meta.each(),
        domain: meta.domain,
        point: meta.point,
        direction: meta.direction(),
        input: &input,
        output: &output,
        tunnel: tunnel.as_ref(),
        dropped: !meta.forwards(),
    };
    let collectors = &mut active.collectors;
    active
        .exporter
        .sample(&sampled, now_us, &mut |m| collectors.send(m));
}

fn stats(s: Stats, collector_set: u32) -> IpfixStats {
    IpfixStats {
        total_flows: s.total_flows,
        current_flows: s.current_flows,
        packets: s.packets,
        ipv4_packets: s.ipv4_packets,
        ipv6_packets: s.ipv6_packets,
        error_packets: s.error_packets,
        ipv4_error_packets: s.ipv4_error_packets,
        ipv6_error_packets: s.ipv6_error_packets,
        tx_packets: s.tx_messages,
        tx_errors: s.tx_errors,
        collector_set,
    }
}
