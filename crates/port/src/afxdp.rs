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
//! number, the options or the device change; packets that are in the old rings are lost then.

mod devargs;
mod options;
mod queues;
#[cfg(test)]
mod tests;

use crate::netdev::Netdev;
use crate::rates::{self, Rates, Share};
use crate::{Port, PortError, PortStatus, QosConfig, RxQueue, TxQueue};
use heddle_sys::link::{LRO, RX_VLAN};
use heddle_sys::{PacketSocket, QueueCounts};
use heddle_xsk::{MAX_QUEUES, Program, Queue, QueueConfig, Rx, Tx};
use options::{Mode, Options};
use parking_lot::Mutex;
use queues::{AfxdpRx, AfxdpTx, Senders};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The option that names the device of a `dpdk` port.
const DEVARGS: &str = "dpdk-devargs";

/// A port on a network device, through AF_XDP.
#[derive(Debug)]
pub struct AfxdpPort {
    name: String,
    kind: &'static str,
    netdev: Netdev,
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
}

/// The opened queues of a device.
#[derive(Debug)]
struct Device {
    ifindex: u32,
    mode: Mode,
    /// The card's NUMA node.
    numa: Option<u32>,
    queues: Vec<Queue>,
    /// Receiving halves that no worker has yet.
    unused: Vec<Rx>,
    _program: Program,
    /// The device takes in packets for every address as long as this is open.
    _promiscuous: PacketSocket,
}

impl Device {
    /// The fault of a device with that MTU, if its longest packets cannot be received.
    fn too_long(&self, mtu: u32) -> Option<String> {
        // Two tags and the Ethernet header.
        let longest = heddle_xsk::MAX_RECEIVED - 22;
        let lost = mtu as usize > longest && !self.queues.iter().all(Queue::takes_many_frames);
        lost.then(|| {
            format!(
                "mode {} receives no packets beyond an MTU of {longest}",
                self.mode.name()
            )
        })
    }
}

impl AfxdpPort {
    /// Maximum number of receive queues.
    pub const MAX_RXQ: usize = MAX_QUEUES as usize;

    /// Opens the network device `name`.
    ///
    /// # Errors
    /// [`PortError::Sys`]: no such device. [`PortError::Config`]: options that make no sense, or the device
    /// cannot be opened in this way; the text has the reason.
    pub fn open(name: &str, options: &BTreeMap<String, String>) -> Result<Self, PortError> {
        Self::open_as("afxdp", name, name, options)
    }

    /// Opens the network device that `options:dpdk-devargs` names, for a port of type `dpdk`.
    ///
    /// # Errors
    /// The errors of [`AfxdpPort::open`]; [`PortError::Config`] for a device that the kernel does not drive.
    pub fn open_dpdk(name: &str, options: &BTreeMap<String, String>) -> Result<Self, PortError> {
        let device = match options.get(DEVARGS) {
            Some(devargs) => devargs::netdev_of(devargs),
            None => Err(format!("options:{DEVARGS} is missing")),
        };
        let device = device.map_err(|why| PortError::Config(format!("{name}: {why}")))?;
        Self::open_as("dpdk", name, &device, options)
    }

    fn open_as(
        kind: &'static str,
        name: &str,
        device: &str,
        options: &BTreeMap<String, String>,
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
                last: netdev.read(&PortStatus::default()),
                stale: false,
                lost: 0,
                failure: None,
                failed_n: 0,
                turned_off: 0,
                queues_before: None,
            }),
            senders: Arc::default(),
            rates: Arc::default(),
            netdev,
        };
        port.open_device(&mut port.state.lock(), 1)?;
        port.status();
        // A tag that the device has taken out would be lost, and joined segments do not fit a frame. A device
        // without these offloads is fine.
        port.state.lock().turned_off = port.netdev.link.turn_off(device, RX_VLAN | LRO).unwrap_or(0);
        Ok(port)
    }

    /// Opens `n` queues of the device, in place of those that are open.
    fn open_device(&self, state: &mut PortState, n: usize) -> Result<(), PortError> {
        self.senders.set(Vec::new());
        state.lost += state.device.as_ref().map_or(0, losses);
        state.device = None;
        state.stale = false;
        let n = n.clamp(1, Self::MAX_RXQ);
        self.fit(state, n);
        let opened = self.try_modes(state.options, n);
        match &opened {
            Err(why) => (state.failure, state.failed_n) = (Some(why.to_string()), n),
            Ok(_) if n >= state.failed_n => state.failure = None,
            // The datapath has fallen back to one queue.
            Ok(_) => {}
        }
        let (device, senders) = opened?;
        self.senders.set(senders);
        state.device = Some(device);
        Ok(())
    }

    /// Gives a card the number of queues that the port uses. Packets of other queues would be the host's. The
    /// queues of a veth pair cannot be fewer than those of its other end, and stay as they are.
    fn fit(&self, state: &mut PortState, n: usize) {
        let (link, name) = (&self.netdev.link, self.netdev.name.as_str());
        let there = link
            .combined_queues(name)
            .filter(|_| state.options.first_queue == 0);
        let Some((there, n)) = there.zip(u32::try_from(n).ok()).filter(|(there, n)| there != n) else {
            return;
        };
        match link.set_queues(name, n) {
            Ok(()) => {
                state.queues_before.get_or_insert(there);
                log::info!(target: "netdev_afxdp", "{name}: {n} queues in place of {there}");
            }
            Err(e) => {
                log::info!(target: "netdev_afxdp", "{name}: it has {there} queues, and {n} are refused ({e})")
            }
        }
    }

    fn try_modes(&self, options: Options, n: usize) -> Result<(Device, Vec<Tx>), PortError> {
        let name = &self.netdev.name;
        let n = u32::try_from(n).unwrap_or(MAX_QUEUES);
        let ifindex = self.netdev.ifindex()?;
        let refused =
            |why: String| PortError::Config(format!("could not open network device {name} ({why})"));
        let (first, there) = (options.first_queue, self.netdev.link.rx_queues(name));
        if let Some(there) = there
            && first + n > there
        {
            return Err(refused(format!(
                "it has {there} receive queues, and n_rxq={n} from start-qid={first} on needs more: try ethtool -L"
            )));
        }
        // The kernel builds packets for this driver in another way, and leaves checksums out (Linux 6.12).
        let checksums = !self
            .netdev
            .link
            .driver(name)
            .is_ok_and(|d| d.name == "virtio_net");
        let mut reasons = Vec::new();
        for mode in options.modes() {
            match open_in(ifindex, mode, options, n, checksums) {
                Ok((mut device, senders)) => {
                    device.numa = numa_of(name);
                    if let Some(there) = there.filter(|there| *there > n) {
                        log::warn!(target: "netdev_afxdp",
                            "{name}: the host's stack gets packets of {} of its {there} receive queues: set \
                             options:n_rxq, or use ethtool -L", there - n);
                    }
                    log::info!(target: "netdev_afxdp", "{name}: {n} queues in mode {}", mode.name());
                    return Ok((device, senders));
                }
                Err(why) => reasons.push(format!("{}: {why}", mode.name())),
            }
        }
        Err(refused(reasons.join("; ")))
    }
}

/// The NUMA node of a network card.
fn numa_of(name: &str) -> Option<u32> {
    let node = std::fs::read_to_string(format!("/sys/class/net/{name}/device/numa_node"));
    node.ok()?.trim().parse().ok() // -1: unknown
}

/// Opens `n` queues in a mode.
///
/// # Errors
/// One sentence.
fn open_in(
    ifindex: u32,
    mode: Mode,
    options: Options,
    n: u32,
    checksums: bool,
) -> Result<(Device, Vec<Tx>), String> {
    let mut program = Program::attach(ifindex, mode != Mode::Generic)?;
    let text = |e: std::io::Error| heddle_sys::errno_text(&e);
    let promiscuous = PacketSocket::sender().map_err(text)?;
    promiscuous.join_promiscuous(ifindex).map_err(text)?;
    let (mut queues, mut unused, mut senders) = (Vec::new(), Vec::new(), Vec::new());
    for queue in options.first_queue..options.first_queue + n {
        let config = QueueConfig {
            ifindex,
            queue,
            rx_frames: options.frames.0,
            tx_frames: options.frames.1,
            zero_copy: mode == Mode::ZeroCopy,
            checksums,
            need_wakeup: options.need_wakeup,
        };
        let (opened, rx, tx) =
            Queue::open(config).map_err(|e| format!("queue {queue}: {}", heddle_sys::errno_text(&e)))?;
        program.lead(queue, &opened)?;
        queues.push(opened);
        unused.push(rx);
        senders.push(tx);
    }
    let device = Device {
        ifindex,
        mode,
        numa: None,
        queues,
        unused,
        _program: program,
        _promiscuous: promiscuous,
    };
    Ok((device, senders))
}

/// Keys of `Interface.status` that are made anew each time.
const STATUS_KEYS: [&str; 5] = [
    "xdp-mode",
    "heddle-backend",
    "heddle-device",
    "numa_id",
    "link_speed",
];

/// Packets that the kernel lost before a queue saw them.
fn losses(device: &Device) -> u64 {
    let all = device.queues.iter().filter_map(|q| q.losses().ok());
    all.map(|l| l.rx_dropped + l.rx_ring_full).sum()
}

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
        let mut state = self.state.lock();
        let mut now = self.netdev.read(&state.last);
        // Another device has the name, or no queue could be opened before.
        state.stale |= now.ifindex != 0 && state.device.as_ref().is_none_or(|d| d.ifindex != now.ifindex);
        if now.link_up != state.last.link_up {
            now.link_resets += 1;
        }
        now.rx_dropped = state.lost + state.device.as_ref().map_or(0, losses);
        now.numa = state.device.as_ref().and_then(|d| d.numa);
        now.extra.retain(|(key, _)| !STATUS_KEYS.contains(&key.as_str()));
        let status = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        now.extra
            .extend(state.device.as_ref().map(|d| status("xdp-mode", d.mode.name())));
        if self.kind == "dpdk" {
            now.extra.push(status("heddle-backend", "afxdp"));
            now.extra.push(status("heddle-device", &self.netdev.name));
            now.extra
                .extend(now.numa.map(|n| status("numa_id", &n.to_string())));
            let speed = (now.speed_bps > 0).then(|| format!("{}Gbps", now.speed_bps as f64 / 1e9));
            now.extra.extend(speed.map(|speed| status("link_speed", &speed)));
        }
        let too_long = || state.device.as_ref().and_then(|d| d.too_long(now.mtu));
        now.error = state.failure.clone().or_else(too_long);
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
        let queues = state.device.iter().flat_map(|d| d.queues.iter().enumerate());
        let all = queues.filter_map(|(i, q)| {
            let losses = q.losses().ok()?;
            Some([
                (format!("xsk_queue_{i}_rx_dropped"), losses.rx_dropped),
                (format!("xsk_queue_{i}_rx_invalid_descs"), losses.rx_invalid),
                (format!("xsk_queue_{i}_tx_invalid_descs"), losses.tx_invalid),
                (format!("xsk_queue_{i}_rx_ring_full"), losses.rx_ring_full),
                (format!("xsk_queue_{i}_fill_ring_empty"), losses.fill_ring_empty),
            ])
        });
        let drops = Some(("ovs_tx_qos_drops".to_owned(), self.rates.dropped()));
        all.flatten().chain(drops.filter(|(_, n)| *n > 0)).collect()
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
