//! One table of routes, with longest-prefix match.
//!
//! One map per prefix length. A lookup queries all maps, of which there are about ten in practice. Lookups
//! happen per translation, not per packet. Routes with the same prefix are in one list.

use super::entry::RouteEntry;
use super::prefix::Prefix;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

type OfLength = HashMap<u128, Vec<RouteEntry>>;

/// Routes by family, prefix length and prefix.
#[derive(Clone, Default, Debug)]
pub(super) struct Fib {
    v4: BTreeMap<u8, OfLength>,
    v6: BTreeMap<u8, OfLength>,
}

impl Fib {
    fn family(&self, addr: IpAddr) -> &BTreeMap<u8, OfLength> {
        if addr.is_ipv4() { &self.v4 } else { &self.v6 }
    }
    fn family_mut(&mut self, addr: IpAddr) -> &mut BTreeMap<u8, OfLength> {
        if addr.is_ipv4() {
            &mut self.v4
        } else {
            &mut self.v6
        }
    }

    /// Adds a route beside those of the same prefix.
    pub(super) fn add(&mut self, entry: RouteEntry) {
        let prefix = entry.prefix;
        let lengths = self.family_mut(prefix.addr());
        let routes = lengths.entry(prefix.len()).or_default();
        routes.entry(prefix.key()).or_default().push(entry);
    }
    /// Adds a route in place of one with the same prefix, mark and origin.
    pub(super) fn replace(&mut self, entry: RouteEntry) {
        self.remove(entry.prefix, entry.mark, entry.user);
        self.add(entry);
    }
    /// Removes routes. Returns whether there were any.
    pub(super) fn remove(&mut self, prefix: Prefix, mark: u32, user: bool) -> bool {
        let lengths = self.family_mut(prefix.addr());
        let Some(of_length) = lengths.get_mut(&prefix.len()) else {
            return false;
        };
        let Some(same) = of_length.get_mut(&prefix.key()) else {
            return false;
        };
        let before = same.len();
        same.retain(|e| e.mark != mark || e.user != user);
        let found = same.len() < before;
        if same.is_empty() {
            of_length.remove(&prefix.key());
        }
        if of_length.is_empty() {
            lengths.remove(&prefix.len());
        }
        found
    }

    /// The best route to `dst` among those with exactly this mark.
    pub(super) fn best(&self, dst: IpAddr, mark: u32) -> Option<&RouteEntry> {
        let matching = self
            .family(dst)
            .iter()
            .filter_map(|(len, routes)| routes.get(&Prefix::key_of(dst, *len)));
        let mut best: Option<&RouteEntry> = None;
        for entry in matching.flatten().filter(|e| e.mark == mark) {
            if best.is_none_or(|b| entry.beats(b)) {
                best = Some(entry);
            }
        }
        best
    }

    /// All routes: IPv4 first, longest prefixes first, by address within a length.
    pub(super) fn entries(&self) -> Vec<&RouteEntry> {
        let mut all: Vec<&RouteEntry> = Vec::new();
        for lengths in [&self.v4, &self.v6] {
            for routes in lengths.values().rev() {
                let from = all.len();
                all.extend(routes.values().flatten());
                all[from..].sort_by_key(|e| (e.prefix, e.mark, e.metric));
            }
        }
        all
    }
    pub(super) fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }
}
