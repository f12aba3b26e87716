//! `options:dpdk-devargs` of a `dpdk` port, read as the name of the kernel's device that it means.

use std::fs;
use std::path::Path;

/// The device that the text names.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Named {
    /// Address of a PCI device.
    Pci(String),
    /// Hardware address.
    Mac(String),
    /// Name of a network device.
    Netdev(String),
}

/// Drivers by which a device is given to a program, and its network device goes away.
const USERSPACE_DRIVERS: [&str; 3] = ["vfio-pci", "igb_uio", "uio_pci_generic"];

/// Name of the kernel's network device for `devargs`.
///
/// # Errors
/// One sentence: the text makes no sense here, or there is no such device.
pub(super) fn netdev_of(devargs: &str) -> Result<String, String> {
    find(Path::new("/sys"), &parse(devargs)?)
}

fn parse(devargs: &str) -> Result<Named, String> {
    let refused = |why: &str| Err(format!("options:dpdk-devargs={devargs}: {why}"));
    let mut parts = devargs.split(',').map(str::trim);
    let first = parts.next().unwrap_or_default();
    let value = |key: &str| {
        let pairs = devargs.split(',').filter_map(|p| p.trim().split_once('='));
        pairs.clone().find(|(k, _)| *k == key).map(|(_, v)| v.to_owned())
    };
    if value("representor").is_some() {
        return refused("representors are the kernel's devices here: name one by net_af_xdp0,iface=DEVICE");
    }
    if first == "class=eth" {
        return match value("mac") {
            Some(mac) => Ok(Named::Mac(mac.to_ascii_lowercase())),
            None => refused("mac=ADDRESS is missing"),
        };
    }
    if ["net_af_xdp", "eth_af_xdp", "net_af_packet", "eth_af_packet"]
        .iter()
        .any(|driver| first.starts_with(driver))
    {
        return match value("iface") {
            Some(name) => Ok(Named::Netdev(name)),
            None => refused("iface=DEVICE is missing"),
        };
    }
    let bus = first.strip_prefix("pci:").unwrap_or(first);
    match pci_address(bus) {
        Some(address) => Ok(Named::Pci(address)),
        None => refused(
            "expected a PCI address, class=eth,mac=ADDRESS or net_af_xdp0,iface=DEVICE: there are no drivers of DPDK \
             here",
        ),
    }
}

/// The address with its domain: `0000:05:00.0`.
fn pci_address(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let full = if text.matches(':').count() == 1 {
        format!("0000:{text}")
    } else {
        text
    };
    let (domain, rest) = full.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let hex = |text: &str, len: usize| text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit());
    (hex(domain, 4) && hex(bus, 2) && hex(device, 2) && hex(function, 1)).then_some(full)
}

/// Names in a directory, in order.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn find(sys: &Path, device: &Named) -> Result<String, String> {
    match device {
        Named::Netdev(name) => Ok(name.clone()),
        Named::Mac(mac) => {
            let class = sys.join("class/net");
            let address = |name: &String| fs::read_to_string(class.join(name).join("address"));
            let found = names(&class)
                .into_iter()
                .filter(|name| class.join(name).join("device").exists())
                .find(|name| address(name).is_ok_and(|a| a.trim() == mac));
            found.ok_or_else(|| format!("no network card of the kernel has the address {mac}"))
        }
        Named::Pci(address) => {
            let device = sys.join("bus/pci/devices").join(address);
            if !device.exists() {
                return Err(format!("there is no PCI device {address}"));
            }
            let driver = fs::read_link(device.join("driver")).ok();
            let driver = driver
                .as_ref()
                .and_then(|d| d.file_name()?.to_str())
                .unwrap_or("no driver");
            if USERSPACE_DRIVERS.contains(&driver) || driver == "no driver" {
                return Err(format!(
                    "{address} is bound to {driver}: give it back to the kernel's driver ([[pci]] in the file of 'heddle \
                     node', or 'driverctl unset-override {address}')"
                ));
            }
            match names(&device.join("net")).as_slice() {
                [] => Err(format!("{address} has no network device (driver {driver})")),
                [name] => Ok(name.clone()),
                several => Err(format!(
                    "{address} has the network devices {}: name one by net_af_xdp0,iface=DEVICE",
                    several.join(", ")
                )),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_devices() {
        for (text, expected) in [
            ("0000:05:00.0", Named::Pci("0000:05:00.0".into())),
            ("05:00.1", Named::Pci("0000:05:00.1".into())),
            ("pci:0000:AF:1f.7,promisc=1", Named::Pci("0000:af:1f.7".into())),
            (
                "class=eth,mac=00:11:22:33:44:5F",
                Named::Mac("00:11:22:33:44:5f".into()),
            ),
            ("net_af_xdp0,iface=eth1", Named::Netdev("eth1".into())),
            (
                "net_af_packet1,iface=eth2,blocksz=4096",
                Named::Netdev("eth2".into()),
            ),
            ("eth_af_xdp7, start_queue=1, iface=p0", Named::Netdev("p0".into())),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        for (text, why) in [
            ("", "expected a PCI address"),
            ("eth1", "expected a PCI address"),
            ("net_null0", "expected a PCI address"),
            ("00000:05:00.0", "expected a PCI address"),
            ("class=eth", "mac=ADDRESS is missing"),
            ("net_af_xdp0", "iface=DEVICE is missing"),
            (
                "0000:05:00.0,representor=[0-3]",
                "representors are the kernel's devices",
            ),
        ] {
            assert!(parse(text).unwrap_err().contains(why), "{text}");
        }
    }

    #[test]
    fn devices_are_found_in_sysfs() {
        let dir = tempfile::tempdir().unwrap();
        let pci = |address: &str, driver: Option<&str>, netdevs: &[&str]| {
            let device = dir.path().join("bus/pci/devices").join(address);
            fs::create_dir_all(&device).unwrap();
            if let Some(driver) = driver {
                std::os::unix::fs::symlink(format!("../../drivers/{driver}"), device.join("driver")).unwrap();
            }
            for name in netdevs {
                fs::create_dir_all(device.join("net").join(name)).unwrap();
            }
        };
        pci("0000:05:00.0", Some("ixgbe"), &["eth1"]);
        pci("0000:05:00.1", Some("vfio-pci"), &[]);
        pci("0000:06:00.0", Some("mlx5_core"), &["p0", "p0_rep0"]);
        pci("0000:07:00.0", Some("nvme"), &[]);
        pci("0000:08:00.0", None, &[]);
        let class = dir.path().join("class/net");
        for (name, card) in [("veth0", false), ("eth1", true)] {
            fs::create_dir_all(class.join(name)).unwrap();
            fs::write(class.join(name).join("address"), "00:11:22:33:44:55\n").unwrap();
            if card {
                fs::create_dir_all(class.join(name).join("device")).unwrap();
            }
        }
        let found = |devargs: &str| find(dir.path(), &parse(devargs).unwrap());
        assert_eq!(found("05:00.0"), Ok("eth1".into()));
        assert_eq!(found("class=eth,mac=00:11:22:33:44:55"), Ok("eth1".into()));
        for (devargs, why) in [
            ("05:00.1", "is bound to vfio-pci: give it back"),
            ("06:00.0", "the network devices p0, p0_rep0"),
            ("07:00.0", "has no network device (driver nvme)"),
            ("08:00.0", "is bound to no driver"),
            ("09:00.0", "there is no PCI device 0000:09:00.0"),
            (
                "class=eth,mac=00:11:22:33:44:56",
                "no network card of the kernel has the address",
            ),
        ] {
            assert!(found(devargs).unwrap_err().contains(why), "{devargs}");
        }
    }
}
