//! The kernel's side, as sessions see it: traits, so that tests play the kernel, and the real one.

use core::fmt::Debug;
use heddle_sys::vdpa;
use heddle_sys::vduse::{self, Entry, MESSAGE_LEN, NewDevice, QueueInfo};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// An open device: `/dev/vduse/NAME`. Functions are those of [`vduse::Device`], whose comments describe them.
#[expect(missing_docs, reason = "heddle_sys::vduse::Device has the text")]
pub trait DeviceEnd: Send + Sync + Debug {
    /// The descriptor to wait for: readable when there is a message.
    fn as_fd(&self) -> BorrowedFd<'_>;
    fn features(&self) -> io::Result<u64>;
    fn set_up_queue(&self, index: u16, max_size: u16) -> io::Result<()>;
    fn queue(&self, index: u16) -> io::Result<QueueInfo>;
    fn set_kick(&self, index: u16, kick: BorrowedFd<'_>) -> io::Result<()>;
    fn interrupt(&self, index: u16) -> io::Result<()>;
    fn region(&self, first: u64, last: u64) -> io::Result<Option<(Entry, OwnedFd)>>;
    fn set_config(&self, offset: u32, bytes: &[u8]) -> io::Result<()>;
    fn config_interrupt(&self) -> io::Result<()>;
    fn receive(&self) -> io::Result<Option<[u8; MESSAGE_LEN]>>;
    fn reply(&self, message: &[u8; MESSAGE_LEN]) -> io::Result<()>;
}

/// Makes devices, and has the bus that drivers find them on.
pub trait Host: Send + Sync {
    /// Makes a device.
    ///
    /// # Errors
    /// `AlreadyExists`; `NotFound` without the kernel's module.
    fn create(&self, new: &NewDevice<'_>) -> io::Result<()>;
    /// Destroys a device that no process has opened and that is not on the bus.
    ///
    /// # Errors
    /// `ResourceBusy`.
    fn destroy(&self, name: &str) -> io::Result<()>;
    /// Opens a device.
    ///
    /// # Errors
    /// `ResourceBusy` while another process has it open.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DeviceEnd>>;
    /// Writes an attribute of a device that is not on the bus yet (`bounce_size`, `vq0/irq_cb_affinity`).
    ///
    /// # Errors
    /// The kernel's error for the value.
    fn set_attribute(&self, name: &str, attribute: &str, value: &str) -> io::Result<()>;
    /// Adds a device to the bus. Waits for the thread that serves it.
    ///
    /// # Errors
    /// `AlreadyExists`; the driver's error.
    fn add(&self, name: &str) -> io::Result<()>;
    /// Removes a device from the bus. Waits for the thread that serves it.
    ///
    /// # Errors
    /// The device does not exist.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Whether a device is on the bus.
    fn is_present(&self, name: &str) -> bool;
    /// Whether a driver has taken a device.
    fn has_driver(&self, name: &str) -> bool;
    /// The network device that the driver made, if it is in this process's namespace.
    fn netdev(&self, name: &str) -> Option<String>;
}

impl DeviceEnd for vduse::Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        AsFd::as_fd(self)
    }
    fn features(&self) -> io::Result<u64> {
        self.features()
    }
    fn set_up_queue(&self, index: u16, max_size: u16) -> io::Result<()> {
        self.set_up_queue(index, max_size)
    }
    fn queue(&self, index: u16) -> io::Result<QueueInfo> {
        self.queue(index)
    }
    fn set_kick(&self, index: u16, kick: BorrowedFd<'_>) -> io::Result<()> {
        self.set_kick(index, kick)
    }
    fn interrupt(&self, index: u16) -> io::Result<()> {
        self.interrupt(index)
    }
    fn region(&self, first: u64, last: u64) -> io::Result<Option<(Entry, OwnedFd)>> {
        self.region(first, last)
    }
    fn set_config(&self, offset: u32, bytes: &[u8]) -> io::Result<()> {
        self.set_config(offset, bytes)
    }
    fn config_interrupt(&self) -> io::Result<()> {
        self.config_interrupt()
    }
    fn receive(&self) -> io::Result<Option<[u8; MESSAGE_LEN]>> {
        self.receive()
    }
    fn reply(&self, message: &[u8; MESSAGE_LEN]) -> io::Result<()> {
        self.answer(message)
    }
}

/// This machine's kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Host for System {
    fn create(&self, new: &NewDevice<'_>) -> io::Result<()> {
        vduse::Control::open()?.create(new)
    }
    fn destroy(&self, name: &str) -> io::Result<()> {
        vduse::Control::open()?.destroy(name)
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DeviceEnd>> {
        Ok(Arc::new(vduse::Device::open(name)?))
    }
    fn set_attribute(&self, name: &str, attribute: &str, value: &str) -> io::Result<()> {
        let path = Path::new("/sys/class/vduse").join(name).join(attribute);
        std::fs::write(path, value)
    }
    fn add(&self, name: &str) -> io::Result<()> {
        vdpa::add(name)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        vdpa::remove(name)
    }
    fn is_present(&self, name: &str) -> bool {
        vdpa::is_present(name)
    }
    fn has_driver(&self, name: &str) -> bool {
        vdpa::has_driver(name)
    }
    fn netdev(&self, name: &str) -> Option<String> {
        vdpa::netdev(name)
    }
}
