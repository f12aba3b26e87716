//! Keeps the packets that a port receives from the host's own stack, as the kernel's datapath does. This
//! holds from the moment that the port is added until it is removed, also while no switch runs.
//!
//! * A classifier at the device's ingress ([`heddle_sys::ingress`]) takes them, after the packet sockets.
//! * If the kernel has no such classifiers, or another program has the place, a rule of nftables does.
//! * At a device in no bridge, only outer packets of tunnels are kept from it ([`OuterFilter`]).
//! * If neither can be had, the log reports it once, and `Interface.status` shows it as long as it is true.
//!
//! A VLAN that has a device on top of the port's (`eth0.10`) belongs to that device, as in the kernel. The
//! host's stack gets its frames and the port does not ([`VlanSet`]). A VLAN device that was moved to another
//! network namespace is not seen: the port gets a copy of its frames.
//!
//! The filter outlives the process. The next process with the same owner finds the filters of removed ports
//! ([`IngressFilters::keep_only`]). Filters of its own ports stay in place, so there is no gap.

mod nft;

use heddle_sys::batch::StrippedVlan;
use heddle_sys::ingress::{self, Taken, Vlan};
use heddle_sys::{Ingress, LinkCtl, OuterFilter, errno_text};
use nft::Nft;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// VLAN ids.
const VIDS: usize = 4096;
/// A device's filter is not put back again upon a notice of the kernel before this time has passed.
const PUT_BACK_PAUSE: Duration = Duration::from_secs(1);
/// Calls of [`IngressFilters::look`] for a device from one check of its filter to the next.
const LOOK_EVERY: u32 = 8;

/// The VLANs that are not the port's, for its receive queues.
#[derive(Debug)]
pub(super) struct VlanSet {
    /// A bit for each VLAN id: those of tags 0x8100, then those of 0x88a8.
    bits: [[AtomicU64; VIDS / 64]; 2],
}

impl Default for VlanSet {
    fn default() -> Self {
        Self {
            bits: [const { [const { AtomicU64::new(0) }; VIDS / 64] }; 2],
        }
    }
}

impl VlanSet {
    fn kind(tpid: u16) -> usize {
        usize::from(tpid == 0x88a8)
    }
    /// Replaces the set by `vlans`.
    fn set(&self, vlans: &[Vlan]) {
        let mut new = [[0_u64; VIDS / 64]; 2];
        for vlan in vlans {
            let vid = usize::from(vlan.vid) % VIDS;
            new[Self::kind(vlan.tpid)][vid / 64] |= 1 << (vid % 64);
        }
        for (words, new) in self.bits.iter().zip(&new) {
            for (word, new) in words.iter().zip(new) {
                // Relaxed: a queue may see the change a packet later.
                word.store(*new, Ordering::Relaxed);
            }
        }
    }
    /// Whether a frame with this outer tag is not the port's.
    pub(super) fn has(&self, tag: StrippedVlan) -> bool {
        let vid = usize::from(tag.tci) % VIDS;
        let word = &self.bits[Self::kind(tag.tpid)][vid / 64];
        // Relaxed: see `set`.
        word.load(Ordering::Relaxed) & (1 << (vid % 64)) != 0
    }
}

/// One device that is held.
#[derive(Debug)]
struct FilteredDevice {
    ifindex: u32,
    /// The packets that are kept from the host's stack; `None`: all.
    outer: Option<Arc<OuterFilter>>,
    /// The filter is one of nftables.
    by_nft: bool,
    /// The frames that a filter before all others lets through. `None`: an earlier process may have let some
    /// through.
    passed: Option<Passed>,
    looks: u32,
    /// When the filter was last put back.
    put_back: Option<Instant>,
    /// The filter is gone, and could not be put back.
    lost: bool,
}

/// The frames that pass the programs of `hw-offload`.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Passed {
    /// Frames of VLANs that have a device.
    Vlans(Vec<Vlan>),
    /// All frames except outer packets of tunnels.
    AllBut(Arc<OuterFilter>),
}

fn taken(outer: Option<&OuterFilter>) -> Taken<'_> {
    outer.map_or(Taken::All, Taken::Outer)
}

impl FilteredDevice {
    /// Puts the filter back if it was removed. If that fails, or if another program's filter has its place,
    /// the filter is `lost`.
    fn check(&mut self, name: &str, ingress: Option<&Ingress>, nft: &Nft) {
        if self.by_nft {
            self.lost = !nft.held().contains(&self.ifindex);
            return;
        }
        let Some(ingress) = ingress else { return };
        match ingress.hold_again(self.ifindex, taken(self.outer.as_deref())) {
            Ok(true) => {
                self.put_back = Some(Instant::now());
                // The filter of the VLANs may have gone with it.
                self.passed = None;
                log::warn!(
                    target: "netdev_linux",
                    "{name}: the filter that keeps packets from the host's stack was gone; it is installed again"
                );
            }
            Ok(false) if ingress.holder(self.ifindex).is_some() => {
                // The other filter may have gone alone: it is written again.
                self.passed.take_if(|passed| matches!(passed, Passed::AllBut(_)));
            }
            Ok(false) | Err(_) => self.lost = true,
        }
    }

    /// Lets these frames through, in place of others.
    fn pass(&mut self, name: &str, ingress: Option<&Ingress>, passed: Passed) {
        let Some(ingress) = ingress.filter(|_| self.passed.as_ref() != Some(&passed)) else {
            return;
        };
        let done = ingress.pass(
            self.ifindex,
            match &passed {
                Passed::Vlans(vlans) => ingress::Passed::Vlans(vlans),
                Passed::AllBut(filter) => ingress::Passed::AllBut(filter),
            },
        );
        match done {
            Ok(()) => self.passed = Some(passed),
            Err(e) => log::warn!(
                target: "netdev_linux", per_min = 5, burst = 5;
                "{name}: cannot let frames through to the host's stack ({})", errno_text(&e)
            ),
        }
    }
}

/// The filters of one switch, in the network namespace of the thread that made them.
#[derive(Debug)]
pub struct IngressFilters {
    ingress: io::Result<Ingress>,
    nft: Nft,
    /// The devices that are held, by name of the port.
    held: Mutex<HashMap<String, FilteredDevice>>,
    /// VLANs that have a device, by index of the device below.
    vlans: Mutex<BTreeMap<u32, Vec<Vlan>>>,
}

impl IngressFilters {
    /// `owner` is the number by which the next process finds the filters of this one. A note in `rundir`
    /// records whether nftables was needed.
    pub fn new(owner: u64, rundir: &Path) -> Self {
        let folded = (owner ^ (owner >> 32)) & 0xffff_ffff;
        Self {
            ingress: Ingress::new(u32::try_from(folded).unwrap_or(0)),
            nft: Nft::new(owner, rundir),
            held: Mutex::default(),
            vlans: Mutex::default(),
        }
    }

    fn ingress(&self) -> io::Result<&Ingress> {
        let again = |e: &io::Error| io::Error::new(e.kind(), e.to_string());
        self.ingress.as_ref().map_err(again)
    }

    /// Takes device `ifindex` of port `name`, or only its outer packets of tunnels.
    ///
    /// # Errors
    /// One line with the reason why the host's stack gets a copy.
    pub(super) fn hold(
        &self,
        name: &str,
        ifindex: u32,
        outer: Option<&Arc<OuterFilter>>,
    ) -> Result<(), String> {
        let by_tc = self
            .ingress()
            .and_then(|i| i.hold(ifindex, taken(outer.map(|f| &**f))));
        let by_nft = by_tc.is_err();
        if let Err(tc) = by_tc {
            let nft = self.nft.hold(name, ifindex, outer.map(|f| &**f));
            nft.map_err(|nft| format!("tc: {}; nft: {nft}", errno_text(&tc)))?;
        }
        let held = FilteredDevice {
            ifindex,
            outer: outer.cloned(),
            by_nft,
            passed: None,
            looks: 0,
            put_back: None,
            lost: false,
        };
        let before = self.held.lock().insert(name.to_owned(), held);
        if before.is_some_and(|before| before.by_nft && !by_nft && before.ifindex == ifindex) {
            self.nft.release(ifindex);
        }
        Ok(())
    }

    /// Puts the filter back if it was removed, and updates `set` and the filter to the VLAN devices that
    /// there are. `diverted`: another program of the switch takes the device's frames. Returns whether the
    /// filter is in place; if not, [`IngressFilters::hold`] may find another way.
    pub(super) fn look(&self, name: &str, set: &VlanSet, diverted: bool) -> bool {
        let mut all = self.held.lock();
        let Some(held) = all.get_mut(name) else {
            return true;
        };
        let vlans = self.vlans.lock().get(&held.ifindex).cloned().unwrap_or_default();
        set.set(&vlans);
        let ingress = self.ingress().ok();
        let passed = match &held.outer {
            Some(filter) if diverted => Passed::AllBut(filter.clone()),
            None if diverted => Passed::Vlans(vlans),
            _ => Passed::Vlans(Vec::new()),
        };
        held.pass(name, ingress, passed);
        held.looks = held.looks.wrapping_add(1);
        if held.looks.is_multiple_of(LOOK_EVERY) && !held.lost {
            held.check(name, ingress, &self.nft);
        }
        !held.lost
    }

    /// Whether frames of port `name` that are no outer packets of tunnels pass the programs of `hw-offload`.
    pub(super) fn passes_host(&self, name: &str) -> bool {
        let all = self.held.lock();
        let passed = all.get(name).map(|held| (held.by_nft, &held.passed));
        matches!(passed, Some((false, Some(Passed::AllBut(_)))))
    }

    /// Puts the filter of device `ifindex` back, if this switch holds the device and the filter was removed.
    /// If the filter was put back less than [`PUT_BACK_PAUSE`] ago, [`IngressFilters::look`] does it later:
    /// another program may remove the filter each time.
    pub fn put_back(&self, ifindex: u32) {
        let mut all = self.held.lock();
        let Some((name, held)) = all.iter_mut().find(|(_, held)| held.ifindex == ifindex) else {
            return;
        };
        let recent = |at: Instant| at.elapsed() < PUT_BACK_PAUSE;
        if held.put_back.is_some_and(recent) {
            // The next look checks it.
            held.looks = LOOK_EVERY - 1;
            return;
        }
        let (passed, ingress) = (held.passed.clone(), self.ingress().ok());
        held.check(name, ingress, &self.nft);
        // Without it, the program takes the host's packets as well.
        if let Some(passed) = passed.filter(|passed| matches!(passed, Passed::AllBut(_))) {
            held.pass(name, ingress, passed);
        }
    }

    /// Gives the device of port `name` back to the host's stack.
    pub(super) fn release(&self, name: &str) {
        let Some(held) = self.held.lock().remove(name) else {
            return;
        };
        if held.by_nft {
            self.nft.release(held.ifindex);
        }
        if let Ok(ingress) = self.ingress()
            && let Err(e) = ingress.release(held.ifindex)
        {
            log::warn!(target: "netdev_linux", "{name}: cannot remove its ingress filter ({})", errno_text(&e));
        }
    }

    /// Reads the list of VLAN devices.
    pub fn read_vlans(&self) {
        let Ok(devices) = self.ingress().and_then(Ingress::vlan_devices) else {
            return;
        };
        let mut new: BTreeMap<u32, Vec<Vlan>> = BTreeMap::new();
        for device in devices {
            new.entry(device.lower).or_default().push(device.vlan);
        }
        new.values_mut().for_each(|vlans| vlans.sort_unstable());
        *self.vlans.lock() = new;
    }

    /// Logs the devices whose filter has another owner. If that owner no longer runs, an operator has to
    /// remove the filter. If the device becomes a port, the filter is taken over ([`Ingress::hold`]).
    pub fn warn_of_others(&self) {
        let (Ok(ingress), Ok(links)) = (self.ingress(), LinkCtl::new()) else {
            return;
        };
        for device in ingress
            .held()
            .unwrap_or_default()
            .iter()
            .filter(|device| !device.ours)
        {
            let Ok(name) = links.name(device.ifindex) else {
                continue;
            };
            log::warn!(
                target: "netdev_linux", per_min = 60, burst = 60;
                "{name}: the host's stack receives nothing from this device, because of a filter of a switch \
                 whose run directory is another one or was lost; if no such switch runs, remove the filter \
                 with: {}", Ingress::removal(&name)
            );
        }
    }

    /// Gives back the devices that this process holds, and with `left` also those that an earlier one has
    /// held, if their names are not `wanted`. Returns how many.
    pub fn keep_only(&self, wanted: impl Fn(&str) -> bool, left: bool) -> usize {
        let ours: Vec<String> = self.held.lock().keys().cloned().collect();
        let unwanted = ours.iter().filter(|name| !wanted(name));
        let mut n = unwanted.map(|name| self.release(name)).count();
        let Some(links) = LinkCtl::new().ok().filter(|_| left) else {
            return n;
        };
        let other = |ifindex: &u32| !links.name(*ifindex).is_ok_and(|name| wanted(&name));
        if let Ok(ingress) = self.ingress() {
            let held = ingress.held().unwrap_or_default().into_iter();
            for device in held.filter(|device| device.ours && other(&device.ifindex)) {
                n += usize::from(ingress.release(device.ifindex).is_ok());
            }
        }
        for ifindex in self.nft.held().into_iter().filter(other) {
            self.nft.release(ifindex);
            n += 1;
        }
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_it_was_given() {
        let set = VlanSet::default();
        let tag = |tpid, tci| StrippedVlan { tpid, tci };
        let vlan = |tpid, vid| Vlan { tpid, vid };
        set.set(&[vlan(0x8100, 10), vlan(0x88a8, 4095)]);
        // Priority and DEI are no part of it.
        for (tpid, tci, has) in [
            (0x8100, 10, true),
            (0x8100, 0xe00a, true),
            (0x8100, 11, false),
            (0x88a8, 10, false),
            (0x88a8, 0x0fff, true),
            (0x8100, 0x0fff, false),
        ] {
            assert_eq!(set.has(tag(tpid, tci)), has, "{tpid:x} {tci:x}");
        }
        set.set(&[]);
        assert!(!set.has(tag(0x8100, 10)));
    }
}
