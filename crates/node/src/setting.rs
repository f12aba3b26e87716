//! The settings: each can be read, set, and restored.

use crate::conf::{Conf, mask};
use crate::db::Db;
use crate::eswitch::{Eswitch, cards};
use crate::files::{entries, plain};
use anyhow::{Context, Result, bail};
use heddle_sys::LinkCtl;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A setting of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Target {
    /// A kernel module is loaded. It stays loaded when all other settings are undone.
    Module(String),
    /// A file of `/proc/sys` or `/sys`.
    File(PathBuf),
    /// A key of `Open_vSwitch.other_config`.
    OtherConfig(String),
    /// The driver of a PCI device.
    Driver(String),
    /// The number of virtual functions of a PCI device.
    Functions(String),
    /// The mode of a PCI device's eswitch.
    EswitchMode(String),
    /// Whether that eswitch knows tunnels.
    EswitchEncap(String),
    /// The number of a device's queues.
    Queues(String),
    /// The processors that take a device's interrupts ([`crate::interrupts`]).
    Interrupts(String),
    /// `Interface.type` of a device's port.
    PortType(String),
    /// `Interface.options:xdp-mode` of a device's port.
    XdpMode(String),
    /// Descriptors of a device's receive queues, or of its transmit queues.
    RxRing(String),
    /// See `RxRing`.
    TxRing(String),
    /// The addresses and routes of the device `nic` are at the bridge's own port. Its value is yes or no.
    Bridge {
        /// Name of the bridge.
        name: String,
        /// The device.
        nic: String,
        /// The bridge's `datapath_type`, used if the bridge has to be made.
        #[serde(default)]
        datapath_type: String,
    },
}

/// A target with its wanted value; `None`: not set.
pub(crate) type Wanted = (Target, Option<String>);

/// Option of an Interface.
const XDP_MODE: &str = "xdp-mode";
pub(crate) const YES: &str = "yes";
pub(crate) const NO: &str = "no";

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Module(name) => write!(f, "module {name} loaded"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::OtherConfig(key) => write!(f, "other_config:{key}"),
            Self::Driver(address) => write!(f, "driver of {address}"),
            Self::Functions(address) => write!(f, "virtual functions of {address}"),
            Self::EswitchMode(address) => write!(f, "eswitch mode of {address}"),
            Self::EswitchEncap(address) => write!(f, "eswitch encap-mode of {address}"),
            Self::Queues(name) => write!(f, "queues of {name}"),
            Self::Interrupts(name) => write!(f, "processors of {name}'s interrupts"),
            Self::PortType(name) => write!(f, "type of port {name}"),
            Self::XdpMode(name) => write!(f, "xdp-mode of port {name}"),
            Self::RxRing(name) => write!(f, "receive ring of {name}"),
            Self::TxRing(name) => write!(f, "transmit ring of {name}"),
            Self::Bridge { name, nic, .. } => write!(f, "addresses and routes of {nic} at bridge {name}"),
        }
    }
}

/// The number of [`Target::stage`]s.
pub(crate) const STAGES: usize = 4;

impl Target {
    /// Settings are made in stages, and read anew before each one. A driver makes devices, a mode makes
    /// representors, and a number of queues makes queues and interrupts.
    pub(crate) fn stage(&self) -> usize {
        match self {
            Self::Module(_) | Self::Driver(_) => 0,
            Self::Functions(_) | Self::EswitchMode(_) | Self::EswitchEncap(_) => 1,
            Self::Queues(_) | Self::RxRing(_) | Self::TxRing(_) => 2,
            Self::File(_)
            | Self::Interrupts(_)
            | Self::OtherConfig(_)
            | Self::PortType(_)
            | Self::XdpMode(_)
            | Self::Bridge { .. } => 3,
        }
    }

    /// Whether the network device of the target is there, if it has one, or a driver has the card.
    pub(crate) fn is_possible(&self) -> bool {
        let there = |name: &String| Path::new("/sys/class/net").join(name).exists();
        self.device().is_none_or(there) && self.card().is_none_or(|address| cards().has_driver(address))
    }

    /// The reason if it is not possible.
    pub(crate) fn why_impossible(&self) -> &'static str {
        match self.card() {
            Some(_) => "no driver is bound to such a device",
            None => "there is no such device",
        }
    }

    /// Whether a change may make network devices.
    pub(crate) fn makes_devices(&self) -> bool {
        matches!(self, Self::Driver(_) | Self::Functions(_) | Self::EswitchMode(_))
    }

    /// Whether the kernel may set another value than the wanted one without an error.
    pub(crate) fn has_to_be_checked(&self) -> bool {
        self.device().is_some() || self.card().is_some()
    }

    /// PCI address of the card whose driver has the setting.
    fn card(&self) -> Option<&String> {
        match self {
            Self::Functions(address) | Self::EswitchMode(address) | Self::EswitchEncap(address) => {
                Some(address)
            }
            _ => None,
        }
    }

    fn device(&self) -> Option<&String> {
        match self {
            Self::Queues(name) | Self::Interrupts(name) | Self::RxRing(name) | Self::TxRing(name) => {
                Some(name)
            }
            _ => None,
        }
    }

    /// Whether it has gone, and with it the value to set back: files of queues that are no more.
    pub(crate) fn has_gone(&self) -> bool {
        matches!(self, Self::File(path) if !path.exists())
    }
}

/// All settings of a description, in the order in which they are set. Bridges are last, so other settings
/// fail before an address moves.
pub(crate) fn wanted(conf: &Conf) -> Result<Vec<Wanted>> {
    let mut all: Vec<Wanted> = Vec::new();
    let mut want = |target: Target, value: String| all.push((target, Some(value)));
    for module in &conf.modules {
        want(Target::Module(module.clone()), YES.to_owned());
    }
    if let Some(pages) = &conf.hugepages {
        let path = format!(
            "/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages",
            pages.size_kib
        );
        want(Target::File(path.into()), pages.count.to_string());
    }
    // A device has a name only with its driver.
    for pci in &conf.pci {
        let address = || pci.address.clone();
        if let Some(driver) = &pci.driver {
            want(Target::Driver(address()), driver.clone());
        }
        if let Some(encap) = &pci.eswitch_encap {
            want(Target::EswitchEncap(address()), encap.clone());
        }
        if let Some(mode) = &pci.eswitch_mode {
            want(Target::EswitchMode(address()), mode.clone());
        }
        if let Some(n) = pci.virtual_functions {
            want(Target::Functions(address()), n.to_string());
        }
    }
    for nic in &conf.nic {
        if let Some(n) = nic.queues {
            want(Target::Queues(nic.name.clone()), n.to_string());
        }
        if let Some(cores) = &nic.irq_cores {
            want(Target::Interrupts(nic.name.clone()), mask(cores, true)?);
        }
        let queues = receive_queues(&nic.name);
        if let Some(n) = nic.rx_ring {
            want(Target::RxRing(nic.name.clone()), n.to_string());
        }
        if let Some(n) = nic.tx_ring {
            want(Target::TxRing(nic.name.clone()), n.to_string());
        }
        if let Some(cores) = &nic.rps_cores {
            for queue in &queues {
                want(Target::File(queue.join("rps_cpus")), mask(cores, true)?);
            }
        }
        if let Some(flows) = nic.rfs_flows {
            for queue in &queues {
                let share = flows / u32::try_from(queues.len()).unwrap_or(1);
                want(Target::File(queue.join("rps_flow_cnt")), power_of_two(share));
            }
        }
    }
    let flows: u32 = conf
        .nic
        .iter()
        .filter_map(|n| n.rfs_flows)
        .fold(0, u32::saturating_add);
    if flows > 0 {
        want(
            Target::File("/proc/sys/net/core/rps_sock_flow_entries".into()),
            power_of_two(flows),
        );
    }
    if let Some(cores) = &conf.vduse.irq_cores {
        for file in vduse_queues() {
            want(Target::File(file), mask(cores, true)?);
        }
    }
    let mut keys: BTreeMap<String, String> = conf.datapath.other_config.clone();
    if let Some(cores) = &conf.datapath.cores {
        keys.insert("pmd-cpu-mask".to_owned(), mask(cores, false)?);
    }
    if let Some(us) = conf.datapath.sleep_us {
        keys.insert("pmd-sleep-max".to_owned(), us.to_string());
    }
    for (key, value) in keys {
        want(Target::OtherConfig(key), value);
    }
    for bridge in &conf.bridge {
        let target = Target::Bridge {
            name: bridge.name.clone(),
            nic: bridge.nic.clone(),
            datapath_type: bridge.datapath_type.clone(),
        };
        want(target, YES.to_owned());
        // A kernel without IPv6 has nothing to turn off.
        for (file, value) in crate::bridge::quiet(&bridge.nic).filter(|(file, _)| file.exists()) {
            want(Target::File(file), value.to_owned());
        }
    }
    // The port may be made with the bridge.
    for nic in &conf.nic {
        if let Some(mode) = &nic.xdp_mode {
            all.push((Target::XdpMode(nic.name.clone()), Some(mode.clone())));
        }
        if let Some(kind) = &nic.port_type {
            all.push((Target::PortType(nic.name.clone()), Some(kind.clone())));
        }
    }
    Ok(all)
}

/// Sizes of tables: the kernel rounds them up. 0 turns a table off.
fn power_of_two(n: u32) -> String {
    let size = if n == 0 {
        Some(0)
    } else {
        n.checked_next_power_of_two()
    };
    size.unwrap_or(1 << 31).to_string()
}

fn receive_queues(nic: &str) -> Vec<PathBuf> {
    let mut all = entries(Path::new(&format!("/sys/class/net/{nic}/queues")));
    all.retain(|p| {
        p.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("rx-"))
    });
    all
}

fn vduse_queues() -> Vec<PathBuf> {
    let devices = entries(Path::new("/sys/class/vduse"));
    let queues = devices.iter().flat_map(|device| entries(device));
    queues
        .map(|queue| queue.join("irq_cb_affinity"))
        .filter(|file| file.exists())
        .collect()
}

/// Reads and sets targets. It connects to the database when it first needs it.
pub(crate) struct Machine {
    database: String,
    db: Option<Db>,
}

impl Machine {
    pub(crate) fn new(database: &str) -> Self {
        Self {
            database: database.to_owned(),
            db: None,
        }
    }

    pub(crate) fn db(&mut self) -> Result<&mut Db> {
        if self.db.is_none() {
            self.db = Some(Db::open(&self.database)?);
        }
        self.db.as_mut().context("no database")
    }

    /// The present value of a target; `None`: not set, or not there.
    pub(crate) fn get(&mut self, target: &Target) -> Result<Option<String>> {
        let yes_or_no = |yes: bool| Some(if yes { YES } else { NO }.to_owned());
        let rings = |name: &str| {
            LinkCtl::new()?
                .rings(name)
                .with_context(|| format!("rings of {name}"))
        };
        Ok(match target {
            Target::Module(name) => yes_or_no(Path::new("/sys/module").join(name.replace('-', "_")).exists()),
            Target::File(path) => match std::fs::read_to_string(path) {
                Ok(text) => Some(plain(&text)),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
                Err(e) => return Err(e).with_context(|| path.display().to_string()),
            },
            Target::OtherConfig(key) => self.db()?.other_config(key)?,
            Target::Driver(address) => crate::pci::driver(address)?,
            Target::Functions(address) => Some(cards().functions(address)?.to_string()),
            Target::EswitchMode(address) => Some(cards().eswitch(address, Eswitch::Mode)?),
            Target::EswitchEncap(address) => Some(cards().eswitch(address, Eswitch::Encap)?),
            Target::Queues(name) => LinkCtl::new()?.rx_queues(name).map(|n| n.to_string()),
            Target::Interrupts(name) => crate::interrupts::processors(name)?,
            Target::PortType(name) => self.db()?.interface_type(name)?,
            Target::XdpMode(name) => self.db()?.interface_option(name, XDP_MODE)?,
            Target::RxRing(name) => Some(rings(name)?.rx.to_string()),
            Target::TxRing(name) => Some(rings(name)?.tx.to_string()),
            Target::Bridge { name, nic, .. } => yes_or_no(crate::bridge::is_moved(self.db()?, name, nic)?),
        })
    }

    /// Whether a device whose addresses are yet to move to a bridge is a port already, as after a boot. Then
    /// the switch receives all packets of the device, and the host cannot receive a reply through it.
    pub(crate) fn is_deaf<'a>(&mut self, mut targets: impl Iterator<Item = &'a Target>) -> Result<bool> {
        targets.try_fold(false, |deaf, target| match target {
            Target::Bridge { name, nic, .. } if !deaf => self.db()?.is_port(name, nic),
            _ => Ok(deaf),
        })
    }

    /// Sets a target.
    pub(crate) fn set(&mut self, target: &Target, value: Option<&str>) -> Result<()> {
        let number = || value.and_then(|v| v.parse().ok());
        let rings = |name: &str, rx, tx| LinkCtl::new()?.set_rings(name, rx, tx);
        match (target, value) {
            (Target::Module(name), Some(YES)) => load(name),
            (Target::Module(_), _) => Ok(()),
            (Target::File(path), Some(value)) => {
                std::fs::write(path, value).with_context(|| path.display().to_string())?;
                let now = self.get(target)?.unwrap_or_default();
                if now != plain(value) {
                    bail!("{} is {now}, not {value}: the kernel gave less", path.display());
                }
                Ok(())
            }
            (Target::File(_), None) => Ok(()),
            (Target::OtherConfig(key), value) => self.db()?.set_other_config(key, value),
            (Target::Driver(address), driver) => crate::pci::set_driver(address, driver),
            (Target::Functions(_) | Target::EswitchMode(_) | Target::EswitchEncap(_), None) => Ok(()),
            (Target::Functions(address), Some(_)) => {
                let n = number().context("no number")?;
                cards().set_functions(address, n)
            }
            (Target::EswitchMode(address), Some(mode)) => cards().set_eswitch(address, Eswitch::Mode, mode),
            (Target::EswitchEncap(address), Some(mode)) => cards().set_eswitch(address, Eswitch::Encap, mode),
            (Target::Queues(name), Some(_)) => {
                let n = number().context("no number")?;
                LinkCtl::new()?
                    .set_queues(name, n)
                    .with_context(|| target.to_string())
            }
            (Target::Queues(_) | Target::Interrupts(_), None) => Ok(()),
            (Target::Interrupts(name), Some(masks)) => crate::interrupts::set_processors(name, masks),
            // Without a port there is nothing to set back.
            (Target::PortType(name) | Target::XdpMode(name), None)
                if self.db()?.interface_type(name)?.is_none() =>
            {
                Ok(())
            }
            (Target::PortType(name), kind) => self.db()?.set_interface_type(name, kind.unwrap_or_default()),
            (Target::XdpMode(name), mode) => self.db()?.set_interface_option(name, XDP_MODE, mode),
            (Target::RxRing(name), _) => rings(name, number(), None).with_context(|| target.to_string()),
            (Target::TxRing(name), _) => rings(name, None, number()).with_context(|| target.to_string()),
            (
                Target::Bridge {
                    name,
                    nic,
                    datapath_type,
                },
                Some(YES),
            ) => crate::bridge::there(self.db()?, name, nic, datapath_type),
            (Target::Bridge { name, nic, .. }, _) => crate::bridge::back(self.db()?, name, nic),
        }
    }
}

fn load(name: &str) -> Result<()> {
    let out = Command::new("modprobe")
        .arg(name)
        .output()
        .context("modprobe cannot be run")?;
    if !out.status.success() {
        bail!("module {name}: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_compared_as_people_would() {
        assert_eq!(
            [
                plain("0000,00000003\n"),
                plain("0\n"),
                plain("00,000"),
                plain("100\n")
            ],
            ["3", "0", "0", "100"]
        );
    }

    #[test]
    fn a_file_is_set_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("setting");
        let target = Target::File(path.clone());
        let mut machine = Machine::new("unix:/none");
        assert_eq!(machine.get(&target).unwrap(), None);
        std::fs::write(&path, "7\n").unwrap();
        assert_eq!(machine.get(&target).unwrap().as_deref(), Some("7"));
        machine.set(&target, Some("9")).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "9");
        let missing = Target::File(dir.path().join("no/file"));
        assert!(machine.set(&missing, Some("1")).is_err());
        assert!(
            machine
                .get(&Target::OtherConfig("a".into()))
                .unwrap_err()
                .to_string()
                .contains("unix:/none")
        );
    }
}
