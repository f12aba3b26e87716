//! The action `ct` of the datapath, in the one form that translation, execution and texts share.

use std::net::IpAddr;
use std::sync::Arc;

/// Tracks the packet, with these options.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct CtAction {
    /// Keep a new connection.
    pub commit: bool,
    /// Make the packet's direction the original one, by a new connection if it is not.
    pub force: bool,
    /// Zone.
    pub zone: u16,
    /// Write these bits (value, mask) of the connection's mark; only with `commit`.
    pub mark: Option<(u32, u32)>,
    /// Write these bits (value, mask) of the connection's label, network order; only with `commit`.
    pub label: Option<(u128, u128)>,
    /// Use this helper: find the connections that the new connection announces.
    pub helper: Option<CtHelper>,
    /// The name of a timeout policy.
    pub timeout: Option<Arc<str>>,
    /// Translate addresses.
    pub nat: Option<CtNat>,
}

/// Protocols that announce other connections.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CtHelper {
    /// FTP, port 21.
    Ftp,
    /// TFTP, port 69.
    Tftp,
}

impl CtHelper {
    /// Name, as in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ftp => "ftp",
            Self::Tftp => "tftp",
        }
    }
}

/// Address translation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CtNat {
    /// The translation of a new connection; `None`: translate only packets of translated connections.
    pub new: Option<NatRange>,
}

/// The endpoint that is translated in a new connection, and the choice of its new address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NatRange {
    /// Source or destination.
    pub end: NatEnd,
    /// First and last address to choose from; `None`: the packet's own.
    pub addresses: Option<(IpAddr, IpAddr)>,
    /// First and last port to choose from; `None`: the packet's own if it is free.
    pub ports: Option<(u16, u16)>,
    /// The choice of an address and a port in the ranges.
    pub how: NatHow,
    /// The same client gets the same address each time.
    pub persistent: bool,
}

/// The endpoint that is translated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NatEnd {
    /// The source.
    Src,
    /// The destination.
    Dst,
}

/// The choice of a port or an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum NatHow {
    /// The switch decides.
    #[default]
    Any,
    /// A hash of the connection selects it.
    Hash,
    /// A random number selects it.
    Random,
}
