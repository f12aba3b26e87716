//! The queues of a port's device are opened, again where needed.

use super::device::{Device, Wish};
use super::options::Options;
use super::{AfxdpPort, PortState};
use crate::PortError;
use heddle_xsk::{MAX_QUEUES, PassItem, Tx};

impl AfxdpPort {
    /// Opens `n` queues of the device, in place of those that are open.
    pub(super) fn open_device(&self, state: &mut PortState, n: usize) -> Result<(), PortError> {
        self.senders.set(Vec::new());
        state.lost += state.device.as_ref().map_or(0, Device::losses);
        state.device = None;
        state.stale = false;
        let n = n.clamp(1, Self::MAX_RXQ);
        let opened = self.is_free().and_then(|()| {
            self.fit(state, n);
            self.try_modes(state.options, n, &state.pass)
        });
        match &opened {
            Err(why) => (state.failure, state.failed_n) = (Some(why.to_string()), n),
            Ok(_) if n >= state.failed_n => state.failure = None,
            // The datapath has fallen back to one queue.
            Ok(_) => {}
        }
        let (device, senders) = opened?;
        self.senders.set(senders);
        state.device = Some(device);
        state.queues_there = self.netdev.link.rx_queues(&self.netdev.name);
        self.warn_of_unused(state);
        Ok(())
    }

    fn warn_of_unused(&self, state: &PortState) {
        if let Some(unused) = state.queues_of_host() {
            log::warn!(target: "netdev_afxdp",
                "{}: the host's stack gets packets of {unused} of its {} receive queues: set options:n_rxq, or use \
                 ethtool -L", self.netdev.name, state.queues_there.unwrap_or(0));
        }
    }

    /// Gives a card the number of queues that the port uses. Packets of other queues would be the host's. The
    /// queues of a veth pair cannot be fewer than those of its other end, and stay as they are.
    fn fit(&self, state: &mut PortState, n: usize) {
        let (link, name) = (&self.netdev.link, self.netdev.name.as_str());
        let there = link
            .combined_queues(name)
            .filter(|_| state.options.first_queue == 0);
        let Some((there, n)) = there.zip(u32::try_from(n).ok()).filter(|(there, n)| there != n) else {
            return;
        };
        match link.set_queues(name, n) {
            Ok(()) => {
                state.queues_before.get_or_insert(there);
                log::info!(target: "netdev_afxdp", "{name}: {n} queues in place of {there}");
            }
            Err(e) => {
                log::info!(target: "netdev_afxdp", "{name}: it has {there} queues, and {n} are refused ({e})")
            }
        }
    }

    /// A device that another program uses is left as it is.
    fn is_free(&self) -> Result<(), PortError> {
        let ifindex = self.netdev.ifindex()?;
        let there = self.programs.as_ref().map(|all| all.xdp_programs(ifindex));
        match there {
            Some(Ok(ids)) if !ids.is_empty() => Err(PortError::Busy(
                self.refused("another program has an XDP program at the device"),
            )),
            _ => Ok(()),
        }
    }

    /// In the words that Open vSwitch's tools expect.
    fn refused(&self, why: &str) -> String {
        format!("could not open network device {} ({why})", self.netdev.name)
    }

    fn try_modes(
        &self,
        options: Options,
        n: usize,
        pass: &[PassItem],
    ) -> Result<(Device, Vec<Tx>), PortError> {
        let name = self.netdev.name.as_str();
        let n = u32::try_from(n).unwrap_or(MAX_QUEUES);
        let (first, there) = (options.first_queue, self.netdev.link.rx_queues(name));
        if let Some(there) = there
            && first + n > there
        {
            return Err(PortError::Config(self.refused(&format!(
                "it has {there} receive queues, and n_rxq={n} from start-qid={first} on needs more: try ethtool -L"
            ))));
        }
        let driver = self.netdev.link.driver(name);
        let wish = Wish {
            name,
            ifindex: self.netdev.ifindex()?,
            options,
            n,
            // The kernel builds packets for this driver in another way, without checksums (Linux 6.12).
            checksums: !driver.is_ok_and(|d| d.name == "virtio_net"),
            pass,
        };
        let (mut reasons, mut is_busy) = (Vec::new(), false);
        for mode in options.modes() {
            match Device::open(wish, mode) {
                Ok(opened) => {
                    log::info!(target: "netdev_afxdp", "{name}: {n} queues in mode {}", mode.name());
                    return Ok(opened);
                }
                Err(refusal) => {
                    is_busy |= refusal.is_busy;
                    reasons.push(format!("{}: {}", mode.name(), refusal.why));
                }
            }
        }
        let text = self.refused(&reasons.join("; "));
        Err(if is_busy {
            PortError::Busy(text)
        } else {
            PortError::Config(text)
        })
    }

    /// Finds out whether the queues have to be opened (again). That is so if another device has the name, if
    /// no queue could be opened before, or if another program has detached the XDP program.
    pub(super) fn look_for_changes(&self, state: &mut PortState, ifindex: u32) {
        if ifindex == 0 || state.stale {
            return;
        }
        let Some(device) = state.device.as_ref().filter(|d| d.ifindex == ifindex) else {
            state.stale = true;
            return;
        };
        if self.programs.as_ref().is_some_and(|all| !device.is_attached(all)) {
            log::warn!(target: "netdev_afxdp", per_min = 5, burst = 5;
                "{}: another program has detached its XDP program, or moved the device: it is opened again",
                self.netdev.name);
            state.stale = true;
            return;
        }
        let (n, there) = (device.queues.len(), self.netdev.link.rx_queues(&self.netdev.name));
        if there != state.queues_there {
            // Another program has changed the number. The card gets that of the port again; the sockets stay.
            self.fit(state, n);
            state.queues_there = self.netdev.link.rx_queues(&self.netdev.name);
            self.warn_of_unused(state);
        }
    }
}

impl PortState {
    /// The number of the device's receive queues without a socket: the host's stack gets their packets.
    /// `None`: there are none.
    pub(super) fn queues_of_host(&self) -> Option<u32> {
        let used = u32::try_from(self.device.as_ref()?.queues.len()).ok()?;
        self.queues_there?.checked_sub(used).filter(|n| *n > 0)
    }
}
