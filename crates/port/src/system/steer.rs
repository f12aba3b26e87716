//! Keeping the packets of a flow in order on a veth pair; see [`heddle_sys::steering`].
//!
//! Measured on two processors, TCP senders on one and the forwarder on the other. Without steering there were
//! 180 to 470 spurious retransmissions in three seconds. With it there were none, at a rate up to a fifth
//! lower. A setting that the owner of the machine made is left alone, and ours is undone with the port.

use heddle_sys::steering;

#[derive(Debug, Default)]
pub(super) struct Steering {
    /// Device and processors, once set by us.
    set: Option<(String, Vec<usize>)>,
}

impl Steering {
    /// Steers `device` to `cpus`. Best effort: without it packets may be reordered, not lost.
    pub(super) fn set(&mut self, device: &str, cpus: &[usize]) {
        let ours = self.set.is_some();
        if !ours && !steering::is_off(device).unwrap_or(false) {
            return;
        }
        match steering::set(device, cpus) {
            Ok(()) => self.set = Some((device.to_owned(), cpus.to_vec())),
            Err(e) => log::debug!(target: "netdev_linux", "{device}: packets are not steered ({e})"),
        }
    }
    /// The device was deleted and made again.
    pub(super) fn again(&mut self) {
        if let Some((device, cpus)) = self.set.take() {
            self.set(&device, &cpus);
        }
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        // A later change by the owner of the machine stays.
        if let Some((device, cpus)) = &self.set
            && steering::is(device, cpus).unwrap_or(false)
        {
            let _ = steering::set(device, &[]);
        }
    }
}
