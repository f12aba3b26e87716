//! Drivers of PCI devices: a card is given to its kernel driver, or back to a driver of user space.

use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};

const DEVICES: &str = "/sys/bus/pci/devices";
const BUS: &str = "/sys/bus/pci";

/// The driver that has the device; `None`: none has.
///
/// # Errors
/// There is no such device.
pub(crate) fn driver(address: &str) -> Result<Option<String>> {
    Bus(Path::new(BUS)).driver(address)
}

/// Gives the device to a driver, whose module is loaded; `None`: to none.
///
/// # Errors
/// The kernel refuses, or the driver does not take the device.
pub(crate) fn set_driver(address: &str, driver: Option<&str>) -> Result<()> {
    Bus(Path::new(BUS)).set_driver(address, driver)
}

struct Bus<'a>(&'a Path);

impl Bus<'_> {
    fn device(&self, address: &str) -> Result<PathBuf> {
        let device = self.0.join("devices").join(address);
        ensure!(device.exists(), "there is no PCI device {address} in {DEVICES}");
        Ok(device)
    }

    fn driver(&self, address: &str) -> Result<Option<String>> {
        let link = fs::read_link(self.device(address)?.join("driver"));
        let name = link.ok().and_then(|l| l.file_name()?.to_str().map(str::to_owned));
        Ok(name)
    }

    fn set_driver(&self, address: &str, driver: Option<&str>) -> Result<()> {
        let device = self.device(address)?;
        let write = |path: PathBuf, text: &str| {
            fs::write(&path, text).with_context(|| format!("{}: {text:?}", path.display()))
        };
        // The kernel gives a device with an override to that driver alone.
        write(device.join("driver_override"), driver.unwrap_or("\n"))?;
        if self.driver(address)?.is_some() {
            write(device.join("driver/unbind"), address)?;
        }
        let Some(driver) = driver else { return Ok(()) };
        write(self.0.join("drivers_probe"), address)?;
        match self.driver(address)? {
            Some(now) if now == driver => Ok(()),
            Some(now) => bail!("{address} has driver {now}, not {driver}"),
            None => bail!("no driver {driver} takes {address}: is its module loaded?"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_read_and_written() {
        let dir = tempfile::tempdir().unwrap();
        let bus = Bus(dir.path());
        let device = dir.path().join("devices/0000:05:00.0");
        fs::create_dir_all(&device).unwrap();
        fs::create_dir_all(dir.path().join("drivers/vfio-pci")).unwrap();
        assert!(bus.driver("0000:06:00.0").is_err());
        assert_eq!(bus.driver("0000:05:00.0").unwrap(), None);
        std::os::unix::fs::symlink(dir.path().join("drivers/vfio-pci"), device.join("driver")).unwrap();
        assert_eq!(bus.driver("0000:05:00.0").unwrap().as_deref(), Some("vfio-pci"));
        // Plain files in place of the kernel's: the driver does not change, and that is an error.
        let why = bus
            .set_driver("0000:05:00.0", Some("ixgbe"))
            .unwrap_err()
            .to_string();
        assert_eq!(why, "0000:05:00.0 has driver vfio-pci, not ixgbe");
        let read = |file: &str| fs::read_to_string(dir.path().join(file)).unwrap();
        assert_eq!(read("devices/0000:05:00.0/driver_override"), "ixgbe");
        assert_eq!(read("drivers/vfio-pci/unbind"), "0000:05:00.0");
        assert_eq!(read("drivers_probe"), "0000:05:00.0");
        fs::remove_file(device.join("driver")).unwrap();
        let why = bus
            .set_driver("0000:05:00.0", Some("ixgbe"))
            .unwrap_err()
            .to_string();
        assert!(why.starts_with("no driver ixgbe takes"), "{why}");
        bus.set_driver("0000:05:00.0", None).unwrap();
        assert_eq!(read("devices/0000:05:00.0/driver_override"), "\n");
    }
}
