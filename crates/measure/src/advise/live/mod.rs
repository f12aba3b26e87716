//! Faults of a running switch, and commands that mend them.
//!
//! [`observe`] looks twice, a second or more apart, and gathers everything in one structure; [`rules`] judge
//! it. Rules run no commands, so each is tested with made-up observations.

mod devices;
mod observe;
pub mod rules;
#[cfg(test)]
mod tests;

pub use observe::observe;
pub use rules::{Finding, judge};

/// A worker in the time between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Worker {
    /// Number of the worker's processor.
    pub core: u64,
    /// Share of the time in which it handled packets.
    pub busy: f64,
    /// Share of the time in which the worker was ready to run, and other threads had its processor.
    pub waiting: f64,
    /// Number of masks in its cache.
    pub masks: u64,
    /// Flows that were not cached, since the limit of flows was reached.
    pub limit_hits: u64,
    /// Flows that were not cached for other reasons: masks at their limit.
    pub not_cached: u64,
    /// Packets received.
    pub packets: u64,
    /// Whether the worker polls only queues that were assigned to it.
    pub isolated: bool,
}

/// A receive queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Queue {
    /// Name of the queue's port.
    pub port: String,
    /// Index of the queue in its port.
    pub queue: u64,
    /// The processor of the worker that polls it.
    pub core: Option<u64>,
}

/// A row of the table Interface.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interface {
    /// Column `name`.
    pub name: String,
    /// Column `type`.
    pub kind: String,
    /// Column `error`, written by the switch.
    pub error: String,
    /// `other_config:pmd-rxq-affinity`.
    pub affinity: String,
}

/// A network device behind a port: its own, or the other end of its veth pair.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Device {
    /// The port.
    pub port: String,
    /// The port's bridge.
    pub bridge: String,
    /// Name in the device's namespace.
    pub name: String,
    /// The namespace, as `nsenter --net=` takes it; empty: that of this process.
    pub netns: String,
    /// MTU in bytes.
    pub mtu: u64,
    /// Offloads that are off and could be on.
    pub off: Vec<String>,
    /// Whether RFS has entries for one of its queues.
    pub rfs: bool,
    /// Namespaces with a device of the same name that no packet reaches: the internal port's device of an
    /// earlier switch.
    pub doubles: Vec<String>,
}

/// One observation of a switch and its machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Seconds between the two looks.
    pub seconds: f64,
    /// Processors that are online.
    pub processors: Vec<usize>,
    /// The switch's workers.
    pub workers: Vec<Worker>,
    /// Receive queues of the workers.
    pub queues: Vec<Queue>,
    /// Number of cached flows.
    pub flows: u64,
    /// Maximum number of cached flows.
    pub flow_limit: u64,
    /// The database's interfaces.
    pub interfaces: Vec<Interface>,
    /// Devices of ports.
    pub devices: Vec<Device>,
    /// Bridge, number of learned addresses, maximum number of learned addresses.
    pub tables: Vec<(String, u64, u64)>,
    /// Bridge, target, whether it is connected, and the switch's error text.
    pub controllers: Vec<(String, String, bool, String)>,
    /// Per bridge, an example of a flow with `ct`, where no flow of the bridge uses the result of `ct`.
    pub needless_ct: Vec<(String, String)>,
    /// Share of the machine's time that the hypervisor gave to others.
    pub steal: f64,
    /// Packets received per processor, in soft interrupts: `NET_RX` of /proc/softirqs.
    pub received: Vec<u64>,
    /// `net.core.rps_sock_flow_entries`.
    pub rfs_entries: u64,
    /// Busy processes with sockets: number, name, processor.
    pub readers: Vec<(u32, String, usize)>,
    /// Settings in the database without effect: row, setting, consequence.
    pub without_effect: Vec<(String, String, String)>,
    /// Whether all packets are dropped until `flow-restore-wait` is removed.
    pub restoring: bool,
    /// Names of drops whose counter rose, with the difference.
    pub drops: Vec<(String, u64)>,
}
