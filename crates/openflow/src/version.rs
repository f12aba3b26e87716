//! Protocol versions.

/// A version of OpenFlow that has a codec here; the discriminant is the header's version byte.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Version {
    /// OpenFlow 1.0.
    V10 = 1,
    /// OpenFlow 1.1.
    V11 = 2,
    /// OpenFlow 1.2.
    V12 = 3,
    /// OpenFlow 1.3.
    V13 = 4,
    /// OpenFlow 1.4.
    V14 = 5,
    /// OpenFlow 1.5.
    V15 = 6,
}

impl Version {
    /// All of them, oldest first.
    pub const ALL: [Version; 6] = [
        Version::V10,
        Version::V11,
        Version::V12,
        Version::V13,
        Version::V14,
        Version::V15,
    ];

    /// The version with this byte in the header.
    pub fn from_wire(byte: u8) -> Option<Version> {
        Self::ALL.into_iter().find(|v| v.wire() == byte)
    }
    /// The byte in the header.
    pub fn wire(self) -> u8 {
        self as u8
    }
    /// The bit for this version in a hello bitmap (bit 1 is 1.0).
    pub fn bit(self) -> u32 {
        1 << self.wire()
    }
    /// The name in the database's `Bridge.protocols`, such as `OpenFlow13`.
    pub fn name(self) -> &'static str {
        match self {
            Version::V10 => "OpenFlow10",
            Version::V11 => "OpenFlow11",
            Version::V12 => "OpenFlow12",
            Version::V13 => "OpenFlow13",
            Version::V14 => "OpenFlow14",
            Version::V15 => "OpenFlow15",
        }
    }
    /// The version with this name in the database.
    pub fn by_name(name: &str) -> Option<Version> {
        Self::ALL.into_iter().find(|v| v.name() == name)
    }
}
