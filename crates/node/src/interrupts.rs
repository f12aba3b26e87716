//! The processors that take a network card's interrupts.
//!
//! Their text is one mask, if all interrupts have the same one, otherwise `NUMBER=MASK` for each interrupt.
//! Numbers are not the same after the next boot: only interrupts that the card has are set.

use crate::files::{entries, plain};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// The masks; `None`: the card has no interrupts of its own.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn processors(nic: &str) -> Result<Option<String>> {
    Card::of(nic).read()
}

/// Sets the masks.
///
/// # Errors
/// The kernel refuses, or there are no interrupts.
pub(crate) fn set_processors(nic: &str, masks: &str) -> Result<()> {
    Card::of(nic).write(masks)
}

struct Card {
    /// Numbers of its interrupts.
    numbers: Vec<String>,
    /// `/proc/irq`.
    interrupts: PathBuf,
}

impl Card {
    fn of(nic: &str) -> Self {
        Self::at(
            &Path::new("/sys/class/net").join(nic).join("device"),
            "/proc/irq".into(),
        )
    }

    fn at(device: &Path, interrupts: PathBuf) -> Self {
        let mut all = entries(&device.join("msi_irqs"));
        if all.is_empty() {
            // The interrupts of a virtio device are those of its PCI device.
            all = entries(&device.join("../msi_irqs"));
        }
        let names = all.iter().filter_map(|irq| irq.file_name()?.to_str());
        let is_there = |number: &&str| interrupts.join(number).join("smp_affinity").exists();
        Self {
            numbers: names.filter(is_there).map(str::to_owned).collect(),
            interrupts,
        }
    }

    fn file(&self, number: &str) -> PathBuf {
        self.interrupts.join(number).join("smp_affinity")
    }

    fn read(&self) -> Result<Option<String>> {
        let mut masks = Vec::new();
        for number in &self.numbers {
            let file = self.file(number);
            let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            masks.push(plain(&text));
        }
        let Some(first) = masks.first() else {
            return Ok(None);
        };
        if masks.iter().all(|mask| mask == first) {
            return Ok(Some(first.clone()));
        }
        let pairs = self.numbers.iter().zip(&masks);
        let pairs: Vec<String> = pairs.map(|(number, mask)| format!("{number}={mask}")).collect();
        Ok(Some(pairs.join(" ")))
    }

    fn write(&self, masks: &str) -> Result<()> {
        ensure!(
            !self.numbers.is_empty(),
            "the device has no interrupts of its own"
        );
        for number in &self.numbers {
            let mask = match masks.contains('=') {
                false => Some(masks),
                true => masks
                    .split(' ')
                    .filter_map(|pair| pair.split_once('='))
                    .find(|(n, _)| n == number)
                    .map(|(_, mask)| mask),
            };
            let Some(mask) = mask else { continue };
            let file = self.file(number);
            std::fs::write(&file, mask).with_context(|| format!("{}: {mask:?}", file.display()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn masks_are_read_and_set() {
        let dir = tempfile::tempdir().unwrap();
        let (pci, irq) = (dir.path().join("0000:05:00.0"), dir.path().join("irq"));
        for (number, mask) in [("24", "00000003\n"), ("25", "3\n")] {
            fs::create_dir_all(pci.join("msi_irqs")).unwrap();
            fs::write(pci.join("msi_irqs").join(number), "msix\n").unwrap();
            fs::create_dir_all(irq.join(number)).unwrap();
            fs::write(irq.join(number).join("smp_affinity"), mask).unwrap();
        }
        // The kernel has no file for an interrupt that is not requested.
        fs::write(pci.join("msi_irqs/26"), "msix\n").unwrap();
        fs::create_dir_all(pci.join("virtio2")).unwrap();
        let card = Card::at(&pci, irq.clone());
        assert_eq!(card.read().unwrap().as_deref(), Some("3"));
        card.write("1").unwrap();
        assert_eq!(card.read().unwrap().as_deref(), Some("1"));
        fs::write(irq.join("25/smp_affinity"), "00000002\n").unwrap();
        let before = card.read().unwrap().unwrap();
        assert_eq!(before, "24=1 25=2");
        card.write("3").unwrap();
        card.write(&format!("{before} 99=f")).unwrap();
        assert_eq!(card.read().unwrap(), Some(before));
        let virtio = Card::at(&pci.join("virtio2"), irq.clone());
        assert_eq!(virtio.read().unwrap().as_deref(), Some("24=1 25=2"));
        let none = Card::at(&dir.path().join("veth"), irq);
        assert_eq!(none.read().unwrap(), None);
        assert!(none.write("1").unwrap_err().to_string().contains("no interrupts"));
    }
}
