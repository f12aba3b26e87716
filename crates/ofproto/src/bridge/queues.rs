//! Queues of ports, as controllers ask for them.
//!
//! Without QoS a port has none, but for devices that have a queue of their own accord.

use super::{Bridge, PortTarget, ports::PortState};
use heddle_openflow::message::{QueueConfig, QueueGetConfig, QueueStats};
use heddle_openflow::{ErrorKind, Port as OfPort};

/// All queues of a port.
const ALL: u32 = u32::MAX;

impl Bridge {
    /// Counters of queues; a queue that was named must be there.
    pub(super) fn queue_stats(&self, port: OfPort, queue: u32) -> Result<Vec<QueueStats>, ErrorKind> {
        let mut found = Vec::new();
        self.each_port(port, |p| {
            for id in self.queue_ids(p).filter(|id| queue == ALL || *id == queue) {
                found.push(QueueStats {
                    port: p.config.no,
                    queue: id,
                    tx_bytes: u64::MAX,
                    tx_packets: u64::MAX,
                    tx_errors: u64::MAX,
                    duration_sec: u32::MAX,
                    duration_nsec: u32::MAX,
                });
            }
        })?;
        if found.is_empty() && queue != ALL {
            return Err(ErrorKind::QueueOpFailedBadQueue);
        }
        Ok(found)
    }

    /// Queues by port; a queue that was named must be there.
    pub(super) fn queue_configs(&self, q: &QueueGetConfig) -> Result<Vec<QueueConfig>, ErrorKind> {
        let mut found = Vec::new();
        self.each_port(q.port, |p| {
            let wanted = |id: &u32| q.queue.is_none_or(|w| w == *id);
            let ids = self.queue_ids(p).filter(wanted);
            found.push(QueueConfig {
                port: p.config.no,
                queues: ids.map(|id| (id, None, None)).collect(),
            });
        })?;
        if q.queue.is_some() && found.iter().all(|p| p.queues.is_empty()) {
            return Err(ErrorKind::QueueOpFailedBadQueue);
        }
        Ok(found)
    }

    /// Calls `f` for the port, or for all of them.
    fn each_port(&self, which: OfPort, mut f: impl FnMut(&PortState)) -> Result<(), ErrorKind> {
        let state = self.state.lock();
        if matches!(which, OfPort::NONE | OfPort::ALL) {
            state.ports.values().for_each(f);
        } else {
            let port = state.ports.get(&which);
            f(port.ok_or(ErrorKind::QueueOpFailedBadPort)?);
        }
        Ok(())
    }

    fn queue_ids(&self, p: &PortState) -> impl Iterator<Item = u32> + use<> {
        let PortTarget::Datapath(no) = p.config.target else {
            return None.into_iter();
        };
        let device = self
            .of
            .upgrade()
            .and_then(|of| of.datapath())
            .and_then(|dp| dp.port(no));
        device.filter(|d| d.has_default_queue()).map(|_| 0).into_iter()
    }
}
