//! `internal` ports: a tap device, whose other end is the host's (or a pod's) IP stack.
//!
//! Each queue reads and writes one packet per system call, with the virtio-net header, so that 64 KiB segment trains
//! and unfinished checksums cross unchanged. A read goes straight into a pool buffer, the header into its headroom.
//!
//! The owner may move the device into another network namespace; [`ctl`] follows it.

mod ctl;
mod queue;
#[cfg(test)]
mod tests;

use crate::{Port, PortError, PortStatus, RxQueue, TxQueue};
use ctl::TapCtl;
use heddle_sys::TapQueue;
use parking_lot::Mutex;
use queue::{TapRx, TapTx};
use std::sync::Arc;

/// An internal port. The device exists as long as this value or one of its queues.
#[derive(Debug)]
pub struct TapPort {
    name: String,
    /// Attached queues; the first is never detached.
    queues: Mutex<Vec<Arc<TapQueue>>>,
    ctl: Mutex<TapCtl>,
}

impl TapPort {
    /// Creates tap device `name`.
    ///
    /// # Errors
    /// [`PortError::Sys`]: the name is taken or not legal, no `/dev/net/tun`, no permission.
    pub fn open(name: &str) -> Result<Self, PortError> {
        let first = Self::open_queue(name).map_err(|e| PortError::open(name, e))?;
        let first = Arc::new(first);
        let ctl = TapCtl::new(name, Arc::clone(&first)).map_err(|e| PortError::open(name, e))?;
        Ok(Self {
            name: name.to_owned(),
            queues: Mutex::new(vec![first]),
            ctl: Mutex::new(ctl),
        })
    }
    fn open_queue(name: &str) -> std::io::Result<TapQueue> {
        let queue = TapQueue::open(name)?;
        let offloads = queue.enable_offloads();
        if !(offloads.csum && offloads.tso) {
            log::info!(target: "netdev_linux", "{name}: tap offloads are limited to {offloads:?}");
        }
        Ok(queue)
    }
    /// Brings the number of attached queues to `n`. A queue cannot join a device that has moved to another
    /// namespace, so there the present number stays.
    fn resize(&self, queues: &mut Vec<Arc<TapQueue>>, n: usize) {
        while queues.len() > n.max(1) {
            if let Some(extra) = queues.pop() {
                let _ = extra.set_attached(false);
            }
        }
        while queues.len() < n {
            let more = if self.ctl.lock().moved() {
                Err(std::io::Error::other("device is in another network namespace"))
            } else {
                Self::open_queue(&self.name)
            };
            match more {
                Ok(q) => queues.push(Arc::new(q)),
                Err(e) => {
                    log::warn!(target: "netdev_linux", "{}: {} of {n} tap queues ({e})", self.name, queues.len());
                    return;
                }
            }
        }
    }
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
            .map(|q| Box::new(TapRx::new(Arc::clone(q))) as Box<dyn RxQueue>)
            .collect())
    }
    fn open_tx(&self, worker: usize, _n: usize) -> Result<Box<dyn TxQueue>, PortError> {
        let queues = self.queues.lock();
        let first = queues.first().expect("the first queue is never removed");
        let own = queues.get(worker % queues.len()).unwrap_or(first);
        Ok(Box::new(TapTx::new(Arc::clone(own), Arc::clone(first))))
    }
    fn status(&self) -> PortStatus {
        self.ctl.lock().status()
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
