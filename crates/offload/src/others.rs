//! Devices that other programs use: no back end serves them, workers do.
//!
//! A filter, XDP program or queueing discipline of another program has to see the same packets as without
//! offload. This switch's filter would hide packets from a filter after it, and would send packets past a
//! discipline. So a device with one of them stays with workers, as long as it has one.

use crate::filter::Hook;
use aya::programs::{SchedClassifier, TcAttachType};
use heddle_sys::device_programs::{DevicePrograms, FilterHook};
use std::collections::{HashMap, HashSet};
use std::io;

/// The reason why a device is left to workers.
#[derive(Clone, Debug)]
pub(crate) struct Stays {
    /// Name of the port.
    pub(crate) name: String,
    pub(crate) why: String,
    /// Another program uses the device; the reason ends when that program leaves it.
    pub(crate) others: bool,
    /// The switch has listed the port since the reason was stored.
    listed: bool,
}

/// Result of a check of one device for other programs.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// Why the device stays with workers, if it does.
    pub(crate) stays: Option<String>,
    /// No other program has to see packets that are sent by the device, so they may go directly to the peer
    /// of a veth.
    pub(crate) direct: bool,
}

/// Devices that stay with workers.
#[derive(Debug, Default)]
pub(crate) struct Others {
    programs: Option<DevicePrograms>,
    /// Queueing disciplines of other programs.
    disciplines: HashMap<u32, String>,
    devices: HashMap<u32, Stays>,
    /// Devices that other programs have left.
    freed: HashSet<u32>,
}

impl Others {
    pub(crate) fn new() -> Self {
        Self {
            programs: DevicePrograms::new().ok(),
            ..Self::default()
        }
    }

    /// Reads the queueing disciplines of all devices.
    pub(crate) fn read_disciplines(&mut self) {
        if let Some(Ok(all)) = self.programs.as_ref().map(DevicePrograms::set_disciplines) {
            self.disciplines = all;
        }
    }

    /// The queueing discipline of a device at the last call of [`Self::read_disciplines`].
    pub(crate) fn discipline(&self, ifindex: u32) -> Option<&str> {
        self.disciplines.get(&ifindex).map(String::as_str)
    }

    /// Checks a device for other programs, before this switch's program is attached at `hook`.
    pub(crate) fn look(&self, name: &str, ifindex: u32, hook: Hook) -> io::Result<Look> {
        let Some(all) = &self.programs else {
            return Ok(Look::default());
        };
        if all.has_xdp(ifindex)? {
            return Ok(Look {
                stays: Some("its device has an XDP program".to_owned()),
                direct: false,
            });
        }
        let ingress = foreign(all, name, ifindex, FilterHook::Ingress)?;
        let egress = foreign(all, name, ifindex, FilterHook::Egress)?;
        let discipline = self.discipline(ifindex);
        let direct = egress.is_none() && discipline.is_none();
        let stays = match hook {
            Hook::Ingress => ingress,
            Hook::Egress => egress
                .or_else(|| discipline.map(|kind| format!("its device has the queueing discipline {kind}"))),
        };
        Ok(Look { stays, direct })
    }

    /// Leaves a device to workers, since another program has come to it.
    pub(crate) fn leave_to_program(&mut self, name: &str, ifindex: u32, why: &str) {
        self.leave(name, ifindex, why, true);
        log::info!(target: "netdev_offload", "{name}: workers forward its packets: {why}");
    }

    /// Leaves a device to workers.
    pub(crate) fn leave(&mut self, name: &str, ifindex: u32, why: &str, others: bool) {
        self.freed.remove(&ifindex);
        let stays = Stays {
            name: name.to_owned(),
            why: why.to_owned(),
            others,
            listed: false,
        };
        self.devices.insert(ifindex, stays);
    }

    /// This switch has attached its program to the device.
    pub(crate) fn taken(&mut self, ifindex: u32) {
        self.freed.remove(&ifindex);
        self.devices.remove(&ifindex);
    }

    /// The other program has left the device.
    pub(crate) fn free(&mut self, name: &str, ifindex: u32) {
        log::info!(target: "netdev_offload", "{name}: no other program is at its device any more");
        self.devices.remove(&ifindex);
        self.freed.insert(ifindex);
    }

    /// Forgets devices that were listed once and are not listed now.
    pub(crate) fn keep_only(&mut self, is_listed: impl Fn(u32) -> bool) {
        self.devices.retain(|ifindex, stays| {
            let listed = is_listed(*ifindex);
            let keep = listed || !stays.listed;
            stays.listed |= listed;
            keep
        });
        self.freed.retain(|ifindex| is_listed(*ifindex));
    }

    pub(crate) fn of(&self, ifindex: u32) -> Option<&Stays> {
        self.devices.get(&ifindex)
    }

    pub(crate) fn is_freed(&self, ifindex: u32) -> bool {
        self.freed.contains(&ifindex)
    }

    /// Names of ports and reasons, in the order of names.
    pub(crate) fn all(&self) -> Vec<(String, String)> {
        let mut all: Vec<_> = self
            .devices
            .values()
            .map(|s| (s.name.clone(), s.why.clone()))
            .collect();
        all.sort();
        all
    }
}

/// The first filter or tcx program of another program at a hook, as a reason.
fn foreign(all: &DevicePrograms, name: &str, ifindex: u32, hook: FilterHook) -> io::Result<Option<String>> {
    let (side, kind) = match hook {
        FilterHook::Ingress => ("ingress", TcAttachType::Ingress),
        FilterHook::Egress => ("egress", TcAttachType::Egress),
    };
    if let Some((kind, priority)) = all.foreign_filter(ifindex, hook)? {
        return Ok(Some(format!(
            "its device has a filter of another program (tc filter show dev {name} {side}: pref {priority} {kind})"
        )));
    }
    // Kernels before Linux 6.6 have no tcx, and refuse the query.
    let tcx = SchedClassifier::query_tcx(name, kind);
    let program = tcx.ok().and_then(|(_, programs)| programs.into_iter().next());
    Ok(program.map(|program| {
        let id = program.id();
        format!(
            "its device has a tcx program of another program (bpftool net show dev {name}: {side}, id {id})"
        )
    }))
}
