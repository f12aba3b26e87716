//! Queues of ports, as controllers see them.
//!
//! A device has the queues of its QoS (`Port.qos`). A port without QoS has none, unless its device has a
//! queue by default.

use super::{Bridge, PortTarget, ports::PortState};
use heddle_datapath_api::QueueCounts;
use heddle_openflow::message::{QueueConfig, QueueGetConfig, QueueStats};
use heddle_openflow::{ErrorKind, Port as OfPort};

/// All queues of a port.
const ALL: u32 = u32::MAX;

impl Bridge {
    /// Counters of queues; a queue that was named must be there.
    pub(super) fn queue_stats(&self, port: OfPort, queue: u32) -> Result<Vec<QueueStats>, ErrorKind> {
        let mut found = Vec::new();
        self.each_port(port, |p| {
            let of_port = self.queues(p).into_iter();
            let wanted = of_port.filter(|q| queue == ALL || q.queue == queue);
            found.extend(wanted.map(|q| stats(p.config.no, &q)));
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
            let ids = self.queues(p).into_iter().map(|q| q.queue).filter(wanted);
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

    /// The queues of a port, with what is known of them.
    fn queues(&self, p: &PortState) -> Vec<QueueCounts> {
        let PortTarget::Datapath(no) = p.config.target else {
            return Vec::new();
        };
        let engine = self.of.upgrade().and_then(|of| of.engine());
        let Some(engine) = engine else { return Vec::new() };
        engine.queue_counts(no).unwrap_or_else(|| vec![UNKNOWN])
    }
}

/// A queue 0 of which nothing is counted.
const UNKNOWN: QueueCounts = QueueCounts {
    queue: 0,
    bytes: u64::MAX,
    packets: u64::MAX,
    dropped: u64::MAX,
    age_ms: u64::MAX,
};

fn stats(port: OfPort, q: &QueueCounts) -> QueueStats {
    let (sec, nsec) = match q.age_ms {
        u64::MAX => (u32::MAX, u32::MAX),
        ms => (
            u32::try_from(ms / 1000).unwrap_or(u32::MAX),
            u32::try_from(ms % 1000 * 1_000_000).unwrap_or(0),
        ),
    };
    QueueStats {
        port,
        queue: q.queue,
        tx_bytes: q.bytes,
        tx_packets: q.packets,
        tx_errors: q.dropped,
        duration_sec: sec,
        duration_nsec: nsec,
    }
}
