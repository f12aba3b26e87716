//! One queue of a device: its socket is opened, its rings are mapped, and it is bound.

use crate::arena::{self, Arena, Kind, Part, QueueId};
use crate::region::{FRAME, Region};
use crate::ring::{Consumer, Layout, Producer};
use crate::rx::Rx;
use crate::socket::{self, Features, Socket};
use crate::tx::{METADATA, Tx};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags, XdpRingOffset, XdpUmemReg,
    XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The region has metadata in front of packets to be sent (Linux 6.11 wants the flag, 6.8 the length).
const TX_METADATA_LEN: XdpUmemRegFlags = XdpUmemRegFlags::from_bits_retain(1 << 2);

/// The wanted socket.
#[derive(Clone, Copy, Debug)]
pub struct QueueConfig {
    /// The device.
    pub ifindex: u32,
    /// The device's queue.
    pub queue: u32,
    /// Frames for received packets, also the sizes of the fill and the receive ring: a power of two.
    pub rx_frames: u32,
    /// Frames for packets to be sent, also the sizes of the other rings: a power of two.
    pub tx_frames: u32,
    /// The device's NUMA node, if it is known: the frames are there.
    pub numa: Option<u32>,
    /// The device reads and writes the frames itself; otherwise the kernel copies.
    pub zero_copy: bool,
    /// The kernel may fill checksums in where it copies packets.
    pub checksums: bool,
    /// The kernel reports when it has to be called; otherwise it is called each time.
    pub need_wakeup: bool,
    /// The number of such queues, of this and other devices, for which new memory has room. Sockets with
    /// equal properties use it together, and move frames from one to the other without a copy.
    pub room_for: u32,
}

impl QueueConfig {
    fn id(&self) -> QueueId {
        QueueId {
            ifindex: self.ifindex,
            queue: self.queue,
        }
    }
}

/// Packets and entries that the kernel lost, since the socket was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Received packets without a free frame, and for other reasons.
    pub rx_dropped: u64,
    /// Received packets: the receive ring was full.
    pub rx_ring_full: u64,
    /// Times that the fill ring was empty.
    pub fill_ring_empty: u64,
    /// Entries of the fill ring that make no sense.
    pub rx_invalid: u64,
    /// Entries of the transmit ring that make no sense.
    pub tx_invalid: u64,
}

/// An open queue of a device. Its halves are used by different threads.
#[derive(Debug)]
pub struct Queue {
    socket: Arc<Socket>,
}

impl Queue {
    /// Opens the socket of a queue. It receives when [`crate::Program::lead`] leads packets to it.
    ///
    /// # Errors
    /// `EBUSY`: another socket has the queue. `EINVAL`: the device has no such queue. `EOPNOTSUPP`: no
    /// zero-copy mode there. `ENOBUFS`, `ENOMEM`: no memory that can be locked.
    pub fn open(config: QueueConfig) -> io::Result<(Self, Rx, Tx)> {
        let (many, one) = (SocketAddrXdpFlags::XDP_USE_SG, SocketAddrXdpFlags::empty());
        // Packets in several frames: Linux 6.6, and not every driver in zero-copy mode.
        Self::open_with(config, many).or_else(|e| match e.raw_os_error() {
            Some(code) if code == Errno::BUSY.raw_os_error() => Err(e),
            _ => Self::open_with(config, one),
        })
    }

    fn open_with(config: QueueConfig, sg: SocketAddrXdpFlags) -> io::Result<(Self, Rx, Tx)> {
        let kind = Kind {
            node: config.numa,
            zero_copy: config.zero_copy,
            many_frames: !sg.is_empty(),
            checksums: config.checksums,
            need_wakeup: config.need_wakeup,
        };
        for arena in arena::of_kind(kind) {
            match Self::share(config, &arena) {
                Some(Err(e)) if e.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => return Err(e),
                Some(Ok(opened)) => return Ok(opened),
                // No room, or a kernel before Linux 5.10, or the kernel refuses that pair of devices.
                _ => {}
            }
        }
        let own = config.rx_frames + config.tx_frames;
        let no_memory = [Errno::NOMEM, Errno::NOBUFS].map(Errno::raw_os_error);
        Self::begin(config, kind, own * config.room_for.max(1)).or_else(|e| match e.raw_os_error() {
            Some(code) if no_memory.contains(&code) => Self::begin(config, kind, own),
            _ => Err(e),
        })
    }

    /// Opens a socket with new memory of `frames` frames.
    fn begin(config: QueueConfig, kind: Kind, frames: u32) -> io::Result<(Self, Rx, Tx)> {
        let region = Arc::new(Region::new(frames, kind.node)?);
        let fd = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let metadata = register(fd.as_fd(), &region, config.checksums)?;
        let arena = Arena::new(kind, region, frames, metadata);
        let part = arena.take(config.rx_frames, config.tx_frames, config.id());
        let part = part.ok_or(io::ErrorKind::InvalidInput)?;
        let (mode, wakeup, sg) = (
            match kind.zero_copy {
                true => SocketAddrXdpFlags::XDP_ZEROCOPY,
                false => SocketAddrXdpFlags::XDP_COPY,
            },
            match kind.need_wakeup {
                true => SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP,
                false => SocketAddrXdpFlags::empty(),
            },
            match kind.many_frames {
                true => SocketAddrXdpFlags::XDP_USE_SG,
                false => SocketAddrXdpFlags::empty(),
            },
        );
        let address = SocketAddrXdp::new(mode | wakeup | sg, config.ifindex, config.queue);
        Self::bind(config, &arena, part, fd, |fd| Ok(bind(fd, &address)?))
    }

    /// Opens a socket with memory that others have, too. `None`: there is no room, or no socket any more.
    fn share(config: QueueConfig, arena: &Arc<Arena>) -> Option<io::Result<(Self, Rx, Tx)>> {
        let other = arena.any_socket(socket::is_bound)?;
        let part = arena.take(config.rx_frames, config.tx_frames, config.id())?;
        let fd = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None);
        let fd = match fd {
            Ok(fd) => fd,
            Err(e) => return Some(Err(e.into())),
        };
        // The kernel takes all other flags from the other socket.
        let shared = SocketAddrXdpFlags::XDP_SHARED_UMEM;
        let address = SocketAddrXdpWithSharedUmem {
            addr: SocketAddrXdp::new(shared, config.ifindex, config.queue),
            shared_umem_fd: other.as_fd(),
        };
        Some(Self::bind(config, arena, part, fd, |fd| Ok(bind(fd, &address)?)))
    }

    /// Maps the rings of a socket and binds it.
    fn bind(
        config: QueueConfig,
        arena: &Arc<Arena>,
        part: Part,
        fd: OwnedFd,
        bind: impl FnOnce(&OwnedFd) -> io::Result<()>,
    ) -> io::Result<(Self, Rx, Tx)> {
        let (received, sent) = (config.rx_frames, config.tx_frames);
        sockopt::set_xdp_umem_fill_ring_size(&fd, received)?;
        sockopt::set_xdp_umem_completion_ring_size(&fd, sent)?;
        sockopt::set_xdp_rx_ring_size(&fd, received)?;
        sockopt::set_xdp_tx_ring_size(&fd, sent)?;
        let at = sockopt::xdp_mmap_offsets(&fd)?;
        let rings = fd.as_fd();
        let fill = Producer::map(rings, XDP_UMEM_PGOFF_FILL_RING, layout(at.fr)?, received)?;
        let completion = Consumer::map(rings, XDP_UMEM_PGOFF_COMPLETION_RING, layout(at.cr)?, sent)?;
        let receive = Consumer::map(rings, XDP_PGOFF_RX_RING, layout(at.rx)?, received)?;
        let transmit = Producer::map(rings, XDP_PGOFF_TX_RING, layout(at.tx)?, sent)?;
        bind(&fd)?;
        let zero_copy = sockopt::xdp_options(&fd)?.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
        let features = Features {
            zero_copy,
            many_frames: arena.kind.many_frames,
            metadata: arena.metadata,
            need_wakeup: arena.kind.need_wakeup,
        };
        let (holder, for_rx, for_tx) = (part.holder, part.received.clone(), part.sent.clone());
        let socket = Arc::new(Socket::new(fd, features, Some(part)));
        arena::bound(arena, holder, config.id(), socket.fd());
        let region = || Arc::clone(&arena.region);
        let rx = Rx::new(Arc::clone(&socket), region(), fill, receive, for_rx);
        let tx = Tx::new(
            Arc::clone(&socket),
            region(),
            transmit,
            completion,
            for_tx,
            holder,
        );
        Ok((Self { socket }, rx, tx))
    }

    /// Returns frames that closed sockets have held: to be called now and then.
    pub fn tidy_up() {
        arena::tidy_up();
    }
    /// Whether packets that are longer than a frame can be received and sent.
    pub fn takes_many_frames(&self) -> bool {
        self.socket.features().many_frames
    }
    /// Whether the socket is still bound. The kernel ends that when the device goes to another network
    /// namespace.
    pub fn is_bound(&self) -> bool {
        self.socket.is_bound()
    }
    /// Packets that were sent from the frames that received them.
    pub fn sent_without_copy(&self) -> u64 {
        self.socket.without_copy()
    }
    /// The kernel's counters.
    ///
    /// # Errors
    /// The error of getsockopt(2).
    pub fn losses(&self) -> io::Result<Losses> {
        let all = sockopt::xdp_statistics(&*self.socket)?;
        Ok(Losses {
            rx_dropped: all.rx_dropped,
            rx_ring_full: all.rx_ring_full.unwrap_or(0),
            fill_ring_empty: all.rx_fill_ring_empty_descs.unwrap_or(0),
            rx_invalid: all.rx_invalid_descs,
            tx_invalid: all.tx_invalid_descs,
        })
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Registers the region with a socket. Returns whether packets may have metadata.
fn register(fd: BorrowedFd<'_>, region: &Region, metadata: bool) -> io::Result<bool> {
    let plain = XdpUmemReg {
        addr: region.address(),
        len: region.len(),
        chunk_size: FRAME as u32,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    let with_metadata = XdpUmemReg {
        flags: TX_METADATA_LEN,
        tx_metadata_len: METADATA as u32,
        ..plain
    };
    if metadata && sockopt::set_xdp_umem_reg(fd, with_metadata).is_ok() {
        return Ok(true);
    }
    sockopt::set_xdp_umem_reg(fd, plain)?;
    Ok(false)
}

/// # Errors
/// `Unsupported` before Linux 5.4, which has no flags.
fn layout(offset: XdpRingOffset) -> io::Result<Layout> {
    Ok(Layout {
        producer: offset.producer,
        consumer: offset.consumer,
        flags: offset.flags.ok_or(io::ErrorKind::Unsupported)?,
        entries: offset.desc,
    })
}
