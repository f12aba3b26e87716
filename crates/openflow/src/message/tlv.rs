//! Nicira's messages about a bridge's map of tunnel options (`NXT_TLV_TABLE_*`).

pub use heddle_flow::tlv::TlvMapping;

/// What becomes of mappings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlvCommand {
    /// They are added.
    Add,
    /// Those of their fields are removed.
    Delete,
    /// All there are, are removed.
    Clear,
}

/// Changes the map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlvTableMod {
    /// What to do.
    pub command: TlvCommand,
    /// With which.
    pub mappings: Vec<TlvMapping>,
}

/// The map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlvTable {
    /// Bytes that all fields can have together.
    pub max_option_space: u32,
    /// How many fields there are.
    pub max_fields: u16,
    /// What is mapped, in the order of the fields.
    pub mappings: Vec<TlvMapping>,
}
