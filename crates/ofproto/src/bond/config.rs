//! Settings of a bond, of its members and of LACP.

use crate::bfd_port::BfdPort;
use crate::bond_port::Mode;
use heddle_datapath_api::PortNo;
use heddle_lacp::{LinkSettings, Settings as LacpSettings};
use heddle_openflow::Port as OfPort;

/// Settings of a port with several interfaces, or with LACP.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BondConfig {
    /// Settings of the bond; `None`: there is one interface only.
    pub bond: Option<BondSettings>,
    /// Settings of LACP; `None`: it is off.
    pub lacp: Option<LacpSettings>,
}

/// An interface of such a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberConfig {
    /// Number in the bridge.
    pub no: OfPort,
    /// Name.
    pub name: String,
    /// Address.
    pub mac: [u8; 6],
    /// Whether the device has a carrier.
    pub carrier: bool,
    /// Number of changes of the link that the device has counted. As in Open vSwitch, LACP does not notice a
    /// loss that is not counted: a `dummy` that is set down counts none.
    pub link_resets: u64,
    /// The datapath port; `None`: the interface has none of its own.
    pub dp: Option<PortNo>,
    /// Settings of its link.
    pub lacp: LinkSettings,
    /// The session that watches it.
    pub bfd: Option<BfdPort>,
}

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
