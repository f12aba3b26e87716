//! Virtual functions of a card, and the mode of the switch inside it (eswitch).
//!
//! The number of functions is a file of the kernel. The mode is set by `devlink`, a program of iproute2. In
//! the mode `switchdev` each function has a device on the host, its representor, which is a port of the
//! switch.
//!
//! **Order.** Some drivers change the mode only while there are no functions. So a change of the mode removes
//! the functions and makes them again. The kernel changes a number other than zero only by way of zero.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Values of `eswitch_mode`, and of `eswitch_encap`.
pub(crate) const MODES: [&str; 2] = ["legacy", "switchdev"];
pub(crate) const ENCAPS: [&str; 2] = ["none", "basic"];

/// A setting of devlink, by its name there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Eswitch {
    Mode,
    Encap,
}

impl Eswitch {
    fn name(self) -> &'static str {
        match self {
            Self::Mode => "mode",
            Self::Encap => "encap-mode",
        }
    }
}

/// The cards of the machine.
pub(crate) fn cards() -> Cards<'static> {
    Cards {
        devices: Path::new("/sys/bus/pci/devices"),
        devlink: Path::new("devlink"),
    }
}

/// Cards, and the program that sets their modes.
pub(crate) struct Cards<'a> {
    devices: &'a Path,
    devlink: &'a Path,
}

impl Cards<'_> {
    /// Whether a driver has the card at this PCI address.
    pub(crate) fn has_driver(&self, address: &str) -> bool {
        self.devices.join(address).join("driver").exists()
    }

    fn file(&self, address: &str, name: &str) -> PathBuf {
        self.devices.join(address).join(name)
    }

    fn number(&self, address: &str, name: &str) -> Result<u32> {
        let path = self.file(address, name);
        let text = fs::read_to_string(&path)
            .with_context(|| format!("{address} has no virtual functions (no {})", path.display()))?;
        text.trim().parse().with_context(|| path.display().to_string())
    }

    /// The number of virtual functions.
    ///
    /// # Errors
    /// The card cannot have any.
    pub(crate) fn functions(&self, address: &str) -> Result<u32> {
        self.number(address, "sriov_numvfs")
    }

    /// Sets the number of virtual functions. If it differs, all functions are removed and `n` are made.
    ///
    /// # Errors
    /// The card cannot have `n`, or the driver refuses.
    pub(crate) fn set_functions(&self, address: &str, n: u32) -> Result<()> {
        let max = self.number(address, "sriov_totalvfs")?;
        ensure!(
            n <= max,
            "virtual_functions={n} of {address}: the card has at most {max}"
        );
        let now = self.functions(address)?;
        let path = self.file(address, "sriov_numvfs");
        let write = |n: u32| {
            fs::write(&path, n.to_string()).with_context(|| format!("{n} virtual functions of {address}"))
        };
        if now == n {
            return Ok(());
        }
        if now != 0 {
            write(0)?;
        }
        if n != 0 { write(n) } else { Ok(()) }
    }

    /// Value of a setting of the card's eswitch.
    ///
    /// # Errors
    /// The card has no such switch, or there is no `devlink`.
    pub(crate) fn eswitch(&self, address: &str, what: Eswitch) -> Result<String> {
        let device = format!("pci/{address}");
        let text = self.devlink(address, &["-j", "dev", "eswitch", "show", &device])?;
        let shown: Value =
            serde_json::from_str(&text).with_context(|| format!("devlink printed {text:?}"))?;
        let value = shown["dev"][&device][what.name()].as_str();
        match value {
            Some(value) => Ok(value.to_owned()),
            None => bail!(
                "the driver of {address} has no {} of an eswitch: remove the setting",
                what.name()
            ),
        }
    }

    /// Changes a setting of the card's eswitch.
    ///
    /// # Errors
    /// The driver refuses. The card then has its functions again.
    pub(crate) fn set_eswitch(&self, address: &str, what: Eswitch, value: &str) -> Result<()> {
        let device = format!("pci/{address}");
        let set = ["dev", "eswitch", "set", &device, what.name(), value];
        let functions = match what {
            Eswitch::Mode => self.functions(address).unwrap_or(0),
            Eswitch::Encap => 0,
        };
        if functions == 0 {
            return self.devlink(address, &set).map(drop);
        }
        self.set_functions(address, 0)?;
        let done = self.devlink(address, &set).map(drop);
        let again = self.set_functions(address, functions);
        match done {
            Err(why) => Err(why),
            Ok(()) => again,
        }
    }

    fn devlink(&self, address: &str, args: &[&str]) -> Result<String> {
        let out = Command::new(self.devlink)
            .args(args)
            .output()
            .context("devlink (iproute2) cannot be run")?;
        if !out.status.success() {
            let why = String::from_utf8_lossy(&out.stderr);
            bail!("eswitch of {address}: {}", why.trim());
        }
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const CARD: &str = "0000:03:00.0";
    /// A double of `devlink` for one card. It keeps the settings in files, writes down its arguments, and
    /// refuses a mode as the driver `ice` does: while there are functions.
    const DOUBLE: &str = r#"#!/bin/sh
cd "$(dirname "$0")" && echo "$*" >>calls
case "$*" in
*show\ pci/0000:03:00.0)
	echo "{\"dev\":{\"pci/0000:03:00.0\":{\"mode\":\"$(cat mode)\",\"inline-mode\":\"none\",\"encap-mode\":\"$(cat encap-mode)\"}}}" ;;
*set\ pci/0000:03:00.0\ mode\ *)
	[ "$(cat devices/0000:03:00.0/sriov_numvfs)" = 0 ] || { echo 'kernel answers: Operation not supported' >&2; exit 1; }
	echo "$6" >mode ;;
*set\ pci/0000:03:00.0\ encap-mode\ *) echo "$6" >encap-mode ;;
*) echo 'kernel answers: No such device' >&2; exit 1 ;;
esac
"#;

    fn machine() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        fs::create_dir_all(dir.path().join("devices").join(CARD)).unwrap();
        write("devlink", DOUBLE);
        write("mode", "legacy\n");
        write("encap-mode", "none\n");
        write("devices/0000:03:00.0/sriov_numvfs", "0\n");
        write("devices/0000:03:00.0/sriov_totalvfs", "8\n");
        fs::set_permissions(dir.path().join("devlink"), fs::Permissions::from_mode(0o755)).unwrap();
        dir
    }

    #[test]
    fn a_mode_is_changed_while_there_are_no_functions() {
        let dir = machine();
        let (devices, devlink) = (dir.path().join("devices"), dir.path().join("devlink"));
        let cards = Cards {
            devices: &devices,
            devlink: &devlink,
        };
        assert!(!cards.has_driver(CARD));
        cards.set_functions(CARD, 4).unwrap();
        assert_eq!(cards.functions(CARD).unwrap(), 4);
        cards.set_eswitch(CARD, Eswitch::Encap, "basic").unwrap();
        cards.set_eswitch(CARD, Eswitch::Mode, "switchdev").unwrap();
        assert_eq!(cards.eswitch(CARD, Eswitch::Mode).unwrap(), "switchdev");
        assert_eq!(cards.eswitch(CARD, Eswitch::Encap).unwrap(), "basic");
        assert_eq!(cards.functions(CARD).unwrap(), 4);
        let calls = fs::read_to_string(dir.path().join("calls")).unwrap();
        assert_eq!(
            calls.lines().collect::<Vec<_>>(),
            [
                "dev eswitch set pci/0000:03:00.0 encap-mode basic",
                "dev eswitch set pci/0000:03:00.0 mode switchdev",
                "-j dev eswitch show pci/0000:03:00.0",
                "-j dev eswitch show pci/0000:03:00.0",
            ]
        );
    }

    #[test]
    fn refusals_name_the_card() {
        let dir = machine();
        let (devices, devlink) = (dir.path().join("devices"), dir.path().join("devlink"));
        let cards = Cards {
            devices: &devices,
            devlink: &devlink,
        };
        let text = |e: anyhow::Error| format!("{e:#}");
        assert_eq!(
            text(cards.set_functions(CARD, 9).unwrap_err()),
            "virtual_functions=9 of 0000:03:00.0: the card has at most 8"
        );
        let other = "0000:04:00.0";
        assert!(text(cards.functions(other).unwrap_err()).contains("has no virtual functions"));
        assert_eq!(
            text(cards.eswitch(other, Eswitch::Mode).unwrap_err()),
            "eswitch of 0000:04:00.0: kernel answers: No such device"
        );
        // A driver that refuses gets its functions back.
        cards.set_functions(CARD, 2).unwrap();
        fs::write(dir.path().join("devlink"), "#!/bin/sh\necho no >&2\nexit 1\n").unwrap();
        let why = cards.set_eswitch(CARD, Eswitch::Mode, "switchdev").unwrap_err();
        assert_eq!(text(why), "eswitch of 0000:03:00.0: no");
        assert_eq!(cards.functions(CARD).unwrap(), 2);
        let none = Cards {
            devlink: Path::new("/no/devlink"),
            ..cards
        };
        assert!(text(none.eswitch(CARD, Eswitch::Mode).unwrap_err()).contains("cannot be run"));
    }
}
