//! What an action `ct` of the datapath asks for: the one form that translation, execution and texts share.

use std::net::IpAddr;
use std::sync::Arc;

/// Have the packet tracked.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct CtAction {
    /// Keep a new connection.
    pub commit: bool,
    /// Let the packet's direction be the original one, by a new connection where it is not.
    pub force: bool,
    /// Zone.
    pub zone: u16,
    /// Write these bits (value, mask) of the connection's mark; only with `commit`.
    pub mark: Option<(u32, u32)>,
    /// Write these bits (value, mask) of the connection's label, network order; only with `commit`.
    pub label: Option<(u128, u128)>,
    /// Look for connections that this one announces.
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
    /// Its name.
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
    /// How a new connection is translated; `None`: only packets of connections that are translated already.
    pub new: Option<NatRange>,
}

/// Which address a new connection has translated, and to what.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NatRange {
    /// Source or destination.
    pub end: NatEnd,
    /// First and last address to choose from; `None`: the packet's own.
    pub addresses: Option<(IpAddr, IpAddr)>,
    /// First and last port to choose from; `None`: the packet's own if it is free.
    pub ports: Option<(u16, u16)>,
    /// How one of them is chosen.
    pub how: NatHow,
    /// The same client gets the same address each time.
    pub persistent: bool,
}

/// Which address is translated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NatEnd {
    /// The source.
    Src,
    /// The destination.
    Dst,
}

/// How a port or address is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum NatHow {
    /// As the switch likes.
    #[default]
    Any,
    /// By a hash of the connection.
    Hash,
    /// At random.
    Random,
}
