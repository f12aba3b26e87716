//! State of a tap device that may have been renamed or moved to another network namespace.
//!
//! The queue's descriptor knows the present name and namespace. So a request goes first to the descriptor,
//! then by name to a socket in that namespace. A value that cannot be read (no `CAP_SYS_ADMIN` to enter the
//! namespace) stays the last known one. Nothing is logged, since the control plane queries every few seconds.
//!
//! A socket in another namespace is opened for each request and closed again (some 50 µs). An open socket
//! would keep the namespace and the device alive after the end of their pod. A device elsewhere that does not
//! change is queried less often: a hundred of them took half a per cent of a core.

use crate::PortStatus;
use heddle_sys::{LinkCtl, TapQueue, netns};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Error number of Linux: this queue has no device.
const EBADFD: i32 = 77;

#[derive(Debug)]
pub(super) struct TapCtl {
    queue: Arc<TapQueue>,
    /// Requests by name in the daemon's own namespace.
    home: LinkCtl,
    /// The daemon's own namespace.
    home_ns: Option<netns::Id>,
    last: PortStatus,
    /// Equal results in a row, while that matters.
    same: u32,
}

/// After this number of equal results a device in another namespace counts as steady,
const STEADY: u32 = 8;
/// and only one in this number of status requests queries it.
const SELDOM: u32 = 4;

impl TapCtl {
    pub(super) fn new(queue: Arc<TapQueue>) -> io::Result<Self> {
        let mut ctl = Self {
            queue,
            home: LinkCtl::new()?,
            home_ns: netns::own().ok().and_then(|ns| netns::id(&ns).ok()),
            last: PortStatus::default(),
            same: 0,
        };
        let (ifindex, driver) =
            ctl.by_name(|link, name| Ok((link.ifindex(name)?, link.driver(name).unwrap_or_default())))?;
        ctl.last.ifindex = ifindex;
        ctl.last.extra = vec![
            ("driver_name".into(), driver.name),
            ("driver_version".into(), driver.version),
            ("firmware_version".into(), driver.firmware),
        ];
        Ok(ctl)
    }

    /// Does something with the device by its present name, where it is.
    fn by_name<T>(&self, request: impl FnOnce(&LinkCtl, &str) -> io::Result<T>) -> io::Result<T> {
        let name = self.queue.ifname()?;
        match self.elsewhere() {
            Some(ns) => request(&LinkCtl::in_namespace(&ns)?, &name),
            None => request(&self.home, &name),
        }
    }

    /// The device's namespace, if it is not the daemon's own. Old kernels do not report it: then the device
    /// has to be here.
    pub(super) fn elsewhere(&self) -> Option<OwnedFd> {
        let ns = self.queue.namespace().ok()?;
        (netns::id(&ns).ok() != self.home_ns).then_some(ns)
    }

    /// Identity of the device's namespace, and the namespace unless it is the daemon's own.
    pub(super) fn namespace(&self) -> (netns::Id, Option<OwnedFd>) {
        let elsewhere = self.elsewhere();
        let id = elsewhere.as_ref().and_then(|ns| netns::id(ns).ok());
        (id.or(self.home_ns).unwrap_or_default(), elsewhere)
    }

    pub(super) fn status(&mut self) -> PortStatus {
        let mut now = self.last.clone();
        if let Ok(mac) = self.queue.mac() {
            now.mac = mac;
        }
        let rests = self.same >= STEADY && self.same < STEADY + SELDOM && self.elsewhere().is_some();
        if !rests {
            let _ = self.read_by_name(&mut now);
        }
        if self.is_gone() {
            now.ifindex = 0;
            now.link_up = false;
        }
        if now.link_up != self.last.link_up {
            now.link_resets += 1;
        }
        self.same = match now == self.last {
            true if self.same >= STEADY + SELDOM => STEADY,
            true => self.same + 1,
            false => 0,
        };
        self.last = now.clone();
        now
    }

    /// Reads the state that only the device's namespace has.
    fn read_by_name(&self, now: &mut PortStatus) -> io::Result<()> {
        self.by_name(|link, name| {
            if let Ok(mtu) = link.mtu(name) {
                now.mtu = mtu;
            }
            if let Ok(flags) = link.flags(name) {
                now.admin_up = flags.up;
            }
            if let Ok(up) = link.carrier(name) {
                now.link_up = up;
            }
            if let Ok(index) = link.ifindex(name) {
                now.ifindex = index;
            }
            if let Ok(speed) = link.speed(name) {
                now.speed_bps = u64::from(speed.mbps.unwrap_or(0)) * 1_000_000;
                now.full_duplex = speed.full_duplex;
            }
            Ok(())
        })
    }

    /// Whether the device was deleted, by its owner or with its namespace. The queried queue is never
    /// detached.
    fn is_gone(&self) -> bool {
        matches!(self.queue.ifname(), Err(e) if e.raw_os_error() == Some(EBADFD))
    }

    pub(super) fn set_mtu(&mut self, mtu: u32) -> io::Result<()> {
        self.same = 0;
        self.by_name(|link, name| link.set_mtu(name, mtu))
    }

    pub(super) fn set_mac(&self, mac: [u8; 6]) -> io::Result<()> {
        self.queue.set_mac(mac)
    }

    pub(super) fn set_admin(&mut self, up: bool) -> io::Result<()> {
        self.same = 0;
        self.by_name(|link, name| link.set_up(name, up))
    }
}
