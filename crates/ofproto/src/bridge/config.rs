//! The database's configuration of a bridge, its ports and its tables, as plain values.

use crate::bfd_port::BfdPort;
use crate::bond_port::{BondPort, LacpLink};
use crate::model::{PriorityTags, VlanMode};
use crate::sampling::IpfixConfig;
use crate::snooping::{PortSnooping, SnoopingConfig};
use crate::standby::FailoverPair;
use crate::tunnels::Tunnel;
pub use heddle_classifier::{MAX_TRACKED, PrefixField};
use heddle_datapath_api::PortNo;
use heddle_flow::field::Subfield;
use heddle_openflow::{Port as OfPort, Version};
use std::sync::Arc;

/// `Bridge.fail_mode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FailMode {
    /// Without a controller, be a learning switch.
    #[default]
    Standalone,
    /// Without a controller, forward by flows alone.
    Secure,
}

/// One row of `Bridge`, resolved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BridgeConfig {
    /// Datapath id.
    pub datapath_id: u64,
    /// Fail mode.
    pub fail_mode: FailMode,
    /// Controllers are configured.
    pub has_controllers: bool,
    /// Versions of OpenFlow that may be spoken.
    pub versions: Vec<Version>,
    /// VLANs that flood instead of learning.
    pub flood_vlans: Vec<u16>,
    /// Forward reserved multicast.
    pub forward_bpdu: bool,
    /// Seconds until a learned address is forgotten.
    pub mac_aging_s: u64,
    /// Maximum number of learned addresses.
    pub mac_table_size: usize,
    /// Multicast snooping; `None`: it is off.
    pub snooping: Option<SnoopingConfig>,
    /// Number of VLAN tags that are looked at (0: all that a key holds).
    pub vlan_limit: usize,
    /// Seconds after which an idle bundle is forgotten (`other_config:bundle-idle-timeout` of the switch).
    pub bundle_idle_s: u64,
    /// Mirrors; those beyond [`MAX_MIRRORS`](crate::model::MAX_MIRRORS) are left out.
    pub mirrors: Vec<MirrorConfig>,
    /// IPFIX sampling.
    pub ipfix: IpfixConfig,
    /// `other_config:dp-desc`.
    pub dp_desc: Option<String>,
    /// `other_config:dp-sn`.
    pub dp_sn: Option<String>,
}

impl Default for BridgeConfig {
    fn default() -> Self {
        Self {
            datapath_id: 0,
            fail_mode: FailMode::Standalone,
            has_controllers: false,
            versions: Version::ALL.to_vec(),
            flood_vlans: Vec::new(),
            forward_bpdu: false,
            mac_aging_s: 300,
            mac_table_size: 8192,
            snooping: None,
            vlan_limit: 1,
            bundle_idle_s: 10,
            mirrors: Vec::new(),
            ipfix: IpfixConfig::default(),
            dp_desc: None,
            dp_sn: None,
        }
    }
}

/// The output of a mirror.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MirrorTarget {
    /// A row of `Port`, by name.
    Port(String),
    /// A VLAN.
    Vlan(u16),
}

/// One row of `Mirror`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MirrorConfig {
    /// Key of its counters.
    pub id: String,
    /// Every port is a source and a destination.
    pub all: bool,
    /// Names of ports whose incoming packets are copied.
    pub sources: Vec<String>,
    /// Names of ports whose outgoing packets are copied.
    pub destinations: Vec<String>,
    /// VLANs of the packets that are copied; empty: all.
    pub vlans: Vec<u16>,
    /// The output.
    pub target: MirrorTarget,
    /// Bytes of each packet that are sent; 0: all.
    pub snaplen: u16,
}

/// One row of `Port`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortBundleConfig {
    /// Name.
    pub name: String,
    /// VLAN treatment.
    pub vlan_mode: VlanMode,
    /// Access or native VLAN.
    pub tag: Option<u16>,
    /// Allowed VLANs; empty: all.
    pub trunks: Vec<u16>,
    /// Customer VLANs of a dot1q tunnel; empty: all.
    pub cvlans: Vec<u16>,
    /// EtherType of a tunnel's outer tag; 0: 0x88a8.
    pub qinq_ethtype: u16,
    /// Priority tags.
    pub priority_tags: PriorityTags,
    /// Protected.
    pub protected: bool,
    /// Queues, with the DSCP (six bits) of IP packets that leave by them.
    pub queue_dscp: Vec<(u32, u8)>,
    /// The bond that the interfaces are, and their LACP.
    pub bond: Option<BondPort>,
    /// Settings of multicast snooping.
    pub snooping: PortSnooping,
}

/// The port, peer or tunnel behind an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortTarget {
    /// A port of the datapath.
    Datapath(PortNo),
    /// A patch port, with the name of its peer.
    Patch(String),
    /// A tunnel.
    Tunnel(Arc<Tunnel>),
    /// The device could not be opened.
    Unbound,
}

/// One row of `Interface`, resolved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// OpenFlow port.
    pub no: OfPort,
    /// Interface name.
    pub name: String,
    /// Name of its `Port` row.
    pub bundle: String,
    /// The port, peer or tunnel behind it.
    pub target: PortTarget,
    /// Hardware address.
    pub mac: [u8; 6],
    /// MTU, 0: none.
    pub mtu: u32,
    /// Admin state of the device.
    pub admin_up: bool,
    /// Carrier.
    pub link_up: bool,
    /// Bits per second, 0 if unknown.
    pub speed_bps: u64,
    /// The BFD session that watches it.
    pub bfd: Option<BfdPort>,
    /// The LACP that it speaks.
    pub lacp: Option<LacpLink>,
    /// The pair of devices that it is, the target's first.
    pub standby: Option<FailoverPair>,
}

/// One row of `Flow_Table`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TableConfig {
    /// Name, shown to controllers.
    pub name: Option<String>,
    /// Maximum number of flows.
    pub flow_limit: Option<usize>,
    /// Evict instead of refusing.
    pub evict: bool,
    /// Flows that agree in these fields are a group; the largest one loses a flow.
    pub groups: Vec<Subfield>,
    /// Fields whose prefixes the classifier tracks; `None`: those that Open vSwitch tracks by default.
    pub prefixes: Option<Vec<PrefixField>>,
}
