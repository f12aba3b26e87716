//! The senders: a tap whose rates the switch keeps, and a device whose rates the kernel keeps.

use heddle_packet::{BURST, Packet, Pool};
use heddle_port::{Port, QosConfig, SystemPort, TapPort, TxQueue};
use heddle_sys::packet_socket::VNET_HDR_LEN;
use heddle_sys::qdisc::priority_of;
use heddle_sys::{Iov, LinkCtl, PacketSocket, SendBatch, Tsc};
use std::collections::BTreeMap;
use std::error::Error;
use std::os::fd::AsFd;

/// Length of each packet, bytes.
const LEN: usize = 1500;
/// Room for the packets that wait in all of the kernel's queues, bytes.
const SNDBUF: usize = 1 << 29;

/// The packets that were sent in a time.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) packets: u64,
    pub(crate) cycles: u64,
    pub(crate) seconds: f64,
}

/// One of the two senders.
pub(crate) trait Sender {
    /// The word for it in the output.
    fn name(&self) -> &'static str;
    /// Sets the port's rate (bits per second) and its number of queues; `None`: no row.
    fn set(&mut self, wanted: Option<(u64, u32)>) -> Result<(), Box<dyn Error>>;
    /// Sends a burst to a queue. Returns the number of packets that were taken.
    fn burst(&mut self, queue: u32) -> u64;
    /// Bytes that each queue has sent so far.
    fn sent_bytes(&self) -> Vec<u64>;
}

/// A row with equal shares of the rate for all queues.
fn row(bps: u64, queues: u32) -> QosConfig {
    let details = |key: &str, n: u64| BTreeMap::from([(key.to_owned(), n.to_string())]);
    let min = bps / u64::from(queues) / 2;
    QosConfig {
        kind: "linux-htb".to_owned(),
        details: details("max-rate", bps),
        queues: (0..queues).map(|q| (q, details("min-rate", min))).collect(),
    }
}

fn sent_bytes(port: &dyn Port) -> Vec<u64> {
    port.queue_counts().iter().map(|queue| queue.bytes).collect()
}

/// A tap.
pub(crate) struct Shaper {
    port: TapPort,
    tx: Box<dyn TxQueue>,
    pool: Pool,
    packets: Vec<Packet>,
    /// When packets that wait may leave, by [`Tsc`].
    next: Option<u64>,
}

impl Shaper {
    pub(crate) fn open(name: &str) -> Result<Self, Box<dyn Error>> {
        let port = TapPort::open(name)?;
        port.set_admin(true)?;
        Ok(Self {
            tx: port.open_tx(0, 1)?,
            port,
            pool: Pool::new(256),
            packets: (0..BURST).map(|_| Packet::from_bytes(&[0; LEN])).collect(),
            next: None,
        })
    }
}

impl Sender for Shaper {
    fn name(&self) -> &'static str {
        "shaper"
    }
    fn set(&mut self, wanted: Option<(u64, u32)>) -> Result<(), Box<dyn Error>> {
        self.port.set_qos(None)?;
        if let Some((bps, queues)) = wanted {
            self.port.set_qos(Some(&row(bps, queues)))?;
        }
        Ok(())
    }
    fn burst(&mut self, queue: u32) -> u64 {
        self.packets.iter_mut().for_each(|p| p.set_queue(queue));
        let refs: Vec<&Packet> = self.packets.iter().collect();
        let counts = self.tx.tx(&mut self.pool, &refs);
        let mut sent = counts.sent;
        if counts.waits {
            self.next = Some(0);
        }
        if self.next.is_some_and(|at| Tsc::now() >= at) {
            let released = self.tx.release(&mut self.pool);
            sent += released.counts.sent;
            self.next = released.next;
        }
        sent
    }
    fn sent_bytes(&self) -> Vec<u64> {
        sent_bytes(&self.port)
    }
}

/// A device with the kernel's HTB, and a packet socket.
pub(crate) struct Kernel {
    port: SystemPort,
    socket: PacketSocket,
    batch: SendBatch,
    frame: Vec<u8>,
}

impl Kernel {
    pub(crate) fn open(device: &str) -> Result<Self, Box<dyn Error>> {
        let socket = PacketSocket::sender()?;
        socket.set_sndbuf(SNDBUF);
        socket.bind(LinkCtl::new()?.ifindex(device)?)?;
        let header = if socket.has_vnet_hdr() { VNET_HDR_LEN } else { 0 };
        Ok(Self {
            port: SystemPort::open(device)?,
            socket,
            batch: SendBatch::new(BURST, BURST),
            frame: vec![0; header + LEN],
        })
    }
}

impl Sender for Kernel {
    fn name(&self) -> &'static str {
        "htb"
    }
    fn set(&mut self, wanted: Option<(u64, u32)>) -> Result<(), Box<dyn Error>> {
        self.port.set_qos(None)?;
        if let Some((bps, queues)) = wanted {
            self.port.set_qos(Some(&row(bps, queues)))?;
        }
        Ok(())
    }
    fn burst(&mut self, queue: u32) -> u64 {
        let mut list = self.batch.fill();
        for _ in 0..BURST {
            list.push(std::iter::once(Iov::new(&self.frame)));
        }
        let priority = priority_of(queue).unwrap_or(0);
        let sent = self
            .socket
            .set_priority(priority)
            .and_then(|()| list.send(self.socket.as_fd(), 0));
        // A full queue takes none.
        sent.map_or(0, |n| n as u64)
    }
    fn sent_bytes(&self) -> Vec<u64> {
        sent_bytes(&self.port)
    }
}
