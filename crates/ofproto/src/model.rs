//! What the control half publishes and the translation half reads.
//!
//! **Invariants.** A [`Snapshot`] and all [`BridgeView`]s and [`PortView`]s in it are immutable; a change
//! publishes a new `Snapshot`, which shares with the one before what is the same, and then bumps
//! [`Snapshot::CONFIG_SLOT`] and the slots of what differs. Rules are not part of the snapshot: a [`Table`]
//! is concurrent, every rule is visible in a range of versions, and [`BridgeView::version`] says which
//! version a translation reads. A change of rules adds and removes them at `version + 1`, then stores the new
//! version, then bumps the generation slots of the tables it touched.
//!
//! **Threads.** Everything is read by workers without locks.

use crate::features::Features;
use crate::monitor::Watch;
use crate::sampling::IpfixConfig;
use crate::shared_map::SharedMap;
use crate::tunnels::{Tunnel, TunnelMap};
use heddle_classifier::Classifier;
use heddle_datapath_api::{Credit, Generations, PortNo};
use heddle_flow::Match;
use heddle_flow::tlv::{Scope, TlvMap};
use heddle_openflow::{InstructionSet, Port as OfPort};
use heddle_sync::OnceArc;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering::Relaxed};

/// Number of OpenFlow tables of a bridge; 254 is the last that controllers use, as in Open vSwitch.
pub const N_TABLES: usize = 255;

/// Most mirrors of a bridge, as in Open vSwitch.
pub const MAX_MIRRORS: usize = 32;

/// Counters of one rule (or table, or port): added to by whoever credits cached packets.
#[derive(Debug, Default)]
pub struct Stats {
    /// Packets.
    pub packets: AtomicU64,
    /// Bytes.
    pub bytes: AtomicU64,
    /// Coarse clock of the last packet, ms (0: never).
    pub used_ms: AtomicU64,
    /// Union of the TCP flags seen.
    pub tcp_flags: AtomicU16,
}

impl Stats {
    /// Adds packets. Counters are independent, so relaxed is enough.
    pub fn add(&self, packets: u64, bytes: u64, used_ms: u64, tcp_flags: u16) {
        self.packets.fetch_add(packets, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        // Mostly there is nothing to change, and a look costs less.
        if self.used_ms.load(Relaxed) < used_ms {
            self.used_ms.fetch_max(used_ms, Relaxed);
        }
        if tcp_flags & !self.tcp_flags.load(Relaxed) != 0 {
            self.tcp_flags.fetch_or(tcp_flags, Relaxed);
        }
    }
}

/// Counters that are made when somebody is to count: of a million rules most never see a packet.
#[derive(Debug, Default)]
pub struct LazyStats(OnceArc<Stats>);

impl LazyStats {
    /// Counters that exist already.
    pub fn of(stats: Arc<Stats>) -> Self {
        let place = OnceArc::empty();
        let filled = place.set(stats).is_ok();
        debug_assert!(filled, "it was empty");
        Self(place)
    }
    /// The counters, to count with or to share; from now on there are some.
    pub fn counted(&self) -> Arc<Stats> {
        loop {
            if let Some(stats) = self.0.arc() {
                return stats;
            }
            // Who comes second takes those of who came first.
            let _ = self.0.set(Arc::default());
        }
    }
    /// What was counted so far.
    pub fn seen(&self) -> &Stats {
        static NOTHING: Stats = Stats {
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            used_ms: AtomicU64::new(0),
            tcp_flags: AtomicU16::new(0),
        };
        self.0.get().unwrap_or(&NOTHING)
    }
}

/// One OpenFlow rule. A modification makes a new rule that shares `stats`; only what packets change is
/// atomic: `fin_timeout` shortens timeouts, a rule that is learned again counts as modified.
#[derive(Debug)]
pub struct Rule {
    /// Table that it is in.
    pub table: u8,
    /// Priority.
    pub priority: u16,
    /// What it matches.
    pub matches: heddle_classifier::MiniMatch,
    /// Cookie.
    pub cookie: u64,
    /// Seconds without a packet before it goes, 0: none.
    pub idle_timeout: AtomicU16,
    /// Seconds before it goes, 0: none.
    pub hard_timeout: AtomicU16,
    /// Eviction importance (1.4).
    pub importance: u16,
    /// OFPFF_* flags as OpenFlow 1.5 numbers them.
    pub flags: u16,
    /// What it does; rules that do the same mostly share it.
    pub instructions: Arc<InstructionSet>,
    /// Coarse clock at creation, ms.
    pub created_ms: u64,
    /// Coarse clock at the last modification, ms.
    pub modified_ms: AtomicU64,
    /// Version of the tables that first had it, whatever was modified since.
    pub born: u64,
    /// Orders rules that were added within the same millisecond; a modification keeps it. It may wrap, as it
    /// orders no others.
    pub serial: u32,
    /// The switch's own rule: not shown to controllers, not theirs to change.
    pub hidden: bool,
    /// Packets, bytes, last use.
    pub stats: LazyStats,
}

impl Rule {
    /// Makes timeouts shorter; 0: leaves the one as it is.
    pub(crate) fn reduce_timeouts(&self, idle: u16, hard: u16) {
        for (now, max) in [(&self.idle_timeout, idle), (&self.hard_timeout, hard)] {
            let old = now.load(Relaxed);
            if max != 0 && (old == 0 || old > max) {
                now.store(max, Relaxed);
            }
        }
    }
    /// When it last had a packet, or else came to be. A rule that took another's place goes on from when that
    /// was used.
    pub(crate) fn used_ms(&self) -> u64 {
        match self.stats.seen().used_ms.load(Relaxed) {
            0 => self.created_ms,
            used => used,
        }
    }
    /// Counters for a rule that takes its place: its own, or with `reset` new ones, which know no more than
    /// when it was used.
    pub(crate) fn heir(&self, reset: bool) -> LazyStats {
        let stats = if reset {
            Arc::default()
        } else {
            self.stats.counted()
        };
        stats.used_ms.fetch_max(self.used_ms(), Relaxed);
        LazyStats::of(stats)
    }
    /// Its match in the wide form.
    pub fn wide_match(&self) -> Match {
        self.matches.expand()
    }
}

impl Credit for Stats {
    fn credit(&self, packets: u64, bytes: u64, used_ms: u64, tcp_flags: u16) {
        self.add(packets, bytes, used_ms, tcp_flags);
    }
}

/// What a table does with a packet that matches nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TableMiss {
    /// As the version of OpenFlow in use says: to the controller in 1.0 to 1.2, drop from 1.3 on.
    Default = 0,
    /// To the controller.
    Controller = 1,
    /// Go on in the next table.
    Continue = 2,
    /// Drop.
    Drop = 3,
}

/// One OpenFlow table.
pub struct Table {
    /// Number.
    pub id: u8,
    /// Its rules.
    pub rules: Classifier<Arc<Rule>>,
    /// Packets looked up and matched.
    pub matched: Arc<Stats>,
    /// Packets looked up that matched nothing.
    pub missed: Arc<Stats>,
    /// Packets that no rule was found for when they were looked up last in this table, by [`Unmatched`].
    pub unmatched: [LazyStats; 3],
    miss: AtomicU8,
    /// Generation slot of its rules.
    pub slot: u16,
}

/// What becomes of a packet that no rule is found for. Open vSwitch has a hidden rule for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Unmatched {
    /// Controllers are told.
    ToController = 0,
    /// Nobody is told.
    Nothing = 1,
    /// It is a fragment, and fragments are not looked up.
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
    /// What happens on a miss.
    pub fn miss(&self) -> TableMiss {
        match self.miss.load(Relaxed) {
            1 => TableMiss::Controller,
            2 => TableMiss::Continue,
            3 => TableMiss::Drop,
            _ => TableMiss::Default,
        }
    }
    /// Changes what happens on a miss; the caller bumps the slot.
    pub fn set_miss(&self, miss: TableMiss) {
        self.miss.store(miss as u8, Relaxed);
    }
}

/// How a Port (bundle) treats VLAN tags, see `Port.vlan_mode`.
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

/// When a priority-only tag is put on packets that leave untagged (`Port.other_config:priority-tags`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PriorityTags {
    /// Never.
    #[default]
    Never,
    /// Where the priority is not zero.
    IfNonzero,
    /// Always.
    Always,
}

/// One row of the Port table: one interface, or a bond of several.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bundle {
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
    /// Protected ports do not talk to each other.
    pub protected: bool,
    /// By queue: DSCP (six bits) of IP packets that leave by it.
    pub queue_dscp: Vec<(u32, u8)>,
    /// Members, as OpenFlow ports.
    pub ports: Vec<OfPort>,
}

/// Where copies go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MirrorOutput {
    /// A bundle, which has no other use then.
    Bundle(usize),
    /// All bundles of a VLAN.
    Vlan(u16),
}

/// One row of the Mirror table.
#[derive(Clone, Debug)]
pub struct Mirror {
    /// RcuSlots of the bundles whose incoming packets are copied.
    pub sources: Vec<usize>,
    /// RcuSlots of the bundles whose outgoing packets are copied.
    pub destinations: Vec<usize>,
    /// Only packets in these VLANs are; `None`: all.
    pub vlans: Option<Arc<VlanSet>>,
    /// Where copies go.
    pub output: MirrorOutput,
    /// Bytes of a packet that are sent; 0 and 65535: all.
    pub snaplen: u16,
    /// Mirrors of this bridge that send to the same place, itself among them, a bit each.
    pub same_output: u32,
    /// What was copied.
    pub stats: Arc<Stats>,
}

/// A set of VLAN ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlanSet(pub Box<[u64; 64]>);

impl VlanSet {
    /// The set of these ids (others than 0..=4095 are left out).
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

/// Where packets for an OpenFlow port go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Binding {
    /// A port of the datapath.
    Datapath(PortNo),
    /// The other end of a patch: bridge id and OpenFlow port there. `None`: the peer is not there.
    Patch(Option<(u64, OfPort)>),
    /// The other end of a tunnel.
    Tunnel(Arc<Tunnel>),
    /// Nowhere (the device could not be opened).
    Unbound,
}

/// OpenFlow port configuration bits (as in OpenFlow 1.0; later versions have a subset).
pub mod port_config {
    /// Administratively down.
    pub const PORT_DOWN: u32 = 1;
    /// Drop what is received.
    pub const NO_RECV: u32 = 1 << 2;
    /// Drop received STP packets.
    pub const NO_RECV_STP: u32 = 1 << 3;
    /// Not in floods.
    pub const NO_FLOOD: u32 = 1 << 4;
    /// Drop what is sent.
    pub const NO_FWD: u32 = 1 << 5;
    /// No packet-ins for packets received.
    pub const NO_PACKET_IN: u32 = 1 << 6;
}

/// One OpenFlow port of a bridge, as translation sees it.
#[derive(Clone, Debug)]
pub struct PortView {
    /// Number.
    pub no: OfPort,
    /// Interface name.
    pub name: String,
    /// Where its packets go.
    pub binding: Binding,
    /// Hardware address.
    pub mac: [u8; 6],
    /// MTU, 0 if it has none.
    pub mtu: u32,
    /// [`port_config`] bits.
    pub config: u32,
    /// Carrier and admin state together: may it forward?
    pub up: bool,
    /// The session that watches it.
    pub watch: Option<Watch>,
    /// Its place in [`BridgeView::bundles`].
    pub bundle: usize,
    /// Packets through a patch or tunnel port: received, sent (unused for datapath ports: the datapath counts
    /// those).
    pub patch_rx: Arc<Stats>,
    /// See `patch_rx`.
    pub patch_tx: Arc<Stats>,
}

impl PortView {
    /// Whether it may forward, by its device and by the session that watches it.
    pub fn is_live(&self) -> bool {
        self.up && self.watch.as_ref().is_none_or(Watch::is_forwarding)
    }
}

/// What becomes of IP fragments (`OFPT_SET_CONFIG`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fragments {
    /// Tables see them without ports.
    #[default]
    Normal,
    /// They are dropped.
    Drop,
    /// Tables see first fragments with their ports.
    Match,
}

impl Fragments {
    /// As flags of the message say it; reassembly, which there is not, is as normal.
    pub fn from_flags(flags: u16) -> Self {
        match flags & 3 {
            1 => Self::Drop,
            3 => Self::Match,
            _ => Self::Normal,
        }
    }
}

impl BridgeView {
    /// Makes the bridge's tunnel options those of the thread.
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
    /// Bundles by their places, in order.
    pub bundles: SharedMap<usize, Arc<Bundle>>,
    /// Mirrors, at most [`MAX_MIRRORS`].
    pub mirrors: Vec<Mirror>,
    /// Which tunnel options are fields; `None`: none is.
    pub tlv: Option<Arc<TlvMap>>,
    /// MAC address of the local port (reserved addresses aside, what the bridge itself answers to).
    pub local_mac: [u8; 6],
    /// VLANs that flood instead of learning.
    pub flood_vlans: Option<Arc<VlanSet>>,
    /// Forward reserved multicast (`other_config:forward-bpdu`).
    pub forward_bpdu: bool,
    /// Learned addresses.
    pub mac: Arc<crate::mac::MacTable>,
    /// Tables, 0 to 254.
    pub tables: Arc<Vec<Table>>,
    /// Groups; shared by all views of this bridge, as the tables are.
    pub(crate) groups: Arc<crate::versioned::Versioned<crate::group::Group>>,
    /// Meters, the same in every version.
    pub(crate) meters: Arc<crate::versioned::Versioned<Arc<crate::bridge::meters::OfMeter>>>,
    /// Which version of the rules is current; shared by all views of this bridge.
    pub version: Arc<AtomicU64>,
    /// Rules and groups that are not seen at this version may not be there any more: who reads an earlier one
    /// has to look after what it read, and to begin anew.
    pub(crate) purged: Arc<AtomicU64>,
    /// At most this many tags are looked at (`other_config:vlan-limit`).
    pub vlan_limit: usize,
    /// A controller is configured or connected that misses go to (1.0 to 1.2 semantics of a table miss).
    pub miss_to_controller: bool,
    /// What becomes of fragments.
    pub frags: Fragments,
    /// What of the datapath's features translation makes use of.
    pub features: Features,
    /// Controllers are configured: buckets that watch them are live.
    pub has_controllers: bool,
    /// Whose packets are sampled for whom; `None`: nobody's.
    pub ipfix: Option<Arc<IpfixConfig>>,
    /// The bridge itself, which learns.
    pub(crate) control: std::sync::Weak<crate::bridge::Bridge>,
}

/// Hashes one number that the switch gave out itself, so that nobody makes many meet.
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
    /// Which bridge and OpenFlow port a datapath port belongs to.
    pub by_dp_port: SharedMap<PortNo, (u64, OfPort)>,
    /// Names of timeout policies by connection tracking zone.
    pub ct_timeouts: CtTimeouts,
    /// Which tunnel port a packet from a tunnel belongs to.
    pub tunnels: Arc<TunnelMap>,
}

/// Names of timeout policies by connection tracking zone.
pub type CtTimeouts = Arc<BTreeMap<u16, Arc<str>>>;

impl Snapshot {
    /// Makes the tunnel options of the bridge that a packet from a tunnel belongs to those of the thread: its
    /// key is printed by them.
    pub fn tlv_scope_of(&self, key: &heddle_flow::FlowKey) -> Option<Scope> {
        let (bridge, _) = self.tunnels.receive(key)?;
        Some(self.bridges.get(&bridge)?.tlv_scope())
    }

    /// Generation slot of the snapshot itself, which moves with each. Answers do not depend on it but on
    /// parts of the snapshot (`parts`).
    pub const CONFIG_SLOT: u16 = Generations::ALL;
}
