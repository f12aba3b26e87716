//! Settings of a bond.

use crate::bond_port::Mode;
use heddle_openflow::Port as OfPort;

/// Settings of a bond.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BondSettings {
    /// The choice of members.
    pub mode: Mode,
    /// Time for which a member's link must be up before packets use it, ms.
    pub updelay_ms: u64,
    /// Time for which a member's link must be down before packets leave it, ms.
    pub downdelay_ms: u64,
    /// Interval of rebalancing, ms; 0: never.
    pub rebalance_ms: u64,
    /// Seed of the hash of `balance-tcp`, and of that of `balance-slb`.
    pub basis: u32,
    /// The bond is an active-backup bond while LACP finds no partner.
    pub fallback: bool,
    /// Multicast is taken from each member of a `balance-slb` bond.
    pub all_members_active: bool,
    /// The preferred active member.
    pub primary: Option<String>,
    /// `lb-output-action` is set.
    pub lb_output: bool,
    /// Address of the last active member (`Port.bond_active_slave`); zero: none.
    pub last_active: [u8; 6],
}

/// A member's link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MemberLink {
    /// The member's number in the bridge.
    pub(crate) no: OfPort,
    /// Name of the interface.
    pub(crate) name: String,
    /// The interface's address.
    pub(crate) mac: [u8; 6],
    /// Whether the device has a carrier.
    pub(crate) carrier: bool,
}
