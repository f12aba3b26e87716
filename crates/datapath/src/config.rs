//! Start parameters of a datapath, and its error type.

use heddle_datapath_api::PortNo;
use heddle_port::PortError;
use heddle_sync::Clock;
use std::sync::Arc;

/// Start parameters. The ones that can change later have a setter on [`crate::Datapath`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Name in the log. There is one datapath, whatever the types of bridges.
    pub name: String,
    /// The clock that all times are taken from; share it, so that `time/warp` moves everything.
    pub clock: Arc<Clock>,
    /// Processors to pin one worker each to (`pmd-cpu-mask`); `None`: see [`crate::Datapath::set_workers`].
    pub cpus: Option<Vec<usize>>,
    /// Maximum number of entries of all workers together (`flow-limit`).
    pub flow_limit: usize,
    /// An entry without a packet for this long is evicted, milliseconds (`max-idle`).
    pub max_idle_ms: u64,
    /// Maximum number of masks per worker, port and family of packets; further results are cached under the
    /// full mask.
    pub max_masks: usize,
    /// Initial number of entries of each worker's exact-match cache (rounded up to a power of two), eight
    /// bytes each.
    pub l1_entries: usize,
    /// ... and its maximum.
    pub max_l1_entries: usize,
    /// Maximum time that a worker polls after the last packet, microseconds.
    pub spin_us: u64,
    /// Packet buffers in each worker's pool.
    pub pool_packets: usize,
    /// Interval of the revalidator's passes, milliseconds of real time; 0: passes only by
    /// [`crate::Datapath::tick`].
    pub revalidate_interval_ms: u64,
    /// VLAN tags that are parsed, 1 or 2.
    pub vlan_limit: u8,
    /// Maximum number of packets for the control plane that wait per worker; more are dropped and counted.
    pub upcall_ring: usize,
    /// `--dummy-numa`: the NUMA node of each pretended processor. Workers then represent these and are not
    /// pinned.
    pub dummy_numa: Option<Vec<u32>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "netdev@ovs-netdev".into(),
            clock: Arc::default(),
            cpus: None,
            flow_limit: 200_000,
            max_idle_ms: 10_000,
            max_masks: 128,
            l1_entries: 8192,
            max_l1_entries: 1 << 20,
            spin_us: 50,
            pool_packets: 192,
            revalidate_interval_ms: 500,
            vlan_limit: 2,
            upcall_ring: 512,
            dummy_numa: None,
        }
    }
}

/// Maximum pauses of workers (`pmd-sleep-max`), microseconds. Not set: a worker without packets polls for an
/// adaptive time and then sleeps until it is woken. 0: it never sleeps. Otherwise it pauses for this time,
/// without arming its queues, instead of polling.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaxSleep {
    /// Pause of workers that are not named.
    pub default_us: Option<u64>,
    /// (processor, pause).
    pub of_core: Vec<(usize, u64)>,
}

impl MaxSleep {
    /// Returns the pause of the worker of processor `core`.
    pub fn of(&self, core: usize) -> Option<u64> {
        let own = self.of_core.iter().find(|(c, _)| *c == core);
        own.map(|(_, us)| *us).or(self.default_us)
    }
}

/// Receive queues of a port, and their spread over the workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Receive queues to open (`n_rxq`); the type may have fewer.
    pub n_rxq: usize,
    /// `pmd-rxq-affinity`: (queue, processor). Queues not named here go round robin.
    pub affinity: Vec<(usize, usize)>,
    /// NUMA node of the packets' memory: workers there are preferred.
    pub numa: Option<u32>,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            n_rxq: 1,
            affinity: Vec::new(),
            numa: None,
        }
    }
}

/// Why a change of the datapath failed.
#[derive(Debug, thiserror::Error)]
pub enum DatapathError {
    /// The port cannot be opened; the text is for `Interface.error`.
    #[error(transparent)]
    Port(#[from] PortError),
    /// Another port has this number.
    #[error("port number {} in use", .0.0)]
    InUse(PortNo),
    /// There is no such port.
    #[error("no port {}", .0.0)]
    NoPort(PortNo),
    /// No port number is free, or the wanted one is too large.
    #[error("no free port number")]
    Full,
    /// A worker did not reply in time, or the datapath was shut down.
    #[error("{}", heddle_datapath_api::NoReply)]
    Timeout,
    /// The system refused a thread or a descriptor.
    #[error("datapath: {}", heddle_sys::errno_text(.0))]
    Io(#[from] std::io::Error),
}
