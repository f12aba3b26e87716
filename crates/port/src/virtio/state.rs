//! The state of a port and of its session, and its form in `Interface`.
//!
//! Keys of `Interface.status` that Open vSwitch has (`mode`, `status`, `socket`, `features`, `mtu`, `numa`,
//! `num_of_vrings`, `vring_N_size`) mean and look the same. Heddle's own: `vring_N_error` (why a ring is
//! stopped), `disconnect_reason` (why the last front end left), `socket_error` (the fault of the socket).

use super::Shared;
use super::device::MIN_MTU;
use super::txset::TxCell;
use crate::PortStatus;
use heddle_virtio::RingError;
use heddle_virtio::ring::Features;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// Largest MTU: an IP packet's length.
pub(super) const MAX_MTU: u32 = 65535;
/// The MTU of a port without a configured one.
pub(crate) const DEFAULT_MTU: u32 = 1500;
/// Linux's number for an invalid argument.
pub(super) const EINVAL: i32 = 22;

/// Properties of the kind of session.
#[derive(Debug)]
pub(crate) struct Backing {
    /// `status:mode`.
    pub(crate) mode: &'static str,
    /// The session's other side comes when it likes: its absence is no fault.
    pub(crate) calls: bool,
    /// The socket, or device, of the session: `status:socket`, and the device's name in the log.
    pub(crate) at: Mutex<String>,
}

/// A started ring.
#[derive(Clone, Copy, Debug)]
struct Ring {
    size: u16,
    enabled: bool,
}

/// One front end's session.
#[derive(Clone, Debug, Default)]
pub(super) struct Session {
    connected: bool,
    pub(super) features: Features,
    /// The MTU that the front end has sent.
    pub(super) mtu: Option<u16>,
    pub(super) numa: Option<u32>,
    /// Other values that it has sent, for `Interface.status`.
    pub(super) reported: BTreeMap<&'static str, String>,
    /// Started rings by index.
    rings: BTreeMap<u16, Ring>,
    /// Queue pairs: most that were started since the front end came, so that a guest's restart does not move
    /// queues.
    pairs: usize,
}

impl Session {
    pub(super) fn start(&mut self, index: u16, size: u16, enabled: bool) {
        self.rings.insert(index, Ring { size, enabled });
        self.pairs = self.pairs.max(usize::from(index / 2) + 1);
    }
    pub(super) fn stop(&mut self, index: u16) {
        self.rings.remove(&index);
    }
    pub(super) fn enable(&mut self, index: u16, on: bool) {
        if let Some(ring) = self.rings.get_mut(&index) {
            ring.enabled = on;
        }
    }
    /// Whether packets can pass in both directions.
    fn is_running(&self) -> bool {
        let any = |odd| self.rings.iter().any(|(i, r)| i % 2 == odd && r.enabled);
        any(0) && any(1)
    }
    /// Whether the guest uses queue pair `pair` for transmission.
    pub(super) fn polls(&self, pair: usize) -> bool {
        let index = u16::try_from(2 * pair + 1).unwrap_or(u16::MAX);
        self.rings.get(&index).is_some_and(|r| r.enabled)
    }
}

/// A port's own state.
#[derive(Clone, Debug)]
pub(super) struct DeviceState {
    pub(super) mac: [u8; 6],
    pub(super) mtu: u32,
    pub(super) admin_up: bool,
    pub(super) session: Session,
    /// `--dummy-numa`: the node that replaces the one of the guest's memory.
    pub(super) pretended_numa: Option<u32>,
    /// The fault of the socket or the session.
    pub(super) trouble: Option<String>,
    /// A server's socket is there.
    pub(super) listening: bool,
    /// The process had no descriptors left for the last front end.
    pub(super) starved: bool,
    /// The MTU that was requested last, if it is not possible.
    pub(super) refused_mtu: Option<u32>,
    left: Option<String>,
    link_up: bool,
    link_resets: u64,
}

impl DeviceState {
    pub(super) fn new(mac: [u8; 6]) -> Self {
        Self {
            mac,
            mtu: DEFAULT_MTU,
            admin_up: true,
            session: Session::default(),
            pretended_numa: None,
            trouble: None,
            listening: false,
            starved: false,
            refused_mtu: None,
            left: None,
            link_up: false,
            link_resets: 0,
        }
    }
    pub(super) fn connected(&mut self) {
        self.session = Session {
            connected: true,
            ..Session::default()
        };
        self.trouble = None;
        self.starved = false;
    }
    pub(super) fn disconnected(&mut self, reason: &str) {
        self.session = Session::default();
        self.left = Some(reason.to_owned());
    }
    fn numa(&self) -> Option<u32> {
        let known = self.pretended_numa.or(self.session.numa);
        known.filter(|_| self.session.pairs > 0)
    }
    /// Records the link's state, and logs a change as Open vSwitch does. To be called after each change.
    pub(super) fn follow_link(&mut self, at: &str) {
        let up = self.session.is_running();
        if up == self.link_up {
            return;
        }
        self.link_up = up;
        self.link_resets += 1;
        if up {
            let node = self.numa().unwrap_or(0);
            log::info!(target: "netdev_dpdk", per_min = 60, burst = 60; "vHost Device '{at}' has been added on numa node {node}");
        } else {
            log::info!(target: "netdev_dpdk", per_min = 60, burst = 60; "vHost Device '{at}' has been removed");
        }
    }
}

/// A locally administered address.
pub(super) fn random_mac() -> [u8; 6] {
    let random = std::hash::RandomState::new().build_hasher().finish();
    let [a, b, c, d, e, f, ..] = random.to_be_bytes();
    [a & 0xfc | 2, b, c, d, e, f]
}

/// There is no network device behind the port; its name stands for a number of 24 bits (RFC 2863), the same
/// at every start.
fn ifindex(name: &str) -> u32 {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |h, b| {
        (h ^ u32::from(b)).wrapping_mul(0x0100_0193)
    }); // FNV-1a
    hash % 0x00ff_fffe + 1
}

impl Shared {
    pub(crate) fn status(&self) -> PortStatus {
        let s = self.state.lock().clone();
        PortStatus {
            mac: s.mac,
            mtu: s.mtu,
            admin_up: s.admin_up,
            link_up: s.link_up,
            link_resets: s.link_resets,
            n_rxq: Some(s.session.pairs.max(1)),
            numa: s.numa(),
            error: self.error(&s),
            ifindex: ifindex(&self.name),
            extra: self.extra(&s),
            ..PortStatus::default()
        }
    }

    /// The fault that keeps the port from serving, or from a requested setting.
    fn error(&self, s: &DeviceState) -> Option<String> {
        if s.starved {
            return Some("no file descriptors left (RLIMIT_NOFILE): the front end cannot be served".into());
        }
        let deaf = || s.trouble.clone().filter(|_| !self.backing.calls && !s.listening);
        let mtu = |m| {
            format!(
                "an MTU of {m} is not possible ({MIN_MTU} to {MAX_MTU}): it is {} still",
                s.mtu
            )
        };
        deaf().or_else(|| s.refused_mtu.map(mtu))
    }

    fn extra(&self, s: &DeviceState) -> Vec<(String, String)> {
        let mut all = Vec::new();
        let mut add = |key: &str, value: String| all.push((key.to_owned(), value));
        add("mode", self.backing.mode.into());
        if let Some(text) = &s.trouble {
            add("socket_error", text.clone());
        }
        if !s.session.connected {
            add("status", "disconnected".into());
            if let Some(reason) = &s.left {
                add("disconnect_reason", reason.clone());
            }
            return all;
        }
        add("status", "connected".into());
        add("socket", self.backing.at.lock().clone());
        add("features", format!("0x{:016x}", s.session.features.bits()));
        if let Some(mtu) = s.session.mtu {
            add("mtu", mtu.to_string());
        }
        if let Some(numa) = s.numa() {
            add("numa", numa.to_string());
        }
        for (key, value) in &s.session.reported {
            add(key, value.clone());
        }
        // Rings are counted in pairs, up to the last that is started.
        let last = s.session.rings.keys().next_back();
        let n = last.map_or(0, |i| (i / 2 + 1) * 2);
        if n > 0 {
            add("num_of_vrings", n.to_string());
        }
        for i in 0..n {
            let size = s.session.rings.get(&i).map_or(0, |r| r.size);
            add(&format!("vring_{i}_size"), size.to_string());
            if let Some(error) = self.failure(i) {
                add(&format!("vring_{i}_error"), error.to_string());
            }
        }
        all
    }

    fn failure(&self, index: u16) -> Option<RingError> {
        let place = usize::from(index / 2);
        if index % 2 == 1 {
            self.known_lease(place)?.failure()
        } else {
            self.tx.cells().get(place)?.failure()
        }
    }

    /// Counters as Open vSwitch names them (`ovs_*` of all rings, then per ring as its DPDK does), and
    /// Heddle's own.
    pub(crate) fn statistics(&self) -> Vec<(String, u64)> {
        let (leases, cells) = (self.leases(), self.tx.cells());
        let sum =
            |f: &dyn Fn(&super::counts::TxCounts) -> u64| cells.iter().map(|c| f(&c.counts)).sum::<u64>();
        let shared = |f: &dyn Fn(&TxCell) -> &AtomicU64| {
            cells.iter().map(|c| f(c).load(Ordering::Relaxed)).sum::<u64>()
        };
        let mut all: Vec<(String, u64)> = [
            ("ovs_tx_retries", sum(&|c| c.retries.get())),
            (
                "ovs_tx_failure_drops",
                sum(&|c| c.full.get()) + shared(&|c| &c.refused),
            ),
            ("ovs_tx_mtu_exceeded_drops", sum(&|c| c.too_long.get())),
            ("ovs_tx_qos_drops", self.rates.dropped()),
            ("ovs_rx_qos_drops", 0),
            ("ovs_tx_invalid_hwol_drops", sum(&|c| c.invalid.get())),
            ("tx_software_offloads", sum(&|c| c.finished.get())),
            ("tx_contention", shared(&|c| &c.contention)),
            (
                "rings_broken",
                sum(&|c| c.broken.get()) + leases.iter().map(|l| l.counts.broken.get()).sum::<u64>(),
            ),
        ]
        .map(|(name, n)| (name.to_owned(), n))
        .to_vec();
        for (i, l) in leases.iter().enumerate() {
            all.push((format!("rx_q{i}_good_packets"), l.counts.packets.get()));
            all.push((format!("rx_q{i}_good_bytes"), l.counts.bytes.get()));
            all.push((format!("rx_q{i}_guest_notifications"), l.counts.calls.get()));
        }
        for (i, c) in cells.iter().enumerate() {
            all.push((format!("tx_q{i}_good_packets"), c.counts.packets.get()));
            all.push((format!("tx_q{i}_good_bytes"), c.counts.bytes.get()));
            all.push((format!("tx_q{i}_guest_notifications"), c.counts.calls.get()));
        }
        all
    }
}
