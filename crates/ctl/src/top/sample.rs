//! One answer of the switch.

use super::cells;
use anyhow::Result;
use serde::Deserialize;
use std::collections::BTreeMap;

/// All counts at one time.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Sample {
    /// Cycles of the time stamp counter since it started.
    pub(super) tsc: u64,
    /// Its frequency.
    pub(super) tsc_hz: u64,
    pub(super) flows: u64,
    pub(super) flow_limit: u64,
    pub(super) workers: Vec<Worker>,
    pub(super) queues: Vec<Queue>,
    /// By name, since the daemon started.
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
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Queue {
    pub(super) port: String,
    pub(super) queue: u64,
    /// Processor of the worker that polls it.
    pub(super) core: Option<u64>,
    /// Of that worker's time in the last minute.
    pub(super) percent: Option<f64>,
}

impl Sample {
    /// Reads an answer. Names in it are fit to be shown.
    pub(super) fn read(text: &str) -> Result<Sample> {
        let mut sample: Sample = serde_json::from_str(text)?;
        for queue in &mut sample.queues {
            queue.port = cells::clean(&queue.port);
        }
        let drops = std::mem::take(&mut sample.drops);
        sample.drops = drops
            .into_iter()
            .map(|(name, n)| (cells::clean(&name), n))
            .collect();
        Ok(sample)
    }
}
