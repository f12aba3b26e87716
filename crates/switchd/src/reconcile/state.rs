//! The bridges and interfaces that the reconciler has made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heddle_datapath_api::{MeterConfig, PortNo, PortStats};
use heddle_ofproto::Ofproto;
use heddle_ofproto::bridge::{Bridge, BridgeConfig, BundleConfig, PortConfig, PortTarget, TableConfig};
use heddle_ofproto::conn::{Controllers, Listener};
use heddle_ofproto::monitor::WatchedPort;
use heddle_ofproto::tunnels::Tunnel;
use heddle_ofproto::watch::Watch;
use heddle_openflow::Port as OfPort;
use heddle_ovsdb::Uuid;
use heddle_port::{DummyPort, Port, PortStatus, PortType};
use heddle_stream::Passive;
use heddle_sys::DeviceCounters;

use super::apply::OWN_PORT;
use super::desired::{BridgeRow, InterfaceRow, Smap};
use super::numbers::Numbers;

/// One interface that exists.
pub(super) struct Iface {
    pub(super) name: String,
    /// The interface's row; `None` without one.
    pub(super) uuid: Option<Uuid>,
    /// The port that it belongs to.
    pub(super) port: String,
    /// The type in the database.
    pub(super) kind: &'static PortType,
    /// The type to show.
    pub(super) shown: &'static str,
    pub(super) no: OfPort,
    pub(super) body: Body,
    /// The status as last read.
    pub(super) status: PortStatus,
    pub(super) options: Smap,
    /// The user has set the MTU.
    pub(super) mtu_request: Option<u32>,
    /// The device's error for that MTU, if it refused.
    pub(super) mtu_refused: Option<String>,
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
    watch: Option<Watch>,
    /// The settings and place that were last applied.
    wanted: Option<(Smap, WatchedPort)>,
}

/// The implementation of an interface.
pub(super) enum Body {
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

    pub(super) fn device(&self) -> Option<(&Arc<dyn Port>, PortNo)> {
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
    fn follow_session(&mut self, settings: &Smap, of: &Ofproto, bridge: u64) {
        if settings.0.is_empty() && self.session.watch.is_none() {
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
            self.session.watch = of.monitor().configure(&self.name, &settings.0, place);
            self.session.wanted = wanted;
        }
    }

    /// The interface's configuration for OpenFlow.
    pub(super) fn config(&self) -> PortConfig {
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
            watch: self.session.watch.clone(),
        }
    }
}

/// An interface that could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The interface's row.
    pub(super) uuid: Uuid,
    /// Why; for `Interface.error`.
    pub(super) why: Option<String>,
}

/// One bridge that exists.
pub(super) struct BridgeState {
    pub(super) row: BridgeRow,
    pub(super) bridge: Arc<Bridge>,
    /// Interfaces by name.
    pub(super) ifaces: BTreeMap<String, Iface>,
    /// Interfaces that wait for another number.
    pub(super) parked: BTreeMap<String, Iface>,
    /// Failures by interface name.
    pub(super) failures: BTreeMap<String, Failure>,
    pub(super) numbers: Numbers,
    pub(super) mac: [u8; 6],
    pub(super) datapath_id: Option<u64>,
    /// The MTU that internal ports follow.
    pub(super) min_mtu: Option<u32>,
    /// The last configuration of the bridge and its tables.
    pub(super) configured: Option<(BridgeConfig, BTreeMap<u8, TableConfig>)>,
    /// The bundles and ports that OpenFlow last received.
    pub(super) pushed: Option<(Vec<BundleConfig>, Vec<PortConfig>)>,
    /// Packets that its mirrors had copied when that was last written.
    pub(super) mirrored: u64,
    pub(super) controllers: Controllers,
    /// Sockets at which `ovs-ofctl` and others call.
    pub(super) listeners: BTreeMap<Passive, Listener>,
}

impl BridgeState {
    /// Configures the bridge and its tables. An unchanged bridge is not called: a client that changes a
    /// million of its rules would delay all other changes of the database.
    pub(super) fn configure(&mut self, config: BridgeConfig) {
        let now = (config, self.row.tables.clone());
        if self.configured.as_ref() == Some(&now) {
            return;
        }
        let (config, tables) = now.clone();
        if self.bridge.config() != config {
            self.bridge.configure(config);
        }
        self.bridge.configure_tables(tables);
        self.configured = Some(now);
    }

    /// Passes ports and bundles to OpenFlow, if they have changed: each cached flow is then checked again.
    pub(super) fn push_ports(&mut self, of: &Ofproto) {
        for iface in self.ifaces.values_mut() {
            let settings = self.row.interface(&iface.name).map(|(_, row)| &row.bfd);
            iface.follow_session(settings.unwrap_or(&Smap::default()), of, self.bridge.id);
        }
        let with_members: BTreeSet<&str> = self.ifaces.values().map(|i| i.port.as_str()).collect();
        let bundles: Vec<BundleConfig> = self
            .row
            .ports
            .values()
            .filter(|p| with_members.contains(p.name.as_str()))
            .map(|p| p.bundle.clone())
            .collect();
        let ports: Vec<PortConfig> = self.ifaces.values().map(Iface::config).collect();
        let now = Some((bundles.clone(), ports.clone()));
        if self.pushed == now {
            return;
        }
        self.bridge.set_ports(bundles, ports);
        // Addresses learned in VLANs that a port has left would misforward packets.
        let before = std::mem::replace(&mut self.pushed, now);
        let before = before.iter().flat_map(|(bundles, _)| bundles);
        let changed = before.filter(|old| self.row.ports.get(&old.name).is_some_and(|p| p.bundle != **old));
        for old in changed {
            for iface in self.ifaces.values().filter(|i| i.port == old.name) {
                self.bridge.mac.flush_port(iface.no);
            }
        }
    }

    /// The interface with that number.
    pub(super) fn by_number(&self, no: OfPort) -> Option<&Iface> {
        self.ifaces.values().find(|i| i.no == no)
    }

    /// The row of an interface that exists.
    pub(super) fn row_of(&self, name: &str) -> Option<&InterfaceRow> {
        self.row.interface(name).map(|(_, i)| i)
    }
}

/// The interfaces that commands see, by name. Replaced as a whole after every change.
#[derive(Default)]
pub struct Inventory {
    /// Bridges by name: type of the datapath.
    pub bridges: BTreeMap<String, String>,
    /// Interfaces by name.
    pub interfaces: BTreeMap<String, Item>,
    /// Limits of zones are the database's: no command changes them.
    pub zone_limits: bool,
    /// Datapath ports that several interfaces share, by their names.
    pub shared: BTreeMap<String, Item>,
}

/// One interface.
#[derive(Clone)]
pub struct Item {
    /// The interface's bridge.
    pub bridge: String,
    /// The type to show.
    pub shown: &'static str,
    /// OpenFlow port.
    pub no: OfPort,
    /// Number in the datapath, none for patch ports.
    pub dp_no: Option<PortNo>,
    /// The interface shares its datapath port with others ([`Inventory::shared`]).
    pub shares: bool,
    /// The device.
    pub device: Option<Arc<dyn Port>>,
    /// Settings to show, by key.
    pub settings: BTreeMap<String, String>,
}

impl Item {
    /// A datapath's own port, which belongs to no bridge.
    pub(crate) fn of_datapath(device: Arc<dyn Port>) -> Item {
        Item {
            bridge: String::new(),
            shown: device.kind(),
            no: OfPort::NONE,
            dp_no: Some(OWN_PORT),
            shares: false,
            device: Some(device),
            settings: BTreeMap::new(),
        }
    }

    /// A datapath port that interfaces share, one of them of this bridge.
    pub(super) fn of_shared(bridge: &str, device: Arc<dyn Port>, no: PortNo) -> Item {
        Item {
            bridge: bridge.to_owned(),
            dp_no: Some(no),
            ..Self::of_datapath(device)
        }
    }
}

impl Iface {
    /// The interface as commands show it.
    pub(super) fn item(&self, bridge: &str) -> Item {
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
        if let Some(dummy) = dummy.filter(|d| d.is_pmd()) {
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

/// Counters that a device's driver keeps, as (name in the database, count).
pub(super) fn device_keys(counters: DeviceCounters) -> [(&'static str, u64); 6] {
    [
        ("collisions", counters.collisions),
        ("rx_crc_err", counters.rx_crc_errors),
        ("rx_frame_err", counters.rx_frame_errors),
        ("rx_missed_errors", counters.rx_missed_errors),
        ("rx_multicast_packets", counters.rx_multicast),
        ("rx_over_err", counters.rx_over_errors),
    ]
}

/// Counters of an interface, as (name in the database, count).
pub(super) fn counters(stats: &PortStats, status: &PortStatus) -> [(&'static str, u64); 8] {
    [
        ("rx_packets", stats.rx_packets),
        ("tx_packets", stats.tx_packets),
        ("rx_bytes", stats.rx_bytes),
        ("tx_bytes", stats.tx_bytes),
        ("rx_dropped", stats.rx_dropped + status.rx_dropped),
        ("tx_dropped", stats.tx_dropped),
        ("rx_errors", stats.rx_errors),
        ("tx_errors", stats.tx_errors),
    ]
}
