//! Keeps packets that `system` ports receive from the host's own stack ([`IngressFilters`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use heddle_port::IngressFilters;

use super::Reconciler;
use super::taps::Taps;
use heddle_daemon::dirs;

/// The state of these filters.
#[derive(Default)]
pub(super) struct HostStack {
    /// Whether the filters of an earlier daemon have been searched.
    looked: bool,
    /// Whether filters of other owners have been searched.
    searched: bool,
    /// The last names of ports with filters.
    wanted: BTreeSet<String>,
}

impl Reconciler {
    /// The filters of this daemon, if it needs some.
    pub(super) fn ingress_filters(&self) -> Option<Arc<IngressFilters>> {
        self.switch.ingress.get().cloned()
    }

    /// Names of all ports that are network devices of the host.
    fn system_ports(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for bridge in self.bridges.values() {
            for row in bridge.row.ports.values().flat_map(|port| &port.interfaces) {
                let kind = self.kind_of(&bridge.row, row);
                if kind.is_ok_and(|kind| kind.open.name == "system") {
                    names.insert(row.name.clone());
                }
            }
        }
        names
    }

    /// Makes the filters before the first port that needs one is opened, or if an earlier daemon may have
    /// left some.
    pub(super) fn prepare_filters(&mut self) {
        let owner = match self.switch.ingress.get() {
            Some(filters) => return filters.read_vlans(),
            None if self.system_ports().is_empty() => match Taps::earlier_owner() {
                Some(owner) if !self.host_stack.looked => owner,
                _ => return,
            },
            None => Taps::owner().unwrap_or_else(|error| {
                let why = heddle_daemon::vlog::errno_text(&error);
                log::warn!(
                    target: "bridge",
                    "the run directory has no mark: filters of system ports will not be found again ({why})"
                );
                u64::from(std::process::id())
            }),
        };
        let filters = self
            .switch
            .ingress
            .get_or_init(|| Arc::new(IngressFilters::new(owner, &dirs::rundir())));
        filters.read_vlans();
    }

    /// A device came, went or changed: it may be a VLAN device.
    pub(super) fn read_vlans(&self) {
        if let Some(filters) = self.switch.ingress.get() {
            filters.read_vlans();
        }
    }

    /// Removes the filters of devices that are no ports any more, also those of an earlier daemon.
    pub(super) fn release_devices(&mut self) {
        let filters = self.ingress_filters();
        if !std::mem::replace(&mut self.host_stack.searched, true) {
            match &filters {
                Some(filters) => filters.warn_of_others(),
                None => {
                    let owner = Taps::earlier_owner().unwrap_or(0);
                    IngressFilters::new(owner, &dirs::rundir()).warn_of_others();
                }
            }
        }
        let Some(filters) = filters else { return };
        let wanted = self.system_ports();
        if self.host_stack.looked && wanted == self.host_stack.wanted {
            return;
        }
        let left = !std::mem::replace(&mut self.host_stack.looked, true);
        let n = filters.keep_only(|name| wanted.contains(name), left);
        if n > 0 && left {
            log::info!(target: "bridge", "gave {n} devices of removed ports back to the host's stack");
        }
        self.host_stack.wanted = wanted;
    }
}
