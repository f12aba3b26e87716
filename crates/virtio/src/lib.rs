//! Guest memory, virtqueues and the virtio-net header.
//!
//! * [`mem`]: a guest's memory as a table of mapped regions that can be replaced while workers run.
//! * [`ring`]: the device side of split and packed virtqueues, for the switch.
//! * [`device`]: the seam between a session, which hands memory and rings over, and the port that uses them.
//! * [`journal`]: positions of packed rings, kept across sessions and processes.
//! * [`driver`]: the driver side over the same memory, for load generators and tests.
//! * [`net_hdr`]: the header in front of each packet.
//!
//! Bytes that a guest or another process writes into a ring or a header are a claim. The decoders here turn
//! claims into checked values ([`net_hdr::decode`], [`mem::Claim`]) and name the refused claims.

#![allow(clippy::cast_possible_truncation)] // fields have fixed widths, positions are masked

pub mod device;
pub mod driver;
pub mod journal;
pub mod mem;
pub mod net_hdr;
pub mod ring;

pub use mem::{GuestMemory, Region, SharedMemory};
pub use net_hdr::{NetHdrError, decode, encode};
pub use ring::{DeviceRx, DeviceTx, Features, QueueConfig, RingError};
