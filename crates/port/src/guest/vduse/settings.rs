//! Options of a VDUSE port.

use super::VduseContext;
use crate::PortError;
use crate::virtio::DEFAULT_MTU;
use heddle_vduse::{MAX_SIZE, MIN_SIZE, Spec, Wanted};
use std::collections::BTreeMap;
use std::path::Path;

/// The directory of the devices.
const DIRECTORY: &str = "/dev/vduse/";
/// Default number of entries of a ring (`options:queue-size`): room for some GSO packets of 64 KiB in buffers
/// of 1.5 KiB.
const SIZE: u16 = 1024;
/// Bounds of the kernel for `options:bounce-size`, bytes.
const BOUNCE: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 30;

/// Whether a `dpdkvhostuserclient` port with these options is one of this type.
pub(crate) fn is_vduse(options: &BTreeMap<String, String>) -> bool {
    options
        .get("vhost-server-path")
        .is_some_and(|p| p.starts_with(DIRECTORY))
}

/// The device's file.
pub(super) fn path(spec: &Spec) -> String {
    format!("{DIRECTORY}{}", spec.name)
}

/// The device that port `name` is configured for.
pub(super) fn spec(
    name: &str,
    options: &BTreeMap<String, String>,
    context: &VduseContext,
) -> Result<Spec, PortError> {
    let bad = |what: String| PortError::Config(format!("{name}: {what}"));
    let path = options.get("vhost-server-path").filter(|p| !p.is_empty());
    let device = match path {
        None => name,
        Some(path) => path
            .strip_prefix(DIRECTORY)
            .ok_or_else(|| bad(format!("vhost-server-path={path} is not in {DIRECTORY}")))?,
    };
    let plain = !device.is_empty() && device.len() <= 255 && !device.contains(['/', '\0', ' ']);
    if !plain || matches!(device, "control" | "." | "..") {
        return Err(bad(format!("\"{device}\" is no name for a VDUSE device")));
    }
    let size = match options.get("queue-size") {
        None => SIZE,
        Some(text) => text
            .trim()
            .parse()
            .ok()
            .filter(|n: &u16| n.is_power_of_two() && (MIN_SIZE..=MAX_SIZE).contains(n))
            .ok_or_else(|| {
                bad(format!(
                    "queue-size={text} is no power of two from {MIN_SIZE} to {MAX_SIZE}"
                ))
            })?,
    };
    let packed = match options.get("packed-ring").map(String::as_str) {
        None | Some("false") => false,
        Some("true") => true,
        Some(text) => return Err(bad(format!("packed-ring={text} is neither true nor false"))),
    };
    let bounce_bytes = options.get("bounce-size").map(|text| {
        let bytes = text.trim().parse().ok().filter(|n| BOUNCE.contains(n));
        bytes.ok_or_else(|| {
            bad(format!(
                "bounce-size={text} is no number of bytes from {} to {}",
                BOUNCE.start(),
                BOUNCE.end()
            ))
        })
    });
    let irq_mask = options.get("irq-cpus").map(|text| {
        mask(text).ok_or_else(|| bad(format!("irq-cpus={text} is no list of processors (0-3,5)")))
    });
    let mtu = context.mtu.unwrap_or(DEFAULT_MTU);
    Ok(Spec {
        name: device.to_owned(),
        size,
        packed,
        bounce_bytes: bounce_bytes.transpose()?,
        irq_mask: irq_mask.transpose()?,
        journal: crate::guest::journal(&context.rundir, name),
        wanted: Wanted {
            mac: context.mac.unwrap_or_else(|| own_mac(device)),
            mtu: u16::try_from(mtu)
                .ok()
                .filter(|m| *m >= crate::virtio::MIN_MTU)
                .ok_or_else(|| bad(format!("an MTU of {mtu} is not possible")))?,
            link_up: true,
        },
    })
}

/// Warnings about options that have no effect, for the log.
pub(super) fn warnings(options: &BTreeMap<String, String>) -> Vec<String> {
    const KNOWN: [&str; 6] = [
        "vhost-server-path",
        "tx-retries-max",
        "queue-size",
        "packed-ring",
        "bounce-size",
        "irq-cpus",
    ];
    let unknown = options.keys().filter(|key| !KNOWN.contains(&key.as_str()));
    unknown
        .map(|key| match key.as_str() {
            "n_rxq" | "n_txq" | "vhost-max-queue-pairs" => {
                format!("options:{key} is not used: a VDUSE device has one queue pair")
            }
            _ => format!("options:{key} is not known to ports of this type"),
        })
        .collect()
}

/// A list of processors (`0-3,5`) as the kernel's mask: words of 32 bits, the highest first.
fn mask(list: &str) -> Option<String> {
    let mut words: Vec<u32> = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last > 8191 {
            return None;
        }
        for cpu in first..=last {
            if words.len() <= cpu / 32 {
                words.resize(cpu / 32 + 1, 0);
            }
            *words.get_mut(cpu / 32)? |= 1 << (cpu % 32);
        }
    }
    let words: Vec<String> = words.iter().rev().map(|w| format!("{w:08x}")).collect();
    Some(words.join(","))
}

/// The address of a device without a configured one. It is the same after each restart on this machine, since
/// the driver has read it then.
fn own_mac(device: &str) -> [u8; 6] {
    let machine = std::fs::read(Path::new("/etc/machine-id")).unwrap_or_default();
    let bytes = machine.iter().chain(device.as_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)
    }); // FNV-1a
    let [a, b, c, d, e, f, ..] = hash.to_be_bytes();
    [a & 0xfc | 2, b, c, d, e, f]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_become_masks() {
        for (list, wanted) in [
            ("0", Some("00000001")),
            ("0-3,5", Some("0000002f")),
            ("33", Some("00000002,00000000")),
            ("3-1", None),
            ("", None),
            ("a", None),
            ("0-99999999", None),
        ] {
            assert_eq!(mask(list).as_deref(), wanted, "{list:?}");
        }
    }

    #[test]
    fn devices_of_the_same_name_have_the_same_address() {
        assert_eq!(own_mac("pod1"), own_mac("pod1"));
        assert_ne!(own_mac("pod1"), own_mac("pod2"));
        assert_eq!(own_mac("pod1")[0] & 3, 2);
    }
}
