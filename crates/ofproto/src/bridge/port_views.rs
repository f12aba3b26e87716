//! A bridge's ports and bundles as translation sees them: kept from one snapshot to the next, and made anew
//! where something has changed.
//!
//! **Invariants.** A changed port or bundle is reported here ([`PortViews::touch_port`],
//! [`PortViews::touch_bundle`]). So is a port that comes to a bundle or leaves it ([`PortViews::join`],
//! [`PortViews::leave`]). [`BridgeState::build`] then makes these anew, and nothing else.
//!
//! **Places.** Floods go through bundles in the order of their names. A bundle's place is a number in that
//! order, far from its neighbours' ([`APART`]), so that a bundle that comes between two others moves neither.
//! If no number is left between the two, all bundles get new numbers.

use super::bridges::PatchEnds;
use super::ports::{bundle_view, port_view};
use super::{BridgeState, PortBundleConfig, PortTarget};
use crate::model::{Binding, PortBundle, PortView};
use crate::shared_map::SharedMap;
use crate::snooping::ReportBudget;
use heddle_openflow::Port as OfPort;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

/// Distance between the places of bundles that come one after the other.
const APART: usize = 1 << 32;
/// Maximum distance between a bundle that comes in between and its predecessor.
const BETWEEN: usize = 1 << 22;

/// See the module's text.
#[derive(Default)]
pub(crate) struct PortViews {
    pub(super) ports: SharedMap<OfPort, Arc<PortView>>,
    pub(super) bundles: SharedMap<usize, Arc<PortBundle>>,
    /// Places of bundles by their names.
    pub(super) places: BTreeMap<String, usize>,
    /// Ports by the name of their bundle, whether that is there or not.
    members: HashMap<String, Members>,
    /// The last number of a bundle.
    last_id: u32,
    /// Numbers of bundles that have lost all their ports, or got others in their place.
    pub(super) gone: Vec<u32>,
    /// Ports that are patches: where they lead to is decided by other bridges.
    pub(super) patches: BTreeSet<OfPort>,
    stale_ports: BTreeSet<OfPort>,
    stale_bundles: BTreeSet<String>,
}

/// The ports of a bundle.
struct Members {
    /// See [`PortBundle`].
    id: u32,
    ports: BTreeSet<OfPort>,
    /// Kept when the bundle is made anew.
    reports: ReportBudget,
}

impl PortViews {
    /// Marks a port as stale: it has changed or is gone.
    pub(super) fn touch_port(&mut self, no: OfPort) {
        self.stale_ports.insert(no);
    }
    /// Marks a bundle as stale: it has changed or is gone.
    pub(super) fn touch_bundle(&mut self, name: &str) {
        self.stale_bundles.insert(name.to_owned());
    }
    /// Adds a port to a bundle.
    pub(super) fn join(&mut self, no: OfPort, bundle: &str) {
        let last_id = &mut self.last_id;
        let members = self.members.entry(bundle.to_owned()).or_insert_with(|| {
            *last_id += 1;
            Members {
                id: *last_id,
                ports: BTreeSet::new(),
                reports: ReportBudget::default(),
            }
        });
        members.ports.insert(no);
        self.touch_bundle(bundle);
    }
    /// Takes a port out of a bundle.
    pub(super) fn leave(&mut self, no: OfPort, bundle: &str) {
        if let Some(members) = self.members.get_mut(bundle) {
            members.ports.remove(&no);
            if members.ports.is_empty() {
                self.gone.push(members.id);
                self.members.remove(bundle);
            }
        }
        self.touch_bundle(bundle);
    }
    /// Gives a bundle another number if all its ports are among `added`: it is another one then.
    pub(super) fn renew(&mut self, bundle: &str, added: &BTreeSet<OfPort>) {
        if let Some(members) = self.members.get_mut(bundle)
            && members.ports.is_subset(added)
        {
            self.last_id += 1;
            self.gone.push(std::mem::replace(&mut members.id, self.last_id));
            self.touch_bundle(bundle);
        }
    }
    /// The number of a bundle.
    pub(super) fn id_of(&self, bundle: &str) -> Option<u32> {
        self.members.get(bundle).map(|m| m.id)
    }

    fn members(&self, bundle: &str) -> impl Iterator<Item = OfPort> {
        self.members
            .get(bundle)
            .into_iter()
            .flat_map(|m| &m.ports)
            .copied()
    }

    /// The place of a bundle. If the bundle gets it only now, the views of its members are stale.
    fn place(&mut self, name: &str) -> usize {
        if let Some(place) = self.places.get(name) {
            return *place;
        }
        let before = self
            .places
            .range::<str, _>((Unbounded, Excluded(name)))
            .next_back()
            .map_or(0, |(_, p)| *p);
        let after = self
            .places
            .range::<str, _>((Excluded(name), Unbounded))
            .next()
            .map(|(_, p)| *p);
        let place = match after {
            None => before.checked_add(APART),
            Some(after) => Some(before + ((after - before) / 2).min(BETWEEN)).filter(|p| *p != before),
        };
        self.stale_ports
            .extend(self.members.get(name).into_iter().flat_map(|m| &m.ports));
        match place {
            Some(place) => {
                self.places.insert(name.to_owned(), place);
                place
            }
            None => {
                self.places.insert(name.to_owned(), 0);
                self.spread();
                self.places[name]
            }
        }
    }

    /// Gives all bundles new places.
    fn spread(&mut self) {
        let mut bundles = SharedMap::default();
        for (n, place) in self.places.values_mut().enumerate() {
            let old = std::mem::replace(place, (n + 1) * APART);
            if let Some(bundle) = self.bundles.get(&old) {
                bundles.insert(*place, bundle.clone());
            }
        }
        self.bundles = bundles;
        self.stale_ports.extend(self.ports.iter().map(|(no, _)| no));
    }
}

/// The bundle of that name. `bundles` is sorted by name.
fn by_name<'a>(bundles: &'a [PortBundleConfig], name: &str) -> Option<&'a PortBundleConfig> {
    let at = bundles.binary_search_by(|b| b.name.as_str().cmp(name)).ok()?;
    bundles.get(at)
}

impl BridgeState {
    /// Makes stale bundles and ports anew. `ends`: the patch ports of all bridges.
    pub(super) fn build(&mut self, ends: &PatchEnds) {
        let port_views = &mut self.port_views;
        let stale_bundles = std::mem::take(&mut port_views.stale_bundles);
        let is_stale = !stale_bundles.is_empty();
        for name in stale_bundles {
            match by_name(&self.bundles, &name) {
                Some(config) => {
                    let place = port_views.place(&name);
                    let id = port_views.id_of(&name).unwrap_or(0);
                    let reports = port_views.members.get(&name).map(|m| m.reports.clone());
                    let ports = port_views.members(&name).collect();
                    let bundle = bundle_view(config, id, reports.unwrap_or_default(), ports);
                    port_views.bundles.insert(place, Arc::new(bundle));
                }
                None => {
                    if let Some(place) = port_views.places.remove(&name) {
                        port_views.bundles.remove(&place);
                    }
                    port_views
                        .stale_ports
                        .extend(port_views.members.get(&name).into_iter().flat_map(|m| &m.ports));
                }
            }
        }
        if is_stale {
            self.snooping.follow(port_views);
        }
        for no in std::mem::take(&mut port_views.stale_ports) {
            let port = self.ports.get(&no);
            let found = port.and_then(|p| Some((p, *port_views.places.get(&p.config.bundle)?)));
            match found {
                Some((port, place)) => {
                    let view = port_view(port, place, ends);
                    port_views.ports.insert(no, Arc::new(view));
                }
                None => drop(port_views.ports.remove(&no)),
            }
        }
        for no in &port_views.patches {
            let (Some(port), Some(view)) = (self.ports.get(no), port_views.ports.get(no)) else {
                continue;
            };
            if let PortTarget::Patch(peer) = &port.config.target {
                let binding = Binding::Patch(ends.peer_of(&port.config.name, peer));
                if view.binding != binding {
                    let view = PortView {
                        binding,
                        ..PortView::clone(view)
                    };
                    port_views.ports.insert(*no, Arc::new(view));
                }
            }
        }
    }
}
