//! A network device of the host, for the types of ports that have one: its status and settings.

use crate::{PortError, PortStatus};
use heddle_sys::LinkCtl;

/// A device by its name, in the namespace of the thread that has opened it.
#[derive(Debug)]
pub(crate) struct Netdev {
    pub(crate) name: String,
    pub(crate) link: LinkCtl,
}

impl Netdev {
    /// Opens device `name`. Refuses devices that would take sent packets in and give nothing sensible back.
    /// The words begin as Open vSwitch's do.
    ///
    /// # Errors
    /// [`PortError::Sys`]: no such device. [`PortError::Config`]: it is a loopback device, or its frames are
    /// not Ethernet's.
    pub(crate) fn open(name: &str) -> Result<Self, PortError> {
        let link = LinkCtl::new().map_err(|e| PortError::open(name, e))?;
        link.ifindex(name).map_err(|e| PortError::open(name, e))?;
        let refused = |why| {
            let text = format!("could not add network device {name} to ofproto (Invalid argument: {why})");
            Err(PortError::Config(text))
        };
        if link.flags(name).is_ok_and(|f| f.loopback) {
            return refused("a loopback device cannot be a port");
        }
        if link.is_ethernet(name).is_ok_and(|yes| !yes) {
            return refused("its frames have no Ethernet header");
        }
        Ok(Self {
            name: name.to_owned(),
            link,
        })
    }

    /// The device's present index.
    ///
    /// # Errors
    /// [`PortError::Sys`]: no such device.
    pub(crate) fn ifindex(&self) -> Result<u32, PortError> {
        let index = self.link.ifindex(&self.name);
        index.map_err(|e| PortError::open(&self.name, e))
    }

    /// The device's present status; a value that the device does not report is kept from `last`.
    pub(crate) fn read(&self, last: &PortStatus) -> PortStatus {
        let (link, name) = (&self.link, self.name.as_str());
        let mut now = last.clone();
        let Ok(index) = link.ifindex(name) else {
            now.ifindex = 0;
            now.admin_up = false;
            now.link_up = false;
            return now;
        };
        if index != now.ifindex {
            let driver = link.driver(name).unwrap_or_default();
            now.extra = vec![
                ("driver_name".into(), driver.name),
                ("driver_version".into(), driver.version),
                ("firmware_version".into(), driver.firmware),
            ];
        }
        now.ifindex = index;
        now.mac = link.mac(name).unwrap_or(now.mac);
        now.mtu = link.mtu(name).unwrap_or(now.mtu);
        now.admin_up = link.flags(name).is_ok_and(|f| f.up);
        now.link_up = link.carrier(name).unwrap_or(false);
        if let Ok(speed) = link.speed(name) {
            now.speed_bps = u64::from(speed.mbps.unwrap_or(0)) * 1_000_000;
            now.full_duplex = speed.full_duplex;
        }
        now
    }

    /// See [`crate::Port::set_mtu`].
    pub(crate) fn set_mtu(&self, mtu: u32) -> Result<(), PortError> {
        let done = self.link.set_mtu(&self.name, mtu);
        done.map_err(|e| PortError::sys(format!("could not set MTU of {} to {mtu}", self.name), e))
    }
    /// See [`crate::Port::set_mac`].
    pub(crate) fn set_mac(&self, mac: [u8; 6]) -> Result<(), PortError> {
        let done = self.link.set_mac(&self.name, mac);
        done.map_err(|e| PortError::sys(format!("could not set hardware address of {}", self.name), e))
    }
    /// See [`crate::Port::set_admin`].
    pub(crate) fn set_admin(&self, up: bool) -> Result<(), PortError> {
        let done = self.link.set_up(&self.name, up);
        done.map_err(|e| PortError::sys(format!("could not set flags of {}", self.name), e))
    }
}
