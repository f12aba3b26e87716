//! `dummy` ports: packets come from a command, a stream or nowhere, and go to a file, a stream or nowhere.
//!
//! They exist for tests, and have all features of Open vSwitch's dummy devices that its test suite uses.
//! These are `receive`, admin state, `pcap`, `rxq_pcap`, `tx_pcap`, `stream`, `pstream`, `ifindex`,
//! `ol_tso_segsz`, and addresses with an ARP responder. A lock per call is fine here.
//!
//! [`DummyPort::wait_processed`] lets a command that injected packets wait until the worker is done with
//! them. So a test sees their effects when the command returns.

mod address;
mod counts;
mod pcap;
mod queue;
mod state;
mod stream;
#[cfg(test)]
mod tests;
mod tso;

use crate::{Port, PortError, PortStatus, RxQueue, TxQueue};
pub use address::{parse_ip4, parse_ip6};
use queue::{DummyRx, DummyTx};
use state::Shared;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of queues of one port.
pub const MAX_QUEUES: usize = 1024;

/// State of a dummy port's connections, for `netdev-dummy/conn-state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnState {
    /// A peer is connected.
    Connected,
    /// No peer is connected.
    Disconnected,
    /// The port has no stream.
    Unknown,
}

/// A dummy port.
#[derive(Debug)]
pub struct DummyPort {
    kind: &'static str,
    shared: Arc<Shared>,
}

impl DummyPort {
    /// Makes a port of type `kind` (`dummy`, `dummy-internal`, `dummy-pmd`).
    ///
    /// # Errors
    /// No error now; options that make no sense are logged and ignored, as Open vSwitch does.
    pub fn open(
        kind: &'static str,
        name: &str,
        options: &BTreeMap<String, String>,
    ) -> Result<Arc<Self>, PortError> {
        let port = Self {
            kind,
            shared: Shared::new(name),
        };
        port.set_options(options)?;
        Ok(Arc::new(port))
    }

    /// Queues `frame` on receive queue `qid`, as if it came from the wire. Dropped silently when the queue
    /// holds 100 already, or when the port has no such queue open.
    pub fn receive(&self, qid: usize, frame: &[u8]) {
        self.shared.inject(qid, frame.to_vec());
    }

    /// Waits until every packet queued so far has gone through the switch. `false`: it took longer than
    /// `limit`.
    pub fn wait_processed(&self, limit: Duration) -> bool {
        self.shared.wait_processed(limit)
    }

    /// Receive queues that are open.
    pub fn n_rxq(&self) -> usize {
        self.shared.state.lock().queues.len()
    }

    /// State of the stream, for `netdev-dummy/conn-state`.
    pub fn conn_state(&self) -> ConnState {
        self.shared.conn_state()
    }

    /// Sets the IPv4 address; the port replies to ARP requests for it.
    pub fn set_ip4(&self, addr: Ipv4Addr, mask: Ipv4Addr) {
        self.shared.state.lock().ip4 = Some((addr, mask));
    }

    /// Sets the IPv6 address and its prefix length.
    pub fn set_ip6(&self, addr: Ipv6Addr, prefix: u8) {
        self.shared.state.lock().ip6 = Some((addr, prefix));
    }

    /// The IPv4 address and mask, if set.
    pub fn ip4(&self) -> Option<(Ipv4Addr, Ipv4Addr)> {
        self.shared.state.lock().ip4
    }

    /// The IPv6 address and prefix length, if set.
    pub fn ip6(&self) -> Option<(Ipv6Addr, u8)> {
        self.shared.state.lock().ip6
    }

    /// NUMA node that the port claims to be on.
    #[cfg(test)]
    pub(crate) fn numa_id(&self) -> u32 {
        self.shared.state.lock().numa_id
    }
}

/// Reads a packet as hexadecimal digits; spaces are allowed between bytes.
///
/// # Errors
/// The text that `netdev-dummy/receive` and `packet-out` give for it.
pub fn frame_from_hex(text: &str) -> Result<Vec<u8>, &'static str> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let nibble = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let mut frame = Vec::with_capacity(digits.len() / 2);
    for pair in digits.chunks(2) {
        let &[high, low] = pair else {
            return Err("Trailing garbage in packet data");
        };
        let (Some(high), Some(low)) = (nibble(high), nibble(low)) else {
            return Err("Trailing garbage in packet data");
        };
        frame.push((high << 4) | low);
    }
    if frame.len() < 14 {
        Err("Packet data too short for Ethernet")
    } else {
        Ok(frame)
    }
}

impl Port for DummyPort {
    fn name(&self) -> &str {
        &self.shared.name
    }
    fn kind(&self) -> &'static str {
        self.kind
    }
    fn open_rx(&self, n: usize) -> Result<Vec<Box<dyn RxQueue>>, PortError> {
        let fds = self
            .shared
            .open_queues(n.clamp(1, MAX_QUEUES))
            .map_err(|e| PortError::open(&self.shared.name, e))?;
        Ok(fds
            .into_iter()
            .map(|q| Box::new(DummyRx::new(Arc::clone(&self.shared), q)) as _)
            .collect())
    }
    fn open_tx(&self, worker: usize, _n: usize) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(Box::new(DummyTx::new(Arc::clone(&self.shared), worker)))
    }
    fn status(&self) -> PortStatus {
        let state = self.shared.state.lock();
        PortStatus {
            mac: state.mac,
            mtu: state.mtu,
            admin_up: state.up,
            link_up: state.up,
            ifindex: state.ifindex,
            numa: Some(state.numa_id),
            ..PortStatus::default()
        }
    }
    fn set_mtu(&self, mtu: u32) -> Result<(), PortError> {
        if !(68..=65535).contains(&mtu) {
            let e = std::io::Error::from_raw_os_error(22); // EINVAL
            return Err(PortError::sys(
                format!("could not set MTU of {} to {mtu}", self.shared.name),
                e,
            ));
        }
        self.shared.state.lock().mtu = mtu;
        Ok(())
    }
    fn set_mac(&self, mac: [u8; 6]) -> Result<(), PortError> {
        self.shared.state.lock().mac = mac;
        Ok(())
    }
    fn set_admin(&self, up: bool) -> Result<(), PortError> {
        self.shared.state.lock().up = up;
        Ok(())
    }
    fn set_options(&self, options: &BTreeMap<String, String>) -> Result<(), PortError> {
        Shared::set_options(&self.shared, options);
        Ok(())
    }
    fn counts_losses(&self) -> bool {
        false
    }
    fn has_default_queue(&self) -> bool {
        true
    }
    fn set_tx_steering(&self, by_flow: bool) {
        self.shared.state.lock().by_flow = by_flow;
    }
    /// The counters of Open vSwitch's dummy devices, so that clients can be tested with counters of a port
    /// type's own. The custom ones are always 0.
    fn statistics(&self) -> Vec<(String, u64)> {
        let state = self.shared.state.lock();
        let custom = ["rx_custom_packets_1", "rx_custom_packets_2"];
        let custom = custom.into_iter().map(|n| (n.to_owned(), 0));
        custom
            .chain(state.received.named("rx"))
            .chain(state.sent.named("tx"))
            .collect()
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for DummyPort {
    fn drop(&mut self) {
        self.shared.close();
    }
}
