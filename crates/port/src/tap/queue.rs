//! Queues of a tap device. Exits of receive: empty, burst full, dropped by name. Exits of transmit: sent,
//! full, down, error.

use super::marks::Marks;
use crate::drops::Drops;
use crate::gro::GsoKinds;
use crate::rates::Share;
use crate::segment::{self, Datagrams};
use crate::{Released, RxQueue, TxCounts, TxQueue, WakeFd};
use arrayvec::ArrayVec;
use heddle_packet::{Burst, MAX_SEGS, Offload, Packet, Pool, mark_header};
use heddle_sys::tap::VNET_HDR_LEN;
use heddle_sys::{Iov, TapQueue};
use heddle_virtio::net_hdr::{self, NetHdrError};
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Shortest frame: two addresses and a type.
const ETH_HEADER: usize = 14;
/// Tries for a packet that the kernel has no room for.
const TRIES: u32 = 4;
// Error numbers of Linux that decide the fate of a packet.
const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EINVAL: i32 = 22;
const EPROTO: i32 = 71;
const EBADFD: i32 = 77;
const ENOBUFS: i32 = 105;

#[derive(Debug)]
pub(super) struct TapRx {
    queue: Arc<TapQueue>,
    /// A buffer for the next read, so that polling an empty queue costs the pool nothing.
    spare: Option<Packet>,
    drops: Drops,
    marks: Arc<Marks>,
}

impl TapRx {
    pub(super) fn new(queue: Arc<TapQueue>, marks: Arc<Marks>) -> Self {
        Self {
            queue,
            spare: None,
            drops: Drops::new(),
            marks,
        }
    }
}

impl RxQueue for TapRx {
    fn rx(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let before = burst.len();
        // Bounded by the burst, so that a queue full of bad packets does not hold the worker either.
        for _ in 0..burst.remaining_capacity() {
            let mut p = self.spare.take().unwrap_or_else(|| pool.get_big());
            if p.is_empty() && !p.push_front(VNET_HDR_LEN) {
                self.drops.count("no-headroom");
                break;
            }
            let space = p.space_mut();
            let room = space.len();
            let n = match self.queue.read(space) {
                Ok(n) => n,
                Err(e) => {
                    // EIO and EBADFD: the device is being deleted, or this queue was detached.
                    if !matches!(e.raw_os_error(), Some(EIO | EBADFD)) {
                        self.drops.count("read-error");
                    }
                    0
                }
            };
            if n == 0 {
                self.spare = Some(p);
                break;
            }
            match take(&mut p, n, room) {
                Ok(()) => {
                    self.marks.received(&mut p);
                    burst.push(p);
                }
                Err(reason) => {
                    self.drops.count(reason);
                    p.reset();
                    self.spare = Some(p);
                }
            }
        }
        burst.len() - before
    }
    fn polls_kernel(&self) -> bool {
        true
    }
    fn wake_fd(&self) -> Option<WakeFd> {
        Some(WakeFd(self.queue.as_raw_fd()))
    }
    fn dropped(&self) -> &[(&'static str, u64)] {
        self.drops.all()
    }
}

/// The metadata of a packet that was read.
fn decode(read: &[u8]) -> Result<Offload, NetHdrError> {
    let (hdr, frame) = read.split_at_checked(VNET_HDR_LEN).ok_or(NetHdrError::Short)?;
    net_hdr::decode_tunnel(hdr, frame)
}

/// Makes a packet of the `n` bytes that were read into `room`, or returns the reason of the drop.
fn take(p: &mut Packet, n: usize, room: usize) -> Result<(), &'static str> {
    if n >= room {
        return Err("truncated");
    }
    p.set_head_len(n);
    let len = n.saturating_sub(VNET_HDR_LEN);
    if len < ETH_HEADER {
        return Err("runt");
    }
    let offload = decode(p.head()).map_err(|e| e.name())?;
    p.pull_front(VNET_HDR_LEN);
    p.offload = offload;
    Ok(())
}

/// The pieces of one write: virtio-net header, outer headers or addresses and mark header, head, tail.
type Iovs<'a> = ArrayVec<Iov<'a>, { MAX_SEGS + 4 }>;
/// A packet's [`mark_header`], if it is sent with one.
type Header = Option<[u8; mark_header::LEN]>;

#[derive(Debug)]
pub(super) struct TapTx {
    queue: Arc<TapQueue>,
    /// Takes over when `queue` was detached because the number of queues fell.
    first: Arc<TapQueue>,
    rates: Share,
    datagrams: Datagrams,
    marks: Arc<Marks>,
}

impl TapTx {
    pub(super) fn new(queue: Arc<TapQueue>, first: Arc<TapQueue>, rates: Share, marks: Arc<Marks>) -> Self {
        Self {
            queue,
            first,
            rates,
            datagrams: Datagrams::default(),
            marks,
        }
    }

    /// Writes one packet; the system's error number if it was not taken.
    fn write(&mut self, packet: &Packet, header: &Header) -> Result<(), i32> {
        if let Some(header) = header {
            return self.write_with(packet, header);
        }
        let hdr = net_hdr::encode_tunnel(&packet.offload, packet.len(), None);
        let mut iovs: Iovs<'_> = ArrayVec::new();
        iovs.push(Iov::new(&hdr));
        iovs.extend(packet.iovs());
        self.write_pieces(&iovs)
    }

    /// Writes one packet with a mark header.
    #[cold]
    fn write_with(&mut self, packet: &Packet, header: &[u8; mark_header::LEN]) -> Result<(), i32> {
        let (addresses, rest) = packet.head().split_at_checked(mark_header::AT).ok_or(EINVAL)?;
        let offload = mark_header::offload(&packet.offload);
        let hdr = net_hdr::encode_tunnel(&offload, packet.len() + header.len(), None);
        let mut iovs: Iovs<'_> = ArrayVec::new();
        iovs.extend([&hdr[..], addresses, header, rest].map(Iov::new));
        iovs.extend(packet.iovs().skip(1));
        self.write_pieces(&iovs)
    }

    /// Writes a GSO packet that is in a tunnel as it is. `None`: the device or the packet is not fit for it.
    fn write_whole(&mut self, packet: &Packet) -> Option<Result<(), i32>> {
        if !self.queue.takes_tunnels() {
            return None;
        }
        let whole = segment::whole(packet)?;
        let hdr = net_hdr::encode_tunnel(&packet.offload, packet.len(), Some(whole.tunnel));
        let mut iovs: Iovs<'_> = ArrayVec::new();
        iovs.push(Iov::new(&hdr));
        iovs.push(Iov::new(&whole.outer));
        iovs.push(Iov::new(packet.head().get(whole.outer.len()..)?));
        iovs.extend(packet.iovs().skip(1));
        // The device's owner may have turned it off.
        Some(self.write_pieces(&iovs)).filter(|done| *done != Err(EINVAL))
    }

    fn write_pieces(&mut self, iovs: &[Iov<'_>]) -> Result<(), i32> {
        let mut tries = TRIES;
        loop {
            let Err(e) = self.queue.write(iovs) else {
                return Ok(());
            };
            let errno = e.raw_os_error().unwrap_or(EINVAL);
            tries -= 1;
            if tries == 0 {
                return Err(errno);
            }
            match errno {
                EAGAIN | ENOBUFS => std::hint::spin_loop(),
                EBADFD => self.queue = Arc::clone(&self.first),
                _ => return Err(errno),
            }
        }
    }

    /// Sends a GSO packet that is in tunnels: as it is, as a GSO packet of datagrams, or as segments.
    fn send_wrapped(&mut self, pool: &mut Pool, packet: &Packet, header: &Header) -> Result<(), i32> {
        if header.is_none()
            && let Some(done) = self.write_whole(packet)
        {
            return done;
        }
        let mut datagrams = self.datagrams;
        let done = datagrams.send(pool, packet, &mut |train| self.write(train, header));
        self.datagrams = datagrams;
        done.unwrap_or_else(|| self.send_segments(pool, packet, header))
    }
    fn send_segments(&mut self, pool: &mut Pool, packet: &Packet, header: &Header) -> Result<(), i32> {
        let mut all = Ok(());
        let cut = segment::finish(pool, packet, &mut |p| all = all.and(self.write(p, header)));
        cut.map_err(|_| EINVAL).and(all)
    }

    fn send(&mut self, pool: &mut Pool, packet: &Packet, counts: &mut TxCounts) {
        let header = self.marks.header(packet);
        let sent = match packet.needs_cutting() {
            true => self
                .send_wrapped(pool, packet, &header)
                .map_err(|e| if e == EINVAL { EPROTO } else { e }),
            false => self.write(packet, &header),
        };
        let errno = match sent {
            Ok(()) => {
                counts.sent += 1;
                counts.bytes += packet.len() as u64;
                return;
            }
            Err(errno) => errno,
        };
        match errno {
            EAGAIN | ENOBUFS | ENOMEM => counts.full += 1,
            EIO => counts.down += 1,
            EINVAL if packet.offload.gso.is_some() => {
                // A kernel that does not know this kind of GSO packet: send the segments.
                if self.send_segments(pool, packet, &header).is_ok() {
                    counts.sent += 1;
                    counts.bytes += packet.len() as u64;
                } else {
                    counts.error += 1;
                }
            }
            _ => counts.error += 1,
        }
    }
}

impl TxQueue for TapTx {
    fn gso_support(&self) -> GsoKinds {
        // A joined packet would wait as a whole.
        if self.rates.shapes() {
            return GsoKinds::default();
        }
        GsoKinds::ALL
    }
    fn tx(&mut self, pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
        if self.rates.is_on() {
            let rates = self.rates.get();
            return rates.tx(pool, packets, &mut |pool, kept| self.send_all(pool, kept));
        }
        self.send_all(pool, packets)
    }
    fn abandon(&mut self) -> u64 {
        self.rates.close(self.rates.worker())
    }
    fn release(&mut self, pool: &mut Pool) -> Released {
        let (rates, worker) = (self.rates.get(), self.rates.worker());
        rates.release(worker, pool, &mut |pool, kept| self.send_all(pool, kept))
    }
}

impl TapTx {
    #[inline]
    fn send_all(&mut self, pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
        let mut counts = TxCounts::default();
        for (n, packet) in packets.iter().enumerate() {
            self.send(pool, packet, &mut counts);
            // A bridge's own device often is down, and floods go to it: one call is enough to know.
            if counts.down > 0 {
                counts.down += (packets.len() - n - 1) as u64;
                break;
            }
        }
        counts
    }
}
