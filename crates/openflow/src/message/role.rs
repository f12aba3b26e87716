//! Roles of controllers, and the asynchronous messages that each wants.

use super::PacketInReason;
use crate::version::Version;

/// A controller's role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Requests the present role (1.2 and later).
    NoChange,
    /// Full access, all messages: the default ("other" in Nicira's extension).
    Equal,
    /// Full access; at most one controller has it.
    Primary,
    /// Read-only.
    Secondary,
}

/// A role request or reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoleRequest {
    /// Wanted or current role.
    pub role: Role,
    /// Generation id; all ones in a reply where there was none. `None` in Nicira's form.
    pub generation_id: Option<u64>,
}

/// Reason of a change of a controller's role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RoleReason {
    /// Another controller became the primary one.
    PrimaryRequest = 0,
    /// The switch's configuration changed.
    Config = 1,
    /// Experimenter data.
    Experimenter = 2,
}

/// `OFPT_ROLE_STATUS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoleStatus {
    /// The new role.
    pub role: Role,
    /// Reason of the change.
    pub reason: RoleReason,
    /// Generation id of the request that changed the role.
    pub generation_id: u64,
}

/// Kinds of asynchronous messages, indices of [`AsyncConfig`]'s arrays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum AsyncType {
    /// Packet-in; bits are `OFPR_*`.
    PacketIn = 0,
    /// Port status; bits are `OFPPR_*`.
    PortStatus = 1,
    /// Flow removed; bits are `OFPRR_*`.
    FlowRemoved = 2,
    /// Role status (1.4); bits are `OFPCRR_*`.
    RoleStatus = 3,
    /// Table status (1.4); bits are `OFPTR_*`.
    TableStatus = 4,
    /// Forwarded requests (1.4); bits are `OFPRFR_*`.
    RequestForward = 5,
}

/// Bit masks of the reasons that a controller wants, for each [`AsyncType`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AsyncConfig {
    /// While its role is primary or equal.
    pub primary: [u32; 6],
    /// While its role is secondary.
    pub secondary: [u32; 6],
    /// Masks that a `SetAsync` of 1.4's form names (bit `type` for primary, `8 + type` for secondary); the
    /// others keep their values. Other forms name all of theirs.
    pub named: u16,
}

#[expect(clippy::indexing_slicing, reason = "the arrays have a place for each type")]
impl AsyncConfig {
    /// Default of a new connection: packet-ins but for invalid TTLs, port status and flow removed while
    /// primary; port status only while secondary. Before 1.3 also packets that no flow, not even a table-miss
    /// flow, matched.
    pub fn defaults(version: Version) -> AsyncConfig {
        let mut c = AsyncConfig {
            named: 0x3f3f,
            ..AsyncConfig::default()
        };
        let reason = |r: PacketInReason| 1 << r as u32;
        c.primary[AsyncType::PacketIn as usize] = (reason(PacketInReason::NoMatch)
            | reason(PacketInReason::Action)
            | reason(PacketInReason::ActionSet)
            | reason(PacketInReason::Group)
            | reason(PacketInReason::PacketOut)
            | reason(PacketInReason::ExplicitMiss))
            | if version <= Version::V12 {
                reason(PacketInReason::ImplicitMiss)
            } else {
                0
            };
        c.primary[AsyncType::PortStatus as usize] = 0b111;
        c.primary[AsyncType::FlowRemoved as usize] = match version {
            Version::V14 | Version::V15 => 0x3f,
            Version::V13 => 0x0f,
            _ => 0x07,
        };
        c.secondary[AsyncType::PortStatus as usize] = 0b111;
        c
    }
    /// Whether a message of this type and reason is wanted.
    pub fn wants(&self, secondary: bool, ty: AsyncType, reason: u8) -> bool {
        let masks = if secondary { &self.secondary } else { &self.primary };
        masks[ty as usize].checked_shr(reason.into()).unwrap_or(0) & 1 != 0
    }
    /// Takes over the masks that `update` names.
    pub fn apply(&mut self, update: &AsyncConfig) {
        for i in 0..6 {
            if update.named & 1 << i != 0 {
                self.primary[i] = update.primary[i];
            }
            if update.named & 0x100 << i != 0 {
                self.secondary[i] = update.secondary[i];
            }
        }
    }
}
