//! `system` ports: an existing network device, through packet sockets.
//!
//! Each receive queue is a packet socket with the virtio-net header and a ring shared with the kernel.
//! Several queues share the device by flow hash (fanout). Transmission uses other sockets, which receive
//! nothing, one for each worker that sends. The device's offloads stay as they are: its GSO packets and
//! unfinished checksums are handed on as metadata. The device's own IP stack gets nothing ([`ingress`]). Sent
//! packets go through the device's queueing discipline: `tcpdump` on the device shows them, and settings made
//! with `tc` apply.
//!
//! Queues that are opened while others are open (for another number of them) replace these. They are made
//! ready behind a filter that takes nothing in. Then the old ones get such a filter, and the new ones lose
//! theirs. Packets that come within the microsecond between are lost; all others are in the old queues or in
//! the new.
//!
//! If the program diverts devices ([`Divert`]), there is one receive queue, which reads the
//! diverted packets, and the host's stack sees nothing. If that fails, the port has packet sockets and
//! reports the failure.
//!
//! A port may take outer packets of tunnels only ([`SystemPort::takes_outer`]). Its device is in no bridge,
//! and all other packets are the host's: a filter lets them pass the program that diverts. Such a port leaves
//! the device's settings as they are.
//!
//! A device that is deleted and made again gets a new index. [`Port::status`] notices and binds the sockets
//! again; members of a fanout group cannot be, so with several queues the port reports that it is stale.

mod ingress;
mod qos;
mod ready;
mod rx;
mod socket;
mod steer;
#[cfg(test)]
mod tests;
mod tx;

use crate::netdev::Netdev;
use crate::{Port, PortError, PortStatus, QosConfig, RxQueue, TxQueue};
use heddle_sys::{OuterFilter, PacketSocket, QueueCounts, RxRing, TapQueue};
pub use ingress::IngressFilters;
use ingress::VlanSet;
use parking_lot::Mutex;
pub use ready::Receivers;
use rx::SystemRx;
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Weak};
use steer::Steering;
use tx::{Senders, SystemTx};

/// Leads packets that network devices receive to the switch, before packet sockets and the host's stack.
pub trait Divert: Send + Sync {
    /// From now on the returned queue reads the packets that device `name` receives and that were not
    /// forwarded before. No other reader gets them. A second call returns the same queue.
    ///
    /// # Errors
    /// The system's error; the device is as it was.
    fn divert(&self, name: &str, ifindex: u32) -> io::Result<Arc<TapQueue>>;
    /// The device is as it was before. It may be gone.
    fn release(&self, name: &str, ifindex: u32);
    /// Whether the port is to open its queues again, because another program came to the device or went.
    /// `diverted`: the port has the queue of [`Divert::divert`].
    fn changed(&self, _ifindex: u32, _diverted: bool) -> bool {
        false
    }
}

/// Receive buffer of a queue, bytes of kernel memory: room for the windows of some fast TCP connections.
const RCVBUF: usize = 16 << 20;
/// Frames of a receive ring: the packets that may arrive while the worker is elsewhere.
const RING: usize = 512;
/// Send buffer of a queue: the bytes that a device may hold back.
const SNDBUF: usize = 4 << 20;
/// `Interface.status`: why the host's stack gets a copy of received packets.
const HOST_STACK_KEY: &str = "heddle_host_stack";

/// A port on an existing network device.
pub struct SystemPort {
    netdev: Netdev,
    divert: Option<Arc<dyn Divert>>,
    filters: Option<Arc<IngressFilters>>,
    /// VLANs that have a device of their own.
    vlans: Arc<VlanSet>,
    /// Sockets that were made before.
    ready: Option<Arc<Receivers>>,
    senders: Arc<Senders>,
    state: Mutex<Sockets>,
    /// Locked after `state`, if both are.
    qos: Mutex<qos::Qos>,
}

impl std::fmt::Debug for SystemPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SystemPort")
            .field("name", &self.netdev.name)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Sockets {
    receivers: Vec<Weak<PacketSocket>>,
    last: PortStatus,
    stale: bool,
    steering: Steering,
    /// Index of the device, while it is diverted.
    diverted: Option<u32>,
    /// Why the host's stack gets a copy, if it does.
    not_held: Option<String>,
    /// The packets that the port takes; `None`: all.
    outer: Option<Arc<OuterFilter>>,
}

impl SystemPort {
    /// Opens device `name`.
    ///
    /// # Errors
    /// [`PortError::Sys`]: no such device, no permission. [`PortError::Config`]: it is a loopback device, or
    /// its frames are not Ethernet's.
    pub fn open(name: &str) -> Result<Self, PortError> {
        let netdev = Netdev::open(name)?;
        let index = netdev.ifindex()?;
        // A missing privilege is reported here and not later.
        let senders = Senders::new(index).map_err(|e| PortError::open(name, e))?;
        let first = netdev.read(&PortStatus::default());
        Ok(Self {
            netdev,
            divert: None,
            filters: None,
            vlans: Arc::default(),
            ready: None,
            senders: Arc::new(senders),
            state: Mutex::new(Sockets {
                last: first,
                ..Sockets::default()
            }),
            qos: Mutex::default(),
        })
    }

    /// Sets the program's part that diverts received packets, if there is one.
    #[must_use]
    pub fn diverted_by(self, divert: Option<Arc<dyn Divert>>) -> Self {
        Self { divert, ..self }
    }

    /// Keeps packets that the device receives from the host's stack.
    #[must_use]
    pub fn kept_by(self, filters: Option<Arc<IngressFilters>>) -> Self {
        Self { filters, ..self }
    }

    /// Takes outer packets of tunnels only; the host's stack gets all others.
    #[must_use]
    pub fn takes_outer(self, filter: Arc<OuterFilter>) -> Self {
        self.state.lock().outer = Some(filter);
        self
    }

    /// Takes outer packets of these tunnels from now on, in place of others.
    ///
    /// # Errors
    /// The system refuses the filter.
    pub fn set_outer(&self, filter: Arc<OuterFilter>) -> io::Result<()> {
        let mut state = self.state.lock();
        for s in state.receivers.iter().filter_map(Weak::upgrade) {
            s.set_filter(&filter)?;
        }
        state.outer = Some(filter);
        if let Ok(index) = self.netdev.link.ifindex(&self.netdev.name) {
            let diverted = state.diverted.is_some();
            self.hold(&mut state, index, diverted);
        }
        Ok(())
    }

    /// Keeps packets that the device receives from the host's stack. `diverted`: the program takes them, or
    /// is about to.
    fn hold(&self, state: &mut Sockets, index: u32, diverted: bool) {
        let Some(filters) = &self.filters else { return };
        let failed = filters.hold(&self.netdev.name, index, state.outer.as_ref()).err();
        if let Some(why) = failed.as_ref().filter(|why| state.not_held.as_ref() != Some(why)) {
            log::warn!(
                target: "netdev_linux",
                "{}: the host's own stack gets a copy of every packet that this port receives ({why})",
                self.netdev.name
            );
        }
        state.not_held = failed;
        filters.look(&self.netdev.name, &self.vlans, diverted);
    }

    /// Uses receiving sockets that were made before, as long as there are some.
    #[must_use]
    pub fn with_receivers(self, ready: Option<Arc<Receivers>>) -> Self {
        Self { ready, ..self }
    }

    /// The queue of a diverted device, or none. An error: another program has the device, and both would
    /// forward its packets.
    fn divert(&self, index: u32, outer: bool) -> io::Result<Option<Box<dyn RxQueue>>> {
        let name = &self.netdev.name;
        let Some(divert) = &self.divert else {
            return Ok(None);
        };
        // The program takes all packets that reach it.
        if outer && !self.filters.as_ref().is_some_and(|f| f.passes_host(name)) {
            return Ok(None);
        }
        match divert.divert(name, index) {
            Ok(tap) => Ok(Some(crate::tap::receiver(tap))),
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => Err(e),
            Err(e) => {
                // Another program's work at a device is no fault.
                let level = match e.kind() {
                    io::ErrorKind::Unsupported => log::Level::Info,
                    _ => log::Level::Warn,
                };
                log::log!(target: "netdev_offload", level, "{name}: nothing is offloaded, packets come by packet sockets ({e})");
                Ok(None)
            }
        }
    }

    /// A socket for one queue; `waits`: it takes nothing in until a later call.
    fn receiver(
        &self,
        index: u32,
        group: Option<u16>,
        waits: bool,
        outer: Option<&OuterFilter>,
    ) -> io::Result<(Arc<PacketSocket>, Option<RxRing>)> {
        let ready = self.ready.as_deref();
        let (s, ring) = ready.map_or_else(ready::make, Receivers::take)?;
        if waits {
            s.refuse()?;
        } else if let Some(filter) = outer {
            s.set_filter(filter)?;
        }
        let ring = ring
            .inspect_err(
                |e| log::info!(target: "netdev_linux", "{}: no receive ring ({e})", self.netdev.name),
            )
            .ok();
        s.bind(index)?;
        if outer.is_none() {
            s.join_promiscuous(index)?;
        }
        if let Some(group) = group {
            s.join_fanout(group)?;
        }
        Ok((Arc::new(s), ring))
    }

    /// Leads the open sockets to the device's new index.
    fn rebind(&self, state: &mut Sockets, index: u32) {
        let many = state.receivers.len() > 1;
        self.senders.rebind(index);
        for s in state.receivers.iter().filter_map(Weak::upgrade) {
            let done = if many {
                Err(io::ErrorKind::Unsupported.into())
            } else {
                s.bind(index)
            };
            match done {
                Ok(()) if state.outer.is_some() => {}
                Ok(()) => drop(s.join_promiscuous(index)),
                Err(_) => state.stale = true,
            }
        }
    }
}

impl Port for SystemPort {
    fn name(&self) -> &str {
        &self.netdev.name
    }
    fn kind(&self) -> &'static str {
        "system"
    }
    fn open_rx(&self, n: usize) -> Result<Vec<Box<dyn RxQueue>>, PortError> {
        let fail = |e| PortError::open(&self.netdev.name, e);
        let index = self.netdev.ifindex()?;
        let mut state = self.state.lock();
        state.diverted = None;
        // Before the first packet can come.
        let outer = state.outer.is_some();
        self.hold(&mut state, index, outer && self.divert.is_some());
        if let Some(queue) = self.divert(index, outer).map_err(fail)? {
            state.diverted = Some(index);
            state.receivers.clear();
            state.stale = false;
            if let Some(filters) = &self.filters {
                filters.look(&self.netdev.name, &self.vlans, true);
            }
            return Ok(vec![queue]);
        }
        if let Some(filters) = self.filters.as_ref().filter(|_| outer) {
            filters.look(&self.netdev.name, &self.vlans, false);
        }
        let group = (n > 1).then(next_group);
        let old: Vec<_> = state.receivers.iter().filter_map(Weak::upgrade).collect();
        let made: io::Result<Vec<_>> = (0..n)
            .map(|_| self.receiver(index, group, !old.is_empty(), state.outer.as_deref()))
            .collect();
        let made = made.map_err(fail)?;
        if !old.is_empty() {
            old.iter().try_for_each(|s| s.refuse()).map_err(fail)?;
            let accept = |s: &PacketSocket| match &state.outer {
                Some(filter) => s.set_filter(filter),
                None => s.accept(),
            };
            made.iter().try_for_each(|(s, _)| accept(s)).map_err(fail)?;
        }
        // Losses of the old sockets are read for the last time here.
        let lost = old.iter().filter_map(|s| s.take_drops().ok());
        state.last.rx_dropped += lost.sum::<u64>();
        state.receivers = made.iter().map(|(s, _)| Arc::downgrade(s)).collect();
        state.stale = false;
        let queues = made
            .into_iter()
            .map(|(socket, ring)| SystemRx::new(socket, ring, Arc::clone(&self.vlans)));
        Ok(queues.map(|q| Box::new(q) as Box<dyn RxQueue>).collect())
    }
    fn takes_over(&self) -> bool {
        true
    }
    fn open_tx(&self, _worker: usize, _n: usize) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(Box::new(SystemTx::new(
            Arc::clone(&self.senders),
            &self.netdev.name,
        )))
    }
    fn qos_types(&self) -> &'static [&'static str] {
        qos::TYPES
    }
    fn set_qos(&self, wanted: Option<&QosConfig>) -> Result<(), PortError> {
        let device = {
            let last = &self.state.lock().last;
            qos::Device {
                index: last.ifindex,
                mtu: last.mtu,
                speed_bps: last.speed_bps,
            }
        };
        let done = self.qos.lock().set(device, wanted);
        done.map_err(|e| match e.kind() {
            std::io::ErrorKind::Unsupported => PortError::no_qos_type(&self.netdev.name, qos::TYPES),
            // Without Rust's texts for numbers of errors.
            std::io::ErrorKind::NotFound => PortError::Config(format!(
                "could not set QoS of {}: the kernel lacks this discipline",
                self.netdev.name
            )),
            _ => PortError::sys(format!("could not set QoS of {}", self.netdev.name), e),
        })
    }
    fn qos(&self) -> Option<QosConfig> {
        self.qos.lock().shown()
    }
    fn queue_counts(&self) -> Vec<QueueCounts> {
        self.qos.lock().counts()
    }
    fn status(&self) -> PortStatus {
        let mut state = self.state.lock();
        let mut now = self.netdev.read(&state.last);
        let diverted = state.diverted.is_some();
        if now.ifindex != 0 && now.ifindex != state.last.ifindex {
            self.hold(&mut state, now.ifindex, diverted);
            self.rebind(&mut state, now.ifindex);
            state.steering.again();
            state.stale |= state.diverted.is_some();
        } else if state.not_held.is_some() && now.ifindex != 0 {
            // The program that had the place may have gone.
            self.hold(&mut state, now.ifindex, diverted);
        }
        if let Some(divert) = self.divert.as_ref().filter(|_| now.ifindex != 0) {
            state.stale |= divert.changed(now.ifindex, diverted);
        }
        if let Some(filters) = &self.filters
            && !filters.look(&self.netdev.name, &self.vlans, diverted)
            && now.ifindex != 0
            && state.not_held.is_none()
        {
            self.hold(&mut state, now.ifindex, diverted);
        }
        now.extra.retain(|(key, _)| key != HOST_STACK_KEY);
        if let Some(why) = &state.not_held {
            now.extra.push((
                HOST_STACK_KEY.into(),
                format!("gets a copy of what comes in: {why}"),
            ));
        }
        now.n_rxq = state.diverted.map(|_| 1);
        if now.link_up != state.last.link_up {
            now.link_resets += 1;
        }
        for s in state.receivers.iter().filter_map(Weak::upgrade) {
            now.rx_dropped += s.take_drops().unwrap_or(0);
        }
        state.last = now.clone();
        now
    }
    fn set_mtu(&self, mtu: u32) -> Result<(), PortError> {
        self.netdev.set_mtu(mtu)
    }
    fn set_mac(&self, mac: [u8; 6]) -> Result<(), PortError> {
        self.netdev.set_mac(mac)
    }
    fn set_admin(&self, up: bool) -> Result<(), PortError> {
        self.netdev.set_admin(up)
    }
    fn stale(&self) -> bool {
        self.state.lock().stale
    }
    fn forget(&self) {
        self.qos.lock().end();
        if let (Some(divert), Some(index)) = (&self.divert, self.state.lock().diverted.take()) {
            divert.release(&self.netdev.name, index);
        }
        if let Some(filters) = &self.filters {
            filters.release(&self.netdev.name);
        }
    }
    fn steer(&self, cpus: &[usize]) {
        let mut state = self.state.lock();
        if state.diverted.is_some() {
            // Packets of a diverted device are forwarded where they arrive, and must not change processors.
            return;
        }
        let veth = state
            .last
            .extra
            .iter()
            .any(|(k, v)| k == "driver_name" && v == "veth");
        if veth {
            state.steering.set(&self.netdev.name, cpus);
        }
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// A fanout group number that no other port of this process uses. Groups are per network namespace, so the
/// process id keeps two switches on one machine apart.
fn next_group() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let pid = u16::try_from(std::process::id() & 0xff).unwrap_or(0);
    // Relaxed: only uniqueness matters.
    (pid << 8) | (NEXT.fetch_add(1, Ordering::Relaxed) & 0xff)
}
