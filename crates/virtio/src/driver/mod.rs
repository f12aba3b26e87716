//! The driver side of virtqueues, a guest kernel's part, for load generators and tests.
//!
//! The driver works over a [`GuestMemory`] that this process shares with a device, which may be another
//! process. The driver checks the device's writes too ([`DriverError::Device`]). So a wrong device ends a
//! test with an error, not with wrong numbers.
//!
//! Costs: adding and taking buffers touches the ring's lines as a kernel's driver does; indices are published
//! once per call of [`Driver::publish`]. No allocation after [`Driver::new`]. One thread per queue.

mod areas;
mod arena;
mod packed;
mod slots;
mod split;
pub mod stream;

pub use arena::Arena;
pub use stream::{Buffers, Flow, Stream, View};

use crate::mem::GuestMemory;
use crate::ring::{QueueConfig, RingError};
use packed::Packed;
use split::Split;

/// A buffer: the driver's address and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buf {
    /// Address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
}

/// A chain that the device has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The number that [`Driver::add`] was given.
    pub token: u32,
    /// Bytes that the device wrote. For a chain that IN_ORDER let the device skip: all that it could write.
    pub len: u32,
}

/// Why a driver cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// Not enough free descriptors now.
    #[error("the ring is full")]
    Full,
    /// A chain of no buffers, or more than the ring has.
    #[error("a chain of {0} buffers")]
    Chain(usize),
    /// The caller wants an indirect table without the feature.
    #[error("indirect descriptors were not negotiated")]
    Indirect,
    /// The table for indirect descriptors is not in memory.
    #[error("indirect table: {0}")]
    Table(crate::mem::MemError),
    /// The device broke the protocol; the text gives the fault.
    #[error("the device {0}")]
    Device(&'static str),
}

/// The location of a chain's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainLocation {
    /// Into the ring.
    Direct,
    /// Into a table at this address, 16 bytes per buffer, which the driver may overwrite after the chain is
    /// done.
    Indirect(u64),
}

/// The driver side of a ring of one layout. See [`Driver`] for the methods.
trait Ring: std::fmt::Debug + Send + Sync {
    fn add(
        &mut self,
        mem: &GuestMemory,
        readable: &[Buf],
        writable: &[Buf],
        place: ChainLocation,
        token: u32,
    ) -> Result<(), DriverError>;
    fn publish(&mut self) -> bool;
    fn pop(&mut self) -> Result<Option<Done>, DriverError>;
    fn arm(&mut self) -> bool;
    fn disarm(&mut self);
    fn free(&self) -> usize;
}

/// The driver side of one queue, of either layout.
#[derive(Debug)]
pub struct Driver(Box<dyn Ring>);

impl Driver {
    /// Sets a queue up in zeroed memory, at the position that `cfg` names.
    ///
    /// # Errors
    /// [`RingError::Size`], [`RingError::Area`].
    pub fn new(cfg: &QueueConfig, mem: &GuestMemory) -> Result<Self, RingError> {
        Ok(Self(if cfg.packed() {
            Box::new(Packed::new(cfg, mem)?)
        } else {
            Box::new(Split::new(cfg, mem)?)
        }))
    }
    /// Adds a chain: `readable` buffers, then `writable` ones. The device sees it after [`Driver::publish`].
    /// `mem` is where an indirect table is written.
    ///
    /// # Errors
    /// [`DriverError::Full`] and misuse; nothing was added then.
    pub fn add(
        &mut self,
        mem: &GuestMemory,
        readable: &[Buf],
        writable: &[Buf],
        place: ChainLocation,
        token: u32,
    ) -> Result<(), DriverError> {
        self.0.add(mem, readable, writable, place, token)
    }
    /// Shows the device the added chains; returns whether it wants a kick.
    pub fn publish(&mut self) -> bool {
        self.0.publish()
    }
    /// Takes the next chain that the device has used.
    ///
    /// # Errors
    /// [`DriverError::Device`].
    pub fn pop(&mut self) -> Result<Option<Done>, DriverError> {
        self.0.pop()
    }
    /// Enables notification of the next used chain. Returns whether there is one already.
    pub fn arm(&mut self) -> bool {
        self.0.arm()
    }
    /// Disables notification.
    pub fn disarm(&mut self) {
        self.0.disarm();
    }
    /// Free descriptors.
    pub fn free(&self) -> usize {
        self.0.free()
    }
}

/// The buffers of a chain in order, each with whether the device writes to it.
fn in_order<'a>(readable: &'a [Buf], writable: &'a [Buf]) -> impl Iterator<Item = (Buf, bool)> + 'a {
    let r = readable.iter().map(|&b| (b, false));
    r.chain(writable.iter().map(|&b| (b, true)))
}
