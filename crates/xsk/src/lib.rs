//! AF_XDP: a device's packets come into memory of this process, past the host's stack.
//!
//! A [`Queue`] is a socket that is bound to one queue of a device. Four rings are shared with the kernel, as
//! mapped memory:
//!
//! | ring | written by | entry |
//! | --- | --- | --- |
//! | fill | us | an empty frame, for a packet to come |
//! | receive | the kernel | a packet in one or more frames |
//! | transmit | us | a packet in one or more frames |
//! | completion | the kernel | a frame whose packet was sent |
//!
//! [`Rx`] has the fill and receive rings, [`Tx`] the others; each has frames of its own. A frame is in one
//! place: with the kernel, lent to a packet, held by a sending half, or in a free list.
//! `tests` checks that with a model of the kernel's side.
//!
//! Sockets of all devices of a NUMA node share their memory (`arena.rs`), so a received frame goes out by
//! another device without a copy (`loans.rs`).
//!
//! [`Program`] is the XDP program that leads a device's packets to the sockets. It goes away with the
//! process. [`PassItem`] names packets that it leaves to the host's stack.
//!
//! Source: Linux, `Documentation/networking/af_xdp.rst` and `xsk-tx-metadata.rst`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![allow(clippy::cast_possible_truncation)] // lengths and numbers of frames are below u32::MAX

mod arena;
mod loans;
mod pass;
mod program;
mod queue;
mod region;
mod ring;
mod rx;
mod socket;
#[cfg(test)]
mod tests;
mod tx;

pub use pass::PassItem;
pub use program::{AttachError, MAX_QUEUES, Passed, Program};
pub use queue::{Losses, Queue, QueueConfig};
pub use region::MAX_RECEIVED;
pub use rx::{Rx, RxFaults};
pub use tx::{Refused, Tx};
