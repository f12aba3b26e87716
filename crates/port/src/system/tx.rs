//! Transmit queue of a network device: a burst goes out in one system call. Exits: sent, full, too long,
//! down, error.
//!
//! Packets for different queues of the device go by sockets of their own: a slow queue fills its own send
//! buffer, and the others continue. The sockets are opened when the first such packet comes, at most
//! [`MAX_LANES`] of them. Packets of further queues share the first one. That one, too, is opened with the
//! first packet: most workers send nothing to most devices, and the kernel closes sockets slowly.

use crate::gro::GsoKinds;
use crate::segment::{self, Datagrams};
use crate::{TxCounts, TxQueue};
use heddle_packet::{BURST, Csum, MAX_SEGS, Packet, Pool};
use heddle_sys::packet_socket::VNET_HDR_LEN;
use heddle_sys::qdisc::priority_of;
use heddle_sys::{Iov, LinkCtl, PacketSocket, SendBatch, Tsc};
use heddle_virtio::net_hdr;
use parking_lot::Mutex;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock, Weak};

/// Tries for a packet that the kernel has no room for.
const TRIES: u32 = 4;
// Error numbers of Linux that decide the fate of a packet.
const ENXIO: i32 = 6;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const EMSGSIZE: i32 = 90;
const ENETDOWN: i32 = 100;
const ENOBUFS: i32 = 105;

/// Time from a socket that could not be opened to the next attempt. A number of bursts would make a port that
/// sends a packet a second wait for minutes.
const RETRY_US: u64 = 100_000;
/// Maximum number of sockets for queues of one device.
const MAX_LANES: usize = 64;

/// The first sockets of all transmit queues of a device, which are led to where it is.
#[derive(Debug)]
pub(super) struct Senders {
    vnet: bool,
    state: Mutex<SendersState>,
}

#[derive(Debug)]
struct SendersState {
    /// The device's index.
    index: u32,
    open: Vec<Weak<PacketSocket>>,
}

impl Senders {
    /// Opens no socket yet; the first call checks that this process may.
    ///
    /// # Errors
    /// This process may not open packet sockets.
    pub(super) fn new(index: u32) -> io::Result<Self> {
        // Checked once: a socket for every port would have to be closed again, too.
        static VNET: OnceLock<bool> = OnceLock::new();
        let vnet = match VNET.get() {
            Some(vnet) => *vnet,
            None => {
                let vnet = PacketSocket::sender()?.has_vnet_hdr();
                *VNET.get_or_init(|| vnet)
            }
        };
        let open = Vec::new();
        Ok(Self {
            vnet,
            state: Mutex::new(SendersState { index, open }),
        })
    }

    /// One for a transmit queue.
    fn take(&self) -> io::Result<Arc<PacketSocket>> {
        let mut state = self.state.lock();
        let socket = PacketSocket::sender()?;
        socket.set_sndbuf(super::SNDBUF);
        socket.bind(state.index)?;
        if socket.has_vnet_hdr() != self.vnet {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let socket = Arc::new(socket);
        state.open.retain(|s| s.strong_count() > 0);
        state.open.push(Arc::downgrade(&socket));
        Ok(socket)
    }

    /// Leads all to the device's new index.
    pub(super) fn rebind(&self, index: u32) {
        let mut state = self.state.lock();
        state.index = index;
        for s in state.open.iter().filter_map(Weak::upgrade) {
            let _ = s.bind(index);
        }
    }
}

#[derive(Debug)]
pub(super) struct SystemTx {
    /// The socket of the present packets; `None` before the first packet.
    socket: Option<Arc<PacketSocket>>,
    /// The queue that it is for.
    queue: u32,
    /// All of them, queue 0 first.
    lanes: Vec<(u32, Arc<PacketSocket>)>,
    senders: Arc<Senders>,
    /// When opening a socket may be tried again, by [`Tsc`]. The clock is read only where one is missing.
    retry_at: u64,
    /// Queues that use the first socket because there was none for them.
    without: Vec<u32>,
    name: String,
    vnet: bool,
    datagrams: Datagrams,
    batch: SendBatch,
}

impl SystemTx {
    pub(super) fn new(senders: Arc<Senders>, name: &str) -> Self {
        Self {
            lanes: Vec::new(),
            socket: None,
            queue: 0,
            name: name.to_owned(),
            vnet: senders.vnet,
            senders,
            retry_at: 0,
            without: Vec::new(),
            datagrams: Datagrams::default(),
            batch: SendBatch::new(BURST, 3 * BURST + MAX_SEGS),
        }
    }

    fn rests(&self) -> bool {
        Tsc::now() < self.retry_at
    }

    /// Opens the socket of queue 0; `false`: it cannot be had now.
    #[cold]
    fn open_first(&mut self) -> bool {
        if self.rests() {
            return false;
        }
        match self.senders.take() {
            Ok(socket) => {
                self.lanes = vec![(0, Arc::clone(&socket))];
                self.socket = Some(socket);
                self.queue = 0;
            }
            Err(error) => {
                self.retry_at = Tsc::now() + Tsc::from_us(RETRY_US);
                log::warn!(target: "netdev_linux", per_min = 5, burst = 5; "{}: no socket to send by ({error})", self.name);
            }
        }
        self.socket.is_some()
    }

    /// The next packets are for this queue of the device.
    #[cold]
    fn turn_to(&mut self, queue: u32) {
        if !self.without.is_empty() && !self.rests() {
            let without = std::mem::take(&mut self.without);
            self.lanes.retain(|(q, _)| *q == 0 || !without.contains(q));
        }
        let known = self.lanes.iter().position(|(q, _)| *q == queue);
        let lane = known.or_else(|| {
            let priority = priority_of(queue).filter(|_| self.lanes.len() < MAX_LANES)?;
            match self.open_lane(priority) {
                Ok(socket) => self.lanes.push((queue, Arc::new(socket))),
                Err(error) => {
                    log::warn!(target: "netdev_linux", per_min = 5, burst = 5;
                        "{}: no socket for queue {queue} ({error})", self.name);
                    self.retry_at = Tsc::now() + Tsc::from_us(RETRY_US);
                    self.without.push(queue);
                    let first = Arc::clone(&self.lanes.first()?.1);
                    self.lanes.push((queue, first));
                }
            }
            Some(self.lanes.len() - 1)
        });
        if let Some((_, socket)) = self.lanes.get(lane.unwrap_or(0)) {
            self.socket = Some(Arc::clone(socket));
        }
        self.queue = queue;
    }

    fn open_lane(&self, priority: u32) -> io::Result<PacketSocket> {
        let socket = PacketSocket::sender()?;
        socket.set_sndbuf(super::SNDBUF);
        socket.set_priority(priority)?;
        socket.bind(LinkCtl::new()?.ifindex(&self.name)?)?;
        if socket.has_vnet_hdr() != self.vnet {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(socket)
    }

    /// The device is gone, and perhaps another has its name: sockets for its queues are opened anew. The
    /// first one is led there by others.
    #[cold]
    fn forget_lanes(&mut self) {
        self.lanes.truncate(1);
        self.without.clear();
        self.turn_to(0);
    }

    /// Sends up to [`BURST`] packets as they are, in as few calls as possible. Calls `refused` with the index
    /// and error number of each that the system did not take.
    fn send(&mut self, packets: &[&Packet], refused: &mut dyn FnMut(usize, i32)) {
        let mut hdrs = [[0; net_hdr::LEN]; BURST];
        for (hdr, p) in hdrs.iter_mut().zip(packets) {
            *hdr = net_hdr::encode(&p.offload, p.len());
        }
        let hdr_len = if self.vnet { VNET_HDR_LEN } else { 0 };
        let mut done = 0;
        while done < packets.len() {
            let mut list = self.batch.fill();
            for (p, hdr) in packets.iter().zip(&hdrs).skip(done) {
                let hdr = self.vnet.then(|| Iov::new(&hdr[..hdr_len]));
                if !list.push(hdr.into_iter().chain(p.iovs())) {
                    break;
                }
            }
            if list.is_empty() {
                // Cannot happen while the vectors of one packet fit; the packet is refused rather than tried
                // for ever.
                refused(done, EMSGSIZE);
                done += 1;
                continue;
            }
            let (mut sent, mut tries) = (0, TRIES);
            while sent < list.len() {
                let Some(socket) = &self.socket else {
                    // Cannot happen: `tx` has opened it.
                    refused(done + sent, ENODEV);
                    sent += 1;
                    continue;
                };
                match list.send(socket.as_fd(), sent) {
                    Ok(n) => {
                        sent += n.max(1);
                        tries = TRIES;
                    }
                    Err(e) => {
                        let errno = e.raw_os_error().unwrap_or(EINVAL);
                        tries -= 1;
                        if matches!(errno, EAGAIN | ENOBUFS) && tries > 0 {
                            std::hint::spin_loop();
                            continue;
                        }
                        refused(done + sent, errno);
                        sent += 1;
                        tries = TRIES;
                    }
                }
            }
            done += list.len();
        }
    }

    /// Sends one packet as it has to be.
    fn send_one(&mut self, pool: &mut Pool, packet: &Packet) -> Result<(), i32> {
        if packet.needs_cutting() {
            return self.send_wrapped(pool, packet);
        }
        if !self.vnet {
            return self.send_finished(pool, packet);
        }
        let mut errno = 0;
        self.send(&[packet], &mut |_, e| errno = e);
        self.try_again(pool, packet, errno)
    }

    /// Handles the system's error `errno` for a packet; 0: the system took it.
    fn try_again(&mut self, pool: &mut Pool, packet: &Packet, errno: i32) -> Result<(), i32> {
        match errno {
            0 => Ok(()),
            // The device or kernel does not know this kind of GSO packet.
            EINVAL if packet.offload.gso.is_some() => self.send_finished(pool, packet),
            errno => Err(errno),
        }
    }

    /// Sends a GSO packet that is in tunnels: as a GSO packet of datagrams, or as segments.
    fn send_wrapped(&mut self, pool: &mut Pool, packet: &Packet) -> Result<(), i32> {
        if !self.vnet {
            return self.send_finished(pool, packet);
        }
        let mut datagrams = self.datagrams;
        let done = datagrams.send(pool, packet, &mut |train| {
            let mut done = Ok(());
            self.send(&[train], &mut |_, errno| done = Err(errno));
            done
        });
        self.datagrams = datagrams;
        done.unwrap_or_else(|| self.send_finished(pool, packet))
    }

    /// Cuts and finishes one packet in software, and sends the pieces, a burst of them in one system call.
    fn send_finished(&mut self, pool: &mut Pool, packet: &Packet) -> Result<(), i32> {
        let mut worst = Ok(());
        let cut = segment::finish_batches(pool, packet, &mut |pieces| {
            self.send(pieces, &mut |_, errno| worst = Err(errno));
        });
        cut.map_err(|_| EINVAL).and(worst)
    }
}

fn count(counts: &mut TxCounts, errno: i32) {
    match errno {
        EAGAIN | ENOBUFS | ENOMEM => counts.full += 1,
        EMSGSIZE => counts.too_long += 1,
        ENETDOWN | ENXIO | ENODEV => counts.down += 1,
        _ => counts.error += 1,
    }
}

impl TxQueue for SystemTx {
    fn gso_support(&self) -> GsoKinds {
        if self.vnet {
            GsoKinds::ALL
        } else {
            GsoKinds::default()
        }
    }
    fn tx(&mut self, pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
        let mut counts = TxCounts::default();
        if self.socket.is_none() && !self.open_first() {
            counts.error += packets.len() as u64;
            return counts;
        }
        for run in packets.chunk_by(|a, b| a.queue() == b.queue()) {
            let queue = run.first().map_or(0, |p| p.queue());
            if queue != self.queue {
                self.turn_to(queue);
            }
            self.tx_run(pool, run, &mut counts);
        }
        if counts.down > 0 && self.lanes.len() > 1 {
            self.forget_lanes();
        }
        counts
    }
}

impl SystemTx {
    /// Sends packets of one queue.
    fn tx_run(&mut self, pool: &mut Pool, packets: &[&Packet], counts: &mut TxCounts) {
        let plain = |p: &Packet| p.offload.gso.is_none() && !matches!(p.offload.csum, Csum::Partial { .. });
        let vnet = self.vnet;
        let whole = |p: &Packet| if vnet { !p.needs_cutting() } else { plain(p) };
        // Packets that have to be cut go by themselves, those before and behind them together.
        for chunk in packets
            .chunks(BURST)
            .flat_map(|c| c.chunk_by(|a, b| whole(a) == whole(b)))
        {
            if !chunk.first().is_some_and(|p| whole(p)) {
                for p in chunk {
                    match self.send_one(pool, p) {
                        Ok(()) => {
                            counts.sent += 1;
                            counts.bytes += p.len() as u64;
                        }
                        Err(errno) => count(counts, errno),
                    }
                }
                continue;
            }
            let mut refused = [0_i32; BURST];
            self.send(chunk, &mut |i, errno| {
                if let Some(slot) = refused.get_mut(i) {
                    *slot = errno;
                }
            });
            for (p, &errno) in chunk.iter().zip(&refused) {
                match self.try_again(pool, p, errno) {
                    Ok(()) => {
                        counts.sent += 1;
                        counts.bytes += p.len() as u64;
                    }
                    Err(errno) => count(counts, errno),
                }
            }
        }
    }
}
