//! Transmit queue of a network device: a burst goes out in one system call. Exits: sent, full, too long,
//! down, error.

use crate::gro::Trains;
use crate::segment;
use crate::{TxCounts, TxQueue};
use heddle_packet::{BURST, Csum, MAX_SEGS, Packet, Pool};
use heddle_sys::packet_socket::VNET_HDR_LEN;
use heddle_sys::{Iov, PacketSocket, SendBatch};
use heddle_virtio::net_hdr;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Tries for a packet that the kernel has no room for.
const TRIES: u32 = 4;
// Error numbers of Linux that decide what becomes of a packet.
const ENXIO: i32 = 6;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const EMSGSIZE: i32 = 90;
const ENETDOWN: i32 = 100;
const ENOBUFS: i32 = 105;

#[derive(Debug)]
pub(super) struct SystemTx {
    socket: Arc<PacketSocket>,
    vnet: bool,
    batch: SendBatch,
}

impl SystemTx {
    pub(super) fn new(socket: Arc<PacketSocket>) -> Self {
        let vnet = socket.has_vnet_hdr();
        Self {
            socket,
            vnet,
            batch: SendBatch::new(BURST, 3 * BURST + MAX_SEGS),
        }
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
                match list.send(self.socket.as_fd(), sent) {
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
        if packet.is_wrapped() {
            return self.send_wrapped(pool, packet);
        }
        if !self.vnet {
            return self.send_finished(pool, packet);
        }
        let mut errno = 0;
        self.send(&[packet], &mut |_, e| errno = e);
        self.try_again(pool, packet, errno)
    }

    /// After the system has said `errno` of a packet; 0: it took it.
    fn try_again(&mut self, pool: &mut Pool, packet: &Packet, errno: i32) -> Result<(), i32> {
        match errno {
            0 => Ok(()),
            // The device or kernel does not know this kind of segment train.
            EINVAL if packet.offload.gso.is_some() => self.send_finished(pool, packet),
            errno => Err(errno),
        }
    }

    /// Sends a train that is in tunnels: as datagrams in a train, or as segments.
    fn send_wrapped(&mut self, pool: &mut Pool, packet: &Packet) -> Result<(), i32> {
        if !self.vnet {
            return self.send_finished(pool, packet);
        }
        let mut done = Ok(());
        let tried = segment::as_datagrams(pool, packet, &mut |train| {
            self.send(&[train], &mut |_, errno| done = Err(errno));
            done.is_ok()
        });
        match (tried, done) {
            (Ok(true), done) if done != Err(EINVAL) => done,
            _ => self.send_finished(pool, packet),
        }
    }

    /// Cuts and finishes one packet in software, and sends the pieces.
    fn send_finished(&mut self, pool: &mut Pool, packet: &Packet) -> Result<(), i32> {
        let mut worst = Ok(());
        let cut = segment::finish(pool, packet, &mut |p| {
            self.send(&[p], &mut |_, errno| worst = Err(errno));
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
    fn trains(&self) -> Trains {
        if self.vnet { Trains::ALL } else { Trains::default() }
    }
    fn tx(&mut self, pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
        let mut counts = TxCounts::default();
        for chunk in packets.chunks(BURST) {
            let plain =
                |p: &Packet| p.offload.gso.is_none() && !matches!(p.offload.csum, Csum::Partial { .. });
            let whole = |p: &Packet| if self.vnet { !p.is_wrapped() } else { plain(p) };
            if !chunk.iter().all(|p| whole(p)) {
                for p in chunk {
                    match self.send_one(pool, p) {
                        Ok(()) => {
                            counts.sent += 1;
                            counts.bytes += p.len() as u64;
                        }
                        Err(errno) => count(&mut counts, errno),
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
                    Err(errno) => count(&mut counts, errno),
                }
            }
        }
        counts
    }
}
