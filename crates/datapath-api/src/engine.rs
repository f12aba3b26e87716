//! The engine, as policy calls it.
//!
//! **Threads.** Any control thread may call any method. A worker calls none: not from
//! [`Translate::translate`](crate::Translate::translate), and not from
//! [`Credit::credit`](crate::Credit::credit). Those run on the engine's threads, or under its locks.

use crate::action::{Action, PortNo};
use crate::view::{PortStats, UpcallPacket};
use heddle_conntrack::Conntrack;
use heddle_flow::FlowKey;
use heddle_packet::Packet;
use heddle_sys::{DeviceCounters, QueueCounts};
use std::sync::Arc;

/// A running datapath: ports, workers, caches, connection tracker.
pub trait Engine: Send + Sync {
    /// Whether there is a port of this number.
    fn has_port(&self, no: PortNo) -> bool;
    /// A port's counters. `None`: there is no such port.
    fn port_stats(&self, no: PortNo) -> Option<PortStats>;
    /// Counters that a port's device keeps itself, read from the system.
    fn device_stats(&self, no: PortNo) -> Option<DeviceStats>;
    /// Sets a port administratively up or down.
    fn set_port_admin(&self, no: PortNo, up: bool) -> Option<LinkChange>;
    /// Counters of a port's transmit queues (QoS). `None`: it has only queue 0, which is not counted.
    fn queue_counts(&self, no: PortNo) -> Option<Vec<QueueCounts>>;

    /// Runs `actions` on `packet`, on a worker. Returns when they have run and the outputs were handed to the
    /// ports. The packet gets the type of `key` ([`heddle_flow::packet_type`]) and its context
    /// ([`FlowKey::context`]).
    ///
    /// # Errors
    /// [`NoReply`] when the worker does not reply within seconds.
    fn inject(
        &self,
        packet: Packet,
        key: &FlowKey,
        in_port: PortNo,
        actions: Vec<Action>,
    ) -> Result<(), NoReply>;
    /// Injects an Ethernet frame that came from no port. Waits neither for the worker, nor for threads that
    /// change ports or workers. `None`: it was not sent, because the worker is overloaded.
    fn post(&self, packet: Packet, actions: &[Action]) -> Option<Posted>;

    /// Hands over up to `max` waiting packets for controllers, returns how many. The callback may call
    /// [`Engine::inject`].
    fn take_upcalls(&self, max: usize, f: &mut dyn FnMut(UpcallPacket)) -> usize;
    /// Hands over up to `max` packets for the control plane's own protocols
    /// ([`UpcallKind::SlowPath`](crate::UpcallKind::SlowPath)), returns how many.
    fn take_control(&self, max: usize, f: &mut dyn FnMut(UpcallPacket)) -> usize;
    /// Hands over up to `max` samples ([`UpcallKind::Sample`](crate::UpcallKind::Sample)), returns how many.
    fn take_samples(&self, max: usize, f: &mut dyn FnMut(UpcallPacket)) -> usize;
    /// Wakes the thread that waits for packets of [`Engine::take_control`].
    fn wake_control(&self);

    /// Credits everything counted so far: after it, rule statistics hold all packets that were received
    /// before the call.
    fn flush_stats(&self);
    /// A full pass of the revalidator for the observer of flows, also while the revalidator is paused. After
    /// it, every change that was counted ([`crate::Generations::bump`]) before the call is in force for the
    /// observer. To be called before the change is confirmed.
    fn observe_now(&self);
    /// The connection tracker of all workers.
    fn conntrack(&self) -> &Arc<Conntrack>;
}

/// A worker did not reply in time, or the datapath was shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("datapath worker does not reply")]
pub struct NoReply;

/// A frame on its way to a worker ([`Engine::post`]).
pub struct Posted(Box<dyn Fn() -> bool + Send>);

impl Posted {
    /// A frame; `is_done` returns whether the worker has sent it, or never will.
    pub fn new(is_done: impl Fn() -> bool + Send + 'static) -> Self {
        Self(Box::new(is_done))
    }
    /// Whether the worker has sent it, or never will.
    pub fn is_done(&self) -> bool {
        (self.0)()
    }
}

/// Counters that a port's device keeps itself.
#[derive(Clone, Debug, Default)]
pub struct DeviceStats {
    /// Packets that the device lost before a receive queue saw them.
    pub rx_dropped: u64,
    /// Counters of the port's type, by name.
    pub custom: Vec<(String, u64)>,
    /// Counters of the driver. `None` without a network device.
    pub driver: Option<DeviceCounters>,
    /// Whether losses and errors are known at all.
    pub counts_losses: bool,
}

/// A port's link after [`Engine::set_port_admin`].
#[derive(Clone, Debug)]
pub struct LinkChange {
    /// Administratively up.
    pub admin_up: bool,
    /// Carrier.
    pub link_up: bool,
    /// Why the device refused the change.
    pub error: Option<String>,
}
