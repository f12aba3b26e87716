//! Bridges and interfaces as commands and metrics see them. The reconciler makes the list.

use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_datapath_api::PortNo;
use heddle_openflow::Port as OfPort;
use heddle_port::Port;

/// The number of a datapath's own port.
pub(crate) const OWN_PORT: PortNo = PortNo(0);

/// The name of the datapath of a type, as `dpctl` shows it.
pub(crate) fn datapath_name(datapath_type: &str) -> String {
    format!("{datapath_type}@ovs-{datapath_type}")
}

/// A port number as people know it: 16 bits, as in OpenFlow 1.0.
pub(crate) fn port_text(no: OfPort) -> u32 {
    no.0 & 0xffff
}

/// The interfaces that commands see, by name. Replaced as a whole after every change.
#[derive(Default)]
pub struct Inventory {
    /// Bridges by name: type of the datapath.
    pub bridges: BTreeMap<String, String>,
    /// Interfaces by name.
    pub interfaces: BTreeMap<String, Item>,
    /// Version of the database's schema: major and minor number.
    pub schema_version: Option<(u32, u32)>,
    /// Limits of zones are the database's: no command changes them.
    pub zone_limits: bool,
    /// Datapath ports that are no interface's alone, by their names: tunnels share them.
    pub shared: BTreeMap<String, Item>,
    /// Devices that tunnels use and that are in no bridge, by their names; why they cannot, if they cannot.
    pub underlay: BTreeMap<String, Option<String>>,
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
    pub(crate) fn of_shared(bridge: &str, device: Arc<dyn Port>, no: PortNo) -> Item {
        Item {
            bridge: bridge.to_owned(),
            dp_no: Some(no),
            ..Self::of_datapath(device)
        }
    }
}

/// A setting of the database that the switch ignores, and the row that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WithoutEffect {
    /// The row, such as `bridge br0`.
    pub(crate) place: String,
    /// Column, or column and key.
    pub(crate) setting: String,
    /// The consequence, for the log.
    pub(crate) effect: &'static str,
    /// `Warn`: packets are forwarded differently than the setting requires.
    pub(crate) level: log::Level,
}
