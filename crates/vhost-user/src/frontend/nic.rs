//! A network device of a pretended guest.

use super::{Frontend, FrontendError, HugePages, Ram, Result};
use crate::message::ProtocolFeatures;
use heddle_sys::EventFd;
use heddle_virtio::driver::{Buffers, Flow, Stream};
use heddle_virtio::ring::{Features, Position, QueueConfig};
use std::os::fd::AsFd;

/// Start of the guest's memory. Not 0, so that an address that was never filled in is noticed.
const BASE: u64 = 1 << 32;
/// Status bits of a running device: ACKNOWLEDGE, DRIVER, FEATURES_OK, DRIVER_OK (virtio 1.2 §2.1).
const RUNNING: u8 = 0x0f;
/// Bytes of a line.
const LINE: u32 = 64;

/// Properties of a device of a pretended guest.
#[derive(Clone, Copy, Debug)]
pub struct NicConfig {
    /// Requested features. Features that change rings or frames must be offered ([`NicConfig::MUST`]); others
    /// are used if they are offered.
    pub features: Features,
    /// Protocol features to agree on where they are offered.
    pub protocol: ProtocolFeatures,
    /// Queue pairs.
    pub pairs: u16,
    /// Entries of each ring.
    pub queue_size: u16,
    /// Bytes of each transmit buffer.
    pub tx_len: u32,
    /// Bytes of each receive buffer.
    pub rx_len: u32,
    /// The kind of memory.
    pub huge: HugePages,
}

impl NicConfig {
    /// Requested features that the back end has to offer.
    pub const MUST: Features = Features::VERSION_1
        .union(Features::RING_PACKED)
        .union(Features::MRG_RXBUF)
        .union(Features::IN_ORDER)
        .union(Features::HOST_TSO4)
        .union(Features::GUEST_TSO4)
        .union(Features::MQ);
    /// Protocol features of the front end.
    pub const PROTOCOL: ProtocolFeatures = ProtocolFeatures::MQ
        .union(ProtocolFeatures::REPLY_ACK)
        .union(ProtocolFeatures::CONFIGURE_MEM_SLOTS)
        .union(ProtocolFeatures::STATUS);
}

/// One ring with its buffers.
#[derive(Debug)]
pub struct NicQueue {
    /// The ring.
    pub config: QueueConfig,
    /// The ring's driver.
    pub stream: Stream,
    kick: EventFd,
    call: EventFd,
}

impl NicQueue {
    /// Posts the next `n` buffers and kicks if the device wants that.
    #[inline]
    pub fn post(&mut self, n: usize) {
        if self.stream.post(n) {
            self.kick.notify();
        }
    }
    /// Kicks, whatever the device wants.
    pub fn kick(&self) {
        self.kick.notify();
    }
    /// Readable when the device has notified.
    pub fn call(&self) -> &EventFd {
        &self.call
    }
}

/// Memory and rings of a device. Ring `2 i` is receive queue `i`, ring `2 i + 1` transmit queue `i` (virtio
/// 1.2 §5.1.2).
#[derive(Debug)]
pub struct Nic {
    ram: Ram,
    features: Features,
    /// Receive queues.
    pub rx: Vec<NicQueue>,
    /// Transmit queues.
    pub tx: Vec<NicQueue>,
}

impl Nic {
    /// Makes memory and rings for exactly these `features`.
    ///
    /// # Errors
    /// [`FrontendError::Memory`], [`FrontendError::Ring`].
    pub fn new(features: Features, config: &NicConfig) -> Result<Self> {
        let size = config.queue_size;
        let (tx_stride, rx_stride) = (stride(config.tx_len), stride(config.rx_len));
        let ring = u64::from(size) * 26 + 4096;
        let pair = 2 * ring + u64::from(size) * u64::from(tx_stride + rx_stride) + 4096;
        let ram = Ram::new(BASE, pair * u64::from(config.pairs), config.huge)?;
        let (table, mut arena) = (ram.table()?, ram.arena());
        let mut queue = |flow, len, stride| -> Result<NicQueue> {
            let config = arena.queue(features, size)?;
            let base = arena.take(u64::from(size) * u64::from(stride), LINE.into())?;
            let buffers = Buffers { base, stride, len };
            let mut stream = Stream::new(&config, &table, flow, buffers)?;
            stream.disarm();
            Ok(NicQueue {
                config,
                stream,
                kick: EventFd::new().map_err(FrontendError::Memory)?,
                call: EventFd::new().map_err(FrontendError::Memory)?,
            })
        };
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        for _ in 0..config.pairs {
            rx.push(queue(Flow::FromDevice, config.rx_len, rx_stride)?);
            tx.push(queue(Flow::ToDevice, config.tx_len, tx_stride)?);
        }
        for q in &mut rx {
            let all = q.stream.free();
            q.stream.post(all);
        }
        Ok(Self {
            ram,
            features,
            rx,
            tx,
        })
    }
    /// Opens a session and makes a device with the features of both sides; [`Nic::attach`] hands it over.
    ///
    /// # Errors
    /// [`FrontendError`].
    pub fn negotiate(front: &mut Frontend, config: &NicConfig) -> Result<Self> {
        let offered = front.open(config.protocol)?;
        let lacks = (config.features & NicConfig::MUST) - offered.features;
        if !lacks.is_empty() {
            return Err(FrontendError::Lacks(lacks));
        }
        if offered.queue_pairs < u64::from(config.pairs) {
            return Err(FrontendError::Queues(offered.queue_pairs));
        }
        Self::new(config.features & offered.features, config)
    }
    /// Opens a session with the next back end after one has gone, for the features that the guest's driver
    /// has chosen already.
    ///
    /// # Errors
    /// [`FrontendError::Lacks`] when it has less to offer than the one before.
    pub fn renew(&self, front: &mut Frontend, protocol: ProtocolFeatures) -> Result<()> {
        let offered = front.open(protocol)?;
        let lacks = self.features - offered.features;
        if lacks.is_empty() {
            Ok(())
        } else {
            Err(FrontendError::Lacks(lacks))
        }
    }
    /// Hands memory and rings to the back end of an opened session, at their positions, and enables them.
    ///
    /// # Errors
    /// [`FrontendError`].
    pub fn attach(&self, front: &mut Frontend) -> Result<()> {
        front.set_features(self.features)?;
        front.set_memory(&[&self.ram])?;
        for (index, q) in self.queues() {
            let (kick, call) = (q.kick.as_fd(), q.call.as_fd());
            let at = q.stream.position();
            front.start_ring(index, &q.config, at, &self.ram, Some(kick), Some(call))?;
        }
        for (index, _) in self.queues() {
            front.enable_ring(index, true)?;
        }
        front.set_status(RUNNING)?;
        for (_, q) in self.queues() {
            // The kicks for buffers that were posted before the back end came are lost.
            q.kick();
        }
        Ok(())
    }
    /// Takes the rings back from the back end; returns the position of each, by index.
    ///
    /// # Errors
    /// [`FrontendError`].
    pub fn detach(&self, front: &mut Frontend) -> Result<Vec<Position>> {
        self.queues()
            .map(|(index, q)| front.stop_ring(index, q.config.packed()))
            .collect()
    }
    /// The features in use.
    pub fn features(&self) -> Features {
        self.features
    }
    /// The device's memory.
    pub fn ram(&self) -> &Ram {
        &self.ram
    }
    /// Rings with their index.
    fn queues(&self) -> impl Iterator<Item = (u8, &NicQueue)> {
        let both = self.rx.iter().zip(&self.tx);
        (0_u8..).zip(both.flat_map(|(rx, tx)| [rx, tx]))
    }
}

/// Bytes from one buffer to the next: an odd number of lines. So the first lines of the buffers spread over
/// the sets of a cache.
fn stride(len: u32) -> u32 {
    (len.div_ceil(LINE) | 1) * LINE
}
