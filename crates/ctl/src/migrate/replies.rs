//! Replies of the switch.

use serde::Deserialize;
use std::collections::BTreeMap;

/// Maximum number of refused connections that are shown.
const MAX_EXAMPLES: usize = 5;

#[derive(Deserialize)]
pub(super) struct Zone {
    pub(super) name: String,
    pub(super) zone: u16,
    pub(super) whole: bool,
    pub(super) limit: u32,
    pub(super) count: u32,
}

#[derive(Deserialize)]
pub(super) struct Prepared {
    pub(super) port: String,
    pub(super) interface: String,
    pub(super) bridge: String,
    pub(super) zones: Vec<Zone>,
    pub(super) notes: Vec<String>,
    pub(super) addresses: Vec<String>,
    pub(super) ofport: Option<u32>,
    pub(super) format: u16,
    pub(super) connections: u32,
    pub(super) max_connections: u32,
    /// All names of the bridge's zones.
    pub(super) other_zones: Vec<String>,
}

/// A series of requests.
#[derive(Deserialize)]
pub(super) struct Begun {
    pub(super) id: u64,
    pub(super) port: String,
    pub(super) zones: Vec<Zone>,
    pub(super) notes: Vec<String>,
}

#[derive(Deserialize)]
pub(super) struct Part {
    pub(super) next: Option<u32>,
    pub(super) connections: u32,
    pub(super) left_out: u32,
    pub(super) content: String,
}

#[derive(Deserialize, Default)]
pub(super) struct Imported {
    pub(super) taken: BTreeMap<String, u64>,
    pub(super) refused: BTreeMap<String, u64>,
    pub(super) examples: Vec<String>,
}

impl Imported {
    pub(super) fn add(&mut self, more: Self) {
        for (sum, counts) in [(&mut self.taken, more.taken), (&mut self.refused, more.refused)] {
            for (name, n) in counts {
                *sum.entry(name).or_default() += n;
            }
        }
        self.examples.extend(more.examples);
        self.examples.truncate(MAX_EXAMPLES);
    }
}

#[derive(Deserialize)]
pub(super) struct Ended {
    pub(super) role: Option<String>,
    pub(super) port: Option<String>,
    #[serde(default)]
    pub(super) connections: u64,
}

#[derive(Deserialize)]
pub(super) struct Status {
    pub(super) port: String,
    pub(super) interface: String,
    pub(super) role: String,
    pub(super) live: bool,
    pub(super) seconds: u64,
    pub(super) counts: BTreeMap<String, u64>,
}
