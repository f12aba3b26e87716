//! Receive queue of a network device. Exits: empty, burst full, dropped by name.
//!
//! Buffers wait in a stack: message 0 goes to its top, so that at low rates the same warm buffer is used again, and how
//! many are offered follows how many came last time.

use crate::drops::Drops;
use crate::{RxQueue, WakeFd};
use heddle_packet::{BURST, Burst, Packet, Pool};
use heddle_sys::batch::Received;
use heddle_sys::packet_socket::VNET_HDR_LEN;
use heddle_sys::{PacketSocket, RecvBatch};
use heddle_virtio::net_hdr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

const ETH_HEADER: usize = 14;
/// Fewest buffers offered to a receive call.
const MIN_OFFER: usize = 4;
const ENETDOWN: i32 = 100;

#[derive(Debug)]
pub(super) struct SystemRx {
    socket: Arc<PacketSocket>,
    hdr_len: usize,
    batch: RecvBatch,
    /// Empty buffers, room for the header made.
    ready: Vec<Packet>,
    offer: usize,
    drops: Drops,
}

impl SystemRx {
    pub(super) fn new(socket: Arc<PacketSocket>) -> Self {
        let hdr_len = if socket.has_vnet_hdr() { VNET_HDR_LEN } else { 0 };
        let batch = RecvBatch::new(BURST);
        Self {
            socket,
            hdr_len,
            batch,
            ready: Vec::with_capacity(BURST),
            offer: MIN_OFFER,
            drops: Drops::new(),
        }
    }

    /// One system call. Returns (offered, received).
    fn receive(&mut self, pool: &mut Pool, burst: &mut Burst) -> (usize, usize) {
        let offer = self.offer.min(burst.remaining_capacity());
        while self.ready.len() < offer {
            let mut p = pool.get();
            p.push_front(self.hdr_len);
            self.ready.push(p);
        }
        let bufs = self.ready.iter_mut().rev().take(offer).map(Packet::space_mut);
        let mut got = self.batch.recv(self.socket.as_fd(), bufs);
        if let Err(e) = &got {
            // ENETDOWN is told once when the device goes down (the control plane sees that by itself) and hides what
            // has come since it is up again.
            if e.raw_os_error() == Some(ENETDOWN) {
                let bufs = self.ready.iter_mut().rev().take(offer).map(Packet::space_mut);
                got = self.batch.recv(self.socket.as_fd(), bufs);
            } else {
                self.drops.count("receive-error");
            }
        }
        let got = got.unwrap_or(0);
        for i in 0..got {
            let Some(mut p) = self.ready.pop() else { break };
            match take(&mut p, self.batch.received(i), self.hdr_len) {
                Ok(()) => burst.push(p),
                Err(reason) => {
                    self.drops.count(reason);
                    pool.put(p);
                }
            }
        }
        (offer, got)
    }
}

/// Makes a packet of what was received, or says why not.
fn take(p: &mut Packet, got: Received, hdr_len: usize) -> Result<(), &'static str> {
    if got.truncated {
        return Err("truncated");
    }
    p.set_head_len(got.len);
    let len = got.len.saturating_sub(hdr_len);
    if len < ETH_HEADER {
        return Err("runt");
    }
    if hdr_len > 0 {
        let offload = net_hdr::decode(p.head(), len).map_err(|e| e.name())?;
        p.pull_front(hdr_len);
        p.offload = offload;
    }
    if let Some(tag) = got.vlan
        && !p.push_vlan(tag.tpid, tag.tci)
    {
        return Err("no-headroom");
    }
    Ok(())
}

impl RxQueue for SystemRx {
    fn rx(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let before = burst.len();
        let mut total = 0;
        loop {
            let (offered, got) = self.receive(pool, burst);
            total += got;
            if got < offered || total >= BURST || burst.is_full() {
                break;
            }
            self.offer = (self.offer * 2).min(BURST);
        }
        self.offer = total.next_power_of_two().clamp(MIN_OFFER, BURST);
        burst.len() - before
    }
    fn wake_fd(&self) -> Option<WakeFd> {
        Some(WakeFd(self.socket.as_raw_fd()))
    }
    fn dropped(&self) -> &[(&'static str, u64)] {
        self.drops.all()
    }
}
