//! State of a tap device that may have been renamed or moved to another network namespace.
//!
//! The queue's descriptor knows the present name and namespace, so a request goes first to the descriptor, then by
//! name to a socket in that namespace. What cannot be asked (no `CAP_SYS_ADMIN` to enter the namespace) keeps its last
//! known value; nothing is logged, since the control plane asks every few seconds.

use crate::PortStatus;
use heddle_sys::{LinkCtl, TapQueue};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct TapCtl {
    queue: Arc<TapQueue>,
    /// Requests by name in the namespace that the device is in.
    link: Option<LinkCtl>,
    /// Device and inode of that namespace.
    ns: Option<(u64, u64)>,
    /// Device and inode of the namespace that the device was made in.
    home: Option<(u64, u64)>,
    last: PortStatus,
}

impl TapCtl {
    pub(super) fn new(name: &str, queue: Arc<TapQueue>) -> io::Result<Self> {
        let link = LinkCtl::new()?;
        let last = PortStatus {
            ifindex: link.ifindex(name)?,
            ..PortStatus::default()
        };
        let home = queue.namespace().ok().and_then(|fd| ns_id(fd).map(|(_, id)| id));
        let mut ctl = Self {
            queue,
            link: Some(link),
            ns: home,
            home,
            last,
        };
        let driver = ctl
            .link
            .as_ref()
            .and_then(|l| l.driver(name).ok())
            .unwrap_or_default();
        ctl.last.extra = vec![
            ("driver_name".into(), driver.name),
            ("driver_version".into(), driver.version),
            ("firmware_version".into(), driver.firmware),
        ];
        Ok(ctl)
    }

    /// The handle for requests by name, and the name; follows a move.
    fn by_name(&mut self) -> io::Result<(&LinkCtl, String)> {
        let name = self.queue.ifname()?;
        if let Some((fd, id)) = self.queue.namespace().ok().and_then(ns_id)
            && self.ns != Some(id)
        {
            self.ns = Some(id);
            self.link = LinkCtl::in_namespace(fd).ok();
        }
        let link = self
            .link
            .as_ref()
            .ok_or_else(|| io::Error::from(io::ErrorKind::PermissionDenied))?;
        Ok((link, name))
    }

    /// Whether the device is in another namespace than it was made in.
    pub(super) fn moved(&mut self) -> bool {
        let _ = self.by_name();
        self.ns != self.home
    }

    pub(super) fn status(&mut self) -> PortStatus {
        let mut now = self.last.clone();
        if let Ok(mac) = self.queue.mac() {
            now.mac = mac;
        }
        if let Ok((link, name)) = self.by_name() {
            if let Ok(mtu) = link.mtu(&name) {
                now.mtu = mtu;
            }
            if let Ok(flags) = link.flags(&name) {
                now.admin_up = flags.up;
            }
            if let Ok(up) = link.carrier(&name) {
                now.link_up = up;
            }
            if let Ok(index) = link.ifindex(&name) {
                now.ifindex = index;
            }
            if let Ok(speed) = link.speed(&name) {
                now.speed_bps = u64::from(speed.mbps.unwrap_or(0)) * 1_000_000;
                now.full_duplex = speed.full_duplex;
            }
        }
        if now.link_up != self.last.link_up {
            now.link_resets += 1;
        }
        self.last = now.clone();
        now
    }

    pub(super) fn set_mtu(&mut self, mtu: u32) -> io::Result<()> {
        let (link, name) = self.by_name()?;
        link.set_mtu(&name, mtu)
    }

    pub(super) fn set_mac(&mut self, mac: [u8; 6]) -> io::Result<()> {
        self.queue.set_mac(mac)
    }

    pub(super) fn set_admin(&mut self, up: bool) -> io::Result<()> {
        let (link, name) = self.by_name()?;
        link.set_up(&name, up)
    }
}

/// The identity of a namespace, with its descriptor.
fn ns_id(fd: OwnedFd) -> Option<(OwnedFd, (u64, u64))> {
    let file = File::from(fd);
    let meta = file.metadata().ok()?;
    Some((file.into(), (meta.dev(), meta.ino())))
}
