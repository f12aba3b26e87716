//! VDUSE: virtio-net devices that the kernel's own driver uses, and this process serves.
//!
//! A pod has a network device of the driver `virtio_net`. Its rings and packet buffers are in memory that the
//! kernel shares with this process through `/dev/vduse/NAME`; there is no virtual machine.
//!
//! * [`Control`] serves devices, each with a [`Device`](heddle_virtio::device::Device), which a port
//!   implements. It makes the device, adds it to the vDPA bus, and replies to the kernel's messages.
//! * **Restarts.** The device outlives this process. The process that opens it again finds rings as they
//!   were. A split ring contains its position; a packed ring's position is kept in a journal. The driver
//!   notices nothing.
//! * **A device that was given up.** The kernel waits 30 s for a reply, unless it is set otherwise, and then
//!   never sends to the device again. Such a device is destroyed and made anew.
//! * **Trust.** The kernel and its driver are trusted not to attack, and still not believed: rings and
//!   messages are checked as those of guests. With `vhost_vdpa` in place of `virtio_vdpa` the other side is a
//!   guest.
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
