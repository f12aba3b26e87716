//! Actions that choose by a hash of the packet: `multipath`, `bundle`, `bundle_load`.

use super::{Port, Subfield};

/// Set of fields that a hash takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum HashFields {
    /// Ethernet source.
    EthSrc = 0,
    /// Addresses and ports of L2 to L4, both directions alike.
    SymmetricL4 = 1,
    /// Addresses and TCP or SCTP ports, both directions alike.
    SymmetricL3L4 = 2,
    /// Like [`HashFields::SymmetricL3L4`], and with UDP ports.
    SymmetricL3L4Udp = 3,
    /// IP source.
    NwSrc = 4,
    /// IP destination.
    NwDst = 5,
    /// Addresses of L3, both directions alike.
    SymmetricL3 = 6,
}

impl HashFields {
    /// All of them, by their number on the wire.
    pub const ALL: [HashFields; 7] = [
        HashFields::EthSrc,
        HashFields::SymmetricL4,
        HashFields::SymmetricL3L4,
        HashFields::SymmetricL3L4Udp,
        HashFields::NwSrc,
        HashFields::NwDst,
        HashFields::SymmetricL3,
    ];
    /// Name in texts.
    pub fn name(self) -> &'static str {
        match self {
            HashFields::EthSrc => "eth_src",
            HashFields::SymmetricL4 => "symmetric_l4",
            HashFields::SymmetricL3L4 => "symmetric_l3l4",
            HashFields::SymmetricL3L4Udp => "symmetric_l3l4+udp",
            HashFields::NwSrc => "nw_src",
            HashFields::NwDst => "nw_dst",
            HashFields::SymmetricL3 => "symmetric_l3",
        }
    }
}

/// Algorithm that turns a hash into a link (RFC 2992 compares them).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum MultipathAlgorithm {
    /// The remainder.
    ModuloN = 0,
    /// Equal ranges of the hash.
    HashThreshold = 1,
    /// Highest random weight.
    Hrw = 2,
    /// Hashed again until it fits.
    IterHash = 3,
}

impl MultipathAlgorithm {
    /// All of them, by their number on the wire.
    pub const ALL: [MultipathAlgorithm; 4] = [
        MultipathAlgorithm::ModuloN,
        MultipathAlgorithm::HashThreshold,
        MultipathAlgorithm::Hrw,
        MultipathAlgorithm::IterHash,
    ];
    /// Name in texts.
    pub fn name(self) -> &'static str {
        match self {
            MultipathAlgorithm::ModuloN => "modulo_n",
            MultipathAlgorithm::HashThreshold => "hash_threshold",
            MultipathAlgorithm::Hrw => "hrw",
            MultipathAlgorithm::IterHash => "iter_hash",
        }
    }
}

/// Writes the number of one of several links.
#[derive(Clone, Copy, PartialEq, Hash, Debug)]
pub struct Multipath {
    /// Fields to hash.
    pub fields: HashFields,
    /// Seed.
    pub basis: u16,
    /// Algorithm.
    pub algorithm: MultipathAlgorithm,
    /// Number of links, less one.
    pub max_link: u16,
    /// Argument of `IterHash`.
    pub arg: u32,
    /// Subfield that gets the link's number.
    pub dst: Subfield,
}

/// Algorithm by which a bundle chooses among its live members.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum BundleAlgorithm {
    /// The first.
    ActiveBackup = 0,
    /// Highest random weight.
    Hrw = 1,
}

impl BundleAlgorithm {
    /// All of them, by their number on the wire.
    pub const ALL: [BundleAlgorithm; 2] = [BundleAlgorithm::ActiveBackup, BundleAlgorithm::Hrw];
    /// Name in texts.
    pub fn name(self) -> &'static str {
        match self {
            BundleAlgorithm::ActiveBackup => "active_backup",
            BundleAlgorithm::Hrw => "hrw",
        }
    }
}

/// Outputs to one of several ports, or writes its number.
#[derive(Clone, PartialEq, Hash, Debug)]
pub struct Bundle {
    /// Fields to hash.
    pub fields: HashFields,
    /// Seed.
    pub basis: u16,
    /// Algorithm.
    pub algorithm: BundleAlgorithm,
    /// The ports.
    pub members: Vec<Port>,
    /// `bundle_load`: the subfield that gets the port's number.
    pub dst: Option<Subfield>,
}
