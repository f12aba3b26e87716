//! One interface of a bridge.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use heddle_datapath::DatapathError;
use heddle_datapath_api::{MeterConfig, PortNo};
use heddle_ofproto::Ofproto;
use heddle_ofproto::bfd_port::BfdPort;
use heddle_ofproto::bond::BondPort;
use heddle_ofproto::bridge::{PortConfig, PortTarget};
use heddle_ofproto::monitor::WatchedPort;
use heddle_ofproto::tunnels::Tunnel;
use heddle_openflow::Port as OfPort;
use heddle_ovsdb::Uuid;
use heddle_port::{DummyPort, Port, PortError, PortStatus, PortType};
use rustix::io::Errno;

use crate::inventory::Item;
use crate::reconcile::claims::Claim;
use crate::reconcile::desired::Smap;

/// One interface that exists.
pub(in crate::reconcile) struct Iface {
    pub(in crate::reconcile) name: String,
    /// The interface's row; `None` without one.
    pub(in crate::reconcile) uuid: Option<Uuid>,
    /// The port that it belongs to.
    pub(super) port: String,
    /// The type in the database.
    pub(super) kind: &'static PortType,
    /// The type to show.
    pub(super) shown: &'static str,
    pub(in crate::reconcile) no: OfPort,
    pub(in crate::reconcile) body: Body,
    /// No other port has the device.
    pub(super) _claim: Option<Claim>,
    /// The status as last read.
    pub(in crate::reconcile) status: PortStatus,
    pub(super) options: Smap,
    /// The user has set the MTU.
    pub(super) mtu_request: Option<u32>,
    /// The device's error for that MTU, if it refused.
    pub(in crate::reconcile) mtu_refused: Option<String>,
    /// The device's error for the port's QoS, if it refuses.
    pub(in crate::reconcile) qos_refused: Option<String>,
    /// Faults of its settings as one of a pair.
    pub(in crate::reconcile) pair_fault: Option<String>,
    /// The user no longer sets the MTU: it follows those of the other ports from now on.
    pub(super) mtu_released: bool,
    /// The interface's MTU follows those of the other ports from now on.
    pub(super) is_new: bool,
    /// Limits of the interface's input.
    pub(super) policing: Vec<MeterConfig>,
    /// The interface's BFD session.
    pub(super) session: Session,
}

/// The session that watches an interface, if it has one.
#[derive(Default)]
pub(super) struct Session {
    /// The session's link state, for OpenFlow.
    bfd: Option<BfdPort>,
    /// The settings and place that were last applied.
    wanted: Option<(Smap, WatchedPort)>,
}

/// The implementation of an interface.
pub(in crate::reconcile) enum Body {
    /// A device in the datapath.
    Device(Arc<dyn Port>, PortNo),
    /// One end of a patch, with the name of the other.
    Patch(String),
    /// A tunnel.
    Tunnel(Arc<Tunnel>),
}

impl Iface {
    /// Whether it is the bridge's own port.
    pub(super) fn is_local(&self) -> bool {
        self.no == OfPort::LOCAL
    }

    pub(in crate::reconcile) fn device(&self) -> Option<(&Arc<dyn Port>, PortNo)> {
        match &self.body {
            Body::Device(device, no) => Some((device, *no)),
            Body::Patch(_) | Body::Tunnel(_) => None,
        }
    }

    /// Whether its MTU follows those of the other ports.
    pub(super) fn follows_mtu(&self) -> bool {
        self.kind.follows_mtu && self.mtu_request.is_none()
    }

    /// Makes, changes or ends its session, if anything about it has changed.
    pub(super) fn follow_session(&mut self, settings: &Smap, of: &Ofproto, bridge: u64) {
        if settings.0.is_empty() && self.session.bfd.is_none() {
            return;
        }
        let place = WatchedPort {
            bridge,
            no: self.no,
            mac: self.status.mac,
            dp: self.device().map(|(_, no)| no),
        };
        let wanted = Some((settings.clone(), place.clone()));
        if self.session.wanted != wanted {
            self.session.bfd = of.monitor().configure(&self.name, &settings.0, place);
            self.session.wanted = wanted;
        }
    }

    /// Whether LACP has a partner on it; `None` without LACP.
    pub(in crate::reconcile) fn lacp_current(&self, of: &Ofproto) -> Option<bool> {
        of.bonds().lacp_current(&self.port, self.no)
    }

    /// The session that watches it.
    pub(super) fn bfd_port(&self) -> Option<BfdPort> {
        self.session.bfd.clone()
    }

    /// The interface's configuration for OpenFlow; `bond`: of its port.
    pub(super) fn config(&self, bond: Option<&BondPort>) -> PortConfig {
        PortConfig {
            no: self.no,
            name: self.name.clone(),
            bundle: self.port.clone(),
            target: match &self.body {
                Body::Device(_, no) => PortTarget::Datapath(*no),
                Body::Patch(peer) => PortTarget::Patch(peer.clone()),
                Body::Tunnel(tunnel) => PortTarget::Tunnel(tunnel.clone()),
            },
            mac: self.status.mac,
            mtu: self.status.mtu,
            admin_up: self.status.admin_up,
            link_up: self.status.link_up,
            speed_bps: self.status.speed_bps,
            bfd: self.session.bfd.clone(),
            lacp: bond.and_then(|b| b.lacp_link(self.no)),
            standby: None,
        }
    }

    /// The interface as commands show it.
    pub(in crate::reconcile) fn item(&self, bridge: &str) -> Item {
        let device = self.device();
        let made_as = device.map_or(self.kind, |(d, _)| d.port_type());
        let (mut settings, shared_no) = match &self.body {
            Body::Tunnel(tunnel) => (tunnel.config.shown_options(), Some(tunnel.dp)),
            Body::Device(..) | Body::Patch(_) => (BTreeMap::new(), None),
        };
        for key in made_as.shown_options {
            if let Some(v) = self.options.get(key) {
                settings.insert((*key).to_owned(), v.to_owned());
            }
        }
        let dummy = device.and_then(|(d, _)| d.as_any().downcast_ref::<DummyPort>());
        if let Some(dummy) = dummy.filter(|_| made_as.pmd) {
            let wanted = self.options.number("n_rxq", 1).max(1);
            // A dummy device has `n_txq` transmit queues, whatever the number of workers is.
            let n_txq = self.options.number("n_txq", 1).max(1);
            let queues = [
                ("configured_rx_queues", dummy.n_rxq().to_string()),
                ("configured_tx_queues", n_txq.to_string()),
                ("requested_rx_queues", wanted.to_string()),
                ("requested_tx_queues", n_txq.to_string()),
            ];
            settings.extend(queues.map(|(key, n)| (key.to_owned(), n)));
        }
        Item {
            bridge: bridge.to_owned(),
            shown: self.shown,
            no: self.no,
            dp_no: device.map(|(_, no)| no).or(shared_no),
            shares: shared_no.is_some(),
            device: device.map(|(d, _)| d.clone()),
            settings,
        }
    }
}

/// An interface that could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::reconcile) struct Failure {
    /// The interface's row.
    pub(in crate::reconcile) uuid: Uuid,
    pub(in crate::reconcile) error: InterfaceError,
}

/// The reason why an interface could not be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::reconcile) struct InterfaceError {
    /// The text of `Interface.error`.
    pub(in crate::reconcile) text: Option<String>,
    /// The system's error, if the system refused.
    errno: Option<Errno>,
    /// Another program uses the device.
    is_busy: bool,
}

impl InterfaceError {
    /// An error of the datapath or of a port, with the text to show for it.
    pub(in crate::reconcile) fn new(text: String, error: &(dyn Error + 'static)) -> Self {
        let system = error.source().and_then(|e| e.downcast_ref());
        let of_port = match error.downcast_ref() {
            Some(DatapathError::Port(error)) => Some(error),
            _ => error.downcast_ref::<PortError>(),
        };
        Self {
            text: Some(text),
            errno: system.and_then(Errno::from_io_error),
            is_busy: matches!(of_port, Some(PortError::Busy(_))),
        }
    }
    /// Whether another attempt may succeed without an event before.
    pub(in crate::reconcile) fn has_to_be_retried(&self) -> bool {
        self.is_busy || self.lacks_descriptors()
    }
    /// Whether the process, or the whole system, has no free descriptor.
    fn lacks_descriptors(&self) -> bool {
        matches!(self.errno, Some(Errno::MFILE | Errno::NFILE))
    }
}

impl From<String> for InterfaceError {
    /// A fault of the configuration.
    fn from(text: String) -> Self {
        Self {
            text: Some(text),
            errno: None,
            is_busy: false,
        }
    }
}
