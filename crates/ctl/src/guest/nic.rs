//! Memory, rings and buffers of the guest's card, and the movement of packets between them and the tap
//! device.

use anyhow::{Context, Result, bail};
use heddle_sys::{EventFd, Iov, TapQueue};
use heddle_vhost_user::frontend::{Frontend, HugePages, Ram};
use heddle_virtio::driver::{Buf, ChainLocation, Driver};
use heddle_virtio::ring::{Features, Position, QueueConfig};
use heddle_virtio::{GuestMemory, net_hdr};
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// Address of the guest's memory: not 0, so that an address that was never filled in is noticed.
const BASE: u64 = 1 << 32;
/// Maximum length of a packet with its header.
const MAX_PACKET_BYTES: usize = 65_550 + net_hdr::LEN;
/// Size of a receive buffer: one of several for a long packet, enough for a short one.
const SHORT: u32 = 2048;
/// Maximum number of packets moved in one turn.
const BURST: usize = 64;

struct Ring {
    cfg: QueueConfig,
    driver: Driver,
    bufs: Vec<Buf>,
    /// Buffers that belong to the driver, not the device.
    free: Vec<u32>,
    kick: EventFd,
    call: EventFd,
}

/// The card.
pub(super) struct Nic {
    ram: Ram,
    mem: GuestMemory,
    features: Features,
    rx: Vec<Ring>,
    tx: Vec<Ring>,
    scratch: Vec<u8>,
}

/// Sets the tap's offloads to those that the card can transmit.
pub(super) fn set_offloads(tap: &TapQueue, features: Features) -> Result<()> {
    let wanted = features.contains(Features::CSUM | Features::HOST_TSO4);
    if !wanted {
        // A new tap device has no offloads.
        return Ok(());
    }
    let has = tap.enable_offloads();
    if !has.tso {
        bail!("the kernel's tap devices have no segmentation offload");
    }
    Ok(())
}

impl Nic {
    pub(super) fn new(features: Features, pairs: u16, size: u16) -> Result<Self> {
        let trains = features.contains(Features::GUEST_TSO4);
        let mergeable = features.contains(Features::MRG_RXBUF);
        let long = u32::try_from(MAX_PACKET_BYTES.next_multiple_of(64))?;
        let rx_len = if trains && !mergeable { long } else { SHORT };
        let per_pair = u64::from(size) * u64::from(long + rx_len + 64) + (1 << 16);
        let ram = Ram::new(
            BASE,
            (u64::from(pairs) * per_pair).next_multiple_of(4096),
            HugePages::Never,
        )?;
        let (mem, mut arena) = (ram.table()?, ram.arena());
        let mut ring = |len: u32| -> Result<Ring> {
            let cfg = arena.queue(features, size)?;
            let addr = |_| arena.take(len.into(), 64).map(|addr| Buf { addr, len });
            let bufs = (0..size).map(addr).collect::<Result<_, _>>()?;
            Ok(Ring {
                driver: Driver::new(&cfg, &mem)?,
                cfg,
                bufs,
                free: (0..u32::from(size)).rev().collect(),
                kick: EventFd::new()?,
                call: EventFd::new()?,
            })
        };
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        for _ in 0..pairs {
            rx.push(ring(rx_len)?);
            tx.push(ring(long)?);
        }
        let mut nic = Self {
            ram,
            mem,
            features,
            rx,
            tx,
            scratch: vec![0; MAX_PACKET_BYTES + usize::try_from(SHORT)?],
        };
        nic.post()?;
        Ok(nic)
    }
    pub(super) fn features(&self) -> Features {
        self.features
    }
    /// Descriptors that become readable when packets have come.
    pub(super) fn call_fds(&self) -> Vec<RawFd> {
        self.rx.iter().map(|r| r.call.as_raw_fd()).collect()
    }

    /// Hands memory and rings over, with the present positions of rings.
    pub(super) fn attach(&self, front: &mut Frontend) -> Result<()> {
        front.set_features(self.features)?;
        front.set_memory(&[&self.ram])?;
        for (index, r) in self.rings() {
            let (kick, call) = (Some(r.kick.as_fd()), Some(r.call.as_fd()));
            front.start_ring(index, &r.cfg, self.position(r)?, &self.ram, kick, call)?;
        }
        for (index, r) in self.rings() {
            front.enable_ring(index, true)?;
            r.kick.notify();
        }
        Ok(())
    }
    fn rings(&self) -> impl Iterator<Item = (u8, &Ring)> {
        (0_u8..).zip(self.rx.iter().zip(&self.tx).flat_map(|(rx, tx)| [rx, tx]))
    }
    /// Start position for a switch, as QEMU gives it: of a split ring the used index, of a packed ring the
    /// initial position.
    fn position(&self, ring: &Ring) -> Result<Position> {
        if ring.cfg.packed() {
            return Ok(Position::default());
        }
        let mut index = [0; 2];
        self.mem.read(ring.cfg.device + 2, &mut index)?;
        Ok(Position {
            index: u16::from_le_bytes(index),
            wrap: true,
        })
    }

    /// Gives the device all free receive buffers.
    fn post(&mut self) -> Result<()> {
        for r in &mut self.rx {
            let mut some = false;
            while let Some(token) = r.free.pop() {
                let buf = r.bufs[token as usize];
                r.driver
                    .add(&self.mem, &[], &[buf], ChainLocation::Direct, token)?;
                some = true;
            }
            if some && r.driver.publish() {
                r.kick.notify();
            }
        }
        Ok(())
    }

    /// Moves packets from the tap device to the switch; returns whether there were any.
    pub(super) fn transmit(&mut self, tap: &TapQueue) -> Result<bool> {
        let mut sent = vec![false; self.tx.len()];
        for r in &mut self.tx {
            while let Some(done) = r.driver.pop()? {
                r.free.push(done.token);
            }
        }
        let mut n = 0;
        while n < BURST {
            let len = tap.read(&mut self.scratch).context("tap")?;
            let Some(packet) = self.scratch.get(..len).filter(|p| p.len() > net_hdr::LEN) else {
                break;
            };
            n += 1;
            let queue = spread(packet) % self.tx.len();
            let r = &mut self.tx[queue];
            // If the ring is full, the packet is dropped, as a card drops it.
            let Some(token) = r.free.pop() else { continue };
            let buf = r.bufs[token as usize];
            self.mem.write(buf.addr, packet)?;
            let len = u32::try_from(packet.len())?;
            r.driver.add(
                &self.mem,
                &[Buf { len, ..buf }],
                &[],
                ChainLocation::Direct,
                token,
            )?;
            sent[queue] = true;
        }
        for (r, _) in self.tx.iter_mut().zip(&sent).filter(|(_, sent)| **sent) {
            if r.driver.publish() {
                r.kick.notify();
            }
        }
        Ok(n > 0)
    }

    /// Moves packets from the switch to the tap device; returns whether there were any.
    pub(super) fn receive(&mut self, tap: &TapQueue) -> Result<bool> {
        let mut n = 0;
        for i in 0..self.rx.len() {
            while n < BURST
                && let Some(len) = self.take(i)?
            {
                n += 1;
                if len == 0 {
                    continue;
                }
                let packet = &self.scratch[..len];
                self.check(packet)?;
                // An error of the tap (device down, for example) is not the guest's.
                let _ = tap.write(&[Iov::new(packet)]);
            }
        }
        if n > 0 {
            self.post()?;
        }
        Ok(n > 0)
    }

    /// Takes a packet out of receive ring `i`, all of its buffers. Returns length 0 for a packet that is
    /// longer than any device accepts. Other guests may send such GSO packets, and a card drops them.
    fn take(&mut self, i: usize) -> Result<Option<usize>> {
        let r = &mut self.rx[i];
        let (mut at, mut left) = (0, 1);
        let mut fits = true;
        while left > 0 {
            let Some(done) = r.driver.pop()? else {
                if at == 0 {
                    return Ok(None);
                }
                // Buffers of one packet are published together (virtio 1.2 §5.1.6.3.2).
                bail!("the switch has published a part of a packet");
            };
            let len = done.len as usize;
            match self.scratch.get_mut(at..at + len) {
                Some(to) => self.mem.read(r.bufs[done.token as usize].addr, to)?,
                None => fits = false,
            }
            r.free.push(done.token);
            if at == 0 && self.features.contains(Features::MRG_RXBUF) {
                left = u16::from_le_bytes([self.scratch[10], self.scratch[11]]).into();
            }
            at += len;
            left = usize::saturating_sub(left, 1);
        }
        Ok(Some(if fits { at } else { 0 }))
    }

    /// Checks that a packet keeps to the negotiated features.
    fn check(&self, packet: &[u8]) -> Result<()> {
        let Some(&[flags, gso, ..]) = packet.get(..net_hdr::LEN) else {
            bail!("the switch sent {} bytes", packet.len());
        };
        if flags != 0 && !self.features.contains(Features::GUEST_CSUM) {
            bail!("the switch sent flags {flags:#x} without GUEST_CSUM");
        }
        if gso != 0 && !self.features.contains(Features::GUEST_TSO4) {
            bail!("the switch sent a GSO packet {gso:#x} without GUEST_TSO4");
        }
        Ok(())
    }

    /// Enables notifications; returns whether packets wait already.
    pub(super) fn arm(&mut self) -> bool {
        self.rx.iter_mut().fold(false, |some, r| {
            r.call.drain();
            r.driver.arm() | some
        })
    }
    pub(super) fn disarm(&mut self) {
        for r in &mut self.rx {
            r.driver.disarm();
        }
    }
}

/// Hash of a packet's flow: of addresses and ports of an IPv4 packet without options.
fn spread(packet: &[u8]) -> usize {
    let fields = packet
        .get(net_hdr::LEN + 26..net_hdr::LEN + 38)
        .unwrap_or_default();
    let sum: usize = fields.iter().map(|b| usize::from(*b)).sum();
    sum ^ (sum >> 4)
}
