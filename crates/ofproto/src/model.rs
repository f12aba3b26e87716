//! Bridges, ports, rules and settings, as control threads publish them and translations read them.
//!
//! **Invariants.** A [`Snapshot`] and all [`BridgeView`]s and [`PortView`]s in it are immutable. A change
//! publishes a new `Snapshot`, which shares the unchanged parts with the one before. Then it bumps
//! [`Snapshot::CONFIG_SLOT`] and the slots of the parts that differ. Rules are not part of the snapshot. A
//! [`Table`] is concurrent, every rule is visible in a range of versions, and a translation reads at
//! [`BridgeView::version`]. A change of rules adds and removes rules at `version + 1`, then stores the new
//! version, then bumps the generation slots of the tables it touched.
//!
//! **Threads.** Workers read everything without locks.

use crate::bfd_port::BfdPort;
use crate::bond_port::{BondPort, LacpLink};
use crate::features::Features;
use crate::group::Group;
use crate::mac::MacTable;
use crate::meter::OfMeter;
use crate::sampling::IpfixConfig;
use crate::shared_map::SharedMap;
use crate::snooping::{PortSnooping, ReportBudget, SnoopingView};
use crate::standby::FailoverPair;
use crate::stats::{LazyStats, Stats};
use crate::tunnels::{Tunnel, TunnelMap};
use crate::underlay_port::UnderlayPorts;
use crate::versioned::Versioned;
use heddle_classifier::Classifier;
use heddle_datapath_api::{Generations, PortNo};
use heddle_flow::Match;
use heddle_flow::field::tlv::{Scope, TlvMap};
use heddle_openflow::message::FlowMod;
use heddle_openflow::{ErrorKind, InstructionSet, Port as OfPort};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// Number of OpenFlow tables of a bridge; 254 is the last that controllers use, as in Open vSwitch.
pub const N_TABLES: usize = 255;

/// Maximum number of mirrors of a bridge, as in Open vSwitch.
pub const MAX_MIRRORS: usize = 32;

/// One OpenFlow rule. A modification makes a new rule that shares `stats`. Packets change only the atomic
/// fields: `fin_timeout` shortens timeouts, and a rule that is learned again counts as modified.
#[derive(Debug)]
pub struct Rule {
    /// Number of the rule's table.
    pub table: u8,
    /// Priority.
    pub priority: u16,
    /// The match in its compact form.
    pub matches: heddle_classifier::MiniMatch,
    /// Cookie.
    pub cookie: u64,
    /// Seconds without a packet before the rule expires, 0: no idle timeout.
    pub idle_timeout: AtomicU16,
    /// Seconds before the rule expires, 0: no hard timeout.
    pub hard_timeout: AtomicU16,
    /// Eviction importance (1.4).
    pub importance: u16,
    /// OFPFF_* flags as OpenFlow 1.5 numbers them.
    pub flags: u16,
    /// Instructions; rules with equal instructions mostly share them.
    pub instructions: Arc<InstructionSet>,
    /// Coarse clock at creation, ms.
    pub created_ms: u64,
    /// Coarse clock at the last modification, ms.
    pub modified_ms: AtomicU64,
    /// First version of the tables that had the rule; modifications keep it.
    pub born: u64,
    /// Orders rules that were added within the same millisecond; a modification keeps it. It may wrap: it
    /// orders no other rules.
    pub serial: u32,
    /// A rule of the switch itself: controllers neither see nor change it.
    pub hidden: bool,
    /// Packets, bytes, last use.
    pub stats: LazyStats,
}

impl Rule {
    /// Shortens timeouts, in seconds; 0 leaves a timeout as it is.
    pub(crate) fn reduce_timeouts(&self, idle: u16, hard: u16) {
        for (now, max) in [(&self.idle_timeout, idle), (&self.hard_timeout, hard)] {
            let old = now.load(Relaxed);
            if max != 0 && (old == 0 || old > max) {
                now.store(max, Relaxed);
            }
        }
    }
    /// Time of the last packet, or else of the rule's creation, ms. A rule that replaces another one inherits
    /// its time.
    pub(crate) fn used_ms(&self) -> u64 {
        match self.stats.seen().used_ms.load(Relaxed) {
            0 => self.created_ms,
            used => used,
        }
    }
    /// Counters for a rule that replaces this one: the same ones, or with `reset` new ones that have only the
    /// time of the last use.
    pub(crate) fn heir(&self, reset: bool) -> LazyStats {
        let stats = if reset {
            Arc::default()
        } else {
            self.stats.counted()
        };
        stats.used_ms.fetch_max(self.used_ms(), Relaxed);
        LazyStats::of(stats)
    }
    /// The match in the wide form.
    pub fn wide_match(&self) -> Match {
        self.matches.expand()
    }
}

/// Handling of packets that match no rule of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TableMiss {
    /// Default of the OpenFlow version in use: to the controller in 1.0 to 1.2, drop from 1.3 on.
    Default = 0,
    /// Send to the controller.
    Controller = 1,
    /// Continue in the next table.
    Continue = 2,
    /// Drop.
    Drop = 3,
}

/// One OpenFlow table.
pub struct Table {
    /// Number.
    pub id: u8,
    /// Rules of the table, by match and priority.
    pub rules: Classifier<Arc<Rule>>,
    /// Packets looked up and matched.
    pub matched: Arc<Stats>,
    /// Packets looked up that matched nothing.
    pub missed: Arc<Stats>,
    /// Packets whose last lookup was in this table and found no rule, by [`Unmatched`].
    pub unmatched: [LazyStats; 3],
    miss: AtomicU8,
    /// Generation slot of the table's rules.
    pub slot: u16,
}

/// Handling of a packet for which no rule is found. Open vSwitch has a hidden rule for each case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Unmatched {
    /// A packet-in goes to the controllers.
    ToController = 0,
    /// No packet-in is sent.
    Nothing = 1,
    /// The packet is a fragment that the bridge drops without a lookup.
    Fragment = 2,
}

impl Table {
    /// An empty table `id` of bridge `bridge`.
    pub fn new(bridge: u64, id: u8) -> Self {
        Self {
            id,
            rules: Classifier::new(),
            matched: Arc::default(),
            missed: Arc::default(),
            unmatched: Default::default(),
            miss: AtomicU8::new(0),
            slot: Generations::logged_slot_of(bridge << 8 | u64::from(id) | 1 << 40),
        }
    }
    /// The table's handling of misses.
    pub fn miss(&self) -> TableMiss {
        match self.miss.load(Relaxed) {
            1 => TableMiss::Controller,
            2 => TableMiss::Continue,
            3 => TableMiss::Drop,
            _ => TableMiss::Default,
        }
    }
    /// Changes the handling of misses; the caller bumps the slot.
    pub fn set_miss(&self, miss: TableMiss) {
        self.miss.store(miss as u8, Relaxed);
    }
}

/// VLAN mode of a Port (bundle), see `Port.vlan_mode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum VlanMode {
    /// Untagged packets only, all in VLAN `tag`.
    Access,
    /// Tagged packets of `trunks`.
    #[default]
    Trunk,
    /// Trunk, and untagged packets are in VLAN `tag`; they leave tagged.
    NativeTagged,
    /// Trunk, and untagged packets are in VLAN `tag`; they leave untagged.
    NativeUntagged,
    /// 802.1ad tunnel.
    Dot1qTunnel,
}

/// Whether packets that leave untagged get a priority-only tag (`Port.other_config:priority-tags`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PriorityTags {
    /// Never.
    #[default]
    Never,
    /// Only if the priority is not zero.
    IfNonzero,
    /// Always.
    Always,
}

/// One row of the Port table: one interface, or a bond of several.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortBundle {
    /// Number within the bridge, never reused: a port that is removed and added again is another one.
    pub id: u32,
    /// Name.
    pub name: String,
    /// VLAN treatment.
    pub vlan_mode: VlanMode,
    /// Access or native VLAN.
    pub tag: Option<u16>,
    /// Allowed VLANs; `None`: all.
    pub trunks: Option<Arc<VlanSet>>,
    /// Customer VLANs of a dot1q tunnel; `None`: all.
    pub cvlans: Option<Arc<VlanSet>>,
    /// EtherType of a tunnel's outer tag (0x8100 or 0x88a8).
    pub qinq_ethtype: u16,
    /// Priority tags.
    pub priority_tags: PriorityTags,
    /// Protected ports do not forward to each other.
    pub protected: bool,
    /// DSCP (six bits) for IP packets that leave by the bundle, by queue.
    pub queue_dscp: Vec<(u32, u8)>,
    /// Members, as OpenFlow ports.
    pub ports: Vec<OfPort>,
    /// The bond that the members are, and their LACP.
    pub bond: Option<BondPort>,
    /// Settings of multicast snooping.
    pub snooping: PortSnooping,
    /// Limit of the port's membership messages.
    pub reports: ReportBudget,
}

/// Destination of mirrored packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MirrorOutput {
    /// A bundle, which is reserved for them.
    Bundle(usize),
    /// All bundles of a VLAN.
    Vlan(u16),
}

/// One row of the Mirror table.
#[derive(Clone, Debug)]
pub struct Mirror {
    /// Indices of the bundles whose incoming packets are copied.
    pub sources: Vec<usize>,
    /// Indices of the bundles whose outgoing packets are copied.
    pub destinations: Vec<usize>,
    /// Only packets in these VLANs are copied; `None`: all.
    pub vlans: Option<Arc<VlanSet>>,
    /// Destination of the copies.
    pub output: MirrorOutput,
    /// Maximum number of bytes of a copy; 0 and 65535: no limit.
    pub snaplen: u16,
    /// Mirrors of this bridge with the same output, this one included, one bit each.
    pub same_output: u32,
    /// Packets that were copied.
    pub stats: Arc<Stats>,
}

/// A set of VLAN ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlanSet(pub Box<[u64; 64]>);

impl VlanSet {
    /// The set of these ids; ids above 4095 are left out.
    pub fn from_ids(ids: impl IntoIterator<Item = u16>) -> Self {
        let mut bits = Box::new([0u64; 64]);
        for id in ids.into_iter().filter(|i| *i < 4096) {
            bits[usize::from(id) / 64] |= 1 << (id % 64);
        }
        Self(bits)
    }
    /// Whether it holds `vid`.
    pub fn contains(&self, vid: u16) -> bool {
        self.0[usize::from(vid & 0xfff) / 64] & (1 << (vid % 64)) != 0
    }
}

/// The port or link behind an OpenFlow port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Binding {
    /// A port of the datapath.
    Datapath(PortNo),
    /// A patch port, with bridge id and OpenFlow port of its peer. `None`: there is no peer.
    Patch(Option<(u64, OfPort)>),
    /// A tunnel port.
    Tunnel(Arc<Tunnel>),
    /// No device: it could not be opened.
    Unbound,
}

/// OpenFlow port configuration bits (as in OpenFlow 1.0; later versions have a subset).
pub mod port_config {
    /// Administratively down.
    pub const PORT_DOWN: u32 = 1;
    /// Drop received packets.
    pub const NO_RECV: u32 = 1 << 2;
    /// Drop received STP packets.
    pub const NO_RECV_STP: u32 = 1 << 3;
    /// Exclude from floods.
    pub const NO_FLOOD: u32 = 1 << 4;
    /// Drop packets to be sent.
    pub const NO_FWD: u32 = 1 << 5;
    /// No packet-ins for packets received.
    pub const NO_PACKET_IN: u32 = 1 << 6;
}

/// One OpenFlow port of a bridge, as translation sees it.
#[derive(Clone, Debug)]
pub struct PortView {
    /// OpenFlow port number.
    pub no: OfPort,
    /// Interface name.
    pub name: String,
    /// The port or link that its packets are sent to.
    pub binding: Binding,
    /// Hardware address.
    pub mac: [u8; 6],
    /// MTU, 0 if it has none.
    pub mtu: u32,
    /// [`port_config`] bits.
    pub config: u32,
    /// Whether carrier and admin state both allow forwarding.
    pub up: bool,
    /// BFD session that monitors the port.
    pub bfd: Option<BfdPort>,
    /// LACP that the port speaks.
    pub lacp: Option<LacpLink>,
    /// The pair of devices that the port is, the binding's first.
    pub standby: Option<FailoverPair>,
    /// Index in [`BridgeView::bundles`].
    pub bundle: usize,
    /// Packets received through a patch or tunnel port. Unused for datapath ports, which the datapath counts.
    pub patch_rx: Arc<Stats>,
    /// Packets sent, see `patch_rx`.
    pub patch_tx: Arc<Stats>,
}

impl PortView {
    /// The tunnel behind a tunnel port; `None` for other ports.
    pub(crate) fn tunnel(&self) -> Option<&Arc<Tunnel>> {
        match &self.binding {
            Binding::Tunnel(t) => Some(t),
            Binding::Datapath(_) | Binding::Patch(_) | Binding::Unbound => None,
        }
    }
    /// Whether the port may forward: its device is up, and the BFD session that monitors it and its LACP, if
    /// any, allow it.
    pub fn is_live(&self) -> bool {
        self.up
            && self.bfd.as_ref().is_none_or(BfdPort::is_forwarding)
            && self.lacp.as_ref().is_none_or(LacpLink::is_forwarding)
    }
}

/// Handling of IP fragments (`OFPT_SET_CONFIG`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fragments {
    /// Tables see fragments without transport ports.
    #[default]
    Normal,
    /// Fragments are dropped.
    Drop,
    /// Tables see first fragments with their transport ports.
    Match,
}

impl Fragments {
    /// The mode for flags of `OFPT_SET_CONFIG`. Reassembly is not supported and counts as normal.
    pub fn from_flags(flags: u16) -> Self {
        match flags & 3 {
            1 => Self::Drop,
            3 => Self::Match,
            _ => Self::Normal,
        }
    }
}

impl BridgeView {
    /// Sets the bridge's map of tunnel options for this thread, until the scope is dropped.
    pub(crate) fn tlv_scope(&self) -> Scope {
        Scope::enter(self.tlv.clone())
    }
}

/// One bridge, as translation sees it.
pub struct BridgeView {
    /// Stable number, never reused.
    pub id: u64,
    /// Name.
    pub name: String,
    /// Ports by number, in order.
    pub ports: SharedMap<OfPort, Arc<PortView>>,
    /// Bundles by index, in order.
    pub bundles: SharedMap<usize, Arc<PortBundle>>,
    /// Mirrors, at most [`MAX_MIRRORS`].
    pub mirrors: Vec<Mirror>,
    /// Tunnel options that are match fields; `None`: no option is.
    pub tlv: Option<Arc<TlvMap>>,
    /// VLANs that flood instead of learning.
    pub flood_vlans: Option<Arc<VlanSet>>,
    /// Forward reserved multicast (`other_config:forward-bpdu`).
    pub forward_bpdu: bool,
    /// Learned addresses.
    pub mac: Arc<MacTable>,
    /// Multicast snooping; `None`: it is off.
    pub snooping: Option<SnoopingView>,
    /// Tables, 0 to 254.
    pub tables: Arc<Vec<Table>>,
    /// Groups; shared by all views of this bridge, as the tables are.
    pub(crate) groups: Arc<Versioned<Group>>,
    /// Meters, the same in every version.
    pub(crate) meters: Arc<Versioned<Arc<OfMeter>>>,
    /// Current version of the rules; shared by all views of this bridge.
    pub version: Arc<AtomicU64>,
    /// Rules and groups that are not visible at this version may have been unlinked. A translation that reads
    /// an earlier version must check this after its lookups, and then begin anew.
    pub(crate) purged: Arc<AtomicU64>,
    /// Maximum number of VLAN tags to parse (`other_config:vlan-limit`).
    pub vlan_limit: usize,
    /// Table misses go to a controller, which is configured or connected (semantics of a miss in 1.0 to 1.2).
    pub miss_to_controller: bool,
    /// Handling of IP fragments.
    pub frags: Fragments,
    /// Datapath features that translations use.
    pub features: Features,
    /// Controllers are configured, so buckets that watch the controller port are live.
    pub has_controllers: bool,
    /// IPFIX sampling: the packets to sample, and their exporters; `None`: no packets.
    pub ipfix: Option<Arc<IpfixConfig>>,
    /// The bridge itself, for `learn` actions.
    pub(crate) control: Weak<dyn Learner>,
}

/// A receiver of flows that packets add by `learn` actions. Any thread may call it; it never waits for
/// another thread.
pub(crate) trait Learner: Send + Sync {
    /// Adds a flow, or refreshes the one that is there. At most `limit` flows (0: any number) of its table
    /// have its cookie.
    fn learn(&self, flow: &Arc<FlowMod>, limit: u32) -> Learned;
    /// [`Learner::learn`] for packets that a cached translation has forwarded, the last of them at `used_ms`.
    /// These packets are credited in any order and may be older than the flow: a flow that a later packet has
    /// changed stays unchanged.
    fn learn_again(&self, flow: &Arc<FlowMod>, limit: u32, used_ms: u64);
    /// Whether a flow that was learned is still there.
    fn has_learned(&self, flow: &FlowMod) -> bool;
}

/// Result of learning a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Learned {
    /// Whether the flow is there now; not if the limit was reached.
    Yes(bool),
    /// A control thread will learn it.
    Later,
    /// The flow cannot be added.
    No(ErrorKind),
}

/// Hashes one number that the switch allocated itself. Peers do not choose such numbers, so they cannot force
/// collisions.
#[derive(Clone, Copy, Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A map from such numbers.
pub type ByNumber<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// The whole configuration.
#[derive(Clone, Default)]
pub struct Snapshot {
    /// Bridges by id.
    pub bridges: ByNumber<u64, Arc<BridgeView>>,
    /// Bridge and OpenFlow port of each datapath port.
    pub by_dp_port: SharedMap<PortNo, (u64, OfPort)>,
    /// Names of timeout policies by connection tracking zone.
    pub ct_timeouts: CtTimeouts,
    /// Tunnel ports by the packets that belong to them.
    pub tunnels: Arc<TunnelMap>,
    /// Datapath ports of tunnels' outer packets that belong to no bridge.
    pub underlay: Arc<UnderlayPorts>,
}

/// Names of timeout policies by connection tracking zone.
pub type CtTimeouts = Arc<BTreeMap<u16, Arc<str>>>;

impl Snapshot {
    /// The text of `ofproto/list-tunnels`.
    pub fn list_tunnels(&self) -> String {
        self.tunnels.list(|(bridge, no)| {
            let port = self.bridges.get(&bridge)?.ports.get(&no)?;
            Some((&*port.name, &**port.tunnel()?))
        })
    }

    /// Sets the map of tunnel options for this thread, to print the key of a packet from a tunnel. It is the
    /// map of the bridge that the packet belongs to.
    pub fn tlv_scope_of(&self, key: &heddle_flow::FlowKey) -> Option<Scope> {
        let (bridge, _) = self.tunnels.receive(key)?;
        Some(self.bridges.get(&bridge)?.tlv_scope())
    }

    /// Generation slot of the snapshot itself, which moves with each snapshot. Most translations depend only
    /// on parts of the snapshot (`parts`).
    pub const CONFIG_SLOT: u16 = Generations::ALL;
}
