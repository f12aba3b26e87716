//! Receive packet steering (`rps_cpus`, kernel documentation "Scaling in the Linux Networking Stack").
//!
//! A device without hardware queues hands a packet over on whichever processor its sender happened to run.
//! Two processors that send on one TCP connection (the application on one, acknowledgements processed on
//! another) then race, and packets overtake each other. Steering by flow hash sends each flow through one
//! processor and keeps its order.

use std::io;
use std::path::PathBuf;

/// The steering files of the receive queues of `device`.
fn queues(device: &str) -> io::Result<Vec<PathBuf>> {
    if !crate::tap::valid_name(device) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(format!("/sys/class/net/{device}/queues"))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("rx-") {
            files.push(entry.path().join("rps_cpus"));
        }
    }
    Ok(files)
}

/// Whether no receive queue of `device` is steered.
///
/// # Errors
/// `NotFound` when the device is not in the namespace that `/sys` shows.
pub fn is_off(device: &str) -> io::Result<bool> {
    is(device, &[])
}

/// Whether all receive queues of `device` are steered to the processors `cpus`, and to no others.
///
/// # Errors
/// See [`is_off`].
pub fn is(device: &str, cpus: &[usize]) -> io::Result<bool> {
    let wanted = cpu_mask(cpus);
    for file in queues(device)? {
        if plain(&std::fs::read_to_string(file)?) != plain(&wanted) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A mask without leading zeros; how many the kernel shows depends on the number of its processors.
fn plain(mask: &str) -> &str {
    mask.trim().trim_start_matches(['0', ','])
}

/// Steers all receive queues of `device` to the processors `cpus`; none turns steering off.
///
/// # Errors
/// `NotFound` when the device is not in the namespace that `/sys` shows; `PermissionDenied`.
pub fn set(device: &str, cpus: &[usize]) -> io::Result<()> {
    let mask = cpu_mask(cpus);
    for file in queues(device)? {
        std::fs::write(file, &mask)?;
    }
    Ok(())
}

/// A processor set as sysfs writes it: words of 32 bits in hexadecimal, highest first, comma between.
fn cpu_mask(cpus: &[usize]) -> String {
    let words = cpus.iter().max().map_or(1, |max| max / 32 + 1);
    let mut bits = vec![0_u32; words];
    for &cpu in cpus {
        if let Some(word) = bits.get_mut(cpu / 32) {
            *word |= 1 << (cpu % 32);
        }
    }
    bits.iter()
        .rev()
        .map(|w| format!("{w:08x}"))
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks() {
        assert_eq!(cpu_mask(&[]), "00000000");
        assert_eq!(cpu_mask(&[0, 5]), "00000021");
        assert_eq!(cpu_mask(&[31, 32, 64]), "00000001,00000001,80000000");
    }

    #[test]
    fn names_are_checked() {
        assert!(set("../lo", &[]).is_err());
        assert!(is_off("no-such-dev0").is_err());
        assert!(is_off("lo").is_ok());
    }
}
