//! VDUSE: virtio-net devices that the kernel's own driver uses, and this process serves.
//!
//! A pod has a network device of the driver `virtio_net`. Its rings and packet buffers lie in memory that the
//! kernel shares with this process through `/dev/vduse/NAME`; there is no virtual machine.
//!
//! * [`Control`] serves devices, each with a [`Device`](heddle_virtio::device::Device), which is what a port
//!   implements: it makes the device, adds it to the vDPA bus, and answers the kernel's messages.
//! * **Restarts.** The device outlives this process. Whoever opens it again finds rings as they were: a split
//!   ring says where it is, a packed ring's position is kept in a journal. The driver notices nothing.
//! * **A device that was given up.** The kernel waits 30 s for an answer, unless it was told otherwise, and
//!   never speaks to the device again. Such a device is destroyed and made anew.
//! * **What the other side is.** The kernel and its driver are trusted not to attack, and still not believed:
//!   rings and messages are checked as those of guests. With `vhost_vdpa` in place of `virtio_vdpa` the other
//!   side is a guest.
//!
//! Interrupts are ioctls, one for each ring; drivers suppress most of them by event indexes.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bus;
mod control;
mod endpoint;
mod host;
mod link;
mod memory;
mod message;
mod session;
mod spec;

#[cfg(test)]
mod tests;

pub use control::{Control, DeviceId, MAX_DEVICES};
pub use host::{DeviceEnd, Host, System};
pub use message::{Request, RequestKind};
pub use spec::{MAX_SIZE, MIN_SIZE, Spec, Wanted};

/// Rings of a device: one queue pair. More would need a control queue, which the kernel does not allow.
pub const QUEUES: u16 = 2;
