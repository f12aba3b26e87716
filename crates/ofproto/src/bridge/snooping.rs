//! A bridge's multicast snooping: its table, and the ports that get more than they report.

use super::port_views::PortViews;
use super::{Bridge, BridgeState};
use crate::model::PortBundle;
use crate::snooping::{Listener, PortSnooping, SnoopedListener, SnoopingConfig, SnoopingTable, SnoopingView};
use heddle_datapath_api::Generations;
use heddle_openflow::Port as OfPort;
use std::collections::HashMap;
use std::sync::Arc;

/// The snooping of one bridge, as its control threads hold it.
#[derive(Default)]
pub(super) struct BridgeSnooping {
    view: Option<SnoopingView>,
    /// Bundles that went since the last tick.
    gone: Vec<u32>,
}

impl BridgeSnooping {
    /// Takes over a configuration. `None`: snooping is off, and all that it has learned is forgotten.
    pub(super) fn configure(&mut self, generations: &Arc<Generations>, config: Option<&SnoopingConfig>) {
        let Some(config) = config else {
            self.view = None;
            return;
        };
        let view = self.view.get_or_insert_with(|| SnoopingView {
            table: Arc::new(SnoopingTable::new(generations.clone(), config)),
            flood_unregistered: config.flood_unregistered,
            flood: Vec::new(),
            flood_reports: Vec::new(),
        });
        view.flood_unregistered = config.flood_unregistered;
        view.table.configure(config);
    }

    /// Takes over the settings of ports. Ports whose settings are older come first.
    pub(super) fn follow(&mut self, views: &PortViews) {
        let Some(view) = &mut self.view else { return };
        let bundles = || views.bundles.values();
        let follow = |list: &mut Vec<Listener>, is_set: fn(&PortSnooping) -> bool| {
            let is_listener = |b: &PortBundle| !b.ports.is_empty() && is_set(&b.snooping);
            // The usual case: no port has such a setting.
            if list.is_empty() && !bundles().any(|b| is_listener(b)) {
                return;
            }
            let now: HashMap<u32, OfPort> = bundles()
                .filter(|b| is_listener(b))
                .filter_map(|b| Some((b.id, *b.ports.first()?)))
                .collect();
            list.retain_mut(|l| {
                now.get(&l.bundle).is_some_and(|port| {
                    l.port = *port;
                    true
                })
            });
            let new = bundles().filter(|b| now.contains_key(&b.id));
            let new: Vec<Listener> = new
                .filter(|b| !list.iter().any(|l| l.bundle == b.id))
                .map(|b| Listener {
                    bundle: b.id,
                    port: now[&b.id],
                })
                .collect();
            list.extend(new);
        };
        follow(&mut view.flood, |s| s.flood);
        follow(&mut view.flood_reports, |s| s.flood_reports);
    }

    pub(super) fn view(&self) -> Option<SnoopingView> {
        self.view.clone()
    }
}

impl BridgeState {
    /// Takes over the configuration.
    pub(super) fn configure_snooping(&mut self, generations: &Arc<Generations>) {
        self.snooping
            .configure(generations, self.config.snooping.as_ref());
        self.snooping.follow(&self.port_views);
    }

    /// The numbers of bundles that went since the last call.
    pub(super) fn take_gone_bundles(&mut self) -> Vec<u32> {
        let gone = std::mem::take(&mut self.port_views.gone);
        self.snooping.gone.extend(&gone);
        gone
    }
}

impl Bridge {
    /// Groups and routers that were learned; `None`: snooping is off.
    pub fn snooping_table(&self) -> Option<Arc<SnoopingTable>> {
        self.state.lock().snooping.view.as_ref().map(|v| v.table.clone())
    }

    /// All listeners and routers, as [`SnoopingTable::entries`] orders them, each with a port of its bundle.
    /// `None`: snooping is off.
    pub fn snooped(&self) -> Option<Vec<SnoopedListener>> {
        let (table, ports) = {
            let state = self.state.lock();
            let bundles = state.port_views.bundles.values();
            let ports: HashMap<u32, OfPort> =
                bundles.filter_map(|b| Some((b.id, *b.ports.first()?))).collect();
            (state.snooping.view.as_ref()?.table.clone(), ports)
        };
        let entries = table.entries(self.now_ms()).into_iter();
        let found = entries.filter_map(|mut e| {
            e.listener.port = *ports.get(&e.listener.bundle)?;
            Some(e)
        });
        Some(found.collect())
    }

    /// Forgets the listeners and routers of bundles that have gone.
    pub(super) fn forget_snooped(&self, bundles: &[u32]) {
        if bundles.is_empty() {
            return;
        }
        if let Some(table) = self.snooping_table() {
            bundles.iter().for_each(|b| table.flush_bundle(*b));
        }
    }

    /// Forgets the listeners and routers of a port whose VLANs have changed.
    pub fn flush_snooped(&self, port: &str) {
        let id = self.state.lock().port_views.id_of(port);
        self.forget_snooped(id.as_slice());
    }

    /// Ages what was learned.
    pub(super) fn age_snooped(&self, now_ms: u64) {
        let (table, gone) = {
            let mut state = self.state.lock();
            let gone = std::mem::take(&mut state.snooping.gone);
            (state.snooping.view.as_ref().map(|v| v.table.clone()), gone)
        };
        let Some(table) = table else { return };
        // Once more: translations that still saw the bundle may have learned behind it.
        gone.into_iter().for_each(|b| table.flush_bundle(b));
        table.age(now_ms);
    }
}
