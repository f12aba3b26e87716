//! Bounds, and where they deviate from virtio 1.2.

/// Largest split ring (virtio 1.2 §2.7) and packed ring (§2.8).
pub const MAX_QUEUE: u16 = 32768;
/// Maximum number of descriptors of an indirect table. §2.7.5.3.1 bounds a chain by the queue's size, but
/// Linux's driver exceeds that on small queues. This is the bound of Linux's own back end (`UIO_MAXIOV`). It
/// also bounds the descriptors of a direct chain, and the pieces of any chain. A buffer has more than one
/// piece where it crosses regions of memory.
pub const MAX_INDIRECT: u32 = 1024;
/// Descriptors of chains with several that a call reads, and then the rest of one chain: buffers of no bytes
/// cost as much as others.
pub const DESCS: u32 = 1024;
/// Maximum number of chains that are held in private memory between their reading and their use.
pub const WINDOW: usize = 128;
/// Bytes of a packet that are copied into its private head: headers of a tunnel and of the inner packet.
/// Longer headers are taken from the tail when they are needed.
pub const HEAD: usize = 128;
/// Bytes of the longest frame that is taken from a guest: the size of a pool's buffer.
pub const MAX_FRAME: usize = heddle_packet::BUF_SIZE - heddle_packet::HEADROOM;
/// Chains that a queue reads beyond those that a call needs, so that the lines of their buffers are on the
/// way.
pub const AHEAD: usize = heddle_packet::BURST;
/// Chains whose addresses are checked when one of them is missing (IOTLB misses).
pub const MISSES: u16 = 64;
/// Times that a transmit call looks again for buffers before it drops.
pub const RETRIES: u32 = 4;
