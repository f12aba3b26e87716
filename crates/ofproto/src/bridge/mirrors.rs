//! Mirrors, from the configuration to what translation sees, and their counters.

use super::config::{MirrorConfig, MirrorTarget};
use super::{Bridge, BridgeState};
use crate::model::{MAX_MIRRORS, Mirror, MirrorOutput, VlanSet};
use crate::stats::Stats;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Counters of mirrors, by their ids: they outlive changes of the configuration.
pub(crate) type Counters = BTreeMap<String, Arc<Stats>>;

impl Bridge {
    /// Packets and bytes that a mirror has copied; `None`: there is no mirror of this id.
    pub fn mirror_statistics(&self, id: &str) -> Option<(u64, u64)> {
        let state = self.state.lock();
        let stats = state.mirrored.get(id)?;
        Some((stats.packets.load(Relaxed), stats.bytes.load(Relaxed)))
    }

    /// Packets that all mirrors of the bridge have copied; `None` while another thread changes its rules.
    pub fn mirrored_packets(&self) -> Option<u64> {
        let state = self.state.try_lock()?;
        Some(
            state
                .mirrored
                .values()
                .map(|stats| stats.packets.load(Relaxed))
                .sum(),
        )
    }
}

impl BridgeState {
    /// Makes the counters those of the configured mirrors.
    pub(super) fn count_mirrors(&mut self) {
        let configured = &self.config.mirrors;
        self.mirrored
            .retain(|id, _| configured.iter().any(|m| m.id == *id));
        for m in configured {
            self.mirrored.entry(m.id.clone()).or_default();
        }
    }

    /// The mirrors as translation sees them. `index`: places of bundles by name.
    pub(super) fn mirrors(&self, index: &BTreeMap<String, usize>) -> Vec<Mirror> {
        let mut all: Vec<Mirror> = self
            .config
            .mirrors
            .iter()
            .filter_map(|m| self.mirror(m, index))
            .take(MAX_MIRRORS)
            .collect();
        let outputs: Vec<MirrorOutput> = all.iter().map(|m| m.output).collect();
        for m in &mut all {
            let same = outputs.iter().enumerate().filter(|(_, o)| **o == m.output);
            m.same_output = same.fold(0, |bits, (i, _)| bits | 1 << i);
        }
        all
    }

    fn mirror(&self, m: &MirrorConfig, index: &BTreeMap<String, usize>) -> Option<Mirror> {
        let some = |names: &[String]| -> Vec<usize> {
            if m.all {
                index.values().copied().collect()
            } else {
                names.iter().filter_map(|n| index.get(n).copied()).collect()
            }
        };
        Some(Mirror {
            sources: some(&m.sources),
            destinations: some(&m.destinations),
            vlans: (!m.vlans.is_empty()).then(|| Arc::new(VlanSet::from_ids(m.vlans.iter().copied()))),
            output: match &m.target {
                MirrorTarget::Port(name) => MirrorOutput::Bundle(*index.get(name)?),
                MirrorTarget::Vlan(vid) => MirrorOutput::Vlan(*vid),
            },
            snaplen: m.snaplen,
            same_output: 0,
            stats: self.mirrored.get(&m.id).cloned().unwrap_or_default(),
        })
    }
}
