//! Receiving from a packet socket into pool buffers, many packets per system call.
//!
//! Buffers wait in a stack. Message 0 goes to its top, so that at low rates the same warm buffer is used
//! again. The number of offered buffers follows the number of packets of the last call.

use super::ingress::VlanSet;
use super::rx::finish;
use heddle_packet::{BURST, Burst, Packet, Pool};
use heddle_sys::batch::Received;
use heddle_sys::packet_socket::VNET_HDR_LEN;
use heddle_sys::{PacketSocket, RecvBatch};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

/// Fewest buffers offered to a receive call when it is not known how many packets wait.
const MIN_OFFER: usize = 4;
const ENETDOWN: i32 = 100;

#[derive(Debug)]
pub(super) struct Socket {
    socket: Arc<PacketSocket>,
    hdr_len: usize,
    batch: RecvBatch,
    /// Empty buffers, room for the header made.
    ready: Vec<Packet>,
    offer: usize,
    vlans: Arc<VlanSet>,
}

impl Socket {
    pub(super) fn new(socket: Arc<PacketSocket>, vlans: Arc<VlanSet>) -> Self {
        let hdr_len = if socket.has_vnet_hdr() { VNET_HDR_LEN } else { 0 };
        let batch = RecvBatch::new(BURST);
        Self {
            socket,
            hdr_len,
            batch,
            ready: Vec::with_capacity(BURST),
            offer: MIN_OFFER,
            vlans,
        }
    }

    pub(super) fn clear_error(&self) {
        self.socket.clear_error();
    }

    /// Receives up to `most` packets until `burst` is full or none is left. Returns how many the socket gave;
    /// `drop` gets the reason for each of them that is not in `burst`.
    pub(super) fn receive(
        &mut self,
        most: usize,
        pool: &mut Pool,
        burst: &mut Burst,
        drop: &mut dyn FnMut(&'static str),
    ) -> usize {
        let most = most.min(BURST);
        let mut total = 0;
        loop {
            let offer = self.offer.min(burst.remaining_capacity()).min(most - total);
            let got = self.call(offer, pool, burst, drop);
            total += got;
            if got < offer || total >= most || burst.is_full() {
                break;
            }
            self.offer = (self.offer * 2).min(BURST);
        }
        self.offer = total.next_power_of_two().clamp(MIN_OFFER, BURST);
        total
    }

    /// One system call with `offer` buffers (a second one after `ENETDOWN`).
    fn call(
        &mut self,
        offer: usize,
        pool: &mut Pool,
        burst: &mut Burst,
        drop: &mut dyn FnMut(&'static str),
    ) -> usize {
        if offer == 0 {
            return 0;
        }
        while self.ready.len() < offer {
            let mut p = pool.get_big();
            p.push_front(self.hdr_len);
            self.ready.push(p);
        }
        let bufs = self.ready.iter_mut().rev().take(offer).map(Packet::space_mut);
        let mut got = self.batch.recv(self.socket.as_fd(), bufs);
        if let Err(e) = &got {
            // The kernel reports ENETDOWN once when the device goes down, which the control plane sees by
            // itself. The error hides packets that came since the device is up again.
            if e.raw_os_error() == Some(ENETDOWN) {
                let bufs = self.ready.iter_mut().rev().take(offer).map(Packet::space_mut);
                got = self.batch.recv(self.socket.as_fd(), bufs);
            } else {
                drop("receive-error");
            }
        }
        let got = got.unwrap_or(0);
        for i in 0..got {
            let Some(mut p) = self.ready.pop() else { break };
            match take(&mut p, self.batch.received(i), self.hdr_len, &self.vlans) {
                Ok(()) => burst.push(p),
                Err(reason) => {
                    drop(reason);
                    pool.put(p);
                }
            }
        }
        got
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Makes a packet of a received message, or returns the reason of the drop.
fn take(p: &mut Packet, got: Received, hdr_len: usize, devices: &VlanSet) -> Result<(), &'static str> {
    if got.truncated {
        return Err("truncated");
    }
    p.set_head_len(got.len);
    let mut hdr = [0; VNET_HDR_LEN];
    let hdr = hdr.get_mut(..hdr_len).unwrap_or_default();
    if let Some(src) = p.head().get(..hdr_len) {
        hdr.copy_from_slice(src);
    }
    if !p.pull_front(hdr_len) {
        return Err("runt");
    }
    finish(p, hdr, got.vlan, devices)
}
