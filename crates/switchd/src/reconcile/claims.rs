//! The host's devices that are ports. Two ports on one device would take each other's packets. A `dpdk` port
//! names its device by an option, and a device may have alternative names, so the names of ports do not show
//! that.

use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_sys::LinkCtl;
use parking_lot::Mutex;

/// The devices, with the names of their ports.
#[derive(Clone, Default)]
pub(super) struct Claims(Arc<Mutex<BTreeMap<String, String>>>);

/// One port's device, until this is dropped.
pub(super) struct Claim {
    all: Claims,
    device: String,
}

impl Claims {
    /// Gives a device to a port. `device` may be an alternative name.
    ///
    /// # Errors
    /// Name of the port that has it.
    pub(super) fn take(&self, device: &str, port: &str) -> Result<Claim, String> {
        let device = kernel_name(device);
        let mut all = self.0.lock();
        if let Some(owner) = all.get(&device) {
            return Err(owner.clone());
        }
        all.insert(device.clone(), port.to_owned());
        Ok(Claim {
            all: self.clone(),
            device,
        })
    }

    /// Whether the device of this name is a port's.
    pub(super) fn has(&self, device: &str) -> bool {
        self.0.lock().contains_key(device)
    }
}

/// The kernel's own name of a device that it may know by other names. A device that is not there keeps the
/// name.
fn kernel_name(device: &str) -> String {
    let name = LinkCtl::new().and_then(|link| link.name(link.ifindex(device)?));
    name.unwrap_or_else(|_| device.to_owned())
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.device);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_one_port_s() {
        let all = Claims::default();
        let first = all.take("eth1", "phys0").ok();
        assert!(first.is_some() && all.has("eth1"));
        assert_eq!(all.take("eth1", "eth1").err().as_deref(), Some("phys0"));
        drop(first);
        assert!(!all.has("eth1") && all.take("eth1", "eth1").is_ok());
    }
}
