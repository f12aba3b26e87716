//! `afxdp` ports: a network device whose packets come into this process's memory past the host's stack.
//! Ports of type `dpdk` are the same, for a device that `options:dpdk-devargs` names ([`devargs`]); the
//! kernel's driver keeps it.
//!
//! Each receive queue is a socket that is bound to one queue of the device; it sends, too. Workers that share
//! a transmit queue lock it, once a burst. The device's other queues, if there are some, stay with the host's
//! stack.
//!
//! AF_XDP has no segmentation offload: GSO packets are cut before they are sent. The kernel fills checksums
//! in where it copies packets; a zero-copy driver does not, so the switch does.
//!
//! All queues are opened together, in the best mode that all of them have. They are opened again when their
//! number, the options or the device change; packets that are in the old rings are lost then. They are opened
//! again, too, after another program has detached the XDP program.

mod devargs;
mod device;
mod open;
mod options;
mod queues;
#[cfg(test)]
mod tests;

use crate::netdev::Netdev;
use crate::rates::{self, Rates, Share};
use crate::{Port, PortError, PortStatus, QosConfig, RxQueue, TxQueue};
use device::Device;
use heddle_sys::QueueCounts;
use heddle_sys::device_programs::DevicePrograms;
use heddle_sys::link::{LRO, RX_VLAN};
use heddle_xsk::{MAX_QUEUES, PassItem, Queue};
use options::Options;
use parking_lot::Mutex;
use queues::{AfxdpRx, AfxdpTx, Senders};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Key of `Interface.status` that lists the packets for the host's stack.
const XDP_PASS: &str = "heddle-xdp-pass";
/// Key of `Interface.status`: the number of receive queues whose packets the host's stack gets.
const QUEUES_OF_HOST: &str = "xdp-queues-of-host";
/// The option that names the device of a `dpdk` port.
const DEVARGS: &str = "dpdk-devargs";

/// A port on a network device, through AF_XDP.
#[derive(Debug)]
pub struct AfxdpPort {
    name: String,
    kind: &'static str,
    netdev: Netdev,
    /// Reads the XDP programs of devices; `None`: no descriptors were left.
    programs: Option<DevicePrograms>,
    senders: Arc<Senders>,
    /// Rates of what it sends: packets of these sockets pass no discipline of the kernel.
    rates: Arc<Rates>,
    state: Mutex<PortState>,
}

#[derive(Debug)]
struct PortState {
    options: Options,
    /// The text that has named the device.
    devargs: Option<String>,
    device: Option<Device>,
    /// Packets that the host's stack gets.
    pass: Vec<PassItem>,
    /// Why the wanted list of such packets is not in force.
    pass_failure: Option<String>,
    last: PortStatus,
    /// Options or device have changed since the queues were opened.
    stale: bool,
    /// Losses of queues that are closed.
    lost: u64,
    /// Why the wanted queues could not be opened. There may be fewer.
    failure: Option<String>,
    /// The number of queues that could not be opened.
    failed_n: usize,
    /// Offloads of the device that were turned off.
    turned_off: u32,
    /// The number of queues that the device had, if it was changed.
    queues_before: Option<u32>,
    /// The number of queues that the device has.
    queues_there: Option<u32>,
}

impl AfxdpPort {
    /// Maximum number of receive queues.
    pub const MAX_RXQ: usize = MAX_QUEUES as usize;

    /// Opens the network device `name`. `pass`: the packets that the host's stack gets
    /// ([`Port::set_xdp_pass`]).
    ///
    /// # Errors
    /// [`PortError::Sys`]: no such device. [`PortError::Config`]: options that make no sense, or the device
    /// cannot be opened in this way; the text has the reason. [`PortError::Busy`]: another program uses it.
    pub fn open(
        name: &str,
        options: &BTreeMap<String, String>,
        pass: Option<&str>,
    ) -> Result<Self, PortError> {
        Self::open_as("afxdp", name, name, options, pass)
    }

    /// Opens the network device that `options:dpdk-devargs` names, for a port of type `dpdk`.
    ///
    /// # Errors
    /// The errors of [`AfxdpPort::open`]; [`PortError::Config`] for a device that the kernel does not drive.
    pub fn open_dpdk(
        name: &str,
        options: &BTreeMap<String, String>,
        pass: Option<&str>,
    ) -> Result<Self, PortError> {
        let device = match options.get(DEVARGS) {
            Some(devargs) => devargs::netdev_of(devargs),
            None => Err(format!("options:{DEVARGS} is missing")),
        };
        let device = device.map_err(|why| PortError::Config(format!("{name}: {why}")))?;
        Self::open_as("dpdk", name, &device, options, pass)
    }

    /// The network device that a `dpdk` port with these options would open. `None`: it could open none.
    pub(crate) fn device_of_dpdk(options: &BTreeMap<String, String>) -> Option<String> {
        devargs::netdev_of(options.get(DEVARGS)?).ok()
    }

    fn open_as(
        kind: &'static str,
        name: &str,
        device: &str,
        options: &BTreeMap<String, String>,
        pass: Option<&str>,
    ) -> Result<Self, PortError> {
        let netdev = Netdev::open(device)?;
        let wanted = Options::parse(name, options)?;
        let port = Self {
            name: name.to_owned(),
            kind,
            state: Mutex::new(PortState {
                options: wanted,
                devargs: options.get(DEVARGS).cloned(),
                device: None,
                pass: Vec::new(),
                pass_failure: None,
                last: netdev.read(&PortStatus::default()),
                stale: false,
                lost: 0,
                failure: None,
                failed_n: 0,
                turned_off: 0,
                queues_before: None,
                queues_there: None,
            }),
            senders: Arc::default(),
            rates: Arc::default(),
            programs: DevicePrograms::new().ok(),
            netdev,
        };
        port.set_xdp_pass(pass);
        port.open_device(&mut port.state.lock(), 1)?;
        port.status();
        // A tag that the device has taken out would be lost, and joined segments do not fit a frame. A device
        // without these offloads is fine.
        port.state.lock().turned_off = port.netdev.link.turn_off(device, RX_VLAN | LRO).unwrap_or(0);
        Ok(port)
    }
}

/// Keys of `Interface.status` that are made anew each time.
const STATUS_KEYS: [&str; 8] = [
    "xdp-mode",
    QUEUES_OF_HOST,
    "tx-steering",
    XDP_PASS,
    "heddle-backend",
    "heddle-device",
    "numa_id",
    "link_speed",
];

impl Drop for AfxdpPort {
    /// A port that could not be opened has changed the card, too.
    fn drop(&mut self) {
        self.forget();
    }
}

impl Port for AfxdpPort {
    fn name(&self) -> &str {
        &self.name
    }
    fn kind(&self) -> &'static str {
        self.kind
    }
    fn open_rx(&self, n: usize) -> Result<Vec<Box<dyn RxQueue>>, PortError> {
        let mut state = self.state.lock();
        let ready = |d: &Device| d.unused.len() == n && d.queues.len() == n;
        if state.stale || !state.device.as_ref().is_some_and(ready) {
            self.open_device(&mut state, n)?;
        }
        let unused = state.device.as_mut().map(|d| std::mem::take(&mut d.unused));
        let queues = unused.into_iter().flatten().map(AfxdpRx::new);
        Ok(queues.map(|q| Box::new(q) as Box<dyn RxQueue>).collect())
    }
    fn open_tx(&self, worker: usize, _n: usize) -> Result<Box<dyn TxQueue>, PortError> {
        let share = Share::new(Arc::clone(&self.rates), worker);
        Ok(Box::new(AfxdpTx::new(Arc::clone(&self.senders), share)))
    }
    fn set_options(&self, options: &BTreeMap<String, String>) -> Result<(), PortError> {
        let wanted = Options::parse(&self.name, options)?;
        let mut state = self.state.lock();
        if options.get(DEVARGS) != state.devargs.as_ref() && self.kind == "dpdk" {
            let text = format!(
                "{}: options:{DEVARGS} has changed: make the port again",
                self.name
            );
            return Err(PortError::Config(text));
        }
        if state.device.is_some() {
            state.failure = None;
        }
        state.stale |= wanted != state.options;
        state.options = wanted;
        Ok(())
    }
    fn status(&self) -> PortStatus {
        Queue::tidy_up();
        let mut state = self.state.lock();
        let mut now = self.netdev.read(&state.last);
        self.look_for_changes(&mut state, now.ifindex);
        if now.link_up != state.last.link_up {
            now.link_resets += 1;
        }
        now.rx_dropped = state.lost + state.device.as_ref().map_or(0, Device::losses);
        now.numa = state.device.as_ref().and_then(|d| d.numa);
        now.extra.retain(|(key, _)| !STATUS_KEYS.contains(&key.as_str()));
        let status = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        now.extra
            .extend(state.device.as_ref().map(|d| status("xdp-mode", d.mode.name())));
        let of_host = state.queues_of_host();
        now.extra
            .extend(of_host.map(|n| status(QUEUES_OF_HOST, &n.to_string())));
        now.extra.push(status("tx-steering", self.senders.steering()));
        let pass: Vec<_> = state.pass.iter().map(ToString::to_string).collect();
        now.extra.push(status(XDP_PASS, &pass.join(",")));
        if self.kind == "dpdk" {
            now.extra.push(status("heddle-backend", "afxdp"));
            now.extra.push(status("heddle-device", &self.netdev.name));
            now.extra
                .extend(now.numa.map(|n| status("numa_id", &n.to_string())));
            let speed = (now.speed_bps > 0).then(|| format!("{}Gbps", now.speed_bps as f64 / 1e9));
            now.extra.extend(speed.map(|speed| status("link_speed", &speed)));
        }
        let too_long = || state.device.as_ref().and_then(|d| d.too_long(now.mtu));
        let failure = state.failure.clone().or_else(|| state.pass_failure.clone());
        now.error = failure.or_else(too_long);
        self.senders.set_state(now.admin_up, now.mtu);
        state.last = now.clone();
        now
    }
    fn set_mtu(&self, mtu: u32) -> Result<(), PortError> {
        self.netdev.set_mtu(mtu)?;
        self.status();
        Ok(())
    }
    fn set_mac(&self, mac: [u8; 6]) -> Result<(), PortError> {
        self.netdev.set_mac(mac)
    }
    fn set_admin(&self, up: bool) -> Result<(), PortError> {
        self.netdev.set_admin(up)
    }
    fn statistics(&self) -> Vec<(String, u64)> {
        let state = self.state.lock();
        let all = state.device.iter().flat_map(Device::statistics);
        let drops = Some(("ovs_tx_qos_drops".to_owned(), self.rates.dropped()));
        all.chain(drops.filter(|(_, n)| *n > 0)).collect()
    }
    fn set_qos(&self, qos: Option<&QosConfig>) -> Result<(), PortError> {
        self.rates.set_qos(&self.name, qos)
    }
    fn qos_types(&self) -> &'static [&'static str] {
        rates::TYPES
    }
    fn qos(&self) -> Option<QosConfig> {
        self.rates.shown()
    }
    fn queue_counts(&self) -> Vec<QueueCounts> {
        self.rates.counts()
    }
    fn set_tx_steering(&self, by_flow: bool) {
        self.senders.set_by_flow(by_flow);
    }
    fn set_xdp_pass(&self, items: Option<&str>) {
        let mut state = self.state.lock();
        let wanted = PassItem::list(items.unwrap_or_default());
        let wanted = wanted.map_err(|why| format!("{}: other_config:{XDP_PASS}: {why}", self.name));
        state.pass_failure = wanted.as_ref().err().cloned();
        let Ok(wanted) = wanted else { return };
        if wanted == state.pass {
            return;
        }
        match state.device.as_mut().map(|device| device.set_pass(&wanted)) {
            Some(Err(e)) => {
                state.pass_failure = Some(format!("{}: other_config:{XDP_PASS}: {e}", self.name));
            }
            _ => state.pass = wanted,
        }
    }
    fn stale(&self) -> bool {
        self.state.lock().stale
    }
    fn forget(&self) {
        let mut state = self.state.lock();
        self.senders.set(Vec::new());
        state.device = None;
        let (link, name) = (&self.netdev.link, self.netdev.name.as_str());
        if let Some(n) = state.queues_before.take()
            && let Err(e) = link.set_queues(name, n)
        {
            log::info!(target: "netdev_afxdp", "{name}: the number of queues stays ({e})");
        }
        let offloads = std::mem::take(&mut state.turned_off);
        if offloads != 0
            && let Err(e) = link.turn_on(name, offloads)
        {
            log::info!(target: "netdev_afxdp", "{name}: offloads stay off ({e})");
        }
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
