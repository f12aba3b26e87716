//! Settings of devices and of the kernel that are varied, and how to restore them.
//!
//! A setting is read before it is first changed, and the keeper is notified how to restore it. The devices of
//! both end points are set alike.

use crate::keeper::{Keeper, Undo, run, words};
use crate::place::Place;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Entries of the kernel's table of flows for RFS, as its documentation suggests.
const RFS_ENTRIES: u32 = 32_768;

/// Names of the factors, for help texts.
pub const FACTORS: &str = "rfs, rps, gro, gso, tso (off, on), mtu, ring (a number)";

/// Parses a factor and its values, such as `rfs=off,on`.
///
/// # Errors
/// No such factor, no such value.
pub fn parse(text: &str) -> Result<(String, Vec<String>)> {
    let Some((factor, values)) = text.split_once('=') else {
        bail!("{text:?}: a factor and its values, rfs=off,on; there are {FACTORS}");
    };
    let values: Vec<String> = values.split(',').map(str::to_owned).collect();
    for value in &values {
        let good = match factor {
            "rfs" | "rps" | "gro" | "gso" | "tso" => ["off", "on"].contains(&value.as_str()),
            "mtu" => value.parse::<u32>().is_ok_and(|n| (576..=65_535).contains(&n)),
            "ring" => value.parse::<u32>().is_ok_and(|n| (1..=65_536).contains(&n)),
            _ => bail!("{factor:?} cannot be varied; there are {FACTORS}"),
        };
        if !good {
            bail!("{factor}={value}: no such value; there are {FACTORS}");
        }
    }
    Ok((factor.to_owned(), values))
}

/// All combinations of the values of all factors; one empty combination without factors.
pub fn combinations(factors: &[(String, Vec<String>)]) -> Vec<Vec<(String, String)>> {
    let mut all = vec![Vec::new()];
    for (factor, values) in factors {
        let with = |before: &Vec<(String, String)>| {
            let before = before.clone();
            values.iter().map(move |v| {
                let mut more = before.clone();
                more.push((factor.clone(), v.clone()));
                more
            })
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}

/// The device of an end point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    place: Place,
    name: String,
}

impl Device {
    /// The device of that name at `place`.
    pub fn of(place: &Place, name: &str) -> Self {
        Self {
            place: place.clone(),
            name: name.to_owned(),
        }
    }

    /// The device by which `place` reaches `address`, or which has it.
    ///
    /// # Errors
    /// The place is on another host; there is no route.
    pub fn towards(place: &Place, address: IpAddr) -> Result<Self> {
        if !place.is_local() {
            bail!("settings of another host cannot be varied from here");
        }
        let none = Self::of(place, "");
        let text = run(&none.command("ip -j addr"))?;
        let links: Value = serde_json::from_str(&text).context("ip -j addr")?;
        let own = links.as_array().into_iter().flatten().find(|link| {
            let mut all = link["addr_info"].as_array().into_iter().flatten();
            all.any(|a| a["local"] == address.to_string())
        });
        let name = match own {
            Some(link) => link["ifname"].clone(),
            None => {
                let text = run(&none.command(&format!("ip -j route get {address}")))?;
                let routes: Value = serde_json::from_str(&text).context("ip -j route get")?;
                routes[0]["dev"].clone()
            }
        };
        match name.as_str() {
            Some(name) => Ok(Self::of(place, name)),
            None => bail!("no device leads to {address}"),
        }
    }

    /// The command, run in the device's namespace.
    fn command(&self, text: &str) -> Vec<String> {
        let mut argv = match self.place.netns() {
            Some(path) => vec!["nsenter".to_owned(), format!("--net={}", path.display())],
            None => Vec::new(),
        };
        argv.extend(words(text));
        argv
    }

    /// A shell command that sees the sysfs of the device's namespace.
    fn sysfs(&self, script: &str) -> Vec<String> {
        let mut argv = self.command("unshare -m sh -c");
        argv.push(format!("mount -t sysfs sysfs /sys && {script}"));
        argv
    }

    /// Files of the receive queues, with their contents.
    fn queues(&self, file: &str) -> Result<Vec<(String, String)>> {
        let script = format!("cd /sys/class/net/{}/queues && grep -H . rx-*/{file}", self.name);
        let text = run(&self.sysfs(&script)).with_context(|| format!("{} has no {file}", self.name))?;
        let line = |l: &str| {
            l.split_once(':')
                .map(|(f, v)| (f.to_owned(), v.trim().to_owned()))
        };
        Ok(text.lines().filter_map(line).collect())
    }

    fn write_queue(&self, file: &str, value: &str) -> Vec<String> {
        self.sysfs(&format!(
            "echo {value} > /sys/class/net/{}/queues/{file}",
            self.name
        ))
    }

    fn feature(word: &str) -> &'static str {
        match word {
            "gro" => "generic-receive-offload",
            "gso" => "generic-segmentation-offload",
            _ => "tcp-segmentation-offload",
        }
    }

    /// Commands that restore everything that the factor sets.
    fn undo(&self, factor: &str) -> Result<Vec<Vec<String>>> {
        let name = &self.name;
        Ok(match factor {
            "mtu" => {
                let text = run(&self.command(&format!("ip -j link show dev {name}")))?;
                let links: Value = serde_json::from_str(&text).context("ip -j link")?;
                let mtu = links[0]["mtu"].as_u64().context("a device without an MTU")?;
                vec![self.command(&format!("ip link set dev {name} mtu {mtu}"))]
            }
            "ring" => {
                let text = run(&self.command(&format!("ethtool -g {name}")))
                    .with_context(|| format!("{name} does not report the size of its rings"))?;
                let now = text
                    .split_once("Current hardware settings")
                    .map_or("", |(_, t)| t);
                let of = |key: &str| {
                    let value = now
                        .lines()
                        .find_map(|l| l.strip_prefix(key))?
                        .trim()
                        .parse::<u32>();
                    value.ok()
                };
                let (Some(rx), Some(tx)) = (of("RX:"), of("TX:")) else {
                    bail!("{name} does not report the size of its rings");
                };
                vec![self.command(&format!("ethtool -G {name} rx {rx} tx {tx}"))]
            }
            "rps" | "rfs" => {
                let file = if factor == "rps" {
                    "rps_cpus"
                } else {
                    "rps_flow_cnt"
                };
                let queues = self.queues(file)?;
                queues
                    .iter()
                    .map(|(file, value)| self.write_queue(file, value))
                    .collect()
            }
            _ => {
                let text = run(&self.command(&format!("ethtool -k {name}")))?;
                let feature = Self::feature(factor);
                let line = text
                    .lines()
                    .find_map(|l| l.trim().strip_prefix(feature)?.strip_prefix(':'));
                match line.map(|l| l.split_whitespace().collect::<Vec<_>>()).as_deref() {
                    Some([value]) => vec![self.command(&format!("ethtool -K {name} {factor} {value}"))],
                    _ => bail!("{factor} of {name} cannot be changed"),
                }
            }
        })
    }

    fn set(&self, factor: &str, value: &str) -> Result<()> {
        let name = &self.name;
        match factor {
            "mtu" => run(&self.command(&format!("ip link set dev {name} mtu {value}"))).map(drop),
            "ring" => run(&self.command(&format!("ethtool -G {name} rx {value} tx {value}"))).map(drop),
            "rps" | "rfs" => {
                let file = if factor == "rps" {
                    "rps_cpus"
                } else {
                    "rps_flow_cnt"
                };
                let queues = self.queues(file)?;
                let value = match (factor, value) {
                    ("rps", "on") => mask(&heddle_sys::cpu::online()?),
                    ("rfs", "on") => (RFS_ENTRIES / u32::try_from(queues.len().max(1))?).to_string(),
                    _ => "0".to_owned(),
                };
                for (file, _) in &queues {
                    run(&self.write_queue(file, &value))?;
                }
                Ok(())
            }
            _ => run(&self.command(&format!("ethtool -K {name} {factor} {value}"))).map(drop),
        }
    }
}

/// Processors as the kernel's masks: `ff,ffffffff`.
fn mask(processors: &[usize]) -> String {
    let words = processors.iter().max().map_or(1, |m| m / 32 + 1);
    let mut all = vec![0_u32; words];
    for p in processors {
        if let Some(word) = all.get_mut(p / 32) {
            *word |= 1 << (p % 32);
        }
    }
    let texts: Vec<String> = all.iter().rev().map(|w| format!("{w:08x}")).collect();
    texts.join(",")
}

/// Values that are set now, and whether earlier values are known to the keeper.
#[derive(Debug, Default)]
pub struct Settings {
    /// The present value by device and factor, once it was changed.
    now: BTreeMap<(String, String), String>,
    /// Whether the keeper knows the kernel's table of flows.
    table: bool,
}

impl Settings {
    /// Sets a contender's settings on its devices.
    ///
    /// # Errors
    /// A device does not have the setting, or refuses the value.
    pub fn apply(
        &mut self,
        keeper: &mut Keeper,
        devices: &[Device],
        settings: &[(String, String)],
    ) -> Result<()> {
        for (factor, value) in settings {
            if factor == "rfs" {
                self.table(keeper, value == "on")?;
            }
            for device in devices {
                let key = (format!("{:?} {}", device.place, device.name), factor.clone());
                if self.now.get(&key) == Some(value) {
                    continue;
                }
                if !self.now.contains_key(&key) {
                    for undo in device.undo(factor)? {
                        keeper.will(&Undo::Run(undo))?;
                    }
                }
                device
                    .set(factor, value)
                    .with_context(|| format!("{factor}={value} on {}", device.name))?;
                self.now.insert(key, value.clone());
            }
        }
        Ok(())
    }

    /// The kernel's one table of flows for RFS.
    fn table(&mut self, keeper: &mut Keeper, on: bool) -> Result<()> {
        const NAME: &str = "net.core.rps_sock_flow_entries";
        if !self.table {
            let before = run(&words(&format!("sysctl -n {NAME}")))
                .context("RFS is set where the machine's own namespace is")?;
            let undo = format!("sysctl -qw {NAME}={}", before.trim());
            keeper.will(&Undo::Run(words(&undo)))?;
            self.table = true;
        }
        let entries = if on { RFS_ENTRIES } else { 0 };
        run(&words(&format!("sysctl -qw {NAME}={entries}"))).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_and_values() {
        let (factor, values) = parse("rfs=off,on").unwrap();
        assert_eq!((factor.as_str(), values.len()), ("rfs", 2));
        for bad in [
            "rfs",
            "rfs=maybe",
            "mtu=10",
            "ring=0",
            "colour=red",
            "mtu=1500,",
            "gro=on,off,on;reboot",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn each_with_each() {
        let factors = [parse("rfs=off,on").unwrap(), parse("mtu=1500,9000").unwrap()];
        let all = combinations(&factors);
        assert_eq!(all.len(), 4);
        assert_eq!(
            all[1],
            [("rfs".into(), "off".into()), ("mtu".into(), "9000".into())]
        );
        assert_eq!(combinations(&[]), [Vec::new()]);
    }

    #[test]
    fn masks() {
        assert_eq!(mask(&[0, 1]), "00000003");
        assert_eq!(mask(&[0, 33]), "00000002,00000001");
    }
}
