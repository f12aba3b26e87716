//! Cards in sysfs: virtual functions and their representors.
//!
//! A card in switchdev mode has a netdev for each of its ports. All of them have the card's
//! `phys_switch_id`. `phys_port_name` of a representor is `pf0vf3` (function 0 of the card, virtual function
//! 3), or only the number with older drivers.

use std::fs;
use std::path::{Path, PathBuf};

/// A virtual function of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vf {
    /// Netdev of the physical function.
    pub(crate) pf: String,
    /// Number of the virtual function at its physical function.
    pub(crate) number: u32,
}

/// Path of sysfs: `/sys`, except in tests.
#[derive(Clone, Debug)]
pub(crate) struct Sysfs(PathBuf);

impl Default for Sysfs {
    fn default() -> Self {
        Self("/sys".into())
    }
}

/// Whether a text is a PCI address: `0000:03:00.2`.
pub(crate) fn is_pci(text: &str) -> bool {
    let digits = |part: &str, len: usize| part.len() == len && part.bytes().all(|b| b.is_ascii_hexdigit());
    let Some((slot, function)) = text.rsplit_once('.') else {
        return false;
    };
    let parts: Vec<&str> = slot.split(':').collect();
    digits(function, 1)
        && matches!(parts[..], [domain, bus, device]
        if digits(domain, 4) && digits(bus, 2) && digits(device, 2))
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Text of an attribute, trimmed; `None`: the driver does not have it, or it is empty.
fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|t| !t.is_empty())
}

fn target(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned())
}

impl Sysfs {
    #[cfg(test)]
    fn at(root: &Path) -> Self {
        Self(root.to_owned())
    }

    fn pci(&self, address: &str) -> PathBuf {
        self.0.join("bus/pci/devices").join(address)
    }

    /// Whether there is such a PCI device.
    pub(crate) fn has_pci(&self, address: &str) -> bool {
        self.pci(address).exists()
    }

    /// The netdev of a PCI device in this network namespace.
    pub(crate) fn netdev(&self, address: &str) -> Option<String> {
        names(&self.pci(address).join("net")).into_iter().next()
    }

    /// The driver of a PCI device.
    pub(crate) fn driver(&self, address: &str) -> Option<String> {
        target(&self.pci(address).join("driver"))
    }

    /// The virtual function with this PCI address. `None`: the device is none, or its physical function has
    /// no netdev in this network namespace.
    pub(crate) fn vf(&self, address: &str) -> Option<Vf> {
        let parent = target(&self.pci(address).join("physfn"))?;
        let dir = self.pci(&parent);
        let number = names(&dir).into_iter().find_map(|name| {
            let number = name.strip_prefix("virtfn")?.parse().ok()?;
            (target(&dir.join(&name)).as_deref() == Some(address)).then_some(number)
        })?;
        Some(Vf {
            pf: self.netdev_of_card(&parent)?,
            number,
        })
    }

    /// The netdev of a physical function. Some drivers put the representors beside it.
    fn netdev_of_card(&self, address: &str) -> Option<String> {
        let all = names(&self.pci(address).join("net"));
        let is_representor = |name: &&String| {
            text(&self.0.join("class/net").join(name).join("phys_port_name"))
                .is_some_and(|n| n.contains("vf"))
        };
        all.iter()
            .find(|name| !is_representor(name))
            .or(all.first())
            .cloned()
    }

    /// Name of the representor of a virtual function.
    pub(crate) fn representor(&self, address: &str, vf: &Vf) -> Option<String> {
        let class = self.0.join("class/net");
        let card = text(&class.join(&vf.pf).join("phys_switch_id"))?;
        let function = target(&self.pci(address).join("physfn"))?
            .rsplit_once('.')?
            .1
            .to_owned();
        let wanted = [format!("pf{function}vf{}", vf.number), vf.number.to_string()];
        names(&class).into_iter().find(|name| {
            let is = |file: &str| text(&class.join(name).join(file));
            *name != vf.pf
                && is("phys_switch_id").as_ref() == Some(&card)
                && is("phys_port_name").is_some_and(|port| {
                    // Some drivers write the number of the controller before it (`c0pf0vf1`).
                    let port = match port.strip_prefix("c0") {
                        Some(rest) if rest.starts_with("pf") => rest.to_owned(),
                        _ => port,
                    };
                    wanted.contains(&port)
                })
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A card with two virtual functions. `ports`: `phys_port_name` of their representors.
    pub(crate) fn card(ports: [&str; 2]) -> (tempfile::TempDir, Sysfs) {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let pci = "bus/pci/devices";
        for (address, netdev) in [
            ("0000:03:00.1", "ens1"),
            ("0000:03:02.0", "ens1v0"),
            ("0000:03:02.1", "ens1v1"),
        ] {
            write(&format!("{pci}/{address}/net/{netdev}/ifindex"), "1");
        }
        for (number, vf) in ["0000:03:02.0", "0000:03:02.1"].iter().enumerate() {
            symlink("../0000:03:00.1", dir.path().join(pci).join(vf).join("physfn")).unwrap();
            let link = dir.path().join(format!("{pci}/0000:03:00.1/virtfn{number}"));
            symlink(format!("../{vf}"), link).unwrap();
        }
        symlink(
            "../../drivers/igbvf",
            dir.path().join(pci).join("0000:03:02.0/driver"),
        )
        .unwrap();
        write("class/net/ens1/phys_switch_id", "aa01\n");
        write("class/net/ens1/phys_port_name", "p0\n");
        // Another card has ports of the same names.
        write("class/net/a0/phys_switch_id", "bb01\n");
        write("class/net/a0/phys_port_name", ports[1]);
        for (netdev, port) in [("ens1_0", ports[0]), ("ens1_1", ports[1])] {
            write(&format!("class/net/{netdev}/phys_switch_id"), "aa01\n");
            write(&format!("class/net/{netdev}/phys_port_name"), port);
        }
        let sysfs = Sysfs::at(dir.path());
        (dir, sysfs)
    }

    #[test]
    fn representors_of_virtual_functions() {
        for ports in [["pf1vf0\n", "pf1vf1\n"], ["0\n", "1\n"], ["c0pf1vf0", "c0pf1vf1"]] {
            let (_dir, sysfs) = card(ports);
            let vf = sysfs.vf("0000:03:02.1").unwrap();
            assert_eq!((vf.pf.as_str(), vf.number), ("ens1", 1));
            assert_eq!(
                sysfs.representor("0000:03:02.1", &vf).as_deref(),
                Some("ens1_1"),
                "{ports:?}"
            );
            assert_eq!(sysfs.netdev("0000:03:02.1").as_deref(), Some("ens1v1"));
        }
    }

    #[test]
    fn devices_without_a_representor() {
        // The representors belong to another physical function.
        let (dir, sysfs) = card(["pf0vf0", "pf0vf1"]);
        let vf = sysfs.vf("0000:03:02.0").unwrap();
        assert_eq!(sysfs.representor("0000:03:02.0", &vf), None);
        assert_eq!(sysfs.driver("0000:03:02.0").as_deref(), Some("igbvf"));
        // Legacy mode has no switch id.
        fs::remove_file(dir.path().join("class/net/ens1/phys_switch_id")).unwrap();
        assert_eq!(sysfs.representor("0000:03:02.0", &vf), None);
        assert_eq!(sysfs.vf("0000:03:00.1"), None);
        assert!(!sysfs.has_pci("0000:03:05.0"));
    }

    #[test]
    fn pci_addresses() {
        for good in ["0000:03:00.1", "abcd:ff:1f.7"] {
            assert!(is_pci(good), "{good}");
        }
        for bad in [
            "",
            "03:00.1",
            "0000:03:00",
            "0000:03:00.1/..",
            "../../x.1",
            "mlx5_core.sf.2",
            "0000:3:00.1",
        ] {
            assert!(!is_pci(bad), "{bad}");
        }
    }
}
