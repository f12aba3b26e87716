//! One reply of the switch.

use super::cells;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All counters at one time.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Sample {
    /// Cycles of the time stamp counter since it started.
    pub(super) tsc: u64,
    /// Frequency of the time stamp counter.
    pub(super) tsc_hz: u64,
    pub(super) flows: u64,
    pub(super) flow_limit: u64,
    pub(super) workers: Vec<Worker>,
    pub(super) queues: Vec<Queue>,
    /// Packets by name of the drop, since the daemon started.
    pub(super) drops: BTreeMap<String, u64>,
    /// Empty if an older daemon replies.
    #[serde(default)]
    pub(super) ports: Vec<Port>,
}

/// A port's counts since it was added.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Port {
    pub(super) port: String,
    pub(super) rx_packets: u64,
    pub(super) rx_bytes: u64,
    pub(super) tx_packets: u64,
    pub(super) tx_bytes: u64,
    /// Packets that came in by it and were dropped, by name; estimated.
    #[serde(default)]
    pub(super) drops: BTreeMap<String, u64>,
}

/// A worker.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Worker {
    pub(super) id: u64,
    pub(super) core: u64,
    pub(super) numa: u64,
    pub(super) isolated: bool,
    pub(super) counters: BTreeMap<String, u64>,
}

/// A receive queue.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Queue {
    pub(super) port: String,
    pub(super) queue: u64,
    /// Processor of the worker that polls it.
    pub(super) core: Option<u64>,
    /// Share of that worker's time in the last minute.
    pub(super) percent: Option<f64>,
    /// NUMA node of the port's device or guest. Missing if it is not known, or if an older daemon replies.
    #[serde(default)]
    pub(super) numa: Option<u64>,
}

impl Sample {
    /// Reads a reply. Names in it are cleaned for the terminal.
    pub(super) fn read(text: &str) -> Result<Sample> {
        let mut sample: Sample = serde_json::from_str(text)?;
        for queue in &mut sample.queues {
            queue.port = cells::clean(&queue.port);
        }
        for port in &mut sample.ports {
            port.port = cells::clean(&port.port);
            port.drops = named(&port.drops);
        }
        sample.drops = named(&sample.drops);
        Ok(sample)
    }
}

/// The counters of dropped packets; the reply has other counters too, such as those of connections.
fn named(counters: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let drops = counters
        .iter()
        .filter(|(name, _)| name.starts_with("datapath_drop_") || name.starts_with("drop_action_"));
    drops.map(|(name, n)| (cells::clean(name), *n)).collect()
}
