//! Entries as shown to the control plane.
//!
//! **Bounds.** There may be a million entries, each of which takes a kilobyte to show. So a dump first
//! collects their locations. Then it reads a few at a time, which bounds both its memory and the time under
//! the revalidator's lock. An entry that is freed meanwhile is not shown; a new entry in the same slot is
//! shown.

use super::Revalidator;
use crate::flow_cache::Records;
use heddle_datapath_api::FlowDump;
use heddle_flow_cache::ScannedEntry;
use std::sync::Arc;

/// Location of a live entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EntryLocation {
    /// Id of the entry: the order in which a worker's entries were made.
    id: u64,
    worker: u32,
    slot: u32,
}

impl Revalidator {
    /// Locations of all live entries, the oldest of each worker first.
    pub(crate) fn places(&mut self) -> Vec<EntryLocation> {
        let mut all = Vec::new();
        self.observed.iter_mut().for_each(super::Observed::collect);
        for w in &mut self.workers {
            let horizon = w.records.drain();
            let worker = u32::try_from(w.index).unwrap_or(u32::MAX);
            for chunk in 0..w.records.n_chunks() {
                w.records.scan_all(chunk, horizon, |_, seen| {
                    let (id, slot) = (seen.now.id, seen.slot);
                    let live = (!seen.now.evicted).then_some(EntryLocation { id, worker, slot });
                    all.extend(live);
                });
            }
        }
        all.sort_unstable();
        all
    }
    /// The entries that are now at these locations.
    pub(crate) fn dump(&mut self, places: &[EntryLocation]) -> Vec<FlowDump> {
        let observed = &mut self.observed;
        let horizons: Vec<u64> = self.workers.iter_mut().map(|w| w.records.drain()).collect();
        let mut one = |place: &EntryLocation| {
            let at = self
                .workers
                .iter()
                .position(|w| w.index == place.worker as usize)?;
            let (w, horizon) = (self.workers.get_mut(at)?, *horizons.get(at)?);
            let (core, worker) = (w.core, w.index);
            let found = w.records.look(place.slot, horizon, |r, seen| {
                let mut flow = dump_of(r, seen).filter(|_| !seen.now.evicted)?;
                if let Some(o) = observed.as_mut() {
                    (flow.place, flow.waits) = o.place(r, seen);
                }
                if let Some(n) = observed.as_mut().and_then(|o| o.shown(r, seen, worker)) {
                    flow.packets += n.packets;
                    flow.bytes += n.bytes;
                    flow.used_ms = flow.used_ms.max(n.used_ms);
                    flow.tcp_flags |= n.tcp_flags;
                }
                Some(flow)
            })?;
            Some(FlowDump {
                core,
                worker,
                ..found?
            })
        };
        places.iter().filter_map(&mut one).collect()
    }
}

/// The shown form of an entry.
pub(super) fn dump_of(r: &mut Records, seen: &ScannedEntry<'_>) -> Option<FlowDump> {
    let s = &seen.now.counts;
    let (key, subtable) = r.whole_key(seen)?;
    Some(FlowDump {
        key,
        mask: subtable.mask,
        packets: s.packets,
        bytes: s.bytes,
        used_ms: if s.packets > 0 { s.used_ms } else { 0 },
        tcp_flags: s.tcp_flags,
        actions: Arc::clone(&r.translation(seen.now.translation)?.cached.compiled.actions),
        core: 0,
        worker: 0,
        place: None,
        waits: None,
    })
}
