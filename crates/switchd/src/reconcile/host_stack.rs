//! Keeps packets that `system` ports receive from the host's own stack ([`IngressFilters`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use heddle_port::IngressFilters;

use super::taps::Taps;
use crate::switch::Switch;
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

impl HostStack {
    /// Makes the filters before the first port that needs one is opened, or if an earlier daemon may have
    /// left some. `system_ports`: names of all ports that are network devices of the host.
    pub(super) fn prepare(&self, switch: &Switch, system_ports: &BTreeSet<String>) {
        let owner = match switch.ingress.get() {
            Some(filters) => return filters.read_vlans(),
            None if system_ports.is_empty() => match Taps::earlier_owner() {
                Some(owner) if !self.looked => owner,
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
        let filters = switch
            .ingress
            .get_or_init(|| Arc::new(IngressFilters::new(owner, &dirs::rundir())));
        filters.read_vlans();
    }

    /// Removes the filters of devices that are no ports any more. If all ports are known (`settled`), filters
    /// of an earlier daemon are removed, too.
    pub(super) fn release_devices(&mut self, switch: &Switch, system_ports: BTreeSet<String>, settled: bool) {
        let filters = switch.ingress.get();
        if !std::mem::replace(&mut self.searched, true) {
            match filters {
                Some(filters) => filters.warn_of_others(),
                None => {
                    let owner = Taps::earlier_owner().unwrap_or(0);
                    IngressFilters::new(owner, &dirs::rundir()).warn_of_others();
                }
            }
        }
        let Some(filters) = filters else { return };
        let left = settled && !self.looked;
        if !left && system_ports == self.wanted {
            return;
        }
        self.looked |= left;
        let n = filters.keep_only(|name| system_ports.contains(name), left);
        if n > 0 && left {
            log::info!(target: "bridge", "gave {n} devices of removed ports back to the host's stack");
        }
        self.wanted = system_ports;
    }
}
