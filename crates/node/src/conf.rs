//! The machine's description: a TOML file. `docs/node.md` is its schema.

use crate::eswitch::{ENCAPS, MODES};
use anyhow::{Context, Result, bail, ensure};
use heddle_sys::names::{is_absolute, is_device, is_plain};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Kernel modules to load.
    #[serde(default)]
    pub(crate) modules: Vec<String>,
    /// `ADDRESS` (a ping) or `HOST:PORT` (a TCP connection): it has to reply before and after.
    pub(crate) check: Option<String>,
    #[serde(default = "check_seconds")]
    pub(crate) check_seconds: u64,
    #[serde(default = "database")]
    pub(crate) database: String,
    #[serde(default)]
    pub(crate) datapath: Datapath,
    #[serde(default)]
    pub(crate) bridge: Vec<Bridge>,
    #[serde(default)]
    pub(crate) nic: Vec<Nic>,
    #[serde(default)]
    pub(crate) pci: Vec<Pci>,
    #[serde(default)]
    pub(crate) vduse: Vduse,
    pub(crate) hugepages: Option<HugePages>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Datapath {
    /// Processors of the workers, for example `"2-3,6"`.
    pub(crate) cores: Option<String>,
    /// `pmd-sleep-max`, microseconds.
    pub(crate) sleep_us: Option<u32>,
    /// Further keys of `Open_vSwitch.other_config`.
    #[serde(default)]
    pub(crate) other_config: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bridge {
    pub(crate) name: String,
    /// The device whose addresses and routes the bridge gets.
    pub(crate) nic: String,
    /// `Bridge.datapath_type`, if the bridge has to be made.
    #[serde(default)]
    pub(crate) datapath_type: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nic {
    pub(crate) name: String,
    /// The number of its queues.
    pub(crate) queues: Option<u32>,
    /// Processors that take its interrupts.
    pub(crate) irq_cores: Option<String>,
    /// `Interface.type` of its port.
    pub(crate) port_type: Option<String>,
    /// `options:xdp-mode` of its port.
    pub(crate) xdp_mode: Option<String>,
    /// Descriptors of its receive queues.
    pub(crate) rx_ring: Option<u32>,
    /// Descriptors of its transmit queues.
    pub(crate) tx_ring: Option<u32>,
    /// Processors that handle the packets it receives.
    pub(crate) rps_cores: Option<String>,
    /// RFS entries of all queues together: flows whose packets go to the processor of their application.
    pub(crate) rfs_flows: Option<u32>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pci {
    /// `0000:05:00.0`.
    pub(crate) address: String,
    /// The driver that gets the device.
    pub(crate) driver: Option<String>,
    /// The number of its virtual functions.
    pub(crate) virtual_functions: Option<u32>,
    /// Mode of its eswitch.
    pub(crate) eswitch_mode: Option<String>,
    /// `encap-mode` of its eswitch: whether it knows tunnels.
    pub(crate) eswitch_encap: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Vduse {
    /// Processors that take the interrupts of VDUSE devices.
    pub(crate) irq_cores: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HugePages {
    pub(crate) size_kib: u32,
    pub(crate) count: u32,
}

fn check_seconds() -> u64 {
    30
}
fn database() -> String {
    "unix:/var/run/openvswitch/db.sock".to_owned()
}

impl Conf {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        let mut conf: Self = toml::from_str(text)?;
        // /sys and devlink write them in lower case.
        conf.pci
            .iter_mut()
            .for_each(|pci| pci.address.make_ascii_lowercase());
        let devices = conf
            .bridge
            .iter()
            .flat_map(|b| [&b.name, &b.nic])
            .chain(conf.nic.iter().map(|n| &n.name));
        for name in devices {
            ensure!(
                is_device(name),
                "{name:?} is not a name of a device (15 characters at most, no blank, /, : or %)"
            );
        }
        conf.check_cards()?;
        for pci in &conf.pci {
            let address = &pci.address;
            let parts = address
                .split([':', '.'])
                .map(|p| (p.len(), p.bytes().all(|b| b.is_ascii_hexdigit())));
            ensure!(
                parts.eq([(4, true), (2, true), (2, true), (1, true)]),
                "{address:?} is not an address of a PCI device such as 0000:05:00.0"
            );
            pci.check()?;
        }
        for module in &conf.modules {
            ensure!(
                is_plain(module),
                "{module:?} is not a name of a module (letters, digits, _ . -)"
            );
        }
        if let Some(path) = conf.database.strip_prefix("unix:") {
            ensure!(is_absolute(path), "database {path:?} is not an absolute path");
        }
        for bridge in &conf.bridge {
            ensure!(
                bridge.name != bridge.nic,
                "bridge {} cannot be its own nic",
                bridge.name
            );
        }
        if !conf.bridge.is_empty() && conf.check.is_none() {
            bail!("check is missing: with a bridge, it has to be an address that replies afterwards");
        }
        let cores = [&conf.datapath.cores, &conf.vduse.irq_cores].into_iter();
        for list in cores
            .chain(conf.nic.iter().flat_map(|n| [&n.rps_cores, &n.irq_cores]))
            .flatten()
        {
            self::cores(list)?;
        }
        Ok(conf)
    }

    /// Refuses settings of cards that contradict each other, or can never be in force.
    fn check_cards(&self) -> Result<()> {
        for (n, pci) in self.pci.iter().enumerate() {
            let address = &pci.address;
            let before = self.pci.iter().take(n);
            ensure!(
                before.clone().all(|p| p.address != *address),
                "there are two [[pci]] for {address}"
            );
        }
        for (n, nic) in self.nic.iter().enumerate() {
            let name = &nic.name;
            ensure!(
                self.nic.iter().take(n).all(|other| other.name != *name),
                "there are two [[nic]] for {name}"
            );
            for (key, value) in [
                ("queues", nic.queues),
                ("rx_ring", nic.rx_ring),
                ("tx_ring", nic.tx_ring),
            ] {
                ensure!(value != Some(0), "{key} of nic {name}: 0 is not possible");
            }
            if let Some(mode) = &nic.xdp_mode {
                ensure!(
                    XDP_MODES.contains(&mode.as_str()),
                    "xdp_mode {mode:?} of nic {name}: expected {}",
                    XDP_MODES.join(", ")
                );
            }
            let kind = nic.port_type.as_deref();
            if let Some(kind) = kind {
                ensure!(
                    PORT_TYPES.contains(&kind),
                    "port_type {kind:?} of nic {name}: expected {}; a port of type dpdk names its device by an \
                     option",
                    PORT_TYPES.join(", ")
                );
            }
            let is_afxdp = kind.is_some_and(|kind| kind.starts_with("afxdp"));
            ensure!(
                nic.queues.is_none() || !is_afxdp,
                "queues of nic {name}: a port of type afxdp sets them itself (options:n_rxq of the Interface)"
            );
            ensure!(
                nic.xdp_mode.is_none() || kind.is_none() || is_afxdp,
                "xdp_mode of nic {name}: it is for port_type afxdp"
            );
        }
        Ok(())
    }
}

impl Pci {
    fn check(&self) -> Result<()> {
        let address = &self.address;
        if let Some(driver) = &self.driver {
            ensure!(
                is_plain(driver),
                "{driver:?} is not a name of a driver (letters, digits, _ . -)"
            );
        }
        let modes = [
            ("eswitch_mode", &self.eswitch_mode, MODES),
            ("eswitch_encap", &self.eswitch_encap, ENCAPS),
        ];
        for (key, mode, all) in modes {
            let known = mode.as_deref().is_none_or(|mode| all.contains(&mode));
            ensure!(known, "{key} of {address}: expected {}", all.join(" or "));
        }
        let any = self.driver.is_some() || self.virtual_functions.is_some();
        ensure!(
            any || self.eswitch_mode.is_some() || self.eswitch_encap.is_some(),
            "[[pci]] {address}: it has no setting"
        );
        Ok(())
    }
}

/// Values of `options:xdp-mode`.
const XDP_MODES: [&str; 4] = ["best-effort", "native-with-zerocopy", "native", "generic"];
/// Types of ports whose name is the device's.
const PORT_TYPES: [&str; 3] = ["system", "afxdp", "afxdp-nonpmd"];

/// The processors of a list such as `2-3,6`, in order, each once.
pub(crate) fn cores(list: &str) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for part in list.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|n| *n < 4096);
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => all.extend(first..=last),
            _ => bail!("{list:?} is not a list of processors such as \"2-3,6\""),
        }
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// A list of processors as the kernel and `pmd-cpu-mask` want it: a mask in hexadecimal. The kernel wants a
/// comma after each 32 processors.
pub(crate) fn mask(list: &str, with_commas: bool) -> Result<String> {
    let cores = cores(list)?;
    let words = cores.last().map_or(1, |last| last / 32 + 1);
    let word = |w: u32| {
        cores
            .iter()
            .filter(|c| **c / 32 == w)
            .fold(0_u32, |bits, c| bits | 1 << (c % 32))
    };
    let mut text = format!("{:x}", word(words - 1));
    for w in (0..words - 1).rev() {
        text += if with_commas { "," } else { "" };
        text += &format!("{:08x}", word(w));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors() {
        assert_eq!(cores("2-4, 0,3").unwrap(), [0, 2, 3, 4]);
        assert_eq!(
            (
                mask("0-1", true).unwrap().as_str(),
                mask("33", false).unwrap().as_str()
            ),
            ("3", "200000000")
        );
        assert_eq!(mask("0,33,64", true).unwrap(), "1,00000002,00000001");
        for bad in ["", "a", "3-1", "-1", "1-", "99999"] {
            assert!(cores(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_read_and_what_is_refused() {
        let all = "modules = ['vduse']\ncheck = '10.0.0.1'\n[datapath]\ncores = '1'\nother_config = { a = 'b' }\n\
            [[bridge]]\nname = 'br-ex'\nnic = 'eth0'\n[[nic]]\nname = 'eth0'\nrx_ring = 4096\n[hugepages]\nsize_kib = 2048\ncount = 3\n";
        let conf = Conf::parse(all).unwrap();
        assert_eq!((conf.bridge.len(), conf.check_seconds), (1, 30));
        Conf::parse("").unwrap();
        for (bad, words) in [
            ("modules = 'x'", "invalid type"),
            ("module = ['x']", "unknown field"),
            ("modules = ['../x']", "module"),
            ("modules = ['-r']", "module"),
            ("database = 'unix:../db.sock'", "absolute path"),
            ("[[nic]]\nname = 'all'", "name of a device"),
            ("[[bridge]]\nname = 'b'", "missing field"),
            ("[[bridge]]\nname = 'b'\nnic = 'eth0'", "check is missing"),
            (
                "check = 'a'\n[[bridge]]\nname = 'a/b'\nnic = 'eth0'",
                "name of a device",
            ),
            ("check = 'a'\n[[bridge]]\nname = 'b'\nnic = 'b'", "its own nic"),
            ("[datapath]\ncores = 'x'", "processors"),
            (
                "[[nic]]\nname = 'e'\nqueues = 0",
                "queues of nic e: 0 is not possible",
            ),
            (
                "[[nic]]\nname = 'e'\ntx_ring = 0",
                "tx_ring of nic e: 0 is not possible",
            ),
            ("[[nic]]\nname = 'e'\nqueues = -1", "invalid value"),
            ("[[nic]]\nname = 'e'\n[[nic]]\nname = 'e'", "two [[nic]] for e"),
            ("[[nic]]\nname = 'e'\nxdp_mode = 'skb'", "expected best-effort"),
            (
                "[[nic]]\nname = 'e'\nport_type = 'dpdk'",
                "names its device by an option",
            ),
            (
                "[[nic]]\nname = 'e'\nport_type = 'afxdp'\nqueues = 2",
                "options:n_rxq",
            ),
            (
                "[[nic]]\nname = 'e'\nport_type = 'system'\nxdp_mode = 'native'",
                "it is for port_type afxdp",
            ),
            ("[[nic]]\nname = 'e'\nirq_cores = ''", "not a list of processors"),
            (
                "[[pci]]\naddress = '0000:0a:00.0'\ndriver = 'x'\n[[pci]]\naddress = '0000:0A:00.0'\ndriver = 'y'",
                "two [[pci]] for 0000:0a:00.0",
            ),
            (
                "[[pci]]\naddress = '0000:0a:00.0'\neswitch_mode = 'on'",
                "eswitch_mode of 0000:0a:00.0: expected legacy or switchdev",
            ),
            (
                "[[pci]]\naddress = '0000:0a:00.0'\neswitch_encap = 'yes'",
                "expected none or basic",
            ),
            (
                "[[pci]]\naddress = '0000:0a:00.0'",
                "[[pci]] 0000:0a:00.0: it has no setting",
            ),
            ("[", ""),
        ] {
            let e = format!("{:#}", Conf::parse(bad).unwrap_err());
            assert!(e.contains(words), "{bad}: {e}");
        }
    }
}
