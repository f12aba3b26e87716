//! The cache of flows whose records are still to be sent, and their messages.
//!
//! **Invariants.** `order` names every flow of `flows` once, oldest first by its first packet.
//!
//! **Costs.** A packet costs one lookup of its flow. Sending costs are per record.

use crate::record::{Counts, Key, Sampled, Span, Totals, put_counters, put_text};
use crate::template::{Kind, L3, L4, STATS, STATS_ID, put_field};
use std::collections::{HashMap, VecDeque};

/// Maximum number of flows of an exporter, also if `cache_max_flows` is larger.
pub const MAX_FLOWS: usize = 1 << 17;
/// Maximum number of observation domains. If there are more, the state of all is dropped.
pub const MAX_DOMAINS: usize = 4096;
/// Templates are repeated after this time (RFC 7011 §8.4): datagrams get lost, and collectors restart.
const TEMPLATE_INTERVAL_S: u64 = 600;
/// Length from which on a message is sent, bytes.
const FULL: usize = 1024;
const VERSION: u16 = 10;
const HEADER_LEN: usize = 16;
const TEMPLATE_SET: u16 = 2;
const OPTIONS_TEMPLATE_SET: u16 = 3;

/// Reasons why a record is sent (RFC 5102 §5.11.3).
const ACTIVE_TIMEOUT: u8 = 2;
const FORCED_END: u8 = 4;
const LACK_OF_RESOURCES: u8 = 5;

/// Limits of the flow cache.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CacheConfig {
    /// Time from a flow's first packet until its record is sent, seconds. 0: at once.
    pub active_timeout_s: u32,
    /// Maximum number of flows in the cache. Beyond it the oldest flow's record is sent. 0: no cache.
    pub max_flows: u32,
    /// Name of the exporter, a field of all records.
    pub virtual_obs_id: Option<String>,
}

/// Counters of an exporter, as OpenFlow shows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Flows since the start.
    pub total_flows: u64,
    /// Flows in the cache.
    pub current_flows: u64,
    /// Sampled packets.
    pub packets: u64,
    /// IPv4 packets of a known protocol.
    pub ipv4_packets: u64,
    /// IPv6 packets of a known protocol.
    pub ipv6_packets: u64,
    /// IP packets of other protocols.
    pub error_packets: u64,
    /// IPv4 packets of other protocols.
    pub ipv4_error_packets: u64,
    /// IPv6 packets of other protocols.
    pub ipv6_error_packets: u64,
    /// Messages sent, counted per collector.
    pub tx_messages: u64,
    /// Messages that could not be sent, counted per collector.
    pub tx_errors: u64,
}

struct Flow {
    start_us: u64,
    end_us: u64,
    counts: Counts,
    /// The exporter's totals at the last packet.
    totals: Totals,
}

#[derive(Default)]
struct Domain {
    /// Number of data records sent (RFC 7011 §3.1).
    sequence: u32,
    /// Time at which its templates are sent again, seconds since 1970.
    templates_due_s: u64,
}

/// An exporter: its flow cache, and the state of each observation domain.
pub struct Exporter {
    /// Id of the exporting process.
    id: u32,
    config: CacheConfig,
    flows: HashMap<Key, Flow>,
    order: VecDeque<(u64, Key)>,
    domains: HashMap<u32, Domain>,
    totals: Totals,
    stats: Stats,
}

/// Sends a message to all collectors. Returns the number of collectors to which it was sent, and the number
/// of failures.
pub(crate) type Send<'a> = &'a mut dyn FnMut(&[u8]) -> (u64, u64);

impl Exporter {
    /// An exporter without flows. `id` distinguishes it from others of the same address.
    pub fn new(id: u32, config: CacheConfig) -> Self {
        Self {
            id,
            config,
            flows: HashMap::new(),
            order: VecDeque::new(),
            domains: HashMap::new(),
            totals: Totals::default(),
            stats: Stats::default(),
        }
    }

    /// Changes the limits of the cache. Flows stay until [`Exporter::expire`].
    pub fn configure(&mut self, config: CacheConfig) {
        if config.virtual_obs_id != self.config.virtual_obs_id {
            // The templates change, so they are sent again.
            self.domains.clear();
        }
        self.config = config;
    }

    /// The counters, as OpenFlow shows them.
    pub fn stats(&self) -> Stats {
        Stats {
            current_flows: self.flows.len() as u64,
            ..self.stats
        }
    }

    /// Adds a packet that was sampled at `now_us` (microseconds since 1970).
    pub fn sample(&mut self, sampled: &Sampled<'_>, now_us: u64, send: Send<'_>) {
        let key = Key::of(sampled);
        let counts = Counts::of(sampled, key.kind, &mut self.totals);
        self.count(key.kind);
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.counts.add(&counts);
            flow.end_us = flow.end_us.max(now_us);
            flow.totals = self.totals;
            return;
        }
        self.stats.total_flows += 1;
        self.order.push_back((now_us, key.clone()));
        let flow = Flow {
            start_us: now_us,
            end_us: now_us,
            counts,
            totals: self.totals,
        };
        self.flows.insert(key, flow);
        if self.flows.len() > self.max_flows() {
            self.expire(now_us, send);
        }
    }

    fn max_flows(&self) -> usize {
        usize::try_from(self.config.max_flows).map_or(MAX_FLOWS, |n| n.min(MAX_FLOWS))
    }

    fn count(&mut self, kind: Kind) {
        let s = &mut self.stats;
        s.packets += 1;
        match (kind.l3, kind.l4 == L4::None) {
            (L3::None, _) => {}
            (L3::V4, false) => s.ipv4_packets += 1,
            (L3::V6, false) => s.ipv6_packets += 1,
            (L3::V4, true) => {
                s.ipv4_error_packets += 1;
                s.error_packets += 1;
            }
            (L3::V6, true) => {
                s.ipv6_error_packets += 1;
                s.error_packets += 1;
            }
        }
    }

    /// The time at which [`Exporter::expire`] is to be called, microseconds since 1970; `None`: there are no
    /// flows.
    pub fn due_us(&self) -> Option<u64> {
        let (start_us, _) = self.order.front()?;
        Some(start_us + u64::from(self.config.active_timeout_s) * 1_000_000)
    }

    /// Sends the records of flows that have timed out, and of those beyond the cache's size.
    pub fn expire(&mut self, now_us: u64, send: Send<'_>) {
        self.flush(now_us, false, send);
    }

    /// Sends the records of all flows, as the exporter ends.
    pub fn end(&mut self, now_us: u64, send: Send<'_>) {
        self.flush(now_us, true, send);
    }

    fn flush(&mut self, now_us: u64, all: bool, send: Send<'_>) {
        let mut message = Message::default();
        // Rounded up, so that no time in the message is later than its header, which has whole seconds.
        let export_s = now_us.div_ceil(1_000_000);
        while let Some((start_us, _)) = self.order.front() {
            let timeout_us = u64::from(self.config.active_timeout_s) * 1_000_000;
            let reason = if all {
                FORCED_END
            } else if start_us.saturating_add(timeout_us) <= now_us {
                ACTIVE_TIMEOUT
            } else if self.flows.len() > self.max_flows() {
                LACK_OF_RESOURCES
            } else {
                break;
            };
            let Some((_, key)) = self.order.pop_front() else {
                break;
            };
            let Some(flow) = self.flows.remove(&key) else {
                continue;
            };
            if message.domain != Some(key.domain) || message.bytes.len() >= FULL {
                self.send(&mut message, send);
                self.templates(key.domain, export_s, send);
                message.begin(key.domain, export_s, self.sequence(key.domain));
            }
            let span = Span {
                start_us: (export_s * 1_000_000).saturating_sub(flow.start_us),
                end_us: (export_s * 1_000_000).saturating_sub(flow.end_us),
                reason,
            };
            let name = self.config.virtual_obs_id.as_deref();
            message.set(key.kind.id(), |out| {
                out.extend(&key.bytes);
                if let Some(name) = name {
                    put_text(name, out);
                }
                put_counters(key.kind, span, &flow.counts, &flow.totals, out);
            });
            self.advance(key.domain, 1);
        }
        self.send(&mut message, send);
    }

    fn sequence(&self, domain: u32) -> u32 {
        self.domains.get(&domain).map_or(0, |d| d.sequence)
    }

    fn advance(&mut self, domain: u32, records: u32) {
        let d = self.domains.entry(domain).or_default();
        d.sequence = d.sequence.wrapping_add(records);
    }

    fn send(&mut self, message: &mut Message, send: Send<'_>) {
        let Some(bytes) = message.finish() else { return };
        let (sent, failed) = send(&bytes);
        self.stats.tx_messages += sent;
        self.stats.tx_errors += failed;
    }

    /// Sends the templates of a domain, if they are due.
    fn templates(&mut self, domain: u32, export_s: u64, send: Send<'_>) {
        if self
            .domains
            .get(&domain)
            .is_some_and(|d| export_s < d.templates_due_s)
        {
            return;
        }
        if self.domains.len() >= MAX_DOMAINS && !self.domains.contains_key(&domain) {
            self.domains.clear();
        }
        let named = self.config.virtual_obs_id.is_some();
        let mut message = Message::default();
        for kind in Kind::all() {
            if message.bytes.len() >= FULL {
                self.send(&mut message, send);
            }
            if message.domain.is_none() {
                message.begin(domain, export_s, self.sequence(domain));
            }
            message.set(TEMPLATE_SET, |out| {
                let fields = kind.fields(named);
                out.extend(kind.id().to_be_bytes());
                out.extend(u16::try_from(fields.len()).unwrap_or(0).to_be_bytes());
                fields.into_iter().for_each(|f| put_field(f, out));
            });
        }
        self.send(&mut message, send);
        message.begin(domain, export_s, self.sequence(domain));
        message.set(OPTIONS_TEMPLATE_SET, |out| {
            out.extend(STATS_ID.to_be_bytes());
            out.extend([0, 2, 0, 1]);
            STATS.into_iter().for_each(|f| put_field(f, out));
        });
        let (id, not_sent) = (self.id, self.stats.tx_errors);
        message.set(STATS_ID, |out| {
            out.extend(id.to_be_bytes());
            out.extend(not_sent.to_be_bytes());
        });
        self.send(&mut message, send);
        // Options records are counted too.
        self.advance(domain, 1);
        if let Some(d) = self.domains.get_mut(&domain) {
            d.templates_due_s = export_s + TEMPLATE_INTERVAL_S;
        }
    }
}

/// A message that is being written.
#[derive(Default)]
struct Message {
    domain: Option<u32>,
    bytes: Vec<u8>,
}

impl Message {
    fn begin(&mut self, domain: u32, export_s: u64, sequence: u32) {
        self.domain = Some(domain);
        self.bytes.clear();
        self.bytes.extend(VERSION.to_be_bytes());
        // The length is written at the end.
        self.bytes.extend([0; 2]);
        // Seconds since 1970 in 32 bits, which wrap in 2106.
        self.bytes
            .extend(u32::try_from(export_s & 0xffff_ffff).unwrap_or(0).to_be_bytes());
        self.bytes.extend(sequence.to_be_bytes());
        self.bytes.extend(domain.to_be_bytes());
    }

    /// Appends a set with one record.
    fn set(&mut self, id: u16, put: impl FnOnce(&mut Vec<u8>)) {
        let at = self.bytes.len();
        self.bytes.extend(id.to_be_bytes());
        self.bytes.extend([0; 2]);
        put(&mut self.bytes);
        let len = u16::try_from(self.bytes.len() - at).unwrap_or(0).to_be_bytes();
        if let Some(place) = self.bytes.get_mut(at + 2..at + 4) {
            place.copy_from_slice(&len);
        }
    }

    /// Takes the message, with its length; `None`: it has no set.
    fn finish(&mut self) -> Option<Vec<u8>> {
        self.domain = None;
        let mut bytes = std::mem::take(&mut self.bytes);
        if bytes.len() <= HEADER_LEN {
            return None;
        }
        let len = u16::try_from(bytes.len()).unwrap_or(0).to_be_bytes();
        bytes.get_mut(2..4)?.copy_from_slice(&len);
        Some(bytes)
    }
}
