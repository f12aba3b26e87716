//! vhost-user: the protocol by which a virtual machine monitor (the front end) hands a guest's memory and
//! virtqueues to another process (the back end) over a Unix socket.
//!
//! * [`message`]: the bytes and descriptors of every message, for both sides.
//! * [`frontend`]: what a virtual machine monitor does, for load generators and tests.
//! * [`backend`]: the switch's side: sockets and the sessions that drive a [`heddle_virtio::device::Device`].
//!
//! The text followed is QEMU's `docs/interop/vhost-user.rst` ("the specification" in this crate).
//!
//! Why not rust-vmm's `vhost` crate: its back end is a blocking request handler with one thread per socket
//! over `vm-memory`, without IOTLB and status messages; this crate serves all sockets from one thread without
//! blocking, bounds what a front end can make it hold, and hands memory to `heddle-virtio`'s tables.

pub mod backend;
pub mod frontend;
pub mod message;
