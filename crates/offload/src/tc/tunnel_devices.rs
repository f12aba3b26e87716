//! Tunnel devices of the kernel, by which packets leave into tunnels and come out of them.
//!
//! **Shape.** There is one device for each kind and UDP port of tunnels, with Open vSwitch's name
//! (`vxlan_sys_4789`). It is made for the first flow, and removed when no flow has used it for a while. The
//! UDP port is registered with network cards before the first filter, since that comes after the device.
//!
//! **One owner.** Filters of the switch at the underlay's devices take the packets of its tunnels before the
//! host's stack. The tunnel device receives those that [`super::received`] passes, and packets of strangers.
//! A filter at the device drops the strangers' packets: the host's stack must not get what a stranger put
//! into a tunnel.
//!
//! **Restart.** The devices are one group of devices, which names their owner. The next process takes them
//! over, because filters of the earlier one lead to them.

use super::attrs;
use super::message;
use super::miss_filter::add_miss_filter;
use crate::Why;
use heddle_sys::route_batch::{RouteBatch, RouteRequest};
use heddle_sys::tunnel_links::{TunnelLinkKind, TunnelLinks};
use heddle_sys::{LinkCtl, TapLinks};
use netlink_packet_core::DefaultNla;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage::{GetRoute, SetLink};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::route::{RouteAttribute, RouteMessage};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

/// Number of calls of [`TunnelDevices::check`] after which a device without flows is removed: a call is made
/// about once a second.
const IDLE_CALLS: u32 = 10;

/// The tunnels that share a device: their kind and UDP port.
pub(super) type TunnelId = (TunnelLinkKind, u16);

#[derive(Debug)]
struct TunnelDevice {
    ifindex: u32,
    /// Number of flows that lead to it.
    flows: usize,
    /// Calls of [`TunnelDevices::check`] since it had no flow.
    idle_calls: u32,
    /// Number of flows that come out of its tunnels.
    inner: usize,
    /// Outer packets may pass to the host's stack.
    receives: bool,
    /// Calls of [`TunnelDevices::check`] since no flow came out of its tunnels.
    idle_inner_calls: u32,
}

impl TunnelDevice {
    fn new(ifindex: u32) -> Self {
        Self {
            ifindex,
            flows: 0,
            idle_calls: 0,
            inner: 0,
            receives: false,
            idle_inner_calls: 0,
        }
    }
}

/// Result of a check of the devices.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// Devices that another program has removed, with their index. Flows of their tunnels have to be
    /// installed again.
    pub(super) gone: Vec<(TunnelId, u32)>,
    /// Tunnels whose outer packets stay with workers from now on.
    pub(super) closed: Vec<TunnelId>,
    /// Index of each device that was removed.
    pub(super) removed: Vec<u32>,
}

/// The tunnel devices of this process.
#[derive(Debug)]
pub(super) struct TunnelDevices {
    /// Their device group.
    group: u32,
    all: BTreeMap<TunnelId, TunnelDevice>,
    /// Devices that could not be made since the last check, and the reasons.
    failed: BTreeMap<TunnelId, Why>,
}

/// Device group of the tunnel devices of the switch with this owner number. Miss devices have other groups
/// ([`crate::miss::group_of`]).
fn group_of(owner: u64) -> u32 {
    // Half of a random number, in a range of its own.
    #[allow(clippy::cast_possible_truncation)]
    let low = owner as u32;
    low & 0x1fff_ffff | 0x2000_0000
}

/// Removes the tunnel devices that processes with this owner number have made.
pub(super) fn remove_leftovers(owner: u64) {
    if let Err(error) = TapLinks::new(None).and_then(|links| links.remove_group(group_of(owner))) {
        log::warn!(target: "netdev_offload", "tunnel devices of the kernel are not removed ({error})");
    }
}

/// Kind and UDP port of the device with this name.
fn id_of(name: &str) -> Option<TunnelId> {
    let (kind, port) = match name.split_once("_sys_")? {
        ("vxlan", port) => (TunnelLinkKind::Vxlan, port),
        ("genev", port) => (TunnelLinkKind::Geneve, port),
        _ => return None,
    };
    Some((kind, port.parse().ok()?))
}

impl TunnelDevices {
    /// The devices that earlier processes with this owner number have made.
    pub(super) fn new(owner: u64) -> Self {
        let group = group_of(owner);
        let links = TapLinks::new(None).and_then(|links| links.all());
        let ours = links.unwrap_or_default().into_iter();
        let ours = ours
            .filter(|link| link.group == group)
            .filter_map(|link| Some((id_of(&link.name)?, TunnelDevice::new(link.ifindex))));
        Self {
            group,
            all: ours.collect(),
            failed: BTreeMap::new(),
        }
    }
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
    /// Interface index of the device of these tunnels, which is made if there is none.
    ///
    /// # Errors
    /// The reason why there can be none.
    pub(super) fn device_of(&mut self, batch: &mut RouteBatch, id: TunnelId) -> Result<u32, Why> {
        if let Some(device) = self.all.get(&id) {
            return Ok(device.ifindex);
        }
        if let Some(why) = self.failed.get(&id) {
            return Err(*why);
        }
        let made = self.make(batch, id).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(Errno::TIMEDOUT.raw_os_error());
            match Errno::from_raw_os_error(errno) {
                // Geneve reports `EPERM`. Without the right to make devices, there are no filters either.
                Errno::EXIST | Errno::ADDRINUSE | Errno::PERM => {
                    Why::Tunnel("needs a device of the kernel whose name or UDP port another program has")
                }
                _ => Why::TunnelDevice(errno),
            }
        });
        let name = id.0.device_name(id.1);
        match made {
            Ok(ifindex) => {
                log::info!(target: "netdev_offload", "{name}: made for filters of tunnels");
                self.all.insert(id, TunnelDevice::new(ifindex));
                Ok(ifindex)
            }
            Err(why) => {
                log::warn!(target: "netdev_offload", per_min = 5, burst = 5; "{name} is not made, so flows stay with workers: {why}");
                self.failed.insert(id, why);
                Err(why)
            }
        }
    }
    fn make(&self, batch: &mut RouteBatch, (kind, port): TunnelId) -> io::Result<u32> {
        let (links, tunnels) = (TapLinks::new(None)?, TunnelLinks::new()?);
        tunnels.make(kind, port, self.group)?;
        let name = kind.device_name(port);
        let ifindex = LinkCtl::new()?.ifindex(&name)?;
        let mut begin = || -> io::Result<()> {
            // The host's stack must not send by the device.
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
            let drop_all = vec![attrs::gact(attrs::TC_ACT_SHOT)];
            add_miss_filter(batch, ifindex, drop_all, 0)?;
            limit_gro(batch, ifindex);
            links.bring_up(ifindex, self.group)
        };
        begin().inspect_err(|_| {
            let _ = tunnels.remove(ifindex);
        })?;
        Ok(ifindex)
    }
    /// Counts a flow that leads to a device, or one that does so no more.
    pub(super) fn count_flow(&mut self, id: TunnelId, n: isize) {
        if let Some(device) = self.all.get_mut(&id) {
            device.flows = device.flows.saturating_add_signed(n);
            device.idle_calls = 0;
        }
    }
    /// Counts a flow that comes out of a device's tunnels, or one that does so no more. Returns whether outer
    /// packets may pass to the host's stack from now on.
    pub(super) fn count_inner(&mut self, id: TunnelId, n: isize) -> bool {
        let Some(device) = self.all.get_mut(&id) else {
            return false;
        };
        device.inner = device.inner.saturating_add_signed(n);
        device.idle_inner_calls = 0;
        device.inner > 0 && !std::mem::replace(&mut device.receives, true)
    }
    /// Whether outer packets of these tunnels may pass to the host's stack.
    pub(super) fn receives(&self, id: TunnelId) -> bool {
        self.all.get(&id).is_some_and(|device| device.receives)
    }
    /// Tunnels, index of the device, and number of flows of devices that flows come in by.
    pub(super) fn with_inner(&self) -> Vec<(TunnelId, u32, usize)> {
        let with = self.all.iter().filter(|(_, device)| device.inner > 0);
        with.map(|(id, device)| (*id, device.ifindex, device.inner))
            .collect()
    }
    /// Removes devices that have had no flow for a while. `keep`: filters of an earlier process may lead to
    /// them.
    pub(super) fn check(&mut self, keep: bool) -> Checked {
        self.failed.clear();
        let mut checked = Checked::default();
        if self.all.is_empty() {
            return checked;
        }
        let Ok(links) = LinkCtl::new() else {
            return checked;
        };
        self.all.retain(|id, device| {
            let is_there = links.ifindex(&id.0.device_name(id.1)).ok() == Some(device.ifindex);
            if !is_there {
                checked.gone.push((*id, device.ifindex));
                return false;
            }
            let count = |calls: u32, flows: usize| if flows > 0 { 0 } else { calls + 1 };
            device.idle_calls = if keep {
                0
            } else {
                count(device.idle_calls, device.flows)
            };
            device.idle_inner_calls = count(device.idle_inner_calls, device.inner);
            // Outer packets stay with workers before the device goes.
            if device.receives && device.idle_inner_calls > IDLE_CALLS {
                device.receives = false;
                checked.closed.push(*id);
                return true;
            }
            let is_due = !device.receives && device.idle_calls > IDLE_CALLS;
            if is_due {
                remove(*id, device);
                checked.removed.push(device.ifindex);
            }
            !is_due
        });
        checked
    }
    /// Removes all devices.
    pub(super) fn shutdown(&mut self) {
        for (id, device) in std::mem::take(&mut self.all) {
            remove(id, &device);
        }
    }
}

/// Bounds the length of GSO packets that the device makes of received ones. If they go back to workers, they
/// must not be longer than an IP packet with outer headers. Kernels before Linux 5.19 do not know the
/// attribute.
fn limit_gro(batch: &mut RouteBatch, ifindex: u32) {
    const IFLA_GRO_MAX_SIZE: u16 = 58;
    const MAX_BYTES: u32 = 65_000;
    let mut m = LinkMessage::default();
    m.header.index = ifindex;
    let size = DefaultNla::new(IFLA_GRO_MAX_SIZE, MAX_BYTES.to_ne_bytes().to_vec());
    m.attributes = vec![LinkAttribute::Other(size)];
    let request = RouteRequest {
        message: SetLink(m),
        flags: 0,
    };
    let _ = batch.send(vec![request], &mut |_| {});
}

fn remove((kind, port): TunnelId, device: &TunnelDevice) {
    let name = kind.device_name(port);
    match TunnelLinks::new().and_then(|links| links.remove(device.ifindex)) {
        Ok(()) => {
            log::info!(target: "netdev_offload", "{name}: removed, since no filter leads to it")
        }
        Err(error) => log::warn!(target: "netdev_offload", "{name}: cannot be removed ({error})"),
    }
}

/// Interface index of the device by which the kernel sends packets from `src` to `dst`.
///
/// # Errors
/// The kernel has no route.
pub(super) fn route_device(batch: &mut RouteBatch, src: IpAddr, dst: IpAddr) -> io::Result<Option<u32>> {
    let mut m = RouteMessage::default();
    let (family, bits) = match dst {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    m.header.address_family = family;
    (m.header.destination_prefix_length, m.header.source_prefix_length) = (bits, bits);
    m.attributes = vec![
        RouteAttribute::Destination(dst.into()),
        RouteAttribute::Source(src.into()),
    ];
    let mut device = None;
    let request = RouteRequest {
        message: GetRoute(m),
        flags: 0,
    };
    let results = batch.send(vec![request], &mut |reply| {
        device = device.or_else(|| message::output_device(reply.payload));
    })?;
    results.into_iter().next().unwrap_or(Ok(())).map(|()| device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn names_are_those_of_open_vswitch() {
        for id in [(TunnelLinkKind::Vxlan, 4789), (TunnelLinkKind::Geneve, 65535)] {
            let name = id.0.device_name(id.1);
            assert!(name.len() < 16, "{name}");
            assert_eq!(id_of(&name), Some(id));
        }
        for name in ["vxlan_sys_", "vxlan0", "gre_sys_1", "vxlan_sys_70000"] {
            assert_eq!(id_of(name), None, "{name}");
        }
    }

    #[test]
    fn groups_of_tunnels_and_miss_devices_differ() {
        for owner in [0, 7, u64::MAX] {
            assert_ne!(group_of(owner), crate::miss::group_of(owner));
            assert_ne!(group_of(owner), 0);
        }
    }

    #[test]
    fn the_kernel_names_the_device_of_a_route() {
        let mut batch = RouteBatch::new(Duration::from_secs(10)).unwrap();
        let local: IpAddr = "127.0.0.1".parse().unwrap();
        assert_eq!(route_device(&mut batch, local, local).unwrap(), Some(1));
        // 240.0.0.0/4 has no route, or a default one, which is not by the loopback device.
        let other = "240.0.0.1".parse().unwrap();
        assert_ne!(route_device(&mut batch, local, other).unwrap_or(None), Some(1));
    }
}
