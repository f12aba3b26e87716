//! Packets, buffers, pools, bursts and offload metadata.
//!
//! A [`Packet`] is a private **head** and an optional **tail** of [`Seg`]ments. The head is contiguous bytes
//! that this process owns and may rewrite, with room to grow at the front. The tail may be in foreign memory:
//! a kernel ring, or a guest. All decisions are made on the head; the tail is only ever copied out. A packet
//! that was received into a pool buffer has no tail. Foreign memory returns to its owner only when no packet
//! refers to it: see [`Lender`].
//!
//! [`Offload`] has the contents of the virtio-net header in a form that does not depend on virtio. It shows
//! whether the L4 checksum is still to be filled in, and whether the packet is a GSO packet.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![allow(clippy::cast_possible_truncation)] // lengths are bounded by BUF_SIZE, far below u32::MAX

mod buf;
pub mod mark_header;
mod offload;
mod packet;
mod pool;
mod seg;
mod shelf;
#[cfg(test)]
mod tests;

pub use buf::{BUF_SIZE, HEAD_SPACE, HEADROOM};
pub use offload::{Csum, Gso, GsoKind, Offload, Wrap, Wraps};
pub use packet::{MAX_SEGS, OnWire, Packet, PacketState};
pub use pool::Pool;
pub use seg::{Lender, Seg};

/// Maximum number of packets that a receive call returns.
pub const BURST: usize = 32;

/// Packets of one receive call, in order of arrival.
pub type Burst = arrayvec::ArrayVec<Packet, BURST>;
