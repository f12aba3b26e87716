//! Diverts devices, or shares them with the eBPF back end.
//!
//! Without the eBPF program, each device has a *miss filter* with the program's priority. It comes after the
//! filters of flows, matches all packets, and sends them to the miss device. It is never in a card: the
//! kernel receives the packets that no filter of the card matches.

use super::actions;
use super::flows::{FilterTable, REPLY_TIMEOUT};
use super::miss_filter::{add_miss_filter, remove_miss_filter};
use super::{TcPolicy, attrs};
use crate::PortLink;
use crate::filter::Hook;
use crate::miss::{MissDevice, claim};
use heddle_datapath_api::PortNo;
use heddle_sys::route_batch::RouteBatch;
use heddle_sys::{LinkCtl, TapOpen, TapQueue};
use netlink_packet_core::NLM_F_EXCL;
use std::collections::HashSet;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

/// Number of calls of [`FilterTable::set_ports`] in which each device is checked once for other programs.
const CALLS_PER_CHECK: u32 = 10;
/// Minimum Linux: `flower` matches the number of tags since 5.19, and only outer headers since 5.16.
const KERNEL: (u32, u32) = (5, 19);

/// A device that may have filters of flows.
pub(super) struct Device {
    pub(super) name: String,
    /// The miss device, if this back end made it.
    pub(super) miss: Option<MissDevice>,
    /// The device passes filters to a network card: its feature `hw-tc-offload` is on.
    pub(super) is_card: bool,
    /// Number of flows that come in by it.
    pub(super) flows: usize,
    /// Keeps other switches away from the device ([`claim`]).
    _claim: Option<UnixDatagram>,
}

/// Whether the feature `hw-tc-offload` of a device is on.
fn is_card(name: &str) -> bool {
    let feature = LinkCtl::new().and_then(|link| link.feature(name, "hw-tc-offload"));
    feature.is_ok_and(|on| on == Some(true))
}

/// Checks whether this kernel, and this user, can have filters of flower.
///
/// Adds a filter to a new tap, and removes the tap. The error is the reason, in one line.
pub(super) fn probe() -> Result<(), String> {
    let version = crate::kernel::version();
    if version < KERNEL {
        let (major, minor) = KERNEL;
        return Err(format!("tc flower needs Linux {major}.{minor} or later"));
    }
    let text = |what: &str, e: io::Error| format!("{what}: {}", heddle_sys::errno_text(&e));
    let name = format!("hdp{}", std::process::id());
    let tap = TapOpen::new(&name).new_only(true).open();
    let tap = tap.map_err(|e| text("a device to try a filter on cannot be made", e))?;
    let done = || -> io::Result<()> {
        let ifindex = LinkCtl::new()?.ifindex(&name)?;
        let mut batch = RouteBatch::new(REPLY_TIMEOUT)?;
        let actions = vec![attrs::gact(attrs::TC_ACT_SHOT)];
        add_miss_filter(&mut batch, ifindex, actions, NLM_F_EXCL)
    };
    let done = done().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => {
            "the kernel has no tc flower (CONFIG_NET_CLS_FLOWER) or no act_gact".to_owned()
        }
        _ => text("a filter of tc flower cannot be added", e),
    });
    drop(tap);
    done
}

impl FilterTable {
    pub(super) fn divert(&mut self, name: &str, ifindex: u32) -> io::Result<Arc<TapQueue>> {
        let look = self.others.look(name, ifindex, Hook::Ingress)?;
        if let Some(why) = look.stays {
            self.let_go(ifindex);
            self.others.leave(name, ifindex, &why, true);
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let done = self.take_device(name, ifindex);
        match &done {
            Ok(_) => self.others.taken(ifindex),
            // The port cannot be opened.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            Err(error) => self.others.leave(name, ifindex, &error.to_string(), false),
        }
        done
    }
    /// Diverts a device that no other program uses.
    fn take_device(&mut self, name: &str, ifindex: u32) -> io::Result<Arc<TapQueue>> {
        if let Some(miss) = self.devices.get(&ifindex).and_then(|d| d.miss.as_ref()) {
            return Ok(Arc::clone(&miss.tap));
        }
        let claim = claim(ifindex, &mut self.claim_timeout)?;
        let miss = MissDevice::make(ifindex, self.group)?;
        // Replaces the miss filter of an earlier process.
        let actions = actions::to_miss_device(miss.ifindex, self.cookie);
        add_miss_filter(&mut self.batch, ifindex, actions, 0)?;
        self.drop_adopted_outer(ifindex);
        let tap = Arc::clone(&miss.tap);
        self.insert(name, ifindex, Some(miss), Some(claim));
        Ok(tap)
    }
    fn insert(&mut self, name: &str, ifindex: u32, miss: Option<MissDevice>, claim: Option<UnixDatagram>) {
        let device = Device {
            name: name.to_owned(),
            miss,
            is_card: is_card(name),
            flows: 0,
            _claim: claim,
        };
        self.devices.insert(ifindex, device);
        self.ports.mark(ifindex);
    }
    pub(super) fn join(&mut self, name: &str, ifindex: u32) {
        if !self.devices.contains_key(&ifindex) {
            self.insert(name, ifindex, None, None);
        }
    }
    /// Whether flows from a device become filters. Otherwise they go to the eBPF program.
    pub(super) fn serves(&self, ifindex: u32) -> bool {
        let is_card = || self.devices.get(&ifindex).is_some_and(|d| d.is_card);
        self.alone || self.policy == TcPolicy::SkipHw || is_card()
    }
    /// Whether filters must be in a card: if only the kernel runs a flow, eBPF is faster.
    pub(super) fn wants_card(&self) -> bool {
        !self.alone && self.policy != TcPolicy::SkipHw
    }
    /// Whether a system port must open its queues again: another program has come to its device, or left it.
    pub(super) fn changed(&self, ifindex: u32, diverted: bool) -> bool {
        match diverted {
            true => self.others.of(ifindex).is_some_and(|stays| stays.others),
            false => self.others.is_freed(ifindex),
        }
    }
    /// Gives a device back: removes its miss filter, and the filters of flows from it.
    pub(super) fn let_go(&mut self, ifindex: u32) {
        let Some(device) = self.devices.remove(&ifindex) else {
            return;
        };
        self.remove_flows_of(ifindex);
        if device.miss.is_some() {
            remove_miss_filter(&mut self.batch, ifindex);
            self.settle_now();
        }
        // The switch installs flows of the port again, which fails with the reason.
        self.ports.mark(ifindex);
    }
    pub(super) fn shutdown(&mut self) {
        self.drop_adopted();
        let all: Vec<u32> = self.devices.keys().copied().collect();
        all.into_iter().for_each(|ifindex| self.let_go(ifindex));
        self.tunnels.shutdown();
    }

    pub(super) fn set_ports(&mut self, ports: &[PortLink]) -> Vec<PortNo> {
        let listed: HashSet<u32> = ports.iter().map(|p| p.ifindex).collect();
        self.others.keep_only(|ifindex| listed.contains(&ifindex));
        if self.alone {
            self.rounds = self.rounds.wrapping_add(1);
            self.others.read_disciplines();
            self.recheck_devices(ports);
        }
        self.check_tunnels();
        self.ports.set(ports)
    }

    /// Checks some devices at each call. Restores a miss filter that another program removed: without it,
    /// packets of a port go to the host's stack. A device to which another program has come stays with
    /// workers from now on. One that the other program has left can have filters again.
    fn recheck_devices(&mut self, ports: &[PortLink]) {
        let turn = self.rounds % CALLS_PER_CHECK;
        let due = |p: &&PortLink| !p.internal && p.ifindex % CALLS_PER_CHECK == turn;
        for p in ports.iter().filter(due) {
            // The device may be gone.
            let Ok(look) = self.others.look(&p.name, p.ifindex, Hook::Ingress) else {
                continue;
            };
            let left = self.others.of(p.ifindex).is_some_and(|stays| stays.others);
            let miss = self.devices.get(&p.ifindex).and_then(|d| d.miss.as_ref());
            let Some(miss) = miss.map(|miss| miss.ifindex) else {
                if left && look.stays.is_none() {
                    self.others.free(&p.name, p.ifindex);
                }
                continue;
            };
            if let Some(why) = look.stays {
                if !left {
                    self.others.leave_to_program(&p.name, p.ifindex, &why);
                }
                continue;
            }
            let actions = actions::to_miss_device(miss, self.cookie);
            if add_miss_filter(&mut self.batch, p.ifindex, actions, NLM_F_EXCL).is_ok() {
                log::warn!(
                    target: "netdev_offload",
                    "{}: another program removed the filter of packets without a flow; it is put back", p.name
                );
                self.ports.mark(p.ifindex);
            }
        }
    }

    /// Ports whose flows are filters, and why.
    pub(super) fn served_ports(&self) -> Vec<(String, String)> {
        let how = |d: &Device| match (d.is_card, self.alone, self.policy) {
            (true, _, TcPolicy::None | TcPolicy::SkipSw) => "tc in its network card (hw-tc-offload is on)",
            (_, _, TcPolicy::SkipHw) => "tc in the kernel: tc-policy is skip_hw",
            (false, _, TcPolicy::SkipSw) => "no card (hw-tc-offload is not on), and tc-policy is skip_sw",
            (false, _, TcPolicy::None) => "tc in the kernel: eBPF is off",
        };
        let served = self.devices.iter().filter(|(ifindex, _)| self.serves(**ifindex));
        let mut all: Vec<_> = served.map(|(_, d)| (d.name.clone(), how(d).to_owned())).collect();
        all.sort();
        all
    }
}
