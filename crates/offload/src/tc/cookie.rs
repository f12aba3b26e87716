//! The cookie by which this switch recognises its filters.

/// Owner and era of a filter: the cookie of its first action, 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cookie {
    /// Number of the switch's run directory.
    pub(super) owner: u64,
    /// Number of the process, above those of all processes whose filters it found.
    pub(super) era: u32,
}

impl Cookie {
    const MAGIC: [u8; 4] = heddle_sys::ingress::FLOW_COOKIE;

    pub(super) fn bytes(self) -> Vec<u8> {
        let mut bytes = Self::MAGIC.to_vec();
        bytes.extend(self.owner.to_be_bytes());
        bytes.extend(self.era.to_be_bytes());
        bytes
    }
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&Self::MAGIC)?;
        let (owner, rest) = rest.split_first_chunk::<8>()?;
        Some(Self {
            owner: u64::from_be_bytes(*owner),
            era: u32::from_be_bytes(*rest.first_chunk::<4>()?),
        })
    }
}
