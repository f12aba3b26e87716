//! `internal` ports: a tap device, whose other end is the host's (or a pod's) IP stack.
//!
//! Each queue reads and writes one packet per system call, with the virtio-net header. So GSO packets of 64
//! KiB and unfinished checksums cross unchanged. A read goes straight into a pool buffer, the header into its
//! headroom.
//!
//! The owner may move the device into another network namespace; [`ctl`] follows it. With [`KeptTaps`] the
//! device outlives the process, and the next one finds it wherever it is.
//!
//! A device is made for one queue or for several, for its whole life. One is the default: Open vSwitch can
//! take over such a device, but none for several.

mod ctl;
mod marks;
mod persistent;
mod queue;
#[cfg(test)]
mod tests;

use crate::rates::{self, Rates};
use crate::{Port, PortError, PortStatus, QosConfig, RxQueue, TxQueue};
use ctl::TapCtl;
use heddle_sys::{QueueCounts, TapLinks, TapOpen, TapQueue};
pub use marks::MarkPrograms;
use marks::{Device, MarkCtl, Marks};
use parking_lot::Mutex;
pub use persistent::{Birthplace, KeptTaps};
use queue::{TapRx, TapTx};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An internal port.
#[derive(Debug)]
pub struct TapPort {
    name: String,
    /// The device can have several queues.
    multi_queue: bool,
    /// The device outlives this value.
    kept: AtomicBool,
    /// Attached queues; the first is never detached.
    queues: Mutex<Vec<Arc<TapQueue>>>,
    ctl: Mutex<TapCtl>,
    rates: Arc<Rates>,
    marks: Arc<Marks>,
    mark_ctl: Mutex<MarkCtl>,
}

impl TapPort {
    /// Creates tap device `name`, for several queues. It exists as long as this value or one of its queues.
    ///
    /// # Errors
    /// [`PortError::Sys`]: the name is taken or not legal, no `/dev/net/tun`, no permission.
    pub fn open(name: &str) -> Result<Self, PortError> {
        let new = TapOpen::new(name).multi_queue(true).new_only(true);
        let port = new.open().and_then(|queue| Self::with(name, queue, true));
        port.map_err(|e| PortError::open(name, e))
    }
    /// A port of the device whose first queue this is.
    fn with(name: &str, first: TapQueue, multi_queue: bool) -> io::Result<Self> {
        enable_offloads(name, &first);
        let first = Arc::new(first);
        let ctl = TapCtl::new(Arc::clone(&first))?;
        Ok(Self {
            name: name.to_owned(),
            multi_queue,
            kept: false.into(),
            queues: Mutex::new(vec![first]),
            ctl: Mutex::new(ctl),
            rates: Arc::default(),
            marks: Arc::default(),
            mark_ctl: Mutex::default(),
        })
    }
    /// Sets the programs by which packets' marks cross the device, if there are any.
    #[must_use]
    fn marked_by(self, programs: Option<Arc<dyn MarkPrograms>>) -> Self {
        *self.mark_ctl.lock() = MarkCtl::new(programs);
        let ifindex = self.ctl.lock().status().ifindex;
        self.look_at_marks(ifindex);
        self
    }
    /// Puts the programs of marks where the device is.
    fn look_at_marks(&self, ifindex: u32) {
        if let Some(device) = self.device(ifindex) {
            self.mark_ctl.lock().look(&self.marks, &device);
        }
    }
    /// The device; `None`: it is gone.
    fn device(&self, ifindex: u32) -> Option<Device<'_>> {
        let (id, namespace) = self.ctl.lock().namespace();
        Some(Device {
            port: &self.name,
            name: self.first().ifname().ok()?,
            id,
            namespace,
            ifindex: (ifindex != 0).then_some(ifindex)?,
        })
    }
    /// Has the device outlive this value, with `mark` for its alias.
    fn keep(&self, mark: &str) {
        let marked = || {
            let queue = self.first();
            queue.set_persistent(true)?;
            self.kept.store(true, Ordering::Relaxed);
            let links = TapLinks::new(self.ctl.lock().elsewhere().as_ref())?;
            match links.named(&queue.ifname()?)? {
                Some(link) if link.alias != mark => links.set_alias(link.ifindex, mark),
                _ => Ok(()),
            }
        };
        if let Err(error) = marked() {
            log::warn!(target: "netdev_linux", "{}: the device will not be found again after a restart ({error})", self.name);
        }
    }
    fn first(&self) -> Arc<TapQueue> {
        let queues = self.queues.lock();
        Arc::clone(queues.first().expect("the first queue is never removed"))
    }
    /// Logs a warning if `n_rxq` receive queues are wanted and the device cannot have them.
    fn warn_of_queues(&self, n_rxq: usize) {
        if n_rxq > 1 && !self.multi_queue {
            log::warn!(
                target: "netdev_linux",
                "{}: the device has been made with one queue, n_rxq={n_rxq} needs another: delete the port and add it again", self.name
            );
        }
    }
    /// One more queue of the device, where it is now.
    fn open_queue(&self, first: &TapQueue) -> io::Result<TapQueue> {
        let queue = TapOpen::new(&first.ifname()?)
            .namespace(first.namespace().ok().as_ref())
            .multi_queue(true)
            .open()?;
        enable_offloads(&self.name, &queue);
        Ok(queue)
    }
    /// Brings the number of attached queues to `n`, as far as the device can have them.
    fn resize(&self, queues: &mut Vec<Arc<TapQueue>>, n: usize) {
        let n = if self.multi_queue { n.max(1) } else { 1 };
        while queues.len() > n {
            if let Some(extra) = queues.pop() {
                let _ = extra.set_attached(false);
            }
        }
        while queues.len() < n {
            let first = Arc::clone(queues.first().expect("the first queue is never removed"));
            match self.open_queue(&first) {
                Ok(q) => queues.push(Arc::new(q)),
                Err(e) => {
                    log::warn!(target: "netdev_linux", "{}: {} of {n} tap queues ({e})", self.name, queues.len());
                    return;
                }
            }
        }
    }
}

impl Drop for TapPort {
    fn drop(&mut self) {
        if self.kept.load(Ordering::Relaxed) {
            let ifindex = self.ctl.lock().status().ifindex;
            if let Some(device) = self.device(ifindex) {
                self.mark_ctl.lock().detach(&device);
            }
            // The next process may know neither offloads nor a long header, and the device would continue to
            // use them. If the device is gone, nothing needs to be done.
            let _ = self.first().give_back();
        }
    }
}

fn enable_offloads(name: &str, queue: &TapQueue) {
    let offloads = queue.enable_offloads();
    if !(offloads.csum && offloads.tso) {
        log::info!(target: "netdev_linux", "{name}: tap offloads are limited to {offloads:?}");
    }
}

/// A receive queue of a tap device that another part of the program owns.
pub(crate) fn receiver(queue: Arc<TapQueue>) -> Box<dyn RxQueue> {
    Box::new(TapRx::new(queue, Arc::default()))
}

/// Opens an internal port, with a device that outlives the process if there are `kept` ones.
pub(crate) fn open<'a>(
    name: &str,
    options: &BTreeMap<String, String>,
    kept: Option<&KeptTaps>,
    birthplace: impl FnOnce() -> Option<Birthplace<'a>>,
    marks: Option<Arc<dyn MarkPrograms>>,
) -> Result<Arc<dyn Port>, PortError> {
    let port = match kept {
        Some(kept) => kept.open_at(name, n_rxq(options), birthplace())?,
        None => TapPort::open(name)?,
    };
    Ok(Arc::new(port.marked_by(marks)))
}

/// `options:n_rxq`, the number of receive queues that are wanted.
fn n_rxq(options: &BTreeMap<String, String>) -> usize {
    options
        .get("n_rxq")
        .and_then(|n| n.trim().parse().ok())
        .unwrap_or(1)
}

impl Port for TapPort {
    fn name(&self) -> &str {
        &self.name
    }
    fn kind(&self) -> &'static str {
        "internal"
    }
    fn open_rx(&self, n: usize) -> Result<Vec<Box<dyn RxQueue>>, PortError> {
        let mut queues = self.queues.lock();
        self.resize(&mut queues, n.min(heddle_sys::tap::MAX_QUEUES));
        Ok(queues
            .iter()
            .take(n)
            .map(|q| Box::new(TapRx::new(Arc::clone(q), Arc::clone(&self.marks))) as Box<dyn RxQueue>)
            .collect())
    }
    fn open_tx(&self, worker: usize, _n: usize) -> Result<Box<dyn TxQueue>, PortError> {
        let queues = self.queues.lock();
        let first = queues.first().expect("the first queue is never removed");
        let own = queues.get(worker % queues.len()).unwrap_or(first);
        Ok(Box::new(TapTx::new(
            Arc::clone(own),
            Arc::clone(first),
            rates::Share::new(Arc::clone(&self.rates), worker),
            Arc::clone(&self.marks),
        )))
    }
    fn status(&self) -> PortStatus {
        let mut status = self.ctl.lock().status();
        self.look_at_marks(status.ifindex);
        status.extra.extend(self.mark_ctl.lock().status());
        PortStatus {
            n_rxq: (!self.multi_queue).then_some(1),
            ..status
        }
    }
    fn statistics(&self) -> Vec<(String, u64)> {
        let all = [
            ("tx_lost_pkt_mark", self.marks.lost()),
            ("ovs_tx_qos_drops", self.rates.dropped()),
        ];
        let some = all.into_iter().filter(|(_, n)| *n > 0);
        some.map(|(name, n)| (name.to_owned(), n)).collect()
    }
    fn is_here(&self) -> bool {
        self.ctl.lock().elsewhere().is_none()
    }
    fn set_options(&self, options: &BTreeMap<String, String>) -> Result<(), PortError> {
        self.warn_of_queues(n_rxq(options));
        Ok(())
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
    fn forget(&self) {
        if self.kept.swap(false, Ordering::Relaxed) {
            // The call fails if the device is gone already.
            let _ = self.first().set_persistent(false);
        }
    }
    fn set_mtu(&self, mtu: u32) -> Result<(), PortError> {
        let done = self.ctl.lock().set_mtu(mtu);
        done.map_err(|e| PortError::sys(format!("could not set MTU of {} to {mtu}", self.name), e))
    }
    fn set_mac(&self, mac: [u8; 6]) -> Result<(), PortError> {
        let done = self.ctl.lock().set_mac(mac);
        done.map_err(|e| PortError::sys(format!("could not set hardware address of {}", self.name), e))
    }
    fn set_admin(&self, up: bool) -> Result<(), PortError> {
        let done = self.ctl.lock().set_admin(up);
        done.map_err(|e| PortError::sys(format!("could not set flags of {}", self.name), e))
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
