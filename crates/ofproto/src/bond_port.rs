//! A bond as translations and workers see it. [`crate::bond`] changes it.
//!
//! **Dependencies.** A translation reads the generation of a [`BondPart`] before the state that the part
//! guards. The state is published first, then the generation is counted up.

use crate::stats::Stats;
use heddle_datapath_api::{LbOutput, UpcallData};
use heddle_flow::hash;
use heddle_lacp::{ETHERTYPE, payload_of};
use heddle_openflow::Port as OfPort;
use heddle_sync::Published;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Number of buckets of a bond.
pub(crate) const BUCKETS: usize = LbOutput::BUCKETS;
/// Maximum number of waiting LACP messages of one member. Further ones are lost, so that other members'
/// have room.
const MAX_WAITING_MESSAGES: u32 = 16;

/// The choice of a member for each packet (`Port.bond_mode`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// All packets leave by the active member.
    #[default]
    ActiveBackup,
    /// Source address and VLAN select a bucket.
    BalanceSlb,
    /// Addresses, protocol and ports select a bucket; the partner has to speak LACP.
    BalanceTcp,
}

impl Mode {
    /// The name in the database.
    pub fn name(self) -> &'static str {
        match self {
            Self::ActiveBackup => "active-backup",
            Self::BalanceSlb => "balance-slb",
            Self::BalanceTcp => "balance-tcp",
        }
    }
    /// The mode of this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::ActiveBackup, Self::BalanceSlb, Self::BalanceTcp]
            .into_iter()
            .find(|mode| mode.name() == name)
    }
}

/// State of LACP on a bond.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LacpState {
    /// The bond speaks no LACP.
    #[default]
    Off,
    /// No partner was found.
    Configured,
    /// There is a partner.
    Negotiated,
}

impl LacpState {
    /// The text of `bond/show`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Configured => "configured",
            Self::Negotiated => "negotiated",
        }
    }
}

/// The state of a bond that a translation may depend on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum BondPart {
    /// The mode in which it sends, its settings, and LACP's state.
    Mode,
    /// The active member.
    Active,
    /// The member of a bucket.
    Bucket(u8),
    /// Whether a member accepts packets.
    Member(OfPort),
}

impl BondPart {
    /// A number of this part alone, below 2²⁰.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Bucket(n) => n.into(),
            Self::Mode => 1 << 8,
            Self::Active => 2 << 8,
            Self::Member(no) => 1 << 16 | u64::from(no.0 & 0xffff),
        }
    }
}

/// The bucket of packets from this address with this outer VLAN: Open vSwitch's function.
pub fn slb_bucket(mac: [u8; 6], vlan: u16, basis: u32) -> u8 {
    let mac = mac.into_iter().fold(0, |all, byte| all << 8 | u64::from(byte));
    let key = u64::from(vlan) << 48 | mac;
    hash::bytes(&key.to_le_bytes(), basis).to_le_bytes()[0]
}

/// A member's LACP: the receiver of its messages, and its state.
#[derive(Debug)]
pub(crate) struct LacpInput {
    /// Number of the bond.
    pub(crate) bond: u64,
    /// The member.
    pub(crate) port: OfPort,
    /// Messages since the last refill.
    came: AtomicU32,
    /// Whether LACP lets packets through. A generation is counted up after each change (`Part::Link`).
    forwarding: AtomicBool,
}

impl LacpInput {
    pub(crate) fn new(bond: u64, port: OfPort) -> Arc<Self> {
        Arc::new(Self {
            bond,
            port,
            came: AtomicU32::new(0),
            forwarding: AtomicBool::new(false),
        })
    }
    /// Takes over whether LACP lets packets through. Returns whether that is a change.
    pub(crate) fn set_forwarding(&self, forwarding: bool) -> bool {
        self.forwarding.swap(forwarding, Relaxed) != forwarding
    }
    /// Allows [`MAX_WAITING_MESSAGES`] messages again.
    pub(crate) fn refill(&self) {
        self.came.store(0, Relaxed);
    }
}

/// LACP's part of an OpenFlow port.
#[derive(Clone, Debug)]
pub struct LacpLink(Arc<LacpInput>);

impl LacpLink {
    fn identity(&self) -> (u64, OfPort) {
        (self.0.bond, self.0.port)
    }
    /// Whether LACP lets packets through. A translation that depends on it must read `Part::Link`'s
    /// generation before.
    pub(crate) fn is_forwarding(&self) -> bool {
        self.0.forwarding.load(Relaxed)
    }
}

impl PartialEq for LacpLink {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for LacpLink {}

/// The data of an upcall with an LACP message.
pub(crate) struct LacpCookie(pub(crate) Arc<LacpInput>);

impl UpcallData for LacpCookie {
    fn text(&self) -> String {
        "slow_path(lacp)".to_owned()
    }
    fn receiver(&self) -> u64 {
        self.0.bond << 32 | u64::from(self.0.port.0)
    }
    fn admit(&self, head: &[u8]) -> bool {
        // Workers that check at the same time let more messages in, one per worker.
        let room = payload_of(head).is_some() && self.0.came.load(Relaxed) < MAX_WAITING_MESSAGES;
        if room {
            self.0.came.fetch_add(1, Relaxed);
        }
        room
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A member.
#[derive(Clone, Debug)]
pub(crate) struct MemberView {
    pub(crate) no: OfPort,
    /// Packets are taken from it.
    pub(crate) accepts: bool,
    pub(crate) input: Arc<LacpInput>,
}

/// The state of a bond that translations read.
#[derive(Clone, Debug)]
pub(crate) struct BondView {
    pub(crate) mode: Mode,
    /// The mode in which packets are sent. `None`: none is.
    pub(crate) sends: Option<Mode>,
    pub(crate) lacp: LacpState,
    pub(crate) fallback: bool,
    pub(crate) all_members_active: bool,
    pub(crate) basis: u32,
    /// All members have ports of the datapath.
    pub(crate) in_datapath: bool,
    pub(crate) active: Option<OfPort>,
    pub(crate) members: Vec<MemberView>,
    /// The member of each bucket; none without buckets.
    pub(crate) buckets: Vec<Option<OfPort>>,
}

impl BondView {
    pub(crate) fn member(&self, no: OfPort) -> Option<&MemberView> {
        self.members.iter().find(|m| m.no == no)
    }

    /// The parts in which it differs from `before`.
    pub(crate) fn differences(&self, before: &Self) -> Vec<BondPart> {
        let whole = |v: &Self| {
            (
                v.mode,
                v.sends,
                v.lacp,
                v.fallback,
                v.all_members_active,
                v.basis,
                v.in_datapath,
            )
        };
        let mut parts = Vec::new();
        if whole(self) != whole(before) {
            parts.push(BondPart::Mode);
        }
        if self.active != before.active {
            parts.push(BondPart::Active);
        }
        let accepts = |v: &Self, no: OfPort| v.member(no).map(|m| m.accepts);
        let members = self.members.iter().chain(&before.members);
        for no in members.map(|m| m.no) {
            if accepts(self, no) != accepts(before, no) && !parts.contains(&BondPart::Member(no)) {
                parts.push(BondPart::Member(no));
            }
        }
        let bucket = |v: &Self, n: u8| v.buckets.get(usize::from(n)).copied().flatten();
        let moved = |n: &u8| bucket(self, *n) != bucket(before, *n);
        if self.sends == Some(Mode::BalanceSlb) {
            parts.extend((0..=u8::MAX).filter(moved).map(BondPart::Bucket));
        }
        parts
    }
}

/// The state of one bond that translations, workers and [`crate::bond::Bonds`] share.
pub(crate) struct BondShared {
    /// Number of the bond, never reused.
    pub(crate) id: u64,
    pub(crate) view: Published<BondView>,
    /// The buckets of `balance-tcp` in the datapath.
    pub(crate) table: Arc<LbOutput>,
    /// Packets sent by buckets that translations choose.
    pub(crate) sent: Vec<Arc<Stats>>,
}

impl BondShared {
    pub(crate) fn new(id: u64, table: u32) -> Arc<Self> {
        Arc::new(Self {
            id,
            view: Published::new(BondView {
                mode: Mode::ActiveBackup,
                sends: None,
                lacp: LacpState::Off,
                fallback: false,
                all_members_active: false,
                basis: 0,
                in_datapath: true,
                active: None,
                members: Vec::new(),
                buckets: Vec::new(),
            }),
            table: LbOutput::new(table),
            sent: (0..BUCKETS).map(|_| Arc::default()).collect(),
        })
    }
}

/// A bond's part of a bundle of ports: LACP, several members, or both.
#[derive(Clone)]
pub struct BondPort {
    pub(crate) shared: Arc<BondShared>,
    /// There are several members.
    pub(crate) is_bond: bool,
    /// The members speak LACP.
    pub(crate) speaks_lacp: bool,
}

impl BondPort {
    fn identity(&self) -> (u64, bool, bool) {
        (self.shared.id, self.is_bond, self.speaks_lacp)
    }
    /// LACP's part of a member's port. `None`: it speaks no LACP.
    pub fn lacp_link(&self, port: OfPort) -> Option<LacpLink> {
        let view = self.shared.view.load();
        let member = view.member(port).filter(|_| self.speaks_lacp)?;
        Some(LacpLink(member.input.clone()))
    }
    /// Number of the bond.
    pub(crate) fn id(&self) -> u64 {
        self.shared.id
    }
    /// The receiver of a packet that came in by a member, if it is an LACP message.
    pub(crate) fn lacp_input(&self, port: OfPort, dl_type: u16) -> Option<Arc<LacpInput>> {
        if !self.speaks_lacp || dl_type != ETHERTYPE {
            return None;
        }
        self.shared.view.load().member(port).map(|m| m.input.clone())
    }
}

impl PartialEq for BondPort {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for BondPort {}

impl std::fmt::Debug for BondPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BondPort").field(&self.identity()).finish()
    }
}
