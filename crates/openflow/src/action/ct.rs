//! Connection tracking: `ct` and `nat`.

use super::{Action, Subfield};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Sends the packet through the connection tracker.
#[derive(Clone, PartialEq, Hash, Debug, Default)]
pub struct Ct {
    /// Keep the connection.
    pub commit: bool,
    /// Commit even if that replaces a connection in the other direction.
    pub force: bool,
    /// Zone of the connection.
    pub zone: CtZone,
    /// A copy of the packet recirculates to this table, with the connection's state.
    pub table: Option<u8>,
    /// Port of the protocol whose helper is to look at the connection; 0: none.
    pub alg: u16,
    /// Address translation first, then writes of the connection's mark and label.
    pub actions: Vec<Action>,
}

/// A connection tracking zone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CtZone {
    /// This number.
    Number(u16),
    /// The zone in 16 bits of a field.
    Field(Subfield),
}

impl Default for CtZone {
    fn default() -> Self {
        CtZone::Number(0)
    }
}

/// Address that is translated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NatDirection {
    /// The source.
    Src,
    /// The destination.
    Dst,
}

/// Address translation, inside of `ct`. Ranges whose end is `None` or not above their start are single
/// values.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Nat {
    /// `None`: as the connection's earlier packets were translated.
    pub direction: Option<NatDirection>,
    /// Mappings survive a restart.
    pub persistent: bool,
    /// The port is chosen by a hash.
    pub hash: bool,
    /// The port is chosen at random.
    pub random: bool,
    /// Addresses to choose from.
    pub addresses: NatAddresses,
    /// Ports to choose from: first and last.
    pub ports: Option<(u16, Option<u16>)>,
}

/// Addresses to choose from: first and last.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum NatAddresses {
    /// The packet's own.
    #[default]
    None,
    /// IPv4.
    V4(Ipv4Addr, Option<Ipv4Addr>),
    /// IPv6.
    V6(Ipv6Addr, Option<Ipv6Addr>),
}
