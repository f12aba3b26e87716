//! vhost-user: a virtual machine monitor (the front end) hands a guest's memory and virtqueues to another
//! process (the back end) over a Unix socket.
//!
//! * [`message`]: the bytes and descriptors of every message, for both sides.
//! * [`frontend`]: a virtual machine monitor's side, for load generators and tests.
//! * [`backend`]: sockets of the switch and the sessions that drive a [`heddle_virtio::device::Device`].
//!
//! The text followed is QEMU's `docs/interop/vhost-user.rst` ("the specification" in this crate).
//!
//! This crate does not use rust-vmm's `vhost` crate. That crate's back end is a blocking request handler with
//! one thread per socket over `vm-memory`, without IOTLB and status messages. This crate serves all sockets
//! from one thread without blocking, and bounds the memory that a front end can make it hold. It hands memory
//! to `heddle-virtio`'s tables.

#![deny(clippy::indexing_slicing)] // whatever a front end sends

pub mod backend;
pub mod frontend;
pub mod message;
