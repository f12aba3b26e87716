//! Nicira's messages about a bridge's map of tunnel options (`NXT_TLV_TABLE_*`).

pub use heddle_flow::field::tlv::TlvMapping;

/// Command on the map of tunnel options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlvCommand {
    /// The mappings are added.
    Add,
    /// Mappings of these fields are removed.
    Delete,
    /// All mappings are removed.
    Clear,
}

/// Changes the map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlvTableMod {
    /// Command.
    pub command: TlvCommand,
    /// Mappings to add or remove.
    pub mappings: Vec<TlvMapping>,
}

/// The map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlvTable {
    /// Bytes that all fields can have together.
    pub max_option_space: u32,
    /// Number of fields.
    pub max_fields: u16,
    /// Mappings, in the order of the fields.
    pub mappings: Vec<TlvMapping>,
}
