//! Ports on the virtio-net device that a guest's driver uses: vhost-user ports of virtual machines
//! ([`vhost`]) and VDUSE ports of pods ([`vduse`]).
//!
//! A session runs on the one control thread of its protocol and drives the device that all sessions share
//! ([`crate::virtio`]). [`GuestPort`] is the port. A [`Protocol`] has the parts of one protocol: the settings
//! of a session, its begin and its end.

pub(crate) mod vduse;
pub(crate) mod vhost;

use crate::virtio::{Backing, Changed, DEFAULT_MTU, Shared};
use crate::{Port, PortError, PortStatus, RxQueue, TxQueue};
use heddle_sys::QueueCounts;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// `Interface.options`.
type Options = BTreeMap<String, String>;

/// One session protocol, with the state that its ports share.
pub(crate) trait Protocol: Send + Sync + Sized + 'static {
    /// The settings of a session; other ones need another session.
    type Settings: PartialEq + Send + 'static;
    /// The control thread's number of a port.
    type Id: Copy + Send + 'static;
    /// Why a session ends whose settings change.
    const MOVED: &'static str;
    /// Workers choose among several transmit queues.
    const STEERS: bool;

    /// The settings of port `name`; `now`: those that it has.
    ///
    /// # Errors
    /// [`PortError::Config`] for options that make no sense.
    fn settings(
        &self,
        name: &str,
        options: &Options,
        now: Option<&Self::Settings>,
    ) -> Result<Self::Settings, PortError>;
    /// The socket or device of these settings, for people.
    fn shown(settings: &Self::Settings) -> String;
    /// Warnings about options that have no effect.
    fn warnings(&self, options: &Options) -> Vec<String>;
    /// `options:tx-retries-max`: how often a burst looks again for buffers of the guest.
    fn tx_retries_max(&self, options: &Options) -> u32;
    /// Applies the options that need no other session.
    fn apply(&self, options: &Options, shared: &Shared);
    /// Hands the device to the control thread, which begins sessions.
    fn attach(&self, settings: &Self::Settings, shared: &Arc<Shared>) -> Result<Self::Id, PortError>;
    /// Ends the session, with `why` for people. When it returns no worker has a ring. `for_good`: no later
    /// process continues the session.
    fn detach(&self, id: Self::Id, for_good: bool, why: &'static str);
    /// Changes a setting that the driver gets.
    fn configure(&self, _change: Change, _settings: &mut Self::Settings, _id: Option<Self::Id>) {}
    /// The run directory, for files that outlive the process.
    fn rundir(&self) -> &Path;
}

/// A change of a setting that the driver may get.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    Mtu(u32),
    Mac([u8; 6]),
    LinkUp(bool),
}

/// A port on a guest's device.
pub(crate) struct GuestPort<P: Protocol> {
    kind: &'static str,
    protocol: P,
    shared: Arc<Shared>,
    session: Mutex<Session<P>>,
    /// Warnings about the options, as logged.
    warnings: Mutex<Vec<String>>,
}

struct Session<P: Protocol> {
    settings: P::Settings,
    /// `None` only while the session is replaced.
    id: Option<P::Id>,
}

impl<P: Protocol> GuestPort<P> {
    /// A port without a session; [`GuestPort::start`] comes next.
    fn new(
        kind: &'static str,
        name: &str,
        options: &Options,
        protocol: P,
        backing: impl FnOnce(String) -> Backing,
        changed: &Changed,
    ) -> Result<Self, PortError> {
        let settings = protocol.settings(name, options, None)?;
        let backing = backing(P::shown(&settings));
        let retries = protocol.tx_retries_max(options);
        Ok(Self {
            kind,
            shared: Shared::new(name, backing, Arc::clone(changed), retries),
            protocol,
            session: Mutex::new(Session { settings, id: None }),
            warnings: Mutex::default(),
        })
    }

    fn start(self, options: &Options) -> Result<Arc<dyn Port>, PortError> {
        self.protocol.apply(options, &self.shared);
        self.log_warnings(options);
        self.attach()?;
        Ok(Arc::new(self))
    }

    /// Logs the options that have no effect, once.
    fn log_warnings(&self, options: &Options) {
        let warnings = self.protocol.warnings(options);
        let before = core::mem::replace(&mut *self.warnings.lock(), warnings.clone());
        for text in warnings.iter().filter(|t| !before.contains(t)) {
            log::warn!(target: "netdev_dpdk", "{}: {text}", self.shared.name);
        }
    }

    fn attach(&self) -> Result<(), PortError> {
        let mut session = self.session.lock();
        let id = self.protocol.attach(&session.settings, &self.shared)?;
        session.id = Some(id);
        Ok(())
    }

    fn detach(&self, for_good: bool, why: &'static str) {
        let id = self.session.lock().id.take();
        if let Some(id) = id {
            self.protocol.detach(id, for_good, why);
        }
    }

    fn configure(&self, change: Change) {
        let mut session = self.session.lock();
        let id = session.id;
        self.protocol.configure(change, &mut session.settings, id);
    }
}

impl<P: Protocol> Drop for GuestPort<P> {
    fn drop(&mut self) {
        self.detach(false, REMOVED);
    }
}

/// Why a session ends with its port.
const REMOVED: &str = "the port was removed";
/// The directory of journals in the run directory.
const JOURNALS: &str = ".vrings";

/// The file that keeps positions of port `name`'s packed rings beyond this process. It is in a directory of
/// its own: sockets in the run directory have ports' names, which may be anything.
fn journal(rundir: &Path, name: &str) -> Option<PathBuf> {
    let plain = !name.contains('/') && !matches!(name, "." | "..");
    plain.then(|| rundir.join(JOURNALS).join(name))
}

impl<P: Protocol> Port for GuestPort<P> {
    fn name(&self) -> &str {
        &self.shared.name
    }
    fn kind(&self) -> &'static str {
        self.kind
    }
    fn open_rx(&self, n: usize) -> Result<Vec<Box<dyn RxQueue>>, PortError> {
        self.shared.open_rx(n)
    }
    fn open_tx(&self, worker: usize, _n: usize) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(self.shared.open_tx(worker))
    }
    fn status(&self) -> PortStatus {
        self.shared.status()
    }
    fn statistics(&self) -> Vec<(String, u64)> {
        self.shared.statistics()
    }
    fn rxq_enabled(&self, queue: usize) -> bool {
        self.shared.rxq_enabled(queue)
    }
    fn set_mtu(&self, mtu: u32) -> Result<(), PortError> {
        self.shared.set_mtu(mtu)?;
        self.configure(Change::Mtu(mtu));
        Ok(())
    }
    fn default_mtu(&self) -> Option<u32> {
        Some(DEFAULT_MTU)
    }
    fn set_mac(&self, mac: [u8; 6]) -> Result<(), PortError> {
        self.shared.set_mac(mac);
        self.configure(Change::Mac(mac));
        Ok(())
    }
    fn set_admin(&self, up: bool) -> Result<(), PortError> {
        self.shared.set_admin(up);
        self.configure(Change::LinkUp(up));
        Ok(())
    }
    fn set_qos(&self, qos: Option<&crate::QosConfig>) -> Result<(), PortError> {
        self.shared.rates.set_qos(&self.shared.name, qos)
    }
    fn qos_types(&self) -> &'static [&'static str] {
        crate::rates::TYPES
    }
    fn qos(&self) -> Option<crate::QosConfig> {
        self.shared.rates.shown()
    }
    fn queue_counts(&self) -> Vec<QueueCounts> {
        self.shared.rates.counts()
    }
    fn set_options(&self, options: &Options) -> Result<(), PortError> {
        let new = {
            let session = self.session.lock();
            self.protocol
                .settings(&self.shared.name, options, Some(&session.settings))?
        };
        self.protocol.apply(options, &self.shared);
        self.log_warnings(options);
        if self.session.lock().settings == new {
            return Ok(());
        }
        // The old session ends before the new one begins: the device behind both is one.
        self.detach(true, P::MOVED);
        *self.shared.backing.at.lock() = P::shown(&new);
        self.session.lock().settings = new;
        self.attach()
    }
    fn forget(&self) {
        self.detach(true, REMOVED);
        if let Some(path) = journal(self.protocol.rundir(), &self.shared.name) {
            // A port that never had packed rings has none.
            let _ = std::fs::remove_file(path);
        }
    }
    fn set_tx_steering(&self, by_flow: bool) {
        if P::STEERS && self.shared.tx.set_by_flow(by_flow) {
            let mode = if by_flow { "hash" } else { "thread" };
            let name = &self.shared.name;
            log::info!(target: "dpif_netdev", "{name}: Tx packet steering mode has been set to '{mode}'.");
        }
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
